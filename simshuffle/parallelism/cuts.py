"""Where a list of layers may be cut: into pieces of about equal time, stages, and blocks."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise

import numpy as np

from simshuffle.layers import INPUT, Layer, LayerList
from simshuffle.spec.arrays import Floats, Ints64

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
    sample whose backward pass is still to come; and values more of the samples whose backward pass
    runs.

    One GPU keeps the part ``kept``, (layers,), of what a layer saves. With ``recompute`` only the
    inputs of blocks are kept, and the rest is computed again block by block.
    """
    saved = kept * [layer.saved for layer in layers.layers]
    if not recompute:
        return float(saved[first:last].sum()), 0.0
    values, _ = crossings(layers)
    inner = [start for start in block_starts(layers) if first < start < last]
    starts = np.array([first, *inner])
    inputs = kept[starts] * values[starts]
    blocks = np.add.reduceat(saved[first:last], starts - first)
    return float(inputs.sum()), max(float((blocks - inputs).max()), 0.0)
