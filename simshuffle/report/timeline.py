"""Timeline: which rank did what at which time, what crossed every link, and where every
epoch's bytes came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.report.columns import Column, amount, count, share, text
from simshuffle.report.table_io import stack_tables
from simshuffle.spec.arrays import Floats

PHASES = (
    "io",  # the training loop waits for a batch that is still being read
    "decode",  # it waits for one that is being decoded or copied to the GPU
    "forward",
    "backward",
    "slowdown",  # what the backward pass takes longer while gradients travel
    "importance",
    "allreduce",
    "update",
    "exchange",  # the training loop works for the exchange, or waits for its own messages
    "wait_allreduce",  # it waits for other ranks before the allreduce
    "wait_exchange",  # it waits for other ranks at a barrier of the exchange
    "wait_group",  # it waits for the batches of its model-parallel group
    "bubble",  # it has nothing to compute yet, in a pipeline
    "group_communication",  # its group sends what the passes need
    "checkpoint",  # the training loop waits until its state is saved, or copied to be saved
    "lost",  # what is done again, since the job was broken off after the last checkpoint
    "restart",  # from when a host is lost until training goes on
    # messages in flight while the loop does something else: overlaps the phases above
    "exchange_hidden",
    # gradients in flight before the last rank has computed all of its own: the same
    "allreduce_hidden",
)
HIDDEN = ("exchange_hidden", "allreduce_hidden")
EXCLUSIVE = PHASES[: -len(HIDDEN)]
PHASE_TYPE = pd.CategoricalDtype(list(PHASES))
"""Type of the column of phases."""

PHASE_COLUMNS: dict[str, Column] = {
    "run": text("name of the run"),
    "epoch": count("from 1"),
    "iteration": count(
        "index among the simulated iterations, from 1; 0 for phases before or after all of them"
    ),
    "rank": count("from 0"),
    "phase": text("one of PHASES", *PHASES),
    "start_s": amount("s of simulated time since the first epoch began"),
    "end_s": amount("s"),
    "nbytes": amount("bytes that the phase moved for this rank; 0 where none"),
}
LINK_COLUMNS: dict[str, Column] = {
    "run": text("name of the run"),
    "epoch": count("from 1"),
    "link": text("unique name; 'a>b' for a cable from a to b"),
    "tier": text("kind of link"),
    "capacity": amount("units a second"),
    "unit": text("'B', 's' of device or core time, or 'ops'"),
    "nbytes": amount("bytes of the transfers that ended on it in the epoch"),
    "mean_utilisation": amount(
        "share of the capacity used, on average over the simulated iterations"
    ),
    "peak_utilisation": amount(
        "highest share of the capacity used at any moment of the epoch"
    ),
    "busy_s": amount("s of the epoch with any traffic"),
}
SOURCE_COLUMNS: dict[str, Column] = {
    "run": text("name of the run"),
    "strategy": text("exchange strategy"),
    "world_size": count("ranks"),
    "exchange_fraction": share("Q; empty under global shuffle", empty=True),
    "epoch": count("from 1"),
    "iterations": count("iterations of the epoch"),
    "iterations_simulated": count(
        "iterations that were simulated; without a time tolerance, all"
    ),
    "steady_first": count(
        "first simulated iteration whose mean stands for those left out, from 1; 0 if none"
    ),
    "steady_last": count("last simulated iteration of that mean; 0 if none"),
    "half_width_s": amount(
        "half width of the 95 % interval of the epoch's duration (s); 0 if all are simulated"
    ),
    "whole_because": text(
        "why all iterations were simulated in spite of a time tolerance; '' if not"
    ),
    "samples": count("samples trained on, over all ranks"),
    "samples_moved": count("samples that changed their rank"),
    "nbytes_peer": amount(
        "bytes received from other ranks by sample exchange",
        head="peers",
        look="bytes or -",
    ),
    "nbytes_pfs": amount(
        "bytes read from the parallel file system", head="PFS", look="bytes or -"
    ),
    "nbytes_cached": amount(
        "most fetched bytes that the loaders of a node kept at once; 0 if they keep none"
    ),
    "nbytes_ssd": amount("bytes read from SSDs", head="SSD", look="bytes or -"),
    "nbytes_memory": amount(
        "bytes read from memory: page caches, or what is staged there",
        head="memory",
        look="bytes or -",
    ),
    "nbytes_object_store": amount(
        "bytes read from the object store", head="bytes", look="bytes or -"
    ),
    "read_requests": count(
        "requests to the parallel file system: for each batch, its samples that are not in memory,"
        " divided by samples_per_request and rounded up; or pieces that a loader fetches"
    ),
    "read_requests_ssd": count(
        "requests to SSDs, as read_requests; one for each sample that a sender reads, or a loader"
        " from its cache"
    ),
    "read_requests_object_store": count(
        "requests that the object store answers, for batches",
        head="requests",
        look=",.0f or -",
    ),
    "file_opens": amount(
        "files that the parallel file system opens: samples that are not in memory, divided by"
        " samples_per_file"
    ),
    "nbytes_ssd_written": amount("bytes of received samples written to SSDs"),
    "staging_s": amount(
        "s of copying samples to the hosts before the epoch; not part of an epoch"
    ),
    "nbytes_staged": amount(
        "bytes read for staging from the parallel file system or the object store"
    ),
    "read_requests_staged": count(
        "requests for staging: one for each copied file; for an archive, one for each copying HCA"
    ),
    "object_store_usd": amount(
        "US dollars of the object store: for requests, with those of staging and failed tries,"
        " and for their bytes",
        head="US dollars",
        look=".3g or -",
    ),
}


class WindowRow(NamedTuple):
    """The simulated window of an epoch: columns of `SOURCE_COLUMNS`."""

    iterations_simulated: int
    steady_first: int = 0
    steady_last: int = 0
    half_width_s: float = 0.0
    whole_because: str = ""


@dataclass(frozen=True)
class Timeline:
    """The tables of one or more runs."""

    # columns `PHASE_COLUMNS`. For each rank the exclusive phases follow one another without a gap
    # from the start of an epoch to its end.
    phases: pd.DataFrame
    # columns `LINK_COLUMNS`; links that carried nothing are left out
    links: pd.DataFrame
    sources: pd.DataFrame  # columns `SOURCE_COLUMNS`, a row for every epoch
    # further facts of the epochs: lists of plain values, by name such as 'losses'
    facts: dict[str, list[Any]] = field(default_factory=dict)


def phase_numbers(phases: pd.DataFrame) -> NDArray[np.int8]:
    """Return (rows,) the index in `PHASES` of each row's phase."""
    phase = pd.Categorical(phases["phase"].array, dtype=PHASE_TYPE)
    return np.asarray(phase.codes)


def locate_epochs(
    phases: pd.DataFrame, keys: Sequence[str]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return (epochs,) the first row of each epoch, and (rows,) the epoch of each row.

    Epochs are numbered in the order of ``keys``, the columns that tell them apart.
    """
    columns = [phases[key].array for key in keys]
    codes = [
        column.codes if isinstance(column, pd.Categorical) else np.asarray(column)
        for column in columns
    ]
    # a simulation reports each epoch by itself, of which there may be a million rows
    if all((code == code[:1]).all() for code in codes):
        return np.arange(min(len(phases), 1)), np.zeros(len(phases), np.intp)
    numbers = phases.groupby(list(keys), observed=True).ngroup()
    epoch_of_row = np.asarray(numbers, np.intp)
    _, first_rows = np.unique(epoch_of_row, return_index=True)
    return first_rows.astype(np.intp), epoch_of_row


def epoch_lengths(phases: pd.DataFrame, keys: Sequence[str]) -> Floats:
    """Return (epochs,) s from the first start to the last end of a phase that overlaps
    no other.
    """
    first_rows, epoch_of_row = locate_epochs(phases, keys)
    is_exclusive = phase_numbers(phases) < len(EXCLUSIVE)
    epoch = epoch_of_row[is_exclusive]
    start = np.full(len(first_rows), np.inf)
    end = np.full(len(first_rows), -np.inf)
    np.minimum.at(start, epoch, phases["start_s"].to_numpy()[is_exclusive])
    np.maximum.at(end, epoch, phases["end_s"].to_numpy()[is_exclusive])
    lengths: Floats = end - start
    return lengths


def find_rows(table: pd.DataFrame, targets: pd.DataFrame) -> NDArray[np.intp]:
    """Return the row of ``table`` that equals each row of ``targets``.

    Raises:
        KeyError: there is none.
    """
    if len(table) == len(targets) == 1:  # a simulation reports each epoch by itself
        return np.zeros(1, np.intp)
    index = pd.MultiIndex.from_frame(table)
    rows = index.get_indexer(pd.MultiIndex.from_frame(targets))
    if (rows < 0).any():
        raise KeyError(targets[rows < 0])
    return rows


def concatenate(timelines: list[Timeline]) -> Timeline:
    """Join the tables and facts of several timelines below one another, in their order;
    several may be of one run.
    """
    names = dict.fromkeys(name for timeline in timelines for name in timeline.facts)
    facts = {
        name: [fact for timeline in timelines for fact in timeline.facts.get(name, [])]
        for name in names
    }
    return Timeline(
        stack_tables([timeline.phases for timeline in timelines]),
        stack_tables([timeline.links for timeline in timelines]),
        stack_tables([timeline.sources for timeline in timelines]),
        facts,
    )


def phase_rows(
    epoch: int, phases: list[str], bounds: Floats, nbytes: Floats, final: bool = False
) -> dict[str, NDArray[Any]]:
    """Return columns of rows of exclusive phases of one epoch, as arrays by name.

    The names are those of `PHASE_COLUMNS` without the run. Phases are numbers in
    `PHASES`; rows are ordered by iteration, rank and phase.

    Args:
        epoch: from 1.
        phases: the names of the phases.
        bounds: (iterations, M, phases + 1) s: phase j lasts from bound j to bound j +
            1, and has no row if that is no time.
        nbytes: (iterations, M, phases), or fewer dimensions where they are alike.
        final: whether they belong to no iteration: their number is then 0, not from 1.
    """
    has_row = bounds[..., 1:] > bounds[..., :-1]
    ranks = has_row.shape[1]
    code = np.array([PHASES.index(name) for name in phases], np.int8)

    def values_of_rows(values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of the rows, of an array that is as long in each dimension,
        or 1 long.
        """
        return np.broadcast_to(values, has_row.shape)[has_row]

    iteration = np.arange(1, len(has_row) + 1, dtype=np.int32) * (not final)
    return {
        "epoch": np.full(np.count_nonzero(has_row), epoch, np.int16),
        "iteration": values_of_rows(iteration.astype(np.int32)[:, None, None]),
        "rank": values_of_rows(np.arange(ranks, dtype=np.int32)[:, None]),
        "phase": values_of_rows(code),
        "start_s": values_of_rows(bounds[..., :-1]),
        "end_s": values_of_rows(bounds[..., 1:]),
        "nbytes": values_of_rows(nbytes),
    }


def seconds_by_iteration(
    parts: list[dict[str, NDArray[Any]]], world_size: int
) -> Floats:
    """Return (iterations, phases) s in each exclusive phase, mean over ranks.

    Time before and after all iterations is left out, and so are the phases `HIDDEN`.
    ``parts`` are from `phase_rows`, of one epoch; phases are in the order of `PHASES`.
    """
    iterations = max(int(part["iteration"].max(initial=0)) for part in parts)
    # flat (iterations + 1, phases); row 0 is for rows of no iteration
    totals = np.zeros((iterations + 1) * len(PHASES))
    for part in parts:
        flat_index = part["iteration"].astype(np.int64) * len(PHASES) + part["phase"]
        totals += np.bincount(flat_index, part["end_s"] - part["start_s"], len(totals))
    return totals.reshape(-1, len(PHASES))[1:, : len(EXCLUSIVE)] / world_size


def seconds_in(
    parts: list[dict[str, NDArray[Any]]], world_size: int, phases: Sequence[str]
) -> Floats:
    """Return (iterations, M) s that each rank is in any of ``phases``.

    Time before and after all iterations is left out. ``parts`` are from `phase_rows`,
    of one epoch.
    """
    iterations = max(int(part["iteration"].max(initial=0)) for part in parts)
    codes = [PHASES.index(name) for name in phases]
    # flat (iterations + 1, M); row 0 is for rows of no iteration
    totals = np.zeros((iterations + 1) * world_size)
    for part in parts:
        is_chosen = np.isin(part["phase"], codes)
        flat_index = (
            part["iteration"][is_chosen].astype(np.int64) * world_size
            + part["rank"][is_chosen]
        )
        totals += np.bincount(
            flat_index, (part["end_s"] - part["start_s"])[is_chosen], len(totals)
        )
    return np.asarray(totals.reshape(-1, world_size)[1:])


def hidden_rows(
    epoch: int, spans: list[tuple[int, float, float]], world_size: int
) -> list[dict[str, NDArray[Any]]]:
    """Return rows of gradients in flight while ranks compute, as a list of one part as
    from `phase_rows`; [] without ``spans``.

    All ranks have equal rows, of phase 'allreduce_hidden' and 0 bytes. The iterations
    of the rows count from 1.

    Args:
        epoch: from 1.
        spans: iteration, from 0, start and end (s) of each flight.
        world_size: M.
    """
    if not spans:
        return []
    count = len(spans)
    iteration, start, end = (
        np.repeat(column, world_size) for column in zip(*spans, strict=True)
    )
    return [
        {
            "epoch": np.full(len(start), epoch, np.int16),
            "iteration": (iteration + 1).astype(np.int32),
            "rank": np.tile(np.arange(world_size, dtype=np.int32), count),
            "phase": np.full(len(start), PHASES.index("allreduce_hidden"), np.int8),
            "start_s": start,
            "end_s": end,
            "nbytes": np.zeros(len(start)),
        }
    ]


def phase_table(run: str, parts: list[dict[str, NDArray[Any]]]) -> pd.DataFrame:
    """Return the phases table of one run, columns `PHASE_COLUMNS`.

    ``parts`` are from `phase_rows`, one or more, and their rows stay in this order. The
    dictionaries are emptied, so that memory is free.
    """
    columns = {
        name: np.concatenate([part.pop(name) for part in parts])
        for name in list(parts[0])
    }
    label = pd.Categorical.from_codes(
        np.zeros(len(columns["rank"]), np.int8), pd.Index([run])
    )
    phase = pd.Categorical.from_codes(columns.pop("phase"), dtype=PHASE_TYPE)
    table = {"run": label, **columns, "phase": phase}
    return pd.DataFrame({name: table[name] for name in PHASE_COLUMNS}, copy=False)
