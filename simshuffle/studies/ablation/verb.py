"""What ``simshuffle study ablate`` is asked: two exchanges, and what is switched between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from simshuffle.studies.fields import ScenarioName, Set, pairs, scenario_of
from simshuffle.study.options import CellOptions, Option
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Request, Study


@dataclass(frozen=True, kw_only=True)
class AblationOptions(CellOptions):
    """Take the difference of two exchanges apart by mechanism.

    Which costs how much of the epoch of SCENARIO."""

    scenario: ScenarioName
    start: Annotated[str, Option("EXCHANGE", "The exchange to begin with, as in a scenario.")] = (
        "importance_exchange:schedule=authors"
    )
    end: Annotated[
        str, Option("EXCHANGE", "The exchange to end with; at the same exchange_fraction.")
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


def request(options: AblationOptions) -> tuple[Study[Any], Request[Any]]:
    """Every switch in every order, with every seed."""
    from simshuffle.studies.ablation import ablate  # noqa: PLC0415 - what computes
    from simshuffle.studies.ablation.study import STUDY  # noqa: PLC0415

    asked = ablate.request(
        scenario_of(options.scenario, options.set).model_copy(update={"sweep": {}}),
        options.start,
        options.end,
        options.also,
        options.alone,
        options.seeds,
    )
    return STUDY, replace(asked, about=f"{asked.values.simulations} simulations.")


VERBS = (
    Verb(
        "study ablate",
        AblationOptions,
        request,
        examples=(
            "simshuffle study ablate quickstart --set world_size=8",
            "simshuffle study ablate quickstart --also payload=encoded --out apart",
        ),
        kinds={"ablation": "simshuffle.studies.ablation.study"},
        function="ablate",
        noun="simulation",
    ),
)
