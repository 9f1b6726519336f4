"""The orders in which loaders hand out samples: a file for each family of loaders."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.workload.orders.buffers import HuggingFace, RayLocal, TfData, WebDataset
from simshuffle.workload.orders.corgipile import Corgi2, CorgiPile
from simshuffle.workload.orders.hugging_face_interleave import HuggingFaceInterleave
from simshuffle.workload.orders.levanter import Levanter
from simshuffle.workload.orders.litdata import LitdataFull, LitdataWindow
from simshuffle.workload.orders.mosaicml_streaming import MosaicmlStreaming
from simshuffle.workload.orders.mosaicml_streams import MosaicmlStreams
from simshuffle.workload.orders.order import Order, Readers, ShardedSet
from simshuffle.workload.orders.ray_mix import RayMix
from simshuffle.workload.orders.samplers import (
    DistributedSampler,
    OwnOrder,
    Synchronised,
)
from simshuffle.workload.orders.torchdata_nodes import TorchdataNodes

AnyOrder = Annotated[
    DistributedSampler
    | MosaicmlStreaming
    | LitdataFull
    | LitdataWindow
    | WebDataset
    | HuggingFace
    | TfData
    | Levanter
    | CorgiPile
    | Corgi2
    | RayLocal
    | Synchronised
    | OwnOrder
    | HuggingFaceInterleave
    | TorchdataNodes
    | MosaicmlStreams
    | RayMix,
    Field(discriminator="kind"),
]
"""The union of all orders, told apart by their ``kind``."""

__all__ = [
    "AnyOrder",
    "DistributedSampler",
    "MosaicmlStreaming",
    "Order",
    "Readers",
    "ShardedSet",
]
