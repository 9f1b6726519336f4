"""What may help a loop, each as the loop with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simshuffle.doctor.causes import cpu_s, first_as_good, kept_workers, more_workers
from simshuffle.doctor.loop import Loop
from simshuffle.doctor.replay import Way, elapsed

MOST_AHEAD = 32
"""Batches ahead of a worker that are tried (chosen; torch takes 2)."""
FITS = 0.5
"""Share of the memory that a cache may fill (chosen: the rest is the training's)."""


@dataclass(frozen=True)
class Helps:
    """The loop with one thing done."""

    name: str
    way: Way
    cost: str
    limit: str  # what binds then
    change: Mapping[str, Any] | None = None
    sure: float = 1.0  # share of the gain that is left if what is assumed does not hold


_CURES: Mapping[str, tuple[tuple[str, str, float], ...]] = {
    "opens": (("store samples in shards, many in a file", "the data written again", 0.8),),
    "latency": (("read in larger requests, or several at a time", "a change of code", 0.5),),
    "bandwidth": (("keep the data on a local SSD", "a disk that holds it", 0.5),),
    "page cache": (("shuffle partially, or in shards that stay", "a change of the order", 0.5),),
    "decode": (("decode on the accelerator, or store samples decoded", "a change of code", 0.5),),
    "transform": (("transform whole batches, or on the accelerator", "a change of code", 0.5),),
    "collate": (("put batches together in one array", "a change of code", 0.5),),
    "send": (("send fewer, larger tensors", "a change of code", 0.5),),
    "lock": (("open a handle for each worker", "a change of code", 0.5),),
    "slow worker": (("free the core of the slow worker", "a look at what else runs", 0.8),),
    "slow sample": (("make the slow samples smaller, or leave them out", "some samples", 0.8),),
    "loader dips": (("open the next shard ahead, or mix shards", "a change of code", 0.5),),
    "loop dips": (("save or log less often, or beside the loop", "a change of code", 0.8),),
    "straggler rank": (("take the slow host out", "a spare host", 0.8),),
    "gil": (("move Python work out of the loop's process", "a change of code", 0.0),),
    "allreduce": (("sum less often, or overlap it with the backward pass", "larger batches", 0.0),),
}


def remedies(loop: Loop, without: Mapping[str, Way], found: Sequence[str]) -> list[Helps]:
    """What may help against the causes found; the loop without each cause is given."""
    if not found:
        return []
    out = [
        Helps(name, way, cost, _limit(way), sure=sure)
        for cause in found
        for name, cost, sure in _CURES.get(cause, ())
        for way in [without[cause]]
    ]
    out += _of_copies(loop, without, found)
    if loop.made_by:
        out += [*_more_workers(loop), *_settings(loop), *_caches(loop, found)]
    return out


def _limit(way: Way) -> str:
    """What takes longest of a batch."""
    load, step = float(way.load.mean()), float(way.step.mean())
    if not way.workers:
        return "loads and steps, in turn"
    if load / way.workers > step:
        return f"the {way.workers} workers"
    return "the steps"


def _more_workers(loop: Loop) -> Iterator[Helps]:
    """More of them, up to the cores; if these are not known, up to four times as many."""
    now, cpu, load = loop.way.workers, cpu_s(loop), float(loop.way.load.mean())
    way = more_workers(loop, loop.cores if loop.cores is not None else max(4 * now, 4))
    if way is None:
        return
    full = float(way.load.mean()) > load
    cost = f"{way.workers - now} more processes"
    # what workers share, such as a disk, may be what binds: then more of them gain nothing
    computed = min(1.0, cpu / load) if np.isfinite(cpu) else 0.0
    limit = "the cores" if full else _limit(way)
    name, change = f"{way.workers} workers", {"num_workers": way.workers}
    yield Helps(name, way, cost, limit, change, computed)


def _settings(loop: Loop) -> Iterator[Helps]:
    """Arguments of the DataLoader."""
    way = loop.way
    if not way.workers:
        return
    tried = [replace(way, prefetch=k) for k in (4, 8, 16, MOST_AHEAD) if k > way.prefetch]
    if (best := first_as_good(float(elapsed(way).mean()), tried)) is not None:
        ahead = best.prefetch
        cost = f"memory for {way.workers * (ahead - way.prefetch)} more batches"
        name, change = f"{ahead} batches ahead of each worker", {"prefetch_factor": ahead}
        yield Helps(name, best, cost, _limit(best), change, 0.5)
    if way.in_order and way.workers > 1:
        as_made = replace(way, in_order=False)
        cost = "another order of batches"
        yield Helps(
            "hand out batches as they are made",
            as_made,
            cost,
            _limit(way),
            {"in_order": False},
        )
    if not loop.settings.get("persistent_workers") and len(way.begin) > 1:
        kept = kept_workers(loop)
        cost = "the memory of workers between epochs"
        yield Helps(
            "keep workers for all epochs",
            kept,
            cost,
            _limit(kept),
            {"persistent_workers": True},
        )


def _of_copies(loop: Loop, without: Mapping[str, Way], found: Sequence[str]) -> Iterator[Helps]:
    if "copy" in found:
        way, cost = without["copy"], "a thread, and memory that cannot be swapped"
        name = "pin memory and copy without blocking"
        yield Helps(name, way, cost, _limit(way), {"pin_memory": True}, 0.5)


def _caches(loop: Loop, found: Sequence[str]) -> Iterator[Helps]:
    """Keep the data in memory, where it fits."""
    size = loop.files_nbytes
    if size is None or loop.memory_nbytes is None or size > FITS * loop.memory_nbytes:
        return
    if {"opens", "latency", "bandwidth", "page cache"} & set(found):
        part = loop.of("open") + loop.of("read")
        way = replace(loop.way, load=np.maximum(loop.way.load - part, 0.0))
        cost = f"{size / 1e9:.3g} GB of memory"
        yield Helps("keep the data in memory", way, cost, _limit(way), None, 0.8)
