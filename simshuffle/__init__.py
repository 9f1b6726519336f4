"""simshuffle: what does shuffling the data cost in distributed deep learning, and what does not
shuffling cost?

from simshuffle import load_scenario, run

result = run(load_scenario("abci-imagenet1k", {"world_size": 512}))
result.breakdown
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from simshuffle.version import __version__

if TYPE_CHECKING:
    from simshuffle.api import read, run
    from simshuffle.errors import ScenarioError, SimshuffleError
    from simshuffle.scenario.scenario import Scenario, load_scenario
    from simshuffle.sim.simpy_network import SimpyNetwork
    from simshuffle.study.study import Result

__all__ = [
    "Result",
    "Scenario",
    "ScenarioError",
    "SimpyNetwork",
    "SimshuffleError",
    "__version__",
    "load_scenario",
    "read",
    "run",
]

_HOMES = {
    "Result": "study.study",
    "Scenario": "scenario.scenario",
    "ScenarioError": "errors",
    "SimpyNetwork": "sim.simpy_network",
    "SimshuffleError": "errors",
    "load_scenario": "scenario.scenario",
    "read": "api",
    "run": "api",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``simshuffle --help`` answers at once."""
    if name in _HOMES:
        value = getattr(importlib.import_module(f"simshuffle.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'simshuffle' has no attribute '{name}'")
