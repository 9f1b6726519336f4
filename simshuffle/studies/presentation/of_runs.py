"""Figures of runs: where their seconds go, and a measure over ranks or Q, a line for each way of
running; and what all figures share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.report import intervals, report
from simshuffle.report.chart import Axis, Chart, Look, Mark, Panel, in_rows, stacked_bars
from simshuffle.report.intervals import Ends
from simshuffle.report.names import without_schedule
from simshuffle.report.report import EPOCH_COLUMNS, LABELS, Booking, seconds_of_rows
from simshuffle.report.style import COLOURS, line_height
from simshuffle.report.timeline import Timeline
from simshuffle.studies.mechanisms.tables import NAMES as WAYS
from simshuffle.studies.simulation.figures import (
    ROW_INCHES,
    WHISKER,
    breakdown_chart,
    in_lines,
)
from simshuffle.studies.simulation.study import labels_of
from simshuffle.studies.simulation.sweep_figures import MOST_LINES, name_without, sweep_chart
from simshuffle.studies.simulation.tables import (
    Means,
    label_column,
    means,
    measures,
    samples_of,
    summary,
)
from simshuffle.studies.simulation.tables import SweptAxis as Swept
from simshuffle.study.long_table import get_long
from simshuffle.study.study import Result

NAMES = {"world_size": "world_size", "exchange_fraction": "exchanged fraction Q"}
HIDDEN = {
    "exposed_s": Look("shown", COLOURS["EXCHANGE"]),
    "hidden_s": Look("hidden behind other work", COLOURS["EXCHANGE"], fill="hidden"),
    "half": Look("95 % interval of what is shown", WHISKER.colour, size=WHISKER.size),
}
SAMPLES = "samples"
"""A measure of `last_epochs` beside those of all runs: how many samples an epoch has."""
Pair = tuple[pd.DataFrame, pd.DataFrame]
"""Epochs and breakdown, as `simshuffle.report.report` makes them, with or without seeds."""


@dataclass(frozen=True)
class Given:
    """A result that is shown."""

    name: str  # of its folder
    result: Result  # itself
    folder: Path = Path()  # where it is; nothing that is written says so


def nothing(rule: str, given: Sequence[Given], remedy: str) -> InputError:
    """The error of results that have nothing for a figure: what it needs, and how to get it."""
    names = ", ".join(of.name for of in given)
    return InputError(Problem("RESULT", rule, names, remedy), "command line")


PHASES = ("exchange", "wait_exchange", "exchange_hidden")
_WANTED = ["run", "seed", "epoch", "iteration", "rank", "phase", "start_s", "end_s"]


def exchange_phases(result: Result) -> Iterator[pd.DataFrame]:
    """The rows of a timeline that are of an exchange, piece by piece, with a seed and the `seconds`
    that each lasts; iterations that stand for others count as often."""
    for piece in get_long(result.tables, "timeline").pieces(_WANTED):
        of = piece[piece["phase"].isin(PHASES)]
        if len(of):
            seconds = seconds_of_rows(Timeline(of, of, result.tables["sources"]))
            texts = {name: of[name].astype(str) for name in ("run", "phase")}
            yield of.assign(**texts, seed=of.get("seed", 0), seconds=seconds)


def no_exchange(given: Sequence[Given]) -> InputError:
    """The error of results without an exchange."""
    remedy = "Simulate partial_local_shuffle, or an importance exchange."
    return nothing("needs runs that exchange samples", given, remedy)


def too_many(given: Sequence[Given], count: int, most: int) -> None:
    """See that there are no more runs than can be drawn.

    Raises:
        InputError: there are.
    """
    if count > most:
        rule = f"draws at most {most} runs; there are {count}"
        raise nothing(rule, given, "Give results of fewer runs.")


def own(
    name: str, check: Callable[[Sequence[Given]], Any] = lambda given: None
) -> Callable[[Sequence[Given]], Chart]:
    """The figure of that name which the study itself declares; ``check`` raises InputError where it
    has nothing for it."""

    def chart(given: Sequence[Given]) -> Chart:
        check(given)
        result = given[0].result
        return result.study.figures(result)[name]

    return chart


def renamed(given: Sequence[Given]) -> list[tuple[Given, Mapping[str, str], Pair]]:
    """The epochs and breakdowns of each result, and the new names of its runs: those that are
    called alike in several results have the names of their folders in front."""
    found = []
    for of in given:
        tables = of.result.tables
        swept = of.result.study.kind == "sweep"
        pair = _of_sweep(of.result) if swept else (tables["epochs"], tables["breakdown"])
        epochs, breakdown = (table.assign(run=table["run"].astype(str)) for table in pair)
        found.append((of, (epochs, breakdown)))
    count = Counter(run for _, (epochs, _) in found for run in epochs["run"].unique())
    out: list[tuple[Given, Mapping[str, str], Pair]] = []
    for of, pair in found:
        names = {run: f"{of.name}: {run}" if n > 1 else run for run, n in count.items()}
        epochs, breakdown = (table.assign(run=table["run"].map(names)) for table in pair)
        out.append((of, names, (epochs, breakdown)))
    return out


def shown(given: Sequence[Given]) -> Means:
    """Means over the seeds of all results, of which some may have one."""
    each = [means(*pair) for *_, pair in renamed(given)]
    halves = [of.epoch_half for of in each if of.epoch_half is not None]
    epochs = pd.concat([of.epochs for of in each], ignore_index=True)
    half = pd.concat(halves).rename("epoch_s").to_frame() if halves else None
    if half is not None:
        there = pd.MultiIndex.from_frame(epochs[["run", "epoch"]])
        half = half.reindex(there).fillna(0.0)
    breakdown = pd.concat([of.breakdown for of in each], ignore_index=True)
    return Means(epochs, breakdown, half, max(of.seeds for of in each), ends(given))


def ends(given: Sequence[Given]) -> Ends:
    """The ends of the 90 % intervals of all results, by the names of `renamed`."""
    return {
        names[run]: of_run
        for of, names, _ in renamed(given)
        for run, of_run in intervals.interval_ends(of.result.meta.get("intervals")).items()
        if run in names
    }


def last_epochs(given: Sequence[Given]) -> pd.DataFrame:
    """The last epoch of every run: mean and 95 % interval of each measure over the seeds.

    Returns:
        Columns run, strategy, world_size, exchange_fraction, epoch, measure, seeds, mean, low and
        high, which are empty for one seed.
    """
    parts = []
    for *_, (epochs, breakdown) in renamed(given):
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

    names = [
        name_without(run, across, value)
        for run, value in zip(table["run"], table[across], strict=True)
    ]
    return pd.Series(names, table.index, dtype=object)


def _of_sweep(result: Result) -> Pair:
    """A sweep's one table as the two of a simulation. A run is called by its label, and by its axes
    too where labels are not unique."""
    table = result.tables["sweep"].rename(columns={"label": "run"})
    table["run"] = table["run"].astype(str)
    axes = [axis["name"] for axis in result.meta["axes"]]
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
    parts = report.drop_absent_labels(parts.sort_index(kind="stable").reset_index(drop=True))
    if epochs["seed"].nunique() == 1:
        return epochs.drop(columns="seed"), parts.drop(columns="seed")
    return epochs, parts


def breakdown(given: Sequence[Given]) -> Chart:
    """A bar for each run's last epoch."""
    of = shown(given)
    booking, half = _booking(given), of.epoch_half
    return breakdown_chart(of.breakdown, of.epochs, booking, half, of.about, ends=of.ends)


def _booking(given: Sequence[Given]) -> Booking:
    """The labels of the results, if they agree."""
    found = {labels_of(of.result.meta) for of in given}
    return found.pop() if len(found) == 1 else "cause"


def breakdown_table(given: Sequence[Given]) -> pd.DataFrame:
    """Seconds of each run's last epoch by label, and of waiting."""
    of = shown(given)
    last = of.epochs[of.epochs["epoch"] == of.epochs.groupby("run")["epoch"].transform("max")]
    parts = report.arrange_by_booking(of.breakdown, _booking(given))
    rows = []
    for row in last.to_dict("records"):
        own = parts[(parts["run"] == row["run"]) & (parts["epoch"] == row["epoch"])]
        sums = own[~own["waiting"]].groupby("label", sort=False)["seconds"].sum()
        waiting, whole = float(own.loc[own["waiting"], "seconds"].sum()), row["epoch_s"]
        half = of.epoch_half.loc[(row["run"], row["epoch"])] if of.epoch_half is not None else 0.0
        half = float(half) or math.nan
        labels = {f"{label}_s": float(value) for label, value in sums.items()}
        seconds = {**labels, "waiting_s": waiting, "epoch_s": whole}
        ends = {"low": whole - half, "high": whole + half}
        rows.append({"run": row["run"], "ranks": row["world_size"], **seconds, **ends})
    return pd.DataFrame(rows)


def over(given: Sequence[Given], across: str, measure: str, ideal: bool = False) -> Chart:
    """The rows of `table_over`, a line for each kind of run; ``ideal``: with dotted lines of ideal
    scaling from the smallest size."""
    rows = table_over(given, across, measure)
    axes: list[Swept] = [
        {"name": across, "key": NAMES[across], "numbers": True},
        {"name": "line", "key": "line", "numbers": False},
    ]
    values = rows.rename(columns={measure: "mean"})
    values = values.assign(label=values["line"], epoch=1, measure=measure)
    found = last_epochs(given)
    drawn = lines_of(found, across).isin(rows["line"])
    samples = wide(found[drawn], SAMPLES, ["run"])[SAMPLES]
    return sweep_chart(values, axes, measure, samples=samples, ideal=ideal)


def table_over(given: Sequence[Given], across: str, measure: str) -> pd.DataFrame:
    """Mean and interval of ``measure`` in the last epochs: columns line, ``across``, the measure,
    low, high and seeds; of epochs also low_90 and high_90, where a result has these. Lines with one
    value, or none of the measure, are left out.

    Raises:
        InputError: no line is left, there are more than can be told apart, or two runs lie on one
            spot of a line.
    """
    found = last_epochs(given)
    found = found[found["measure"] == measure]
    rows = wide(found.assign(line=lines_of(found, across)), measure, ["run", "line", across])
    if measure == "epoch_s" and (known := ends(given)):
        rows = intervals.add_interval_ends(rows, known)
    rows = rows.drop(columns="run")
    rows = rows[rows[across].notna()]
    several = rows.groupby("line")[across].transform("nunique") > 1
    some = rows.groupby("line")[measure].transform("max") > 0
    rows = rows[several & some].reset_index(drop=True)
    what = "two world sizes" if across == "world_size" else "two values of Q"
    if rows.empty:
        key = "world_size=8,16"
        if across != "world_size":
            key = "workload.exchange.exchange_fraction=0.1,0.3"
        exchange = " with an exchange" if measure.startswith("exchange") else ""
        rule = f"needs runs of one kind{exchange} with at least {what}"
        raise nothing(rule, given, f"Simulate them: simshuffle sweep SCENARIO --over {key}")
    if (count := rows["line"].nunique()) > MOST_LINES:
        rule = f"draws at most {MOST_LINES} lines, as more cannot be told apart; there are {count}"
        raise nothing(rule, given, "Sweep fewer keys, or give fewer results.")
    if rows.duplicated(["line", across]).any():
        rule = f"needs lines with one run for each {NAMES[across]}"
        raise nothing(rule, given, "Name the runs with --label, with all axes in braces.")
    order = {line: place for place, line in enumerate(rows["line"].unique())}
    rows = rows.assign(place=rows["line"].map(order)).sort_values(["place", across])
    return rows.drop(columns="place").reset_index(drop=True)


def scaling_table(given: Sequence[Given]) -> pd.DataFrame:
    """The times, speed-up and efficiency over the smallest size of each line."""
    rows = table_over(given, "world_size", "epoch_s")
    first = rows.groupby("line", sort=False)[["world_size", "epoch_s"]].transform("first")
    speedup = first["epoch_s"] / rows["epoch_s"]
    ideal = rows["world_size"] / first["world_size"]
    return rows.assign(speedup=speedup, efficiency=speedup / ideal)


def hidden(given: Sequence[Given]) -> Chart:
    """A bar for each run, or a line for each way of carrying the exchange out."""
    if given[0].result.study.kind == "hiding":
        return own("hiding")(given)
    rows = hidden_table(given)
    names = [in_lines(name, whole=True) for name in without_schedule(rows["run"].tolist())]
    # rows stand equally far apart, so that the name with most lines decides
    lines = len(names) * max(max(1.0, 0.75 * (1 + name.count("\n"))) for name in names)
    ends = rows.assign(y=rows.index, look="half")
    marks = [
        Mark("bar", stacked_bars(rows[["exposed_s", "hidden_s"]]), thick=0.62),
        Mark("interval", ends[ends["low"].notna()], x="low", x2="high"),
    ]
    panel = Panel(marks, Axis("exchange per epoch and rank (s)", low=0.0), in_rows(names))
    height = ROW_INCHES * line_height() * lines + 0.45
    return Chart([panel], height, HIDDEN, "Exchange, shown and hidden.")


def hidden_table(given: Sequence[Given]) -> pd.DataFrame:
    """Of runs: seconds shown, with their interval, seconds hidden, and their share. Of a search for
    the largest hidden Q: that, by way and ranks."""
    if given[0].result.study.kind == "hiding":
        limits = given[0].result.tables["limits"]
        columns = ["way", "world_size", "iterations", "exchange_fraction", "baseline_s"]
        return limits[[*columns, "bottleneck"]].assign(way=limits["way"].map(WAYS))
    found = last_epochs(given)
    keys = ["run", "world_size"]
    whole = wide(found, "exchange_total_s", keys)["exchange_total_s"]
    rows = wide(found, "exchange_exposed_s", keys)
    rows = rows.rename(columns={"exchange_exposed_s": "exposed_s"})
    rows.insert(3, "hidden_s", (whole - rows["exposed_s"]).clip(lower=0.0))
    rows.insert(4, "share_hidden", rows["hidden_s"] / whole)
    rows = rows[whole > 0].reset_index(drop=True)
    if rows.empty:
        raise no_exchange(given)
    return rows
