"""Find what may make a loop faster: each candidate is the times of the loop with that
change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simshuffle.extensions.doctor.causes import SAMPLE_CODE, UNTOLD
from simshuffle.extensions.doctor.loop import RecordedLoop
from simshuffle.extensions.doctor.narrow_causes import MOSTLY
from simshuffle.extensions.doctor.places import is_of_torch, main_place
from simshuffle.extensions.doctor.quiet import COMPUTING_PARTS
from simshuffle.extensions.doctor.repeated_work import ANEW, repeated_work
from simshuffle.extensions.doctor.replay import LoopTimes, replay_loop
from simshuffle.extensions.doctor.start_causes import EVALUATION, STARTS
from simshuffle.extensions.doctor.workers import (
    add_workers,
    computed_share,
    cpu_s_of_batch,
    first_nearly_best,
    keep_workers,
    quiet_times,
    shorten,
)

MAX_PREFETCH = 32
"""Batches ahead of each worker that are tried at most (chosen; torch takes 2)."""
MAX_WORKERS = 64
"""Workers of a rank that are tried at most (chosen)."""
QUIET_SHARE = 0.5
"""Share of what steps and handovers gain where workers compute less, that is expected
(chosen: of nine such mends seven gained more than the replay with equal steps).
"""
MAX_CACHE_SHARE = 0.5
"""Share of the memory that a cache may fill (chosen: the training needs the remainder)."""


@dataclass(frozen=True)
class RemedyCandidate:
    """The times of a loop with one change that may make it faster."""

    name: str  # of the change
    times: LoopTimes  # with it
    cost: str  # cores, bytes, a change of code
    change: Mapping[str, Any] | None = (
        None  # settings for the recorder; None if it cannot make the change
    )
    assumption_free_share: float = (
        1.0  # share of the gain that remains if assumptions do not hold
    )
    # times if nothing that is assumed holds the loop up; None: they are ``times``
    best_times: LoopTimes | None = None
    # share of what ``best_times`` gain more that is expected: of computing that disturbs steps
    quiet_share: float = 0.0
    cause: str = ""  # that the change is against; '' where it may help against several

    @property
    def limit(self) -> str:
        """Name of what takes longest of a batch after the change: the steps, what
        workers share, the workers, or loads and steps in turn.
        """
        workers = self.times.workers
        load_s = float(self.times.load_s.mean())
        step_s = float(self.times.step_s.mean())
        if not workers:
            return "loads and steps, in turn"
        if load_s / workers <= step_s:
            return "the steps"
        if self.best_times is not None and load_s > self.best_times.load_s.mean():
            return "what workers share"
        return f"the {workers} worker{'s' * (workers > 1)}"


_CODE = "a change of code"
# for each cause the change, its cost, and the share of the gain that remains if assumptions do not
# hold
_CURES: Mapping[str, tuple[str, str, float]] = {
    "opens": ("store samples in shards, many in a file", "the data written again", 0.8),
    "latency": ("read in larger requests, or several at a time", _CODE, 0.5),
    "bandwidth": (
        "keep the data on a faster disk, or make it smaller",
        "a disk that holds the data",
        0.5,
    ),
    "page cache": ("shuffle partially, or in shards that stay", "another order", 0.5),
    "decode": ("decode on the accelerator, or store samples decoded", _CODE, 0.5),
    "transform": ("transform whole batches, or on the accelerator", _CODE, 0.5),
    "collate": ("put batches together in one array", _CODE, 0.5),
    "send": ("hand over fewer, smaller tensors", _CODE, 0.5),
    "lock": ("open a handle for each worker", _CODE, 0.5),
    "slow worker": (
        "give the slow worker what its peers have",
        "a look at its core and path",
        0.8,
    ),
    "slow sample": (
        "make the slow samples smaller, or leave them out",
        "some samples",
        0.8,
    ),
    "loader dips": ("open the next shard ahead, or mix shards", _CODE, 0.5),
    "loop dips": ("save or log less often, or beside the loop", _CODE, 0.8),
    "straggler rank": ("take the slow host out", "a spare host", 0.8),
    "gil": ("move Python work out of the loop's process", _CODE, 0.0),
    "allreduce": (
        "sum gradients and update every fourth batch",
        "batches four times larger",
        0.5,
    ),
    "cores": ("fewer threads than cores", "slower steps, if these need them", 0.0),
    EVALUATION: ("evaluate less often, or on fewer batches", "fewer results", 0.8),
    STARTS: ("do the work at an epoch's start once, or ahead", _CODE, 0.5),
    "copy": ("hand over data that need not be converted", _CODE, 0.5),
}


def candidate_remedies(
    loop: RecordedLoop, times_without: Mapping[str, LoopTimes], causes: Sequence[str]
) -> list[RemedyCandidate]:
    """Return what may help against the causes of a slow loop; [] without causes.

    Settings of the loader and caches are tried whatever the causes are, if fetches were
    recorded. The candidates are not in the order of their gains, and may gain nothing.

    Args:
        loop: without the waits that other programs caused.
        times_without: the times of the loop without each possible cause, by its name.
        causes: names of the causes that cost time, all of them in ``times_without``.
    """
    candidates = []
    for cause in causes:
        candidate = _remedy_of_cause(loop, times_without[cause], cause)
        if candidate is not None:
            candidates.append(candidate)
    if causes:
        candidates += _use_more_cores(loop, times_without)
    if causes and loop.fetches_recorded:
        candidates += [
            *_use_more_workers(loop, causes),
            *_change_settings(loop),
            *_keep_in_memory(loop, causes),
        ]
    return candidates


def _remedy_of_cause(
    loop: RecordedLoop, times: LoopTimes, cause: str
) -> RemedyCandidate | None:
    """Return the remedy that is against one cause alone; None if there is none.

    Args:
        loop: without the waits that other programs caused.
        times: of the loop without the cause.
        cause: name of the cause.
    """
    if cause == "copy" and loop.device != "cpu":
        return RemedyCandidate(
            name="pin memory, and copy without blocking",
            times=times,
            cost="memory that is not swapped",
            change=_loader_settings(pin_memory=True),
            assumption_free_share=0.5,
            cause=cause,
        )
    if cause == "cores":
        threads = _spare_cores(loop)
        if threads < loop.threads:
            return RemedyCandidate(
                name=f"{threads} thread{'s' * (threads > 1)} of torch, not {loop.threads}",
                times=times,
                cost="slower steps, if these need them",
                change={"torch_threads": threads},
                assumption_free_share=0.0,
                best_times=crowded_steps(loop, times),
                quiet_share=QUIET_SHARE,
                cause=cause,
            )
        if loop.threads <= 1:
            return None  # the loop has no thread to spare; `_use_more_cores` names more cores
    if cause in {ANEW, UNTOLD, SAMPLE_CODE}:
        return _remedy_of_code(loop, times, cause)
    if cause in _CURES:
        name, cost, share = _CURES[cause]
        place = main_place(loop, "collate") if cause == "collate" else None
        if place and not is_of_torch(place):
            name = f"{_advice(place.calls) or 'do it once, before the training'}: {place.where}"
        if cause == "allreduce":
            times = _sum_every_fourth(loop)
        return RemedyCandidate(
            name,
            times,
            cost,
            assumption_free_share=share,
            best_times=quiet_times(times) if cause in _COMPUTING else None,
            quiet_share=QUIET_SHARE if cause in _COMPUTING else 0.0,
            cause=cause,
        )
    return None


def _remedy_of_code(
    loop: RecordedLoop, times: LoopTimes, cause: str
) -> RemedyCandidate:
    """Return the remedy against what the data set's own code does: work done anew,
    waits, or computing.

    Args:
        loop: without the waits that other programs caused.
        times: of the loop without the cause.
        cause: name of the cause.
    """
    best_times = quiet_times(times)
    if cause == ANEW and (work := repeated_work(loop)) is not None:
        return RemedyCandidate(
            name=f"do {work.where} once a worker, and keep what it gives",
            times=times,
            cost=_CODE,
            assumption_free_share=0.8 * work.measured_share,
            best_times=best_times,
            quiet_share=QUIET_SHARE,
            cause=cause,
        )
    if cause == UNTOLD:
        return RemedyCandidate(
            name="fewer bytes, or a faster store, if it is bandwidth",
            times=times,
            cost="other data, or another store",
            assumption_free_share=0.0,
            cause=cause,
        )
    place = main_place(loop, "transform")
    code = place.where if place else "the data set's own code"
    advice = _advice(place.calls) if place else ""
    name = f"make {code} cheaper, or do its work once, not for every sample"
    return RemedyCandidate(
        f"{advice}: {code}" if advice else name,
        times,
        _CODE,
        assumption_free_share=0.5,
        best_times=best_times,
        quiet_share=QUIET_SHARE,
        cause=cause,
    )


_COMPUTING = {*COMPUTING_PARTS, SAMPLE_CODE, ANEW, "opens", "gil"}
"""Causes whose computing is in the way of steps and handovers, too."""
_ADVICE = {
    "pandas": "take the columns out of the DataFrame once, as arrays, and index those",
    "json": "parse once, and store arrays",
    "csv": "parse once, and store arrays",
    "xml": "parse once, and store arrays",
    "re": "do the text once, before the training",
    "transformers": "tokenise once, before the training",
    "tokenizers": "tokenise once, before the training",
}
"""By package that a data set's own code calls, what to do."""


def _advice(calls: str) -> str:
    """Return what to do about code that calls a function of a library, with its module;
    '' if nothing special is known.
    """
    return _ADVICE.get(calls.partition(".")[0], "")


def _use_more_cores(
    loop: RecordedLoop, times_without: Mapping[str, LoopTimes]
) -> Iterator[RemedyCandidate]:
    """Yield the loop with more of the host's cores, if its rank has more threads and
    workers than the cores that it may use; nothing where cores are not known, or waits
    for them are no possible cause.

    Args:
        loop: without the waits that other programs caused.
        times_without: the times of the loop without each possible cause, by its name.
    """
    wanted_cores = loop.times.workers + max(loop.threads, 1)
    if loop.cores is None or loop.host_cores is None or "cores" not in times_without:
        return
    count = min(wanted_cores, loop.host_cores)
    if loop.cores < count:
        name = (
            f"the rank may use {loop.cores} of {loop.host_cores} cores: give it {count}"
            f" (srun --cpus-per-task={count}, or taskset)"
        )
        num_extra = count - loop.cores
        cost = f"{num_extra} more core{'s' * (num_extra > 1)}"
        # W workers share k cores: a batch takes each at least W / k times what it computes
        times = times_without["cores"]
        cpu_s = np.nan_to_num(loop.sum_of("fetch", "cpu_s"))
        min_load_s = cpu_s * max(times.workers, 1) / count
        load_s = np.minimum(np.maximum(times.load_s, min_load_s), loop.times.load_s)
        times = replace(times, load_s=load_s)
        yield RemedyCandidate(
            name, times, cost, assumption_free_share=0.5, cause="cores"
        )


def crowded_steps(loop: RecordedLoop, times: LoopTimes) -> LoopTimes:
    """Return the times of a loop whose steps are as much shorter as its threads and
    workers outnumber the cores.

    The threads of a step wait for one another at the end of each operation, so a step
    takes as long as the thread that gets a core last.
    """
    crowding = (loop.threads + loop.times.workers) / (loop.cores or loop.threads)
    step_s = loop.times.step_s / max(crowding, 1.0)
    return replace(times, step_s=np.minimum(times.step_s, step_s))


def _spare_cores(loop: RecordedLoop) -> int:
    """Return the cores that a rank's workers leave, at least one; where cores are not
    known, the rank has one for each thread.
    """
    return max(1, (loop.cores or loop.threads) - loop.times.workers)


def _sum_every_fourth(loop: RecordedLoop) -> LoopTimes:
    """Return the times of the loop that sums gradients and updates in every fourth
    batch only: each step takes a fourth of that time, in the mean.
    """
    return shorten(
        loop.times, step_s=0.75 * (loop.allreduce_s + loop.sum_of("optimizer"))
    )


def _loader_settings(**arguments: Any) -> dict[str, Any]:
    """Return the change that gives the DataLoader other arguments, as the recorder
    reads it.
    """
    return {"loader": arguments}


def _use_more_workers(
    loop: RecordedLoop, causes: Sequence[str]
) -> Iterator[RemedyCandidate]:
    """Yield the loop with as many workers as hide the loads, if more gain anything.

    They are at most as many as the cores, or more where workers wait rather than
    compute.
    """
    times = loop.times
    cpu_s = cpu_s_of_batch(loop)
    load_s = float(times.load_s.mean())
    hiding_workers = load_s / max(float(times.step_s.mean()), load_s / MAX_WORKERS)
    max_workers = max(loop.cores or 1, int(hiding_workers) + 2)
    if loop.cores is not None and computed_share(loop) > MOSTLY:
        max_workers = loop.cores  # workers beyond the cores compute no more
    changed = add_workers(loop, max_workers)
    if changed is None:
        return
    workers = changed.workers
    num_extra = workers - times.workers
    condition = ", if it is latency" if UNTOLD in causes else ""
    # what workers wait for may be shared: then more of them gain nothing of that
    computed = min(1.0, cpu_s / load_s) if np.isfinite(cpu_s) else 0.0
    # how long the first workers take to start is not known, so they are to start once
    persistence = {} if times.workers else {"persistent_workers": True}
    yield RemedyCandidate(
        name=f"{workers} worker{'s' * (workers > 1)}, not {times.workers}{condition}",
        times=changed,
        cost=f"{num_extra} more process{'es' * (num_extra > 1)}",
        change=_loader_settings(num_workers=workers, **persistence),
        assumption_free_share=computed,
        best_times=times.change_workers(workers),
    )


def _change_settings(loop: RecordedLoop) -> Iterator[RemedyCandidate]:
    """Yield the loop with other arguments of its DataLoader: prefetch if more gains
    anything, order, lasting workers; nothing where it has no workers.
    """
    times = loop.times
    if not times.workers:
        return
    candidates = [
        replace(times, prefetch=prefetch)
        for prefetch in (4, 8, 16, MAX_PREFETCH)
        if prefetch > times.prefetch
    ]
    best = first_nearly_best(float(replay_loop(times).mean()), candidates)
    if best is not None:
        num_extra = times.workers * (best.prefetch - times.prefetch)
        yield RemedyCandidate(
            name=f"{best.prefetch} batches ahead of each worker, not {times.prefetch}",
            times=best,
            cost=f"memory for {num_extra} more batches",
            change=_loader_settings(prefetch_factor=best.prefetch),
            assumption_free_share=0.5,
        )
    if times.in_order and times.workers > 1:
        yield RemedyCandidate(
            name="hand out batches as they are made",
            times=replace(times, in_order=False),
            cost="another order of batches",
            change=_loader_settings(in_order=False),
        )
    starts_workers = not loop.settings.get("persistent_workers")
    if starts_workers and len(times.worker_start_s) > 1:
        yield RemedyCandidate(
            name="keep workers for all epochs",
            times=keep_workers(loop),
            cost="the memory of workers between epochs",
            change=_loader_settings(persistent_workers=True),
        )


def _keep_in_memory(
    loop: RecordedLoop, causes: Sequence[str]
) -> Iterator[RemedyCandidate]:
    """Yield the loop with its files in memory, or its samples in a worker's memory,
    where they fit into `MAX_CACHE_SHARE` of the memory; nothing where the memory is not
    known.

    Files are kept only against costs of reading, if their bytes are known. Samples are
    kept only where there are several epochs, and no workers or a single lasting one.

    Args:
        loop: without the waits that other programs caused.
        causes: names of those that cost time.
    """
    times = loop.times
    max_nbytes = MAX_CACHE_SHARE * (loop.memory_nbytes or 0.0)
    reads_cost_time = not {"opens", "latency", "bandwidth", "page cache"}.isdisjoint(
        causes
    )
    file_nbytes = loop.total_file_nbytes
    if reads_cost_time and file_nbytes is not None and file_nbytes <= max_nbytes:
        load_s = np.maximum(
            times.load_s - loop.sum_of("open") - loop.sum_of("read"), 0.0
        )
        yield RemedyCandidate(
            name="keep the files in memory",
            times=replace(times, load_s=load_s),
            cost=f"{file_nbytes / 1e9:.3g} GB of memory",
            assumption_free_share=0.8,
        )
    is_later_epoch = loop.epoch_of_batch > 0
    sample_nbytes = float(loop.sum_of("collate", "nbytes")[~is_later_epoch].sum())
    one_lasting_worker = times.workers == 1 and loop.settings.get("persistent_workers")
    memory_stays = not times.workers or one_lasting_worker
    if memory_stays and is_later_epoch.any() and 0 < sample_nbytes <= max_nbytes:
        collate_s = np.minimum(loop.sum_of("collate"), times.load_s)
        load_s = np.where(is_later_epoch[:, None], collate_s, times.load_s)
        yield RemedyCandidate(
            name="keep samples in memory",
            times=replace(times, load_s=load_s),
            cost=f"{sample_nbytes / 1e9:.3g} GB of memory, no new augmentation",
            change={"cache": True},
            assumption_free_share=0.8,
        )
