"""The loop of a training replayed: when its batches are there, and when it goes on, if workers and
steps take what they took, or something else.

Which worker makes which batch, and when it is asked for: torch/utils/data/dataloader.py of PyTorch
2.6, `_BaseDataLoaderIter._try_put_index`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from simshuffle.plan.prefetching import taken
from simshuffle.spec.arrays import Floats


@dataclass(frozen=True)
class Way:
    """A way that the loops of M ranks could go, over B batches of all epochs one after another."""

    load: Floats  # (B, M) s of a worker for a batch; of the rank itself where it has none
    step: Floats  # (B, M) s from a batch that is there until the next is asked for
    begin: Floats  # (E, W, M) s from when an epoch's first batch is asked for until workers begin
    first: tuple[int, ...]  # (E + 1,) places of the epochs' first batches, and B
    workers: int  # W of a rank; 0 for none
    prefetch: int  # batches that each worker has been asked for ahead
    in_order: bool = True  # whether batches are handed out as they were asked for
    met: bool = True  # whether ranks wait for one another at the end of every step

    def with_workers(self, workers: int) -> Way:
        """The same with as many workers; what they take stays, and those that are new begin as the
        others do."""
        like = np.arange(max(workers, 1)) % self.begin.shape[1]
        begin = self.begin[:, like] if self.workers else np.zeros((len(self.first) - 1, 1, 1))
        return replace(self, workers=workers, begin=begin, prefetch=self.prefetch or 2)


def elapsed(way: Way) -> Floats:
    """s that every batch takes, (B, M): from the end of the step before, or at the beginning of an
    epoch from when it is asked for, to the end of its own step."""
    return together([way])[:, 0]


def together(ways: Sequence[Way]) -> Floats:
    """As `elapsed` for N ways that differ in load, step and begin alone: (B, N, M)."""
    one = ways[0]
    load, step = (np.stack(of, axis=1) for of in ([w.load for w in ways], [w.step for w in ways]))
    shape = (*one.begin.shape[:2], load.shape[-1])
    begin = np.stack([np.broadcast_to(w.begin, shape) for w in ways], axis=2)
    out = np.empty(load.shape)
    for epoch, (low, high) in enumerate(pairwise(one.first)):
        part = np.s_[low:high]
        if one.in_order or not one.workers:
            out[part] = _in_order(one, load[part], step[part], begin[epoch])
        else:
            for n in range(len(ways)):
                rows = zip(load[part, n], step[part, n], strict=True)
                out[part, n] = list(_first_come(one, list(rows), begin[epoch, :, n]))
    return out


def _in_order(way: Way, load: Floats, step: Floats, begin: Floats) -> Floats:
    """`together` of one epoch."""
    prefetch = max(way.workers, 1) * way.prefetch
    if way.met:
        _, over = taken(load, step, way.workers, prefetch, begin)
        over = np.broadcast_to(over[..., None], load.shape)
    else:
        alone = load[..., None], step[..., None]
        _, over = taken(alone[0], alone[1], way.workers, prefetch, begin[..., None])
    return np.diff(over, axis=0, prepend=0.0)


class _Workers:
    """Of a rank, which hand out batches as they come."""

    def __init__(self, way: Way, begin: Floats) -> None:
        self.free = begin.tolist()  # s at which each is done with all that it is asked for
        self.asked, self.most = [0] * way.workers, way.prefetch
        self.next, self.done = 0, list[tuple[float, int]]()

    def ask(self, at: float, load: float) -> None:
        """For a batch: the next worker in turn that has fewer than it may have."""
        while self.asked[self.next] >= self.most:
            self.next = (self.next + 1) % len(self.asked)
        worker, self.next = self.next, (self.next + 1) % len(self.asked)
        self.asked[worker] += 1
        self.free[worker] = max(self.free[worker], at) + load
        heapq.heappush(self.done, (self.free[worker], worker))

    def take(self) -> float:
        """s at which the first batch is there that has not been taken."""
        end, worker = heapq.heappop(self.done)
        self.asked[worker] -= 1
        return end


def _first_come(
    way: Way, batches: Sequence[tuple[Floats, Floats]], begin: Floats
) -> Iterator[Floats]:
    """(M,) s that each batch of an epoch takes, of loads and steps (M,), begins (W, M)."""
    ranks = [_Workers(way, begin[:, rank]) for rank in range(begin.shape[1])]
    ahead = min(way.workers * way.prefetch, len(batches))
    for load, _ in batches[:ahead]:
        for rank, seconds in zip(ranks, load.tolist(), strict=True):
            rank.ask(-np.inf, seconds)
    over = np.zeros(len(ranks))
    for place, (_, step) in enumerate(batches):
        found = np.maximum([rank.take() for rank in ranks], over)
        if place + ahead < len(batches):
            for rank, at, seconds in zip(ranks, found, batches[place + ahead][0], strict=True):
                rank.ask(float(at), float(seconds))
        after = found + step
        after = np.full(len(ranks), after.max()) if way.met else after
        yield after - over
        over = after
