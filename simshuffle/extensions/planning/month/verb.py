"""The options of ``simshuffle month``: scenario, length of the training, and period of
checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from simshuffle.job.scenario.options import Over, ScenarioName, Set
from simshuffle.study.options import CellOptions, Option
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Request, Study


def _parse_seconds(text: str) -> float:
    """Parse the value of ``--period``, such as '10min', in s.

    Raises:
        InputError: it is no time with a unit.
    """
    from simshuffle.errors import InputError, Problem  # noqa: PLC0415 - when asked
    from simshuffle.spec.units import Dimension, UnitError, parse_quantity  # noqa: PLC0415
    from simshuffle.study.options import COMMAND_LINE  # noqa: PLC0415

    try:
        return parse_quantity(text, Dimension.SECONDS)
    except UnitError as error:
        problem = Problem(
            "--period", str(error), repr(text), "For example --period 10min."
        )
        raise InputError(problem, COMMAND_LINE) from None


@dataclass(frozen=True, kw_only=True)
class MonthOptions(CellOptions):
    """Say where the days of a long training go while hosts fail.

    Failures, checkpoints, restarts, waiting for hosts; the best period of checkpoints
    beside Daly's. Epochs are simulated until they repeat, the failures are drawn.
    """

    scenario: ScenarioName
    days: Annotated[
        float | None,
        Option("N", "Days of the training. Default: 30.", low=0.01, high=10_000),
    ] = None
    epochs: Annotated[
        int | None,
        Option("N", "Train until N epochs are done, in place of --days.", low=1),
    ] = None
    period: Annotated[
        float | None,
        Option(
            "TIME",
            "Training between two checkpoints, such as 10min. Default: the scenario's.",
            read=_parse_seconds,
        ),
    ] = None
    seeds: Annotated[
        int, Option("N", "Number of months to draw.", low=1, high=10_000)
    ] = 20
    over: Over = field(default_factory=dict)
    set: Set = field(default_factory=dict)


def request(options: MonthOptions) -> tuple[Study[Any], Request[Any]]:
    """Return the study and the request that simulate the steady epoch of each run, then
    its months.
    """
    from simshuffle.extensions.planning.month import study  # noqa: PLC0415
    from simshuffle.job.scenario.options import scenario_of  # noqa: PLC0415 - what computes

    scenario = scenario_of(options.scenario, options.set)
    length = study.MonthLength(
        options.days, options.epochs, options.period, options.seeds
    )
    return study.STUDY, study.request(scenario, length, options.over)


VERBS = (
    Verb(
        "month",
        MonthOptions,
        request,
        examples=(
            "simshuffle month llama3-month --days 54",
            "simshuffle month llama3-month --over recovery.spares=0,8,32",
        ),
        kinds={"month": "simshuffle.extensions.planning.month.study"},
        function="month",
        noun="run",
        done="followed",
    ),
)
