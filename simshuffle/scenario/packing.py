"""How documents become sequences of equally many tokens, counted document by document."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simshuffle.spec.arrays import Floats, Ints64

LONGEST = 2**40
"""Tokens that a document has at most."""


@dataclass(frozen=True)
class Packed:
    """Sequences, each array (sequences,)."""

    pieces: Ints64  # of documents
    tokens: Ints64  # that are no padding
    squares: Floats  # sum over the pieces of their tokens squared

    def taken(self, which: Ints64) -> Packed:
        """Sequences by their number."""
        return Packed(self.pieces[which], self.tokens[which], self.squares[which])

    def first(self, count: int) -> Packed:
        """At most so many of them, evenly spread."""
        every = max(len(self.pieces) // count, 1)
        return self.taken(np.arange(0, len(self.pieces), every)[:count])


def joined(parts: Sequence[Packed]) -> Packed:
    """All sequences of several packings, one after the other."""
    return Packed(
        np.concatenate([part.pieces for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.squares for part in parts]),
    )


def draw_lengths(rng: np.random.Generator, mean: float, std: float, count: int) -> Ints64:
    """Tokens of ``count`` documents: log-normal, rounded, at least 1."""
    variance = math.log1p((std / mean) ** 2)
    drawn = rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), count)
    return np.rint(drawn).clip(1, LONGEST).astype(np.int64)


def concatenate(lengths: Ints64, room: int) -> Packed:
    """Documents one behind the other, cut every ``room`` tokens; what is left at the end is no
    sequence, unless there is no other."""
    ends = np.cumsum(lengths)
    count = max(int(ends[-1]) // room, 1)
    cuts = np.arange(1, min(count, len(lengths) * 2**10) + 1) * room
    edges = np.union1d(ends[ends < cuts[-1]], cuts)
    sizes = np.diff(edges, prepend=0)
    return _of_pieces(sizes, (edges - 1) // room)


def pad(lengths: Ints64, room: int) -> Packed:
    """One document a sequence, cut off after ``room`` tokens."""
    tokens = np.minimum(lengths, room)
    return _of_pieces(tokens, np.arange(len(tokens)))


def best_fit(lengths: Ints64, room: int) -> Packed:
    """Documents cut every ``room`` tokens; what is left of each, the longest first, goes where the
    least room is left that is enough."""
    full, rest = np.divmod(lengths, room)
    whole = int(full.clip(max=2**10).sum())
    place = _places(np.sort(rest[rest > 0])[::-1].tolist(), room)
    sizes = np.concatenate([np.full(whole, room), np.sort(rest[rest > 0])[::-1]])
    packed = _of_pieces(sizes, np.concatenate([np.arange(whole), place + whole]))
    # whole ones come first: mix them, as those of a file are
    return packed.taken(np.random.default_rng(0).permutation(len(packed.pieces)))


PACKINGS: dict[str, Callable[[Ints64, int], Packed]] = {
    "concatenate": concatenate,
    "pad": pad,
    "best_fit": best_fit,
}


def _places(sizes: list[int], room: int) -> Ints64:
    """The sequence to which each piece goes, in this order."""
    capacities: list[int] = []  # what is left somewhere, ascending
    having: dict[int, list[int]] = defaultdict(list)
    place, count = [], 0
    for size in sizes:
        at = bisect_left(capacities, size)
        if at == len(capacities):
            left, sequence, count = room, count, count + 1
        else:
            left = capacities[at]
            sequence = having[left].pop()
            if not having[left]:
                del capacities[at]
        place.append(sequence)
        rest = left - size
        if rest:
            if not having[rest]:
                insort(capacities, rest)
            having[rest].append(sequence)
    return np.array(place, np.int64)


def _of_pieces(sizes: Ints64, sequence: Ints64) -> Packed:
    """Sequences of pieces of these ``sizes``; ``sequence`` says which each belongs to."""
    squares = sizes.astype(np.float64) ** 2
    return Packed(
        np.bincount(sequence),
        np.bincount(sequence, sizes).astype(np.int64),
        np.bincount(sequence, squares).astype(np.float64),
    )
