"""The options of ``simshuffle congestion``: patterns, networks, ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simshuffle.job.scenario.options import ROUTINGS, ScenarioName, Set
from simshuffle.study.options import Option, RefinedOptions
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Request


@dataclass(frozen=True, kw_only=True)
class CongestionOptions(RefinedOptions):
    """Compare all-to-all with pairwise exchange on the same bytes.

    Answers at each number of ranks of SCENARIO; with -v also what decides, and every
    verdict.
    """

    scenario: ScenarioName
    pattern: Annotated[
        tuple[str, ...],
        Option(
            "NAME",
            "A pattern. Default: all.",
            many=True,
            choices=(
                *("all_to_all", "random_permutations"),
                *("linear_shift", "balanced_shift", "xor"),
                *("pairing_random", "pairing_importance", "pairing_topology"),
            ),
        ),
    ] = ()
    network: Annotated[
        tuple[str, ...],
        Option(
            "MODEL",
            "analytic, fluid or packet. Default: fluid and packet.",
            many=True,
            choices=("analytic", "fluid", "packet"),
        ),
    ] = ()
    routing: Annotated[
        tuple[str, ...],
        Option(
            "NAME",
            "A routing, such as ecmp:queue_pairs=4. Default: the scenario's.",
            many=True,
            complete=ROUTINGS,
        ),
    ] = ()
    seeds: Annotated[int, Option("N", "Seeds for analytic and fluid.", low=1)] = 5
    packet_seeds: Annotated[
        int, Option("N", "Seeds for packet, the first of --seeds.", low=1)
    ] = 3
    packets: Annotated[
        int,
        Option("N", "Most packets in one run of packet; the rest is left out.", low=1),
    ] = 2_000_000
    jitter: Annotated[
        float,
        Option(
            "SHARE",
            "If packet runs and all sizes are equal, vary them by up to this share.",
            low=0.0,
            high=0.99,
        ),
    ] = 0.1
    wire_only: Annotated[
        bool,
        Option(
            "",
            "Leave out the cost of messages: host time, trips, barriers' own messages.",
        ),
    ] = False
    world_size: Annotated[
        tuple[int, ...],
        Option(
            "M", "Number of ranks. Default: the sweep's, or the scenario's.", many=True
        ),
    ] = ()
    set: Set = field(default_factory=dict)


def first_answer(options: CongestionOptions, request: Request[Any]) -> Iterable[str]:
    """Return the answer of closed forms, where a simulation takes more than
    `effort.WORTH_FIRST_ANSWER` s of a core; else ().
    """
    from simshuffle.studies.congestion import effort, study  # noqa: PLC0415 - what computes

    cost = sum(cell.cost for cell in study.cells(request.values, {}).values())
    return (
        effort.first_answer(request.values) if cost > effort.WORTH_FIRST_ANSWER else ()
    )


def repeat(folder: Path, meta: Mapping[str, Any]) -> Request[Any]:
    """Return the request of an earlier result, from its ``scenario.yaml`` and the
    settings in ``meta``.

    Settings that an earlier version lacks: ``wire_only`` and ``exact`` are true then.
    """
    from simshuffle.job.scenario.scenario import load_scenarios  # noqa: PLC0415 - what computes
    from simshuffle.studies.congestion import study  # noqa: PLC0415

    scenario_path = folder / "scenario.yaml"
    settings = meta["settings"]
    # results of earlier versions have the wire alone, or all that was asked for
    settings = {"wire_only": True, "exact": True, **settings}
    values = {name: settings[stored_as] for name, stored_as in study.SETTINGS.items()}
    return study.request(
        CongestionOptions(scenario=scenario_path, **values),
        load_scenarios(scenario_path),
    )


VERBS = (
    Verb(
        "congestion",
        CongestionOptions,
        "simshuffle.studies.congestion.study:request",
        examples=(
            "simshuffle congestion quickstart --world-size 32",
            "simshuffle congestion quickstart --network fluid --seeds 10 --out pairs",
        ),
        kinds={"congestion": "simshuffle.studies.congestion.study"},
        function="congestion",
        first_answer=first_answer,
    ),
)
