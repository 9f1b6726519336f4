"""Data parallelism: every rank has the whole model and samples of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from simshuffle.errors import Problem
from simshuffle.layers import LayerList
from simshuffle.parallelism.base import Parallelism
from simshuffle.parallelism.division import Passes, divided_memory, divided_step, undivided
from simshuffle.parallelism.step import Job, Memory, Step


class Data(Parallelism):
    """Every rank has the whole model and trains on samples of its own; gradients are summed over
    all of them in every iteration."""

    short_name: ClassVar[str] = "data"
    kind: Literal["data"] = "data"

    def group_size(self, world_size: int) -> int:
        """One."""
        return 1

    def problems(self, layers: LayerList, world_size: int, batch: float) -> Iterator[Problem]:
        """None."""
        return iter(())

    def step(self, job: Job, most: int | None = None) -> Step:
        """Forward, backward, one allreduce, update; with buckets, one for each as it is there.
        Nothing else is sent, so layers always go together."""
        return divided_step(job, undivided(len(job.layers)), self._passes(job), most=1)

    def memory(self, job: Job) -> Memory:
        """All weights, and all activations of a rank's batch."""
        return divided_memory(
            job,
            undivided(len(job.layers)),
            self._passes(job),
            self.optimiser_nbytes,
            self.value_nbytes,
        )

    def _passes(self, job: Job) -> Passes:
        return Passes(
            samples=job.batch,
            factor=1.0,
            recompute=self.recompute,
            value_nbytes=self.value_nbytes,
            summed="allreduce",
            group="all",
            update=job.update,
        )
