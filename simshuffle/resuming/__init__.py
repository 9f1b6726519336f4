"""What loaders do with the state that they save, when training goes on with other ranks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.resuming.buffers import WebDatasetRestart
from simshuffle.resuming.energon import Energon
from simshuffle.resuming.hugging_face import HuggingFaceState
from simshuffle.resuming.language import Levanter, Megatron, RayTrain
from simshuffle.resuming.mixture import InterleaveResume, NodesResume
from simshuffle.resuming.mosaicml_streams import StreamsResume
from simshuffle.resuming.own import Own
from simshuffle.resuming.restart import Restart
from simshuffle.resuming.samplers import Lightning, StatefulDataLoader, TorchFtLoader
from simshuffle.resuming.skipping import SkipFirstBatches, TransformersTrainer
from simshuffle.resuming.streaming import ResumedLitdata, ResumedMosaicml

AnyResume = Annotated[
    Own
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
    | Energon
    | Levanter
    | Megatron
    | RayTrain,
    Field(discriminator="kind"),
]
"""Every law, by its ``kind``."""

__all__ = ["AnyResume"]
