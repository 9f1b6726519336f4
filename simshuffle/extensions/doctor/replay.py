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

from simshuffle.job.plan.prefetching import play
from simshuffle.spec.arrays import Flags, Floats

NS = 1e-9
"""s that clocks tell apart."""
ROUNDS = 4
"""How often it is asked anew whether workers are busy when they hand over (chosen: after two that
seldom changes)."""


@dataclass(frozen=True)
class Way:
    """A way that the loops of M ranks could go, over B batches of all epochs one after another."""

    load: Floats  # (B, M) s of a worker for a batch; of the rank itself where it has none
    step: Floats  # (B, M) s from a batch that is there until the next is asked for
    begin: Floats  # (E, W, M) s from when an epoch's first batch is asked for until workers begin
    first: tuple[int, ...]  # (E + 1,) places of the epochs' first batches, and B
    workers: int  # W of a rank; 0 for none
    prefetch: int  # batches that each worker has been asked for ahead
    # (B, M) s in which a batch is sent, while its worker goes on
    sending: Floats | float = 0.0
    # (B, M) s in which the rank gets in hand what was sent; whether the worker was busy then with
    # another batch, and s that it takes more if so: a worker answers for tensors in shared memory
    # between what else it does (torch/multiprocessing/reductions.py)
    handover: Floats | float = 0.0
    busy: Flags | bool = False
    more: float = 0.0
    in_order: bool = True  # whether batches are handed out as they were asked for
    met: bool = True  # whether ranks wait for one another at the end of every step

    def with_workers(self, workers: int) -> Way:
        """The same with as many workers; what they take stays, and those that are new begin as the
        others do."""
        like = np.arange(max(workers, 1)) % self.begin.shape[1]
        return replace(self, workers=workers, begin=self.begin[:, like])


def elapsed(way: Way) -> Floats:
    """s that every batch takes, (B, M): from the end of the step before, or at the beginning of an
    epoch from when it is asked for, to the end of its own step."""
    return together([way])[:, 0]


def together(ways: Sequence[Way]) -> Floats:
    """As `elapsed` for N ways with as many workers that do as much ahead: (B, N, M)."""
    one, shape = ways[0], ways[0].load.shape
    load, step, sending, handover, busy = (
        np.stack([np.broadcast_to(getattr(way, of), shape) for way in ways], axis=1)
        for of in ("load", "step", "sending", "handover", "busy")
    )
    begins = (*one.begin.shape[:2], shape[1])
    begin = np.stack([np.broadcast_to(way.begin, begins) for way in ways], axis=2)
    out = np.empty(load.shape)
    for epoch, (low, high) in enumerate(pairwise(one.first)):
        part = np.s_[low:high]
        if one.in_order or not one.workers:
            parts = (load[part], step[part], sending[part], handover[part], busy[part])
            out[part] = _in_order(one, *parts, begin[epoch])
        else:
            for n in range(len(ways)):
                loads, steps = load[part, n] + sending[part, n], handover[part, n] + step[part, n]
                rows = list(zip(loads, steps, strict=True))
                out[part, n] = list(_first_come(one, rows, begin[epoch, :, n]))
    return out


def _in_order(
    way: Way,
    load: Floats,
    step: Floats,
    sending: Floats,
    handover: Floats,
    busy: Flags,
    begin: Floats,
) -> Floats:
    """`together` of one epoch."""
    if not way.met:  # as if each rank was the only one
        load, step, sending, handover, begin = (
            of[..., None] for of in (load, step, sending, handover, begin)
        )
        busy = busy[..., None]
    prefetch = max(way.workers, 1) * way.prefetch
    took, now = handover, busy
    for _ in range(ROUNDS if way.more else 1):
        took = np.maximum(handover + way.more * (now.astype(float) - busy), 0.0)
        found = play(load, step, way.workers, prefetch, begin=begin, sending=sending, handover=took)
        before, now = now, is_busy(found.taken - took, found.end - load, found.end, way)
        if (before == now).all():
            break
    over = np.broadcast_to(found.over[..., None], load.shape)
    return np.diff(over if way.met else over[..., 0], axis=0, prepend=0.0)


def is_busy(at: Floats, start: Floats, end: Floats, way: Way) -> Flags:
    """Whether the workers that made the batches of an epoch, (B, ...), make another one at a time,
    if they make each from start to end."""
    out = np.zeros(at.shape, dtype=bool)
    for turn in range(1, way.prefetch + 1):
        later = turn * way.workers
        if 0 < later < len(at):
            out[:-later] |= (start[later:] <= at[:-later] + NS) & (at[:-later] < end[later:])
    return out


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
