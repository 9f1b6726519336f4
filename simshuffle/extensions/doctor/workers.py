"""Change the times of a loop as other workers would, and bound what workers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from simshuffle.extensions.doctor.loop import RecordedLoop
from simshuffle.extensions.doctor.replay import LoopTimes, replay_loop
from simshuffle.spec.arrays import Floats

ALIKE = 0.02
"""Relative spread of bytes a read below which nothing tells requests from bytes
(chosen).
"""
SLOW_BYTES = 20e6
"""Bytes/s below which it is rather requests that cost, where nothing tells (chosen:
disks and shared file systems move 100 MB/s and more, a store answers for 10 kB in some
ms).
"""
HEADER = 8192
"""Bytes that Python reads of a file at once: where no more were seen of each, numpy or
the like read the others (`io.DEFAULT_BUFFER_SIZE`).
"""
AS_GOOD = 0.95
"""Share of the best gain with which fewer workers, or batches ahead, are preferred
(chosen).
"""
HANDOVER_S = 2e-3
"""s that a batch in shared memory takes to be in the loop's hands, whatever is done
(chosen above the 0.6 to 1 ms of two small tensors that an idle worker hands over,
PyTorch 2.13).
"""
COPIED_BYTES_PER_S = 1e9
"""Bytes/s at which a batch goes into shared memory (chosen: one copy by one core, of
pages that are new to it).
"""
FIRST_HANDOVER_S = 1e-3
"""s of the loop that a batch takes to come from a worker, where the loop has made its
batches itself (measured: 0.6 to 1 ms of two small tensors, PyTorch 2.13).
"""
WORKER_COUNTS = (*range(1, 9), 10, 12, 16, 20, 24, 32, 48, 64)
"""Numbers of workers of a rank that are compared (chosen)."""


def shorten(
    times: LoopTimes, load_s: Floats | float = 0.0, step_s: Floats | float = 0.0
) -> LoopTimes:
    """Return the times with loads shorter by ``load_s`` and steps by ``step_s``, (B, M)
    or one value, at least 0 s each.
    """
    return replace(
        times,
        load_s=np.maximum(times.load_s - load_s, 0.0),
        step_s=np.maximum(times.step_s - step_s, 0.0),
    )


def quiet_times(times: LoopTimes) -> LoopTimes:
    """Return the times of the loop whose steps and handovers nothing disturbs: both
    take their 10 % quantile at most, and batches are sent at once.
    """
    quick_step_s = np.quantile(times.step_s, 0.1, axis=0)
    quick_handover_s = np.quantile(times.handover_s, 0.1)
    return replace(
        times,
        step_s=np.minimum(times.step_s, quick_step_s),
        send_s=0.0,
        handover_s=np.minimum(times.handover_s, quick_handover_s),
        busy_extra_s=0.0,
    )


def reduce_computing(loop: RecordedLoop, saved_s: Floats) -> LoopTimes:
    """Return the times of the loop whose workers compute ``saved_s`` less, (B, M).

    Workers that compute less disturb others less. The share of the workers' computing
    that is saved also goes off two waits: that of steps for a core, and that of
    handovers beyond what the loop's own thread computes. Without workers, or where
    their computing is not known, only loads become shorter.
    """
    times = loop.times
    queued_s = np.nan_to_num(loop.sum_of("step", "queued_s"))
    fetch_cpu_s = loop.sum_of("fetch", "cpu_s") + loop.sum_of("fetch", "queued_s")
    total_s = np.nan_to_num(fetch_cpu_s).sum()
    if not times.workers or not total_s:
        return shorten(times, saved_s)

    remaining = 1.0 - min(float(saved_s.sum() / total_s), 1.0)
    loop_cpu_s = np.minimum(
        times.handover_s, np.nan_to_num(loop.sum_of("wait", "cpu_s"))
    )
    less_disturbed = replace(
        times,
        send_s=times.send_s * remaining,
        handover_s=loop_cpu_s + (times.handover_s - loop_cpu_s) * remaining,
        busy_extra_s=times.busy_extra_s * remaining,
    )
    # no thread waits less for a core than the workers have it less
    less_queued_s = np.minimum(queued_s * (1.0 - remaining), saved_s.mean(axis=0))
    return shorten(less_disturbed, saved_s, less_queued_s)


def keep_workers(loop: RecordedLoop) -> LoopTimes:
    """Return the times of the loop that keeps its first epoch's workers in all epochs,
    in which nothing is new to them: later epochs start at once, their first loads take
    the median at most, and no epoch but the last waits for workers to end.

    The loop must have two epochs or more.
    """
    times = loop.times
    worker_start_s = times.worker_start_s.copy()
    step_s = times.step_s.copy()
    load_s = times.load_s.copy()
    later_epochs = times.epoch_bounds[1:-1]

    worker_start_s[1:] = np.minimum(worker_start_s[1:], 0.0)
    median_load_s = np.median(load_s, axis=0)
    for begin in later_epochs:
        # the first batch of each worker is one of the epoch's first W
        first_loads = np.s_[begin : begin + times.workers]
        load_s[first_loads] = np.minimum(load_s[first_loads], median_load_s)
    step_s[np.array(later_epochs) - 1] -= loop.epoch_end_s[:-1]
    return replace(times, worker_start_s=worker_start_s, step_s=step_s, load_s=load_s)


def cpu_s_of_batch(loop: RecordedLoop) -> float:
    """Return the mean s of a core that a batch takes, in its worker and in the loop;
    nan if that of one batch or more is not known.

    Without workers, the wait has what the loop computes for a batch.
    """
    worker_s = loop.sum_of("fetch", "cpu_s") + np.nan_to_num(
        loop.sum_of("send", "cpu_s")
    )
    if loop.own_cores is not None:  # of all threads of the rank's process
        rank_s = loop.own_cores * loop.measured_batch_s
        return float((worker_s * (loop.times.workers > 0) + rank_s).mean())
    if not loop.times.workers:  # the loop makes its batches while it waits
        worker_s = loop.sum_of("wait", "cpu_s")
    return float((worker_s + loop.sum_of("step", "cpu_s")).mean())


def computed_share(loop: RecordedLoop) -> float:
    """Return the share of their fetches in which workers compute, or could if they had
    a core; a fetch of which that is not known counts as one without computing.
    """
    computed_s = loop.sum_of("fetch", "cpu_s") + np.nan_to_num(
        loop.sum_of("fetch", "queued_s")
    )
    fetch_s = float(loop.sum_of("fetch").sum())
    return float(np.nan_to_num(computed_s).sum()) / fetch_s if fetch_s > 0 else 0.0


def add_workers(loop: RecordedLoop, max_workers: int) -> LoopTimes | None:
    """Return the times of the loop with more workers; None if no number of workers
    gains anything, or none of `WORKER_COUNTS` lies above the present number and up to
    ``max_workers``.

    Chosen are the fewest workers that gain nearly what the best number up to
    ``max_workers`` does. What workers share does not get faster: where it takes longer
    for a batch than they would, their loads take that much longer.
    """
    times = loop.times
    batch_s = float(replay_loop(times).mean())
    min_batch_s = shared_s_of_batch(loop)
    candidates = []
    for workers in WORKER_COUNTS:
        if times.workers < workers <= max_workers:
            candidate = _hand_over(loop, times.change_workers(workers))
            mean_load_s = max(float(candidate.load_s.mean()), 1e-300)
            factor = max(1.0, min_batch_s * workers / mean_load_s)
            candidates.append(replace(candidate, load_s=candidate.load_s * factor))
    return first_nearly_best(batch_s, candidates)


def _hand_over(loop: RecordedLoop, times: LoopTimes) -> LoopTimes:
    """Return the times of a loop that gets workers, with what handing batches over
    takes; as they are if it has some.
    """
    if loop.times.workers:
        return times
    nbytes = loop.sum_of("collate", "nbytes").mean()
    return replace(
        times,
        handover_s=times.handover_s + FIRST_HANDOVER_S,
        load_s=times.load_s + nbytes / COPIED_BYTES_PER_S,
    )


def shared_s_of_batch(loop: RecordedLoop) -> float:
    """Return the s of a batch below which no number of workers gets; 0 if nothing is
    known of what they share.

    The longest of three: of the cores for what is computed, of the device for its bytes
    (as if the present readers had all of it), and of a lock. What is not known of these
    counts as 0 s; so does a lock of a single worker.
    """
    cpu_s = cpu_s_of_batch(loop)
    workers = max(loop.times.workers, 1)
    cores_s = cpu_s / loop.cores if loop.cores and np.isfinite(cpu_s) else 0.0
    device_s = float(split_reading(loop).device_s.mean()) / workers
    # with all W waiting for one lock, each waits for the W - 1 others
    lock_s = float(loop.sum_of("lock").mean()) / (workers - 1) if workers > 1 else 0.0
    return max(cores_s, device_s, lock_s)


def first_nearly_best(
    batch_s: float, candidates: Sequence[LoopTimes]
) -> LoopTimes | None:
    """Return the first candidate that gains at least `AS_GOOD` of what the best does;
    None if none gains, or there is none.

    Args:
        batch_s: mean s of a batch of the loop as it is.
        candidates: the loop with changes, the cheapest first.
    """
    gains = batch_s - np.array(
        [replay_loop(candidate).mean() for candidate in candidates]
    )
    if not len(gains) or gains.max() <= 0:
        return None
    return candidates[int(np.argmax(gains >= AS_GOOD * gains.max()))]


class ReadingSeconds(NamedTuple):
    """Seconds of the reads of each batch, (B, M) each, and whether their sizes vary."""

    request_s: Floats  # for requests, whatever they bring
    cached_s: Floats  # for bytes that were in memory
    device_s: Floats  # for bytes from the device
    sizes_vary: bool = (
        True  # whether sizes vary, so that requests and bytes are told apart
    )


def split_reading(loop: RecordedLoop) -> ReadingSeconds:
    """Split the seconds of reads among requests and bytes, by least squares over the
    batches; the three parts of a batch add up to its reads.

    Where all reads bring as many bytes, they are all requests if slower than
    `SLOW_BYTES`, else all bytes. Files whose headers alone were seen count in full.
    Bytes of which the device is not known count as from memory. Batches without reads
    have 0 s.
    """
    read_s = loop.sum_of("read")
    count = loop.sum_of("read", "count")
    nbytes = loop.sum_of("read", "nbytes")
    if loop.mean_file_nbytes is not None:
        opened = loop.sum_of("open", "count")
        nbytes = np.where(
            nbytes <= HEADER * opened, opened * loop.mean_file_nbytes, nbytes
        )
    device_nbytes = np.minimum(
        np.nan_to_num(loop.sum_of("read", "disk_nbytes")), nbytes
    )
    has_reads = read_s > 0
    if not has_reads.any():
        zeros = np.zeros(read_s.shape)
        return ReadingSeconds(zeros, zeros, zeros)

    # design matrix: a row for each batch with reads; columns requests, bytes from memory, bytes
    # from the device; read_s = matrix @ costs, costs >= 0, relative errors weigh alike
    quantities = (count, nbytes - device_nbytes, device_nbytes)
    matrix = np.stack([quantity[has_reads] for quantity in quantities], axis=1)
    nbytes_a_read = nbytes[has_reads] / np.maximum(count[has_reads], 1)
    sizes_vary = bool(nbytes_a_read.std() > ALIKE * nbytes_a_read.mean())
    if not sizes_vary:
        bytes_per_s = np.quantile(nbytes[has_reads] / read_s[has_reads], 0.9)
        matrix[:, slice(1, 3) if bytes_per_s < SLOW_BYTES else 0] = 0.0
    relative_matrix = matrix / read_s[has_reads][:, None]
    costs = nnls(relative_matrix, np.ones(len(matrix)))[0]

    # shares of the three columns in each row, scaled to what the reads took
    parts = matrix * costs
    fitted_s = parts.sum(axis=1, keepdims=True)
    shares = np.where(
        fitted_s > 0, parts / np.where(fitted_s > 0, fitted_s, 1.0), 1 / 3
    )
    seconds = np.zeros((3, *read_s.shape))
    seconds[:, has_reads] = shares.T * read_s[has_reads]
    return ReadingSeconds(seconds[0], seconds[1], seconds[2], sizes_vary)
