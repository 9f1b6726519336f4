"""Means and intervals over seeds, of a sweep and of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simshuffle.results import report
from simshuffle.results.report import EPOCH_COLUMNS, LABELS
from simshuffle.spec.late import special
from simshuffle.studies.simulation.tables import NOT_MEASURED, SUMMARY, label_column

LEVEL = 0.95
"""Of the intervals."""


def summary(table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Mean and 95 % interval of every measure over the seeds: one row for each combination of the
    keys, epoch and measure.

    mean ± t s / √n, with the sample's standard deviation s over n seeds and the 97.5th percentile t
    of Student's distribution of n − 1 degrees of freedom (Student, 'The probable error of a mean',
    Biometrika 6, 1908). The seeds are taken as independent draws from a normal distribution.

    Args:
        table: the keys, epoch, seed, and the measures.
        keys: columns that are the same for all seeds, beside the epoch: label and axes of a sweep.
    """
    keys = [*keys, "epoch"]
    measures = [name for name in table.columns if name not in {*keys, *NOT_MEASURED}]
    groups = table.groupby(keys, sort=False, dropna=False, observed=True)[measures]
    mean, spread, seeds = groups.mean(), groups.std(ddof=1), groups.size().to_numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = np.where(
            seeds > 1, special.stdtrit(seeds - 1, 0.5 + LEVEL / 2) / np.sqrt(seeds), np.nan
        )
    half = spread.to_numpy() * reach[:, None]
    centre = mean.to_numpy()
    index = mean.index.to_frame(index=False)
    count = len(measures)
    rows = index.loc[np.repeat(np.arange(len(index)), count)].reset_index(drop=True)
    rows["measure"] = np.tile(np.array(measures, object), len(index))
    rows["seeds"] = np.repeat(seeds, count)
    rows["mean"] = centre.ravel()
    rows["low"] = (centre - half).ravel()
    rows["high"] = (centre + half).ravel()
    return rows[[*keys[:-1], *SUMMARY.columns]]


def measures(epochs: pd.DataFrame, breakdown: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``epochs``, and beside them their seconds of own work and of waiting by label, a
    column each; 0 where an epoch has none. Both are of `simshuffle.results.report`."""
    keys = report.keys_of(epochs)
    parts = report.by_cause(breakdown)[[*keys, "label", "waiting", "seconds"]]
    found = {row[:-1]: row[-1] for row in parts.itertuples(index=False, name=None)}
    rows = list(epochs[keys].itertuples(index=False, name=None))
    seconds = {
        label_column(label, waiting): [found.get((*row, label, waiting), 0.0) for row in rows]
        for waiting in (False, True)
        for label in LABELS
    }
    return epochs.assign(**seconds)


def lengths(epochs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Samples, iterations of a rank and samples/s of every epoch, means over seeds.

    Args:
        epochs: a row for each epoch and seed, with ``epoch_s`` and ``samples_per_s``.
        keys: columns that tell rows apart, among them run and epoch.
    """
    table = epochs.assign(run=epochs["run"].astype(str), samples=samples_of(epochs))
    return table.groupby(keys, sort=False)[["samples", "iterations", "samples_per_s"]].mean()


def samples_of(epochs: pd.DataFrame) -> pd.Series[float]:
    """(rows of ``epochs``,) how many samples each of them has."""
    return (epochs["samples_per_s"] * epochs["epoch_s"]).round()


def over_seeds(seeds: int) -> str:
    """What an interval is of, in words."""
    return f"the mean over {seeds} seeds"


@dataclass(frozen=True)
class Means:
    """What tables and figures show of runs: means over seeds. Of one seed, what that gives."""

    # epochs, breakdown: as `simshuffle.results.report` makes them, without seed
    epochs: pd.DataFrame
    breakdown: pd.DataFrame
    # half the 95 % interval of each measure of ``epochs``, by run and epoch; None of one seed
    half: pd.DataFrame | None = None
    seeds: int = 1  # how many there are

    @property
    def epoch_half(self) -> pd.Series[float] | None:
        """Half the 95 % interval of an epoch (s), by run and epoch: over the seeds, or of one seed
        what was left out of the epoch; None if all was simulated."""
        if self.half is not None:
            return self.half["epoch_s"]
        half = self.epochs["epoch_high_s"] - self.epochs["epoch_s"]
        if not half.any():
            return None
        runs = self.epochs["run"].astype(str)
        return pd.Series(half.to_numpy(), pd.MultiIndex.from_arrays([runs, self.epochs["epoch"]]))

    @property
    def about(self) -> str:
        """What that is the interval of."""
        if self.seeds > 1:
            return over_seeds(self.seeds)
        return "the epoch"


def means(epochs: pd.DataFrame, breakdown: pd.DataFrame) -> Means:
    """Means over seeds of what `simshuffle.results.report` makes, which may have the seed."""
    if "seed" not in epochs:
        return Means(epochs, breakdown)
    keys = ["run", "epoch"]
    epochs, breakdown = (of.assign(run=of["run"].astype(str)) for of in (epochs, breakdown))
    of_epochs = summary(epochs, ["run"])
    of_epochs["half"] = of_epochs["high"] - of_epochs["mean"]
    wide = of_epochs.pivot(index=keys, columns="measure", values=["mean", "half"])
    first = epochs.drop_duplicates(keys)[list(EPOCH_COLUMNS)].set_index(keys)
    first = first.assign(**{str(name): wide["mean"][name] for name in wide["mean"]})
    # a label that a seed does not have counts as 0 s there
    labels = breakdown[["label", "cause"]].drop_duplicates().merge(epochs[[*keys, "seed"]], "cross")
    whole = labels.merge(breakdown, "left").fillna({"seconds": 0.0})
    parts = summary(whole, ["run", "label", "cause"]).rename(columns={"mean": "seconds"})
    parts = parts[(parts["seconds"] > 0) | (parts["cause"] == "")]
    return Means(
        first.reset_index()[list(EPOCH_COLUMNS)],
        parts[[*keys, "label", "cause", "seconds"]].reset_index(drop=True),
        pd.DataFrame(wide["half"]),
        int(of_epochs["seeds"].max()),
    )
