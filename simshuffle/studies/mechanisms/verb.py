"""The options of ``simshuffle study ablate`` and ``study hiding``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from simshuffle.job.scenario.options import ScenarioName, Set, pairs
from simshuffle.study.options import CellOptions, Option, RefinedOptions, words
from simshuffle.study.verb import Verb

EXCHANGES = words("partial_local_shuffle", "importance_exchange", "importance_pair")
"""Exchange strategies with an exchange_fraction."""


@dataclass(frozen=True, kw_only=True)
class AblationOptions(CellOptions):
    """Take the difference of two exchanges apart by mechanism.

    Which costs how much of the epoch of SCENARIO."""

    scenario: ScenarioName
    start: Annotated[
        str,
        Option(
            "EXCHANGE",
            "The exchange to begin with, as in a scenario.",
            complete=EXCHANGES,
        ),
    ] = "importance_exchange:schedule=authors"
    end: Annotated[
        str,
        Option(
            "EXCHANGE",
            "The exchange to end with; at the same exchange_fraction.",
            complete=EXCHANGES,
        ),
    ] = "importance_pair:schedule=authors"
    also: Annotated[
        tuple[tuple[str, Any], ...],
        Option(
            "KEY=VALUE",
            "A further switch, such as payload=encoded.",
            read=pairs("--also", "payload=encoded"),
            many=True,
            python="Sequence[tuple[str, Any]]",
        ),
    ] = ()
    alone: Annotated[
        tuple[tuple[str, Any], ...],
        Option(
            "KEY=VALUE",
            "A value to set by itself, once at the start and once at the end.",
            read=pairs("--alone", "payload=encoded"),
            many=True,
            python="Sequence[tuple[str, Any]]",
        ),
    ] = ()
    seeds: Annotated[
        int, Option("N", "Number of seeds, from the scenario's own on.", low=1)
    ] = 3
    set: Set = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class HidingOptions(RefinedOptions):
    """Find the largest exchange fraction that costs an epoch nothing.

    For each number of ranks, by the schedule of the scenario's own runs first, and what
    ends it.
    """

    scenario: ScenarioName
    world_size: Annotated[
        tuple[int, ...],
        Option(
            "M",
            "Number of ranks. Default: that of each of the scenario's runs.",
            many=True,
        ),
    ] = ()
    variant: Annotated[
        tuple[str, ...],
        Option(
            "NAME",
            "Another schedule: authors, pair, encoded or wire. Default: all. The scenario's own is"
            " always there.",
            many=True,
            choices=("authors", "pair", "encoded", "wire", "own"),
        ),
    ] = ()
    tolerance: Annotated[
        float,
        Option(
            "SHARE",
            "Share by which the exchange may lengthen the epoch.",
            low=0.0,
            high=1.0,
        ),
    ] = 0.01
    set: Set = field(default_factory=dict)


VERBS = (
    Verb(
        "study ablate",
        AblationOptions,
        "simshuffle.studies.mechanisms.ablation:request",
        examples=(
            "simshuffle study ablate quickstart --set world_size=8",
            "simshuffle study ablate quickstart --also payload=encoded --out apart",
        ),
        kinds={"ablation": "simshuffle.studies.mechanisms.ablation"},
        function="ablate",
        noun="simulation",
    ),
    Verb(
        "study hiding",
        HidingOptions,
        "simshuffle.studies.mechanisms.hiding:request",
        examples=(
            "simshuffle study hiding quickstart --world-size 64",
            "simshuffle study hiding quickstart --variant wire --tolerance 0.02",
            "simshuffle study hiding quickstart --exact",
        ),
        kinds={"hiding": "simshuffle.studies.mechanisms.hiding"},
        function="hiding",
        noun="search",
        first_answer="simshuffle.studies.mechanisms.hiding:first_answer",
    ),
)
