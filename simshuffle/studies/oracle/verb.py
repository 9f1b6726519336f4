"""What ``simshuffle oracle`` is asked: which ways to divide training, on how many GPUs, within what
memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simshuffle.studies.fields import ScenarioName, Set, scenario_of
from simshuffle.study.options import CellOptions, Option
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.errors import Problem
    from simshuffle.study.study import Request, Result, Study


def _strategies(text: str) -> Sequence[str]:
    from simshuffle.studies.oracle import given  # noqa: PLC0415 - what reads

    return given.listed(text)


def _sizes(text: str) -> Sequence[int]:
    from simshuffle.studies.oracle import given  # noqa: PLC0415 - what reads

    return given.sizes(text)


def _points(texts: Sequence[str]) -> Sequence[tuple[str, int]]:
    from simshuffle.studies.oracle import given  # noqa: PLC0415 - what reads

    return given.at(texts)


@dataclass(frozen=True, kw_only=True)
class OracleOptions(CellOptions):
    """Find the fastest way to divide training that fits the memory.

    On how many GPUs, from 1 up to all of the machine."""

    scenario: ScenarioName
    strategies: Annotated[
        tuple[str, ...],
        Option(
            "NAME,...",
            "Ways to divide training, such as data,data+spatial,pipeline:stages=4. Default: all"
            " that may work on as many GPUs.",
            read=_strategies,
        ),
    ] = ()
    world_sizes: Annotated[
        tuple[int, ...],
        Option(
            "M,...",
            "Numbers of GPUs. Default: powers of two, as far as machine and data set go.",
            read=_sizes,
        ),
    ] = ()
    budget_memory: Annotated[
        str | None,
        Option(
            "SIZE", "Memory of a GPU that may be used. Default: what the accelerator's name says."
        ),
    ] = None
    simulate: Annotated[
        tuple[tuple[str, int], ...],
        Option(
            "NAME@M",
            "A point whose step is simulated too, with all transfers on the cables at once.",
            read=_points,
            many=True,
        ),
    ] = ()
    measured: Annotated[
        Path | None,
        Option(
            "FILE",
            "Measured epochs to hold the predicted ones against: CSV with the columns strategy,"
            " world_size and epoch_s.",
        ),
    ] = None
    set: Set = field(default_factory=dict)


def request(options: OracleOptions) -> tuple[Study[Any], Request[Any]]:
    """A point for each way to divide training and number of GPUs."""
    from simshuffle.studies.oracle import asking, given  # noqa: PLC0415 - what computes
    from simshuffle.studies.oracle.study import STUDY  # noqa: PLC0415

    asked = asking.Asked(
        options.strategies,
        options.world_sizes,
        options.budget_memory,
        options.simulate,
        given.measured_epochs(options.measured),
    )
    return STUDY, asking.request(scenario_of(options.scenario, options.set), asked)


def _refused(result: Result) -> Problem | None:
    """Nothing fits the memory."""
    from simshuffle.studies.oracle.recommend import nothing_fits  # noqa: PLC0415 - tables

    return nothing_fits(result.tables["points"], result.meta["says"].get("budget_nbytes"))


VERBS = (
    Verb(
        "oracle",
        OracleOptions,
        request,
        examples=(
            "simshuffle oracle paper/oracle",
            "simshuffle oracle paper/oracle --strategies data,spatial --world-sizes 4,64",
            "simshuffle oracle paper/oracle --budget-memory 8GiB --simulate data@64",
        ),
        kinds={"oracle": "simshuffle.studies.oracle.study"},
        function="oracle",
        noun="cell",
        done="computed",
        refused=_refused,
    ),
)
