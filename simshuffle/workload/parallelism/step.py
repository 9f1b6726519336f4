"""A step of training as a graph of computing and communication, equal on all groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from simshuffle.spec.arrays import Floats
from simshuffle.workload.layers import LayerList

Collective = Literal[
    "allreduce",  # of a buffer of nbytes on every member
    "allgather",  # nbytes are the whole buffer, of which each member has an equal part
    "reduce_scatter",  # nbytes are the whole buffer, of which each member gets an equal part
    "alltoall",  # each member has nbytes, an equal part of them for each member
    "gather",  # each member but the first sends nbytes to the first
    "halo",  # members in rows; each sends nbytes to each of its neighbours
    "send",  # `member` sends nbytes to the next one
    "send_back",  # `member` sends nbytes to the one before
]
Group = Literal["model", "members", "input", "data", "all"]
"""The ranks of a collective: 'model', those that work on the same samples; 'data',
those that hold the same part of the model; 'all', all ranks. 'members' and 'input' are
the ranks of 'model' too, for collectives that go at another pace: sums of gradients,
which another library may do than halos, and samples that one member hands on.
"""
JOINING_GROUPS: frozenset[Group] = frozenset({"data", "all"})
"""The kinds that have ranks of several model groups."""
ALL = -1
"""The ``member`` of a node that stands for every member of a group."""


@dataclass(frozen=True)
class Node:
    """A computation or a communication of a step."""

    label: str  # its purpose, such as 'forward', 'backward', 'halo', 'gradients'
    predecessors: tuple[int, ...] = ()  # indices of the nodes that have to end first
    seconds: float = 0.0  # s of computing; 0 for communication
    # the member of its group that computes or sends; `ALL` for each member. Of 'data': only the
    # group of those who are that member of their model groups.
    member: int = ALL
    collective: Collective | None = None  # how bytes are sent; None for computing
    group: Group = "model"  # the ranks that take part. Groups of one kind go at once.
    nbytes: float = 0.0  # see `Collective`; of all ``count`` together
    count: int = 1  # collectives that the node stands for, one after the other
    row: int = 0  # of a halo: members of a row; 0 if the whole group is one row
    stride: int = 1  # of a halo: positions in the group between neighbours of a row

    @property
    def joins_groups(self) -> bool:
        """Return whether ranks of several model groups communicate."""
        return self.collective is not None and self.group in JOINING_GROUPS


@dataclass(frozen=True)
class StepCosts:
    """The time of a step, in s."""

    seconds: float  # of the whole step
    compute: float  # of the member of a group that computes longest
    bubble: float  # that this member has nothing to compute though nothing is sent (pipeline)
    exposed: float  # of communication that nothing hides
    hidden: float  # of communication beside it; both as the member sees it that sends longest
    # s of communication by label, hidden or not, of the member that sends it longest
    by_label: dict[str, float]


CommunicationSeconds = Callable[[Node], float]
"""Returns the s of a node of communication."""


@dataclass(frozen=True)
class Step:
    """A step: nodes that wait for each other."""

    nodes: Sequence[Node]  # in an order in which each comes after its predecessors

    def costs(self, seconds_of: CommunicationSeconds) -> StepCosts:
        """Return the time of the step, if every node begins once its predecessors end.

        What is exposed is the time that the step takes longer than without sending. A
        step without nodes takes 0 s.

        Args:
            seconds_of: returns the s of a node of communication. It is called once for
                all nodes that send the same, whatever their labels.
        """
        # nodes are walked in order: each begins when the last of its predecessors ends
        seconds_by_message: dict[tuple[object, ...], float] = {}
        ends: list[float] = []
        ends_unsent: list[float] = []  # if sending took no time
        compute: dict[int, float] = {}
        sent: dict[int, float] = {}
        by_label: dict[str, dict[int, float]] = {}
        for node in self.nodes:
            begin = begin_unsent = 0.0
            for predecessor in node.predecessors:
                begin = max(begin, ends[predecessor])
                begin_unsent = max(begin_unsent, ends_unsent[predecessor])
            member = node.member
            if node.collective is None:
                seconds = node.seconds
                begin_unsent += seconds
                compute[member] = compute.get(member, 0.0) + seconds
            else:
                message = (
                    node.collective,
                    node.group,
                    member,
                    node.nbytes,
                    node.count,
                    node.row,
                    node.stride,
                )
                if message not in seconds_by_message:
                    seconds_by_message[message] = seconds_of(node)
                seconds = seconds_by_message[message]
                sent[member] = sent.get(member, 0.0) + seconds
                sent_for_label = by_label.setdefault(node.label, {})
                sent_for_label[member] = sent_for_label.get(member, 0.0) + seconds
            ends.append(begin + seconds)
            ends_unsent.append(begin_unsent)
        total = max(ends, default=0.0)
        unsent = max(ends_unsent, default=0.0)
        busy = min(
            _busiest(compute), unsent
        )  # added up in another order, it may seem more
        exposed = total - unsent
        return StepCosts(
            seconds=total,
            compute=busy,
            bubble=unsent - busy,
            exposed=exposed,
            hidden=max(_busiest(sent) - exposed, 0.0),
            by_label={label: _busiest(seconds) for label, seconds in by_label.items()},
        )


def _busiest(seconds: dict[int, float]) -> float:
    """Return the most s that one member has, given s by member; 0 without any.

    The s of `ALL` are added to those of every member.
    """
    of_single_members = (s for member, s in seconds.items() if member != ALL)
    return seconds.get(ALL, 0.0) + max(of_single_members, default=0.0)


@dataclass(frozen=True)
class GpuMemory:
    """The bytes of the fullest GPU."""

    weights: float  # of the weights
    gradients: float  # of the gradients
    optimiser: float  # of the optimiser's values
    activations: float  # kept for the backward pass
    buffers: float = 0.0  # of messages: halos, gathered layers, inputs

    @property
    def total(self) -> float:
        """The sum (bytes)."""
        return (
            self.weights
            + self.gradients
            + self.optimiser
            + self.activations
            + self.buffers
        )


@dataclass(frozen=True)
class DividedWorkload:
    """The training that a parallelism divides."""

    layers: LayerList  # of the model
    forward: Floats  # (layers,) s of the forward pass for one more sample, on one GPU
    backward: Floats  # (layers,) s of the backward pass for one more sample, on one GPU
    fixed: float  # s of an iteration whatever its batch, forward and backward together
    update: float  # s of updating all weights, on one GPU
    batch: float  # samples of a rank in an iteration; a group of ranks has ``ways`` times as many
    world_size: int  # M, the number of ranks
    gradient_nbytes: float  # bytes of the gradient of one parameter as it is summed
    input_nbytes: float  # bytes of a sample as it comes to the GPU
    # (buckets, 2) bytes of all gradients that are summed together, and the share of the backward
    # pass, from 0 to 1, after which they are ready; None if all are summed after the pass
    buckets: Floats | None = None
