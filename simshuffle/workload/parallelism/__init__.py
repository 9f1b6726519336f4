"""The ways to divide training among GPUs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.workload.parallelism.base import GroupParallelism, Parallelism
from simshuffle.workload.parallelism.candidates import list_candidates, parallelism_name
from simshuffle.workload.parallelism.data import Data, ShardedData
from simshuffle.workload.parallelism.divided import Channel, Filter, Spatial, Tensor
from simshuffle.workload.parallelism.pipeline import Pipeline
from simshuffle.workload.parallelism.step import DividedWorkload, GpuMemory, Node, Step

AnyParallelism = Annotated[
    Data | ShardedData | Spatial | Filter | Channel | Pipeline | Tensor,
    Field(discriminator="kind"),
]

__all__ = [
    "AnyParallelism",
    "Channel",
    "Data",
    "DividedWorkload",
    "Filter",
    "GpuMemory",
    "GroupParallelism",
    "Node",
    "Parallelism",
    "Pipeline",
    "ShardedData",
    "Spatial",
    "Step",
    "Tensor",
    "list_candidates",
    "parallelism_name",
]
