"""The options of ``simshuffle plan``: training, prices, budget and target accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from simshuffle.extensions.planning.prices import HOST_HOUR, IO_SHARE, PRICES
from simshuffle.job.scenario.options import (
    ScenarioName,
    Set,
    any_of,
    pairs,
    result_folders,
)
from simshuffle.studies.training.usual import EPOCHS
from simshuffle.study.options import Option, RefinedOptions, between_commas, words
from simshuffle.study.verb import Verb

_EXAMPLE = f"{HOST_HOUR}=12.5"


def _parse_prices(texts: Sequence[str]) -> dict[str, Any]:
    """Parse the prices, by name, of texts 'NAME=PRICE,...'; the last of a name counts.

    Names and values are not checked here: values are as YAML reads them.

    Raises:
        InputError: a text is not written so.
    """
    return dict(pairs("--price", _EXAMPLE, "NAME=PRICE,...")(between_commas(texts)))


@dataclass(frozen=True, kw_only=True)
class PlanOptions(RefinedOptions):
    """Say what to do: strategy, file system and cost of a training.

    Which strategies fit the storage, what each costs, the largest Q that stays hidden,
    the smallest file system, and what the choice hangs on.
    """

    scenario: ScenarioName
    target_accuracy: Annotated[
        Path | None,
        Option(
            "FILE|FOLDER",
            "Accuracy by epoch, to count the epochs to a target: a CSV file, or a result of train"
            " or"
            " tta.",
            complete=any_of(result_folders),
        ),
    ] = None
    target: Annotated[
        float | None,
        Option(
            "ACCURACY",
            "With --target-accuracy: accuracy to reach. Default: best of global minus 1 point.",
            low=0,
            high=1,
        ),
    ] = None
    epochs: Annotated[
        int | None,
        Option(
            "N",
            f"Epochs of the training, without --target-accuracy. Default: {EPOCHS}.",
            low=1,
        ),
    ] = None
    prices: Annotated[
        Mapping[str, Any],
        Option(
            "NAME=PRICE,...",
            f"Price of {', '.join(PRICES)}. Default: a host-hour costs 1.",
            flag="--price",
            read=_parse_prices,
            many=True,
        ),
    ] = field(default_factory=dict)
    budget: Annotated[
        float | None, Option("PRICE", "Highest cost of the training.", low=0)
    ] = None
    strategy: Annotated[
        tuple[str, ...],
        Option(
            "EXCHANGE",
            "Strategy to consider, as in a scenario. Default: the usual ones.",
            many=True,
            complete=words(place="simshuffle.workload.exchange:Exchange"),
        ),
    ] = ()
    io_share: Annotated[
        float,
        Option(
            "SHARE",
            "Share of an epoch that I/O may take with the smallest file system.",
            low=0.001,
            high=0.999,
        ),
    ] = IO_SHARE
    set: Set = field(default_factory=dict)


VERBS = (
    Verb(
        "plan",
        PlanOptions,
        "simshuffle.extensions.planning.asked:request",
        examples=(
            "simshuffle plan quickstart",
            "simshuffle plan quickstart --set cluster.ssd.capacity='1 GB'",
            "simshuffle plan abci-imagenet1k --price host-hour=12.5,ssd-tb=80 --budget 5000",
        ),
        kinds={"planning": "simshuffle.extensions.planning.study"},
        function="plan_training",
        done="planned",
        first_answer="simshuffle.extensions.planning.first:closed_form_answer",
    ),
)
