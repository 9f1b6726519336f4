"""The figure, from tables alone. Sized for one column of a two-column paper."""

from __future__ import annotations

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simshuffle.results.style import COLOURS, STYLE, legend_above, new_figure
from simshuffle.studies.ablation.tables import ALL
from simshuffle.study.study import Tables

GREY = "#BBBBBB"


def waterfall_figure(tables: Tables) -> Figure:
    """From the epoch of the start to that of the end, a step for each switch."""
    with matplotlib.rc_context(STYLE):
        figure = new_figure(0.65 + 0.27 * (len(tables["switches"]) + 2))
        shown = waterfall(tables, figure.subplots())
        handles = [
            Patch(facecolor=COLOURS[label], label=label) for label in COLOURS if label in shown
        ]
        legend_above(figure, handles, "step, most of it in")
        return figure


def waterfall(tables: Tables, ax: Axes) -> list[str]:
    """Rows from top to bottom: the start, each switch, the end. Steps are means over orders and
    seeds; whiskers are the seeds' range.

    Args:
        tables: all those of an ablation.
        ax: where to draw. Its axis begins above 0, so that small steps are seen.

    Returns:
        The labels in whose colours steps are drawn.
    """
    table = tables["contributions"]
    parts = table[table["switch"] != ALL].pivot(index="switch", columns="label", values="mean_s")
    start, end = _bars(tables)
    steps = table[(table["label"] == "epoch") & (table["switch"] != ALL)].to_dict("records")
    at, shown = float(start.mean()), []
    reach = [float(of.max()) for of in (start, end)] + [float(of.min()) for of in (start, end)]
    for row, step in enumerate(steps, 1):
        label = str(parts.loc[step["switch"]].drop("epoch").abs().idxmax())
        shown.append(label)
        low, high = sorted((at, at + step["mean_s"]))
        ax.barh(row, step["mean_s"], 0.62, left=at, color=COLOURS[label], linewidth=0)
        ax.plot([at, at], [row - 1, row + 0.31], color="#555555", linewidth=0.5)
        _whisker(ax, row, at + step["min_s"], at + step["max_s"])
        reach += [low, high, at + step["min_s"], at + step["max_s"]]
        ax.annotate(
            _signed(step["mean_s"]),
            (max(high, at + step["max_s"]), row),
            (3, 0),
            textcoords="offset points",
            va="center",
        )
        at += step["mean_s"]
    ax.plot([at, at], [len(steps), len(steps) + 1.31], color="#555555", linewidth=0.5)
    for row, of in ((0, start), (len(steps) + 1, end)):
        ax.barh(row, float(of.mean()), 0.62, color=GREY, linewidth=0)
        _whisker(ax, row, float(of.min()), float(of.max()))
        ax.annotate(
            f"{of.mean():.3f}",
            (float(of.max()), row),
            (3, 0),
            textcoords="offset points",
            va="center",
        )
    _frame(ax, tables, min(reach), max(reach))
    return shown


def _bars(tables: Tables) -> tuple[pd.Series, pd.Series]:
    """Epochs (s) of the start and of the end by seed."""
    runs, count = tables["runs"], len(tables["switches"])
    epochs = runs[runs["label"] == "epoch"]
    return epochs.loc[epochs["state"] == "0" * count, "seconds"], epochs.loc[
        epochs["state"] == "1" * count, "seconds"
    ]


def _whisker(ax: Axes, row: float, low: float, high: float) -> None:
    ax.errorbar(
        [(low + high) / 2],
        [row],
        xerr=[[(high - low) / 2]],
        color="black",
        linewidth=0.7,
        capsize=1.5,
        capthick=0.7,
    )


def _frame(ax: Axes, tables: Tables, low: float, high: float) -> None:
    changed = [
        f"{r['switch'].replace('_', ' ')}\n{_short(r['start'])} → {_short(r['end'])}"
        for r in tables["switches"].to_dict("records")
    ]
    names = tables["ends"].set_index("place")["name"]
    ticks = [
        _wrapped(names["start"]),
        *changed,
        _wrapped(names["end"]) if not _more(tables) else "all switched",
    ]
    ax.set_yticks(range(len(ticks)), ticks, fontsize=6, linespacing=1.1)
    ax.set_ylim(len(ticks) - 0.5, -0.5)
    room = 0.2 * (high - low) or 0.1 * high or 1.0
    left = max(0.0, low - room)
    ax.set_xlim(left, high + 0.9 * room)
    ax.locator_params("x", nbins=4)
    if left > 0:  # the bars are cut
        for row in (0, len(ticks) - 1):
            ax.text(
                0.02,
                row,
                "//",
                transform=ax.get_yaxis_transform(),
                color="white",
                fontsize=11,
                va="center",
            )
    ax.set_xlabel("time per epoch (s)" if left == 0 else "time per epoch (s); bars are cut")
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _more(tables: Tables) -> bool:
    """Whether more is switched than start and end differ in."""
    return bool(tables["ends"]["switched_more"].any())


def _short(value: object) -> str:
    return str(value).replace("importance_sorted", "sorted").replace("_", " ")


def _wrapped(name: str) -> str:
    return name.replace(" @", "\n@")


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")
