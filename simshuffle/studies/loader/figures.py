"""The figure of loaders, from tables alone. Sized for one column of a two-column paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from simshuffle.results.style import STYLE, legend_above, new_figure

UNITS = {
    "sample": ("o", "#4477AA", 6.0),
    "block": ("^", "#228833", 5.0),
    "shard": ("s", "#EE6677", 3.5),
}
"""How a loader is drawn that fetches so much at once: marker, colour and size, so that each can be
seen where several are at one place."""
NEAR = 0.06
"""Points that are closer than this share of the panel have one label."""
LEAST = 0.01
"""Shares of the data set below are drawn as if they were none."""
SMALL = 6.5


def loader_figure(loaders: pd.DataFrame, says: Mapping[str, Any]) -> Figure:
    """Companions on a rank against the bytes of the last epoch, a point for each loader; below,
    which number stands for which."""
    shown = loaders[(loaders["problem"] == "") & loaders["rank_companions"].notna()]
    with matplotlib.rc_context(STYLE):
        lines = -(-len(shown) // 2)
        figure = new_figure(2.2 + 0.13 * lines)
        ax = figure.subplots()
        mixing(shown, says, ax)
        _names(list(shown["loader"]), ax)
        legend_above(figure, _handles(shown))
        return figure


def mixing(loaders: pd.DataFrame, says: Mapping[str, Any], ax: Axes) -> Axes:
    """Both on logarithmic axes; bytes over those of the data set.

    Args:
        loaders: table `loaders`, those that can be had.
        says: of the result.
        ax: where to draw.

    Returns:
        ``ax``.
    """
    random = says["rank_companions"]
    least = max(min([*loaders["rank_companions"], random, 1.0]) / 1.6, 1e-6)
    x = np.maximum(loaders["last_nbytes"].to_numpy(np.float64) / max(says["nbytes"], 1), LEAST)
    y = np.maximum(loaders["rank_companions"].to_numpy(np.float64), least)
    most = max(2.0, float(x.max(initial=0.0)) * 1.6)
    ax.axhline(max(random, least), color="#888888", linewidth=0.8, linestyle=(0, (3, 2)), zorder=1)
    for unit, (marker, colour, size) in UNITS.items():
        own = (loaders["unit"] == unit).to_numpy()
        ax.plot(x[own], y[own], marker, color=colour, markersize=size, linestyle="", zorder=3)
    ax.set(xscale="log", yscale="log", xlim=(LEAST / 1.5, most), ylim=(least, 2.0))
    ax.set(xlabel="bytes fetched in the last epoch / data set", ylabel="pairs on one rank again")
    ticks = [10.0**power for power in range(-2, 6) if 10.0**power <= most]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter(lambda value, _: "0" if value <= LEAST else f"{value:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    aside = (LEAST / 1.5) * (most * 1.5 / LEAST) ** 0.7  # to the right of it there is no room
    for numbers, place in _clusters(x, y, ax):
        ax.annotate(
            ", ".join(map(str, numbers)),
            place,
            xytext=(4, 3) if place[0] < aside else (-4, 3),
            textcoords="offset points",
            ha="left" if place[0] < aside else "right",
            fontsize=SMALL,
            zorder=4,
        )
    ax.spines[["right", "top"]].set_visible(False)
    return ax


def _clusters(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], ax: Axes
) -> list[tuple[list[int], tuple[float, float]]]:
    """Numbers from 1 on of points that are near each other, and where their label stands: at the
    rightmost."""
    place = ax.transAxes.inverted().transform(ax.transData.transform(np.stack([x, y], axis=1)))
    groups: list[list[int]] = []
    for point in range(len(x)):
        near = [
            group
            for group in groups
            if any(np.abs(place[point] - place[other]).max() < NEAR for other in group)
        ]
        groups = [group for group in groups if group not in near]
        groups.append(sorted([point, *(other for group in near for other in group)]))
    out = []
    for group in groups:
        right = max(group, key=lambda point: x[point])
        out.append(([point + 1 for point in group], (float(x[right]), float(y[right]))))
    return out


def _names(names: list[str], ax: Axes) -> None:
    """Below the panel in two columns, which name each number stands for."""
    half = -(-len(names) // 2)
    for column, of in enumerate((names[:half], names[half:])):
        text = "\n".join(f"{number} {name}" for number, name in enumerate(of, 1 + column * half))
        ax.annotate(
            text,
            (0.5 * column, 0),
            xycoords="axes fraction",
            xytext=(-20 if column == 0 else 0, -30),
            textcoords="offset points",
            va="top",
            fontsize=SMALL,
        )


def _handles(loaders: pd.DataFrame) -> list[Line2D]:
    units = []
    for unit, (marker, colour, size) in UNITS.items():
        look: dict[str, Any] = {"marker": marker, "color": colour, "markersize": size}
        if (loaders["unit"] == unit).any():
            units.append(Line2D([], [], linestyle="", label=f"by {unit}", **look))
    line = Line2D([], [], color="#888888", linestyle=(0, (3, 2)), label="a random order")
    return [*units, line]
