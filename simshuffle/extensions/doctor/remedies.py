"""What may help a loop, each as the loop with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simshuffle.extensions.doctor.causes import MOSTLY, SAMPLE_CODE
from simshuffle.extensions.doctor.loop import RecordedLoop
from simshuffle.extensions.doctor.places import main_place
from simshuffle.extensions.doctor.replay import Way, elapsed
from simshuffle.extensions.doctor.workers import (
    computed_share,
    cpu_s,
    first_as_good,
    kept_workers,
    less,
    more_workers,
)

MOST_AHEAD = 32
"""Batches ahead of a worker that are tried (chosen; torch takes 2)."""
MOST_WORKERS = 64
"""Workers of a rank that are tried (chosen)."""
FITS = 0.5
"""Share of the memory that a cache may fill (chosen: the rest is the training's)."""


@dataclass(frozen=True)
class Helps:
    """The loop with one thing done."""

    name: str
    way: Way
    cost: str
    change: Mapping[str, Any] | None = None  # that the recorder can make
    sure: float = 1.0  # share of the gain that is left if what is assumed does not hold
    best: Way | None = None  # if nothing of what is assumed holds the loop up
    cause: str = ""  # that it is against; '' where it may help against several

    @property
    def limit(self) -> str:
        """What takes longest of a batch then."""
        load, step = float(self.way.load.mean()), float(self.way.step.mean())
        if not self.way.workers:
            return "loads and steps, in turn"
        if load / self.way.workers <= step:
            return "the steps"
        if self.best is not None and load > self.best.load.mean():
            return "what workers share"
        return f"the {self.way.workers} worker{'s' * (self.way.workers > 1)}"


_CODE = "a change of code"
_CURES: Mapping[str, tuple[str, str, float]] = {
    "opens": ("store samples in shards, many in a file", "the data written again", 0.8),
    "latency": ("read in larger requests, or several at a time", _CODE, 0.5),
    "bandwidth": ("keep the data on a faster disk, or smaller", "a disk that holds them", 0.5),
    "page cache": ("shuffle partially, or in shards that stay", "another order", 0.5),
    "decode": ("decode on the accelerator, or store samples decoded", _CODE, 0.5),
    "transform": ("transform whole batches, or on the accelerator", _CODE, 0.5),
    "collate": ("put batches together in one array", _CODE, 0.5),
    "send": ("hand over fewer, smaller tensors", _CODE, 0.5),
    "lock": ("open a handle for each worker", _CODE, 0.5),
    "slow worker": ("give the slow worker what its peers have", "a look at its core and path", 0.8),
    "slow sample": ("make the slow samples smaller, or leave them out", "some samples", 0.8),
    "loader dips": ("open the next shard ahead, or mix shards", _CODE, 0.5),
    "loop dips": ("save or log less often, or beside the loop", _CODE, 0.8),
    "straggler rank": ("take the slow host out", "a spare host", 0.8),
    "gil": ("move Python work out of the loop's process", _CODE, 0.0),
    "allreduce": ("sum gradients and update every fourth batch", "batches four times larger", 0.5),
    "cores": ("fewer threads than cores", "slower steps, if these need them", 0.0),
    "copy": ("hand over what need not be converted", _CODE, 0.5),
}


def remedies(loop: RecordedLoop, without: Mapping[str, Way], found: Sequence[str]) -> list[Helps]:
    """What may help against the causes found; the loop without each cause is given."""
    out = []
    for cause in found:
        if cause == "copy" and loop.device != "cpu":
            name, cost = "pin memory, and copy without blocking", "memory that is not swapped"
            change = _loader(pin_memory=True)
            out.append(Helps(name, without[cause], cost, change, 0.5, cause=cause))
        elif cause == "cores" and (threads := _spare_cores(loop)) < loop.threads:
            name = f"{threads} thread{'s' * (threads > 1)} of torch, not {loop.threads}"
            cost, change = "slower steps, if these need them", {"torch_threads": threads}
            out.append(Helps(name, without[cause], cost, change, 0.0, cause=cause))
        elif cause == "cores" and loop.threads <= 1:
            continue  # it has no thread to spare; more cores are named below
        elif cause == SAMPLE_CODE:
            place = main_place(loop, "transform")
            what = place.where if place else "the data set's own code"
            name = f"make {what} cheaper, or do its work once, not for every sample"
            out.append(Helps(name, without[cause], _CODE, sure=0.5, cause=cause))
        elif cause in _CURES:
            name, cost, sure = _CURES[cause]
            way = _seldom_summed(loop) if cause == "allreduce" else without[cause]
            out.append(Helps(name, way, cost, sure=sure, cause=cause))
    if found:
        out += _more_cores(loop, without)
    if found and loop.made_by:
        out += [*_more_workers(loop), *_settings(loop), *_in_memory(loop, found)]
    return out


def _more_cores(loop: RecordedLoop, without: Mapping[str, Way]) -> Iterator[Helps]:
    """Give the rank more of the host's cores than it may use now, where its threads and workers are
    more than those."""
    wanted = loop.way.workers + max(loop.threads, 1)
    if loop.cores is None or loop.all_cores is None or "cores" not in without:
        return
    if loop.cores < min(wanted, loop.all_cores):
        count = min(wanted, loop.all_cores)
        name = (
            f"the rank may use {loop.cores} of {loop.all_cores} cores: give it {count}"
            f" (srun --cpus-per-task={count}, or taskset)"
        )
        cost = f"{count - loop.cores} more core{'s' * (count - loop.cores > 1)}"
        # W workers share k cores: a batch takes each at least W / k times what it computes
        way = without["cores"]
        least = np.nan_to_num(loop.of("fetch", "cpu_s")) * max(way.workers, 1) / count
        load = np.minimum(np.maximum(way.load, least), loop.way.load)
        yield Helps(name, replace(way, load=load), cost, sure=0.5, cause="cores")


def _spare_cores(loop: RecordedLoop) -> int:
    """Cores that a rank's workers leave, at least one."""
    return max(1, (loop.cores or loop.threads) - loop.way.workers)


def _seldom_summed(loop: RecordedLoop) -> Way:
    """The loop that sums its gradients, and updates, every fourth batch alone."""
    return less(loop.way, step=0.75 * (loop.summed + loop.of("optimizer")))


def _loader(**arguments: Any) -> dict[str, Any]:
    """Arguments of the DataLoader, as the recorder is told to change them."""
    return {"loader": arguments}


def _more_workers(loop: RecordedLoop) -> Iterator[Helps]:
    """As many as hide the loads, up to the cores or more where workers wait rather than compute."""
    now, cpu, load = loop.way, cpu_s(loop), float(loop.way.load.mean())
    enough = load / max(float(now.step.mean()), load / MOST_WORKERS)
    most = max(loop.cores or 1, int(enough) + 2)
    if loop.cores is not None and computed_share(loop) > MOSTLY:
        most = loop.cores  # more than the cores compute no more
    way = more_workers(loop, most)
    if way is not None:
        more = way.workers - now.workers
        # what workers wait for may be shared: then more of them gain nothing of that
        computed = min(1.0, cpu / load) if np.isfinite(cpu) else 0.0
        name = f"{way.workers} worker{'s' * (way.workers > 1)}, not {now.workers}"
        cost = f"{more} more process{'es' * (more > 1)}"
        # of the first workers it is not known what their start takes, so it is to be once
        stay = {} if now.workers else {"persistent_workers": True}
        change = _loader(num_workers=way.workers, **stay)
        yield Helps(name, way, cost, change, computed, now.with_workers(way.workers))


def _settings(loop: RecordedLoop) -> Iterator[Helps]:
    """Other arguments of the DataLoader."""
    way = loop.way
    if not way.workers:
        return
    tried = [replace(way, prefetch=k) for k in (4, 8, 16, MOST_AHEAD) if k > way.prefetch]
    if (best := first_as_good(float(elapsed(way).mean()), tried)) is not None:
        cost = f"memory for {way.workers * (best.prefetch - way.prefetch)} more batches"
        name = f"{best.prefetch} batches ahead of each worker, not {way.prefetch}"
        yield Helps(name, best, cost, _loader(prefetch_factor=best.prefetch), 0.5)
    if way.in_order and way.workers > 1:
        as_made, cost = replace(way, in_order=False), "another order of batches"
        yield Helps("hand out batches as they are made", as_made, cost, _loader(in_order=False))
    if not loop.settings.get("persistent_workers") and len(way.begin) > 1:
        kept, cost = kept_workers(loop), "the memory of workers between epochs"
        change = _loader(persistent_workers=True)
        yield Helps("keep workers for all epochs", kept, cost, change)


def _in_memory(loop: RecordedLoop, found: Sequence[str]) -> Iterator[Helps]:
    """Keep the files in memory, or the samples in that of a worker, where they fit."""
    way, most = loop.way, FITS * (loop.memory_nbytes or 0.0)
    reading = {"opens", "latency", "bandwidth", "page cache"} & set(found)
    if reading and loop.files_nbytes is not None and loop.files_nbytes <= most:
        load = np.maximum(way.load - loop.of("open") - loop.of("read"), 0.0)
        cost = f"{loop.files_nbytes / 1e9:.3g} GB of memory"
        yield Helps("keep the files in memory", replace(way, load=load), cost, None, 0.8)
    later = (loop.epoch > 0)[:, None]
    size = float(loop.of("collate", "nbytes")[~later[:, 0]].sum())
    stays = not way.workers or (way.workers == 1 and loop.settings.get("persistent_workers"))
    if stays and later.any() and 0 < size <= most:
        load = np.where(later, np.minimum(loop.of("collate"), way.load), way.load)
        name, cost = "keep samples in memory", f"{size / 1e9:.3g} GB of memory, no new augmentation"
        yield Helps(name, replace(way, load=load), cost, {"cache": True}, 0.8)
