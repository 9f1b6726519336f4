"""Data parallelism: every rank has the whole model and samples of its own."""

from __future__ import annotations

from typing import ClassVar, Literal

from simshuffle.parallelism.base import OwnSamples
from simshuffle.parallelism.division import divided_step, undivided
from simshuffle.parallelism.step import Job, Memory, Step


class Data(OwnSamples):
    """Every rank has the whole model and trains on samples of its own; gradients are summed over
    all of them in every iteration."""

    short_name: ClassVar[str] = "data"
    kind: Literal["data"] = "data"

    def step(self, job: Job, most: int | None = None) -> Step:
        """Forward, backward, one allreduce, update; with buckets, one for each as it is there.
        Nothing else is sent, so layers always go together."""
        passes = self.passes(job, "allreduce", job.update)
        return divided_step(job, undivided(len(job.layers)), passes, most=1)

    def memory(self, job: Job) -> Memory:
        """All weights, and all activations of a rank's batch."""
        passes = self.passes(job, "allreduce", job.update)
        return self.divided_memory(job, undivided(len(job.layers)), passes)
