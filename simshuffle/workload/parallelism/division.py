"""Divide layers among members of a group that all work at once, and build the step that
follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simshuffle.spec.arrays import Flags, Floats, Ints64
from simshuffle.workload.parallelism.cutting import piece_starts
from simshuffle.workload.parallelism.step import (
    Collective,
    DividedWorkload,
    Group,
    Node,
    Step,
)


@dataclass(frozen=True)
class Traffic:
    """The values that a group sends in a pass, by layer."""

    label: str  # purpose, as of `Node`
    collective: Collective  # by which they are sent
    values: Floats  # (layers,) of one sample; 0 where nothing is sent
    precedes_layer: bool  # whether they are sent before a layer is computed, or after
    row: int = 0  # of a halo, as of `Node`
    stride: int = 1  # of a halo, as of `Node`


@dataclass(frozen=True)
class Division:
    """The part of each layer that a member has."""

    work_share: Floats  # (layers,) its share of the operations
    parameter_share: Floats  # (layers,) its share of the parameters
    saved_share: Floats  # (layers,) its share of the values kept for the backward pass
    forward: tuple[Traffic, ...] = ()  # sent in the forward pass
    backward: tuple[Traffic, ...] = ()  # sent in the backward pass
    buffers: float = 0.0  # values of one sample that are in buffers while they are sent

    def parameters(self, job: DividedWorkload) -> float:
        """Return how many parameters a member holds."""
        return float(
            self.parameter_share @ [layer.parameters for layer in job.layers.layers]
        )


@dataclass(frozen=True)
class PassSettings:
    """The settings by which the passes of a step are computed."""

    samples: float  # of a group, in an iteration
    compute_factor: (
        float  # how many times as long a divided layer takes as its ideal part
    )
    recompute: bool  # whether the backward pass does the forward pass again
    value_nbytes: float  # bytes of a value that is sent
    # by which gradients are summed; None if they are not
    gradient_collective: Collective | None
    gradient_group: Group  # the ranks that sum them
    update_seconds: float  # s of updating the weights that a member holds
    group_sum: bool = False  # whether each group sums its gradients before these ranks


def no_division(num_layers: int) -> Division:
    """Return the division in which every member has all of each layer and sends
    nothing.
    """
    full_share = np.ones(num_layers)
    return Division(full_share, full_share, full_share)


def mixed_division(
    is_divided: Flags, num_members: int, forward: Traffic, backward: Traffic
) -> Division:
    """Return the division of some layers' work and weights among members.

    All members keep all values for the backward pass, as all have whole outputs. The
    buffers hold the values of the layer that sends most, in either pass.

    Args:
        is_divided: (layers,) True for layers that are divided.
        num_members: of a group.
        forward: sent in the forward pass.
        backward: sent in the backward pass.
    """
    share = np.where(is_divided, 1 / num_members, 1.0)
    return Division(
        work_share=share,
        parameter_share=share,
        saved_share=np.ones(len(is_divided)),
        forward=(forward,),
        backward=(backward,),
        buffers=float(max(forward.values.max(), backward.values.max())),
    )


def layer_seconds(
    job: DividedWorkload,
    work_share: Floats,
    samples: float,
    compute_factor: float,
    *,
    recompute: bool,
) -> Floats:
    """Return the s of the forward and of the backward pass of each layer: (2, layers).

    Time that does not depend on the batch is equal for all layers, and does not shrink:
    it is the start of kernels, a third of it in the forward pass. ``compute_factor``
    counts only for layers of which a member has less than all.

    Args:
        job: that is divided.
        work_share: (layers,) share of the operations of each layer.
        samples: of a pass.
        compute_factor: how many times as long a divided layer takes as its ideal part.
        recompute: whether the backward pass does the forward pass again; its row then
            includes the s of both.
    """
    sample_equivalents = samples * np.where(
        work_share < 1, compute_factor * work_share, 1.0
    )
    # a third for the forward pass, two for the backward pass
    launch = job.fixed / 3 / len(job.layers)
    forward = sample_equivalents * job.forward + launch
    backward = sample_equivalents * job.backward + 2 * launch
    return np.array([forward, backward + forward if recompute else backward])


def divided_step(
    job: DividedWorkload,
    division: Division,
    settings: PassSettings,
    inputs: Sequence[Node] = (),
    max_pieces: int | None = None,
) -> Step:
    """Return a step of forward pass, backward pass, sums of gradients and update.

    Gradients are summed beside the backward pass where there are buckets, one bucket
    after another; not at all if the settings name no collective. Where the forward
    pass is recomputed, its messages are sent again before each piece of the backward
    pass.

    Computing is labelled 'forward', 'backward' or 'update', a sum 'gradients', and a
    message as its `Traffic`. The update is the last node, also where it takes 0 s.

    Args:
        job: that is divided.
        division: of its layers.
        settings: how passes are computed.
        inputs: nodes by which a group gets its samples, first of all. The passes wait
            for the last of these nodes only.
        max_pieces: the most pieces into which neighbouring layers are put together;
            None for each layer by itself.

    Returns:
        ``inputs``, and after them nodes that are all of every member (`ALL`).
    """
    forward, backward = layer_seconds(
        job,
        division.work_share,
        settings.samples,
        settings.compute_factor,
        recompute=settings.recompute,
    )
    starts = piece_starts(forward + backward, max_pieces)
    nbytes = settings.samples * settings.value_nbytes
    chain = _Chain(list(inputs))

    traffic = _PieceTraffic(division.forward, starts, nbytes)
    for piece, seconds in enumerate(np.add.reduceat(forward, starts).tolist()):
        chain.send(traffic.before[piece])
        chain.compute("forward", seconds)
        chain.send(traffic.after[piece])

    recomputed: list[Traffic] = []
    if settings.recompute:
        recomputed = [replace(sent, precedes_layer=True) for sent in division.forward]
    traffic = _PieceTraffic((*recomputed, *division.backward), starts, nbytes)
    moments = _gradient_moments(job, division, settings, backward)
    backward_pass = _BackwardPass(chain, settings, moments)
    piece_seconds = np.add.reduceat(backward, starts).tolist()
    for piece in reversed(range(len(piece_seconds))):
        chain.send(traffic.before[piece])
        backward_pass.compute(piece_seconds[piece])
        chain.send(traffic.after[piece])
    backward_pass.sum_rest()
    chain.nodes.append(
        Node("update", backward_pass.predecessors, settings.update_seconds)
    )
    return Step(chain.nodes)


class _Chain:
    """Nodes of which each comes after the one before it.

    Args:
        nodes: that the chain goes on from; the list is extended in place.

    Attributes:
        nodes: of the step; sums of gradients are among them, and are not in the chain.
        last: index of the last node of the chain, as a tuple; () if there is none.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.last: tuple[int, ...] = (len(nodes) - 1,) if nodes else ()

    def compute(self, label: str, seconds: float) -> None:
        """Add ``seconds`` s of computing; nothing for 0 s."""
        if not seconds:
            return
        self.nodes.append(Node(label, self.last, seconds))
        self.last = (len(self.nodes) - 1,)

    def send(self, messages: Sequence[_PieceMessage]) -> None:
        """Add a node for each message."""
        for message in messages:
            traffic = message.traffic
            self.nodes.append(
                Node(
                    traffic.label,
                    self.last,
                    collective=traffic.collective,
                    nbytes=message.nbytes,
                    count=message.count,
                    row=traffic.row,
                    stride=traffic.stride,
                )
            )
            self.last = (len(self.nodes) - 1,)


@dataclass(frozen=True)
class _PieceMessage:
    """The values that a group sends for a piece of neighbouring layers."""

    traffic: Traffic
    nbytes: float  # of all layers of the piece
    count: int  # layers that send


class _PieceTraffic:
    """The messages before and after each piece is computed.

    Args:
        traffic: of the layers.
        starts: (pieces,) the first layer of each piece.
        nbytes: bytes of one value of all samples.

    Attributes:
        before, after: the messages that are sent before and after each piece, a list
            for each; empty where no layer of the piece sends.
    """

    def __init__(
        self, traffic: Sequence[Traffic], starts: Ints64, nbytes: float
    ) -> None:
        self.before: list[list[_PieceMessage]] = [[] for _ in starts]
        self.after: list[list[_PieceMessage]] = [[] for _ in starts]
        for sent in traffic:
            messages = self.before if sent.precedes_layer else self.after
            piece_nbytes = nbytes * np.add.reduceat(sent.values, starts)
            counts = np.add.reduceat((sent.values > 0).astype(np.int64), starts)
            for piece in np.flatnonzero(counts).tolist():
                message = _PieceMessage(
                    sent, float(piece_nbytes[piece]), int(counts[piece])
                )
                messages[piece].append(message)


def _gradient_moments(
    job: DividedWorkload, division: Division, settings: PassSettings, backward: Floats
) -> list[tuple[float, float]]:
    """Return when gradients become ready: s of the backward pass, and bytes that a
    member sums then, bucket by bucket.

    Without buckets there is one moment, at infinity, with all bytes of the member.
    Nothing is returned if the settings name no collective. The workload gives moments
    as shares of the backward pass of one undivided GPU. They are converted to the
    moments at which as many layers are done here, and bytes to the member's share.

    Args:
        job: that is divided.
        division: of its layers.
        settings: how passes are computed.
        backward: (layers,) s of the backward pass.
    """
    if settings.gradient_collective is None:
        return []
    parameters = division.parameters(job)
    if job.buckets is None:
        return [(math.inf, parameters * job.gradient_nbytes)]
    parameter_share = parameters / (job.layers.parameters or 1)
    full_share = np.ones(len(job.layers))
    undivided = layer_seconds(job, full_share, job.batch, 1.0, recompute=False)[1]
    # (layers + 1,) s after each number of layers, from the last layer on
    undivided_ends = np.append(0.0, np.cumsum(undivided[::-1]))
    divided_ends = np.append(0.0, np.cumsum(backward[::-1]))
    # (buckets,) layers after which each bucket is ready, with fractions; then s
    ready_seconds = job.buckets[:, 1] * undivided_ends[-1]
    layers_done = np.interp(
        ready_seconds, undivided_ends, np.arange(len(undivided_ends))
    )
    moments = np.interp(layers_done, np.arange(len(divided_ends)), divided_ends)
    bucket_nbytes = parameter_share * job.buckets[:, 0]
    return list(zip(moments.tolist(), bucket_nbytes.tolist(), strict=True))


class _BackwardPass:
    """The backward pass, and gradients that are summed beside it as they become ready.

    Args:
        chain: to which the nodes are added.
        settings: how passes are computed.
        moments: s of the backward pass and bytes of each sum, rising
            (`_gradient_moments`).
    """

    def __init__(
        self, chain: _Chain, settings: PassSettings, moments: list[tuple[float, float]]
    ) -> None:
        self._chain = chain
        self._settings = settings
        self._moments = moments
        self._num_summed = 0
        self._clock = 0.0
        self._last_sum: tuple[int, ...] = ()

    def compute(self, seconds: float) -> None:
        """Add a piece of the backward pass, of ``seconds`` s, cut at each bucket that
        becomes ready in it.
        """
        end = self._clock + seconds
        while self._num_summed < len(self._moments):
            moment, _ = self._moments[self._num_summed]
            if moment > end * (1 + 1e-12):
                break
            self._compute_until(min(moment, end))
            self._add_sum()
        self._compute_until(end)

    def _compute_until(self, moment: float) -> None:
        """Add computing up to ``moment`` (s of the backward pass); nothing if it is past."""
        self._chain.compute("backward", max(moment - self._clock, 0.0))
        self._clock = max(moment, self._clock)

    def sum_rest(self) -> None:
        """Add the sums of all gradients that are not summed yet."""
        while self._num_summed < len(self._moments):
            self._add_sum()

    @property
    def predecessors(self) -> tuple[int, ...]:
        """The nodes that the next sum and the update wait for: the last of the chain, and
        the last sum.
        """
        return (*self._chain.last, *self._last_sum)

    def _add_sum(self) -> None:
        """Add the sum of the next bucket of gradients, within each group first where
        the settings say so.
        """
        nodes = self._chain.nodes
        groups = [self._settings.gradient_group]
        if self._settings.group_sum:
            groups = ["members", *groups]
        for group in groups:
            nodes.append(
                Node(
                    "gradients",
                    self.predecessors,
                    collective=self._settings.gradient_collective,
                    group=group,
                    nbytes=self._moments[self._num_summed][1],
                )
            )
            self._last_sum = (len(nodes) - 1,)
        self._num_summed += 1
