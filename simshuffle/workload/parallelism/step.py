"""One step of training as a graph of computing and communication, the same on every group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from simshuffle.spec.arrays import Floats
from simshuffle.workload.layers import LayerList

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
    """Something that is computed or sent in a step."""

    label: str  # what it is for, such as 'forward', 'backward', 'halo', 'gradients'
    after: tuple[int, ...] = ()  # numbers of the nodes that have to end first
    seconds: float = 0.0  # s of computing; 0 for communication
    # which member of its group computes or sends; `ALL` for each of them. Of 'data': only the group
    # of those who are that member of their model groups.
    member: int = ALL
    collective: Collective | None = None  # what is sent; None for computing
    group: Group = "model"  # who takes part. Groups of one kind go at once.
    nbytes: float = 0.0  # see `Collective`; of all ``count`` together
    count: int = 1  # of as many, one after the other
    row: int = 0  # of a halo: members of a row; 0 if all of the group are one
    stride: int = 1  # of a halo: how many places of the group its neighbours in a row are apart


@dataclass(frozen=True)
class Costs:
    """What a step takes, in s."""

    seconds: float  # all of it
    compute: float  # of the member of a group that computes longest
    bubble: float  # that this one has nothing to compute though nothing is sent, as in a pipeline
    exposed: float  # of communication that nothing hides
    hidden: float  # of communication beside it; both as the member sees it that sends longest
    by_label: dict[str, float]  # s of communication by what it is for, hidden or not


CommunicationSeconds = Callable[[Node], float]


@dataclass(frozen=True)
class Step:
    """A step: nodes, each after those that it waits for."""

    nodes: Sequence[Node]  # in an order in which each comes after all that it waits for

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
class GpuMemory:
    """Bytes of one GPU, of the fullest."""

    # weights, gradients, optimiser: of the model's state
    weights: float
    gradients: float
    optimiser: float
    activations: float  # kept for the backward pass
    buffers: float = 0.0  # for what is sent: halos, gathered layers, inputs

    @property
    def total(self) -> float:
        """All of it (bytes)."""
        return self.weights + self.gradients + self.optimiser + self.activations + self.buffers


@dataclass(frozen=True)
class DividedWorkload:
    """What is trained, as strategies see it."""

    layers: LayerList  # of the model
    # forward, backward: (layers,) s of each for one more sample, on one GPU
    forward: Floats
    backward: Floats
    fixed: float  # s of an iteration whatever its batch, forward and backward together
    update: float  # s of updating all weights, on one GPU
    batch: float  # samples of a rank in an iteration; a group of ranks has ``ways`` times as many
    world_size: int  # M
    gradient_nbytes: float  # bytes of the gradient of one parameter as it is summed
    input_nbytes: float  # bytes of a sample as it comes to the GPU
    # (buckets, 2) bytes of gradients that are summed together while the backward pass runs, and its
    # share after which they are there; None if all are summed after it
    buckets: Floats | None = None
