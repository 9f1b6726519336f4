"""The loop of a record as arrays: what every batch took, of each rank, and how it is replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.recorder.rows import CODES, OPERATIONS
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.extensions.doctor.replay import Way, is_busy
from simshuffle.spec.arrays import Flags, Floats, Ints

LEAST_BATCHES = 3
"""A loop of fewer says nothing of how batches differ (chosen)."""
SUMMED = ("seconds", "cpu_s", "queued_s", "count", "nbytes", "disk_nbytes")
PARTS = ("open", "read", "decode", "transform", "lock")
"""Of a fetch, beside collating."""
AGAIN = "Record it again, for longer."


@dataclass(frozen=True)
class RecordedLoop:
    """B batches of E epochs that all of M ranks went through, one epoch after another."""

    sums: Mapping[str, Floats]  # of `SUMMED`: (operations, B, M); nan where something is not known
    known: frozenset[str]  # operations of which there are rows
    samples: pd.DataFrame  # place (of a batch), rank (place), seconds, sample
    worker: Ints  # (B, M) that made a batch; -1 for the rank itself, or if not known
    ending: Floats  # (E, M) s at the end of an epoch, in which workers end; of its last step
    way: Way  # as it was recorded
    settings: Mapping[str, Any]  # of the loader, as `Record.about` has them
    device: str  # as torch names it; '' if not known
    threads: int  # of torch in the process of a rank
    late: Floats  # (B, M) s of the fetches that other programs had the cores
    cores: int | None  # that the process may use, of a rank's share
    others: float | None  # of them, that other programs had in the mean
    memory_nbytes: float | None  # of the host
    served: bool  # whether samples come from a server, and from no files
    file_nbytes: float | None  # of a file that was opened, in the mean
    files_nbytes: float | None  # of all of them
    notes: list[str]  # what could not be used
    # where in the code fetches and steps were seen, as in `Record.about`; None if nobody looked
    looks: Sequence[Mapping[str, Any]] | None = None
    all_cores: int | None = None  # of the host, of a rank's share
    waits_known: bool = True  # whether the record says how long the loop waited for its data

    def of(self, operation: str, column: str = "seconds") -> Floats:
        """What one kind of operation summed to for each batch and rank, (B, M)."""
        out: Floats = self.sums[column][CODES[operation]]
        return out

    @property
    def measured(self) -> Floats:
        """s that each batch took as it was recorded, (B, M)."""
        return self.of("wait") + self.of("step")

    @property
    def met_seen(self) -> Flags:
        """Of which batches it is known what ranks waited for one another, (B,)."""
        seen = np.asarray((self.of("allreduce", "count") > 0).all(axis=1))
        return seen if seen.any() else ~seen

    @property
    def summed(self) -> Floats:
        """s of the steps' collectives, (B, M), without what ranks wait in them for one another."""
        part = np.minimum(self.of("allreduce"), self.of("step"))
        if self.way.met:
            part = np.broadcast_to(part.min(axis=1, keepdims=True), part.shape)
        return part

    @property
    def places(self) -> Sequence[Mapping[str, Any]]:
        """Where in the code fetches and steps were seen, most often first."""
        return self.looks or ()

    @property
    def places_known(self) -> bool:
        """Whether the recorder looked at stacks."""
        return self.looks is not None

    @property
    def begins_at(self) -> int:
        """The first batch that counts: the loop waits for its very first once, if that is known."""
        return int(self.waits_known)

    @property
    def made_by(self) -> bool:
        """Whether what makes the batches was recorded."""
        return "fetch" in self.known

    @property
    def epoch(self) -> Ints:
        """Of each batch, (B,), from 0."""
        return np.repeat(np.arange(len(self.way.first) - 1), np.diff(self.way.first))


@dataclass(frozen=True)
class _Rows:
    """Rows of B batches and M ranks."""

    table: pd.DataFrame
    place: Ints  # of each row: its batch's
    rank: Ints  # its rank's
    shape: tuple[int, int]  # B, M

    def sums(self) -> dict[str, Floats]:
        """As `RecordedLoop.sums`."""
        codes = self.table["operation"].cat.codes.to_numpy().astype(np.int64)
        shape = (len(OPERATIONS), *self.shape)
        where = np.ravel_multi_index((codes, self.place, self.rank), shape)
        size = int(np.prod(shape))
        return {
            name: np.bincount(where, self.table[name].to_numpy(float), size)
            .reshape(shape)
            .astype(float)
            for name in SUMMED
        }

    def each(self, operation: str, column: str) -> Floats:
        """What stands in the row of every batch's operation, (B, M); nan where there is none."""
        out = np.full(self.shape, np.nan)
        of = (self.table["operation"] == operation).to_numpy()
        out[self.place[of], self.rank[of]] = self.table[column].to_numpy()[of]
        return out

    def samples(self) -> pd.DataFrame:
        """As `RecordedLoop.samples`."""
        of = ((self.table["operation"] == "sample") & (self.table["count"] <= 1)).to_numpy()
        found = self.table.loc[of, ["seconds", "sample"]]
        return found.assign(place=self.place[of], rank=self.rank[of])


def loop_of(record: Record) -> RecordedLoop:
    """The loop that took longest of a record. Raises an InputError if it has none."""
    rows, about, source = record.rows, record.about, record.source
    turns = rows[rows["operation"].isin(["wait", "step"]) & (rows["batch"] >= 0)]
    if turns.empty:
        rule = "must have the waits and steps of a loop"
        refuse("RECORD", rule, "none", "Record a script that loops over a DataLoader.", source)
    totals = turns.groupby("loader")["seconds"].sum()
    loader = int(totals.index[int(totals.argmax())])
    notes = []
    if (other := float(totals.drop(loader).sum())) > 0:
        notes.append(f"Loops over other loaders took {other:.3g} s; they are left out.")
    turns = turns[turns["loader"] == loader]
    own = rows[rows["loader"].isin([loader, -1])]
    if not (waits_known := bool((turns["operation"] == "wait").any())):
        unseen = _waits_of_no_time(turns)
        turns, own = pd.concat([unseen, turns]), pd.concat([unseen, own])
    places, ranks = _places(turns, source, LEAST_BATCHES if waits_known else 1)
    located = _located(own, turns, places, ranks)
    sums, known = located.sums(), frozenset(located.table["operation"].unique().astype(str))
    epochs, first = np.unique(places.get_level_values(0), return_index=True)
    bounds = (*map(int, first), len(places))
    ending = _endings(own, epochs, ranks)
    step = sums["seconds"][CODES["step"]]
    taken = located.each("wait", "start_s") + located.each("wait", "seconds")
    step += np.maximum(located.each("step", "start_s") - taken, 0.0)  # what recording takes
    step[np.array(bounds[1:]) - 1] += ending
    _fill_parts(sums)
    loaders = about.get("loaders", [])
    settings = loaders[loader] if 0 <= loader < len(loaders) else {}
    host = about.get("host", {})
    return RecordedLoop(
        sums=sums,
        known=known,
        samples=located.samples(),
        worker=np.nan_to_num(located.each("fetch", "worker"), nan=-1.0).astype(np.int64),
        ending=ending,
        way=_way(located, sums["seconds"], known, bounds, settings, notes),
        settings=settings,
        device=str(about.get("device", "")),
        threads=int(about.get("threads", 1)),
        cores=max(1, int(host["cores"]) // len(ranks)) if "cores" in host else None,
        late=np.zeros(located.shape),
        others=host["others"] / len(ranks) if "others" in host else None,
        memory_nbytes=host.get("memory_nbytes"),
        served=about.get("made_by") == "simshuffle" and not about.get("files"),
        file_nbytes=about["files_nbytes"] / about["files"] if about.get("files") else None,
        files_nbytes=about.get("files_nbytes"),
        notes=notes,
        looks=about.get("places"),
        all_cores=int(host["all_cores"]) // len(ranks) if "all_cores" in host else None,
        waits_known=waits_known,
    )


def _waits_of_no_time(steps: pd.DataFrame) -> pd.DataFrame:
    """Return a wait of 0 s in front of each step, for a loop whose waits were not recorded."""
    kinds = pd.CategoricalDtype(list(OPERATIONS))
    waits = steps.assign(operation=pd.Series("wait", index=steps.index, dtype=kinds))
    numbers = [name for name in SUMMED if name in waits]
    return waits.assign(**dict.fromkeys(numbers, 0))


def _places(turns: pd.DataFrame, source: str, least: int) -> tuple[pd.MultiIndex, Ints]:
    """Epoch and batch of those that all ranks waited for and stepped with, and the ranks."""
    counts = turns.drop_duplicates(["epoch", "batch", "rank", "operation"])
    ranks = np.unique(counts["rank"])
    whole = counts.groupby(["epoch", "batch"]).size() == 2 * len(ranks)
    places = pd.MultiIndex.from_frame(whole[whole].index.to_frame(index=False))
    if not turns["seconds"].sum() > 0:
        refuse("RECORD", "must have waits and steps that take time", "0 s", AGAIN, source)
    if len(places) < least:
        rule = f"must have at least {least} batches of all ranks, each with wait and step"
        refuse("RECORD", rule, str(len(places)), AGAIN, source)
    return places, ranks


def _located(rows: pd.DataFrame, turns: pd.DataFrame, places: pd.MultiIndex, ranks: Ints) -> _Rows:
    """The rows of these batches. Those of no batch are of the one that their rank waited for or
    stepped with when they began; waits for which no batch came are left out."""
    rows = rows[~(rows["operation"].isin(["wait", "step"]) & (rows["batch"] < 0))]
    rank = pd.Index(ranks).get_indexer(pd.Index(rows["rank"]))
    place = places.get_indexer(pd.MultiIndex.from_frame(rows[["epoch", "batch"]]))
    place[rows["batch"] < 0] = -1
    waits = turns[turns["operation"] == "wait"]
    for number, name in enumerate(ranks):
        own = waits[waits["rank"] == name]
        of = places.get_indexer(pd.MultiIndex.from_frame(own[["epoch", "batch"]]))
        loose = np.flatnonzero((rank == number) & (rows["batch"] < 0))
        at = np.searchsorted(own["start_s"], rows["start_s"].to_numpy()[loose], "right") - 1
        place[loose] = np.where(at >= 0, of[at], -1)
    there = (place >= 0) & (rank >= 0)
    return _Rows(rows[there], place[there], rank[there], (len(places), len(ranks)))


def _endings(rows: pd.DataFrame, epochs: Ints, ranks: Ints) -> Floats:
    """s of the waits of every epoch for which no batch came, (E, M)."""
    last = rows[(rows["operation"] == "wait") & (rows["batch"] < 0)]
    sums = last.groupby(["epoch", "rank"])["seconds"].sum().unstack()
    out: Floats = sums.reindex(index=epochs, columns=ranks).fillna(0.0).to_numpy(float)
    return out


def _fill_parts(sums: Mapping[str, Floats]) -> None:
    """Batches of which no part of the fetch was timed get the parts of the others, in place: as
    large shares of what a fetch takes beside collating, and as many files and bytes."""
    codes, seconds = [CODES[name] for name in PARTS], sums["seconds"]
    rest = np.maximum(seconds[CODES["fetch"]] - seconds[CODES["collate"]], 0.0)
    seen = seconds[codes].sum(axis=0) > 0
    unseen = (rest > 0) & ~seen
    if not seen.any() or not unseen.any():
        return
    for code in codes:
        share = seconds[code][seen].sum() / max(rest[seen].sum(), 1e-300)
        seconds[code][unseen] = rest[unseen] * share
        for name in ("count", "nbytes", "disk_nbytes"):
            sums[name][code][unseen] = sums[name][code][seen].mean()


def _way(
    rows: _Rows,
    sums: Floats,
    known: frozenset[str],
    bounds: tuple[int, ...],
    settings: Mapping[str, Any],
    notes: list[str],
) -> Way:
    """How the loop went; ``notes`` are told what is not known of that."""
    seconds = {name: sums[code] for name, code in CODES.items()}
    step, met = _own_steps(seconds, known)
    begin = np.zeros((len(bounds) - 1, 1, rows.shape[1]))
    if "fetch" not in known:
        notes.append("What makes the batches was not recorded: why they are late cannot be told.")
        return Way(seconds["wait"], step, begin, bounds, 0, 1, met=met)
    start, asked, load = (
        rows.each("fetch", "start_s"),
        rows.each("wait", "start_s"),
        seconds["fetch"],
    )
    if (lost := np.isnan(start)).any():
        notes.append(f"{int(lost.sum())} batches were made unseen: they are taken as the median.")
        load = np.where(lost, np.nanmedian(np.where(lost, np.nan, load)), load)
    worker = rows.each("fetch", "worker")
    workers = int(settings.get("num_workers", np.nanmax(worker) + 1))
    prefetch = int(settings.get("prefetch_factor") or 2)
    if not workers:
        handover = np.maximum(seconds["wait"] - load, 0.0)
        return Way(load, step, begin, bounds, 0, prefetch, handover=handover, met=met)
    began = np.minimum.reduceat(asked, bounds[:-1])
    after = start - np.repeat(began, np.diff(bounds), axis=0)
    begin = _begins(after, worker, bounds, workers)
    in_order = bool(settings.get("in_order", True))
    way = Way(load, step, begin, bounds, workers, prefetch, in_order=in_order, met=met)
    return _handed_over(way, start, seconds["send"], asked, asked + seconds["wait"])


def _handed_over(way: Way, start: Floats, send: Floats, asked: Floats, taken: Floats) -> Way:
    """The way with what it took to send what was made, and to get in hand what was sent; and with
    what workers took to begin what they were asked for, as part of their loads. A worker sends one
    after the other: those that wait for that are in ``send``, too."""
    end, sent, busy = start + way.load, start + way.load + send, np.zeros(start.shape, dtype=bool)
    sending, idle = send.copy(), np.zeros(start.shape)
    ahead = way.workers * way.prefetch
    there = np.maximum(sent, asked)
    for low, high in pairwise(way.first):
        of, later = np.s_[low:high], np.s_[low + way.workers : high]
        queue = sent[low : max(high - way.workers, low)]
        sending[later] = np.maximum(sent[later] - np.maximum(end[later], queue), 0.0)
        could = end[low : max(high - way.workers, low)].copy()
        asked_at = taken[low : max(high - ahead, low)]
        could[ahead - way.workers :] = np.maximum(could[ahead - way.workers :], asked_at)
        idle[later] = start[later] - could  # below 0 where the rank went on late after asking
        busy[of] = is_busy(there[of], start[of], end[of], way)
    took = np.maximum(taken - there, 0.0)
    took, sending, idle = (np.where(np.isnan(x), np.nanmedian(x), x) for x in (took, sending, idle))
    more = 0.0
    if way.in_order and min(busy.sum(), (~busy).sum()) >= LEAST_BATCHES:
        more = max(float(took[busy].mean() - took[~busy].mean()), 0.0)
    load = np.maximum(way.load + idle, 0.0) if way.in_order else way.load
    return replace(way, load=load, sending=sending, handover=took, busy=busy, more=more)


def _own_steps(seconds: Mapping[str, Floats], known: frozenset[str]) -> tuple[Floats, bool]:
    """Steps without what a rank waits in them for others, (B, M), and whether ranks meet: the last
    one waits for none, so the shortest of their collectives is what these take. Where only some
    were recorded, the others are taken as their median, in place."""
    step, each = seconds["step"], seconds["allreduce"]
    if "allreduce" in known:
        seen = (each > 0).all(axis=1)
        each[~seen] = np.minimum(np.median(each[seen], axis=0) if seen.any() else 0.0, step[~seen])
    if step.shape[1] == 1 or "allreduce" not in known:
        return step, False
    return np.maximum(step - (each - each.min(axis=1, keepdims=True)), 0.0), True


def _begins(after: Floats, worker: Floats, bounds: tuple[int, ...], count: int) -> Floats:
    """s from when an epoch's first batch is asked for until each worker begins, (E, W, M)."""
    begin = np.full((len(bounds) - 1, count, after.shape[1]), np.nan)
    for epoch, (low, high) in enumerate(pairwise(bounds)):
        for of in range(count):
            own = np.where(worker[low:high] == of, after[low:high], np.inf).min(axis=0)
            begin[epoch, of] = np.where(np.isfinite(own), own, np.nan)
    unseen = np.isnan(begin)
    if unseen.all():
        return np.zeros(begin.shape)
    return np.where(unseen, np.nanmedian(begin), begin)
