"""The texts of a sweep on a terminal: warm epochs, all measures, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from rich.table import Table

from simshuffle.report import intervals
from simshuffle.report.console import new_table
from simshuffle.report.report import rows_of_last_epoch
from simshuffle.studies.simulation import text, verdict
from simshuffle.studies.simulation.causes import causes_of_sweep
from simshuffle.studies.simulation.contest import (
    inputs_of_sweep,
    scales_of,
    table_by_run,
    warm_epochs,
)
from simshuffle.studies.simulation.tables import (
    WHOLE_EPOCH,
    describe_mean,
    half_of_window,
    keys_of_combinations,
    mean_epochs,
    measure_name,
    summarise_seeds,
)
from simshuffle.studies.simulation.warm import is_dlio_workload, warm_table_of_sweep
from simshuffle.study.study import Result
from simshuffle.study.verdict import Verdict

MAX_ROWS = 60  # rows of the table of measures; the file has all


def last_summary(result: Result) -> pd.DataFrame:
    """Return the rows of `summary_of_measure` for the last epoch of every combination."""
    table = summary_of_measure(result)
    return rows_of_last_epoch(table, keys_of_combinations(result.meta["axes"]))


def summary_of_measure(result: Result) -> pd.DataFrame:
    """Return the summary over seeds, with rows for the measure of the figure.

    They are added only where the measure is one column over another: the ratio of each
    row of the sweep, and only then the mean over seeds.
    """
    stored_summary = result.derived["summary"]
    measure = result.meta["measure"]
    dividend, _, divisor = measure.partition("/")
    if not divisor:
        return stored_summary
    table = result.tables["sweep"]
    keys = keys_of_combinations(result.meta["axes"])
    identified_rows = table[list(dict.fromkeys([*keys, "epoch", "seed"]))]
    ratio = {measure: table[dividend] / table[divisor]}
    ratio_summary = summarise_seeds(identified_rows.assign(**ratio), keys)
    return pd.concat([stored_summary, ratio_summary], ignore_index=True)


def sweep_parts(result: Result) -> Iterable[str | Table]:
    """Yield the table of warm epochs, and a line on each run that was lost.

    Where names do not tell runs apart, it is the table of measures. If the measure of the
    figure is one column over another, the first table has the ratio of means over seeds.
    """
    table, rows, seeds = _warm_epochs_by_run(result)
    if rows is None:
        yield _measures_table(result)
    else:
        means = (
            table.groupby(["run", "epoch"], sort=False)
            .mean(numeric_only=True)
            .reset_index()
        )
        extra_columns = means.columns.difference(rows.columns).tolist()
        labelled = rows.merge(
            means[["run", "epoch", *extra_columns]], on=["run", "epoch"]
        )
        dividend, _, divisor = result.meta["measure"].partition("/")
        values = labelled.set_index("run")[dividend]
        if divisor:
            values = values / labelled.set_index("run")[divisor]
        is_epoch = result.meta["measure"] == WHOLE_EPOCH
        measure = None if is_epoch else (measure_name(result.meta["measure"]), values)
        interval_meta = result.meta.get("intervals")
        yield warm_table_of_sweep(
            labelled, seeds, interval_meta, measure, is_dlio_workload(result)
        )
    for name, reason in result.meta["lost"].items():
        yield f"Not simulated: {name}: {reason}"


def sweep_details(result: Result) -> Iterable[str | Table]:
    """Yield the table of measures, what its intervals are, and the 90 % intervals.

    Intervals over seeds are there with several seeds, 90 % intervals if there are any.
    """
    yield _measures_table(result)
    if len(result.derived["summary"]["label"].unique()) > MAX_ROWS:
        yield "summary.csv has all rows."
    if (seeds := int(result.derived["summary"]["seeds"].max())) > 1:
        yield text.describe_interval(describe_mean(seeds))
    if (interval_meta := result.meta.get("intervals")) is not None:
        yield from intervals.details(interval_meta)


def _measures_table(result: Result) -> Table:
    """Return the table of the last epoch of every combination, mean ± half the 95 %
    interval over seeds.

    It has the first `MAX_ROWS` rows at most, and the measure of the figure as a last
    column. With one seed there are means alone.
    """
    last_rows = last_summary(result)
    measure = result.meta["measure"]
    keys = keys_of_combinations(result.meta["axes"])
    # a row for each combination, a column for each of four statistics of each measure
    statistics = ["mean", "low", "high", "seeds"]
    wide = last_rows.pivot(index=keys, columns="measure", values=statistics)
    combinations = last_rows[keys].drop_duplicates()
    is_multi = len(keys) > 1
    wide = wide.loc[
        pd.MultiIndex.from_frame(combinations) if is_multi else combinations["label"]
    ]
    measures = ["epoch_s", "samples_per_s", "exchange_exposed_s"]
    table = new_table(
        "Last epoch, mean over seeds", ["run"], ["seeds", "epoch (s)", "samples/s"]
    )
    table.add_column("exchange shown (s)", justify="right")
    if measure not in measures:
        measures.append(measure)
        table.add_column(measure_name(measure), justify="right")
    for key, row in wide.head(MAX_ROWS).iterrows():
        label = key[0] if isinstance(key, tuple) else key
        halves = [
            (row["high", measure] - row["low", measure]) / 2 for measure in measures
        ]
        means = [row["mean", measure] for measure in measures]
        cells = map(text.format_with_half, means, halves)
        table.add_row(str(label), f"{row['seeds', 'epoch_s']:.0f}", *cells)
    return table


def sweep_verdict(result: Result) -> Verdict:
    """Return the verdict; it is empty where labels of the user's own do not tell runs
    apart.
    """
    table, rows, seeds = _warm_epochs_by_run(result)
    if rows is None:
        return Verdict()
    scales = scales_of(rows, inputs_of_sweep(result))
    interval_meta = result.meta.get("intervals")
    return verdict.judge_scales(
        scales, causes_of_sweep(table, rows), seeds, interval_meta
    )


def _warm_epochs_by_run(
    result: Result,
) -> tuple[pd.DataFrame, pd.DataFrame | None, int]:
    """Return the table by run, the warm epoch of each run, and the number of seeds of
    each.

    The table is of `table_by_run`, the warm epochs of `contest.warm_epochs`. Where names
    do not tell runs apart, the warm epochs are None and the seeds 1.
    """
    table = table_by_run(result)
    if table.duplicated(["run", "epoch", "seed"]).any():
        return table, None, 1
    epochs, half_intervals, seeds = mean_epochs(table)
    epoch_half = half_intervals["epoch_s"] if seeds > 1 else half_of_window(epochs)
    return table, warm_epochs(epochs, epoch_half), seeds
