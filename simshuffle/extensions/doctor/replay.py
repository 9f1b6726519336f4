"""Replay the loop of a training from the times that its workers and steps take, or
would take.

Which worker makes which batch, and when the batch is requested:
torch/utils/data/dataloader.py of PyTorch 2.6, `_BaseDataLoaderIter._try_put_index`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from simshuffle.job.plan.prefetching import play_loops
from simshuffle.spec.arrays import Flags, Floats

NS = 1e-9
"""Resolution of the clocks, s."""
ROUNDS = 4
"""Times that a replay is repeated at most until the same workers are busy at their
handovers (chosen: after two rounds that seldom changes).
"""


@dataclass(frozen=True)
class LoopTimes:
    """Times from which the loops of M ranks are replayed, over B batches of E epochs in
    a row.
    """

    load_s: Floats  # (B, M) s of a worker for a batch; of the rank itself where it has no worker
    step_s: Floats  # (B, M) s from a batch in hand until the next batch is requested
    # (E, W, M) s from the request for an epoch's first batch until each worker begins
    worker_start_s: Floats
    epoch_bounds: tuple[int, ...]  # (E + 1,) index of each epoch's first batch, and B
    workers: int  # W of a rank; 0 for none
    prefetch: int  # batches that are requested ahead of each worker
    # (B, M) s in which a finished batch is sent, while its worker goes on
    send_s: Floats | float = 0.0
    # (B, M) s in which the rank takes a batch that was sent
    handover_s: Floats | float = 0.0
    # (B, M) whether the worker of a batch was busy with another batch at the handover
    worker_is_busy: Flags | bool = False
    # s that a handover takes longer if the worker is busy: a worker answers requests for tensors in
    # shared memory between its other work (torch/multiprocessing/reductions.py)
    busy_extra_s: float = 0.0
    in_order: bool = (
        True  # whether batches are handed out in the order of their requests
    )
    ranks_meet: bool = (
        True  # whether ranks wait for one another at the end of every step
    )

    def change_workers(self, workers: int) -> LoopTimes:
        """Return the times with ``workers`` workers of each rank.

        Loads stay as they are. Additional workers begin as the existing ones do, in
        turn. With 0, the rank itself loads.
        """
        like_worker = np.arange(max(workers, 1)) % self.worker_start_s.shape[1]
        return replace(
            self, workers=workers, worker_start_s=self.worker_start_s[:, like_worker]
        )


def replay_loop(times: LoopTimes) -> Floats:
    """Return the s that every batch takes, (B, M), up to the end of its step.

    A batch begins at the end of the previous step; an epoch's first batch when it is
    requested. Where ranks meet, a step ends on all ranks with the slowest one.
    """
    return replay_loops([times])[:, 0]


def replay_loops(candidates: Sequence[LoopTimes]) -> Floats:
    """Return the s that every batch takes in N loops, (B, N, M), as `replay_loop` does
    for one.

    Args:
        candidates: N loops with equal epochs, workers, prefetch and order of batches,
            and equal ``ranks_meet`` and ``busy_extra_s``: those of the first count.
    """
    first = candidates[0]
    shape = first.load_s.shape

    # (B, N, M) each
    load_s, step_s, send_s, handover_s, worker_is_busy = (
        np.stack(
            [np.broadcast_to(getattr(times, name), shape) for times in candidates],
            axis=1,
        )
        for name in ("load_s", "step_s", "send_s", "handover_s", "worker_is_busy")
    )
    # (E, W, N, M)
    start_shape = (*first.worker_start_s.shape[:2], shape[1])
    worker_start_s = np.stack(
        [np.broadcast_to(times.worker_start_s, start_shape) for times in candidates],
        axis=2,
    )

    batch_s = np.empty(load_s.shape)
    for epoch, (begin, end) in enumerate(pairwise(first.epoch_bounds)):
        batches = np.s_[begin:end]
        if first.in_order or not first.workers:
            batch_s[batches] = _replay_in_order(
                first,
                load_s=load_s[batches],
                step_s=step_s[batches],
                send_s=send_s[batches],
                handover_s=handover_s[batches],
                was_busy=worker_is_busy[batches],
                worker_start_s=worker_start_s[epoch],
            )
            continue
        for index in range(len(candidates)):
            loads = load_s[batches, index] + send_s[batches, index]
            steps = handover_s[batches, index] + step_s[batches, index]
            loads_and_steps = list(zip(loads, steps, strict=True))
            starts = worker_start_s[epoch, :, index]
            batch_s[batches, index] = list(
                _replay_as_made(first, loads_and_steps, starts)
            )
    return batch_s


def _replay_in_order(
    times: LoopTimes,
    *,
    load_s: Floats,
    step_s: Floats,
    send_s: Floats,
    handover_s: Floats,
    was_busy: Flags,
    worker_start_s: Floats,
) -> Floats:
    """Return the s of each batch of one epoch, (B, N, M), handed out in the order of
    requests.

    Args:
        times: the workers, prefetch, meetings and ``busy_extra_s`` of all N loops.
        load_s, step_s, send_s, handover_s: (B, N, M) s of this epoch.
        was_busy: (B, N, M) whether workers were busy at the recorded handovers. Where
            they are no longer, a handover takes less time; where they now are, more.
        worker_start_s: (W, N, M) s at which each worker begins.
    """
    if (
        not times.ranks_meet
    ):  # each rank is replayed as if it were the only one: (B, N, M, 1)
        load_s, step_s, send_s, handover_s, worker_start_s = (
            array[..., None]
            for array in (load_s, step_s, send_s, handover_s, worker_start_s)
        )
        was_busy = was_busy[..., None]
    prefetch = max(times.workers, 1) * times.prefetch

    actual_handover_s = handover_s
    is_now_busy = was_busy
    for _ in range(ROUNDS if times.busy_extra_s else 1):
        more_busy = is_now_busy.astype(float) - was_busy
        actual_handover_s = np.maximum(handover_s + times.busy_extra_s * more_busy, 0.0)
        played = play_loops(
            load_s,
            step_s,
            times.workers,
            prefetch,
            begin=worker_start_s,
            sending=send_s,
            handover=actual_handover_s,
        )
        previously_busy = is_now_busy
        handover_start = played.batch_taken - actual_handover_s
        is_now_busy = is_busy(
            handover_start, played.batch_made - load_s, played.batch_made, times
        )
        if (previously_busy == is_now_busy).all():
            break

    step_end = np.broadcast_to(played.step_ended[..., None], load_s.shape)
    return np.diff(
        step_end if times.ranks_meet else step_end[..., 0], axis=0, prepend=0.0
    )


def is_busy(moment: Floats, start: Floats, end: Floats, times: LoopTimes) -> Flags:
    """Return whether the worker that made a batch makes another one at a moment, (B,
    ...); False without workers.

    Args:
        moment: (B, ...) s, one for each batch of an epoch.
        start, end: (B, ...) s at which the worker of each batch begins and ends making
            it.
        times: the workers and the prefetch; batches beyond the prefetch do not count.
    """
    busy = np.zeros(moment.shape, dtype=bool)
    for turn in range(1, times.prefetch + 1):
        # batch b + turn * W is made by the worker that made batch b
        offset = turn * times.workers
        if 0 < offset < len(moment):
            has_begun = start[offset:] <= moment[:-offset] + NS
            busy[:-offset] |= has_begun & (moment[:-offset] < end[offset:])
    return busy


class _WorkerPool:
    """The workers of one rank, which hand out batches as they finish them."""

    def __init__(self, times: LoopTimes, worker_start_s: Floats) -> None:
        self.idle_at_s = (
            worker_start_s.tolist()
        )  # (W,) s at which a worker has done all requests
        self.num_requests = [
            0
        ] * times.workers  # batches requested of each, and not taken
        self.max_requests = times.prefetch
        self.next_worker = 0
        self.finished = list[tuple[float, int]]()  # heap of (s at the end, worker)

    def request_batch(self, moment: float, load_s: float) -> None:
        """Request a batch of the next worker in turn that has fewer than the most
        requests. There must be one: else this never returns.

        Args:
            moment: s of the request.
            load_s: s that the worker takes for the batch, after all that were requested
                of the worker before.
        """
        num_workers = len(self.num_requests)
        while self.num_requests[self.next_worker] >= self.max_requests:
            self.next_worker = (self.next_worker + 1) % num_workers
        worker = self.next_worker
        self.next_worker = (worker + 1) % num_workers

        self.num_requests[worker] += 1
        self.idle_at_s[worker] = max(self.idle_at_s[worker], moment) + load_s
        heapq.heappush(self.finished, (self.idle_at_s[worker], worker))

    def take_batch(self) -> float:
        """Take, of the batches requested, the one that is finished first, and return
        the s at which it is finished.
        """
        end, worker = heapq.heappop(self.finished)
        self.num_requests[worker] -= 1
        return end


def _replay_as_made(
    times: LoopTimes,
    loads_and_steps: Sequence[tuple[Floats, Floats]],
    worker_start_s: Floats,
) -> Iterator[Floats]:
    """Yield the s of each batch of one epoch, (M,), handed out as batches are finished.

    Args:
        times: the workers, prefetch and meetings.
        loads_and_steps: for each batch (M,) s of its load and (M,) s of its step. Loads
            belong to the order of requests, steps to that in which batches are taken.
        worker_start_s: (W, M) s at which each worker begins.
    """
    num_ranks = worker_start_s.shape[1]
    pools = [_WorkerPool(times, worker_start_s[:, rank]) for rank in range(num_ranks)]
    num_ahead = min(times.workers * times.prefetch, len(loads_and_steps))
    for load_s, _ in loads_and_steps[:num_ahead]:
        for pool, seconds in zip(pools, load_s.tolist(), strict=True):
            pool.request_batch(-np.inf, seconds)

    previous_end = np.zeros(num_ranks)
    for index, (_, step_s) in enumerate(loads_and_steps):
        taken_at = np.maximum([pool.take_batch() for pool in pools], previous_end)
        if index + num_ahead < len(loads_and_steps):
            requested_loads = loads_and_steps[index + num_ahead][0]
            for pool, moment, seconds in zip(
                pools, taken_at, requested_loads, strict=True
            ):
                pool.request_batch(float(moment), float(seconds))
        step_end = taken_at + step_s
        if times.ranks_meet:
            step_end = np.full(num_ranks, step_end.max())
        yield step_end - previous_end
        previous_end = step_end
