"""The figure, from tables alone. Sized for one column of a two-column paper."""

from __future__ import annotations

from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from simshuffle.results.style import STYLE, legend_above, new_figure
from simshuffle.studies.hidden_fraction.tables import NAMES
from simshuffle.study.study import Tables

LINES = {
    "authors": "#EE6677",
    "pair": "#4477AA",
    "encoded": "#228833",
    "wire": "#000000",
    "own": "#AA3377",
}
MARKERS = {"authors": "o", "pair": "s", "encoded": "^", "wire": "D", "own": "v"}


def hiding_figure(tables: Tables) -> Figure:
    """The largest hidden exchange fraction against the world size, a line for each way of carrying
    the exchange out."""
    with matplotlib.rc_context(STYLE):
        figure = new_figure(2.4)
        hiding(tables["limits"], figure.subplots())
        legend_above(figure)
        return figure


def hiding(limits: pd.DataFrame, ax: Axes) -> Axes:
    """Q* against M, both logarithmic; where nothing is hidden, hollow in a strip of its own below.
    Above, the iterations of an epoch.

    Args:
        limits: table `limits`.
        ax: where to draw.

    Returns:
        ``ax``.
    """
    some = limits.loc[limits["exchange_fraction"] > 0, "exchange_fraction"]
    floor = (float(some.min()) if len(some) else 0.01) / 2
    for way, rows in limits.groupby("way", sort=False):
        sizes, fractions = rows["world_size"], rows["exchange_fraction"]
        style: dict[str, Any] = {
            "color": LINES[str(way)],
            "marker": MARKERS[str(way)],
            "markersize": 3.5,
        }
        ax.plot(
            sizes,
            fractions.where(fractions > 0),
            linewidth=0.9,
            label=NAMES[str(way)],
            **style,
            zorder=3,
        )
        none = rows[fractions == 0]
        ax.plot(
            none["world_size"],
            [floor] * len(none),
            linestyle="",
            **{**style, "markerfacecolor": "white", "zorder": 4},
        )
    hidden_none = limits.loc[limits["exchange_fraction"] == 0, "world_size"]
    if len(hidden_none):
        ax.axhspan(floor * 0.5, floor * 1.25, color="#EEEEEE", linewidth=0, zorder=0)
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center"}
        ax.annotate("none", (-0.02, floor), ha="right", **place)
    ax.set(xscale="log", yscale="log", ylabel="largest hidden Q", xlabel="ranks M")
    steps = (1, 2, 5) if floor > 0.02 else (1,)
    ticks = [step * 10.0**power for power in range(-6, 1) for step in steps]
    # a number beside the strip of those that hide nothing would be taken for theirs
    ax.yaxis.set_major_locator(FixedLocator([t for t in ticks if 1.6 * floor < t <= 1.0]))
    ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_ylim(floor * 0.8, 1.4)
    _sizes(ax, limits)
    ax.spines[["right"]].set_visible(False)
    return ax


def _sizes(ax: Axes, limits: pd.DataFrame) -> None:
    """World sizes below, and above them the iterations of an epoch."""
    of_size = limits.drop_duplicates("world_size").sort_values("world_size")
    sizes = of_size["world_size"].tolist()
    ax.set_xlim(min(sizes) / 1.2, max(sizes) * 1.2)
    above = ax.twiny()
    above.set(xscale="log", xlim=ax.get_xlim())
    for axis, labels in (
        (ax, [str(size) for size in sizes]),
        (above, [str(count) for count in of_size["iterations"]]),
    ):
        axis.xaxis.set_major_locator(FixedLocator(sizes))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticks(sizes, labels)
    above.set_xlabel("iterations of an epoch")
    above.spines[["right"]].set_visible(False)
