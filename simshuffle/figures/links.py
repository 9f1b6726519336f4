"""Utilisation of links over simulated time, as far as results have it: a mean and a peak for each
epoch."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from simshuffle.figures.kinds import Given, Kind, nothing
from simshuffle.figures.runs import renamed
from simshuffle.results.style import STYLE, new_figure
from simshuffle.studies.congestion.figures import upwards
from simshuffle.studies.simulation.figures import in_lines
from simshuffle.study.long_table import long

RESULTS = ("simulation", "simulation_over_seeds")
MOST_RUNS = 6
"""Panels below one another that still fit a page."""
COLUMNS = {"mean": "mean of the busiest link", "peak": "highest at any moment"}


def draw(given: Sequence[Given]) -> Figure:
    """Panels of each run: tiers by simulated time, a column an epoch, the busiest link's mean and
    peak in colour."""
    rows = table(given)
    runs = list(rows["run"].unique())
    if len(runs) > MOST_RUNS:
        rule = f"draws at most {MOST_RUNS} runs; there are {len(runs)}"
        raise nothing(rule, given, "Give results of fewer runs.")
    tiers = upwards(list(rows["tier"].unique()))
    with matplotlib.rc_context(STYLE):
        figure = new_figure(0.75 + len(runs) * (0.3 + 0.13 * len(tiers)))
        grid = figure.subplots(len(runs), 2, sharex="row", sharey=True, squeeze=False)
        for panels, run in zip(grid, runs, strict=True):
            of = rows[rows["run"] == run]
            epochs = of.drop_duplicates("epoch").sort_values("epoch")
            edges = np.append(epochs["start_s"], epochs["end_s"].iloc[-1])
            for ax, column in zip(panels, COLUMNS, strict=True):
                values = of.pivot(index="tier", columns="epoch", values=column).reindex(tiers)
                mesh = ax.pcolormesh(
                    edges,
                    np.arange(len(tiers) + 1),
                    values.to_numpy(float),
                    cmap="magma_r",
                    vmin=0.0,
                    vmax=1.0,
                    edgecolors="white",
                    linewidth=0.4,
                )
                ax.set_yticks(np.arange(len(tiers)) + 0.5, [_plain(t) for t in tiers], fontsize=6)
                ax.tick_params(axis="y", length=0)
                ax.tick_params(axis="x", labelsize=6)
                ax.locator_params("x", nbins=3)
                ax.set_ylim(len(tiers), 0)
            panels[0].set_title(
                in_lines(run, whole=True).replace("\n", ", "), fontsize=6.5, loc="left"
            )
        for ax, text in zip(grid[-1], COLUMNS.values(), strict=True):
            ax.set_xlabel(f"simulated time (s)\n{text}", fontsize=6.5)
        bar = figure.colorbar(
            mesh, ax=grid.ravel().tolist(), location="bottom", aspect=40, pad=0.02
        )
        bar.set_label("utilisation; a column is an epoch", fontsize=6.5)
        bar.ax.tick_params(labelsize=6)
        return figure


def _plain(tier: str) -> str:
    return tier.replace("_", " ")


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


KIND = Kind(
    RESULTS,
    draw,
    table,
    together=RESULTS,
    notes=lambda given: ["Results keep a mean and a peak of each link and epoch, and no more."],
)
