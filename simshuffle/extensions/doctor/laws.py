"""Fit laws to the record of a training: what a batch takes of a worker, and a step of
its samples.

A step of b samples takes c0 + c1 b. How samples are read is in `reading_laws`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.calibration.calibrate.fit import relative_fit
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.spec.arrays import Ints

KEY = ["rank", "epoch", "batch"]
"""Columns that name a batch of a loader."""
SAMPLE_PARTS = ("open", "read", "decode", "transform", "lock", "collate")
"""Operations of a fetch."""
STEP_PARTS = ("copy", "forward", "backward", "optimizer", "allreduce")
"""Operations of a step."""
BLOCKS = 20
"""Blocks of consecutive batches; the bootstrap draws as many again, since neighbours
are alike.
"""
MIN_BLOCKS = 4
"""Batches of one size from which the bootstrap resamples them."""
RESAMPLES = 100
"""Resamples of the bootstrap."""
CONFIDENCE = 0.9
"""Probability of the intervals."""


@dataclass(frozen=True)
class ValueWithInterval:
    """A value and the ends of its 90 % interval; these are nan where there is none."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


# -------------------------------------------------------------------------- tables of the main loop


def main_loader(record: Record) -> int:
    """Return the index of the loader of which most steps are, of several the lowest; -1
    for steps of no loader.

    Raises:
        InputError: the record has no steps that take time.
    """
    steps = record.rows_of("step")
    steps = steps[steps["seconds"] > 0]
    if steps.empty:
        rule = "must have steps of a training"
        remedy = "Record a loop that goes through its loader."
        refuse("RECORD", rule, "none", remedy, record.source)
    return int(steps["loader"].mode().iloc[0])


def loader_settings(record: Record) -> Mapping[str, Any]:
    """Return the settings of the `main_loader`; {} if they are not known.

    Raises:
        InputError: the record has no steps that take time.
    """
    loaders = record.about.get("loaders") or []
    index = main_loader(record)
    return loaders[index] if 0 <= index < len(loaders) else {}


def batch_loads(record: Record) -> pd.DataFrame:
    """Return a row for each batch of the main loader whose fetch was recorded, in the
    order of time; none without fetches.

    The columns are rank, epoch, batch, start_s, seconds (of the fetch), samples, nbytes
    (that were read), opens (files), decoded (bytes of the batch once decoded, 0 if not
    known), core_s (s of a core for fetching and sending), and waited_s (s in which the
    worker wanted no core). Samples that were not counted are the batch size of the
    loader, or 0.

    Raises:
        InputError: the record has no steps that take time.
    """
    rows = record.rows[record.rows["loader"] == main_loader(record)]
    fetches = rows[rows["operation"] == "fetch"].drop_duplicates(KEY).set_index(KEY)

    def sums(operations: Sequence[str], column: str) -> pd.DataFrame:
        """Return the sums of a column over each fetched batch, a column for each
        operation.
        """
        table = _sums_of_batches(rows, operations, column)
        return table.reindex(fetches.index, fill_value=0.0)

    seconds = sums(SAMPLE_PARTS, "seconds")
    counts = sums(("sample", "open", "read"), "count")
    nbytes = sums(("open", "read", "copy", "collate", "send"), "nbytes")
    send_s = sums(("send",), "seconds")["send"]
    samples = fetches["count"].where(fetches["count"] > 0, counts["sample"])
    batch_size = loader_settings(record).get("batch_size") or 0
    # where a fetch's own time of a core is not known, its parts stand for it
    computing_s = seconds[["decode", "transform", "collate"]].sum(axis=1)
    waiting_s = seconds[["open", "read", "lock"]].sum(axis=1)
    queued_s = fetches["queued_s"].fillna(0.0)
    idle_s = (fetches["seconds"] - fetches["cpu_s"] - queued_s).clip(lower=0.0)
    table = pd.DataFrame(
        {
            "start_s": fetches["start_s"],
            "seconds": fetches["seconds"],
            "samples": samples.where(samples > 0, batch_size),
            "nbytes": nbytes["read"].where(nbytes["read"] > 0, fetches["nbytes"]),
            "opens": counts["open"],
            "decoded": nbytes[["copy", "collate", "send"]].max(axis=1),
            "core_s": fetches["cpu_s"].fillna(computing_s) + send_s,
            "waited_s": idle_s.fillna(waiting_s),
        }
    )
    return table.reset_index().sort_values("start_s", ignore_index=True)


def step_rows(record: Record, loads: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each step of each rank with the main loader, in the order of
    time.

    The columns are rank, epoch, batch, start_s, seconds, samples, core_s, queued_s, and
    one for each of `STEP_PARTS` (s); s that are not known are nan. A step has the
    samples of its load, else those it counts, else the batch size of the loader. Steps
    whose number of samples is not known are left out.

    Args:
        record: of a training.
        loads: its `batch_loads`.

    Raises:
        InputError: the record has no steps, or the size of no batch is known.
    """
    rows = record.rows[record.rows["loader"] == main_loader(record)]
    steps = rows[rows["operation"] == "step"].drop_duplicates(KEY).set_index(KEY)
    parts = _step_parts(record, steps.reset_index())
    loaded_samples = loads.set_index(KEY)["samples"].reindex(steps.index)
    samples = loaded_samples.fillna(steps["count"]).to_numpy(float)
    samples = np.where(
        samples > 0, samples, loader_settings(record).get("batch_size") or 0
    )
    if not samples.any():
        rule = "must say how many samples a batch has"
        refuse("RECORD", rule, "no batch size", "Record the loader too.", record.source)
    table = steps[["start_s", "seconds", "queued_s"]].assign(
        samples=samples, core_s=steps["cpu_s"]
    )
    table = table.join(parts)[samples > 0].reset_index()
    return table.sort_values("start_s", ignore_index=True)


def _step_parts(record: Record, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the s of each of `STEP_PARTS` in each step, by `KEY`.

    The rows of parts name no batch: a part belongs to the last step of its rank that
    had begun; parts before the first step are dropped. A part that no row of the record
    has is nan, one that a step alone lacks is 0.
    """
    starts = steps[["start_s", *KEY]].sort_values("start_s").astype({"rank": "int32"})
    rows = record.rows_of(*STEP_PARTS)[["start_s", "rank", "operation", "seconds"]]
    rows_of_steps = pd.merge_asof(rows, starts, on="start_s", by="rank").dropna()
    parts = _sums_of_batches(rows_of_steps, STEP_PARTS, "seconds")
    recorded = set(rows["operation"])
    missing = [part for part in STEP_PARTS if part not in recorded]
    parts = parts.reindex(pd.MultiIndex.from_frame(steps[KEY]), fill_value=0.0)
    return parts.assign(**dict.fromkeys(missing, np.nan))


def _sums_of_batches(
    rows: pd.DataFrame, operations: Sequence[str], column: str
) -> pd.DataFrame:
    """Return the sums of a column over each batch, by `KEY`, in a column for each
    operation; 0 where a batch has none.
    """
    chosen = rows[rows["operation"].isin(operations)].astype({"operation": str})
    table = (
        chosen.groupby([*KEY, "operation"])[column]
        .sum()
        .unstack("operation", fill_value=0)
    )
    return table.reindex(columns=list(operations), fill_value=0).astype(float)


# ----------------------------------------------------------------------------------------- the laws


def bootstrap_intervals(
    table: pd.DataFrame, statistics: Callable[[pd.DataFrame], Sequence[float]]
) -> list[ValueWithInterval]:
    """Return statistics of a table with their 90 % intervals, which hold the values.

    The ends are the 5 % and 95 % quantiles over resampled blocks (Künsch, Annals of
    Statistics 17, 1989), the same in every call; nan if no size of a batch has
    `MIN_BLOCKS` rows.

    Args:
        table: rows in the order of time, with a column ``samples``.
        statistics: gives numbers of such a table, always as many.
    """
    values = statistics(table)
    resampled = [statistics(resample) for resample in _resample_blocks(table)]
    if not resampled:
        return [ValueWithInterval(float(value)) for value in values]
    tail = 50 * (1 - CONFIDENCE)
    ends = np.percentile(resampled, [tail, 100 - tail], axis=0).T.tolist()
    return [
        ValueWithInterval(float(value), min(low, value), max(high, value))
        for value, (low, high) in zip(values, ends, strict=True)
    ]


def _resample_blocks(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield `RESAMPLES` resamples of a table with about as many batches of each size as
    it has.

    Batches of a size with fewer than `MIN_BLOCKS` stay as they are; nothing is yielded
    if all sizes have fewer.
    """
    sizes = table["samples"].unique()
    rows_of_sizes = [np.flatnonzero(table["samples"] == size) for size in sizes]
    if max(map(len, rows_of_sizes)) < MIN_BLOCKS:
        return
    rng = np.random.default_rng(0)
    for _ in range(RESAMPLES):
        drawn = [
            rows if len(rows) < MIN_BLOCKS else _draw_blocks(rows, rng)
            for rows in rows_of_sizes
        ]
        yield table.iloc[np.concatenate(drawn)]


def _draw_blocks(rows: Ints, rng: np.random.Generator) -> Ints:
    """Return row numbers from ``rows``, in at most `BLOCKS` blocks of neighbours drawn
    with replacement.
    """
    blocks = np.array_split(rows, min(BLOCKS, len(rows)))
    return np.concatenate(
        [blocks[index] for index in rng.integers(0, len(blocks), len(blocks))]
    )


class StepLaw(NamedTuple):
    """Duration of a step of b samples: fixed + per_sample * b."""

    fixed: ValueWithInterval  # s
    per_sample: ValueWithInterval  # s a sample
    is_separable: (
        bool  # whether batches of several sizes tell both apart; else fixed is 0
    )


def step_law(steps: pd.DataFrame) -> StepLaw:
    """Fit the law of steps to a table with the columns ``own_s`` and ``samples``.

    Where sizes do not differ, or larger batches take no longer, the law is the median
    per sample of the largest batches, and nothing is fixed.
    """

    def fit_both(table: pd.DataFrame) -> list[float]:
        """Return the fixed s and the s a sample, at least 0 each, by `relative_fit`."""
        samples = table["samples"].to_numpy(float)
        seconds = table["own_s"].to_numpy(float)
        design = np.column_stack([np.ones_like(samples), samples])
        return [
            float(coefficient) for coefficient in relative_fit(design, seconds).value
        ]

    def median_per_sample(table: pd.DataFrame) -> list[float]:
        """Return the median s a sample."""
        return [float((table["own_s"] / table["samples"]).median())]

    if steps["samples"].nunique() > 1 and fit_both(steps)[1] > 0:
        fixed, per_sample = bootstrap_intervals(steps, fit_both)
        return StepLaw(fixed, per_sample, is_separable=True)
    full_batches = steps[steps["samples"] == steps["samples"].max()]
    (per_sample,) = bootstrap_intervals(full_batches, median_per_sample)
    return StepLaw(ValueWithInterval(0.0, 0.0, 0.0), per_sample, is_separable=False)


def robust_spread(ratio: pd.Series[float]) -> float:
    """Return half the width of the middle 68 % over the median: the standard deviation
    over the mean, without outliers; 0 if the median is not above 0.
    """
    low, median, high = np.quantile(ratio, [0.1587, 0.5, 0.8413])
    return float((high - low) / 2 / median) if median > 0 else 0.0


def sample_size_deviation(loads: pd.DataFrame, mean_nbytes: float) -> float:
    """Return the standard deviation of the bytes of a sample, from the bytes of
    batches.

    The mean bytes of a batch of b samples vary by the square root of b less. 0 if no
    bytes are known.

    Args:
        loads: `batch_loads` of a record.
        mean_nbytes: mean bytes of a sample.
    """
    samples = loads["samples"].to_numpy(float)
    nbytes = loads["nbytes"].to_numpy(float)
    if not nbytes.any():
        return 0.0
    return float(np.sqrt(np.mean((nbytes / samples - mean_nbytes) ** 2 * samples)))
