"""When exchanges end: of the messages of a congestion study, or of the ranks of runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from simshuffle.figures.kinds import Given, nothing
from simshuffle.figures.runs import renamed
from simshuffle.results.chart import DASHES, Axis, Chart, Look, Mark, Panel, log_axis
from simshuffle.results.report import lasting
from simshuffle.results.style import BRIGHT
from simshuffle.results.timeline import Timeline
from simshuffle.studies.congestion.figures import COLOURS as PATTERNS
from simshuffle.studies.congestion.figures import SHAPES, largest
from simshuffle.studies.congestion.tables import VARIANT, groups
from simshuffle.studies.simulation.study import timeline_of
from simshuffle.studies.simulation.sweep_figures import MOST_LINES
from simshuffle.study.long_table import long

PHASES = ("exchange", "wait_exchange", "exchange_hidden")
QUANTILES = {"min_s": 0.0, "p10_s": 0.1, "p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99, "max_s": 1.0}
TAIL = {"flow_p50_s": 0.5, "flow_p99_s": 0.99, "flow_max_s": 1.0}
SAMPLE = (
    "Of a sample of ranks, with the slowest and the fastest ones among them: ends come out farther"
    " apart than over all ranks. Simulate with --timeline full for all."
)


def chart(given: Sequence[Given]) -> Chart:
    """A line for each run, or for each pattern."""
    if _of_congestion(given):
        return _tails(table(given))
    return _steps(_ranks(given), sampled=_sampled(given))


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


def _steps(ranks: pd.DataFrame, *, sampled: bool) -> Chart:
    """The share of ranks that need no longer, in steps."""
    parts, looks = [], {}
    for number, (run, of) in enumerate(ranks.groupby("run", sort=False)):
        seconds = np.sort(of["seconds"].to_numpy())
        shares = np.linspace(0.0, 100.0, len(seconds) + 1)
        x, y = np.repeat(seconds, 2), np.repeat(shares, 2)[1:-1]
        parts.append(pd.DataFrame({"x": x, "y": y, "look": str(run)}))
        dash = DASHES[number // len(BRIGHT) % len(DASHES)]
        looks[str(run)] = Look(str(run), BRIGHT[number % len(BRIGHT)], dash=dash, width=1.1)
    x_axis = Axis("exchange of a rank in the last epoch (s)")
    y_axis = Axis(f"share of {'sampled ' if sampled else ''}ranks (%)", low=0.0, high=103.0)
    panel = Panel([Mark("line", pd.concat(parts))], x_axis, y_axis)
    return Chart([panel], 2.2, looks, "When exchanges end: the share of ranks over time.")


def _tails(rows: pd.DataFrame) -> Chart:
    """Medians, 99th percentiles and the longest, joined by lines: more is not kept."""
    parts, looks = [], {}
    seen = dict.fromkeys(rows["pattern"], 0)
    several = rows["routing"].nunique() > 1
    for (routing, pattern, batching, barrier), of in groups(rows, "routing", *VARIANT):
        name = pattern.replace("_", " ")
        if pattern != "all_to_all":
            name += f", {batching}{', barrier' if barrier else ''}"
        name += f" ({routing})" if several else ""
        dash = DASHES[seen[pattern] % len(DASHES)]
        seen[pattern] += 1
        looks[name] = Look(name, PATTERNS[pattern], SHAPES[pattern], dash, size=3)
        ends = 1e3 * of[list(TAIL)].iloc[0].to_numpy(float)
        shares = [100 * share for share in TAIL.values()]
        parts.append(pd.DataFrame({"x": ends, "y": shares, "look": name}))
    lines = pd.concat(parts)
    title = "time from post to end of a message (ms)\n(marks: median, 99 %, longest)"
    low, high = 0.85 * lines["x"].clip(lower=1e-9).min(), 1.15 * lines["x"].max()
    upwards = Axis("share of messages (%)", low=45.0, high=103.0)
    panel = Panel([Mark("line", lines)], log_axis(title, low, high), upwards)
    return Chart([panel], 2.2, looks, "When messages end: the share of them over time.")
