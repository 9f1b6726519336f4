"""What ``simshuffle study policies`` is asked: which data-loading policies, on which cases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from simshuffle.scenario.options import Set, scenario_names
from simshuffle.study.options import Argument, CellOptions, Option, words
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Request, Study


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(CellOptions):
    """Compare data-loading policies with a lower bound.

    Epoch time, ratio to the bound, bytes by source, coverage and storage."""

    study: Annotated[
        str,
        Argument(
            "SCENARIO",
            "A scenario or study: a file, a name below scenarios/, or nopfs.",
            complete=scenario_names,
        ),
    ]
    policy: Annotated[
        tuple[str, ...],
        Option(
            "NAME",
            "A policy. Default: all.",
            many=True,
            complete=words(place="simshuffle.studies.policies.plan:POLICIES"),
        ),
    ] = ()
    case: Annotated[
        tuple[str, ...],
        Option("NAME", "A case of a study. Default: all.", many=True),
    ] = ()
    set: Set = field(default_factory=dict)


def request(options: PolicyOptions) -> tuple[Study[Any], Request[Any]]:
    """Those policies, or all, on a cell for each case."""
    from simshuffle.studies.policies import cases, cell  # noqa: PLC0415 - what computes
    from simshuffle.studies.policies.study import STUDY  # noqa: PLC0415

    loaded = cases.load(options.study, options.set).only([*options.case])
    return STUDY, cell.request(loaded, options.policy)


VERBS = (
    Verb(
        "study policies",
        PolicyOptions,
        request,
        examples=(
            "simshuffle study policies quickstart",
            "simshuffle study policies nopfs --case imagenet22k --policy nopfs",
        ),
        kinds={"policies": "simshuffle.studies.policies.study"},
        function="policies",
        noun="case",
    ),
)
