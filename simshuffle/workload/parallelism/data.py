"""Data parallelism: every rank has samples of its own, and the whole model or, sharded,
a part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from simshuffle.workload.parallelism.base import SampleParallelism
from simshuffle.workload.parallelism.cutting import block_starts, piece_starts
from simshuffle.workload.parallelism.division import (
    PassSettings,
    divided_step,
    layer_seconds,
    no_division,
)
from simshuffle.workload.parallelism.step import DividedWorkload, GpuMemory, Node, Step


class Data(SampleParallelism):
    """Data parallelism: every rank has the whole model and trains on samples of its
    own.

    Gradients are summed over all ranks in every iteration.
    """

    short_name: ClassVar[str] = "data"
    is_data_parallel: ClassVar[bool] = True
    kind: Literal["data"] = "data"

    def step(self, job: DividedWorkload, max_pieces: int | None = None) -> Step:
        """Return a step of forward pass, backward pass, one allreduce and update.

        With buckets there is an allreduce for each, as it becomes ready. Nothing else
        is sent, so layers always go together, whatever ``max_pieces`` is.
        """
        settings = self.pass_settings(job, "allreduce", job.update)
        return divided_step(job, no_division(len(job.layers)), settings, max_pieces=1)

    def memory(self, job: DividedWorkload) -> GpuMemory:
        """Return the bytes of all weights, and of all activations of a rank's batch."""
        settings = self.pass_settings(job, "allreduce", job.update)
        return self.divided_memory(job, no_division(len(job.layers)), settings)


class ShardedData(SampleParallelism):
    """Sharded data parallelism: a rank trains on samples of its own, and keeps 1/M of
    the optimiser's values; from stage 2 on of the gradients, and at stage 3 of the
    weights too.

    ZeRO (Rajbhandari et al., arXiv 1910.02054), and FSDP (Zhao et al., arXiv
    2304.11277) at stage 3. Gradients are scattered as they are summed, and each rank
    updates its part. At stages 1 and 2 weights are gathered after the update. At stage
    3 the weights of a block are gathered in either pass, while the block before it is
    computed, and are given up once the block is computed. A block ends where one output
    alone crosses.

    Attributes:
        stage: what is kept in parts: values of the optimiser (1), gradients too (2),
            weights too (3).
    """

    short_name: ClassVar[str] = "ZeRO"
    kind: Literal["sharded_data"] = "sharded_data"
    stage: Literal[1, 2, 3] = 3

    def step(self, job: DividedWorkload, max_pieces: int | None = None) -> Step:
        """Return the step of a rank.

        At stages 1 and 2 it is that of data parallelism, with a reduce-scatter in place
        of the allreduce, and an allgather of the weights at the end. At stage 3 weights
        are gathered before each piece in either pass, and gradients scattered after it.

        Args:
            job: that is divided.
            max_pieces: the most pieces into which neighbouring blocks are put together
                at stage 3; None for each block by itself.
        """
        settings = self._pass_settings(job)
        if self.stage == 3:
            return _prefetched_step(job, settings, self.value_nbytes, max_pieces)
        step = divided_step(job, no_division(len(job.layers)), settings, max_pieces=1)
        nodes = list(step.nodes)
        nbytes = job.layers.parameters * self.value_nbytes
        nodes.append(_weights_node(nbytes, (len(nodes) - 1,)))
        return Step(nodes)

    def memory(self, job: DividedWorkload) -> GpuMemory:
        """Return the bytes of a rank, which keeps 1/M of more at each stage.

        At stage 3 its buffers have the weights of two blocks next to each other, the
        largest; at others they are 0.
        """
        unsharded = self.divided_memory(
            job, no_division(len(job.layers)), self._pass_settings(job)
        )
        parts = job.world_size
        parameters = [layer.parameters for layer in job.layers.layers]
        # (blocks,) of each block, then of it and the one after it
        block_parameters = np.add.reduceat(parameters, block_starts(job.layers))
        pair_parameters = block_parameters + np.append(block_parameters[1:], 0)
        max_pair = float(pair_parameters.max(initial=0))
        return replace(
            unsharded,
            optimiser=unsharded.optimiser / parts,
            gradients=unsharded.gradients / (parts if self.stage >= 2 else 1),
            weights=unsharded.weights / (parts if self.stage == 3 else 1),
            buffers=max_pair * self.value_nbytes if self.stage == 3 else 0.0,
        )

    def _pass_settings(self, job: DividedWorkload) -> PassSettings:
        """Return how the step of a rank is computed.

        Gradients are summed by reduce-scatter, and a rank updates 1/M of the weights.
        """
        return self.pass_settings(job, "reduce_scatter", job.update / job.world_size)


def _weights_node(nbytes: float, predecessors: tuple[int, ...]) -> Node:
    """Return the node that gathers weights of ``nbytes`` bytes on all ranks."""
    return Node(
        "weights", predecessors, collective="allgather", group="all", nbytes=nbytes
    )


class _Pieces(NamedTuple):
    """The pieces into which the layers of a model are put together, in their order."""

    seconds: dict[str, list[float]]  # s of each piece, by pass: 'forward', 'backward'
    parameters: list[float]  # number of parameters of each piece


def _cut_into_pieces(
    job: DividedWorkload, settings: PassSettings, max_pieces: int | None
) -> _Pieces:
    """Put the blocks of a model together to at most ``max_pieces`` pieces; None leaves
    each block by itself.
    """
    full_share = np.ones(len(job.layers))
    forward, backward = layer_seconds(
        job, full_share, settings.samples, 1.0, recompute=settings.recompute
    )
    blocks = np.array(block_starts(job.layers))
    block_seconds = np.add.reduceat(forward + backward, blocks)
    starts = blocks[piece_starts(block_seconds, max_pieces)]
    layer_parameters = np.array(
        [float(layer.parameters) for layer in job.layers.layers]
    )
    parameters = np.add.reduceat(layer_parameters, starts).tolist()
    seconds = {
        "forward": np.add.reduceat(forward, starts).tolist(),
        "backward": np.add.reduceat(backward, starts).tolist(),
    }
    return _Pieces(seconds, parameters)


def _prefetched_step(
    job: DividedWorkload,
    settings: PassSettings,
    weight_nbytes: float,
    max_pieces: int | None,
) -> Step:
    """Return the step of stage 3: weights of a piece come while another is computed.

    Messages go one after the other. Nothing is sent for a piece without parameters.

    Args:
        job: that is divided.
        settings: how the step is computed.
        weight_nbytes: bytes of a weight.
        max_pieces: the most pieces into which blocks are put together; None for each by
            itself.
    """
    pieces = _cut_into_pieces(job, settings, max_pieces)
    parameters = pieces.parameters
    passes = [("forward", piece) for piece in range(len(parameters))]
    passes += [("backward", piece) for piece in reversed(range(len(parameters)))]

    nodes: list[Node] = []
    computed: list[int] = []  # the node of each pass over a piece
    last_sent: tuple[int, ...] = ()

    def gather(index: int) -> tuple[int, ...]:
        """Add the node that gathers the weights for pass ``index``; return its index.

        It waits for the last message and the pass two before. () without weights.
        """
        nonlocal last_sent
        num_weights = parameters[passes[index][1]]
        if not num_weights:
            return ()
        predecessors = (*last_sent, *computed[index - 2 : index - 1])
        nodes.append(_weights_node(num_weights * weight_nbytes, predecessors))
        last_sent = (len(nodes) - 1,)
        return last_sent

    next_weights = gather(0)
    for index, (label, piece) in enumerate(passes):
        weights = next_weights
        if index + 1 < len(passes):
            next_weights = gather(index + 1)
        nodes.append(
            Node(label, (*weights, *computed[-1:]), pieces.seconds[label][piece])
        )
        computed.append(len(nodes) - 1)
        if label == "backward" and parameters[piece]:
            reduce_scatter = Node(
                "gradients",
                (*last_sent, computed[-1]),
                collective="reduce_scatter",
                group="all",
                nbytes=parameters[piece] * job.gradient_nbytes,
            )
            nodes.append(reduce_scatter)
            last_sent = (len(nodes) - 1,)
    nodes.append(Node("update", (*last_sent, computed[-1]), settings.update_seconds))
    return Step(nodes)
