"""Figures of runs: where their seconds go, and a measure over ranks or Q with one line
for each kind of run. Other figures use the helpers here, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from simshuffle.report import intervals, report
from simshuffle.report.chart import (
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    in_rows,
    stacked_bars,
)
from simshuffle.report.intervals import Ends
from simshuffle.report.names import without_schedule
from simshuffle.report.report import Booking
from simshuffle.report.style import COLOURS, line_height
from simshuffle.studies.mechanisms.tables import NAMES as WAYS
from simshuffle.studies.presentation.named_results import (
    NamedResult,
    declared_figure,
    distinguish_runs,
    missing_exchange,
    unsuitable_results,
)
from simshuffle.studies.simulation.figures import (
    ROW_INCHES,
    WHISKER,
    breakdown_chart,
    wrap_name,
)
from simshuffle.studies.simulation.parts import booking_of
from simshuffle.studies.simulation.sweep_figures import (
    MAX_LINES,
    name_without,
    sweep_chart,
)
from simshuffle.studies.simulation.tables import (
    Means,
    means_over_seeds,
    measures_of_epochs,
    samples_of,
    summarise_seeds,
)
from simshuffle.studies.simulation.tables import SweptAxis as Swept

NAMES = {"world_size": "world_size", "exchange_fraction": "exchanged fraction Q"}
HIDDEN = {
    "exposed_s": Look("shown", COLOURS["EXCHANGE"]),
    "hidden_s": Look("hidden behind other work", COLOURS["EXCHANGE"], fill="hidden"),
    "half": Look(
        "95 % interval of the shown exchange", WHISKER.colour, size=WHISKER.size
    ),
}
SAMPLES = "samples"
"""A measure of `last_epochs` beside those of all runs: how many samples an epoch has."""


def average_results(results: Sequence[NamedResult]) -> Means:
    """Return the means of every epoch of every run over the seeds of its result, which
    may be one seed.

    Runs have the names of `distinguish_runs`. Half intervals (95 %, s) have the column
    epoch_s alone: over the seeds, or with one seed for the iterations that were not
    simulated. They are 0 for runs without, and None if no run has any. The number of
    seeds is the largest of all results.
    """
    means_of_results = [
        means_over_seeds(runs.epochs, runs.breakdown)
        for runs in distinguish_runs(results)
    ]
    halves = [
        averages.epoch_half
        for averages in means_of_results
        if averages.epoch_half is not None
    ]
    epochs = pd.concat(
        [averages.epochs for averages in means_of_results], ignore_index=True
    )
    half_widths = pd.concat(halves).rename("epoch_s").to_frame() if halves else None
    if half_widths is not None:
        shown_epochs = pd.MultiIndex.from_frame(epochs[["run", "epoch"]])
        half_widths = half_widths.reindex(shown_epochs).fillna(0.0)
    breakdown = pd.concat(
        [averages.breakdown for averages in means_of_results], ignore_index=True
    )
    return Means(
        epochs,
        breakdown,
        half_widths,
        max(averages.seeds for averages in means_of_results),
        interval_ends_of_results(results),
        measured_count_of_results(results),
    )


def interval_ends_of_results(results: Sequence[NamedResult]) -> Ends:
    """Return the ends of the 90 % intervals of all results (s), by the names of
    `distinguish_runs`; {} where no result has intervals.
    """
    ends_of_runs = {}
    for runs in distinguish_runs(results):
        intervals_of_result = runs.named_result.result.meta.get("intervals")
        for run, ends in intervals.interval_ends(intervals_of_result).items():
            if run in runs.new_names:
                ends_of_runs[runs.new_names[run]] = ends
    return ends_of_runs


def measured_count_of_results(results: Sequence[NamedResult]) -> int:
    """Return the most measured runs that the intervals of a result take in."""
    stored = (named_result.result.meta.get("intervals") for named_result in results)
    return max(map(intervals.measured_count, stored), default=0)


def last_epochs(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return the last epoch of every run: mean and 95 % interval of each measure over
    the seeds.

    Returns:
        A row for each run and measure: columns run, strategy, world_size,
        exchange_fraction, epoch, measure, seeds, mean, low and high. Low and high are
        NaN for one seed. Measures are the numbers of `EPOCH_COLUMNS`, the labels with
        and without waiting (`label_column`), and `SAMPLES`.
    """
    parts = []
    for runs in distinguish_runs(results):
        table = measures_of_epochs(runs.epochs, runs.breakdown)
        table = table.assign(**{SAMPLES: samples_of(runs.epochs)})
        table = report.rows_of_last_epoch(table)
        keys = ["run", "strategy", "world_size", "exchange_fraction"]
        texts = [
            column
            for column in table
            if column not in keys and not pd.api.types.is_numeric_dtype(table[column])
        ]
        parts.append(summarise_seeds(table.drop(columns=texts), keys))
    return pd.concat(parts, ignore_index=True)


def select_measure(
    table: pd.DataFrame, measure: str, keys: Sequence[str]
) -> pd.DataFrame:
    """Return the mean of one measure, under its name, with ``keys``, seeds, low and
    high.

    ``table`` is one of `last_epochs`; without the measure the result has no rows.
    """
    rows = table[table["measure"] == measure].rename(columns={"mean": measure})
    return rows[[*keys, measure, "low", "high", "seeds"]].reset_index(drop=True)


def name_lines(table: pd.DataFrame, across: str) -> pd.Series[str]:
    """Return (rows,) the line on which each run of ``table`` lies: the run's name
    without the words for ``across``.

    ``across``, 'world_size' or 'exchange_fraction', is drawn from left to right.
    """

    names = [
        name_without(run, across, value)
        for run, value in zip(table["run"], table[across], strict=True)
    ]
    return pd.Series(names, table.index, dtype=object)


def breakdown(results: Sequence[NamedResult]) -> Chart:
    """Draw a bar for each run's last epoch, with its 95 % and 90 % intervals."""
    averages = average_results(results)
    return breakdown_chart(
        averages.breakdown,
        averages.epochs,
        _common_booking(results),
        half_intervals=averages.epoch_half,
        interval_subject=averages.interval_subject,
        interval_ends=averages.ends,
        num_measured=averages.num_measured,
    )


def _common_booking(results: Sequence[NamedResult]) -> Booking:
    """Return how the results book their seconds, if they agree, else 'cause'."""
    bookings = {booking_of(named_result.result.meta) for named_result in results}
    return bookings.pop() if len(bookings) == 1 else "cause"


def breakdown_table(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return a row for each run: its last epoch in s, with 95 % interval, by label, and
    waiting.

    Columns run, ranks, a label and '_s' for each label's own work, waiting_s, epoch_s,
    low and high. Low and high are NaN without an interval. What gradients add to the
    backward pass counts under GE+WU, as in the table of ``run``. If all results book
    waiting as the papers, it is part of the labels, and waiting_s is 0.
    """
    averages = average_results(results)
    epochs = averages.epochs
    last = report.rows_of_last_epoch(epochs)
    parts = report.arrange_labels(averages.breakdown, _common_booking(results))
    parts = parts.assign(waiting=parts["waiting"] & (parts["label"] != report.SLOWING))
    rows = []
    for row in last.to_dict("records"):
        run_parts = parts[
            (parts["run"] == row["run"]) & (parts["epoch"] == row["epoch"])
        ]
        sums = (
            run_parts[~run_parts["waiting"]]
            .groupby("label", sort=False)["seconds"]
            .sum()
        )
        waiting = float(run_parts.loc[run_parts["waiting"], "seconds"].sum())
        epoch_s = row["epoch_s"]
        half_width = math.nan
        if averages.epoch_half is not None:
            half_width = (
                float(averages.epoch_half.loc[(row["run"], row["epoch"])]) or math.nan
            )
        labels = {f"{label}_s": float(value) for label, value in sums.items()}
        seconds = {**labels, "waiting_s": waiting, "epoch_s": epoch_s}
        ends = {"low": epoch_s - half_width, "high": epoch_s + half_width}
        rows.append({"run": row["run"], "ranks": row["world_size"], **seconds, **ends})
    return pd.DataFrame(rows)


def scaling_chart(
    results: Sequence[NamedResult], across: str, measure: str, ideal: bool = False
) -> Chart:
    """Draw the rows of `scaling_rows`, a line for each kind of run.

    ``ideal`` adds dotted lines of ideal scaling from the smallest size, and makes both
    axes logarithmic.

    Raises:
        InputError: as `scaling_rows`.
    """
    rows = scaling_rows(results, across, measure)
    axes: list[Swept] = [
        {"name": across, "key": NAMES[across], "numbers": True},
        {"name": "line", "key": "line", "numbers": False},
    ]
    values = rows.rename(columns={measure: "mean"})
    values = values.assign(label=values["line"], epoch=1, measure=measure)
    epochs = last_epochs(results)
    is_drawn = name_lines(epochs, across).isin(rows["line"])
    samples = select_measure(epochs[is_drawn], SAMPLES, ["run"])[SAMPLES]
    count = measured_count_of_results(results)
    return sweep_chart(
        values, axes, measure, samples=samples, ideal=ideal, num_measured=count
    )


def scaling_rows(
    results: Sequence[NamedResult], across: str, measure: str
) -> pd.DataFrame:
    """Return mean and interval of ``measure`` in the last epochs, a row for each point
    of a line.

    Columns: line, ``across``, the measure, low, high (95 %, over seeds; NaN for one
    seed) and seeds; if the measure is epoch_s also low_90 and high_90, where a result
    has these. Rows are in the order of lines, then ascending by ``across``. Runs without
    a value of ``across`` are left out. So are lines with one value, or whose measure is
    0 everywhere.

    Raises:
        InputError: no line is left, there are more than can be told apart, or two runs
            lie on one spot of a line.
    """
    epochs = last_epochs(results)
    epochs = epochs[epochs["measure"] == measure]
    rows = select_measure(
        epochs.assign(line=name_lines(epochs, across)), measure, ["run", "line", across]
    )
    if measure == "epoch_s" and (ends := interval_ends_of_results(results)):
        rows = intervals.add_interval_ends(rows, ends)
    rows = rows.drop(columns="run")
    rows = rows[rows[across].notna()]
    has_several = rows.groupby("line")[across].transform("nunique") > 1
    is_positive = rows.groupby("line")[measure].transform("max") > 0
    rows = rows[has_several & is_positive].reset_index(drop=True)
    needed_values = "two world sizes" if across == "world_size" else "two values of Q"
    if rows.empty:
        key = "world_size=8,16"
        if across != "world_size":
            key = "workload.exchange.exchange_fraction=0.1,0.3"
        exchange = " with an exchange" if measure.startswith("exchange") else ""
        rule = f"needs runs of one kind{exchange} with at least {needed_values}"
        raise unsuitable_results(
            rule, results, f"Simulate them: simshuffle sweep SCENARIO --over {key}"
        )
    if (count := rows["line"].nunique()) > MAX_LINES:
        rule = f"draws at most {MAX_LINES} lines, as more cannot be told apart; there are {count}"
        raise unsuitable_results(
            rule, results, "Sweep fewer keys, or give fewer results."
        )
    if rows.duplicated(["line", across]).any():
        rule = f"needs lines with one run for each {NAMES[across]}"
        raise unsuitable_results(
            rule, results, "Name the runs with --label, with all axes in braces."
        )
    line_index = pd.factorize(rows["line"])[0]
    rows = rows.assign(line_index=line_index).sort_values(["line_index", across])
    return rows.drop(columns="line_index").reset_index(drop=True)


def scaling_table(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return `scaling_rows` of epochs over ranks, with ``speedup`` and ``efficiency``.

    Both are against the smallest size of each line. Speedup is the ratio of times per
    epoch; efficiency is the share of the ideal speedup, which is the ratio of ranks.

    Raises:
        InputError: as `scaling_rows`.
    """
    rows = scaling_rows(results, "world_size", "epoch_s")
    first = rows.groupby("line", sort=False)[["world_size", "epoch_s"]].transform(
        "first"
    )
    speedup = first["epoch_s"] / rows["epoch_s"]
    ideal = rows["world_size"] / first["world_size"]
    return rows.assign(speedup=speedup, efficiency=speedup / ideal)


def hidden(results: Sequence[NamedResult]) -> Chart:
    """Draw exposed and hidden exchange, a bar for each run, or hidden Q, a line for
    each mode.

    Hidden Q is drawn if the first result is of a search for it; other results are then
    left out.

    Raises:
        InputError: no run exchanges samples.
    """
    if results[0].result.study.kind == "hiding":
        return declared_figure("hiding")(results)
    rows = hidden_table(results)
    names = [
        wrap_name(name, with_world_size=True)
        for name in without_schedule(rows["run"].tolist())
    ]
    # rows stand equally far apart, so that the name with most lines decides
    num_lines = len(names) * max(
        max(1.0, 0.75 * (1 + name.count("\n"))) for name in names
    )
    whiskers = rows.assign(y=rows.index, look="half")
    marks = [
        Mark("bar", stacked_bars(rows[["exposed_s", "hidden_s"]]), thick=0.62),
        Mark("interval", whiskers[whiskers["low"].notna()], x="low", x2="high"),
    ]
    panel = Panel(
        marks, Axis("exchange per epoch and rank (s)", low=0.0), in_rows(names)
    )
    height = ROW_INCHES * line_height() * num_lines + 0.45
    return Chart([panel], height, HIDDEN, "Exchange, shown and hidden.")


def hidden_table(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return how much of an exchange is hidden, in the last epoch of each run.

    Of runs: columns run, world_size, exposed_s, hidden_s and share_hidden (of the whole
    exchange), then low and high, the ends of the 95 % interval of exposed_s, and seeds.
    Seconds are means over ranks and seeds. Runs without exchange are left out. If the
    first result is a search for the largest hidden Q: that Q, by mode of sending and
    ranks, of this result alone, in columns way, world_size, iterations,
    exchange_fraction (Q), baseline_s and bottleneck.

    Raises:
        InputError: no run exchanges samples.
    """
    if results[0].result.study.kind == "hiding":
        limits = results[0].result.tables["limits"]
        columns = ["way", "world_size", "iterations", "exchange_fraction", "baseline_s"]
        return limits[[*columns, "bottleneck"]].assign(way=limits["way"].map(WAYS))
    epochs = last_epochs(results)
    keys = ["run", "world_size"]
    exchange_s = select_measure(epochs, "exchange_total_s", keys)["exchange_total_s"]
    rows = select_measure(epochs, "exchange_exposed_s", keys)
    rows = rows.rename(columns={"exchange_exposed_s": "exposed_s"})
    rows.insert(3, "hidden_s", (exchange_s - rows["exposed_s"]).clip(lower=0.0))
    rows.insert(4, "share_hidden", rows["hidden_s"] / exchange_s)
    rows = rows[exchange_s > 0].reset_index(drop=True)
    if rows.empty:
        raise missing_exchange(results)
    return rows
