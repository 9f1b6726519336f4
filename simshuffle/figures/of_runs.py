"""Figures of runs: where their seconds go, and a measure over ranks or Q, a line for each way of
running."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from simshuffle.figures.kinds import Given, nothing
from simshuffle.figures.runs import SAMPLES, last_epochs, lines_of, shown, wide
from simshuffle.results import report
from simshuffle.results.chart import Axis, Chart, Look, Mark, Panel, in_rows, stacked
from simshuffle.results.report import Booking
from simshuffle.results.style import COLOURS, line_height
from simshuffle.studies.mechanisms.figures import hiding_chart
from simshuffle.studies.mechanisms.tables import NAMES as WAYS
from simshuffle.studies.simulation.figures import ROW_INCHES, WHISKER, breakdown_chart, in_lines
from simshuffle.studies.simulation.study import labels_of
from simshuffle.studies.simulation.sweep_figures import MOST_LINES, sweep_chart
from simshuffle.studies.simulation.tables import Axis as Swept

NAMES = {"world_size": "world_size", "exchange_fraction": "exchanged fraction Q"}
HIDDEN = {
    "exposed_s": Look("shown", COLOURS["EXCHANGE"]),
    "hidden_s": Look("hidden behind other work", COLOURS["EXCHANGE"], fill="hidden"),
    "half": Look("95 % interval of what is shown", WHISKER.colour, size=WHISKER.size),
}

# --------------------------------------------------------------------------- seconds of an epoch


def breakdown(given: Sequence[Given]) -> Chart:
    """A bar for each run's last epoch."""
    of = shown(given)
    return breakdown_chart(of.breakdown, of.epochs, _booking(given), of.epoch_half, of.about)


def _booking(given: Sequence[Given]) -> Booking:
    """That of the results, if they agree."""
    found = {labels_of(of.result.meta) for of in given}
    return found.pop() if len(found) == 1 else "cause"


def breakdown_table(given: Sequence[Given]) -> pd.DataFrame:
    """Seconds of each run's last epoch by label, and of waiting."""
    of = shown(given)
    last = of.epochs[of.epochs["epoch"] == of.epochs.groupby("run")["epoch"].transform("max")]
    parts = report.shown(of.breakdown, _booking(given))
    rows = []
    for row in last.to_dict("records"):
        own = parts[(parts["run"] == row["run"]) & (parts["epoch"] == row["epoch"])]
        sums = own[~own["waiting"]].groupby("label", sort=False)["seconds"].sum()
        half = 0.0
        if of.epoch_half is not None:
            half = float(of.epoch_half.loc[(row["run"], row["epoch"])])
        rows.append(
            {
                "run": row["run"],
                "ranks": row["world_size"],
                **{f"{label}_s": float(value) for label, value in sums.items()},
                "waiting_s": float(own.loc[own["waiting"], "seconds"].sum()),
                "epoch_s": row["epoch_s"],
                "low": row["epoch_s"] - half if half else float("nan"),
                "high": row["epoch_s"] + half if half else float("nan"),
            }
        )
    return pd.DataFrame(rows)


# ------------------------------------------------------------------------------ over ranks or Q


def over(across: str, measure: str, *, ideal: bool = False) -> Callable[[Sequence[Given]], Chart]:
    """Draws the rows of `table_over`, a line for each kind of run; ``ideal``: with dotted lines of
    ideal scaling from the smallest size."""

    def chart(given: Sequence[Given]) -> Chart:
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

    return chart


def rows_over(across: str, measure: str) -> Callable[[Sequence[Given]], pd.DataFrame]:
    """The rows of `table_over`."""
    return lambda given: table_over(given, across, measure)


def table_over(given: Sequence[Given], across: str, measure: str) -> pd.DataFrame:
    """Mean and interval of ``measure`` in the last epochs: columns line, ``across``, the measure,
    low, high and seeds. Lines with one value, or none of the measure, are left out.

    Raises:
        InputError: no line is left, there are more than can be told apart, or two runs lie on one
            spot of a line.
    """
    found = last_epochs(given)
    found = found[found["measure"] == measure]
    rows = wide(found.assign(line=lines_of(found, across)), measure, ["line", across])
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


# -------------------------------------------------------------------------- exchange that is hidden


def hidden(given: Sequence[Given]) -> Chart:
    """A bar for each run, or a line for each way of carrying the exchange out."""
    if _of_hiding(given):
        return hiding_chart(given[0].result.tables)
    rows = hidden_table(given)
    names = [in_lines(run, whole=True) for run in rows["run"]]
    lines = sum(max(1.0, 0.75 * (1 + name.count("\n"))) for name in names)
    parts = rows.reset_index(names="y").melt("y", ["exposed_s", "hidden_s"], "look", "size")
    ends = rows.assign(y=rows.index, look="half")
    marks = [
        Mark("bar", stacked(parts, "y", "size", ("x", "x2")), thick=0.62),
        Mark("interval", ends[ends["low"].notna()], x="low", x2="high"),
    ]
    panel = Panel(marks, Axis("exchange per epoch and rank (s)", low=0.0), in_rows(names))
    return Chart(
        [panel], ROW_INCHES * line_height() * lines + 0.45, HIDDEN, "Exchange, shown and hidden."
    )


def hidden_table(given: Sequence[Given]) -> pd.DataFrame:
    """Of runs: seconds shown, with their interval, seconds hidden, and their share. Of a search for
    the largest hidden Q: that, by way and ranks."""
    if _of_hiding(given):
        limits = given[0].result.tables["limits"]
        columns = ["way", "world_size", "iterations", "exchange_fraction", "baseline_s"]
        return limits[[*columns, "bottleneck"]].assign(way=limits["way"].map(WAYS))
    found = last_epochs(given)
    keys = ["run", "world_size"]
    whole = wide(found, "exchange_total_s", keys)["exchange_total_s"]
    rows = wide(found, "exchange_exposed_s", keys).rename(
        columns={"exchange_exposed_s": "exposed_s"}
    )
    rows.insert(3, "hidden_s", (whole - rows["exposed_s"]).clip(lower=0.0))
    rows.insert(4, "share_hidden", rows["hidden_s"] / whole)
    rows = rows[whole > 0].reset_index(drop=True)
    if rows.empty:
        rule = "needs runs that exchange samples"
        raise nothing(rule, given, "Simulate partial_local_shuffle, or an importance exchange.")
    return rows


def _of_hiding(given: Sequence[Given]) -> bool:
    return given[0].result.study.kind == "hiding"
