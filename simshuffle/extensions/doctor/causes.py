"""Find what may make a loop slow: each candidate is the times of the loop without that
cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simshuffle.extensions.doctor.loop import RecordedLoop
from simshuffle.extensions.doctor.narrow_causes import (
    missing_worker_causes,
    periodic_causes,
    slow_rank_causes,
    slow_sample_causes,
    slow_worker_causes,
    worker_start_causes,
)
from simshuffle.extensions.doctor.places import (
    describe_line,
    describe_main_place,
    is_transform,
    main_place,
)
from simshuffle.extensions.doctor.quiet import COMPUTING_PARTS
from simshuffle.extensions.doctor.recorder.places import OTHER_THREAD
from simshuffle.extensions.doctor.repeated_work import (
    RepeatedWork,
    repeated_work,
    repeated_work_causes,
)
from simshuffle.extensions.doctor.rows_by_batch import index_of_samples
from simshuffle.extensions.doctor.small_files import small_file_seconds
from simshuffle.extensions.doctor.start_causes import evaluation_causes, start_causes
from simshuffle.extensions.doctor.without_cause import SPECIAL, LoopWithoutCause
from simshuffle.extensions.doctor.workers import (
    HANDOVER_S,
    reduce_computing,
    shorten,
    split_reading,
)
from simshuffle.spec.arrays import Floats

LATE_S = 1e-3
"""s after which a thread that asks for the interpreter finds it held (chosen: the
holder is to give it up after 5 ms, `sys.getswitchinterval`).
"""
FAST = 0.25
"""Times the 5 % quantile of first reads, below which a repeated read came from memory
(chosen).
"""
MIN_HIT_SHARE = 0.05
"""Share of samples from memory, or not, below which the cache is as good as none, or as
large enough (chosen).
"""
WAITING = 0.3
"""Share of its time that a data set's own code computes, below which it rather waits
for something outside (chosen).
"""
COMPUTING_READS = 0.6
"""Weight of reads in which workers compute: what they read for is the likelier cause
(chosen).
"""
UNTOLD = "latency or bandwidth"
"""Name of what requests or bytes take, where the record cannot tell which."""


def candidate_causes(loop: RecordedLoop) -> list[LoopWithoutCause]:
    """Return every cause that the record can show, whether removing it saves time or
    not, in no order of weight.

    Several may have one name, as slow workers do. Causes of fetches, workers and
    samples are left out where no fetch was recorded.
    """
    candidates = [*_step_causes(loop), *evaluation_causes(loop)]
    if loop.fetches_recorded:
        work = repeated_work(loop)
        candidates += [
            *_fetch_causes(loop, work),
            *_reading_causes(loop),
            *repeated_work_causes(loop, work),
            *start_causes(loop),
            *slow_worker_causes(loop),
            *slow_sample_causes(loop),
            *periodic_causes(loop),
            *worker_start_causes(loop),
            *missing_worker_causes(loop),
        ]
    candidates += [
        *slow_rank_causes(loop),
        *_core_causes(loop),
        *_interpreter_causes(loop),
    ]
    return candidates


def _percent(part: Floats, total: Floats) -> str:
    """Return the sum of a part as a share of the sum of a total, at most 100 %, as
    text: "12 %".
    """
    return f"{100 * min(part.sum() / max(total.sum(), 1e-300), 1.0):.0f} %"


_PART_SENTENCES = {
    "opens": (
        "open",
        "Opening files or objects is {share} of what workers do: {each} s each.",
    ),
    "decode": ("decode", "Decoding is {share} of what workers do: {each} s each."),
    "transform": ("transform", "Transforming samples is {share} of what workers do."),
    "collate": ("collate", "Putting samples together is {share} of what workers do."),
    "lock": (
        "lock",
        "Workers wait for locks in {share} of their time: only one at a time gets on.",
    ),
}
"""For each cause the operation of a fetch, and the sentence on it; ``each`` is the mean
s of one operation.
"""
_SMALL_FILES = (
    "A sample has {files} small files: opening and parsing them is {share} of what workers"
    " do, {each} s each."
)
"""Sentence on opens, where a sample has many small files."""
SAMPLE_CODE = "sample code"
"""Name of what samples take beside opening, reading, decoding and locks, where no
transform is called.
"""
_SENTENCES_OF_CODE = {
    SAMPLE_CODE: "Apart from reading, the data set's own code is {share} of what workers do.",
    UNTOLD: (
        "The data set's own code waits, without computing, for {share} of what workers do. One"
        " recording cannot tell requests that wait (latency) from bytes that share a limit"
        " (bandwidth): --try tells."
    ),
}


def is_waiting_code(loop: RecordedLoop) -> bool:
    """Return whether the data set's own code waits for most of its time, rather than
    computes: it computes less than `WAITING` of that.
    """
    code_s = loop.sum_of("transform")
    other_cpu_s = loop.sum_of("decode") + loop.sum_of("collate")
    cpu_s = np.maximum(loop.sum_of("fetch", "cpu_s") - other_cpu_s, 0.0)
    code_s = code_s - np.minimum(
        np.nan_to_num(loop.sum_of("fetch", "queued_s")), code_s
    )
    return bool(cpu_s.sum() < WAITING * code_s.sum())


def _fetch_causes(
    loop: RecordedLoop, work: RepeatedWork | None
) -> Iterator[LoopWithoutCause]:
    """Yield the loop without each recorded part of its fetches, and without sending
    batches if it has workers.

    An object of a server is opened by a request for it, so opening is no cause there.
    Where no transform is called, that part goes by the name `SAMPLE_CODE`; what many
    small files take of it and of reading belongs to the opens, and what is done anew is
    a cause of its own. Parts that
    compute also take their share of the waits for cores with them
    (`reduce_computing`). A batch that is not sent is still `HANDOVER_S` in handing over
    at most.
    """
    times = loop.times
    small_file_s = small_file_seconds(loop)
    sentences = dict(_PART_SENTENCES)
    if small_file_s is not None:
        sentences["opens"] = ("open", _SMALL_FILES)
    if not is_transform(loop):
        del sentences["transform"]
        name = UNTOLD if is_waiting_code(loop) else SAMPLE_CODE
        sentences[name] = ("transform", _SENTENCES_OF_CODE[name])
    for name, (operation, template) in sentences.items():
        if operation not in loop.recorded_operations or (
            name == "opens" and loop.from_server
        ):
            continue
        part_s = loop.sum_of(operation)
        if small_file_s is not None and operation == "open":
            part_s = part_s + loop.sum_of("read") + small_file_s
        elif small_file_s is not None and operation == "transform":
            part_s = part_s - small_file_s
        elif work is not None and operation == "transform":
            part_s = np.maximum(part_s - work.saved_s, 0.0)
        count = max(loop.sum_of(operation, "count").sum(), 1.0)
        samples = max(loop.sum_of("fetch", "count").sum(), 1.0)
        sentence = template.format(
            share=_percent(part_s, times.load_s),
            each=f"{part_s.sum() / count:.2g}",
            files=f"{count / samples:.3g}",
        )
        sentence += describe_main_place(loop, operation)
        parses_files = operation == "open" and small_file_s is not None
        is_computing = parses_files or (operation in COMPUTING_PARTS and name != UNTOLD)
        without = (
            reduce_computing(loop, part_s) if is_computing else shorten(times, part_s)
        )
        weight = SPECIAL if name == "lock" else 1.0
        yield LoopWithoutCause(name, without, sentence, weight)
    if times.workers:
        mean_s = np.broadcast_to(
            times.send_s + times.handover_s, times.load_s.shape
        ).mean()
        sentence = f"The loop gets a finished batch {mean_s:.2g} s later or more."
        # a worker that waits for a core answers later
        busy_share = (loop.cores_of_others or 0.0) / (loop.cores or 1)
        least_s = np.minimum(times.handover_s, HANDOVER_S * (1 + 2 * busy_share))
        without = replace(times, send_s=0.0, handover_s=least_s, busy_extra_s=0.0)
        yield LoopWithoutCause("send", without, sentence)


def _reading_causes(loop: RecordedLoop) -> Iterator[LoopWithoutCause]:
    """Yield the loop without its read requests (latency), without its bytes
    (bandwidth), and with a larger page cache; the last one always, the others if they
    took time.

    A larger cache saves what the device gave in epochs after the first. Where the file
    system does not say that, it saves the `_cache_misses`. Requests to a server include
    its opens.
    """
    request_s, cached_s, device_s, sizes_vary = split_reading(loop)
    if loop.from_server:
        request_s = request_s + loop.sum_of("open")
    count = loop.sum_of("read", "count").sum()
    nbytes = loop.sum_of("read", "nbytes").sum()
    bytes_s = cached_s + device_s
    all_s = request_s + bytes_s
    # bytes from memory that a worker copies: computing, which decoding and parsing come with
    weight = COMPUTING_READS if _computes_reads(loop) else 1.0
    if not sizes_vary and all_s.any() and weight == 1.0:
        sentence = (
            f"A read takes {all_s.sum() / max(count, 1):.2g} s and brings"
            f" {nbytes / max(count, 1) / 1e3:.3g} kB, {nbytes / all_s.sum() / 1e6:.3g} MB/s a"
            " worker. All are alike, so one recording cannot tell latency from bandwidth:"
            " --try tells."
        )
        yield LoopWithoutCause(UNTOLD, shorten(loop.times, all_s), sentence)
    elif request_s.any():
        seconds = request_s.sum() / max(count, 1)
        sentence = f"Reading takes {seconds:.2g} s a request, whatever its size."
        without = shorten(loop.times, request_s)
        yield LoopWithoutCause("latency", without, sentence, weight)
    if (sizes_vary or weight < 1.0) and bytes_s.any():
        sentence = f"Reading brings {nbytes / bytes_s.sum() / 1e6:.3g} MB/s a worker."
        without = shorten(loop.times, bytes_s)
        yield LoopWithoutCause("bandwidth", without, sentence, weight)

    is_later_epoch = (loop.epoch_of_batch > 0)[:, None]
    later_nbytes = np.nan_to_num(loop.sum_of("read", "disk_nbytes")) * is_later_epoch
    if later_nbytes.any():
        gigabytes = later_nbytes.sum() / 1e9
        sentence = f"{gigabytes:.3g} GB came from the device in epochs after the first."
        saved_s = device_s * is_later_epoch
    else:
        misses = _cache_misses(loop)
        percent = 100 * misses.hit_share
        sentence = (
            f"Of samples that were read before, {percent:.0f} % came from memory."
        )
        saved_s = misses.extra_s
    without = shorten(loop.times, saved_s)
    yield LoopWithoutCause("page cache", without, sentence, 1.25 * SPECIAL)


def _computes_reads(loop: RecordedLoop) -> bool:
    """Return whether workers compute while they read, rather than wait: they wait for
    less than `WAITING` of their reads. False where that is not known.
    """
    idle_s = loop.sum_of("fetch") - loop.sum_of("fetch", "cpu_s")
    idle_s = idle_s - np.nan_to_num(loop.sum_of("fetch", "queued_s"))
    idle_s = idle_s - loop.sum_of("lock")
    return bool(idle_s.sum() < WAITING * loop.sum_of("read").sum())


class CacheMisses(NamedTuple):
    """Cost of repeated reads of samples that were not in memory."""

    # (B, M) s that misses took beyond the median of the samples from memory
    extra_s: Floats
    hit_share: float  # of the repeated reads, that came from memory; 0 without any


def _cache_misses(loop: RecordedLoop) -> CacheMisses:
    """Tell hits from misses by their time, where a file system does not say what it
    reads from a device: a repeated read that is much faster than first reads came from
    memory. No miss costs anything if less than `MIN_HIT_SHARE` of the repeated reads
    are hits, or are misses; a batch's misses cost at most its opens and reads. Samples
    without an index are left out.
    """
    extra_s = np.zeros(loop.times.load_s.shape)
    samples = loop.samples[loop.samples["sample"] >= 0]
    is_repeated = samples.duplicated("sample").to_numpy()
    seconds = samples["seconds"].to_numpy()
    first_read_s = (
        float(np.quantile(seconds[~is_repeated], 0.05)) if len(seconds) else 0.0
    )
    is_hit = is_repeated & (seconds < FAST * first_read_s)
    hit_share = is_hit.sum() / max(is_repeated.sum(), 1)
    if not MIN_HIT_SHARE <= hit_share <= 1 - MIN_HIT_SHARE:
        return CacheMisses(extra_s, hit_share)

    is_miss = is_repeated & ~is_hit
    miss_s = np.maximum(seconds[is_miss] - np.median(seconds[is_hit]), 0.0)
    np.add.at(extra_s, index_of_samples(samples, is_miss), miss_s)
    reading_s = loop.sum_of("open") + loop.sum_of("read")
    return CacheMisses(np.minimum(extra_s, reading_s), float(hit_share))


def _step_causes(loop: RecordedLoop) -> Iterator[LoopWithoutCause]:
    """Yield the loop without copies to the device, and without summing gradients; each
    if it was recorded, and for at most the time of the step. Waits of ranks for one
    another are not a part of the summing.
    """
    step_s = loop.sum_of("step")
    for name, template in (
        ("copy", "Copying batches to the device is {} of the steps."),
        ("allreduce", "Summing gradients over the ranks is {} of the steps."),
    ):
        if name in loop.recorded_operations:
            is_allreduce = name == "allreduce"
            part_s = (
                loop.allreduce_s
                if is_allreduce
                else np.minimum(loop.sum_of(name), step_s)
            )
            sentence = template.format(_percent(part_s, step_s))
            yield LoopWithoutCause(name, shorten(loop.times, step_s=part_s), sentence)


def _core_causes(loop: RecordedLoop) -> Iterator[LoopWithoutCause]:
    """Yield the loop whose threads never wait for a core when they could compute, if
    any did.

    Where torch has more threads than cores, a step also waits for those of its threads
    that have none: all that it waits is for these, unless the interpreter is late.
    """
    times = loop.times
    fetch_queued_s = np.nan_to_num(loop.sum_of("fetch", "queued_s"))
    step_queued_s = np.nan_to_num(loop.sum_of("step", "queued_s"))
    has_surplus_threads = loop.cores is not None and loop.threads > loop.cores
    if has_surplus_threads and _interpreter_delay_s(loop) < LATE_S:
        step_queued_s = step_queued_s + np.maximum(_blocked_step_s(loop), 0.0)
    if fetch_queued_s.any() or step_queued_s.any():
        sentence = (
            f"Threads wait for a core in {_percent(fetch_queued_s, times.load_s)} of the workers'"
            f" time and {_percent(step_queued_s, times.step_s)} of the steps"
            f"{', with waits for one another' * has_surplus_threads}."
        )
        wait_queued_s = np.nan_to_num(loop.sum_of("wait", "queued_s"))
        handover_s = np.maximum(times.handover_s - wait_queued_s, 0.0)
        without = shorten(
            replace(times, handover_s=handover_s), fetch_queued_s, step_queued_s
        )
        if loop.cores is not None and loop.cores < (loop.host_cores or 0):
            sentence += f" The rank may use {loop.cores} of {loop.host_cores} cores."
        elif loop.threads > 1:
            sentence += describe_line(
                f"Torch gets its {loop.threads} threads", loop.threads_set_at
            )
        # computing less also means waiting less for cores: the computing is the cause where it
        # explains most of the waits
        yield LoopWithoutCause("cores", without, sentence, 0.625 * SPECIAL)


def _idle_s(loop: RecordedLoop, operation: str) -> Floats:
    """Return the s of an operation, (B, M), in which its thread neither computed nor
    waited for a core; 0 where that is not known.
    """
    queued_s = np.nan_to_num(loop.sum_of(operation, "queued_s"))
    idle_s = loop.sum_of(operation) - loop.sum_of(operation, "cpu_s") - queued_s
    return np.nan_to_num(idle_s)


def _blocked_step_s(loop: RecordedLoop) -> Floats:
    """Return the `_idle_s` of the steps, (B, M), that are neither copies nor collectives."""
    return _idle_s(loop, "step") - loop.sum_of("copy") - loop.sum_of("allreduce")


def _interpreter_delay_s(loop: RecordedLoop) -> float:
    """Return the mean s that a thread waits for the interpreter; 0 if not recorded."""
    waited_s = loop.sum_of("gil").sum()
    return float(waited_s / max(loop.sum_of("gil", "count").sum(), 1.0))


def _interpreter_causes(loop: RecordedLoop) -> Iterator[LoopWithoutCause]:
    """Yield the loop without its waits for Python's interpreter, if threads get it
    `LATE_S` late or later in the mean.

    A wait for the interpreter is what a step neither computes nor waits for a core,
    copies or other ranks. Of a rank without workers it is also what its waits neither
    compute, open, read nor lock; with workers, what the loop takes to have a batch that
    is there in hand beyond computing. Steps of one thread also lose their waits for a
    core, which the other thread has. PyTorch's operators each give the interpreter up
    and ask for it again (torch/csrc/autograd, `pybind11::gil_scoped_release`).
    """
    mean_delay_s = _interpreter_delay_s(loop)
    if mean_delay_s < LATE_S:
        return
    loads_itself = not loop.times.workers
    blocked_s = _blocked_step_s(loop)
    if loads_itself:
        blocked_s += _idle_s(loop, "wait")
        blocked_s -= sum(loop.sum_of(part) for part in ("open", "read", "lock"))
    sentence = (
        f"A thread that asks for the interpreter gets it {1e3 * mean_delay_s:.2g} ms late:"
        " another thread holds it."
    )
    place = main_place(loop, OTHER_THREAD)
    sentence += f" That thread is mostly in {place.where}." if place else ""
    if loop.threads <= 1:
        blocked_s += np.nan_to_num(loop.sum_of("step", "queued_s"))
    without = shorten(loop.times, step_s=np.maximum(blocked_s, 0.0))
    if not loads_itself:
        computed_s = np.nan_to_num(loop.sum_of("wait", "cpu_s"))
        without = replace(
            without, handover_s=np.minimum(without.handover_s, computed_s)
        )
    yield LoopWithoutCause("gil", without, sentence, SPECIAL)
