"""Data parallelism: every rank has the whole model and samples of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from simshuffle.errors import Problem
from simshuffle.layers import LayerList
from simshuffle.parallelism.base import Parallelism
from simshuffle.parallelism.step import Job, Memory, Node, Step


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
        """Forward, backward, one allreduce, update; with buckets, one for each as it is there."""
        forward = job.fixed / 3 + job.batch * float(job.forward.sum())
        backward = 2 * job.fixed / 3 + job.batch * float(job.backward.sum())
        nodes = [Node("forward", (), forward)]
        if job.buckets is None:
            nodes.append(Node("backward", (0,), backward))
            nbytes = job.layers.parameters * job.gradient_nbytes
            nodes.append(_summed((1,), nbytes))
        else:
            last, summed, done = 0, 0, 0.0
            for nbytes, share in job.buckets.tolist():
                nodes.append(Node("backward", (last,), (share - done) * backward))
                last, done = len(nodes) - 1, share
                nodes.append(_summed((last, summed), nbytes))
                summed = len(nodes) - 1
        nodes.append(Node("update", (len(nodes) - 1,), job.update))
        return Step(nodes)

    def memory(self, job: Job) -> Memory:
        """All weights, and all activations of a rank's batch."""
        parameters, value = job.layers.parameters, self.value_nbytes
        return Memory(
            weights=parameters * value,
            gradients=parameters * value,
            optimiser=parameters * self.optimiser_nbytes,
            activations=job.batch * job.layers.saved * value,
        )


def _summed(after: tuple[int, ...], nbytes: float) -> Node:
    return Node("gradients", after, collective="allreduce", group="all", nbytes=nbytes)
