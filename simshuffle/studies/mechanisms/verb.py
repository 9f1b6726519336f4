"""What ``simshuffle study ablate`` and ``study hiding`` are asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simshuffle.job.scenario.options import ScenarioName, Set, pairs
from simshuffle.study.options import CellOptions, Option, RefinedOptions, words
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Request, Study


EXCHANGES = words("partial_local_shuffle", "importance_exchange", "importance_pair")
"""Those that have an exchange_fraction."""


@dataclass(frozen=True, kw_only=True)
class AblationOptions(CellOptions):
    """Take the difference of two exchanges apart by mechanism.

    Which costs how much of the epoch of SCENARIO."""

    scenario: ScenarioName
    start: Annotated[
        str, Option("EXCHANGE", "The exchange to begin with, as in a scenario.", complete=EXCHANGES)
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
            "A value that is set alone, at the start and at the end.",
            read=pairs("--alone", "payload=encoded"),
            many=True,
            python="Sequence[tuple[str, Any]]",
        ),
    ] = ()
    seeds: Annotated[int, Option("N", "Seeds, from that of the scenario on.", low=1)] = 3
    set: Set = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class HidingOptions(RefinedOptions):
    """Find the largest exchange fraction that costs an epoch nothing.

    For each number of ranks, by the schedule of the scenario's own runs first, and what ends it."""

    scenario: ScenarioName
    world_size: Annotated[
        tuple[int, ...], Option("M", "Ranks. Default: those of the scenario's runs.", many=True)
    ] = ()
    variant: Annotated[
        tuple[str, ...],
        Option(
            "NAME",
            "Another schedule: authors, pair, encoded or wire. Default: all. The scenario's own is"
            " always there.",
            flag="--variant --way",
            many=True,
            choices=("authors", "pair", "encoded", "wire", "own"),
        ),
    ] = ()
    tolerance: Annotated[
        float, Option("SHARE", "Share of the epoch that may be added.", low=0.0, high=1.0)
    ] = 0.01
    set: Set = field(default_factory=dict)


def ablate(options: AblationOptions) -> tuple[Study[Any], Request[Any]]:
    """Every switch in every order, with every seed."""
    from simshuffle.studies.mechanisms.ablation import STUDY, request  # noqa: PLC0415 - computes

    return STUDY, request(options)


def ablation_again(folder: Path, meta: Mapping[str, Any]) -> Request[Any]:
    """The request of an ablation, from its folder."""
    from simshuffle.job.scenario.scenario import load_scenarios  # noqa: PLC0415 - computes
    from simshuffle.studies.mechanisms.switches import read  # noqa: PLC0415 - computes

    asked = dict(meta["asked"])
    for name in ("also", "alone"):
        each = (text.partition("=") for text in asked[name])
        asked[name] = tuple((key, read(value)) for key, _, value in each)
    start = load_scenarios(folder / "scenario.yaml")[0]
    return ablate(AblationOptions(scenario=start, **asked))[1]


def hiding(options: HidingOptions) -> tuple[Study[Any], Request[Any]]:
    """A search for each number of ranks and variant."""
    from simshuffle.studies.mechanisms.hiding import STUDY, request  # noqa: PLC0415 - computes

    return STUDY, request(options)


def hiding_again(folder: Path, meta: Mapping[str, Any]) -> Request[Any]:
    """The request of a search, from its folder."""
    from simshuffle.job.scenario.scenario import load_scenarios  # noqa: PLC0415 - computes
    from simshuffle.studies.mechanisms import hiding as study  # noqa: PLC0415 - computes

    sized, asked = load_scenarios(folder / "scenario.yaml"), meta["asked"]
    # results of earlier versions have the exchange of the scenario as their own
    own = sized[0].workload.exchange.model_dump(mode="json")
    return study.make_request(
        sized,
        tuple(asked["ways"]),
        asked.get("own", {"own": own}),
        asked.get("titles", {}),
        asked["tolerance"],
        asked.get("exact", True),
    )


def hiding_first_answer(options: HidingOptions, request: Request[Any]) -> Iterable[str]:
    """The answer from closed forms."""
    from simshuffle.studies.mechanisms.hiding import first_answer  # noqa: PLC0415 - computes

    return first_answer(options, request)


VERBS = (
    Verb(
        "study ablate",
        AblationOptions,
        ablate,
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
        hiding,
        examples=(
            "simshuffle study hiding quickstart --world-size 64",
            "simshuffle study hiding quickstart --variant wire --tolerance 0.02",
            "simshuffle study hiding quickstart --exact",
        ),
        kinds={"hiding": "simshuffle.studies.mechanisms.hiding"},
        function="hiding",
        noun="search",
        first_answer=hiding_first_answer,
    ),
)
