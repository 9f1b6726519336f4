"""Sort the rows of a record by the batch and the rank that they belong to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from simshuffle.extensions.doctor.recorder.rows import OPERATIONS
from simshuffle.spec.arrays import Flags, Floats, Ints

SUMMED_COLUMNS = ("seconds", "cpu_s", "queued_s", "count", "nbytes", "disk_nbytes")
"""Columns of a record that are summed for each operation of a batch."""
NO_BATCH = -1
"""Index that stands for a row without a batch or a rank of the loop."""


@dataclass(frozen=True)
class RowsByBatch:
    """Rows of a record that belong to one of B batches and one of M ranks."""

    table: pd.DataFrame  # columns as of `Record.rows`
    batch_index: Ints  # (rows,) from 0 to B - 1
    rank_index: Ints  # (rows,) from 0 to M - 1
    shape: tuple[int, int]  # B, M

    def sum_by_operation(self) -> dict[str, Floats]:
        """Return the sums of each of `SUMMED_COLUMNS`, (operations, B, M) by the code
        of the operation: 0 without rows, nan where a row has nan.
        """
        codes = self.table["operation"].cat.codes.to_numpy().astype(np.int64)
        shape = (len(OPERATIONS), *self.shape)
        # a row's cell in (operations, B, M), counted through
        flat_index = np.ravel_multi_index(
            (codes, self.batch_index, self.rank_index), shape
        )
        size = int(np.prod(shape))
        return {
            column: np.bincount(flat_index, self.table[column].to_numpy(float), size)
            .reshape(shape)
            .astype(float)
            for column in SUMMED_COLUMNS
        }

    def values_of(self, operation: str, column: str) -> Floats:
        """Return a column of the row that an operation has in each batch, (B, M); nan
        if none, the last row's if several.
        """
        values = np.full(self.shape, np.nan)
        is_operation = (self.table["operation"] == operation).to_numpy()
        batch_index = self.batch_index[is_operation]
        rank_index = self.rank_index[is_operation]
        values[batch_index, rank_index] = self.table[column].to_numpy()[is_operation]
        return values

    def select_samples(self) -> pd.DataFrame:
        """Return the rows of single samples: seconds, sample (their index; -1 if not
        known), batch_index, rank_index.
        """
        is_sample = (self.table["operation"] == "sample") & (self.table["count"] <= 1)
        is_single = is_sample.to_numpy()
        samples = self.table.loc[is_single, ["seconds", "sample"]]
        return samples.assign(
            batch_index=self.batch_index[is_single],
            rank_index=self.rank_index[is_single],
        )


def index_of_batches(batches: pd.MultiIndex, rows: pd.DataFrame) -> Ints:
    """Return the index in ``batches`` of each row's epoch and batch, (rows,); -1 if not
    there.
    """
    index: Ints = batches.get_indexer(
        pd.MultiIndex.from_frame(rows[["epoch", "batch"]])
    )
    return index


def assign_rows_to_batches(
    rows: pd.DataFrame, waits: pd.DataFrame, batches: pd.MultiIndex, ranks: Ints
) -> RowsByBatch:
    """Assign each recorded row to a batch and a rank, and drop rows that belong to none
    of ``batches`` or ``ranks``.

    A row that names no batch (a copy, a collective) belongs to the batch that its rank
    had waited for last when the row began. A wait or step without a batch is dropped.

    Args:
        rows: the rows of the loop, one for each timed operation.
        waits: the rows of ``rows`` with operation "wait" and a batch, sorted by
            ``start_s``.
        batches: (epoch, batch) of the B batches of the loop, in the order of training.
        ranks: (M,) the ranks that recorded.
    """
    is_unanswered = rows["operation"].isin(["wait", "step"]) & (rows["batch"] < 0)
    rows = rows[~is_unanswered]
    names_no_batch = rows["batch"] < 0

    # (rows,) positions along the two axes of every (B, M) table of the loop
    rank_index = pd.Index(ranks).get_indexer(pd.Index(rows["rank"]))
    batch_index = index_of_batches(batches, rows)
    batch_index[names_no_batch] = NO_BATCH

    for index, rank in enumerate(ranks):
        rank_waits = waits[waits["rank"] == rank]
        batch_of_wait = index_of_batches(batches, rank_waits)
        unassigned = np.flatnonzero((rank_index == index) & names_no_batch)
        starts = rows["start_s"].to_numpy()[unassigned]
        last_wait = np.searchsorted(rank_waits["start_s"], starts, side="right") - 1
        batch_index[unassigned] = np.where(
            last_wait >= 0, batch_of_wait[last_wait], NO_BATCH
        )

    is_assigned = (batch_index >= 0) & (rank_index >= 0)
    return RowsByBatch(
        table=rows[is_assigned],
        batch_index=batch_index[is_assigned],
        rank_index=rank_index[is_assigned],
        shape=(len(batches), len(ranks)),
    )


def index_of_samples(samples: pd.DataFrame, is_chosen: Flags) -> tuple[Ints, Ints]:
    """Return the index into (B, M) tables of chosen rows of `RecordedLoop.samples`: the
    batches and the ranks, (chosen,) each.
    """
    batch_index = samples["batch_index"].to_numpy()[is_chosen]
    rank_index = samples["rank_index"].to_numpy()[is_chosen]
    return batch_index, rank_index
