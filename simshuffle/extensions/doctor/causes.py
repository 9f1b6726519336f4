"""What may make a loop slow, each as the loop without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from simshuffle.extensions.doctor.loop import RecordedLoop
from simshuffle.extensions.doctor.places import is_transform, main_place
from simshuffle.extensions.doctor.quiet import COMPUTED
from simshuffle.extensions.doctor.replay import Way
from simshuffle.extensions.doctor.workers import (
    computing_less,
    cpu_s,
    kept_workers,
    less,
    more_workers,
    reading,
)
from simshuffle.spec.arrays import Floats

OUTLIER = 6.0
"""Robust standard deviations above the median from which a value is one of its own (chosen: of a
million normal values none is)."""
TWICE = 2.0
"""Times the median that such a value is at least (chosen: less is seldom worth naming)."""
SLOW = 1.25
"""Times its peers' median from which a worker or rank is slow (chosen)."""
LEAST_DIPS = 4
EVEN = (0.1, 0.35)
"""Standard deviation of the gaps between dips over their mean, below which they come in turn, where
there are few gaps and where there are `LEAST_DIPS` (chosen: of dips at random it is about 1)."""
LATE_S = 1e-3
"""s after which a thread that asks for the interpreter finds it held (chosen: it is to be given up
after 5 ms, `sys.getswitchinterval`)."""
FAST = 0.25
"""Times what even the fastest 5 % take at first, below which a sample came from memory (chosen)."""
LEAST_HITS = 0.05
"""Share of samples from memory, or not, below which the cache is as good as none, or as large
enough (chosen)."""
HANDOVER_S = 2e-3
"""s that a batch in shared memory takes to be in the loop's hands, whatever is done (chosen above
the 0.6 to 1 ms of two small tensors that an idle worker hands over, PyTorch 2.13)."""
MOSTLY = 0.5
"""Share of its time in which a worker computes, from which more workers are what it lacks."""
SPECIAL = 2.0
"""Weight of a special case: it comes first if it explains half of what the broad one does."""


@dataclass(frozen=True)
class Without:
    """The loop without one thing."""

    name: str  # of the thing
    way: Way
    sentence: str  # what is seen of it
    # what its seconds are multiplied with to say which comes first: `SPECIAL` for a special case
    weight: float = 1.0


def causes(loop: RecordedLoop) -> list[Without]:
    """All that the record can show, whether it costs time or not."""
    found = list(_of_steps(loop))
    if loop.made_by:
        found += [*_of_parts(loop), *_of_reads(loop), *_slow_workers(loop), *_slow_samples(loop)]
        found += [*_dips(loop), *_starts(loop), *_too_few(loop)]
    found += [*_slow_ranks(loop), *_without_cores(loop), *_interpreter(loop)]
    return found


def _share(part: Floats, whole: Floats) -> str:
    return f"{100 * min(part.sum() / max(whole.sum(), 1e-300), 1.0):.0f} %"


# ------------------------------------------------------------------------------------- broad causes

_PARTS = {
    "opens": ("open", "Opening files or objects is {share} of what workers do: {each} s each."),
    "decode": ("decode", "Decoding is {share} of what workers do: {each} s each."),
    "transform": ("transform", "Transforming samples is {share} of what workers do."),
    "collate": ("collate", "Putting samples together is {share} of what workers do."),
    "lock": ("lock", "Workers wait for locks in {share} of their time: one at a time gets on."),
}
SAMPLE_CODE = "sample code"
"""Name of what samples take beside opening, reading, decoding and locks, where no transform is
called."""
_SAMPLE_CODE_SENTENCE = "The data set's own code is {share} of what workers do, beside its reading."


def _of_parts(loop: RecordedLoop) -> Iterator[Without]:
    """Objects of a server are opened by asking for them: that is not a file's doing."""
    parts = dict(_PARTS)
    if not is_transform(loop):
        del parts["transform"]
        parts[SAMPLE_CODE] = ("transform", _SAMPLE_CODE_SENTENCE)
    for name, (operation, sentence) in parts.items():
        if operation in loop.known:
            part = loop.of(operation)
            if name == "opens" and loop.served:
                continue
            count = max(loop.of(operation, "count").sum(), 1.0)
            told = sentence.format(
                share=_share(part, loop.way.load), each=f"{part.sum() / count:.2g}"
            )
            if place := main_place(loop, operation):
                told += place.sentence()
            way = computing_less(loop, part) if operation in COMPUTED else less(loop.way, part)
            yield Without(name, way, told, SPECIAL if name == "lock" else 1.0)
    if loop.way.workers:
        way = loop.way
        took = np.broadcast_to(way.sending + way.handover, way.load.shape).mean()
        told = f"A batch that is made is in the loop's hands {took:.2g} s later at the least."
        at_best = np.minimum(way.handover, HANDOVER_S)
        yield Without("send", replace(way, sending=0.0, handover=at_best, more=0.0), told)


def _of_reads(loop: RecordedLoop) -> Iterator[Without]:
    requests, nbytes, device = reading(loop)
    if loop.served:
        requests = requests + loop.of("open")
    count, size = loop.of("read", "count").sum(), loop.of("read", "nbytes").sum()
    moved = nbytes + device
    if requests.any():
        each = requests.sum() / max(count, 1)
        told = f"Reading takes {each:.2g} s a request, whatever that brings."
        yield Without("latency", less(loop.way, requests), told)
    if moved.any():
        told = f"Reading brings {size / moved.sum() / 1e6:.3g} MB/s a worker."
        yield Without("bandwidth", less(loop.way, moved), told)
    later = (loop.epoch > 0)[:, None]
    disk = np.nan_to_num(loop.of("read", "disk_nbytes")) * later
    if disk.any():
        told = f"{disk.sum() / 1e9:.3g} GB came from the device in epochs after the first."
        yield Without("page cache", less(loop.way, device * later), told, 1.25 * SPECIAL)
    else:
        missed, share = _missed(loop)
        told = f"Of samples that were read before, {100 * share:.0f} % came from memory."
        yield Without("page cache", less(loop.way, missed), told, 1.25 * SPECIAL)


def _missed(loop: RecordedLoop) -> tuple[Floats, float]:
    """What samples that were read before take more than those of them that come from memory, (B,
    M), and the share of these: where a file system does not say what it reads from a device."""
    more, table = np.zeros(loop.way.load.shape), loop.samples[loop.samples["sample"] >= 0]
    again = table.duplicated("sample").to_numpy()
    seconds = table["seconds"].to_numpy()
    quick = float(np.quantile(seconds[~again], 0.05)) if len(seconds) else 0.0
    fast = again & (seconds < FAST * quick)
    share = fast.sum() / max(again.sum(), 1)
    if not LEAST_HITS <= share <= 1 - LEAST_HITS:
        return more, share
    slow = again & ~fast
    late = np.maximum(seconds[slow] - np.median(seconds[fast]), 0.0)
    np.add.at(more, (table["place"].to_numpy()[slow], table["rank"].to_numpy()[slow]), late)
    return np.minimum(more, loop.of("open") + loop.of("read")), float(share)


def _of_steps(loop: RecordedLoop) -> Iterator[Without]:
    step = loop.of("step")
    for name, told in (
        ("copy", "Copying batches to the device is {} of the steps."),
        ("allreduce", "Summing gradients over the ranks is {} of the steps."),
    ):
        if name in loop.known:
            part = loop.summed if name == "allreduce" else np.minimum(loop.of(name), step)
            yield Without(name, less(loop.way, step=part), told.format(_share(part, step)))


def _without_cores(loop: RecordedLoop) -> Iterator[Without]:
    """What threads that could compute waited for a core."""
    load = np.nan_to_num(loop.of("fetch", "queued_s"))
    step = np.nan_to_num(loop.of("step", "queued_s"))
    if load.any() or step.any():
        told = f"Threads wait for a core in {_share(load, loop.way.load)} of the workers' time"
        told += f" and {_share(step, loop.way.step)} of the steps."
        waited = np.nan_to_num(loop.of("wait", "queued_s"))
        way = replace(loop.way, handover=np.maximum(loop.way.handover - waited, 0.0))
        # who computes less waits less for cores: they are the cause where that is most of it
        yield Without("cores", less(way, load, step), told, 0.625 * SPECIAL)


def _interpreter(loop: RecordedLoop) -> Iterator[Without]:
    """What a step neither computes nor waits for a core, the device or other ranks, where a thread
    that asks for the interpreter gets it late. PyTorch's operators give it up and ask for it again
    each (torch/csrc/autograd, `pybind11::gil_scoped_release`)."""
    late = loop.of("gil").sum() / max(loop.of("gil", "count").sum(), 1.0)
    if late < LATE_S:
        return
    blocked = np.zeros(loop.way.step.shape)
    for of in ("step", *(["wait"] if not loop.way.workers else [])):
        own = loop.of(of) - loop.of(of, "cpu_s") - np.nan_to_num(loop.of(of, "queued_s"))
        blocked += np.nan_to_num(own)
    blocked -= loop.of("copy") + loop.of("allreduce")
    blocked -= sum(loop.of(name) for name in ("open", "read", "lock")) * (not loop.way.workers)
    told = f"A thread that asks for the interpreter gets it {1e3 * late:.2g} ms late: another holds"
    yield Without("gil", less(loop.way, step=np.maximum(blocked, 0.0)), f"{told} it.", SPECIAL)


# ---------------------------------------------------------------------------------- narrower causes


def _slow_workers(loop: RecordedLoop) -> Iterator[Without]:
    """One at a time."""
    for rank in range(loop.way.load.shape[1]):
        worker, load = loop.worker[:, rank], loop.way.load[:, rank]
        names = np.unique(worker[worker >= 0])
        middle = np.array([np.median(load[worker == of]) for of in names])
        for place, name in enumerate(names):
            peers = np.delete(middle, place)
            if len(peers) and middle[place] > SLOW * (usual := float(np.median(peers))):
                more = np.zeros(loop.way.load.shape)
                own = worker == name
                more[own, rank] = load[own] * (1 - usual / middle[place])
                told = f"Worker {name} takes {middle[place]:.2g} s for a batch, its peers "
                yield Without("slow worker", less(loop.way, more), f"{told}{usual:.2g} s.", SPECIAL)


def outliers(values: Floats) -> np.ndarray:
    """Which of (N,) are far above the others."""
    middle = np.median(values)
    spread = np.median(np.abs(values - middle)) / 0.6745
    return np.asarray(values > max(middle + OUTLIER * spread, TWICE * middle))


def _slow_samples(loop: RecordedLoop) -> Iterator[Without]:
    table = loop.samples
    seconds = table["seconds"].to_numpy()
    if not len(seconds):
        return
    # what is slow for its own sake is so each time
    again = table.groupby("sample")["seconds"].transform("min").to_numpy()
    seconds = np.where(table["sample"] >= 0, again, seconds)
    slow = outliers(seconds)
    more = np.zeros(loop.way.load.shape)
    usual = float(np.median(seconds))
    where = (table["place"].to_numpy()[slow], table["rank"].to_numpy()[slow])
    np.add.at(more, where, seconds[slow] - usual)
    # a sample cannot make a batch slower than that is
    more = np.minimum(more - loop.late, loop.way.load - np.median(loop.way.load)).clip(0.0)
    if not slow.any():
        return
    names = table["sample"].to_numpy()[slow][np.argsort(-seconds[slow])]
    shown = [str(name) for name in dict.fromkeys(names.tolist()) if name >= 0][:3]
    told = f"{slow.sum()} of {len(slow)} samples take {seconds[slow].mean():.2g} s in the mean, "
    told += f"the median {usual:.2g} s{'; the slowest are ' * bool(shown)}{', '.join(shown)}."
    yield Without("slow sample", less(loop.way, more), told, SPECIAL)


def dips(values: Floats, near: int) -> tuple[np.ndarray, float]:
    """Which of (N,) are far above the others, if they come in turn, and after how many the next
    does; else none. Those within ``near`` of one another are one dip."""
    high, more = outliers(values), values - np.median(values)
    if high.sum() >= LEAST_DIPS:  # chance makes smaller ones, out of turn
        high &= more >= np.sort(more)[-LEAST_DIPS] / 2
    at = np.flatnonzero(high)
    begins = at[np.diff(at, prepend=-np.inf) > near]
    gaps = np.diff(begins)
    if len(gaps) < 2 or gaps.std() > EVEN[len(gaps) >= LEAST_DIPS] * gaps.mean():
        return np.zeros(len(values), dtype=bool), np.nan
    return high, float(gaps.mean())


def _dips(loop: RecordedLoop) -> Iterator[Without]:
    way = loop.way
    for of, near in (("fetch", max(way.workers, 1)), ("step", 1)):
        values = loop.of(of).copy() if of == "fetch" else way.step.copy()
        for begin in way.first[:-1]:  # how epochs begin is another matter
            values[begin : begin + near] = np.median(values, axis=0)
        more, turns = np.zeros(values.shape), []
        for rank in range(values.shape[1]):
            high, turn = dips(values[:, rank], near)
            more[high, rank] = values[high, rank] - np.median(values[:, rank])
            turns += [turn] * bool(high.any())
        if turns and of == "fetch":
            told = f"Every {np.mean(turns):.3g} batches, in the loader's order, one takes longer."
            yield Without("loader dips", less(way, more), told, 1.1 * SPECIAL)
        elif turns:
            told = f"Every {np.mean(turns):.3g} steps one takes longer, by "
            told += f"{more[more > 0].mean():.2g} s."
            yield Without("loop dips", less(way, step=more), told, SPECIAL)


def _starts(loop: RecordedLoop) -> Iterator[Without]:
    """Without new workers at the epochs after the first."""
    begin = loop.way.begin
    if loop.way.workers and len(begin) > 1 and not loop.settings.get("persistent_workers"):
        took = float((begin[1:].mean(axis=1) + loop.ending[:-1]).mean())
        told = f"New workers begin {took:.2g} s after an epoch does."
        yield Without("workers anew", kept_workers(loop), told, SPECIAL)


def _too_few(loop: RecordedLoop) -> Iterator[Without]:
    """With more workers, where cores are known to be free for them."""
    cpu = cpu_s(loop)
    if loop.cores is None or not np.isfinite(cpu):
        return
    if (way := more_workers(loop, loop.cores)) is not None:
        told = f"{loop.way.workers} workers are too few; {loop.cores} cores can be used."
        if not loop.way.workers:
            told = "The loop makes its batches itself: nothing is loaded while it steps."
        # waiting for files is the files' doing, whoever waits; computing is not the data's
        computed = np.nan_to_num(loop.of("fetch", "cpu_s")).sum() / loop.way.load.sum()
        none = SPECIAL if not loop.way.workers else 1.0
        yield Without("workers", way, told, none if computed > MOSTLY else none * float(computed))


def _slow_ranks(loop: RecordedLoop) -> Iterator[Without]:
    """One at a time, where ranks wait for one another."""
    way = loop.way
    ranks = way.load.shape[1]
    if not way.met:
        return
    for rank in range(ranks):
        peers = np.delete(np.arange(ranks), rank)
        like = []
        for values, of in ((way.load, slice(None)), (way.step, loop.met_seen)):
            usual = float(np.median(values[of][:, peers]))
            factor = usual / max(float(np.median(values[of, rank])), 1e-300)
            changed = values.copy()
            changed[:, rank] *= factor if factor < 1 / SLOW else 1.0
            like.append(changed)
        told = f"Rank {rank} is slower than the others, which wait for it."
        yield Without("straggler rank", replace(way, load=like[0], step=like[1]), told, SPECIAL)
