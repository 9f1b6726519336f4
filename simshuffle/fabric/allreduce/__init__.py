"""Allreduce algorithms, and the union `Allreduce` of all that a scenario may name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.fabric.allreduce.base import (
    AllreduceFlows,
    Ddp,
    Horovod,
    HostOrder,
    NoOverlap,
    Overlap,
)
from simshuffle.fabric.allreduce.dependent import (
    HalvingDoubling,
    Hierarchical,
    RecursiveDoubling,
    Sharp,
    Sparse,
    Torus,
)
from simshuffle.fabric.allreduce.nccl import Nccl, Ring, Tree
from simshuffle.fabric.allreduce.nvls import Nvls

Allreduce = Annotated[
    Ring
    | Tree
    | Nccl
    | Nvls
    | HalvingDoubling
    | RecursiveDoubling
    | Torus
    | Hierarchical
    | Sharp
    | Sparse,
    Field(discriminator="kind"),
]

__all__ = [
    "Allreduce",
    "AllreduceFlows",
    "Ddp",
    "HalvingDoubling",
    "Hierarchical",
    "Horovod",
    "HostOrder",
    "Nccl",
    "NoOverlap",
    "Nvls",
    "Overlap",
    "RecursiveDoubling",
    "Ring",
    "Sharp",
    "Sparse",
    "Torus",
    "Tree",
]
