"""Small results that every kind of figure can be drawn from."""

from collections.abc import Callable
from pathlib import Path

from simshuffle.studies.presentation.named_results import NamedResult
from simshuffle.studies.simulation import study, sweep
from simshuffle.studies.simulation.verb import RunOptions, SweepOptions
from simshuffle.study import engine
from simshuffle.study.registry import read_folder
from tests.small import small
from tests.studies_tiny import SIZE

EXCHANGES = [
    "local_shuffle",
    "partial_local_shuffle:exchange_fraction=0.1",
    "partial_local_shuffle:exchange_fraction=0.3",
]
JITTER = {**SIZE, "workload__jitter__read": 0.2, "seed": 5}
OF = {
    "runs": ("breakdown", "hidden", "links", "completion"),
    "sweep": ("breakdown", "scaling", "exchange", "fraction"),
    "hiding": ("hidden",),
    "congestion": ("congestion", "completion"),
    "time_to_accuracy": ("accuracy", "storage-accuracy", "frontier"),
    "ablation": ("waterfall",),
    "oracle": ("parallel-strategies", "memory"),
    "": ("storage",),
}
PAIRS = [(figure, result) for result, figures in OF.items() for figure in figures]
"""Every kind of figure, and the names of results in `made` that it takes."""


def runs(seeded: int = 3) -> NamedResult:
    """Local shuffle and two Q on 4 ranks."""
    scenario = small(**JITTER).model_copy(update={"sweep": {"workload.exchange": EXCHANGES}})
    return NamedResult(
        "runs", engine.run(*study.request(RunOptions(scenario=scenario, seeds=seeded)))
    )


def swept() -> NamedResult:
    """The same on 2, 4 and 8 ranks."""
    axes = {"world_size": [2, 4, 8], "workload.exchange": EXCHANGES}
    request = sweep.request(SweepOptions(scenario=small(**JITTER), over=axes, seeds=2))
    return NamedResult("sweep", engine.run(sweep.STUDY, request))


def made(stored: Callable[[str], Path]) -> dict[str, list[NamedResult]]:
    """Results by name; none under ''. The folders of tiny studies are ``stored`` by kind."""
    names = {of for _, of in PAIRS} - {"runs", "sweep", ""}
    tiny = {name: [NamedResult(name, read_folder(stored(name)))] for name in sorted(names)}
    return {"runs": [runs()], "sweep": [swept()], "": [], **tiny}
