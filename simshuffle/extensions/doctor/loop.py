"""Read the loop of a record into arrays: what every batch took on each rank, and its
replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.recorded_times import recorded_times
from simshuffle.extensions.doctor.recorder.rows import CODES, OPERATIONS
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.extensions.doctor.replay import LoopTimes
from simshuffle.extensions.doctor.rows_by_batch import (
    SUMMED_COLUMNS,
    RowsByBatch,
    assign_rows_to_batches,
)
from simshuffle.spec.arrays import Flags, Floats, Ints

MIN_BATCHES = 3
"""Batches below which a loop says nothing of how batches differ (chosen)."""
FETCH_PARTS = ("open", "read", "decode", "transform", "lock")
"""Operations of a fetch, without collating."""
RECORD_LONGER = "Record it again, for longer."


@dataclass(frozen=True)
class RecordedLoop:
    """A loop of a record: B batches of E epochs in a row, which all of M ranks went
    through.
    """

    # (operations, B, M) for each of `SUMMED_COLUMNS`; nan if not known, 0 without rows
    sums: Mapping[str, Floats]
    recorded_operations: frozenset[str]  # operations that have rows
    # rows of single samples: seconds, sample (its index, -1 if not known), batch_index, rank_index
    samples: pd.DataFrame
    worker_of_batch: (
        Ints  # (B, M) worker that made a batch; -1 for the rank itself or not known
    )
    epoch_end_s: Floats  # (E, M) s in which workers end after an epoch's last step
    times: LoopTimes  # of the loop as it was recorded
    # of the loader, as ``loaders`` of `Record.about` has them; {} if not known
    settings: Mapping[str, Any]
    device: str  # as torch names it; '' if not known
    threads: int  # of torch in the process of a rank
    # (B, M) s of the fetches in which other programs had the cores; 0 until `remove_core_waits`
    # has taken these off
    core_wait_s: Floats
    # facts on the host and its files; None if not known
    cores: int | None  # that the process may use, a rank's share, at least 1
    cores_of_others: float | None  # mean number of these that other programs had
    memory_nbytes: float | None  # of the host
    from_server: bool  # whether no file was opened, so that samples come from a server
    mean_file_nbytes: float | None  # mean bytes of an opened file
    total_file_nbytes: float | None  # bytes of all opened files
    notes: list[str]  # sentences on rows that could not be used
    # ``places`` of `Record.about`: where in the code fetches and steps were seen, most often first;
    # None if the recorder looked at no stacks
    code_places: Sequence[Mapping[str, Any]] | None = None
    host_cores: int | None = None  # all cores of the host, a rank's share
    # ``calls`` of `Record.about`: lines that open, connect or parse for samples
    known_calls: Sequence[Mapping[str, Any]] = ()
    # mean number of cores that a rank's process computes on, without workers; None if not known
    own_cores: float | None = None
    # (B, M) s of each step in which loops over other loaders went on; 0 if not known
    evaluation_s: Floats | float = 0.0
    # (B, M) s from the end of the previous epoch to an epoch's first batch; 0 for other batches
    between_s: Floats | float = 0.0
    # file, function and line that last set ``threads``; None if no line of the script did
    threads_set_at: Sequence[Any] | None = None
    waits_known: bool = (
        True  # whether the record says how long the loop waited for its data
    )

    def sum_of(self, operation: str, column: str = "seconds") -> Floats:
        """Return the sum of one column over an operation's rows of each batch and rank,
        (B, M): 0 without rows, nan where a row does not know it.

        The array is a view of ``sums``. A step's seconds also have the time from the
        end of its wait to its start; those of an epoch's last step, the wait for the
        workers' end.
        """
        table: Floats = self.sums[column][CODES[operation]]
        return table

    @property
    def measured_batch_s(self) -> Floats:
        """Recorded s of each batch, (B, M): its wait and its step, as `sum_of` has
        them.
        """
        return self.sum_of("wait") + self.sum_of("step")

    @property
    def meetings_recorded(self) -> Flags:
        """Flags of the batches, (B,), whose waits of ranks for one another are known;
        all are set if no batch has a collective of every rank.
        """
        has_allreduce = np.asarray((self.sum_of("allreduce", "count") > 0).all(axis=1))
        return has_allreduce if has_allreduce.any() else ~has_allreduce

    @property
    def allreduce_s(self) -> Floats:
        """Seconds of the steps' collectives, (B, M), at most the steps, without waits
        of ranks for one another: if ranks meet, the shortest of the ranks' for all.
        """
        collective_s = np.minimum(self.sum_of("allreduce"), self.sum_of("step"))
        if self.times.ranks_meet:
            shortest_s = collective_s.min(axis=1, keepdims=True)
            collective_s = np.broadcast_to(shortest_s, collective_s.shape)
        return collective_s

    @property
    def first_counted_batch(self) -> int:
        """Index of the first batch that counts: 1 if waits are known, because the loop
        waits for the first once; else 0.
        """
        return int(self.waits_known)

    @property
    def fetches_recorded(self) -> bool:
        """True if the record has the fetches that make the batches."""
        return "fetch" in self.recorded_operations

    @property
    def epoch_of_batch(self) -> Ints:
        """Index of each batch's epoch, (B,), from 0 for the first of the loop."""
        bounds = self.times.epoch_bounds
        return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


def extract_loop(record: Record) -> RecordedLoop:
    """Return the loop of a record that took longest: that over one loader.

    Batches count that all ranks waited for and stepped with, in the order of their
    epochs and numbers; rows of others are dropped. Rows of no loader belong to the
    batch during which they began. A loop whose waits were not recorded gets waits of
    0 s. Parts of fetches that were not timed are filled in from those that were.

    Raises:
        InputError: there is no loop, it takes no time, or has fewer than `MIN_BATCHES`
            batches, 1 where waits are not known.
    """
    turns = _turns(record)
    loader, notes = _longest_loader(turns)
    turns = turns[turns["loader"] == loader]
    rows = record.rows[record.rows["loader"].isin([loader, -1])]
    waits_known = bool((turns["operation"] == "wait").any())
    if not waits_known:
        zero_waits = _zero_waits(turns)
        turns = pd.concat([zero_waits, turns])
        rows = pd.concat([zero_waits, rows])

    min_batches = MIN_BATCHES if waits_known else 1
    batches, ranks = _complete_batches(turns, record.source, min_batches)
    waits = turns[turns["operation"] == "wait"]
    located = assign_rows_to_batches(rows, waits, batches, ranks)
    sums = located.sum_by_operation()
    recorded_operations = frozenset(located.table["operation"].unique().astype(str))
    epochs, first_batches = np.unique(batches.get_level_values(0), return_index=True)
    epoch_bounds = (*map(int, first_batches), len(batches))

    # time between the end of a wait and the start of the step is what recording takes
    step_s = sums["seconds"][CODES["step"]]
    wait_end = located.values_of("wait", "start_s") + located.values_of(
        "wait", "seconds"
    )
    step_s += np.maximum(located.values_of("step", "start_s") - wait_end, 0.0)
    epoch_end_s = _epoch_end_seconds(rows, epochs, ranks)
    step_s[np.array(epoch_bounds[1:]) - 1] += epoch_end_s
    evaluation_s, between_s = _other_loops(record, loader, located, sums, wait_end)
    step_s[np.array(epoch_bounds[1:-1], dtype=int) - 1] += between_s[
        np.array(epoch_bounds[1:-1], dtype=int)
    ]
    _fill_untimed_parts(sums)

    loaders = record.about.get("loaders", [])
    settings = loaders[loader] if 0 <= loader < len(loaders) else {}
    times = recorded_times(
        located,
        sums["seconds"],
        recorded_operations,
        epoch_bounds=epoch_bounds,
        settings=settings,
        notes=notes,
    )
    workers = np.nan_to_num(located.values_of("fetch", "worker"), nan=-1.0)
    return RecordedLoop(
        sums=sums,
        recorded_operations=recorded_operations,
        samples=located.select_samples(),
        worker_of_batch=workers.astype(np.int64),
        epoch_end_s=epoch_end_s,
        times=times,
        settings=settings,
        core_wait_s=np.zeros(located.shape),
        evaluation_s=evaluation_s,
        between_s=between_s,
        notes=notes,
        waits_known=waits_known,
        **_host_facts(record.about, len(ranks)),
    )


def _other_loops(
    record: Record,
    loader: int,
    located: RowsByBatch,
    sums: Mapping[str, Floats],
    wait_end: Floats,
) -> tuple[Floats, Floats]:
    """Return the s that loops over other loaders took within each step, (B, M), and the
    s between the previous epoch and each epoch's first batch without such loops,
    (B, M).

    Args:
        record: with all loaders.
        loader: of the loop.
        located: its rows by batch.
        sums: as of `RecordedLoop.sums`.
        wait_end: (B, M) s at the end of each wait.
    """
    evaluation_s = np.zeros(located.shape)
    between_s = sums["seconds"][CODES["between"]].copy()
    rows = record.rows
    is_other = (rows["loader"] >= 0) & (rows["loader"] != loader)
    other_loops = rows[is_other & rows["operation"].isin(["wait", "step"])]
    if other_loops.empty:
        return evaluation_s, between_s
    ranks = np.unique(record.rows.loc[record.rows["operation"] == "wait", "rank"])
    step_end = wait_end + sums["seconds"][CODES["step"]]
    for index, rank in enumerate(ranks[: located.shape[1]]):
        loops = other_loops[other_loops["rank"] == rank]
        starts = loops["start_s"].to_numpy()
        order = np.argsort(wait_end[:, index])
        batch = np.searchsorted(wait_end[order, index], starts, side="right") - 1
        is_after_a_wait = batch >= 0
        batch = order[np.maximum(batch, 0)]
        seconds = loops["seconds"].to_numpy() * is_after_a_wait
        is_in_step = starts <= step_end[batch, index]
        np.add.at(evaluation_s[:, index], batch, seconds * is_in_step)
        following = np.minimum(batch + 1, len(wait_end) - 1)
        np.subtract.at(between_s[:, index], following, seconds * ~is_in_step)
    return evaluation_s, np.maximum(between_s, 0.0)


def _host_facts(about: Mapping[str, Any], num_ranks: int) -> dict[str, Any]:
    """Return the fields of `RecordedLoop` on host, device, files and code places, by
    name; None for facts that are not known, but 1 thread and the device ''.

    Cores are a rank's share of the host's, rounded down.
    """
    host = about.get("host", {})
    num_files = about.get("files")
    return {
        "device": str(about.get("device", "")),
        "threads": int(about.get("threads", 1)),
        "cores": max(1, int(host["cores"]) // num_ranks) if "cores" in host else None,
        "cores_of_others": host["others"] / num_ranks if "others" in host else None,
        "memory_nbytes": host.get("memory_nbytes"),
        "from_server": about.get("made_by") == "simshuffle" and not num_files,
        "mean_file_nbytes": about["files_nbytes"] / num_files if num_files else None,
        "total_file_nbytes": about.get("files_nbytes"),
        "threads_set_at": about.get("threads_set_at"),
        "code_places": about.get("places"),
        "known_calls": about.get("calls", ()),
        "own_cores": host.get("own"),
        "host_cores": max(1, int(host["all_cores"]) // num_ranks)
        if "all_cores" in host
        else None,
    }


def _turns(record: Record) -> pd.DataFrame:
    """Return the waits and steps of batches. Raises an InputError if there are none."""
    rows = record.rows
    turns = rows[rows["operation"].isin(["wait", "step"]) & (rows["batch"] >= 0)]
    if turns.empty:
        rule = "must have the waits and steps of a loop"
        remedy = "Record a script that loops over a DataLoader."
        refuse("RECORD", rule, "none", remedy, record.source)
    return turns


def _longest_loader(turns: pd.DataFrame) -> tuple[int, list[str]]:
    """Return the index of the loader whose waits and steps took longest, summed over
    the ranks, and a note on the other loaders, [] if these took no time.
    """
    seconds_of_loader = turns.groupby("loader")["seconds"].sum()
    loader = int(seconds_of_loader.index[int(seconds_of_loader.argmax())])
    seconds_elsewhere = float(seconds_of_loader.drop(loader).sum())
    if seconds_elsewhere > 0:
        took = f"Loops over other loaders took {seconds_elsewhere:.3g} s"
        note = f"{took}; only those in steps count."
        return loader, [note]
    return loader, []


def _zero_waits(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a wait of 0 s at the start of each step, for a loop whose
    waits were not recorded.
    """
    operations = pd.CategoricalDtype(list(OPERATIONS))
    waits = steps.assign(
        operation=pd.Series("wait", index=steps.index, dtype=operations)
    )
    columns = [column for column in SUMMED_COLUMNS if column in waits]
    return waits.assign(**dict.fromkeys(columns, 0))


def _complete_batches(
    turns: pd.DataFrame, source: str, min_batches: int
) -> tuple[pd.MultiIndex, Ints]:
    """Return (epoch, batch) of the batches that every rank waited for and stepped with,
    and the ranks, (M,), both rising.

    Raises:
        InputError: the turns take no time, or there are fewer than ``min_batches``
            batches.
    """
    distinct = turns.drop_duplicates(["epoch", "batch", "rank", "operation"])
    ranks = np.unique(distinct["rank"])
    is_complete = distinct.groupby(["epoch", "batch"]).size() == 2 * len(ranks)
    batches = pd.MultiIndex.from_frame(
        is_complete[is_complete].index.to_frame(index=False)
    )
    if not turns["seconds"].sum() > 0:
        rule = "must have waits and steps that take time"
        refuse("RECORD", rule, "0 s", RECORD_LONGER, source)
    if len(batches) < min_batches:
        rule = f"must have at least {min_batches} batches of all ranks, each with wait and step"
        refuse("RECORD", rule, str(len(batches)), RECORD_LONGER, source)
    return batches, ranks


def _epoch_end_seconds(rows: pd.DataFrame, epochs: Ints, ranks: Ints) -> Floats:
    """Return the s of the waits of every epoch for which no batch came, (E, M); 0 for
    none.
    """
    last_waits = rows[(rows["operation"] == "wait") & (rows["batch"] < 0)]
    sums = last_waits.groupby(["epoch", "rank"])["seconds"].sum().unstack()
    seconds: Floats = (
        sums.reindex(index=epochs, columns=ranks).fillna(0.0).to_numpy(float)
    )
    return seconds


def _fill_untimed_parts(sums: Mapping[str, Floats]) -> None:
    """Fill in the parts of fetches that were not timed, from those that were; in place.

    The parts get the mean shares of the time of a fetch without collating, and the mean
    numbers of files and bytes. Nothing is filled in if no fetch has timed parts.
    ``sums`` is as of `RecordedLoop.sums`.
    """
    part_codes = [CODES[part] for part in FETCH_PARTS]
    seconds = sums["seconds"]
    # (B, M): s of a fetch without collating
    fetch_s = np.maximum(seconds[CODES["fetch"]] - seconds[CODES["collate"]], 0.0)
    is_timed = seconds[part_codes].sum(axis=0) > 0
    is_untimed = (fetch_s > 0) & ~is_timed
    if not is_timed.any() or not is_untimed.any():
        return
    for code in (*part_codes, CODES["repeat"]):
        share = seconds[code][is_timed].sum() / max(fetch_s[is_timed].sum(), 1e-300)
        seconds[code][is_untimed] = fetch_s[is_untimed] * share
        for column in ("count", "nbytes", "disk_nbytes"):
            table = sums[column][code]
            table[is_untimed] = table[is_timed].mean()
