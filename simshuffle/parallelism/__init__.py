"""Ways to divide training among GPUs, one file each."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.parallelism.base import Parallelism
from simshuffle.parallelism.data import Data
from simshuffle.parallelism.step import Job, Memory, Node, Step

AnyParallelism = Annotated[Data, Field(discriminator="kind")]

__all__ = ["AnyParallelism", "Data", "Job", "Memory", "Node", "Parallelism", "Step"]
