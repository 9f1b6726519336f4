"""The figures of an oracle, from tables alone. Sized for one column of a two-column paper."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simshuffle.results.style import APART, STYLE, legend_above, letters, new_figure
from simshuffle.studies.oracle.recommend import GIB, usable
from simshuffle.studies.oracle.tables import MEMORY
from simshuffle.studies.oracle.text import chosen_scale
from simshuffle.study.study import Tables

TIMES = {
    "compute": (("compute_s", "waiting_s"), "#228833"),
    "bubble": (("bubble_s",), "#BBBBBB"),
    "communication": (("exposed_s",), "#CCBB44"),
    "exchange": (("exchange_s",), "#EE6677"),
    "input": (("input_s", "startup_s"), "#4477AA"),
}
"""What a column is made of, from its foot on, and its colour."""
MEMORY_COLOURS = dict(
    zip(MEMORY, ("#4477AA", "#66CCEE", "#AA3377", "#228833", "#BBBBBB"), strict=True)
)
SCALES, COLUMNS, ROWS = 4, 20, 18
"""Most scales and columns of the first figure, and rows of the second."""
CUT = 3.0
"""A column is cut at so many times the highest of the fastest ones."""
UNSEEN = 0.01
"""Share of a column that is too little to be seen."""
SMALL = 6


def figures(tables: Tables, budget: float | None) -> dict[str, Figure]:
    """Both figures by name.

    Args:
        tables: all those of an oracle.
        budget: bytes of memory of a GPU; None without one.
    """
    return {"times": times_figure(tables), "memory": memory_figure(tables, budget)}


# ------------------------------------------------------------------------------------------- times


def times_figure(tables: Tables) -> Figure:
    """What an iteration takes, a column for each strategy, by number of GPUs; over a column how
    close it comes to what was measured."""
    points = tables["points"]
    shown = shown_points(points, tables["measured"])
    with matplotlib.rc_context(STYLE):
        longest = max(map(len, shown["strategy"]), default=0)
        figure = new_figure(1.75 + 0.055 * longest)
        ax = figure.subplots()
        if shown.empty:
            _nothing(ax)
        else:
            stacked(shown, tables["measured"], ax)
            legend_above(figure, _time_handles(shown))
        return figure


def shown_points(points: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """The points of the first figure: of a few scales, the fastest of each kind, and all that were
    measured.

    Scales are those that were measured, or as many as there is width for, evenly from the smallest
    to the largest at which something fits.
    """
    fitting = usable(points)
    keys = pd.MultiIndex.from_frame(measured[["world_size", "strategy"]])
    own = pd.MultiIndex.from_frame(points[["world_size", "strategy"]]).isin(keys)
    sizes = sorted(fitting["world_size"].unique())
    if len(measured):
        sizes = sorted(measured["world_size"].unique())
    if len(sizes) > SCALES:
        places = np.linspace(0, len(sizes) - 1, SCALES).round().astype(int)
        sizes = [sizes[place] for place in places]
    best = best_of_each(fitting[fitting["world_size"].isin(sizes)])
    most = COLUMNS // max(len(sizes), 1)
    best = best.groupby("world_size", sort=False).head(most)
    given = points[own & points["feasible"] & points["world_size"].isin(sizes)]
    # in the order of the table, which is the same at every scale
    return points[points.index.isin([*best.index, *given.index])]


def best_of_each(points: pd.DataFrame) -> pd.DataFrame:
    """Of each scale the fastest of each kind, alone or with replicas."""
    divided = points["replicas"] > 1
    ordered = points.assign(divided=divided).sort_values(
        ["world_size", "epoch_s", "loop_s"], kind="stable"
    )
    return ordered.drop_duplicates(["world_size", "kind", "divided"]).drop(columns="divided")


def stacked(shown: pd.DataFrame, measured: pd.DataFrame, ax: Axes) -> Axes:
    """Columns of the parts of an iteration in ms, grouped by number of GPUs.

    Args:
        shown: rows of `points`, in their order.
        measured: table `measured`.
        ax: where to draw.

    Returns:
        ``ax``.
    """
    groups = shown["world_size"].rank(method="dense").to_numpy() - 1
    places = np.arange(len(shown)) + 0.8 * groups
    millis = {
        label: 1e3 * (shown[list(names)].sum(axis=1) / shown["iterations"]).to_numpy()
        for label, (names, _) in TIMES.items()
    }
    total = np.sum(list(millis.values()), axis=0)
    highest = CUT * max(total[groups == group].min() for group in np.unique(groups))
    highest = min(highest, float(total.max()))
    foot = np.zeros(len(shown))
    for label, (_, colour) in TIMES.items():
        top = np.minimum(foot + millis[label], highest)
        ax.bar(places, top - foot, 0.8, bottom=foot, facecolor=colour, **APART)
        foot = top
    accuracy = measured.set_index(["world_size", "strategy"])["accuracy"]
    for place, whole, row in zip(places, total, shown.to_dict("records"), strict=True):
        said = f"{whole:.0f}" if whole > highest else ""
        key = (row["world_size"], row["strategy"])
        if key in accuracy.index:
            said = f"{said + ', ' if said else ''}{100 * accuracy[key]:.0f} %"
        at = (place, min(whole, highest))
        style: dict[str, Any] = {"ha": "center", "va": "bottom", "rotation": 90, "fontsize": SMALL}
        ax.annotate(said, at, (0, 2), textcoords="offset points", **style)
    _groups(ax, shown, places, groups)
    ax.set_ylim(0, 1.28 * highest)
    ax.set_ylabel("ms an iteration" + (", high ones cut" if total.max() > highest else ""))
    return ax


def _groups(ax: Axes, shown: pd.DataFrame, places: np.ndarray, groups: np.ndarray) -> None:
    """Names below the columns, and the number of GPUs above each group."""
    ax.set_xticks(places, list(shown["strategy"]), rotation=90, fontsize=SMALL)
    ax.tick_params(axis="x", length=0, pad=2)
    ax.set_xlim(places[0] - 0.8, places[-1] + 0.8)
    for group in np.unique(groups):
        mine = places[groups == group]
        size = shown["world_size"].to_numpy()[groups == group][0]
        middle = (mine[0] + mine[-1]) / 2
        ax.text(
            middle, 1.0, f"{size}", transform=ax.get_xaxis_transform(), ha="center", va="bottom"
        )
        if group:
            ax.axvline(mine[0] - 0.9, color="#999999", linewidth=0.4)
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
    ax.annotate("GPUs", (0, 1), (-3, 1.5), ha="right", va="bottom", **place)
    ax.spines[["top", "right"]].set_visible(False)


def _time_handles(shown: pd.DataFrame) -> list[Patch]:
    return [
        Patch(facecolor=colour, label=label)
        for label, (names, colour) in TIMES.items()
        if (shown[list(names)].sum(axis=1) > UNSEEN * shown["epoch_s"]).any()
    ]


# ------------------------------------------------------------------------------------------ memory


def memory_figure(tables: Tables, budget: float | None) -> Figure:
    """Memory of the fullest GPU at the scale of the best point, a row for each strategy."""
    rows = memory_rows(tables)
    with matplotlib.rc_context(STYLE):
        figure = new_figure(0.62 + 0.145 * max(len(rows), 3))
        ax = figure.subplots()
        if rows.empty:
            _nothing(ax)
            return figure
        filled(rows, budget, ax)
        ax.set_xlabel(f"GiB of the fullest of {rows['world_size'].iloc[0]} GPUs")
        handles: list[Patch | Line2D] = [
            Patch(facecolor=MEMORY_COLOURS[part], label=part)
            for part in MEMORY
            if (rows[f"{part}_nbytes"] > 0).any()
        ]
        if budget is not None:
            handles.append(Line2D([], [], **_LIMIT, label="budget"))
        legend_above(figure, handles)
        return figure


def memory_rows(tables: Tables) -> pd.DataFrame:
    """The points of the second figure: all of the scale of the best point, or where they are many
    the fastest of each kind; least memory first."""
    points = tables["points"]
    size = chosen_scale(tables["recommended"], points)
    here = points[(points["world_size"] == size) & points["feasible"]]
    shown = here if len(here) <= ROWS else best_of_each(here)
    return shown.sort_values("memory_nbytes", kind="stable").head(ROWS)


_ON_WHITE: dict[str, Any] = {
    "va": "center",
    "fontsize": SMALL,
    "bbox": {"facecolor": "white", "linewidth": 0, "pad": 0.6},
}
_LIMIT: dict[str, Any] = {"color": "black", "linewidth": 0.8, "linestyle": (0, (2, 1.5))}


def filled(rows: pd.DataFrame, budget: float | None, ax: Axes) -> Axes:
    """A bar of each strategy's memory by what it is for, and the budget as a line.

    Args:
        rows: of `points`, of one scale.
        budget: bytes; None for none.
        ax: where to draw.

    Returns:
        ``ax``.
    """
    left = np.zeros(len(rows))
    places = range(len(rows))
    for part in MEMORY:
        values = rows[f"{part}_nbytes"].to_numpy() / GIB
        ax.barh(places, values, 0.75, left, facecolor=MEMORY_COLOURS[part], **APART)
        left += values
    longest = max(float(left.max()), (budget or 0.0) / GIB)
    for place, value in zip(places, left.tolist(), strict=True):
        ax.text(value + 0.015 * longest, place, f"{value:.3g}", **_ON_WHITE)
    if budget is not None:
        ax.axvline(budget / GIB, **_LIMIT)
    ax.set_xlim(0, 1.16 * longest or 1.0)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    names = [_short(name) for name in rows["strategy"]]
    ax.set_yticks(places, names, fontsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _short(name: str) -> str:
    most = letters(28)
    return name if len(name) <= most else f"{name[: most - 3]}..."


def _nothing(ax: Axes) -> None:
    """What a panel says that has nothing to show."""
    ax.text(0.5, 0.5, "nothing fits", ha="center", va="center", transform=ax.transAxes)
    ax.set_axis_off()
