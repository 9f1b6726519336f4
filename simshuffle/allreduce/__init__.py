"""Allreduce algorithms, one file each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.allreduce.base import HostOrder
from simshuffle.allreduce.flows import AllreduceFlows
from simshuffle.allreduce.nccl import Nccl
from simshuffle.allreduce.overlap import Ddp, Horovod, NoOverlap, Overlap
from simshuffle.allreduce.ring import Ring
from simshuffle.allreduce.tree import Tree

Allreduce = Annotated[Ring | Tree | Nccl, Field(discriminator="kind")]

__all__ = [
    "Allreduce",
    "AllreduceFlows",
    "Ddp",
    "Horovod",
    "HostOrder",
    "Nccl",
    "NoOverlap",
    "Overlap",
    "Ring",
    "Tree",
]
