"""The options of ``simshuffle accuracy``: the network, the ranks and the tolerated
loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from simshuffle.job.scenario.options import ScenarioName, Set
from simshuffle.studies.training.usual import EPOCHS
from simshuffle.study.options import Option, RefinedOptions
from simshuffle.study.verb import Verb


@dataclass(frozen=True, kw_only=True)
class AccuracyOptions(RefinedOptions):
    """Say what a shuffle costs in accuracy, and what helps.

    Against global shuffle, with each rank's own batch-norm statistics, before anything
    is trained. The law holds for shards drawn at random.
    """

    scenario: ScenarioName
    model: Annotated[
        str | None,
        Option(
            "NET",
            "The network whose sensitivity counts. Default: the network of the scenario.",
        ),
    ] = None
    norm: Annotated[
        str | None,
        Option(
            "NORM",
            "Norm of the network: batch, group, layer or none. Default: the known norm of the"
            " network; if it is not known, batch, and the answer says so.",
            choices=("batch", "group", "layer", "none"),
        ),
    ] = None
    momentum: Annotated[
        float,
        Option(
            "SHARE",
            "Momentum of running statistics: the share of each batch, as in PyTorch.",
            low=1e-3,
            high=1,
        ),
    ] = 0.1
    world_size: Annotated[
        tuple[int, ...],
        Option("M", "Ranks. Default: those of the scenario's runs.", low=1, many=True),
    ] = ()
    screening: Annotated[
        Path | None,
        Option(
            "FILE",
            "File that simshuffle.train.screen wrote for your own network (JSON).",
        ),
    ] = None
    shards: Annotated[
        str,
        Option(
            "SHARDS",
            "How samples are divided among ranks: random or sorted. The law holds for random"
            " shards.",
            choices=("random", "sorted"),
        ),
    ] = "random"
    epochs: Annotated[int, Option("N", "Epochs of the training.", low=1)] = EPOCHS
    tolerance: Annotated[
        float, Option("POINTS", "Points of accuracy that may be lost.", low=0, high=100)
    ] = 0.5
    set: Set = field(default_factory=dict)


VERBS = (
    Verb(
        "accuracy",
        AccuracyOptions,
        "simshuffle.extensions.learning.accuracy.asked:request",
        examples=(
            "simshuffle accuracy quickstart",
            "simshuffle accuracy abci-imagenet1k --world-size 64 --world-size 2048",
            "simshuffle accuracy quickstart --model mlp --tolerance 0.2",
        ),
        kinds={"accuracy": "simshuffle.extensions.learning.accuracy.study"},
        function="accuracy",
        noun="cell",
        first_answer="simshuffle.extensions.learning.accuracy.first:lines",
    ),
)
