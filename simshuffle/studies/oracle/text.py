"""An oracle on a terminal, from tables alone. Tables fit 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.report import intervals
from simshuffle.report.console import new_table
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.oracle.tables import ALL, KEY, STORED, gib, seconds, usable
from simshuffle.study.study import Tables

BEST, FULL = 3, 16
"""Strategies of each scale that are shown at first, and of the chosen scale."""
NEXT = 38
"""Characters of those that are next in a line."""
CLOSE = "~"
"""Marks what is too close to tell."""
SPENT = ("epoch", "compute", "bubble", "sent", "hidden", "other", "input")
"""Seconds of a scale that is shown in full."""
Row = Mapping[Any, Any]


def parts(tables: Tables, says: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield the best of each scale, from all tables and from what ``meta.json`` says; and why
    strategies fall out where all do."""
    points, best = tables["points"], tables["recommended"]
    sizes = sorted(points["world_size"].unique())
    scales = f"{sizes[0]} to {gpus(sizes[-1])}" if len(sizes) > 1 else gpus(sizes[0])
    several = "points" if len(points) > 1 else "point"
    yield f"{says['what']}: {len(points)} {several} on {scales}."
    if says.get("budget_nbytes") is None:
        yield "No memory budget: give one with --budget-memory."
    else:
        yield f"Budget: {gib(says['budget_nbytes'])} GiB a GPU ({says['budget_from']})."
    yield _scales(points, best)
    if not best.loc[(best["world_size"] != ALL) & (best["second"] != ""), "clear"].all():
        yield f"{CLOSE} too close to tell: the intervals of the two fastest overlap."
    if not points["feasible"].any():
        yield _fallen(points[points["why_not"] != ""])


def details(tables: Tables, says: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield the chosen scale in full, what falls out, what was simulated or measured as well, and
    the assumptions."""
    points, best = tables["points"], tables["recommended"]
    chosen = chosen_scale(best, points)
    here = points[(points["world_size"] == chosen) & points["feasible"]]
    if len(here):
        yield _whole(here.sort_values(["epoch_s", "loop_s"], kind="stable").head(FULL), chosen)
    if len(here) > FULL:
        slowest = f"the slowest {seconds(here['epoch_s'].max())} s an epoch"
        yield f"{len(here) - FULL} more are slower, {slowest}; all are in points.csv."
    out = points[points["why_not"] != ""]
    if len(out) and points["feasible"].any():
        yield _fallen(out)
    if len(tables["simulated"]):
        yield STORED["simulated"].listing(
            tables["simulated"],
            "Simulated again with all transfers on the cables at once: ms a step",
            (*KEY[::-1], "step_closed_s", "step_fluid_s", "ratio", "epoch_fluid_s"),
        )
    if len(tables["measured"]):
        yield STORED["measured"].listing(
            tables["measured"],
            "Against what was measured: s an epoch",
            (*KEY[::-1], "predicted_s", "measured_s", "accuracy"),
        )
    yield "Rests on:\n" + "\n".join(f"- {each}" for each in says["assumptions"])


def verdict(
    best: pd.DataFrame, says: Mapping[str, Any], error: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """The best of all scales in words, how far its ``error`` may reach (from ``meta.json``), what
    to do where nothing fits, and what that rests on."""
    whole, *others = best.to_dict("records")
    if whole["strategy"]:
        yield _fastest(whole)
        yield from (_none(row, says) for row in others if not row["strategy"])
        yield _off(error) if error else intervals.NONE_OF_TIMES
    else:
        yield _none(whole, says)
    yield "Rests on closed forms and the assumptions that -v lists; accuracy is not in it."


def _fastest(row: Row) -> str:
    said = (
        f"Fastest: {row['strategy']} on {gpus(row['at'])}, {seconds(row['epoch_s'])} s an epoch"
        f" ({seconds(row['epoch_low_s'])} to {seconds(row['epoch_high_s'])} s),"
        f" {gib(row['memory_nbytes'])} GiB a GPU."
    )
    if not row["second"]:
        return f"{said} No other fits."
    told = "" if row["clear"] else "; too close to tell"
    return f"{said} Next there: {row['second']}, {_percent(row['margin'])} longer{told}."


def _off(error: Row) -> str:
    """How far the fastest may be off, and how sure it is that it is the fastest."""
    value, low, high = (
        readable(error[f"{name}_s"], Dimension.SECONDS, 3) for name in ("iteration", "low", "high")
    )
    said = (
        f"An iteration of {error['strategy']} takes {value} if samples are there; {low} to {high}"
        f" is the 90 % interval by what laws of {error['law']} missed on machines that were"
        " measured. Errors of inputs are not in it."
    )
    if not {"second", "shared", "faster"} <= set(error):
        return said
    one = "one error for both, as they are of one mechanism; what each misses alone is not known"
    how = one if error["shared"] else "independent errors of two mechanisms"
    return (
        f"{said} It is faster than {error['second']} with a probability of {error['faster']:.0%}"
        f" ({how})."
    )


def _none(row: Row, says: Mapping[str, Any]) -> str:
    everywhere = row["world_size"] == ALL
    where = "Nothing" if everywhere else f"On {gpus(row['world_size'])} nothing"
    if not row["least_memory"]:
        return f"{where} works; {'why is above' if everywhere else '-v says why'}."
    over = row["least_nbytes"] - says["budget_nbytes"]
    said = (
        f"{where} fits: {row['least_memory']} takes least memory, {gib(row['least_nbytes'])} GiB a"
        f" GPU, {gib(over)} GiB too much."
    )
    if pd.notna(row["fits_from"]):
        return f"{said} From {gpus(row['fits_from'])} on something fits."
    return (
        f"{said} A smaller workload.local_batch_size needs less, and so does"
        " workload.parallelism.recompute=true."
    )


def chosen_scale(best: pd.DataFrame, points: pd.DataFrame) -> int:
    """The world size that is shown in full: that of the best point, or the largest."""
    found = best.loc[best["world_size"] == ALL, "at"]
    return int(found.iloc[0] if found.notna().all() else points["world_size"].max())


def _scales(points: pd.DataFrame, best: pd.DataFrame) -> Table:
    """A row for each scale: the best three."""
    title = f"The best {BEST} at each scale: s an epoch, GiB of the fullest GPU"
    table = new_table(title, [], ["GPUs"])
    table.add_column("fastest", no_wrap=True)
    for name in ("epoch s", "low to high", "GiB", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("next, and how much longer")
    fitting, close = usable(points), best.set_index("world_size")["clear"]
    for size in sorted(points["world_size"].unique()):
        rows = fitting[fitting["world_size"] == size].head(BEST).to_dict("records")
        if not rows:
            table.add_row(str(size), "nothing fits")
            continue
        first, *others = rows
        longer = [
            f"{row['strategy']} +{_percent(row['epoch_s'] / first['epoch_s'] - 1)}"
            for row in others
        ]
        if longer and not close[size]:
            longer[0] += f" {CLOSE}"
        interval = f"{seconds(first['epoch_low_s'])}-{seconds(first['epoch_high_s'])}"
        faster = "" if pd.isna(first["speedup"]) else f"{first['speedup']:.1f}"
        numbers = (seconds(first["epoch_s"]), interval, gib(first["memory_nbytes"]), faster)
        one_line = ", ".join(longer)
        said = one_line if len(one_line) <= NEXT else "\n".join(longer)
        table.add_row(str(size), first["strategy"], *numbers, said)
    return table


def _whole(rows: pd.DataFrame, size: int) -> Table:
    """All of these points of a scale."""
    title = f"{gpus(size)} in full: s an epoch, and GiB of the fullest GPU (! too much)"
    table = new_table(title)
    table.add_column("strategy", no_wrap=True)
    exchanged = rows["hidden_exchange"].notna().any()
    for name in (*SPENT, "GiB", *(["Q*"] if exchanged else [])):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bottleneck", overflow="fold", min_width=12)
    shown = rows.assign(
        sent_s=rows["exposed_s"] + rows["hidden_s"],
        other_s=rows["waiting_s"] + rows["exchange_s"] + rows["startup_s"],
    )
    for row in shown.to_dict("records"):
        over = "" if pd.isna(row["fits"]) or row["fits"] else "!"
        cells = [seconds(row[f"{name}_s"]) for name in SPENT]
        cells.append(f"{gib(row['memory_nbytes'])}{over}")
        if exchanged:
            quota = row["hidden_exchange"]
            cells.append("" if pd.isna(quota) else f"{100 * quota:.0f} %")
        table.add_row(row["strategy"], *cells, row["bottleneck"].replace("_", " "))
    return table


def _fallen(out: pd.DataFrame) -> Table:
    """Why strategies fall out, and at which scales."""
    table = new_table("What falls out, and why")
    for name in ("strategy", "GPUs"):
        table.add_column(name, no_wrap=True)
    table.add_column("why", overflow="fold")
    bare = out["strategy"].str.removeprefix("data+")
    for (strategy, _), rows in out.groupby([bare, "feasible"], sort=False):
        sizes = sorted(rows["world_size"])
        at = f"{sizes[0]}-{sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
        first = rows.sort_values("world_size")["why_not"].iloc[0]
        table.add_row(str(strategy), at, f"at {sizes[0]}: {first}" if len(sizes) > 1 else first)
    return table


def gpus(number: float) -> str:
    """So many GPUs in words."""
    return f"{int(number)} GPU{'s' if number != 1 else ''}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
