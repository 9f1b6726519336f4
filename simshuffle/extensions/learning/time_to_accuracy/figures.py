"""Draw the figures from tables alone: accuracy against time; and the frontier."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.extensions.learning.time_to_accuracy.tables import JoinTables
from simshuffle.report.chart import (
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    hollow_looks,
    key,
    log_axis,
    with_intervals,
)
from simshuffle.report.style import COLUMN_INCHES, width
from simshuffle.spec.units import Dimension, readable, readable_count
from simshuffle.studies.training.figures import (
    PANEL_INCHES,
    WITHOUT_FRACTION,
    lines_and_bands,
    look_of,
    looks_of,
    order_strategies,
    scale_to_percent,
)
from simshuffle.studies.training.summary import estimate

MUCH_LONGER = 4.0
"""Axes of time are logarithmic where the longest takes so many times as long as the
shortest.
"""
HOUR = 3600.0
MAX_COLOURED = 8
"""Most strategies told apart by colours and letters beside points; more are numbered."""
FRONT_SIZE, BEATEN_SIZE = 4.6, 3.0
"""Diameters in points of marks on the front, and of beaten ones."""
BEATEN_COLOUR = "#666666"
"""Colour of the names of beaten settings."""
WIDE_COLUMNS = 1.5
"""Widths of a column from which on all panels stand in one row."""
KEYS = {
    "on the front": Look("on the front", "#777777", "o", size=3.5),
    "beaten": Look("beaten", "#777777", "o", size=3.5, fill="none"),
}


def figures(tables: JoinTables, meta: Mapping[str, Any]) -> dict[str, Chart]:
    """Return every figure that the tables have rows for, by the name of its file.

    Settings that could not be simulated (with a ``message``) are left out. Without any
    other there is no figure.

    Figures state ``model``, ``rule`` and ``schedules`` of ``meta``; results of earlier
    versions lack the first and the last.
    """
    simulated = tables.settings[tables.settings["message"] == ""]
    if not len(simulated):
        return {}
    charts = {"frontier": frontier_chart(simulated, meta)}
    curves = tables.curves[tables.curves["setting"].isin(simulated["setting"])]
    if len(curves):
        charts["accuracy_time"] = time_chart(simulated, curves, meta)
    return charts


def time_chart(
    settings: pd.DataFrame, curves: pd.DataFrame, meta: Mapping[str, Any]
) -> Chart:
    """Draw accuracy against simulated time with 95 % bands.

    A panel is a Q, with global and local shuffle. The strategies without Q have a panel
    'loaders', beside global and local shuffle, too. If there is neither, one panel has
    global and local shuffle alone.
    """
    band_settings = settings[settings["strategy"].isin(WITHOUT_FRACTION)]
    line_settings = settings.drop(band_settings.index)
    exchanged = line_settings[line_settings["exchange_fraction"].notna()]
    loaders = line_settings.drop(exchanged.index)
    groups = {
        f"Q = {fraction:g}": fraction_settings
        for fraction, fraction_settings in exchanged.groupby("exchange_fraction")
    }
    groups |= {"loaders": loaders} if len(loaders) else {}
    groups = groups or {"": line_settings}
    unit, name = time_unit(float(settings["total_s"].max()))
    strategy_order = order_strategies(settings)
    lines = _mean_curves(settings, curves, unit)
    x = time_axis(
        f"simulated time ({name})", settings["total_s"] / unit, lines["x"].min()
    )
    colour_of_strategy = {
        strategy: look_of(strategy, strategy_order)["color"]
        for strategy in strategy_order
    }
    panels = []
    for title, rows in groups.items():
        panel_settings = _legend_settings(pd.concat([band_settings, rows]))
        panel_lines = lines.merge(
            panel_settings[["setting", "strategy", "look"]], on="setting"
        )
        panel_lines = panel_lines.assign(
            colour=panel_lines["strategy"].map(colour_of_strategy)
        )
        panels.append(Panel(lines_and_bands(panel_lines), x, Axis(small=True), title))
    across = 1 if len(panels) == 1 else 2
    names = _legend_settings(settings)[["strategy", "look"]].itertuples(
        index=False, name=None
    )
    return Chart(
        panels,
        -(-len(panels) // across) * PANEL_INCHES + (0.9 if across == 1 else 0.35),
        looks_of(list(names), strategy_order),
        "Test accuracy against simulated time, with 95 % bands.",
        legend=str(meta.get("model", "")),
        note=scale_note(meta),
        across=across,
        share="xy",
        y="test accuracy (%)",
    )


def _mean_curves(
    settings: pd.DataFrame, curves: pd.DataFrame, unit: float
) -> pd.DataFrame:
    """Return mean accuracy and its interval in %, for each setting and epoch.

    Columns are setting, x (time, in units of ``unit`` s), accuracy, low, high and more,
    of settings and epochs in ``curves``.
    """
    estimates = [
        {
            "setting": setting,
            "x": epoch_rows["time_s"].iloc[0] / unit,
            **vars(estimate(epoch_rows["accuracy"].tolist())),
        }
        for (setting, _), epoch_rows in curves.groupby(["setting", "epoch"])
    ]
    return scale_to_percent(
        pd.DataFrame(estimates).rename(columns={"mean": "accuracy"})
    )


def _legend_settings(settings: pd.DataFrame) -> pd.DataFrame:
    """Return the settings that have a line, with its name in the legend as ``look``.

    They are the first of each strategy, and of each source of global shuffle.
    """
    looks = settings["strategy"].where(
        settings["strategy"] != "global", settings["setting"]
    )
    return settings.assign(look=looks).drop_duplicates("look")


# ------------------------------------------------------------------------------------- the frontier


def frontier_chart(settings: pd.DataFrame, meta: Mapping[str, Any]) -> Chart:
    """Draw final accuracy against the time of all epochs, storage of a host, and
    requests.

    Intervals are of 95 %. Points on the front are filled and in colour. Beside points
    stands Q, or a number if there are more than `MAX_COLOURED` strategies.
    """
    rows = _frontier_rows(settings)
    unit, name = time_unit(float(settings["total_s"].max()))
    times = settings["total_s"] / unit
    axis = _frontier_time_axis(settings, times, name)
    accuracy_axis = _frontier_accuracy_axis(rows)
    storage = settings["storage_nbytes"]
    requests = settings["total_requests"]
    bytes_axis = place_on_log_axis(
        "stored on a host",
        storage,
        lambda value: readable(value, Dimension.NBYTES, 2),
        0.5,
        0.15,
    )
    files_axis = place_on_log_axis(
        "requests to the PFS", requests, readable_count, margin=0.15
    )
    wide = width() > WIDE_COLUMNS * COLUMN_INCHES
    first = _frontier_panel(
        rows, times, replace(axis, small=True), accuracy_axis, labels_all=True
    )
    cost_panels = [
        _frontier_panel(rows, *positions_and_axis, accuracy_axis)
        for positions_and_axis in (bytes_axis, files_axis)
    ]
    looks = _frontier_looks(rows, settings)
    return Chart(
        [
            replace(
                first,
                marks=[
                    *first.marks,
                    *(key(name, "point") for name in looks if looks[name].label),
                ],
                span=1 if wide else 2,
                weight=1.6,
            ),
            *cost_panels,
        ],
        2.5 if wide else 3.7,
        looks,
        "Final accuracy against time, storage of a host and requests; filled marks are on the"
        " front.",
        legend=str(meta.get("model", "")),
        note=scale_note(meta),
        across=3 if wide else 2,
        widths=(1.7, 1, 1) if wide else (),
        share="y",
        y="final test accuracy (%)",
        dense=len(order_strategies(settings)) > MAX_COLOURED,
    )


def point_label(row: Mapping[Any, Any]) -> str:
    """Return the text beside a point: Q, or the tier that global shuffle reads from.

    It is '' where the strategy says all.
    """
    if row["strategy"] == "global":
        return str(row["setting"]).partition("(")[2].rstrip(")")
    fraction = row["exchange_fraction"]
    return "" if row["strategy"] == "local" or math.isnan(fraction) else f"{fraction:g}"


def _frontier_rows(settings: pd.DataFrame) -> pd.DataFrame:
    """Return settings as they are drawn: points, their names, looks, texts, colours and
    sizes.

    y, low and high are in %; ``name`` is that of the legend, ``text`` stands beside the
    point.
    """
    strategy_order = order_strategies(settings)
    texts = [point_label(row) for row in settings.to_dict("records")]
    names = settings["strategy"]
    if len(strategy_order) > MAX_COLOURED:
        texts = [str(index) for index in range(1, len(settings) + 1)]
        names = pd.Series(texts, settings.index) + " " + settings["setting"]
    is_on_front = settings["on_front"].astype(bool)
    colours = settings["strategy"].map(
        {name: look_of(name, strategy_order)["color"] for name in strategy_order}
    )
    rows = settings.assign(
        name=names,
        look=names.where(is_on_front, names + ", beaten"),
        text=texts,
        colour=colours.map(darken).where(is_on_front, BEATEN_COLOUR),
        size=np.where(is_on_front, FRONT_SIZE, BEATEN_SIZE),
    )
    rows["tip"] = rows["setting"] + (100 * rows["accuracy"]).map(": {:.4g} %".format)
    return scale_to_percent(rows)


def _frontier_time_axis(
    settings: pd.DataFrame, times: pd.Series[float], unit_name: str
) -> Axis:
    """Return the axis of the time of all epochs, with a margin on both sides.

    It is logarithmic where that of `time_axis` is.

    Args:
        settings: rows of settings, with the number of ``epochs``.
        times: of the settings, in the unit that ``unit_name`` names.
        unit_name: stands in the title.
    """
    epochs = int(settings["epochs"].iloc[0])
    title = f"simulated time of {epochs} epochs, staging included ({unit_name})"
    axis = time_axis(title, times, float(times.min()))
    if axis.log:
        return axis
    margin = 0.08 * (times.max() - times.min()) or 0.1 * times.max()
    return replace(axis, low=times.min() - margin, high=times.max() + 1.6 * margin)


def _frontier_accuracy_axis(rows: pd.DataFrame) -> Axis:
    """Return the axis of accuracy (%) that holds all points and their intervals.

    It ends at 0 and 104 %: intervals beyond these are cut.
    """
    bounds = rows[["low", "y", "high"]].to_numpy(float)
    margin = 0.06 * (np.nanmax(bounds) - np.nanmin(bounds)) or 1.0
    return Axis(
        low=max(np.nanmin(bounds) - margin, 0.0),
        high=min(np.nanmax(bounds) + margin, 104.0),
        small=True,
    )


def _frontier_looks(rows: pd.DataFrame, settings: pd.DataFrame) -> dict[str, Look]:
    """Return the looks of points by name, and of the keys of the legend.

    Points are filled on the front; looks of 'NAME, beaten' are hollow.
    """
    strategy_order = order_strategies(settings)
    looks = {}
    for name, strategy in rows[["name", "strategy"]].itertuples(index=False, name=None):
        strategy_look = look_of(strategy, strategy_order)
        looks[name] = Look(
            name, strategy_look["color"], strategy_look["marker"], size=FRONT_SIZE
        )
    return {**looks, **KEYS, **hollow_looks(looks, ", beaten", size=BEATEN_SIZE)}


def _frontier_panel(
    rows: pd.DataFrame,
    x: pd.Series[float],
    axis: Axis,
    accuracy_axis: Axis,
    *,
    labels_all: bool = False,
) -> Panel:
    """Draw points with their intervals, and texts beside those on the front.

    With ``labels_all`` a text stands beside every point.
    """
    placed = rows.assign(x=x)
    is_on_front = placed["on_front"].astype(bool)
    labels = placed.assign(text=placed["text"].where(is_on_front | labels_all, ""))
    marks = []
    for point_rows in (placed[~is_on_front], placed[is_on_front]):
        marks += with_intervals("point", point_rows)
    return Panel(
        [*marks, Mark("label", pd.concat([labels[is_on_front], labels[~is_on_front]]))],
        axis,
        accuracy_axis,
    )


def darken(colour: str) -> str:
    """Return a colour '#rrggbb' darkened to 65 % of its channels, for small letters on
    white.
    """
    channels = (int(colour[position : position + 2], 16) for position in (1, 3, 5))
    return "#" + "".join(f"{round(0.65 * channel):02x}" for channel in channels)


# ----------------------------------------------------------------------------------- what both need


def time_unit(longest: float) -> tuple[float, str]:
    """Return the seconds of the unit that times are shown in, and its name.

    Hours from 2 h of ``longest`` (s) on, minutes from 600 s on, else seconds.
    """
    return (
        (HOUR, "h")
        if longest >= 2 * HOUR
        else (60.0, "min")
        if longest >= 600
        else (1.0, "s")
    )


def scale_note(meta: Mapping[str, Any]) -> str:
    """State scale and schedule; the sentence stands below the figure."""
    schedules = " and ".join(meta.get("schedules", []))
    schedule_sentence = f" Schedule of the exchange: {schedules}." if schedules else ""
    return f"Scale: {meta['rule']}.{schedule_sentence}"


def time_axis(title: str, totals: pd.Series[float], shortest: float) -> Axis:
    """Return an axis of time from 0, or a logarithmic one from ``shortest`` on.

    It is logarithmic where some settings take much longer than others. ``totals`` of
    the settings and ``shortest`` are in the unit of the title.
    """
    if totals.max() > MUCH_LONGER * totals.min():
        return log_axis(title, 0.85 * shortest, 1.15 * totals.max())
    return Axis(title, low=0.0, high=1.03 * totals.max())


def place_on_log_axis(
    title: str,
    values: pd.Series[float],
    label: Callable[[float], str],
    min_gap: float = 0.3,
    margin: float = 0.12,
) -> tuple[pd.Series[float], Axis]:
    """Return positions (n,) of values on an axis in powers of ten, and the axis.

    A position is the logarithm; a 0 stands left of all others, as 'none'.

    Args:
        title: of the axis.
        values: (n,), from 0.
        label: the text of a tick.
        min_gap: ticks are at least this share of the range apart.
        margin: this share of the range is on both sides.
    """
    positive_values = values[values > 0]
    if positive_values.empty:
        return values * 0.0, Axis(title, ticks={0.0: "none"}, small=True)
    low = np.log10(float(positive_values.min()))
    high = np.log10(float(positive_values.max()))
    # left of the lowest, by 0.4 of the range of logarithms
    zero_position = low - max(0.4 * (high - low), 0.1)
    ticks = {
        float(np.log10(value)): label(value)
        for value in _round_ticks(positive_values, min_gap)
    }
    if (values == 0).any():
        ticks[zero_position] = "none"
    positions = values.where(values > 0, 10.0**zero_position).map(np.log10)
    margin_width = margin * float(positions.max() - positions.min()) or 0.05
    limits: Any = {
        "low": float(positions.min()) - margin_width,
        "high": float(positions.max()) + margin_width,
    }
    return positions, Axis(
        title, ticks=dict(sorted(ticks.items())), small=True, **limits
    )


def _round_ticks(values: pd.Series[float], min_gap: float) -> list[float]:
    """Return few values above 0 for ticks of a logarithmic axis.

    They are round ones between the ends that are further apart than ``min_gap``, a
    share of the range; or the ends, one only if these are close.
    """
    low = float(values.min())
    high = float(values.max())
    first_power = int(np.floor(np.log10(low)))
    last_power = int(np.ceil(np.log10(high)))
    ticks = sorted({low, high}) if high > 1.5 * low else [low]
    # from coarse to fine: the finest ones that are far enough apart are taken
    for step_of_powers, mantissas in (
        (3, (1,)),
        (2, (1,)),
        (1, (1,)),
        (1, (1, 3)),
        (1, (1, 2, 5)),
    ):
        powers = range(
            first_power - first_power % step_of_powers, last_power + 1, step_of_powers
        )
        candidates = [
            mantissa * 10.0**power
            for power in powers
            for mantissa in mantissas
            if low <= mantissa * 10.0**power <= high
        ]
        if len(candidates) <= 2:
            continue
        smallest_gap = np.diff(np.log10(candidates)).min()
        if smallest_gap > min_gap * np.log10(high / low):
            ticks = candidates
    return ticks
