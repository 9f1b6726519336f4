"""What figures of runs share: the epochs and breakdowns of whatever simulated them, by names that
tell runs apart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from simshuffle.figures.kinds import Given
from simshuffle.results import report
from simshuffle.results.report import EPOCH_COLUMNS, LABELS
from simshuffle.studies.simulation.seeds import Means, means, measures, samples_of, summary
from simshuffle.studies.simulation.tables import label_column

SAMPLES = "samples"
"""A measure of `last_epochs` beside those of all runs: how many samples an epoch has."""
Pair = tuple[pd.DataFrame, pd.DataFrame]
"""Epochs and breakdown, as `simshuffle.results.report` makes them, with or without seeds."""


def renamed(given: Sequence[Given]) -> list[tuple[Given, Pair]]:
    """The epochs and breakdowns of each result; runs that are called alike in several results have
    the names of their folders in front."""
    found = [(of, _tables(of)) for of in given]
    count = Counter(run for _, (epochs, _) in found for run in epochs["run"].unique())
    out = []
    for of, pair in found:
        names = {run: f"{of.name}: {run}" if n > 1 else run for run, n in count.items()}
        epochs, breakdown = (table.assign(run=table["run"].map(names)) for table in pair)
        out.append((of, (epochs, breakdown)))
    return out


def shown(given: Sequence[Given]) -> Means:
    """Means over the seeds of all results, of which some may have one."""
    each = [means(*pair) for _, pair in renamed(given)]
    halves = [of.epoch_half for of in each if of.epoch_half is not None]
    epochs = pd.concat([of.epochs for of in each], ignore_index=True)
    half = pd.concat(halves).rename("epoch_s").to_frame() if halves else None
    if half is not None:
        there = pd.MultiIndex.from_frame(epochs[["run", "epoch"]])
        half = half.reindex(there).fillna(0.0)
    breakdown = pd.concat([of.breakdown for of in each], ignore_index=True)
    return Means(epochs, breakdown, half, max(of.seeds for of in each))


def last_epochs(given: Sequence[Given]) -> pd.DataFrame:
    """The last epoch of every run: mean and 95 % interval of each measure over the seeds.

    Returns:
        Columns run, strategy, world_size, exchange_fraction, epoch, measure, seeds, mean, low and
        high, which are empty for one seed.
    """
    parts = []
    for _, (epochs, breakdown) in renamed(given):
        table = measures(epochs, breakdown).assign(**{SAMPLES: samples_of(epochs)})
        table = table[table["epoch"] == table.groupby("run")["epoch"].transform("max")]
        keys = ["run", "strategy", "world_size", "exchange_fraction"]
        texts = [n for n in table if n not in keys and not pd.api.types.is_numeric_dtype(table[n])]
        parts.append(summary(table.drop(columns=texts), keys))
    return pd.concat(parts, ignore_index=True)


def wide(table: pd.DataFrame, measure: str, keys: Sequence[str]) -> pd.DataFrame:
    """The rows of one measure, its mean under its own name: ``keys``, the measure, seeds, low and
    high."""
    rows = table[table["measure"] == measure].rename(columns={"mean": measure})
    return rows[[*keys, measure, "low", "high", "seeds"]].reset_index(drop=True)


def lines_of(table: pd.DataFrame, across: str) -> pd.Series[str]:
    """The line that each run of ``table`` is on, when ``across`` ('world_size' or
    'exchange_fraction') is drawn from left to right: its name without that."""

    def without(run: str, value: Any) -> str:
        said = {f"@{value}", f"{across}={value}"}
        fraction = across == "exchange_fraction" and not math.isnan(value)
        if fraction:
            said.add(f"{across}={value:g}")
        words = [word for word in run.split() if word not in said]
        if fraction:
            words = [word.removesuffix(f"-{value:g}") for word in words]
        return " ".join(words)

    names = [without(*row) for row in zip(table["run"], table[across], strict=True)]
    return pd.Series(names, table.index, dtype=object)


# ----------------------------------------------------------------------------------- of each result


def _tables(of: Given) -> Pair:
    tables = of.result.tables
    if of.result.study.kind == "sweep":
        return _of_sweep(of)
    epochs, breakdown = tables["epochs"], tables["breakdown"]
    return epochs.assign(run=epochs["run"].astype(str)), breakdown.assign(
        run=breakdown["run"].astype(str)
    )


def _of_sweep(of: Given) -> Pair:
    """A sweep's one table as the two of a simulation. A run is called by its label, and by its axes
    too where labels are not unique."""
    table = of.result.tables["sweep"].rename(columns={"label": "run"})
    table["run"] = table["run"].astype(str)
    axes = [axis["name"] for axis in of.result.meta["axes"]]
    if table.duplicated(["run", "seed", "epoch"]).any():
        for name in axes:
            table["run"] += " " + name + "=" + table[name].astype(str)
    epochs = table[["run", "seed", *(name for name in EPOCH_COLUMNS if name != "run")]]
    keys, rows = ["run", "seed", "epoch"], []
    for label in LABELS:
        for cause in ("", label):
            seconds = table[label_column(label, waiting=bool(cause))]
            rows.append(table[keys].assign(label=label, cause=cause, seconds=seconds))
    parts = pd.concat(rows)
    parts = parts[(parts["cause"] == "") | (parts["seconds"] > 0)]
    parts = report.listed(parts.sort_index(kind="stable").reset_index(drop=True))
    if epochs["seed"].nunique() == 1:
        return epochs.drop(columns="seed"), parts.drop(columns="seed")
    return epochs, parts
