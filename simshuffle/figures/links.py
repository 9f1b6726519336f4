"""Utilisation of links over simulated time, as far as results have it: a mean and a peak for each
epoch."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from simshuffle.figures.kinds import Given, nothing
from simshuffle.figures.runs import renamed
from simshuffle.results.chart import Axis, Chart, Look, Mark, Panel, Ramp, in_rows
from simshuffle.studies.congestion.figures import upwards
from simshuffle.studies.simulation.figures import in_lines
from simshuffle.study.long_table import long

MOST_RUNS = 6
"""Panels below one another that still fit a page."""
COLUMNS = {"mean": "mean of the busiest link", "peak": "highest at any moment"}


def chart(given: Sequence[Given]) -> Chart:
    """Panels of each run: tiers by simulated time, a column an epoch, the busiest link's mean and
    peak in colour."""
    rows = table(given)
    runs = list(rows["run"].unique())
    if len(runs) > MOST_RUNS:
        rule = f"draws at most {MOST_RUNS} runs; there are {len(runs)}"
        raise nothing(rule, given, "Give results of fewer runs.")
    tiers = upwards(list(rows["tier"].unique()))
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


def table(given: Sequence[Given]) -> pd.DataFrame:
    """A row for each run, epoch and tier, means over seeds: when the epoch began and ended, and of
    the busiest link of the tier the mean and the peak utilisation."""
    found: dict[tuple[str, int], pd.DataFrame] = {}
    for of, (epochs, _) in renamed(given):
        names = dict(zip(of.result.tables["epochs"]["run"].astype(str), epochs["run"], strict=True))
        pieces = long(of.result.tables, "links").pieces(_WANTED)
        links = pd.concat([_busiest(piece) for piece in pieces])
        links = links.assign(
            run=links["run"].astype(str).map(names), tier=links["tier"].astype(str)
        )
        keys = ["run", *(["seed"] if "seed" in links else []), "epoch", "tier"]
        by_seed = links.groupby(keys, sort=False).agg(
            mean=("mean_utilisation", "max"), peak=("peak_utilisation", "max")
        )
        mean = by_seed.groupby(["run", "epoch", "tier"], sort=False).mean().reset_index()
        times = epochs.groupby(["run", "epoch"], sort=False)["epoch_s"].mean().reset_index()
        times["end_s"] = times.groupby("run")["epoch_s"].cumsum()
        times["start_s"] = times["end_s"] - times["epoch_s"]
        found[of.name, len(found)] = times.merge(mean, on=["run", "epoch"])
    rows = pd.concat(found.values(), ignore_index=True)
    return rows[["run", "epoch", "start_s", "end_s", "tier", "mean", "peak"]]


_WANTED = ["run", "seed", "epoch", "tier", "mean_utilisation", "peak_utilisation"]


def _busiest(links: pd.DataFrame) -> pd.DataFrame:
    keys = [name for name in _WANTED[:4] if name in links]
    return links.groupby(keys, sort=False, observed=True)[_WANTED[4:]].max().reset_index()


def notes(given: Sequence[Given]) -> list[str]:
    """What results keep."""
    return ["Results keep a mean and a peak of each link and epoch, and no more."]
