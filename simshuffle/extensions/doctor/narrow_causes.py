"""Find narrow causes: slow workers, samples and ranks, periodic outliers, and workers
that are too few or start too often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simshuffle.extensions.doctor.loop import RecordedLoop
from simshuffle.extensions.doctor.places import (
    MIN_SIGHTINGS,
    NOTABLE,
    describe_loader_line,
    describe_main_part,
    describe_main_place,
    is_transform,
    select_sightings,
)
from simshuffle.extensions.doctor.recorder.places import LONG_STEP
from simshuffle.extensions.doctor.replay import LoopTimes
from simshuffle.extensions.doctor.rows_by_batch import index_of_samples
from simshuffle.extensions.doctor.without_cause import SPECIAL, LoopWithoutCause
from simshuffle.extensions.doctor.workers import (
    add_workers,
    computed_share,
    cpu_s_of_batch,
    keep_workers,
    reduce_computing,
    shorten,
)
from simshuffle.spec.arrays import Flags, Floats, Ints

OUTLIER = 6.0
"""Robust standard deviations above the median from which a value is an outlier (chosen:
of a million normal values none is).
"""
TWICE = 2.0
"""Times the median that an outlier is at least (chosen: less is seldom worth naming)."""
SLOW = 1.25
"""Times its peers' median from which a worker or rank is slow (chosen)."""
MAIN_PART = 0.75
"""Share of the fetches from which a part of them is the cause by itself (chosen)."""
MAX_SLOW_SHARE = 0.1
"""Share of the samples from which slow ones are no exceptions (chosen)."""
MIN_DIPS = 4
"""Outliers from which on only the larger ones count, and gaps that suffice for the
wider limit of `MAX_GAP_SPREAD` (chosen).
"""
MAX_GAP_SPREAD = (0.1, 0.35)
"""Standard deviation of the gaps between dips over their mean, below which they are
periodic, where there are few gaps and where there are `MIN_DIPS` (chosen: of dips at
random it is about 1).
"""
MOSTLY = 0.5
"""Share of its time in which a worker computes, from which more workers are what it
lacks.
"""


def slow_worker_causes(loop: RecordedLoop) -> Iterator[LoopWithoutCause]:
    """Yield, for each worker slower than its rank's others, the loop with it as fast as
    these.

    Slower is a median load of more than `SLOW` times the median of the others' medians.
    Batches of an unknown worker do not count.
    """
    for rank in range(loop.times.load_s.shape[1]):
        worker_of_batch = loop.worker_of_batch[:, rank]
        load_s = loop.times.load_s[:, rank]
        workers = np.unique(worker_of_batch[worker_of_batch >= 0])
        median_s = np.array(
            [np.median(load_s[worker_of_batch == worker]) for worker in workers]
        )
        for index, worker in enumerate(workers):
            peer_medians_s = np.delete(median_s, index)
            if not len(peer_medians_s):
                continue
            peers_s = float(np.median(peer_medians_s))
            if median_s[index] > SLOW * peers_s:
                extra_s = np.zeros(loop.times.load_s.shape)
                is_own_batch = worker_of_batch == worker
                extra_s[is_own_batch, rank] = load_s[is_own_batch] * (
                    1 - peers_s / median_s[index]
                )
                sentence = (
                    f"Worker {worker} takes {median_s[index]:.2g} s for a batch, its peers"
                    f" {peers_s:.2g} s."
                )
                without = shorten(loop.times, extra_s)
                sentence += describe_main_part(loop, extra_s > 0)
                yield LoopWithoutCause("slow worker", without, sentence, SPECIAL)


def find_outliers(values: Floats) -> Flags:
    """Return flags of the values, (N,), that are far above the others.

    They are above the median by `OUTLIER` robust deviations and above `TWICE` times it.
    Where more than half of the values are 0, all above 0 are flagged.
    """
    median = np.median(values)
    robust_deviation = np.median(np.abs(values - median)) / 0.6745
    return np.asarray(values > max(median + OUTLIER * robust_deviation, TWICE * median))


def slow_sample_causes(loop: RecordedLoop) -> Iterator[LoopWithoutCause]:
    """Yield the loop in which samples that are slow each time take the median, if there
    are any.

    A sample is slow if the fastest of its reads is, as `find_outliers` says; one without
    an index by each read. It costs at most what its batch takes beyond the median load.
    """
    samples = loop.samples
    seconds = samples["seconds"].to_numpy()
    if not len(seconds):
        return
    # a sample that is slow for its own sake is slow each time it is read
    fastest_s = samples.groupby("sample")["seconds"].transform("min").to_numpy()
    is_slow = find_outliers(np.where(samples["sample"] >= 0, fastest_s, seconds))
    if is_slow.mean() > MAX_SLOW_SHARE:
        return
    median_s = float(np.median(seconds))
    extra_s = np.zeros(loop.times.load_s.shape)
    np.add.at(extra_s, index_of_samples(samples, is_slow), seconds[is_slow] - median_s)
    # a slow sample cannot make its batch slower than the batch is
    load_s = loop.times.load_s
    quiet_share = load_s / np.maximum(load_s + loop.core_wait_s, 1e-300)
    extra_s = np.minimum(extra_s * quiet_share, load_s - np.median(load_s)).clip(0.0)
    if not is_slow.any():
        return
    slowest_first = np.argsort(-seconds[is_slow])
    indices = samples["sample"].to_numpy()[is_slow][slowest_first].tolist()
    displayed = [str(index) for index in dict.fromkeys(indices) if index >= 0][:3]
    slowest = f"; the slowest are {', '.join(displayed)}" if displayed else ""
    sentence = (
        f"{is_slow.sum()} of {len(is_slow)} samples take {seconds[is_slow].mean():.2g} s on"
        f" average, the median sample {median_s:.2g} s{slowest}."
    )
    sentence += describe_main_part(loop, extra_s > 0)
    without = _reduce_fetches(loop, extra_s)
    weight = 1.2 * SPECIAL if _follow_samples(loop, is_slow) else SPECIAL
    yield LoopWithoutCause("slow sample", without, sentence, weight)


def _follow_samples(loop: RecordedLoop, is_slow: Flags) -> bool:
    """Return whether slow reads follow samples to other places of their epochs, as no
    periodic dip does: most slow samples that were read again stood elsewhere.

    Args:
        loop: whose samples were read.
        is_slow: flags of the rows of its samples.
    """
    slow = loop.samples[is_slow & (loop.samples["sample"] >= 0)]
    batch = slow["batch_index"].to_numpy()
    epoch_begin = np.array(loop.times.epoch_bounds)[loop.epoch_of_batch[batch]]
    places = slow.assign(place=batch - epoch_begin).groupby("sample")["place"]
    is_read_again = places.count() > 1
    moved = (places.nunique() > 1)[is_read_again]
    return bool(len(moved) > 0 and moved.mean() > MOSTLY)


def _reduce_fetches(loop: RecordedLoop, saved_s: Floats) -> LoopTimes:
    """Return the times of the loop whose fetches take ``saved_s`` less, (B, M), which is
    computing where workers mostly compute.
    """
    if computed_share(loop) > MOSTLY:
        return reduce_computing(loop, saved_s)
    return shorten(loop.times, saved_s)


class PeriodicOutliers(NamedTuple):
    """Values far above the others that come after equal gaps."""

    is_outlier: Flags  # (N,); all False if the outliers are not periodic
    period: float  # mean gap from one dip's begin to the next's, in values; nan if none


def find_periodic_outliers(values: Floats, max_distance: int) -> PeriodicOutliers:
    """Find the values, (N,), that are far above the others, if they come after equal
    gaps.

    Outliers within ``max_distance`` values of one another are one dip of the loop's
    speed. Fewer than three dips, or gaps that vary by more than `MAX_GAP_SPREAD`, are
    not periodic. From `MIN_DIPS` outliers on, those count that are at least half as far
    above the median as the `MIN_DIPS`-th largest.
    """
    is_outlier = find_outliers(values)
    excess = values - np.median(values)
    if (
        is_outlier.sum() >= MIN_DIPS
    ):  # chance makes smaller outliers, which are not periodic
        is_outlier &= excess >= np.sort(excess)[-MIN_DIPS] / 2
    gaps = _gaps_of_dips(is_outlier, max_distance)
    if (
        len(gaps) < 2
        or gaps.std() > MAX_GAP_SPREAD[len(gaps) >= MIN_DIPS] * gaps.mean()
    ):
        return PeriodicOutliers(np.zeros(len(values), dtype=bool), np.nan)
    return PeriodicOutliers(is_outlier, float(gaps.mean()))


def _gaps_of_dips(is_outlier: Flags, max_distance: int) -> Ints:
    """Return the gaps, in values, from one dip's begin to the next's: outliers within
    ``max_distance`` values of one another are one dip.
    """
    outlier_index = np.flatnonzero(is_outlier)
    is_begin = np.diff(outlier_index, prepend=-np.inf) > max_distance
    return np.diff(outlier_index[is_begin])


def periodic_causes(loop: RecordedLoop) -> Iterator[LoopWithoutCause]:
    """Yield the loop in which fetches (loader dips), and steps (loop dips), that are
    slow in equal intervals take the median, if there are any on a rank.

    The first fetch of each worker and the first step of each epoch do not tell whether
    there are dips. Where there are, and samples have no index, as in shards, a first
    fetch that takes half as much longer as the mean dip is one, too.
    """
    times = loop.times
    has_index = bool((loop.samples["sample"] >= 0).any())
    for operation, max_distance in (("fetch", max(times.workers, 1)), ("step", 1)):
        recorded_s = loop.sum_of("fetch")
        if operation == "step":
            recorded_s = np.maximum(times.step_s - _known_dips(loop), 0.0)
        seconds = recorded_s.copy()
        is_first = np.zeros(len(seconds), dtype=bool)
        for begin in times.epoch_bounds[:-1]:  # how epochs begin is another cause
            is_first[begin : begin + max_distance] = True
        seconds[is_first] = np.median(seconds, axis=0)
        extra_s = np.zeros(seconds.shape)
        periods = []
        for rank in range(seconds.shape[1]):
            is_outlier, period = find_periodic_outliers(seconds[:, rank], max_distance)
            if not is_outlier.any():
                continue
            excess_s = recorded_s[:, rank] - np.median(seconds[:, rank])
            if operation == "fetch" and not has_index:
                is_outlier = is_outlier | (
                    is_first & (excess_s > excess_s[is_outlier].mean() / 2)
                )
                period = float(_gaps_of_dips(is_outlier, max_distance).mean())
            periods.append(period)
            extra_s[is_outlier, rank] = excess_s[is_outlier]
        if not periods:
            continue
        mean_period = float(np.mean(periods))
        if operation == "fetch":
            sentence = f"Every {mean_period:.3g} batches, in the loader's order, one takes longer."
            without = _reduce_fetches(loop, extra_s)
            sentence += describe_main_part(loop, extra_s > 0)
            yield LoopWithoutCause("loader dips", without, sentence, 1.1 * SPECIAL)
        else:
            mean_s = extra_s[extra_s > 0].mean()
            sentence = (
                f"Every {mean_period:.3g} steps one takes longer, by {mean_s:.2g} s."
            )
            sentence += describe_main_place(loop, LONG_STEP)
            yield LoopWithoutCause(
                "loop dips", shorten(times, step_s=extra_s), sentence, SPECIAL
            )


def _known_dips(loop: RecordedLoop) -> Floats:
    """Return the s of the steps that have causes of their own, (B, M): evaluation, and
    updates of a loop that accumulates gradients over several batches.
    """
    known_s = np.broadcast_to(loop.evaluation_s, loop.times.step_s.shape).copy()
    updates = loop.sum_of("optimizer", "count") > 0
    if updates.any() and not updates.all():
        known_s += loop.sum_of("optimizer") + loop.allreduce_s
    return known_s


def worker_start_causes(loop: RecordedLoop) -> Iterator[LoopWithoutCause]:
    """Yield the loop that keeps its workers after the first epoch, if it has several
    epochs and starts new workers in each.
    """
    worker_start_s = loop.times.worker_start_s
    starts_workers = not loop.settings.get("persistent_workers")
    if loop.times.workers and len(worker_start_s) > 1 and starts_workers:
        mean_s = float((worker_start_s[1:].mean(axis=1) + loop.epoch_end_s[:-1]).mean())
        sentence = f"New workers begin {mean_s:.2g} s after their epoch."
        sentence += describe_loader_line(loop)
        yield LoopWithoutCause("workers anew", keep_workers(loop), sentence, SPECIAL)


def missing_worker_causes(loop: RecordedLoop) -> Iterator[LoopWithoutCause]:
    """Yield the loop with the fewest additional workers that gain nearly the most time,
    if any do.

    It has at most as many workers as a rank has cores. The less of their time workers
    compute, the less weight it has. Nothing is yielded where the cores, or what batches
    compute, are not known.
    """
    times = loop.times
    if loop.cores is None or not np.isfinite(cpu_s_of_batch(loop)):
        return
    without = add_workers(loop, loop.cores)
    if without is None:
        return
    sentence = f"{times.workers} workers are too few; {loop.cores} cores can be used."
    if not times.workers:
        sentence = (
            "The loop makes its batches itself: nothing is loaded while it steps."
        )
    sentence += describe_loader_line(loop)
    # a wait for files is the files' fault, however many workers wait; computing is not the data's
    computed_s = np.nan_to_num(loop.sum_of("fetch", "cpu_s")).sum()
    share = computed_s / times.load_s.sum()
    weight = SPECIAL if not times.workers and not _has_main_part(loop) else 1.0
    weight = weight if share > MOSTLY else weight * float(share)
    yield LoopWithoutCause("workers", without, sentence, weight)


_NUMERIC = ("numpy", "scipy", "torch", "cv2", "librosa", "torchaudio", "soundfile")
"""Libraries that compute: code that calls them is seldom what could be left out."""


def _has_main_part(loop: RecordedLoop) -> bool:
    """Return whether the script's own code takes `MAIN_PART` of the fetches, in samples
    or in collating: then it is the cause, rather than that nobody hides it. Decoding,
    transforms and computing in a `_NUMERIC` library are what workers are for.
    """
    parts_s = [loop.sum_of("collate").sum()]
    sightings = select_sightings(loop, "transform")
    total = sum(sighting["count"] for sighting in sightings)
    numeric = sum(
        sighting["count"]
        for sighting in sightings
        if sighting["calls"].partition(".")[0] in _NUMERIC
    )
    # operators and ufuncs are written in C, where no call is seen
    is_numeric = total >= MIN_SIGHTINGS and numeric >= NOTABLE * total
    if not is_transform(loop) and not is_numeric:
        parts_s.append(loop.sum_of("transform").sum())
    return bool(max(parts_s) >= MAIN_PART * loop.sum_of("fetch").sum())


def slow_rank_causes(loop: RecordedLoop) -> Iterator[LoopWithoutCause]:
    """Yield, for each rank, the loop with it as fast as the others, if ranks wait for
    one another.

    Loads and steps are shortened by one factor each, so that their median is the
    others', where the rank takes more than `SLOW` times as long. For a rank that does
    not, the loop is as it is.
    """
    times = loop.times
    num_ranks = times.load_s.shape[1]
    if not times.ranks_meet:
        return
    all_batches = np.ones(len(times.load_s), dtype=bool)
    for rank in range(num_ranks):
        peers = np.delete(np.arange(num_ranks), rank)
        adjusted = []
        for seconds, batches in (
            (times.load_s, all_batches),
            (times.step_s, loop.meetings_recorded),
        ):
            peers_s = float(np.median(seconds[batches][:, peers]))
            factor = peers_s / max(float(np.median(seconds[batches, rank])), 1e-300)
            adjusted_s = seconds.copy()
            adjusted_s[:, rank] *= factor if factor < 1 / SLOW else 1.0
            adjusted.append(adjusted_s)
        load_s, step_s = adjusted
        sentence = f"Rank {rank} is slower than the others, which wait for it."
        without = replace(times, load_s=load_s, step_s=step_s)
        yield LoopWithoutCause("straggler rank", without, sentence, SPECIAL)
