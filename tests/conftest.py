"""Settings that all tests share."""

import pytest
from hypothesis import HealthCheck, settings

from tests.preloaded import Preloaded

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def preloaded():
    """Runs commands in processes of their own, quickly."""
    process = Preloaded()
    yield process
    process.end()
