"""The loop of a record as arrays: what every batch took, of each rank, and how it is replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.doctor.replay import Way, is_busy
from simshuffle.errors import refuse
from simshuffle.recorder.rows import CODES, OPERATIONS
from simshuffle.records.record import Record
from simshuffle.spec.arrays import Floats, Ints

LEAST_BATCHES = 3
"""A loop of fewer says nothing of how batches differ (chosen)."""
SUMMED = ("seconds", "cpu_s", "queued_s", "count", "nbytes", "disk_nbytes")
AGAIN = "Record it again, for longer."


@dataclass(frozen=True)
class Loop:
    """B batches of E epochs that all of M ranks went through, one epoch after another."""

    sums: Mapping[str, Floats]  # of `SUMMED`: (operations, B, M); nan where something is not known
    known: frozenset[str]  # operations of which there are rows
    samples: pd.DataFrame  # place (of a batch), rank (place), seconds, sample
    worker: Ints  # (B, M) that made a batch; -1 for the rank itself, or if not known
    ending: Floats  # (E, M) s at the end of an epoch, in which workers end; of its last step
    way: Way  # as it was recorded
    settings: Mapping[str, Any]  # of the loader, as `Record.about` has them
    threads: int  # of torch in the process of a rank
    cores: int | None  # that the process may use, of a rank's share
    memory_nbytes: float | None  # of the host
    files: int  # that were opened; 0 where objects of a server are read instead
    files_nbytes: float | None  # of these
    notes: list[str]  # what could not be used

    def of(self, operation: str, column: str = "seconds") -> Floats:
        """What one kind of operation summed to for each batch and rank, (B, M)."""
        out: Floats = self.sums[column][CODES[operation]]
        return out

    @property
    def measured(self) -> Floats:
        """s that each batch took as it was recorded, (B, M)."""
        return self.of("wait") + self.of("step")

    @property
    def made_by(self) -> bool:
        """Whether what makes the batches was recorded."""
        return "fetch" in self.known

    @property
    def epoch(self) -> Ints:
        """Of each batch, (B,), from 0."""
        return np.repeat(np.arange(len(self.way.first) - 1), np.diff(self.way.first))


def loop_of(record: Record) -> Loop:
    """The loop that took longest of a record. Raises an InputError if it has none."""
    rows, source = record.rows, record.source
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
    places, ranks = _places(turns, source)
    known = rows[rows["loader"].isin([loader, -1])]
    located, place, rank = _located(known, turns, places, ranks)
    sums = _sums(located, place, rank, (len(places), len(ranks)))
    loaders = record.about.get("loaders", [])
    settings = loaders[loader] if 0 <= loader < len(loaders) else {}
    ending = _endings(known, places, ranks)
    return _loop(record, located, place, rank, places, sums, ending, settings, notes)


def _places(turns: pd.DataFrame, source: str) -> tuple[pd.MultiIndex, Ints]:
    """Epoch and batch of those that all ranks waited for and stepped with, and the ranks."""
    counts = turns.drop_duplicates(["epoch", "batch", "rank", "operation"])
    ranks = np.unique(counts["rank"])
    whole = counts.groupby(["epoch", "batch"]).size() == 2 * len(ranks)
    places = pd.MultiIndex.from_frame(whole[whole].index.to_frame(index=False))
    if len(places) < LEAST_BATCHES:
        rule = f"must have at least {LEAST_BATCHES} batches of all ranks, each with wait and step"
        refuse("RECORD", rule, str(len(places)), AGAIN, source)
    return places, ranks


def _located(
    rows: pd.DataFrame, turns: pd.DataFrame, places: pd.MultiIndex, ranks: Ints
) -> tuple[pd.DataFrame, Ints, Ints]:
    """Rows of these batches, and place and rank of each. Rows of no batch are of the one that their
    rank waited for or stepped with when they began."""
    turn = rows["operation"].isin(["wait", "step"]) & (rows["batch"] < 0)
    rows = rows[~turn]  # no batch came
    rank = pd.Index(ranks).get_indexer(pd.Index(rows["rank"]))
    place = places.get_indexer(pd.MultiIndex.from_frame(rows[["epoch", "batch"]]))
    place[rows["batch"] < 0] = -1
    waits = turns[turns["operation"] == "wait"]
    for number, name in enumerate(ranks):
        own = waits[waits["rank"] == name]
        of = places.get_indexer(pd.MultiIndex.from_frame(own[["epoch", "batch"]]))
        loose = np.flatnonzero((rank == number) & (rows["batch"] < 0))
        if len(own) and len(loose):
            at = np.searchsorted(own["start_s"], rows["start_s"].to_numpy()[loose], "right") - 1
            place[loose] = np.where(at >= 0, of[at], -1)
    there = (place >= 0) & (rank >= 0)
    return rows[there], place[there], rank[there]


def _endings(rows: pd.DataFrame, places: pd.MultiIndex, ranks: Ints) -> Floats:
    """s of the waits of every epoch for which no batch came, (E, M)."""
    last = rows[(rows["operation"] == "wait") & (rows["batch"] < 0)]
    sums = last.groupby(["epoch", "rank"])["seconds"].sum().unstack()
    epochs = np.unique(places.get_level_values(0))
    out: Floats = sums.reindex(index=epochs, columns=ranks).fillna(0.0).to_numpy(float)
    return out


def _sums(rows: pd.DataFrame, place: Ints, rank: Ints, shape: tuple[int, int]) -> dict[str, Floats]:
    codes = rows["operation"].cat.set_categories(list(OPERATIONS)).cat.codes.to_numpy()
    where = np.ravel_multi_index((codes.astype(int), place, rank), (len(OPERATIONS), *shape))
    size = len(OPERATIONS) * shape[0] * shape[1]
    return {
        name: np.bincount(where, rows[name].to_numpy(float), size).reshape(-1, *shape).astype(float)
        for name in SUMMED
    }


def _loop(
    record: Record,
    rows: pd.DataFrame,
    place: Ints,
    rank: Ints,
    places: pd.MultiIndex,
    sums: dict[str, Floats],
    ending: Floats,
    settings: Mapping[str, Any],
    notes: list[str],
) -> Loop:
    known = frozenset(rows["operation"].unique().astype(str))
    seconds = {name: sums["seconds"][code] for name, code in CODES.items()}
    shape = seconds["wait"].shape
    first = np.searchsorted(places.get_level_values(0), np.unique(places.get_level_values(0)))
    bounds = (*map(int, first), shape[0])
    starts, worker = np.full((2, *shape), np.nan)
    of = (rows["operation"] == "fetch").to_numpy()
    starts[place[of], rank[of]] = rows["start_s"].to_numpy()[of]
    worker[place[of], rank[of]] = rows["worker"].to_numpy()[of]
    asked = np.full(shape, np.nan)
    of = (rows["operation"] == "wait").to_numpy()
    asked[place[of], rank[of]] = rows["start_s"].to_numpy()[of]
    began = np.repeat(np.minimum.reduceat(asked, first), np.diff(bounds), axis=0)
    made = np.where(np.isnan(worker), -1, worker).astype(np.int64)
    count = int(settings.get("num_workers", made.max() + 1))
    load = seconds["fetch"]
    seconds["step"][np.array(bounds[1:]) - 1] += ending
    step, met = _own_steps(seconds, known)
    if "fetch" not in known:
        notes.append("What makes the batches was not recorded: why they are late cannot be told.")
        load, count = seconds["wait"], 0
    elif (lost := np.isnan(starts)).any():
        notes.append(f"{int(lost.sum())} batches were made unseen: they are taken as the median.")
        load = np.where(lost, np.nanmedian(np.where(lost, np.nan, load), axis=0), load)
    begin = np.zeros((len(first), max(count, 1), shape[1]))
    if count:
        begin = _begins(starts - began, made, bounds, count)
    way = Way(
        load=load,
        step=step,
        begin=begin,
        first=bounds,
        workers=count,
        prefetch=int(settings.get("prefetch_factor") or 2),
        in_order=bool(settings.get("in_order", True)),
        met=met,
        handover=np.maximum(seconds["wait"] - load, 0.0) if not count else 0.0,
    )
    if count:
        way = _handed_over(way, starts, seconds["send"], asked, asked + seconds["wait"])
    host = record.about.get("host", {})
    samples = rows["operation"].to_numpy() == "sample"
    table = rows.loc[samples, ["seconds", "sample"]].assign(place=place[samples])
    return Loop(
        sums=sums,
        known=known,
        samples=table.assign(rank=rank[samples]),
        worker=made,
        ending=ending,
        way=way,
        settings=settings,
        threads=int(record.about.get("threads", 1)),
        cores=max(1, int(host["cores"]) // shape[1]) if "cores" in host else None,
        memory_nbytes=host.get("memory_nbytes"),
        files=int(record.about.get("files", 0)),
        files_nbytes=record.about.get("files_nbytes"),
        notes=notes,
    )


def _handed_over(way: Way, start: Floats, send: Floats, asked: Floats, taken: Floats) -> Way:
    """The way with what it took to send what was made, and to get in hand what was sent. A worker
    sends one after the other: those that wait for that are in ``send``, too."""
    end, sent, busy = start + way.load, start + way.load + send, np.zeros(start.shape, dtype=bool)
    sending = send.copy()
    there = np.maximum(sent, asked)
    for low, high in pairwise(way.first):
        of, later = np.s_[low:high], np.s_[low + way.workers : high]
        queue = sent[low : max(high - way.workers, low)]
        sending[later] = np.maximum(sent[later] - np.maximum(end[later], queue), 0.0)
        busy[of] = is_busy(there[of], start[of], end[of], way)
    took = np.maximum(taken - there, 0.0)
    took, sending = (np.where(np.isnan(x), np.nanmedian(x), x) for x in (took, sending))
    more = 0.0
    if way.in_order and min(busy.sum(), (~busy).sum()) >= LEAST_BATCHES:
        more = max(float(took[busy].mean() - took[~busy].mean()), 0.0)
    return replace(way, sending=sending, handover=took, busy=busy, more=more)


def _own_steps(seconds: Mapping[str, Floats], known: frozenset[str]) -> tuple[Floats, bool]:
    """Steps without what a rank waits in them for others, (B, M), and whether ranks meet: the last
    one waits for none, so the shortest of their collectives is what these take."""
    step = seconds["step"]
    met = step.shape[1] > 1 and "allreduce" in known
    if not met:
        return step, False
    waited = seconds["allreduce"] - seconds["allreduce"].min(axis=1, keepdims=True)
    return np.maximum(step - waited, 0.0), True


def _begins(after: Floats, worker: Ints, bounds: tuple[int, ...], count: int) -> Floats:
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
