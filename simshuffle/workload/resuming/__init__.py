"""The laws by which loaders go on from a saved state, with equal or with other ranks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.workload.resuming.buffers import WebDatasetRestart
from simshuffle.workload.resuming.energon import EnergonResume
from simshuffle.workload.resuming.hugging_face import HuggingFaceState
from simshuffle.workload.resuming.language import (
    LevanterResume,
    MegatronResume,
    RayTrainResume,
)
from simshuffle.workload.resuming.mixture import InterleaveResume, NodesResume
from simshuffle.workload.resuming.mosaicml_streams import StreamsResume
from simshuffle.workload.resuming.own import SchedulerResume
from simshuffle.workload.resuming.restart import Restart
from simshuffle.workload.resuming.samplers import (
    Lightning,
    StatefulDataLoader,
    TorchFtLoader,
)
from simshuffle.workload.resuming.skipping import SkipFirstBatches, TransformersTrainer
from simshuffle.workload.resuming.streaming import ResumedLitdata, ResumedMosaicml

AnyResume = Annotated[
    SchedulerResume
    | Restart
    | Lightning
    | StatefulDataLoader
    | TorchFtLoader
    | SkipFirstBatches
    | TransformersTrainer
    | ResumedLitdata
    | ResumedMosaicml
    | InterleaveResume
    | NodesResume
    | StreamsResume
    | WebDatasetRestart
    | HuggingFaceState
    | EnergonResume
    | LevanterResume
    | MegatronResume
    | RayTrainResume,
    Field(discriminator="kind"),
]
"""The union of all laws, told apart by their ``kind``."""

__all__ = ["AnyResume"]
