"""What ``simshuffle study hiding`` is asked: on how many ranks, by which variants of the
exchange."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from simshuffle.studies.fields import ScenarioName, Set, scenario_of
from simshuffle.study.options import CellOptions, Option
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Request, Study


@dataclass(frozen=True, kw_only=True)
class HidingOptions(CellOptions):
    """Find the largest exchange fraction that costs an epoch nothing.

    For each number of ranks, and what ends it."""

    scenario: ScenarioName
    world_size: Annotated[
        tuple[int, ...],
        Option(
            "M",
            "Ranks. Default: 64 to 4096, as far as they fit.",
            many=True,
        ),
    ] = ()
    way: Annotated[
        tuple[str, ...],
        Option(
            "NAME",
            "authors, pair, encoded, wire, or own. Default: the first four.",
            many=True,
        ),
    ] = ()
    tolerance: Annotated[
        float, Option("SHARE", "Share of the epoch that may be added.", low=0.0, high=1.0)
    ] = 0.01
    set: Set = field(default_factory=dict)


def request(options: HidingOptions) -> tuple[Study[Any], Request[Any]]:
    """A search for each number of ranks and variant."""
    from simshuffle.studies.hidden_fraction import hiding  # noqa: PLC0415 - what computes
    from simshuffle.studies.hidden_fraction.study import STUDY  # noqa: PLC0415

    scenario = scenario_of(options.scenario, options.set).model_copy(update={"sweep": {}})
    sizes, names = options.world_size, options.way
    return STUDY, hiding.request(scenario, sizes, names, options.tolerance)


VERBS = (
    Verb(
        "study hiding",
        HidingOptions,
        request,
        examples=(
            "simshuffle study hiding quickstart --world-size 64",
            "simshuffle study hiding quickstart --way authors --way wire --tolerance 0.02",
        ),
        kinds={"hiding": "simshuffle.studies.hidden_fraction.study"},
        function="hiding",
        noun="search",
    ),
)
