"""The order in which loaders hand out samples, one file for each family of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.orders.buffers import HuggingFace, RayLocal, TfData, WebDataset
from simshuffle.orders.corgipile import Corgi2, CorgiPile
from simshuffle.orders.hugging_face_interleave import HuggingFaceInterleave
from simshuffle.orders.levanter import Levanter
from simshuffle.orders.litdata import LitdataFull, LitdataWindow
from simshuffle.orders.mosaicml_streaming import MosaicmlStreaming
from simshuffle.orders.mosaicml_streams import MosaicmlStreams
from simshuffle.orders.order import Order, Readers, ShardedSet
from simshuffle.orders.ray_mix import RayMix
from simshuffle.orders.samplers import DistributedSampler, Own, Synchronised
from simshuffle.orders.torchdata_nodes import TorchdataNodes

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
    | Own
    | HuggingFaceInterleave
    | TorchdataNodes
    | MosaicmlStreams
    | RayMix,
    Field(discriminator="kind"),
]
"""Every order, by its ``kind``."""

__all__ = ["AnyOrder", "DistributedSampler", "MosaicmlStreaming", "Order", "Readers", "ShardedSet"]
