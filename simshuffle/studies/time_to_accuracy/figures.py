"""The figures, from tables alone. Each is one column of a two-column paper wide."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from simshuffle.results.style import STYLE, legend_above, letters, line_handle, new_figure
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.time_to_accuracy.placement import Box, Wanted, placed
from simshuffle.studies.time_to_accuracy.tables import Tables
from simshuffle.studies.training.figures import DASHES, look_of, strategies
from simshuffle.studies.training.intervals import estimate

PANEL_INCHES = 1.45
MUCH_LONGER = 4.0
"""Axes of time are logarithmic where the longest takes so many times as long as the shortest."""
HOUR = 3600.0

FRONT: dict[str, Any] = {"color": "#999999", "linestyle": (0, (3, 2)), "linewidth": 0.8}
"""The line through the settings of which no other is better in all."""


def figures(tables: Tables, meta: Mapping[str, Any]) -> dict[str, Figure]:
    """Every figure that the tables have something for, by the name of its file.

    Args:
        tables: what was found.
        meta: with what every figure states: ``model`` (what was trained), the ``rule`` of the
            scaling and the ``schedules`` of the exchange; results of before lack the first and the
            last.
    """
    simulated = tables.settings[tables.settings["message"] == ""]
    if not len(simulated):
        return {}
    out = {"pareto": pareto_figure(simulated, meta)}
    curves = tables.curves[tables.curves["setting"].isin(simulated["setting"])]
    if len(curves):
        out["accuracy_time"] = time_figure(simulated, curves, meta)
    return out


def time_unit(longest: float) -> tuple[float, str]:
    """Seconds of the unit that times are shown in, and its name."""
    return (HOUR, "h") if longest >= 2 * HOUR else (60.0, "min") if longest >= 600 else (1.0, "s")


def _new(height: float, meta: Mapping[str, Any]) -> Figure:
    """An empty figure with scale and schedule below what will be drawn."""
    schedules = " and ".join(meta.get("schedules", []))
    said = f"Scale: {meta['rule']}." + (
        f" Schedule of the exchange: {schedules}." if schedules else ""
    )
    lines = textwrap.wrap(said, letters(76), break_on_hyphens=False)
    figure = new_figure(height + 0.11 * len(lines))
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=6, color="#555555")
    return figure


# ---------------------------------------------------------------------------- accuracy against time


def time_figure(settings: pd.DataFrame, curves: pd.DataFrame, meta: Mapping[str, Any]) -> Figure:
    """Accuracy against simulated time with 95 % bands, a panel for each Q, with global and local
    shuffle in each.

    Args:
        settings: columns `SETTING_COLUMNS`, those that were simulated.
        curves: columns `CURVE_COLUMNS`, of these settings.
        meta: as of `figures`.
    """
    everywhere = settings[settings["strategy"].isin(["global", "local"])]
    exchanged = settings.drop(everywhere.index)
    fractions = sorted(set(exchanged["exchange_fraction"]))
    panels = [
        (f"Q = {q:g}", pd.concat([everywhere, exchanged[exchanged["exchange_fraction"] == q]]))
        for q in fractions
    ]
    panels = panels or [("", everywhere)]
    across = 1 if len(panels) == 1 else 2
    known = strategies(settings)
    unit, name = time_unit(float(settings["total_s"].max()))
    with matplotlib.rc_context(STYLE):
        down = -(-len(panels) // across)
        figure = _new(down * PANEL_INCHES + (0.9 if across == 1 else 0.35), meta)
        axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for ax, (title, rows) in zip(axes, panels, strict=False):
            _curves(ax, rows, curves, known, unit)
            ax.set_title(title, fontsize=6.5, pad=3)
            ax.spines[["top", "right"]].set_visible(False)
            ax.tick_params(labelsize=6)
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        for ax in axes[max(len(panels) - across, 0) : len(panels)]:  # the lowest of each column
            ax.tick_params(labelbottom=True)
            ax.set_xlabel(f"simulated time ({name})")
        _time_axis(axes[0], settings["total_s"], unit)
        figure.supylabel("test accuracy (%)", fontsize=7.5)
        lines = _lines_of(settings, known).items()
        handles = [line_handle(label, line["look"]) for label, line in lines]
        legend_above(figure, handles, meta.get("model", ""))
        return figure


def _curves(
    ax: Axes, settings: pd.DataFrame, curves: pd.DataFrame, known: Sequence[str], unit: float
) -> None:
    for label, row in _lines_of(settings, known).items():
        rows = curves[curves["setting"] == row["setting"]]
        groups = list(rows.groupby("epoch"))
        found = [estimate(group["accuracy"].tolist()) for _, group in groups]
        mean, low, high = (
            np.clip([100 * getattr(each, part) for each in found], 0, 100)
            for part in ("mean", "low", "high")
        )
        x = np.array([group["time_s"].iloc[0] for _, group in groups]) / unit
        ax.plot(x, mean, **row["look"], label=label, markersize=2, linewidth=0.9)
        ax.fill_between(x, low, high, color=row["look"]["color"], alpha=0.2, linewidth=0)


def _lines_of(settings: pd.DataFrame, known: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Name in the legend, setting and look of each line: one for each strategy, and for each source
    of global shuffle."""
    out: dict[str, dict[str, Any]] = {}
    for row in settings.to_dict("records"):
        strategy = str(row["strategy"])
        label = str(row["setting"]) if strategy == "global" else strategy
        number = sum(each["strategy"] == strategy for each in out.values())
        if label not in out:
            look = {**look_of(strategy, known), "linestyle": DASHES[number % len(DASHES)]}
            out[label] = {"strategy": strategy, "setting": row["setting"], "look": look}
    return out


def _time_axis(ax: Axes, totals: pd.Series[float], unit: float) -> None:
    """From 0; or logarithmic where some settings take much longer than others."""
    if totals.max() > MUCH_LONGER * totals.min():
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(
            LogLocator(
                subs=(1, 2, 3, 5, 7) if totals.max() < 10 * ax.get_xlim()[0] * unit else (1, 2, 5)
            )
        )
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.xaxis.set_minor_locator(NullLocator())
    else:
        ax.set_xlim(0, 1.03 * totals.max() / unit)


# --------------------------------------------------------------------------------- the Pareto front


def pareto_figure(settings: pd.DataFrame, meta: Mapping[str, Any]) -> Figure:
    """Final accuracy against the time of all epochs, with 95 % intervals and Q beside it; filled if
    on the front, larger if more is stored.

    Args:
        settings: columns `SETTING_COLUMNS`, those that were simulated.
        meta: as of `figures`.
    """
    known = strategies(settings)
    unit, name = time_unit(float(settings["total_s"].max()))
    sizes = _sizes(settings["storage_nbytes"])
    with matplotlib.rc_context(STYLE):
        figure = _new(2.45, meta)
        ax = figure.subplots()
        front = settings[settings["on_front"].astype(bool)].sort_values("total_s")
        x, y = front["total_s"] / unit, 100 * front["accuracy"]
        ax.plot(x, y, zorder=1, **FRONT)
        for row, size in zip(settings.to_dict("records"), sizes, strict=True):
            _point(ax, row, look_of(str(row["strategy"]), known), size, unit)
        _time_axis(ax, settings["total_s"], unit)
        if ax.get_xscale() == "linear":
            _tight(ax, settings["total_s"] / unit)
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_xlabel(
            f"simulated time of {int(settings['epochs'].iloc[0])} epochs, staging included ({name})"
        )
        ax.set_ylabel("final test accuracy (%)")
        ax.set_ylim(max(ax.get_ylim()[0], 0.0), min(ax.get_ylim()[1], 104.0))
        handles = _pareto_handles(known, settings["storage_nbytes"])
        legend_above(figure, handles, meta.get("model", ""))
        _label(figure, ax, settings, sizes, known, unit)
        return figure


def _tight(ax: Axes, times: pd.Series[float]) -> None:
    room = 0.08 * (times.max() - times.min()) or 0.1 * times.max()
    ax.set_xlim(times.min() - room, times.max() + 1.6 * room)


def _point(
    ax: Axes, row: Mapping[Any, Any], look: Mapping[str, Any], size: float, unit: float
) -> None:
    x, mean = row["total_s"] / unit, 100 * row["accuracy"]
    if not np.isnan(row["low"]):
        bars = [[mean - max(100 * row["low"], 0.0)], [min(100 * row["high"], 100.0) - mean]]
        ax.errorbar(
            [x],
            [mean],
            bars,
            color=look["color"],
            linewidth=0.7,
            capsize=1.3,
            linestyle="",
            zorder=2,
        )
    face = look["color"] if row["on_front"] else "white"
    ax.plot(
        [x],
        [mean],
        linestyle="",
        markersize=size,
        markerfacecolor=face,
        markeredgewidth=0.8,
        zorder=3,
        **look,
    )


def named(row: Mapping[Any, Any]) -> str:
    """What stands beside a point: Q, or where global shuffle reads from; nothing for local
    shuffle."""
    if row["strategy"] == "global":
        return str(row["setting"]).partition("(")[2].rstrip(")")
    return "" if row["strategy"] == "local" else f"{row['exchange_fraction']:g}"


def _label(
    figure: Figure,
    ax: Axes,
    settings: pd.DataFrame,
    sizes: np.ndarray[Any, np.dtype[np.float64]],
    known: Sequence[str],
    unit: float,
) -> None:
    """Names of the points, those on the front first. Everything else is drawn before."""
    figure.draw_without_rendering()  # so that pixels are where they will be
    rows = settings.assign(size=sizes).sort_values("on_front", ascending=False, kind="stable")
    spots = [
        Spot(
            (row["total_s"] / unit, 100 * row["accuracy"]),
            (100 * row["low"], 100 * row["high"]),
            row["size"],
            named(row),
            _dark(look_of(str(row["strategy"]), known)["color"]),
        )
        for row in rows.to_dict("records")
    ]
    lines = _front_boxes(ax, settings, unit, figure.dpi / 72)
    label_points(figure, ax, spots, lines, float(figure.bbox.x1))


@dataclass(frozen=True)
class Spot:
    """A point that may have a name: where it is, its interval from bottom to top (not a number for
    none), both as drawn; its size in points, the name or '', and its colour."""

    at: tuple[float, float]
    interval: tuple[float, float]
    size: float
    text: str
    colour: Any


def label_points(
    figure: Figure, ax: Axes, spots: Sequence[Spot], lines: Sequence[Box], right: float
) -> None:
    """Write the names of points, the most important first, each where it lies on no other; one that
    finds no place has none.

    Args:
        figure: laid out as it will be drawn.
        ax: where the points are.
        spots: all points.
        lines: boxes in pixels of other things that are better not hidden.
        right: where the room for names ends, in pixels.
    """
    point = figure.dpi / 72
    texts: list[Annotation] = []
    wanted: list[Wanted] = []
    marks: list[Box] = []
    others = list(lines)
    for spot in spots:
        low, high = np.clip(spot.interval, 0, 100)
        at, bottom = spot.at, spot.at[1] if np.isnan(low) else low
        ends = [at, (at[0], bottom), (at[0], np.nanmax([at[1], high]))]
        (x, y), (_, bottom), (_, top) = ax.transData.transform(ends)
        half = (spot.size / 2 + 0.4) * point
        marks.append((x - half, y - half, x + half, y + half))
        others.append((x - 1.3 * point, bottom, x + 1.3 * point, top))
        if spot.text:
            texts.append(_text(ax, spot.text, spot.at, spot.colour))
            extent = texts[-1].get_window_extent()
            wanted.append(Wanted(marks[-1], (bottom, top), extent.width, extent.height))
    inside = ax.get_window_extent()
    room = (inside.x0 + point, inside.y0 + point, right - 2 * point, inside.y1 + 2 * point)
    places = placed(wanted, marks, others, room, point)
    for words, of, place in zip(texts, wanted, places, strict=True):
        if place is None:
            words.remove()
            continue
        across, up = ((sum(place.box[i::2]) - sum(of.mark[i::2])) / 2 / point for i in (0, 1))
        words.xyann = (across, up)
        if place.led:
            _lead(ax, words)


def _front_boxes(ax: Axes, settings: pd.DataFrame, unit: float, point: float) -> list[Box]:
    """Boxes in pixels along the line through the front."""
    front = settings[settings["on_front"].astype(bool)].sort_values("total_s")
    ends = ax.transData.transform(np.stack([front["total_s"] / unit, 100 * front["accuracy"]], 1))
    dots = [a + (b - a) * share for a, b in pairwise(ends) for share in np.linspace(0, 1, 12)]
    return [(x - point / 2, y - point / 2, x + point / 2, y + point / 2) for x, y in dots]


def _dark(colour: str) -> tuple[float, ...]:
    """The same colour, dark enough for small letters on white."""
    return tuple(0.65 * part for part in to_rgb(colour))


def _text(ax: Axes, text: str, at: tuple[float, float], colour: Any) -> Annotation:
    look: dict[str, Any] = {"color": colour, "fontsize": 6, "ha": "center", "va": "center"}
    # legible where a line lies beneath
    look["path_effects"] = [withStroke(linewidth=1.2, foreground="white")]
    out = ax.annotate(text, at, (0, 0), textcoords="offset points", zorder=4, **look)
    out.set_in_layout(False)
    return out


def _lead(ax: Axes, text: Annotation) -> None:
    """A line from a label to its point."""
    line: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.5, "color": text.get_color()}
    line |= {"shrinkA": 3.5, "shrinkB": 2.0}
    led = ax.annotate("", text.xy, text.xyann, textcoords="offset points", arrowprops=line)
    led.set_in_layout(False)


def _sizes(nbytes: pd.Series[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Diameters in points: from 2.6 for no bytes or the fewest to 7 for the most, by their
    logarithm."""
    positive = nbytes[nbytes > 0]
    if not len(positive):
        return np.full(len(nbytes), 2.6)
    low, high = float(positive.min()), float(positive.max())
    share = np.log(np.maximum(nbytes.to_numpy(float), low) / low) / (np.log(high / low) or 1.0)
    return np.where(nbytes > 0, 3.4 + 3.6 * share, 2.6)


def _pareto_handles(known: Sequence[str], nbytes: pd.Series[float]) -> list[Line2D]:
    handles = [
        Line2D([], [], linestyle="", markersize=3.5, label=name, **look_of(name, known))
        for name in known
    ]
    grey: dict[str, Any] = {"linestyle": "", "marker": "o", "color": "#777777"}
    shown = nbytes.drop_duplicates().sort_values()
    for place in sorted({0, len(shown) - 1}):
        size = float(_sizes(nbytes)[nbytes.to_numpy() == shown.iloc[place]][0])
        text = (
            f"{readable(shown.iloc[place], Dimension.NBYTES, 2)} a host"
            if shown.iloc[place]
            else "nothing stored"
        )
        handles.append(Line2D([], [], markersize=size, label=text, **grey))
    handles.append(
        Line2D([], [], markersize=3.5, markerfacecolor="white", label="not on the front", **grey)
    )
    handles.append(Line2D([], [], label="front", **FRONT))
    return handles
