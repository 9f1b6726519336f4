"""The figures, from tables alone. Sized for one column of a two-column paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from simshuffle.results.style import COLOURS, COLUMN_INCHES, STYLE
from simshuffle.studies.ablation.shapley import ALL, contributions

GREY = "#BBBBBB"
LINES = {
    "authors": "#EE6677",
    "pair": "#4477AA",
    "encoded": "#228833",
    "wire": "#000000",
    "own": "#AA3377",
}
NAMES = {
    "authors": "as the authors' code",
    "pair": "IS-Pair's schedule",
    "encoded": "IS-Pair's, encoded, no barriers",
    "wire": "the wire alone",
    "own": "the scenario's own",
}
MARKERS = {"authors": "o", "pair": "s", "encoded": "^", "wire": "D", "own": "v"}


def _new(height: float) -> Figure:
    figure = Figure(figsize=(COLUMN_INCHES, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


# ---------------------------------------------------------------------------------------- waterfall


def waterfall_figure(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """From the epoch of the start to that of the end, a step for each switch."""
    with matplotlib.rc_context(STYLE):
        figure = _new(0.95 + 0.27 * (len(tables["switches"]) + 2))
        shown = waterfall(tables, figure.subplots())
        handles = [
            Patch(facecolor=COLOURS[label], label=label) for label in COLOURS if label in shown
        ]
        figure.legend(
            handles=handles,
            ncols=5,
            loc="outside upper center",
            frameon=False,
            handlelength=1.2,
            title="step, most of it in",
        )
        return figure


def waterfall(tables: Mapping[str, pd.DataFrame], ax: Axes) -> list[str]:
    """Rows from top to bottom: the start, each switch, the end. Steps are means over orders and
    seeds; whiskers are the seeds' range.

    Args:
        tables: of an ablation.
        ax: where to draw. Its axis begins above 0, so that small steps are seen.

    Returns:
        The labels in whose colours steps are drawn.
    """
    table = contributions(tables["switches"], tables["runs"])
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
            f"{of.mean():.2f}",
            (float(of.max()), row),
            (3, 0),
            textcoords="offset points",
            va="center",
        )
    _frame(ax, tables, min(reach), max(reach))
    return shown


def _bars(tables: Mapping[str, pd.DataFrame]) -> tuple[pd.Series, pd.Series]:
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


def _frame(ax: Axes, tables: Mapping[str, pd.DataFrame], low: float, high: float) -> None:
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
    room = 0.2 * (high - low) or 0.1 * high
    left = max(0.0, low - room)
    ax.set_xlim(left, high + 0.9 * room)
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


def _more(tables: Mapping[str, pd.DataFrame]) -> bool:
    """Whether more is switched than start and end differ in."""
    return bool(tables["ends"]["switched_more"].any())


def _short(value: object) -> str:
    return str(value).replace("importance_sorted", "sorted").replace("_", " ")


def _wrapped(name: str) -> str:
    return name.replace(" @", "\n@")


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


# ------------------------------------------------------------------------------------------- hiding


def hiding_figure(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """The largest hidden exchange fraction against the world size, a line for each way of carrying
    the exchange out."""
    with matplotlib.rc_context(STYLE):
        figure = _new(2.7)
        ax = hiding(tables["limits"], figure.subplots())
        handles, labels = ax.get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            ncols=2,
            loc="outside upper center",
            frameon=False,
            handlelength=1.6,
            columnspacing=1.0,
        )
        return figure


def hiding(limits: pd.DataFrame, ax: Axes) -> Axes:
    """Q* against M, both logarithmic; hollow at the lower edge, and named so, where nothing is
    hidden. Above, the iterations of an epoch.

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
            fractions.clip(lower=floor),
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
        place: dict[str, Any] = {
            "textcoords": "offset points",
            "ha": "right",
            "va": "center",
            "fontsize": 6,
        }
        ax.annotate("none", (hidden_none.min(), floor), (-4, 0), **place)
    ax.set(xscale="log", yscale="log", ylabel="largest hidden Q", xlabel="ranks, M")
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
