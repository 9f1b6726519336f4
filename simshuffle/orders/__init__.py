"""The order in which loaders hand out samples, one file for each family of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.orders.distributed_sampler import DistributedSampler
from simshuffle.orders.litdata import LitdataFull, LitdataWindow
from simshuffle.orders.mosaicml_streaming import MosaicmlStreaming
from simshuffle.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit

AnyOrder = Annotated[
    DistributedSampler | MosaicmlStreaming | LitdataFull | LitdataWindow,
    Field(discriminator="kind"),
]
"""The orders that a file can name, by their ``kind``."""

__all__ = [
    "AnyOrder",
    "DistributedSampler",
    "EpochOrder",
    "LitdataFull",
    "LitdataWindow",
    "MosaicmlStreaming",
    "Order",
    "Readers",
    "ShardedSet",
    "Unit",
]
