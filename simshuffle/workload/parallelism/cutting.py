"""Cuts of a list of layers: into pieces, stages and blocks, and the values that cross a
cut.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise

import numpy as np

from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.workload.layers import INPUT, Layer, LayerList

MIXING = ("conv", "linear")
"""Kinds of layers whose outputs each take all channels of the input."""


def takes_samples(layer: Layer) -> bool:
    """Return True if a layer takes the sample alone, whose gradient nobody needs."""
    return layer.predecessors == (INPUT,)


def piece_starts(seconds: Floats, max_pieces: int | None) -> Ints64:
    """Return the first layers of pieces of about equal time, (pieces,), rising; each
    layer is a piece for None.

    Args:
        seconds: (layers,) s of each; layers count equally if all are 0.
        max_pieces: how many pieces there are at most; there may be fewer, as a long
            layer is not cut.
    """
    count = len(seconds)
    if max_pieces is None or max_pieces >= count:
        return np.arange(count)
    total = float(seconds.sum())
    # the piece of a layer is the one in which the middle of its time lies
    middles = np.cumsum(seconds) - seconds / 2 if total else np.arange(count) + 0.5
    piece = (middles * (max_pieces / (total or count))).astype(np.int64)
    piece = np.minimum(piece, max_pieces - 1)
    return np.flatnonzero(np.diff(piece, prepend=-1))


def stage_starts(seconds: Floats, stages: int) -> list[int]:
    """Return the first layer of each stage, so that the longest stage takes as little
    as it can.

    To a millionth, by bisection. Each stage has one layer at least.

    Args:
        seconds: (layers,) s of each.
        stages: how many there are, at most as many as layers, which is not checked.
    """
    ends = [0.0, *np.cumsum(seconds).tolist()]
    low = max(ends[-1] / stages, float(seconds.max()))
    high = ends[-1]
    best = _fill_stages(ends, stages, high)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        starts = _fill_stages(ends, stages, middle)
        if ends[-1] - ends[starts[-1]] <= middle:
            best = starts
            high = middle
        else:
            low = middle
    return best


def _fill_stages(ends: list[float], stages: int, limit: float) -> list[int]:
    """Return the first layers of stages of which each but the last takes ``limit`` s at
    most.

    Each leaves a layer at least for each stage after it. The last takes all that is
    left, perhaps longer than ``limit``.

    Args:
        ends: (layers + 1,) s at which each layer begins, and the last one ends.
        stages: how many there are.
        limit: s, at least those of the longest layer.
    """
    starts = [0]
    num_layers = len(ends) - 1
    for stages_after in range(stages - 1, 0, -1):
        begin = starts[-1]
        end = bisect_right(ends, ends[begin] + limit * (1 + 1e-12)) - 1
        starts.append(max(min(end, num_layers - stages_after), begin + 1))
    return starts


def crossings(layers: LayerList) -> tuple[Ints64, Ints64]:
    """Count the values and the outputs of one sample that cross each cut between
    layers.

    A cut is before a layer, the last one behind all layers. An output, or the sample,
    that is taken behind a cut several times counts once; outputs that no layer takes
    cross none.

    Returns:
        (layers + 1,) values; and (layers + 1,) outputs.
    """
    # differences from cut to cut, then their sums
    values = np.zeros(len(layers) + 2, dtype=np.int64)
    outputs = np.zeros(len(layers) + 2, dtype=np.int64)
    last_taker: dict[str, int] = {}
    for index, layer in enumerate(layers.layers):
        for name in layer.predecessors:
            last_taker[name] = index
    # name, first cut after it, and values of each output
    sources = [(INPUT, 0, math.prod(layers.input))]
    sources += [
        (layer.name, cut, layer.outputs) for cut, layer in enumerate(layers.layers, 1)
    ]
    for name, first_cut, size in sources:
        last_cut = last_taker.get(name, -1)
        if last_cut >= first_cut:
            values[first_cut] += size
            values[last_cut + 1] -= size
            outputs[first_cut] += 1
            outputs[last_cut + 1] -= 1
    return np.cumsum(values)[:-1], np.cumsum(outputs)[:-1]


def block_starts(layers: LayerList) -> list[int]:
    """Return the first layer of each block, rising, from 0.

    A block may end at a cut that one output alone crosses. The layers up to the next
    such cut belong to it too, unless they mix channels.
    """
    _, outputs = crossings(layers)
    ends = [cut for cut in range(1, len(layers)) if outputs[cut] == 1]
    mixes = [layer.kind in (*MIXING, "attention") for layer in layers.layers]
    starts = [0]
    for first, end in pairwise([*ends, len(layers)]):
        if any(mixes[first:end]) and any(mixes[starts[-1] : first]):
            starts.append(first)
    return starts


def saved_values(
    layers: LayerList, saved_share: Floats, span: tuple[int, int], *, recompute: bool
) -> tuple[float, float]:
    """Count the values that some layers keep of one sample on one GPU.

    Args:
        layers: of the network.
        saved_share: (layers,) share of each layer's saved values that one GPU keeps.
        span: the first of the layers, and the layer after the last.
        recompute: whether only the inputs of blocks are kept.

    Returns:
        Values of every sample whose backward pass is still to come; and values more of
        samples whose backward pass runs, those of the largest block, 0 unless
        ``recompute``.
    """
    first, end = span
    saved = saved_share * [layer.saved for layer in layers.layers]
    if not recompute:
        return float(saved[first:end].sum()), 0.0
    values, _ = crossings(layers)
    inner_starts = [start for start in block_starts(layers) if first < start < end]
    starts = np.array([first, *inner_starts])
    inputs = saved_share[starts] * values[starts]
    blocks = np.add.reduceat(saved[first:end], starts - first)
    return float(inputs.sum()), max(float((blocks - inputs).max()), 0.0)
