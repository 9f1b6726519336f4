"""Settings that all tests share."""

import pytest
from hypothesis import HealthCheck, settings

from tests.preloaded import Preloaded

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

LONGEST = (
    "docs/test_commands",
    "units/test_cli",
    "physics/test_ddp_equivalence",
    "orders/test_paper_orders",
    "docs/test_notebooks",
    "units/test_bad_input",
    "units/test_mechanisms",
    "physics/test_page_cache",
    "units/test_validation",
    "units/test_train_faults",
    "units/test_interrupt",
    "units/test_wheel",
    "orders/test_importance_orders",
)
"""Files that take longest, to begin with, so that none is left over for one core at the end."""


def pytest_collection_modifyitems(items):
    """Put the longest files first, and keep the order of all others."""
    places = {f"tests/{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.split("::")[0], len(places)))


@pytest.fixture(scope="session")
def preloaded():
    """Runs commands in processes of their own, quickly."""
    process = Preloaded()
    yield process
    process.end()
