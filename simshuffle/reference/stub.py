"""The stub of the package: the signatures of the functions that are made from verbs."""

from __future__ import annotations

from simshuffle.studies import own_verbs
from simshuffle.study.functions import stub

HEAD = """\
# Made from the options of the studies: `make reference` renews it.
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simshuffle.api import compare as compare
from simshuffle.api import read as read
from simshuffle.api import run as run
from simshuffle.errors import ScenarioError as ScenarioError
from simshuffle.errors import SimshuffleError as SimshuffleError
from simshuffle.scenario.scenario import Scenario as Scenario
from simshuffle.scenario.scenario import load_scenario as load_scenario
from simshuffle.sim.simpy_network import SimpyNetwork as SimpyNetwork
from simshuffle.study.study import Result as Result

__version__: str

"""


def text() -> str:
    """The stub."""
    return HEAD + "\n".join(stub(own_verbs())).rstrip() + "\n"
