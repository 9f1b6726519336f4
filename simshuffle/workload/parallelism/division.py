"""Where a list of layers may be cut, and layers divided among the members of a group, all at work
at once: the step that follows."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from simshuffle.spec.arrays import Flags, Floats, Ints64
from simshuffle.workload.layers import INPUT, Layer, LayerList
from simshuffle.workload.parallelism.step import ALL, Collective, DividedWorkload, Group, Node, Step

MIXING = ("conv", "linear")
"""Kinds of layers whose outputs each take all channels of the input."""


def takes_samples(layer: Layer) -> bool:
    """Whether it takes the sample alone, whose gradient nobody needs."""
    return layer.after == (INPUT,)


def piece_starts(seconds: Floats, most: int | None) -> Ints64:
    """First layers of ``most`` pieces at most of about equal time; all layers for None."""
    count = len(seconds)
    if most is None or most >= count:
        return np.arange(count)
    whole = float(seconds.sum())
    middles = np.cumsum(seconds) - seconds / 2 if whole else np.arange(count) + 0.5
    piece = np.minimum((middles * (most / (whole or count))).astype(np.int64), most - 1)
    return np.flatnonzero(np.diff(piece, prepend=-1))


def stage_starts(seconds: Floats, stages: int) -> list[int]:
    """Numbers of the first layers of that many stages, each of one layer at least, of which the
    longest takes as little as it can, to a millionth."""
    ends = [0.0, *np.cumsum(seconds).tolist()]
    low, high = max(ends[-1] / stages, float(seconds.max())), ends[-1]
    best = _filled(ends, stages, high)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        starts = _filled(ends, stages, middle)
        if ends[-1] - ends[starts[-1]] <= middle:
            best, high = starts, middle
        else:
            low = middle
    return best


def _filled(ends: list[float], stages: int, limit: float) -> list[int]:
    """The starts of stages of which each but the last takes ``limit`` s at most, and leaves a layer
    at least for each after it."""
    starts, last = [0], len(ends) - 1
    for left in range(stages - 1, 0, -1):
        begin = starts[-1]
        end = bisect_right(ends, ends[begin] + limit * (1 + 1e-12)) - 1
        starts.append(max(min(end, last - left), begin + 1))
    return starts


def crossings(layers: LayerList) -> tuple[Ints64, Ints64]:
    """For every cut, (layers + 1,) values of one sample that layers before it give to those from it
    on, each output that is taken there once; and how many outputs they are."""
    values = np.zeros(len(layers) + 2, dtype=np.int64)
    outputs = np.zeros(len(layers) + 2, dtype=np.int64)
    last_taken: dict[str, int] = {}
    for number, layer in enumerate(layers.layers):
        for name in layer.after:
            last_taken[name] = number
    made = [(INPUT, 0, math.prod(layers.input))]
    made += [(layer.name, n, layer.outputs) for n, layer in enumerate(layers.layers, 1)]
    for name, first, size in made:
        last = last_taken.get(name, -1)
        if last >= first:
            values[first] += size
            values[last + 1] -= size
            outputs[first] += 1
            outputs[last + 1] -= 1
    return np.cumsum(values)[:-1], np.cumsum(outputs)[:-1]


def block_starts(layers: LayerList) -> list[int]:
    """Numbers of the first layers of blocks. Where one output alone crosses, a block may end; what
    follows up to the next such place belongs to it too, unless it mixes channels."""
    _, outputs = crossings(layers)
    ends = [n for n in range(1, len(layers)) if outputs[n] == 1]
    mixes = [layer.kind in (*MIXING, "attention") for layer in layers.layers]
    starts = [0]
    for first, last in pairwise([*ends, len(layers)]):
        if any(mixes[first:last]) and any(mixes[starts[-1] : first]):
            starts.append(first)
    return starts


def kept_values(
    layers: LayerList, kept: Floats, first: int, last: int, recompute: bool
) -> tuple[float, float]:
    """What layers from ``first`` up to ``last``, without it, keep of one sample: values of every
    sample whose backward pass is still to come; and values more of those whose backward pass runs.
    One GPU keeps the part ``kept``, (layers,); with ``recompute`` only the inputs of blocks."""
    saved = kept * [layer.saved for layer in layers.layers]
    if not recompute:
        return float(saved[first:last].sum()), 0.0
    values, _ = crossings(layers)
    inner = [start for start in block_starts(layers) if first < start < last]
    starts = np.array([first, *inner])
    inputs = kept[starts] * values[starts]
    blocks = np.add.reduceat(saved[first:last], starts - first)
    return float(inputs.sum()), max(float((blocks - inputs).max()), 0.0)


@dataclass(frozen=True)
class Traffic:
    """What a group sends in a pass, by layer."""

    label: str  # what it is for
    collective: Collective  # how
    values: Floats  # (layers,) of one sample; 0 where nothing is sent
    before: bool  # whether before a layer is computed, or after
    # row, stride: of a halo, as of `Node`
    row: int = 0
    stride: int = 1


@dataclass(frozen=True)
class Division:
    """What of each layer a member has."""

    work: Floats  # (layers,) its part of the operations
    held: Floats  # (layers,) its part of the parameters
    kept: Floats  # (layers,) its part of what is kept for the backward pass
    # forward, backward: what is sent in each pass
    forward: tuple[Traffic, ...] = ()
    backward: tuple[Traffic, ...] = ()
    buffers: float = 0.0  # values of one sample that are there beside, while they are sent

    def parameters(self, job: DividedWorkload) -> float:
        """That a member holds."""
        return float(self.held @ [layer.parameters for layer in job.layers.layers])


@dataclass(frozen=True)
class Passes:
    """How a step is computed."""

    samples: float  # of a group, in an iteration
    factor: float  # how many times as long a divided layer takes as its ideal part
    recompute: bool  # whether the backward pass does the forward pass again
    value_nbytes: float  # bytes of a value that is sent
    summed: Collective | None  # how gradients are summed; None if they need not be
    group: Group  # by whom
    update: float  # s of updating what a member holds


def undivided(layers: int) -> Division:
    """Every member has all of each layer."""
    ones = np.ones(layers)
    return Division(ones, ones, ones)


def mixed_division(divided: Flags, ways: int, forward: Traffic, backward: Traffic) -> Division:
    """Members have 1/ways of the work and weights of the layers that are ``divided``, and all of
    what is kept for the backward pass, as all have whole outputs."""
    share = np.where(divided, 1 / ways, 1.0)
    return Division(
        work=share,
        held=share,
        kept=np.ones(len(divided)),
        forward=(forward,),
        backward=(backward,),
        buffers=float(max(forward.values.max(), backward.values.max())),
    )


def layer_seconds(
    job: DividedWorkload, work: Floats, samples: float, factor: float, recompute: bool
) -> Floats:
    """(2, layers) s of the forward and of the backward pass of each layer. What does not depend on
    the batch is the same for all layers, and does not shrink: it is the start of kernels."""
    part = samples * np.where(work < 1, factor * work, 1.0)
    launch = job.fixed / 3 / len(job.layers)
    forward = part * job.forward + launch
    backward = part * job.backward + 2 * launch
    return np.array([forward, backward + forward if recompute else backward])


def divided_step(
    job: DividedWorkload,
    division: Division,
    passes: Passes,
    inputs: Sequence[Node] = (),
    most: int | None = None,
) -> Step:
    """Forward pass, backward pass, sums of gradients beside it where there are buckets, update.
    ``inputs`` is how a group gets its samples, first of all; ``most`` pieces of neighbouring layers
    are told apart, None for each layer by itself."""
    each = passes.samples, passes.factor, passes.recompute
    forward, backward = layer_seconds(job, division.work, *each)
    starts = piece_starts(forward + backward, most)
    nbytes = passes.samples * passes.value_nbytes
    again = [replace(each, before=True) for each in division.forward] if passes.recompute else []
    chain = _Chain(list(inputs))
    sent = _Sent(division.forward, starts, nbytes)
    for number, seconds in enumerate(np.add.reduceat(forward, starts).tolist()):
        chain.send(sent.before[number])
        chain.compute("forward", seconds)
        chain.send(sent.after[number])
    sent = _Sent((*again, *division.backward), starts, nbytes)
    sums = _Sums(chain, passes, _due(job, division, passes, backward))
    pieces = np.add.reduceat(backward, starts).tolist()
    for number in reversed(range(len(pieces))):
        chain.send(sent.before[number])
        sums.compute(pieces[number])
        chain.send(sent.after[number])
    sums.rest()
    chain.nodes.append(Node("update", sums.after, passes.update))
    return Step(chain.nodes)


class _Chain:
    """Nodes of which each comes after the one before it."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.last: tuple[int, ...] = (len(nodes) - 1,) if nodes else ()

    def compute(self, label: str, seconds: float) -> None:
        if not seconds:
            return
        self.nodes.append(Node(label, self.last, seconds))
        self.last = (len(self.nodes) - 1,)

    def send(self, these: Sequence[tuple[Traffic, float, int]]) -> None:
        for of, nbytes, count in these:
            how = nbytes, count, of.row, of.stride
            self.nodes.append(Node(of.label, self.last, 0.0, ALL, of.collective, "model", *how))
            self.last = (len(self.nodes) - 1,)


class _Sent:
    """What is sent before and after each piece: traffic, bytes and count."""

    def __init__(self, traffic: Sequence[Traffic], starts: Ints64, nbytes: float) -> None:
        self.before: list[list[tuple[Traffic, float, int]]] = [[] for _ in starts]
        self.after: list[list[tuple[Traffic, float, int]]] = [[] for _ in starts]
        for each in traffic:
            side = self.before if each.before else self.after
            sums = nbytes * np.add.reduceat(each.values, starts)
            counts = np.add.reduceat((each.values > 0).astype(np.int64), starts)
            for number in np.flatnonzero(counts).tolist():
                side[number].append((each, float(sums[number]), int(counts[number])))


def _due(
    job: DividedWorkload, division: Division, passes: Passes, backward: Floats
) -> list[tuple[float, float]]:
    """After how many s of the backward pass how many bytes of gradients are there to be summed:
    without buckets after all of it. Buckets say it in shares of the pass of one GPU alone."""
    if passes.summed is None:
        return []
    parameters = division.parameters(job)
    if job.buckets is None:
        return [(math.inf, parameters * job.gradient_nbytes)]
    part = parameters / (job.layers.parameters or 1)
    alone = layer_seconds(job, np.ones(len(job.layers)), job.batch, 1.0, recompute=False)[1]
    of_alone, of_own = (np.append(0.0, np.cumsum(each[::-1])) for each in (alone, backward))
    layer = np.interp(job.buckets[:, 1] * of_alone[-1], of_alone, np.arange(len(of_alone)))
    due = np.interp(layer, np.arange(len(of_own)), of_own)
    return list(zip(due.tolist(), (part * job.buckets[:, 0]).tolist(), strict=True))


class _Sums:
    """The backward pass, and gradients that are summed beside it as they are there."""

    def __init__(self, chain: _Chain, passes: Passes, due: list[tuple[float, float]]) -> None:
        self._chain, self._passes, self._due = chain, passes, due
        self._done = 0
        self._clock = 0.0
        self._last: tuple[int, ...] = ()

    def compute(self, seconds: float) -> None:
        """A piece of the backward pass, up to each bucket that ends in it."""
        end = self._clock + seconds
        while self._done < len(self._due) and self._due[self._done][0] <= end * (1 + 1e-12):
            self._until(min(self._due[self._done][0], end))
            self._sum()
        self._until(end)

    def _until(self, moment: float) -> None:
        self._chain.compute("backward", max(moment - self._clock, 0.0))
        self._clock = max(moment, self._clock)

    def rest(self) -> None:
        """What is there at the end."""
        while self._done < len(self._due):
            self._sum()

    @property
    def after(self) -> tuple[int, ...]:
        """What the next sum, and the update, come after."""
        return (*self._chain.last, *self._last)

    def _sum(self) -> None:
        nodes, how = self._chain.nodes, (self._passes.summed, self._passes.group)
        nodes.append(Node("gradients", self.after, 0.0, ALL, *how, self._due[self._done][1]))
        self._last = (len(nodes) - 1,)
        self._done += 1
