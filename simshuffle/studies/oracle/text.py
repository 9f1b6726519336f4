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
from simshuffle.study.verdict import Verdict, join_sentences

BEST, FULL = 3, 16
"""Strategies of each scale that are shown at first, and of the chosen scale."""
NEXT = 38
"""Characters of those that are next in a line."""
CLOSE = "~"
"""Marks what is too close to tell."""
SPENT = ("epoch", "compute", "bubble", "sent", "hidden", "other", "input")
"""Seconds of a scale that is shown in full."""
Row = Mapping[Any, Any]


def parts(
    tables: Tables, facts: Mapping[str, Any], error: Mapping[str, Any] | None = None
) -> Iterator[str | Table]:
    """Yield the best strategies of each scale, from tables and the facts of a result.

    If no strategy is possible anywhere, why is added; else the interval by ``error``,
    which is from `model_error`, or None.
    """
    points = tables["points"]
    best = tables["recommended"]
    sizes = sorted(points["world_size"].unique())
    scales = f"{sizes[0]} to {gpus(sizes[-1])}" if len(sizes) > 1 else gpus(sizes[0])
    noun = "points" if len(points) > 1 else "point"
    yield f"{facts['what']}: {len(points)} {noun} on {scales}."
    if facts.get("budget_nbytes") is None:
        yield "No memory budget: give one with --budget-memory."
    else:
        yield f"Budget: {gib(facts['budget_nbytes'])} GiB a GPU ({facts['budget_from']})."
    yield _scales(points, best)
    if not best.loc[
        (best["world_size"] != ALL) & (best["second"] != ""), "clear"
    ].all():
        yield f"{CLOSE} too close to tell: the intervals of the two fastest overlap."
    if not points["feasible"].any():
        yield _fallen(points[points["why_not"] != ""])
    if error:
        yield _iteration_interval(error)


def details(tables: Tables, facts: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield the chosen scale in full; what falls out, was simulated, or was measured.

    Of the chosen scale the `FULL` fastest points are shown, over the budget or not. The
    assumptions come last.
    """
    points = tables["points"]
    best = tables["recommended"]
    chosen = chosen_scale(best, points)
    scale_points = points[(points["world_size"] == chosen) & points["feasible"]]
    if len(scale_points):
        yield _whole(
            scale_points.sort_values(["epoch_s", "loop_s"], kind="stable").head(FULL),
            chosen,
        )
    if len(scale_points) > FULL:
        slowest = f"the slowest {seconds(scale_points['epoch_s'].max())} s an epoch"
        yield f"{len(scale_points) - FULL} more are slower, {slowest}; all are in points.csv."
    unfit_points = points[points["why_not"] != ""]
    if len(unfit_points) and points["feasible"].any():
        yield _fallen(unfit_points)
    if len(tables["simulated"]):
        yield STORED["simulated"].listing(
            tables["simulated"],
            "Simulated again with all transfers on the cables at once: ms a step",
            (*KEY[::-1], "step_closed_s", "step_fluid_s", "ratio", "epoch_fluid_s"),
        )
    if len(tables["measured"]):
        yield STORED["measured"].listing(
            tables["measured"],
            "Compared with measurements: s an epoch",
            (*KEY[::-1], "predicted_s", "measured_s", "accuracy"),
        )
    yield "Rests on:\n" + "\n".join(
        f"- {assumption}" for assumption in facts["assumptions"]
    )


def verdict(
    best: pd.DataFrame, facts: Mapping[str, Any], error: Mapping[str, Any] | None = None
) -> Verdict:
    """Return the verdict: the best strategy of all scales, and where nothing fits.

    Args:
        best: the table `RECOMMENDED`.
        facts: in ``meta.json``, `OracleFacts`.
        error: from `model_error`; None where there is none.
    """
    best_of_all, *best_of_sizes = best.to_dict("records")
    unfit_rows = [row for row in best_of_sizes if not row["strategy"]]
    next_steps = []
    if best_of_all["strategy"]:
        answer = [_fastest(best_of_all), *(_none(row, facts) for row in unfit_rows)]
        next_steps += [] if error else [intervals.ERRORS_LEFT_OUT]
    else:
        answer = [_none(best_of_all, facts)]
        unfit_rows = [best_of_all]
    if any(row["least_memory"] and pd.isna(row["fits_from"]) for row in unfit_rows):
        next_steps.append(
            "less memory (a smaller workload.local_batch_size, or"
            " workload.parallelism.recompute=true)"
        )
    return Verdict(
        answer,
        why=_how_sure(error) if error and best_of_all["strategy"] else "",
        rests_on="closed forms and the assumptions that -v lists; accuracy is left out.",
        measure_next=join_sentences(next_steps),
    )


def _fastest(row: Row) -> str:
    """Return the sentence on the fastest strategy of all scales, and on the next one."""
    sentence = (
        f"Fastest: {row['strategy']} on {gpus(row['at'])}, {seconds(row['epoch_s'])} s an epoch,"
        f" {gib(row['memory_nbytes'])} GiB a GPU."
    )
    if not row["second"]:
        return f"{sentence} No other fits."
    closeness = "" if row["clear"] else "; too close to tell"
    return (
        f"{sentence} Next on these GPUs: {row['second']}, {_percent(row['margin'])}"
        f" longer{closeness}."
    )


def _iteration_interval(error: Row) -> str:
    """Return the sentence on an iteration of the fastest strategy and its interval;
    ``error`` is from `model_error`.
    """
    value, low, high = (
        readable(error[f"{name}_s"], Dimension.SECONDS, 3)
        for name in ("iteration", "low", "high")
    )
    return (
        f"An iteration of {error['strategy']} takes {value} without waiting for samples; {low} to"
        f" {high} is the 90 % interval, from the errors of laws of {error['law']} on measured"
        " machines. Errors of inputs are left out."
    )


def _how_sure(error: Row) -> str:
    """Return the sentence on how sure it is that the fastest strategy is the fastest;
    '' without a second one.
    """
    if not {"second", "shared", "faster"} <= set(error):
        return ""
    error_kind = (
        "one error for both, as both follow one mechanism"
        if error["shared"]
        else "independent errors of two mechanisms"
    )
    return (
        f"{error['strategy']} is faster than {error['second']} with a probability of"
        f" {100 * error['faster']:.0f} % ({error_kind})."
    )


def _none(row: Row, facts: Mapping[str, Any]) -> str:
    """Return the sentence on a scale, or all, where nothing fits: the least memory.

    It names the smallest scale at which something fits, if there is one. If nothing is
    possible there, it says where the reasons stand.
    """
    everywhere = row["world_size"] == ALL
    scale = "Nothing" if everywhere else f"On {gpus(row['world_size'])} nothing"
    if not row["least_memory"]:
        return f"{scale} works; {'why is above' if everywhere else '-v says why'}."
    excess = row["least_nbytes"] - facts["budget_nbytes"]
    sentence = (
        f"{scale} fits: {row['least_memory']} takes least memory, {gib(row['least_nbytes'])} GiB a"
        f" GPU, {gib(excess)} GiB too much."
    )
    if pd.notna(row["fits_from"]):
        return f"{sentence} Something fits on {gpus(row['fits_from'])}."
    return sentence


def chosen_scale(best: pd.DataFrame, points: pd.DataFrame) -> int:
    """Return the world size that is shown in full: the best point's, or the largest.

    ``best`` is the table `RECOMMENDED`.
    """
    best_size = best.loc[best["world_size"] == ALL, "at"]
    return int(
        best_size.iloc[0] if best_size.notna().all() else points["world_size"].max()
    )


def _scales(points: pd.DataFrame, best: pd.DataFrame) -> Table:
    """Return the table of scales, a row each: the `BEST` fastest strategies that fit."""
    title = f"The best {BEST} at each scale: s an epoch, GiB of the fullest GPU"
    table = new_table(title, [], ["GPUs"])
    table.add_column("fastest", no_wrap=True)
    for name in ("epoch s", "low to high", "GiB", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("next, and how much longer")
    fitting = usable(points)
    close = best.set_index("world_size")["clear"]
    for size in sorted(points["world_size"].unique()):
        rows = fitting[fitting["world_size"] == size].head(BEST).to_dict("records")
        if not rows:
            table.add_row(str(size), "nothing fits")
            continue
        first, *slower_rows = rows
        longer = [
            f"{row['strategy']} +{_percent(row['epoch_s'] / first['epoch_s'] - 1)}"
            for row in slower_rows
        ]
        if longer and not close[size]:
            longer[0] += f" {CLOSE}"
        interval = f"{seconds(first['epoch_low_s'])}-{seconds(first['epoch_high_s'])}"
        faster = "" if pd.isna(first["speedup"]) else f"{first['speedup']:.1f}"
        numbers = (
            seconds(first["epoch_s"]),
            interval,
            gib(first["memory_nbytes"]),
            faster,
        )
        one_line = ", ".join(longer)
        next_text = one_line if len(one_line) <= NEXT else "\n".join(longer)
        table.add_row(str(size), first["strategy"], *numbers, next_text)
    return table


def _whole(rows: pd.DataFrame, size: int) -> Table:
    """Return the table of all ``rows`` of one scale, which are possible points.

    'sent' is communication, hidden or not; 'other' is waiting for the slowest, the
    exchange, and the first batch. Q* has a column if any row has it.
    """
    title = f"{gpus(size)} in full: s an epoch, and GiB of the fullest GPU (! too much)"
    table = new_table(title)
    table.add_column("strategy", no_wrap=True)
    exchanged = rows["hidden_exchange"].notna().any()
    for name in (*SPENT, "GiB", *(["Q*"] if exchanged else [])):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bottleneck", overflow="fold", min_width=12)
    displayed_rows = rows.assign(
        sent_s=rows["exposed_s"] + rows["hidden_s"],
        other_s=rows["waiting_s"] + rows["exchange_s"] + rows["startup_s"],
    )
    for row in displayed_rows.to_dict("records"):
        over = "" if pd.isna(row["fits"]) or row["fits"] else "!"
        cells = [seconds(row[f"{name}_s"]) for name in SPENT]
        cells.append(f"{gib(row['memory_nbytes'])}{over}")
        if exchanged:
            quota = row["hidden_exchange"]
            cells.append("" if pd.isna(quota) else f"{100 * quota:.0f} %")
        table.add_row(row["strategy"], *cells, row["bottleneck"].replace("_", " "))
    return table


def _fallen(unfit_points: pd.DataFrame) -> Table:
    """Return the table of strategies that fall out: at which scales, and why.

    A row is a strategy, with and without replicas, that is impossible, or that does not
    fit. Scales are the smallest and the largest; the reason is that at the smallest.
    """
    table = new_table("What is left out, and why")
    for name in ("strategy", "GPUs"):
        table.add_column(name, no_wrap=True)
    table.add_column("why", overflow="fold")
    kinds = unfit_points["strategy"].str.removeprefix("data+")
    for (strategy, _), rows in unfit_points.groupby([kinds, "feasible"], sort=False):
        sizes = sorted(rows["world_size"])
        sizes_text = f"{sizes[0]}-{sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
        first = rows.sort_values("world_size")["why_not"].iloc[0]
        table.add_row(
            str(strategy),
            sizes_text,
            f"at {sizes[0]}: {first}" if len(sizes) > 1 else first,
        )
    return table


def gpus(number: float) -> str:
    """Return a number of GPUs in words, such as '8 GPUs'; a fraction is cut off."""
    return f"{int(number)} GPU{'s' if number != 1 else ''}"


def _percent(share: float) -> str:
    """Format a share in whole per cent, with one decimal below 10 %."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
