"""The figures of a study of data-optimised training, from its tables alone."""

from __future__ import annotations

import pandas as pd

from simshuffle.extensions.learning.filtering.tables import (
    SUBSETS,
    FilterTables,
    summary,
)
from simshuffle.report.chart import (
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    key,
    spread_points,
    ticks,
    with_intervals,
)
from simshuffle.studies.training.figures import LOG_DODGE, scale_to_percent

LOOKS = {
    "full": Look("full data", "#000000", "s"),
    "network": Look("network-filtered", "#4477AA", "o"),
    "random": Look("randomly filtered", "#EE6677", "v"),
}
TAB20 = (
    *(
        "#1f77b4",
        "#aec7e8",
        "#ff7f0e",
        "#ffbb78",
        "#2ca02c",
        "#98df8a",
        "#d62728",
        "#ff9896",
    ),
    *(
        "#9467bd",
        "#c5b0d5",
        "#8c564b",
        "#c49c94",
        "#e377c2",
        "#f7b6d2",
        "#7f7f7f",
        "#c7c7c7",
    ),
    *("#bcbd22", "#dbdb8d", "#17becf", "#9edae5"),
)
"""Colours of classes; class 20 has that of class 0 again."""
MAX_RATES = 6  # panels of a figure
SIZES, ACCURACY = "batch size (samples)", "test accuracy (%)"


def figures(tables: FilterTables) -> dict[str, Chart]:
    """Return every figure that the tables have rows for, by the name of its file.

    Names are 'points', 'accuracy_batch_size' and 'accuracy_learning_rate'; the last
    needs at least two rates.
    """
    charts = {}
    if len(tables.points):
        charts["points"] = points_chart(tables.points)
    settings = summary(tables.runs)
    if len(settings):
        charts["accuracy_batch_size"] = batch_size_chart(settings)
        if settings["learning_rate"].nunique() > 1:
            charts["accuracy_learning_rate"] = learning_rate_chart(settings)
    return charts


def points_chart(points: pd.DataFrame) -> Chart:
    """Draw the training samples of the first seed in t-SNE's plane, coloured by class.

    Samples that are filtered out are black. Columns of ``points`` are `POINT_COLUMNS`,
    with a row at least. The first seed is that of the first row.
    """
    rows = points[points["seed"] == points["seed"].iloc[0]]
    noise = rows["noise"].astype(bool)
    size = min(max((3000 / len(rows)) ** 0.5, 0.45), 2.0)
    text = f"noise ({100 * noise.mean():.1f} %, seed {rows['seed'].iloc[0]})"
    classes = {
        index: Look("", colour, "o", size=size) for index, colour in enumerate(TAB20)
    }
    noise_look = {"noise": Look(text, "#000000", "x", size=1.2 * size)}
    kept_look = {"kept": Look("kept (colour: class)", TAB20[0], "o", size=3)}
    marks = [
        Mark("point", rows[~noise].assign(look=rows["label"] % len(TAB20))),
        Mark("point", rows[noise].assign(look="noise")),
        key("kept", "point"),
    ]
    x, y = (Axis(f"{ordinal} axis of t-SNE") for ordinal in ("first", "second"))
    alt_text = "Training samples in t-SNE's plane, and which are filtered out."
    return Chart(
        [Panel(marks, x, y, equal=True)],
        2.9,
        {**noise_look, **kept_look, **classes},
        alt_text,
    )


def batch_size_chart(settings: pd.DataFrame) -> Chart:
    """Draw accuracy against batch size, a line for each data set, of columns
    `SUMMARY_COLUMNS`.

    The learning rate is the one that is best for the full data.
    """
    panel = _panel(settings[settings["chosen"]], "")
    alt_text = (
        "Accuracy by batch size, at the learning rate that is best for the full data."
    )
    return Chart([panel], 2.25, LOOKS, alt_text, x=SIZES, y=ACCURACY)


def learning_rate_chart(settings: pd.DataFrame) -> Chart:
    """Draw accuracy against batch size, a panel for each learning rate.

    Only the lowest `MAX_RATES` have one.
    """
    rates = sorted(set(settings["learning_rate"]))[:MAX_RATES]
    titles = {rate: f"learning rate {rate:g}" for rate in rates}
    panels = [
        _panel(settings[settings["learning_rate"] == rate], titles[rate])
        for rate in rates
    ]
    height = 1.35 * -(-len(rates) // 2) + 0.4
    alt_text = "Accuracy by batch size and learning rate."
    return Chart(
        panels, height, LOOKS, alt_text, across=2, share="xy", x=SIZES, y=ACCURACY
    )


def _panel(rows: pd.DataFrame, title: str) -> Panel:
    """Draw a line of accuracy (%, with its interval) against batch size for each data
    set.

    ``rows`` have columns `SUMMARY_COLUMNS`. Points of one batch size are moved aside,
    so that intervals can be told apart.
    """
    sizes = sorted(set(rows["batch_size"]))
    order = rows["subset"].map(SUBSETS.index)
    lines = rows.assign(order=order, look=rows["subset"], x=rows["batch_size"])
    lines = scale_to_percent(lines.sort_values(["order", "batch_size"]))
    lines = spread_points(lines, "look", (sizes[-1] / sizes[0]) ** LOG_DODGE, log=True)
    slanted = 45 if len(sizes) > 6 else 0
    x = Axis(log=True, ticks=ticks(sizes, str), small=True, turned=slanted)
    return Panel(with_intervals("line", lines), x, Axis(small=bool(title)), title)
