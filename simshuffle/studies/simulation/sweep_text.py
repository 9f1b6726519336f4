"""A sweep on a terminal: warm epochs, all measures, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from rich.table import Table

from simshuffle.report import intervals
from simshuffle.report.console import new_table
from simshuffle.studies.simulation import text, verdict
from simshuffle.studies.simulation.causes import causes_of_sweep
from simshuffle.studies.simulation.contest import (
    inputs_of_sweep,
    named_runs,
    scales_of,
    warm_epochs,
)
from simshuffle.studies.simulation.tables import (
    WHOLE_EPOCH,
    half_of_window,
    mean_epochs,
    measure_name,
    over_seeds,
    summary,
)
from simshuffle.studies.simulation.warm import is_of_dlio, warm_table_of_sweep
from simshuffle.study.study import Result

MOST_ROWS = 60  # rows of the table of measures; the file has all


def last_summary(result: Result) -> pd.DataFrame:
    """Return the rows of `summary_of_measure` for the last epoch of every combination."""
    table = summary_of_measure(result)
    keys = ["label", *(axis["name"] for axis in result.meta["axes"])]
    return table[table["epoch"] == table.groupby(keys)["epoch"].transform("max")]


def summary_of_measure(result: Result) -> pd.DataFrame:
    """Return the summary, with the measure of the figure if that is one over another."""
    known, measure = result.derived["summary"], result.meta["measure"]
    name, _, per = measure.partition("/")
    if not per:
        return known
    table, keys = result.tables["sweep"], ["label", *(axis["name"] for axis in result.meta["axes"])]
    alone = table[list(dict.fromkeys([*keys, "epoch", "seed"]))]
    share = summary(alone.assign(**{measure: table[name] / table[per]}), keys)
    return pd.concat([known, share], ignore_index=True)


def sweep_parts(result: Result) -> Iterable[str | Table]:
    """Yield the table of warm epochs, and the runs that were lost."""
    table, rows, seeds = _named_epochs(result)
    if rows is None:
        yield _measures_table(result)
    else:
        means = table.groupby(["run", "epoch"], sort=False).mean(numeric_only=True).reset_index()
        more = means.columns.difference(rows.columns).tolist()
        labelled = rows.merge(means[["run", "epoch", *more]], on=["run", "epoch"])
        name, _, per = result.meta["measure"].partition("/")
        values = labelled.set_index("run")[name]
        if per:
            values = values / labelled.set_index("run")[per]
        is_epoch = result.meta["measure"] == WHOLE_EPOCH
        measure = None if is_epoch else (measure_name(result.meta["measure"]), values)
        found = result.meta.get("intervals")
        yield warm_table_of_sweep(labelled, seeds, found, measure, is_of_dlio(result))
    for name, why in result.meta["lost"].items():
        yield f"Not simulated: {name}: {why}"


def sweep_details(result: Result) -> Iterable[str | Table]:
    """Yield the table of measures, and the intervals."""
    yield _measures_table(result)
    if len(result.derived["summary"]["label"].unique()) > MOST_ROWS:
        yield "summary.csv has all rows."
    if (seeds := int(result.derived["summary"]["seeds"].max())) > 1:
        yield text.about_interval(over_seeds(seeds))
    if (found := result.meta.get("intervals")) is not None:
        yield from intervals.details(found)


def _measures_table(result: Result) -> Table:
    """The last epoch of every combination, mean over seeds."""
    last, measure = last_summary(result), result.meta["measure"]
    keys = ["label", *(axis["name"] for axis in result.meta["axes"])]
    wide = last.pivot(index=keys, columns="measure", values=["mean", "low", "high", "seeds"])
    order = last[keys].drop_duplicates()
    wide = wide.loc[pd.MultiIndex.from_frame(order) if len(keys) > 1 else order["label"]]
    shown = ["epoch_s", "samples_per_s", "exchange_exposed_s"]
    table = new_table("Last epoch, mean over seeds", ["run"], ["seeds", "epoch (s)", "samples/s"])
    table.add_column("exchange shown (s)", justify="right")
    if measure not in shown:
        shown.append(measure)
        table.add_column(measure_name(measure), justify="right")
    for key, row in wide.head(MOST_ROWS).iterrows():
        label = key[0] if isinstance(key, tuple) else key
        halves = [(row["high", measure] - row["low", measure]) / 2 for measure in shown]
        means = [row["mean", measure] for measure in shown]
        cells = map(text.spread, means, halves)
        table.add_row(str(label), f"{row['seeds', 'epoch_s']:.0f}", *cells)
    return table


def sweep_verdict(result: Result) -> Iterable[str]:
    """Return the verdict; no line where labels of the user's own do not tell runs apart."""
    table, rows, seeds = _named_epochs(result)
    if rows is None:
        return []
    scales = scales_of(rows, inputs_of_sweep(result))
    found = result.meta.get("intervals")
    return verdict.verdict_of_sweep(scales, causes_of_sweep(table, rows), seeds, found)


def _named_epochs(result: Result) -> tuple[pd.DataFrame, pd.DataFrame | None, int]:
    """The table with names of runs; the warm epoch of each, None where names do not tell runs
    apart; and how many seeds each has."""
    table = named_runs(result)
    if table.duplicated(["run", "epoch", "seed"]).any():
        return table, None, 1
    epochs, half, seeds = mean_epochs(table)
    of_epoch = half["epoch_s"] if seeds > 1 else half_of_window(epochs)
    return table, warm_epochs(epochs, of_epoch), seeds
