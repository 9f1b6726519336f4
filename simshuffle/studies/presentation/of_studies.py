"""Figures of studies other than runs, of links over time, and of when exchanges end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from simshuffle.report.chart import (
    DASHES,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    Ramp,
    in_rows,
    log_axis,
)
from simshuffle.report.style import BRIGHT
from simshuffle.studies.congestion.figures import COLOURS as PATTERNS
from simshuffle.studies.congestion.figures import (
    SHAPES,
    row_name,
    rows_of_largest,
    sort_tiers_upwards,
)
from simshuffle.studies.congestion.patterns import Variant
from simshuffle.studies.congestion.tables import VARIANT, groups
from simshuffle.studies.oracle.figures import memory_rows, parts_of, shown_points
from simshuffle.studies.oracle.tables import MEMORY
from simshuffle.studies.presentation.of_runs import (
    Given,
    exchange_phases,
    no_exchange,
    nothing,
    renamed,
    too_many,
)
from simshuffle.studies.simulation.figures import in_lines
from simshuffle.studies.simulation.study import timeline_of
from simshuffle.studies.simulation.sweep_figures import MOST_LINES
from simshuffle.study.long_table import get_long


def congestion_table(given: Sequence[Given]) -> pd.DataFrame:
    """Mean and busiest utilisation of each tier and pattern, means over seeds."""
    tables = given[0].result.tables
    tiers = rows_of_largest(tables, tables["tiers"])
    keys = ["routing", *VARIANT, "tier"]
    columns = ["links", "mean_utilisation", "max_utilisation"]
    rows = tiers.groupby(keys, sort=False, observed=True)[columns].mean().reset_index()
    rows = rows.astype({"links": int, "tier": str, "barrier": bool})
    place = rows["tier"].map(sort_tiers_upwards(list(rows["tier"].unique())).index)
    variant = rows.groupby(keys[:-1], sort=False).ngroup()
    return rows.iloc[np.lexsort((place, variant))].reset_index(drop=True)


def waterfall_table(given: Sequence[Given]) -> pd.DataFrame:
    """What each switch changes of the whole epoch."""
    rows = given[0].result.all_tables["contributions"]
    return rows[rows["label"] == "epoch"].drop(columns="label").reset_index(drop=True)


def strategies_table(given: Sequence[Given]) -> pd.DataFrame:
    """What is drawn: s of an iteration in parts."""
    tables = given[0].result.tables
    shown = shown_points(tables["points"], tables["measured"])
    if shown.empty:
        rule = "needs a strategy that fits the memory"
        raise nothing(rule, given, "Use more GPUs, or another --budget-memory.")
    parts = parts_of(shown).add_suffix("_s")
    return pd.concat([shown[["world_size", "strategy"]], parts], axis=1).reset_index(drop=True)


def memory_table(given: Sequence[Given]) -> pd.DataFrame:
    """What is drawn: bytes in parts."""
    parts = [f"{part}_nbytes" for part in MEMORY]
    columns = ["world_size", "strategy", *parts, "memory_nbytes", "fits"]
    return memory_rows(given[0].result.all_tables)[columns].reset_index(drop=True)


MOST_RUNS = 6
"""Panels below one another that still fit a page."""
COLUMNS = {"mean": "mean of the busiest link", "peak": "highest at any moment"}


def links(given: Sequence[Given]) -> Chart:
    """Panels of each run: tiers by simulated time, a column an epoch, the busiest link's mean and
    peak in colour."""
    rows = links_table(given)
    runs = list(rows["run"].unique())
    too_many(given, len(runs), MOST_RUNS)
    tiers = sort_tiers_upwards(list(rows["tier"].unique()))
    at = rows["tier"].map(tiers.index)
    tips = rows["tier"] + ", epoch " + rows["epoch"].map(str)
    cells = rows.assign(y=at - 0.5, y2=at + 0.5, tip=tips)
    y = in_rows([tier.replace("_", " ") for tier in tiers], small=True)
    panels = []
    for run in runs:
        of = cells[cells["run"] == run]
        name = in_lines(run, whole=True).replace("\n", ", ")
        for column, text in COLUMNS.items():
            title = f"simulated time (s)\n{text}" if run == runs[-1] else ""
            x = Axis(title, low=0.0, high=float(of["end_s"].max()), small=True)
            look = Look(fill="none")
            marks = [Mark("cell", of, x="start_s", x2="end_s", value=column, look=look)]
            panels.append(Panel(marks, x, y, name if column == "mean" else "peak"))
    return Chart(
        panels,
        0.75 + len(runs) * (0.3 + 0.13 * len(tiers)),
        caption="Utilisation of links over simulated time, by tier.",
        across=2,
        share="y",
        ramp=Ramp("utilisation; a column is an epoch"),
    )


def links_table(given: Sequence[Given]) -> pd.DataFrame:
    """A row for each run, epoch and tier, means over seeds: when the epoch began and ended, and of
    the busiest link of the tier the mean and the peak utilisation."""
    found = []
    for of, names, (epochs, _) in renamed(given):
        parts = []
        for piece in get_long(of.result.tables, "links").pieces(_WANTED):
            keys = [name for name in _WANTED[:4] if name in piece]
            texts = {"run": piece["run"].astype(str).map(names), "tier": piece["tier"].astype(str)}
            parts.append(piece.assign(**texts).groupby(keys, sort=False)[_WANTED[4:]].max())
        by_seed = (
            pd.concat(parts).groupby(keys, sort=False).max().set_axis(["mean", "peak"], axis=1)
        )
        mean = by_seed.groupby(["run", "epoch", "tier"], sort=False).mean().reset_index()
        times = epochs.groupby(["run", "epoch"], sort=False)["epoch_s"].mean().reset_index()
        times["end_s"] = times.groupby("run")["epoch_s"].cumsum()
        times["start_s"] = times["end_s"] - times["epoch_s"]
        found.append(times.merge(mean, on=["run", "epoch"]))
    rows = pd.concat(found, ignore_index=True)
    return rows[["run", "epoch", "start_s", "end_s", "tier", "mean", "peak"]]


_WANTED = ["run", "seed", "epoch", "tier", "mean_utilisation", "peak_utilisation"]


QUANTILES = {"min_s": 0.0, "p10_s": 0.1, "p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99, "max_s": 1.0}
TAIL = {"flow_p50_s": 0.5, "flow_p99_s": 0.99, "flow_max_s": 1.0}
SAMPLE = "Of a sample of ranks with the slowest and fastest; with --timeline full of all."


def completion(given: Sequence[Given]) -> Chart:
    """A line for each run, or for each pattern."""
    if given[0].result.study.kind == "congestion":
        return _tails(completion_table(given))
    return _steps(_ranks(given), sampled=_sampled(given))


def completion_table(given: Sequence[Given]) -> pd.DataFrame:
    """Quantiles: of runs over ranks, of congestion studies what these keep, medians over seeds."""
    if given[0].result.study.kind == "congestion":
        tables = given[0].result.tables
        times = rows_of_largest(tables, tables["times"])
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


def completion_notes(given: Sequence[Given]) -> list[str]:
    """What it is the distribution of."""
    if given[0].result.study.kind == "congestion":
        return ["Time from the post of a message to its end; medians over seeds."]
    about = "Exchange of each rank in the last epoch, shown and hidden, over ranks and seeds."
    return [about, *([SAMPLE] if _sampled(given) else [])]


def _sampled(given: Sequence[Given]) -> bool:
    """Whether a result has the timeline of a sample of ranks alone."""
    return any(timeline_of(of.result.meta) == "ranks" for of in given)


def _ranks(given: Sequence[Given]) -> pd.DataFrame:
    """Seconds of exchange of each rank in the last epoch of each run: run, seed, rank, seconds.

    Raises:
        InputError: a result has no timeline, nothing is exchanged, or there are too many runs.
    """
    parts = []
    for of, names, (epochs, _) in renamed(given):
        if timeline_of(of.result.meta) == "none":
            raise nothing("needs the timeline", [of], "Simulate again with --timeline full.")
        last = epochs.groupby("run")["epoch"].max()
        for phases in exchange_phases(of.result):
            piece = phases.assign(run=phases["run"].map(names))
            part = piece[piece["epoch"].to_numpy() == last.loc[piece["run"]].to_numpy()]
            parts.append(part.groupby(["run", "seed", "rank"], sort=False)["seconds"].sum())
    if not sum(map(len, parts)):
        raise no_exchange(given)
    whole: pd.DataFrame = pd.concat(parts).groupby(level=[0, 1, 2], sort=False).sum().reset_index()
    too_many(given, whole["run"].nunique(), MOST_LINES)
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
        name = row_name(Variant(pattern, batching, barrier))
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
