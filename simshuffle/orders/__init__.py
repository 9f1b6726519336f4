"""The order in which loaders hand out samples, one file for each family of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.orders.corgipile import Corgi2, CorgiPile
from simshuffle.orders.distributed_sampler import DistributedSampler
from simshuffle.orders.hugging_face import HuggingFace
from simshuffle.orders.levanter import Levanter
from simshuffle.orders.litdata import LitdataFull, LitdataWindow
from simshuffle.orders.mosaicml_streaming import MosaicmlStreaming
from simshuffle.orders.order import Order, Readers, ShardedSet
from simshuffle.orders.own import Own, Synchronised
from simshuffle.orders.ray_local import RayLocal
from simshuffle.orders.tf_data import TfData
from simshuffle.orders.webdataset import WebDataset

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
    | Own,
    Field(discriminator="kind"),
]
"""Every order, by its ``kind``."""

__all__ = ["AnyOrder", "DistributedSampler", "MosaicmlStreaming", "Order", "Readers", "ShardedSet"]
