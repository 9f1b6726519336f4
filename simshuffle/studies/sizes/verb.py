"""Options of ``simshuffle study sizes``: a scenario, and one of its epochs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from simshuffle.job.scenario.options import ScenarioName, Set, scenario_of
from simshuffle.study.options import CellOptions, Option
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Request, Study


@dataclass(frozen=True, kw_only=True)
class SizesOptions(CellOptions):
    """Say what each rank holds, reads and sends in an epoch.

    Quantiles over ranks and a histogram, for each run of the scenario's sweep.
    Simulates nothing.
    """

    scenario: ScenarioName
    epoch: Annotated[
        int | None,
        Option("N", "Number of the epoch. Default: the last of the scenario.", low=1),
    ] = None
    set: Set = field(default_factory=dict)


def request(options: SizesOptions) -> tuple[Study[Any], Request[Any]]:
    """Return the study of sizes, and its request with a cell for each run of the sweep.

    Raises:
        InputError: the scenario is not valid, or a run has fewer epochs.
    """
    from simshuffle.studies.sizes import study  # noqa: PLC0415 - what computes

    scenario = scenario_of(options.scenario, options.set)
    return study.STUDY, study.request(scenario, options.epoch)


VERBS = (
    Verb(
        "study sizes",
        SizesOptions,
        request,
        examples=(
            "simshuffle study sizes quickstart",
            "simshuffle study sizes abci-imagenet1k --set world_size=512 --epoch 1",
        ),
        kinds={"sizes": "simshuffle.studies.sizes.study"},
        function="sizes",
        done="counted",
    ),
)
