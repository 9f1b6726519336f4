"""The options of ``simshuffle run`` and ``simshuffle sweep``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from simshuffle.job.scenario.options import (
    Interval,
    Measured,
    Over,
    Ranges,
    ScenarioName,
    ScenarioNames,
    Set,
)
from simshuffle.study.options import CellOptions, Option
from simshuffle.study.verb import Verb

Seeds = Annotated[
    int, Option("N", "Seeds of each run, from the scenario's own on.", low=1)
]


@dataclass(frozen=True, kw_only=True)
class RunOptions(CellOptions):
    """Simulate scenarios: where the time of their epochs goes.

    Writes tables and the breakdown figure into a result folder."""

    scenario: ScenarioNames
    set: Set = field(default_factory=dict)
    seeds: Seeds = 1
    labels: Annotated[
        Literal["cause", "paper"],
        Option(
            "BOOKING",
            "Book waiting for other ranks under its cause (cause, the default), or where the"
            " authors' timers book it (paper).",
            choices=("cause", "paper"),
        ),
    ] = "cause"
    timeline: Annotated[
        Literal["full", "ranks", "none"] | None,
        Option(
            "RANKS",
            "Ranks whose timeline is kept: full (all), ranks (a sample), none. The default is"
            " full, or ranks if full takes more than some 3 million rows.",
            choices=("full", "ranks", "none"),
        ),
    ] = None
    interval: Interval = False
    ranges: Ranges = field(default_factory=dict)
    measured: Measured = None


@dataclass(frozen=True, kw_only=True)
class SweepOptions(CellOptions):
    """Simulate a scenario over values of its keys, and over seeds.

    One table, means, intervals, and a scaling figure."""

    scenario: ScenarioName
    over: Over = field(default_factory=dict)
    zip: Annotated[
        bool,
        Option(
            "", "Take the first values of all keys together, then the second ones, ..."
        ),
    ] = False
    seeds: Seeds = 1
    label: Annotated[
        str,
        Option(
            "TEXT", "Names of the runs, with axes in braces: 'Q={exchange_fraction}'."
        ),
    ] = ""
    measure: Annotated[
        str,
        Option(
            "NAME[/NAME]",
            "What the figure shows: a column of sweep.parquet, maybe divided by iterations or"
            " world_size, such as allreduce_exposed_s/iterations.",
        ),
    ] = "epoch_s"
    interval: Interval = False
    ranges: Ranges = field(default_factory=dict)
    measured: Measured = None
    set: Set = field(default_factory=dict)


VERBS = (
    Verb(
        "run",
        RunOptions,
        "simshuffle.studies.simulation.study:request",
        examples=(
            "simshuffle run quickstart",
            "simshuffle run mycluster.yaml --set epochs=2 --out first --to latex",
            "simshuffle run quickstart --seeds 5",
        ),
        kinds={
            "simulation": "simshuffle.studies.simulation.study",
            "simulation_over_seeds": "simshuffle.studies.simulation.study:OVER_SEEDS",
            "simulation_of_jobs": "simshuffle.studies.simulation.study:OF_JOBS",
        },
    ),
    Verb(
        "sweep",
        SweepOptions,
        "simshuffle.studies.simulation.sweep:request",
        examples=(
            "simshuffle sweep quickstart --over world_size=16,32,64 --seeds 3",
            "simshuffle sweep quickstart --set 'sweep={}' --over world_size=8,16 --seeds 5",
        ),
        kinds={"sweep": "simshuffle.studies.simulation.sweep"},
        function="sweep",
    ),
)
