"""Read the times from which a recorded loop is replayed: its loads, steps, sends and
handovers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from simshuffle.extensions.doctor.recorder.rows import CODES
from simshuffle.extensions.doctor.replay import LoopTimes, is_busy
from simshuffle.extensions.doctor.rows_by_batch import RowsByBatch
from simshuffle.spec.arrays import Floats

MIN_HANDOVERS = 3
"""Handovers of busy workers, and of idle ones, below which these are not compared
(chosen).
"""


def recorded_times(
    rows: RowsByBatch,
    seconds: Floats,
    recorded_operations: frozenset[str],
    *,
    epoch_bounds: tuple[int, ...],
    settings: Mapping[str, Any],
    notes: list[str],
) -> LoopTimes:
    """Return the times of the loop as it was recorded.

    Where fetches were not recorded, the waits stand for loads without workers, with a
    note. Batches made unseen take the median load. Unknown settings are the workers
    that were seen, and 2 batches ahead of each. Without workers a handover is the part
    of the wait beyond the load.

    Args:
        rows: the rows of the loop.
        seconds: (operations, B, M) s of each operation; in place, collectives that
            were not recorded become the median of the others.
        recorded_operations: operations that have rows.
        epoch_bounds: (E + 1,) index of each epoch's first batch, and B.
        settings: of the loader; {} if not known.
        notes: is extended by sentences on what is not known.
    """
    seconds_of = {operation: seconds[code] for operation, code in CODES.items()}
    step_s, ranks_meet = _steps_without_waits(seconds_of, recorded_operations)
    times = LoopTimes(
        load_s=seconds_of["wait"],
        step_s=step_s,
        worker_start_s=np.zeros((len(epoch_bounds) - 1, 1, rows.shape[1])),
        epoch_bounds=epoch_bounds,
        workers=0,
        prefetch=1,
        ranks_meet=ranks_meet,
    )
    if "fetch" not in recorded_operations:
        notes.append(
            "The loading of batches was not recorded: the record cannot tell why they are late."
        )
        return times

    load_s = seconds_of["fetch"]
    load_start = rows.values_of("fetch", "start_s")
    is_unseen = np.isnan(load_start)
    if is_unseen.any():
        count = int(is_unseen.sum())
        notes.append(
            f"The loading of {count} batches was not recorded: the median stands for it."
        )
        load_s = np.where(
            is_unseen, np.nanmedian(np.where(is_unseen, np.nan, load_s)), load_s
        )

    worker_of_batch = rows.values_of("fetch", "worker")
    workers = int(settings.get("num_workers", np.nanmax(worker_of_batch) + 1))
    prefetch = int(settings.get("prefetch_factor") or 2)
    times = replace(times, load_s=load_s, prefetch=prefetch)
    if not workers:
        return replace(times, handover_s=np.maximum(seconds_of["wait"] - load_s, 0.0))

    wait_start = rows.values_of("wait", "start_s")
    times = replace(
        times,
        workers=workers,
        worker_start_s=_worker_starts(
            load_start, wait_start, worker_of_batch, epoch_bounds, workers
        ),
        in_order=bool(settings.get("in_order", True)),
    )
    wait_end = wait_start + seconds_of["wait"]
    return _add_handover(times, load_start, seconds_of["send"], wait_start, wait_end)


def _add_handover(
    times: LoopTimes,
    load_start: Floats,
    send_s: Floats,
    wait_start: Floats,
    wait_end: Floats,
) -> LoopTimes:
    """Return the times with what sending and taking a batch took, and what workers
    idled.

    A worker sends one batch after the other; ``send_s`` includes its wait for the
    previous send, which the returned times do not. The s that a worker idled between a
    request and its load become a part of the load, if batches are handed out in order;
    below 0, they shorten it, to 0 s at the least. Unknown times are the median. What a
    busy worker adds to a handover is 0 if fewer than `MIN_HANDOVERS` were busy, or
    idle.

    Args:
        times: of the loop, without sends and handovers.
        load_start: (B, M) s at which a worker began a batch; nan if not known.
        send_s: (B, M) s from the end of a load until the batch was sent.
        wait_start: (B, M) s at which the rank began to wait for a batch.
        wait_end: (B, M) s at which the rank had the batch in hand.
    """
    load_end = load_start + times.load_s
    sent_at = load_start + times.load_s + send_s
    handover_start = np.maximum(sent_at, wait_start)
    was_busy = np.zeros(load_start.shape, dtype=bool)
    own_send_s = send_s.copy()
    idle_s = np.zeros(load_start.shape)
    workers = times.workers
    num_ahead = workers * times.prefetch

    for begin, end in pairwise(times.epoch_bounds):
        # batch b and batch b - W are made by one worker; batch b - W * prefetch, once taken, lets
        # batch b be requested: start(b) >= max(load_end(b - W), wait_end(b - W * prefetch))
        later = np.s_[begin + workers : end]
        previous = np.s_[begin : max(end - workers, begin)]
        send_start = np.maximum(load_end[later], sent_at[previous])
        own_send_s[later] = np.maximum(sent_at[later] - send_start, 0.0)

        possible_start = load_end[previous].copy()
        requested_at = wait_end[begin : max(end - num_ahead, begin)]
        after_requests = possible_start[num_ahead - workers :]
        possible_start[num_ahead - workers :] = np.maximum(after_requests, requested_at)
        # below 0 where the rank went on late after a request
        idle_s[later] = load_start[later] - possible_start

        epoch = np.s_[begin:end]
        was_busy[epoch] = is_busy(
            handover_start[epoch], load_start[epoch], load_end[epoch], times
        )

    handover_s = _fill_with_median(np.maximum(wait_end - handover_start, 0.0))
    own_send_s = _fill_with_median(own_send_s)
    idle_s = _fill_with_median(idle_s)
    busy_extra_s = 0.0
    if times.in_order and min(was_busy.sum(), (~was_busy).sum()) >= MIN_HANDOVERS:
        extra_s = handover_s[was_busy].mean() - handover_s[~was_busy].mean()
        busy_extra_s = max(float(extra_s), 0.0)
    return replace(
        times,
        load_s=np.maximum(times.load_s + idle_s, 0.0)
        if times.in_order
        else times.load_s,
        send_s=own_send_s,
        handover_s=handover_s,
        worker_is_busy=was_busy,
        busy_extra_s=busy_extra_s,
    )


def _fill_with_median(values: Floats) -> Floats:
    """Return the values with their median in place of nan; nan if all are."""
    return np.where(np.isnan(values), np.nanmedian(values), values)


def _steps_without_waits(
    seconds_of: Mapping[str, Floats], recorded_operations: frozenset[str]
) -> tuple[Floats, bool]:
    """Return the s of the steps without what a rank waits in them for others, (B, M),
    and whether ranks meet.

    The last rank waits for none, so the shortest of the ranks' collectives is what
    these take. Where only some collectives were recorded, the others become the rank's
    median, at most its step, in place. A single rank meets none, nor do ranks without
    recorded collectives: their steps are returned themselves.

    Args:
        seconds_of: for each operation (B, M) s.
        recorded_operations: operations that have rows.
    """
    step_s = seconds_of["step"]
    collective_s = seconds_of["allreduce"]
    if "allreduce" in recorded_operations:
        is_recorded = (collective_s > 0).all(axis=1)
        median_s = (
            np.median(collective_s[is_recorded], axis=0) if is_recorded.any() else 0.0
        )
        collective_s[~is_recorded] = np.minimum(median_s, step_s[~is_recorded])
    if step_s.shape[1] == 1 or "allreduce" not in recorded_operations:
        return step_s, False
    waited_s = collective_s - collective_s.min(axis=1, keepdims=True)
    return np.maximum(step_s - waited_s, 0.0), True


def _worker_starts(
    load_start: Floats,
    wait_start: Floats,
    worker_of_batch: Floats,
    epoch_bounds: tuple[int, ...],
    num_workers: int,
) -> Floats:
    """Return the s from the request for an epoch's first batch until each worker
    begins, (E, W, M).

    The request is where the rank began to wait; a worker that began before has less
    than 0 s. Workers that were not seen begin at the median of all; all at 0 s if none
    was seen.

    Args:
        load_start: (B, M) s at which a worker began a batch; nan if not known.
        wait_start: (B, M) s at which the rank began to wait for a batch.
        worker_of_batch: (B, M) worker that made a batch.
        epoch_bounds: (E + 1,) index of each epoch's first batch, and B.
        num_workers: W of a rank.
    """
    # (E, M) first wait of each epoch; (B, M) time since that of a batch's own epoch
    epoch_start = np.minimum.reduceat(wait_start, epoch_bounds[:-1])
    since_start = load_start - np.repeat(epoch_start, np.diff(epoch_bounds), axis=0)
    worker_start_s = np.full(
        (len(epoch_bounds) - 1, num_workers, load_start.shape[1]), np.nan
    )
    for epoch, (begin, end) in enumerate(pairwise(epoch_bounds)):
        for worker in range(num_workers):
            is_worker = worker_of_batch[begin:end] == worker
            first_s = np.where(is_worker, since_start[begin:end], np.inf).min(axis=0)
            worker_start_s[epoch, worker] = np.where(
                np.isfinite(first_s), first_s, np.nan
            )
    if np.isnan(worker_start_s).all():
        return np.zeros(worker_start_s.shape)
    return _fill_with_median(worker_start_s)
