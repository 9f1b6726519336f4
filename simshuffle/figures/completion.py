"""When exchanges end: of the messages of a congestion study, or of the ranks of runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from simshuffle.figures.kinds import Given, Kind, nothing
from simshuffle.figures.runs import renamed
from simshuffle.results.report import lasting
from simshuffle.results.style import STYLE, legend_above, line_handle, new_figure
from simshuffle.results.timeline import Timeline
from simshuffle.studies.congestion.figures import COLOURS as PATTERNS
from simshuffle.studies.congestion.figures import SHAPES, largest
from simshuffle.studies.congestion.tables import VARIANT, groups
from simshuffle.studies.simulation.study import timeline_of
from simshuffle.studies.simulation.sweep_figures import COLOURS, MOST_LINES
from simshuffle.study.long_table import long

RESULTS = ("simulation", "simulation_over_seeds")
PHASES = ("exchange", "wait_exchange", "exchange_hidden")
QUANTILES = {"min_s": 0.0, "p10_s": 0.1, "p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99, "max_s": 1.0}
TAIL = {"flow_p50_s": 0.5, "flow_p99_s": 0.99, "flow_max_s": 1.0}
SAMPLE = (
    "Of a sample of ranks, with the slowest and the fastest ones among them: ends come out farther"
    " apart than over all ranks. Simulate with --timeline full for all."
)
DASHES = ("-", "--", ":", "-.")


def draw(given: Sequence[Given]) -> Figure:
    """A line for each run, or for each pattern."""
    with matplotlib.rc_context(STYLE):
        if _of_congestion(given):
            rows = table(given)
            figure = new_figure(2.2)
            _tails(figure, rows)
            return figure
        ranks = _ranks(given)
        figure = new_figure(2.2)
        _steps(figure, ranks, sampled=_sampled(given))
        return figure


def table(given: Sequence[Given]) -> pd.DataFrame:
    """Quantiles: of runs over ranks, of congestion studies what these keep, medians over seeds."""
    if _of_congestion(given):
        tables = given[0].result.tables
        times = largest(tables, tables["times"])
        keys = ["routing", *VARIANT]
        kept: pd.DataFrame = times.groupby(keys, sort=False)[list(TAIL)].median().reset_index()
        return kept
    rows = []
    for run, of in _ranks(given).groupby("run", sort=False):
        values = of["seconds"].to_numpy()
        # of what was measured, as the steps of the figure
        found = {
            n: float(np.quantile(values, q, method="inverted_cdf")) for n, q in QUANTILES.items()
        }
        rows.append({"run": run, "ranks": len(of), **found})
    return pd.DataFrame(rows)


def notes(given: Sequence[Given]) -> list[str]:
    """What it is the distribution of."""
    if _of_congestion(given):
        return ["Time from the post of a message to its end; medians over seeds."]
    about = "Exchange of each rank in the last epoch, shown and hidden, over ranks and seeds."
    return [about, *([SAMPLE] if _sampled(given) else [])]


def _sampled(given: Sequence[Given]) -> bool:
    """Whether a result has the timeline of a sample of ranks alone."""
    return any(timeline_of(of.result.meta) == "ranks" for of in given)


def _of_congestion(given: Sequence[Given]) -> bool:
    return given[0].result.study.kind == "congestion"


def _ranks(given: Sequence[Given]) -> pd.DataFrame:
    """Seconds of exchange of each rank in the last epoch of each run: run, seed, rank, seconds.

    Raises:
        InputError: a result has no timeline, nothing is exchanged, or there are too many runs.
    """
    parts = []
    for of, (epochs, _) in renamed(given):
        if timeline_of(of.result.meta) == "none":
            raise nothing("needs the timeline", [of], "Simulate again with --timeline full.")
        names = dict(zip(of.result.tables["epochs"]["run"].astype(str), epochs["run"], strict=True))
        last = epochs.groupby("run")["epoch"].max()
        for phases in long(of.result.tables, "timeline").pieces():
            piece = phases.assign(run=phases["run"].astype(str).map(names))
            at_end = piece["epoch"].to_numpy() == last.loc[piece["run"]].to_numpy()
            part = piece[at_end & piece["phase"].isin(PHASES).to_numpy()]
            if part.empty:
                continue
            sources = of.result.tables["sources"]
            sources = sources.assign(run=sources["run"].astype(str).map(names))
            seconds = lasting(Timeline(part, pd.DataFrame(), sources))
            part = part.assign(seconds=seconds, seed=part.get("seed", 0))
            parts.append(part.groupby(["run", "seed", "rank"], sort=False)["seconds"].sum())
    if not parts:
        rule = "needs runs that exchange samples"
        raise nothing(rule, given, "Simulate partial_local_shuffle, or an importance exchange.")
    whole: pd.DataFrame = pd.concat(parts).groupby(level=[0, 1, 2], sort=False).sum().reset_index()
    if (count := whole["run"].nunique()) > MOST_LINES:
        rule = f"draws at most {MOST_LINES} runs; there are {count}"
        raise nothing(rule, given, "Give results of fewer runs.")
    return whole


def _steps(figure: Figure, ranks: pd.DataFrame, *, sampled: bool) -> None:
    ax = figure.subplots()
    handles: list[Line2D] = []
    for (run, of), colour in zip(ranks.groupby("run", sort=False), cycle(COLOURS), strict=False):
        dash = DASHES[len(handles) // len(COLOURS)]
        ax.ecdf(of["seconds"], color=colour, linestyle=dash, linewidth=1.1)
        handles.append(line_handle(str(run), {"color": colour, "linestyle": dash}))
    ax.set_xlabel("exchange of a rank in the last epoch (s)")
    ax.set_ylabel(f"share of {'sampled ' if sampled else ''}ranks (%)")
    _shares(ax)
    legend_above(figure, handles)


def _tails(figure: Figure, rows: pd.DataFrame) -> None:
    """Medians, 99th percentiles and the longest, joined by lines: more is not kept."""
    ax = figure.subplots()
    variants = list(groups(rows, "routing", *VARIANT))
    handles, seen = [], dict.fromkeys(rows["pattern"], 0)
    several = rows["routing"].nunique() > 1
    for (routing, pattern, batching, barrier), of in variants:
        dash = DASHES[seen[pattern] % len(DASHES)]
        seen[pattern] += 1
        look: dict[str, Any] = {
            "color": PATTERNS[pattern],
            "marker": SHAPES[pattern],
            "linestyle": dash,
        }
        ax.plot(
            1e3 * of[list(TAIL)].iloc[0], list(TAIL.values()), markersize=3, linewidth=1, **look
        )
        label = pattern.replace("_", " ")
        if pattern != "all_to_all":
            label += f", {batching}{', barrier' if barrier else ''}"
        handles.append(line_handle(label + (f" ({routing})" if several else ""), look))
    ax.set_xscale("log")
    ends = 1e3 * rows[list(TAIL)].to_numpy(float)
    near = ends.max() < 100 * max(ends.min(), 1e-9)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if near else (1,), numticks=6))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("time from post to end of a message (ms)\n(marks: median, 99 %, longest)")
    ax.set_ylabel("share of messages (%)")
    _shares(ax)
    ax.set_ylim(0.45, 1.03)
    legend_above(figure, handles)


def _shares(ax: Axes) -> None:
    ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}")
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_ylim(0, 1.03)


KIND = Kind((*RESULTS, "congestion"), draw, table, together=RESULTS, notes=notes)
