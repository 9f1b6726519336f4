"""Data parallelism: every rank has samples of its own, and the whole model or, sharded, a part."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from simshuffle.workload.parallelism.base import OwnSamples
from simshuffle.workload.parallelism.division import (
    Passes,
    block_starts,
    divided_step,
    layer_seconds,
    piece_starts,
    undivided,
)
from simshuffle.workload.parallelism.step import ALL, DividedWorkload, GpuMemory, Node, Step


class Data(OwnSamples):
    """Every rank has the whole model and trains on samples of its own; gradients are summed over
    all of them in every iteration."""

    short_name: ClassVar[str] = "data"
    by_data: ClassVar[bool] = True
    kind: Literal["data"] = "data"

    def step(self, job: DividedWorkload, most: int | None = None) -> Step:
        """Forward, backward, one allreduce, update; with buckets, one for each as it is there.
        Nothing else is sent, so layers always go together."""
        passes = self.passes(job, "allreduce", job.update)
        return divided_step(job, undivided(len(job.layers)), passes, most=1)

    def memory(self, job: DividedWorkload) -> GpuMemory:
        """All weights, and all activations of a rank's batch."""
        passes = self.passes(job, "allreduce", job.update)
        return self.divided_memory(job, undivided(len(job.layers)), passes)


class ShardedData(OwnSamples):
    """Every rank trains on samples of its own, and keeps 1/M of the optimiser's values; from stage
    2 on of the gradients, and at stage 3 of the weights too.

    ZeRO (Rajbhandari et al., arXiv 1910.02054), and FSDP (Zhao et al., arXiv 2304.11277) at stage
    3. Gradients are scattered as they are summed, and each rank updates its part. At stages 1 and 2
    weights are gathered after that. At stage 3 those of a block are gathered before it is computed,
    in either pass, while the block before is computed, and are given up after it. A block ends
    where one output alone crosses.

    Attributes:
        stage: what is kept in parts: values of the optimiser (1), gradients too (2), weights too
            (3).
    """

    short_name: ClassVar[str] = "ZeRO"
    kind: Literal["sharded_data"] = "sharded_data"
    stage: Literal[1, 2, 3] = 3

    def step(self, job: DividedWorkload, most: int | None = None) -> Step:
        """At stages 1 and 2 as of data parallelism, with a reduce-scatter in place of the allreduce
        and an allgather of the weights at the end."""
        if self.stage == 3:
            return _prefetched(job, self._passes(job), self.value_nbytes, most)
        nodes = list(divided_step(job, undivided(len(job.layers)), self._passes(job), most=1).nodes)
        nbytes = job.layers.parameters * self.value_nbytes
        nodes.append(_gathered(nbytes, (len(nodes) - 1,)))
        return Step(nodes)

    def memory(self, job: DividedWorkload) -> GpuMemory:
        """Stage by stage 1/M of more; at stage 3 beside it the weights of two blocks next to each
        other, the largest."""
        alike = self.divided_memory(job, undivided(len(job.layers)), self._passes(job))
        parts = job.world_size
        each = [layer.parameters for layer in job.layers.layers]
        blocks = np.add.reduceat(each, block_starts(job.layers))
        pairs = blocks + np.append(blocks[1:], 0)
        return replace(
            alike,
            optimiser=alike.optimiser / parts,
            gradients=alike.gradients / (parts if self.stage >= 2 else 1),
            weights=alike.weights / (parts if self.stage == 3 else 1),
            buffers=float(pairs.max(initial=0)) * self.value_nbytes if self.stage == 3 else 0.0,
        )

    def _passes(self, job: DividedWorkload) -> Passes:
        return self.passes(job, "reduce_scatter", job.update / job.world_size)


def _gathered(nbytes: float, after: tuple[int, ...]) -> Node:
    return Node("weights", after, collective="allgather", group="all", nbytes=nbytes)


def _prefetched(
    job: DividedWorkload, passes: Passes, weight_nbytes: float, most: int | None
) -> Step:
    """Stage 3: weights of a piece come while the piece before is computed; one after the other."""
    ones = np.ones(len(job.layers))
    forward, backward = layer_seconds(job, ones, passes.samples, 1.0, passes.recompute)
    blocks = np.array(block_starts(job.layers))
    starts = blocks[piece_starts(np.add.reduceat(forward + backward, blocks), most)]
    parameters = np.add.reduceat(
        np.array([float(each.parameters) for each in job.layers.layers]), starts
    ).tolist()
    passed = [np.add.reduceat(each, starts).tolist() for each in (forward, backward)]
    pieces = [("forward", n) for n in range(len(starts))]
    pieces += [("backward", n) for n in reversed(range(len(starts)))]
    nodes: list[Node] = []
    computed: list[int] = []
    sent: tuple[int, ...] = ()

    def gather(place: int) -> tuple[int, ...]:
        """Weights of the piece computed then, once the one two before it is computed."""
        nonlocal sent
        count = parameters[pieces[place][1]]
        if not count:
            return ()
        nodes.append(_gathered(count * weight_nbytes, (*sent, *computed[place - 2 : place - 1])))
        sent = (len(nodes) - 1,)
        return sent

    following = gather(0)
    for place, (label, number) in enumerate(pieces):
        here = following
        if place + 1 < len(pieces):
            following = gather(place + 1)
        seconds = passed[label == "backward"][number]
        nodes.append(Node(label, (*here, *computed[-1:]), seconds))
        computed.append(len(nodes) - 1)
        if label == "backward" and parameters[number]:
            size, after = parameters[number] * job.gradient_nbytes, (*sent, computed[-1])
            nodes.append(Node("gradients", after, 0.0, ALL, "reduce_scatter", "all", size))
            sent = (len(nodes) - 1,)
    nodes.append(Node("update", (*sent, computed[-1]), passes.update))
    return Step(nodes)
