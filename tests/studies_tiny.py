"""A tiny request of every kind of study, for the contracts that all of them keep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from simshuffle.studies.simulation import study as simulation
from simshuffle.studies.simulation import sweep
from simshuffle.study.study import Request, Study
from tests.small import small
from tests.toy import TOY, Square, asked

Tiny = Callable[[Path], tuple[Study[Any], Request[Any]]]
SIZE = {"workload__dataset__num_samples": 160, "world_size": 4, "epochs": 2}


def _toy(place: Path) -> tuple[Study[Any], Request[Any]]:
    return TOY, asked(Square(2), Square(3), Square(5))


def _simulation(place: Path) -> tuple[Study[Any], Request[Any]]:
    exchanges = ["local_shuffle", "partial_local_shuffle:exchange_fraction=0.3"]
    scenario = small(**SIZE, sweep={"workload.exchange": exchanges})
    return simulation.STUDY, simulation.request([scenario])


def _sweep(place: Path) -> tuple[Study[Any], Request[Any]]:
    axes = {"world_size": [2, 4], "workload.exchange": ["local_shuffle", "global_shuffle"]}
    return sweep.STUDY, sweep.request(small(**SIZE), axes, seeds=2)


TINY: dict[str, Tiny] = {"simulation": _simulation, "sweep": _sweep, "toy": _toy}
"""By the kind that ``meta.json`` names."""
