"""The loop with other workers, and what these would share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import nnls

from simshuffle.extensions.doctor.loop import RecordedLoop
from simshuffle.extensions.doctor.replay import Way, elapsed
from simshuffle.spec.arrays import Floats

ALIKE = 0.02
"""Relative spread of bytes a read below which nothing tells requests from bytes (chosen)."""
SLOW_BYTES = 20e6
"""Bytes/s below which it is rather requests that cost, where nothing tells (chosen: disks and
shared file systems move 100 MB/s and more, a store answers for 10 kB in some ms)."""
HEADER = 8192
"""Bytes that Python reads of a file at once: where no more were seen of each, numpy or the like
read the rest (`io.DEFAULT_BUFFER_SIZE`)."""
AS_GOOD = 0.95
"""Share of the best gain with which fewer workers, or batches ahead, are preferred (chosen)."""


def less(way: Way, load: Floats | float = 0.0, step: Floats | float = 0.0) -> Way:
    """A way with as many seconds less of loads and steps; none is below 0."""
    return replace(
        way, load=np.maximum(way.load - load, 0.0), step=np.maximum(way.step - step, 0.0)
    )


def computing_less(loop: RecordedLoop, computed: Floats) -> Way:
    """The loop whose workers compute so much less, s of (B, M). Who computes less is less in the
    way of others: of what steps wait for a core, and of what it takes to get a batch in hand beyond
    the loop's own work, the same part goes as of all that workers compute."""
    way, queued = loop.way, np.nan_to_num(loop.of("step", "queued_s"))
    fetches = np.nan_to_num(loop.of("fetch", "cpu_s") + loop.of("fetch", "queued_s")).sum()
    if not way.workers or not fetches:
        return less(way, computed)
    left = 1.0 - min(float(computed.sum() / fetches), 1.0)
    own = np.minimum(way.handover, np.nan_to_num(loop.of("wait", "cpu_s")))
    handover = own + (way.handover - own) * left
    freed = replace(way, sending=way.sending * left, handover=handover, more=way.more * left)
    return less(freed, computed, queued * (1.0 - left))


def kept_workers(loop: RecordedLoop) -> Way:
    """The loop with the workers of the first epoch in all others, where nothing is new to them."""
    way = loop.way
    begin, step, load = way.begin.copy(), way.step.copy(), way.load.copy()
    begin[1:] = np.minimum(begin[1:], 0.0)
    usual = np.median(load, axis=0)
    for first in way.first[1:-1]:
        load[first : first + way.workers] = np.minimum(load[first : first + way.workers], usual)
    step[np.array(way.first[1:-1]) - 1] -= loop.ending[:-1]
    return replace(way, begin=begin, step=step, load=load)


def cpu_s(loop: RecordedLoop) -> float:
    """s of a core that a batch takes, in its worker and in the loop; nan if not known."""
    worker = loop.of("fetch", "cpu_s") + np.nan_to_num(loop.of("send", "cpu_s"))
    if not loop.way.workers:
        worker = loop.of("wait", "cpu_s")  # where it is made
    return float((worker + loop.of("step", "cpu_s")).mean())


def computed_share(loop: RecordedLoop) -> float:
    """Return the share of their fetches in which workers compute, or could if they had a core; 0 if
    it is not known."""
    computed = loop.of("fetch", "cpu_s") + np.nan_to_num(loop.of("fetch", "queued_s"))
    whole = float(loop.of("fetch").sum())
    return float(np.nan_to_num(computed).sum()) / whole if whole > 0 else 0.0


def more_workers(loop: RecordedLoop, most: int) -> Way | None:
    """The loop with the fewest workers that gain nearly what the best number up to ``most`` does;
    None if none gains anything. What is shared does not get faster: where it takes longer for a
    batch than they would, workers take as much longer."""
    now, own, least = loop.way.workers, float(elapsed(loop.way).mean()), shared_s(loop)
    tried = []
    for count in [n for n in (*range(1, 9), 10, 12, 16, 20, 24, 32, 48, 64) if now < n <= most]:
        way = loop.way.with_workers(count)
        slower = max(1.0, least * count / max(float(way.load.mean()), 1e-300))
        tried.append(replace(way, load=way.load * slower))
    return first_as_good(own, tried)


def shared_s(loop: RecordedLoop) -> float:
    """s of a batch below which no number of workers gets: of the cores for what is computed, of the
    device for its bytes (as if those that read have all of it now), and of a lock."""
    cpu, now = cpu_s(loop), max(loop.way.workers, 1)
    cores = cpu / loop.cores if loop.cores and np.isfinite(cpu) else 0.0
    _, _, device = reading(loop)
    # with all W waiting for one lock, each waits for the W - 1 others
    lock = float(loop.of("lock").mean()) / (now - 1) if now > 1 else 0.0
    return max(cores, float(device.mean()) / now, lock)


def first_as_good(own: float, tried: Sequence[Way]) -> Way | None:
    """The first way that gains nearly what the best does on ``own`` s a batch; None if none
    gains."""
    gains = own - np.array([elapsed(way).mean() for way in tried])
    if not len(gains) or gains.max() <= 0:
        return None
    return tried[int(np.argmax(gains >= AS_GOOD * gains.max()))]


def reading(loop: RecordedLoop) -> tuple[Floats, Floats, Floats]:
    """What of its reads every batch spends for requests, for bytes that were in memory, and for
    those from the device, s of (B, M) each: least squares over the batches."""
    seconds = loop.of("read")
    count, nbytes = loop.of("read", "count"), loop.of("read", "nbytes")
    if loop.file_nbytes is not None:
        opened = loop.of("open", "count")
        nbytes = np.where(nbytes <= HEADER * opened, opened * loop.file_nbytes, nbytes)
    disk = np.nan_to_num(loop.of("read", "disk_nbytes"))
    disk = np.minimum(disk, nbytes)
    nothing = np.zeros(seconds.shape)
    use = seconds > 0
    if not use.any():
        return nothing, nothing, nothing
    x = np.stack([of[use] for of in (count, nbytes - disk, disk)], axis=1)
    each = nbytes[use] / np.maximum(count[use], 1)
    if each.std() <= ALIKE * each.mean():  # nothing tells requests from bytes
        rate = np.quantile(nbytes[use] / seconds[use], 0.9)
        x[:, slice(1, 3) if rate < SLOW_BYTES else 0] = 0.0
    parts = x * nnls(x / seconds[use][:, None], np.ones(len(x)))[0]
    whole = parts.sum(axis=1, keepdims=True)
    parts = np.where(whole > 0, parts / np.where(whole > 0, whole, 1.0), 1 / 3)
    out = np.zeros((3, *seconds.shape))
    out[:, use] = parts.T * seconds[use]
    return out[0], out[1], out[2]
