"""One step of training as a graph of computing and communication, the same on every group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simshuffle.layers import LayerList

Floats = NDArray[np.float64]
Collective = Literal[
    "allreduce",  # of a buffer of nbytes on every member
    "allgather",  # nbytes are the whole buffer, of which each member has an equal part
    "reduce_scatter",  # the same backwards
    "alltoall",  # each member has nbytes, an equal part of them for each member
    "gather",  # each member but the first sends nbytes to the first
    "halo",  # members in rows; each sends nbytes to each of its neighbours
    "send",  # `member` sends nbytes to the next one
    "send_back",  # `member` sends nbytes to the one before
]
Group = Literal["model", "data", "all"]
"""Those who work on the same samples; those who hold the same part of the model; all ranks."""
ALL = -1
"""Every member of a group."""


@dataclass(frozen=True)
class Node:
    """Something that is computed or sent in a step.

    Attributes:
        label: what it is for, such as 'forward', 'backward', 'halo', 'gradients'.
        after: numbers of the nodes that have to end first.
        seconds: s of computing; 0 for communication.
        member: which member of its group computes or sends; `ALL` for each of them. Of 'data': only
            the group of those who are that member of their model groups.
        collective: what is sent; None for computing.
        group: who takes part. Groups of one kind go at once.
        nbytes: see `Collective`; of all ``count`` together.
        count: of as many, one after the other.
        row: of a halo: members of a row; 0 if all of the group are one.
        stride: of a halo: how many places of the group its neighbours in a row are apart.
    """

    label: str
    after: tuple[int, ...] = ()
    seconds: float = 0.0
    member: int = ALL
    collective: Collective | None = None
    group: Group = "model"
    nbytes: float = 0.0
    count: int = 1
    row: int = 0
    stride: int = 1


@dataclass(frozen=True)
class Costs:
    """What a step takes, in s.

    Attributes:
        seconds: all of it.
        compute: of the member of a group that computes longest.
        bubble: that this one has nothing to compute though nothing is sent, as in a pipeline.
        exposed: of communication that nothing hides.
        hidden: of communication beside it; both as the member sees it that sends longest.
        by_label: s of communication by what it is for, hidden or not.
    """

    seconds: float
    compute: float
    bubble: float
    exposed: float
    hidden: float
    by_label: dict[str, float]


CommunicationSeconds = Callable[[Node], float]


@dataclass(frozen=True)
class Step:
    """A step: nodes, each after those that it waits for.

    Attributes:
        nodes: in an order in which each comes after all that it waits for.
    """

    nodes: Sequence[Node]

    def costs(self, seconds_of: CommunicationSeconds) -> Costs:
        """What it takes if a node of communication takes ``seconds_of(node)`` (s), which is asked
        once for all that send the same."""
        asked: dict[tuple[object, ...], float] = {}
        ends: list[float] = []
        ends_unsent: list[float] = []
        compute: dict[int, float] = {}
        sent: dict[int, float] = {}
        by_label: dict[str, dict[int, float]] = {}
        for node in self.nodes:
            begin = begin_unsent = 0.0
            for k in node.after:
                begin = max(begin, ends[k])
                begin_unsent = max(begin_unsent, ends_unsent[k])
            member = node.member
            if node.collective is None:
                seconds = node.seconds
                begin_unsent += seconds
                compute[member] = compute.get(member, 0.0) + seconds
            else:
                same = (node.collective, node.group, member, node.nbytes, node.count, node.row)
                key = (*same, node.stride)
                if key not in asked:
                    asked[key] = seconds_of(node)
                seconds = asked[key]
                sent[member] = sent.get(member, 0.0) + seconds
                of_label = by_label.setdefault(node.label, {})
                of_label[member] = of_label.get(member, 0.0) + seconds
            ends.append(begin + seconds)
            ends_unsent.append(begin_unsent)
        whole, unsent = max(ends, default=0.0), max(ends_unsent, default=0.0)
        busy = min(_busiest(compute), unsent)  # added up in another order, it may seem more
        exposed = whole - unsent
        return Costs(
            seconds=whole,
            compute=busy,
            bubble=unsent - busy,
            exposed=exposed,
            hidden=max(_busiest(sent) - exposed, 0.0),
            by_label={label: _busiest(of) for label, of in by_label.items()},
        )


def _busiest(seconds: dict[int, float]) -> float:
    """The most seconds that one member has, from those of each and of all."""
    alone = (s for member, s in seconds.items() if member != ALL)
    return seconds.get(ALL, 0.0) + max(alone, default=0.0)


@dataclass(frozen=True)
class Memory:
    """Bytes of one GPU, of the fullest.

    Attributes:
        weights, gradients, optimiser: of the model's state.
        activations: kept for the backward pass.
        buffers: for what is sent: halos, gathered layers, inputs.
    """

    weights: float
    gradients: float
    optimiser: float
    activations: float
    buffers: float = 0.0

    @property
    def total(self) -> float:
        """All of it (bytes)."""
        return self.weights + self.gradients + self.optimiser + self.activations + self.buffers


@dataclass(frozen=True)
class Job:
    """What is trained, as strategies see it.

    Attributes:
        layers: of the model.
        forward, backward: (layers,) s of each for one more sample, on one GPU.
        fixed: s of an iteration whatever its batch, forward and backward together.
        update: s of updating all weights, on one GPU.
        batch: samples of a rank in an iteration; a group of ranks has ``ways`` times as many.
        world_size: M.
        gradient_nbytes: bytes of the gradient of one parameter as it is summed.
        input_nbytes: bytes of a sample as it comes to the GPU.
        buckets: (buckets, 2) bytes of gradients that are summed together while the backward pass
            runs, and its share after which they are there; None if all are summed after it.
    """

    layers: LayerList
    forward: Floats
    backward: Floats
    fixed: float
    update: float
    batch: float
    world_size: int
    gradient_nbytes: float
    input_nbytes: float
    buckets: Floats | None = None
