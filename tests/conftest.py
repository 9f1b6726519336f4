"""Settings and results that all tests share."""

import shutil

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def results_made(tmp_path_factory):
    """Result folders by kind of `tests.fuzz.results`, made once each; not to be changed."""
    from tests.fuzz.results import made

    there = {}
    place = tmp_path_factory.mktemp("results")

    def of(kind):
        if kind not in there:
            there[kind] = made(kind, place)
        return there[kind]

    return of


@pytest.fixture
def result_of(results_made, tmp_path):
    """A copy of the result folder of a kind."""
    return lambda kind: shutil.copytree(results_made(kind), tmp_path / "result")
