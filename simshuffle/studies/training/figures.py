"""Draw the figures of a training study from its tables alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.report.chart import (
    DASHES,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    round_values,
    rule,
    spread_points,
    ticks,
    with_intervals,
)
from simshuffle.studies.training.summary import (
    estimate,
    fit_loss_curve,
    losses_against_global,
    summary,
)
from simshuffle.studies.training.tables import (
    CONDITION,
    NORMS,
    SETTING,
    TrainingTables,
    describe_networks,
    evaluated_statistics,
)
from simshuffle.studies.training.wording import setting_label
from simshuffle.workload.exchange import STYLES

MAX_PANELS = 4
PANEL_INCHES = 1.45
DODGE = 0.12
"""Shift between lines, so that their intervals do not cover each other: powers of two,
or twentieths of the axis.
"""
LOG_DODGE = 0.017
"""Shift between lines, as a share of a logarithmic axis."""
LAST_LABEL = "test accuracy after\nthe last epoch (%)"
EPOCH_LABEL = "test accuracy\nafter each epoch (%)"
LOSS_LABEL = "accuracy lost against\nglobal shuffle (points)"
SAMPLES_LABEL = "samples that a rank's statistics rest on, n"
# columns of `losses_against_global`, and what `scale_to_percent` calls them
LOSS_COLUMNS = {"loss_low": "low", "loss": "accuracy", "loss_high": "high"}
WITHOUT_FRACTION = ("global", "local")
"""Strategies without Q."""
OTHER_COLOURS = ("#EE7733", "#009988", "#882255", "#999933", "#DDAA33", "#77AADD")
OTHER_MARKERS = ("X", "p", "*", "h", ">")
"""Colours and markers of strategies without a style."""
PanelContent = tuple[Sequence[Mark], Axis]
"""Marks of a panel, and its axis from left to right."""


def figures(tables: TrainingTables) -> dict[str, Chart]:
    """Draw every figure that the tables have rows for, by the name of its file.

    They show the first kind of statistics that was evaluated; {} if no run is done.
    """
    finished_runs = tables.finished_runs()
    names = evaluated_statistics(finished_runs)
    if not names:
        return {}
    settings = summary(tables.runs)
    training_label = describe_networks(finished_runs)
    main_settings = settings[settings["statistics"] == names[0]]
    charts = {
        "accuracy_world_size": world_size_chart(main_settings, training_label),
        "accuracy_fraction": fraction_chart(main_settings, training_label),
        "accuracy_epoch": epoch_chart(finished_runs, tables.epochs, names[0]),
        "accuracy_samples": samples_chart(main_settings, training_label),
    }
    return {name: chart for name, chart in charts.items() if chart is not None}


def world_size_chart(settings: pd.DataFrame, training_label: str) -> Chart | None:
    """Draw accuracy after the last epoch against M, from rows of summary.csv.

    A line is a strategy at one Q with several M, a panel a kind of batch norm and
    variant. Settings with one M are left out; None where M is not varied. Rows are of
    one kind of statistics; ``training_label`` stands over the legend.
    """
    has_several_sizes = (
        settings.groupby(["variant", "batch_norm", *SETTING[3:]], dropna=False)[
            "world_size"
        ].transform("nunique")
        > 1
    )
    panels = _group_panels(settings[has_several_sizes], ["variant", "batch_norm"])
    return _draw_panels(
        panels, _draw_by_world_size, "ranks M", LAST_LABEL, training_label
    )


def fraction_chart(settings: pd.DataFrame, training_label: str) -> Chart | None:
    """Draw accuracy after the last epoch against Q, from rows of summary.csv.

    A panel is a condition in which some strategy has several Q. It has all strategies of
    the condition: a line each, global and local shuffle as bands. None where no strategy
    has several Q. Rows are of one kind of statistics.
    """
    exchanged = settings[~settings["strategy"].isin(["global", "local"])]
    has_several_fractions = (
        exchanged.groupby(list(SETTING[:4]))["exchange_fraction"].transform("nunique")
        > 1
    )
    conditions = exchanged.loc[has_several_fractions, list(CONDITION)].drop_duplicates()
    panels = _group_panels(settings.merge(conditions), list(CONDITION))
    return _draw_panels(
        panels,
        _draw_by_fraction,
        "exchanged fraction Q",
        LAST_LABEL,
        training_label,
        share=False,
    )


def epoch_chart(
    runs: pd.DataFrame, epochs: pd.DataFrame, statistics: str
) -> Chart | None:
    """Draw accuracy against the epoch, for each condition with several strategies; None
    if there is no such condition.

    At most `MAX_PANELS` panels: those with most strategies and then most ranks. Of
    several Q of a strategy the smallest is drawn. Epochs without an accuracy with
    ``statistics`` are left out.

    Args:
        runs: rows of runs.csv that are done.
        epochs: rows of epochs.csv, one for each run and epoch.
        statistics: a kind of statistics, one of `evaluated_statistics`.
    """
    column = f"{statistics}_accuracy"
    rows = epochs.merge(runs[["run", "seed", *SETTING]], on="run")
    rows = rows[rows[column].notna()].assign(accuracy=lambda table: table[column])
    smallest = rows.groupby(list(SETTING[:4]))["exchange_fraction"].transform("min")
    rows = rows[
        rows["exchange_fraction"].isna() | (rows["exchange_fraction"] == smallest)
    ]
    num_strategies = rows.groupby(list(CONDITION))["strategy"].transform("nunique")
    rows = rows.assign(num_strategies=num_strategies)[num_strategies > 1]
    panels = _group_panels(rows, list(CONDITION))
    panel_positions = {key: position for position, (key, _) in enumerate(panels)}
    panels = sorted(
        sorted(
            panels,
            key=lambda panel: (-int(panel[1]["num_strategies"].max()), -panel[0][2]),
        )[:MAX_PANELS],
        key=lambda panel: panel_positions[panel[0]],
    )
    return _draw_panels(
        panels, _draw_by_epoch, "epoch", EPOCH_LABEL, describe_networks(runs)
    )


def samples_chart(settings: pd.DataFrame, training_label: str) -> Chart | None:
    """Draw accuracy lost against global shuffle over the samples that a rank's
    statistics rest on.

    A panel is a variant and kind of batch norm, with the curve that is fitted to it.
    Panels without a curve are left out; None where there is no curve. Only rows with a
    rank's own statistics count.
    """
    rows = losses_against_global(settings)
    panels = [
        panel
        for panel in _group_panels(rows, ["variant", "batch_norm"])
        if fit_loss_curve(panel[1])
    ]
    return _draw_panels(
        panels, _draw_by_samples, SAMPLES_LABEL, LOSS_LABEL, training_label, share=False
    )


# ---------------------------------------------------------------------------------------- one panel


def scale_to_percent(rows: pd.DataFrame, low: float = 0.0) -> pd.DataFrame:
    """Return rows with y, low and high in %: columns accuracy, low and high (shares)
    times 100, clipped to between ``low`` (%) and 100.
    """
    shares = {"y": "accuracy", "low": "low", "high": "high"}
    return rows.assign(
        **{
            percent_column: (100 * rows[column]).clip(low, 100)
            for percent_column, column in shares.items()
        }
    )


def _draw_by_world_size(
    rows: pd.DataFrame, strategy_order: Sequence[str]
) -> PanelContent:
    """Draw a line of accuracy against M for each strategy and Q, with its intervals.

    Lines are moved aside a little, so that intervals do not cover each other.
    """
    sizes = sorted(set(rows["world_size"]))
    placed = rows.assign(x=rows["world_size"]).sort_values("x", kind="stable")
    placed = scale_to_percent(_assign_looks(placed, strategy_order))
    lines = spread_points(placed, "look", (sizes[-1] / sizes[0]) ** LOG_DODGE, log=True)
    slanted = 45 if len(sizes) > 4 else 0
    axis = Axis(log=True, ticks=ticks(sizes, str), turned=slanted, small=True)
    return with_intervals("line", lines), axis


def _draw_by_fraction(
    rows: pd.DataFrame, strategy_order: Sequence[str]
) -> PanelContent:
    """Draw a line of accuracy against Q for each strategy; without Q it is a band.

    The axis is logarithmic where Q above 0 spans more than a factor of 20; it then has no
    place for Q = 0. A band without an interval is its line alone. Of several rows of a
    band's strategy the first counts.
    """
    placed = scale_to_percent(
        rows.assign(look=rows["strategy"], x=rows["exchange_fraction"])
    )
    positive = rows.loc[rows["exchange_fraction"] > 0, "exchange_fraction"]
    log = bool(positive.max() > 20 * positive.min())
    is_band = placed["strategy"].isin(WITHOUT_FRACTION)
    marks = []
    for row in placed[is_band].drop_duplicates("strategy").to_dict("records"):
        colour = look_of(row["strategy"], strategy_order)["color"]
        if not math.isnan(row["low"]):
            marks.append(
                rule(Look(colour=colour, alpha=0.15), y=row["low"], y2=row["high"])
            )
        marks.append(rule(Look(row["strategy"], colour, dash=DASHES[1]), y=row["y"]))
    step = 2 ** (DODGE / 2) if log else 0.05 * DODGE
    lines = spread_points(
        placed[~is_band].sort_values("x", kind="stable"), "look", step, log=log
    )
    marks += with_intervals("line", lines)
    axis_ticks = ticks(sorted(set(positive)))
    return marks, Axis(log=log, low=None if log else 0.0, ticks=axis_ticks, small=True)


def _draw_by_epoch(rows: pd.DataFrame, strategy_order: Sequence[str]) -> PanelContent:
    """Draw a line of accuracy after each epoch, with its band, for each strategy.

    Lines are means over runs, bands their 95 % intervals; ``rows`` has a row for each
    run and epoch.
    """
    keys = ["strategy", "exchange_fraction", "epoch"]
    estimates = [
        {
            **dict(zip(keys, key, strict=True)),
            **vars(estimate(epoch_rows["accuracy"].tolist())),
        }
        for key, epoch_rows in rows.groupby(keys, sort=False, dropna=False)
    ]
    lines = pd.DataFrame(estimates).rename(columns={"mean": "accuracy", "epoch": "x"})
    lines = _assign_looks(scale_to_percent(lines), strategy_order)
    marks = lines_and_bands(lines.sort_values("x", kind="stable"))
    return marks, Axis(low=0.0, small=True)


def lines_and_bands(lines: pd.DataFrame) -> list[Mark]:
    """Return lines and the bands of their intervals as marks, bands first.

    ``lines`` has the columns x, y, low, high, look and colour.
    """
    bands = [
        Mark(
            "band",
            line_rows,
            y="low",
            y2="high",
            look=Look(colour=str(colour), alpha=0.2),
        )
        for (_, colour), line_rows in lines.groupby(["look", "colour"], sort=False)
    ]
    return [*bands, Mark("line", lines)]


def _draw_by_samples(rows: pd.DataFrame, strategy_order: Sequence[str]) -> PanelContent:
    """Draw the loss (points) of each setting against n, and the curve that is fitted to
    the losses.

    The curve is loss = slope (1/n - 1/n_global), with the most frequent n of global
    shuffle. The axis is logarithmic where n spans more than a factor of 1.5.
    ``strategy_order`` is not used.
    """
    low = rows["effective_samples"].min()
    high = rows["effective_samples"].max()
    marks = []
    if loss_curve := fit_loss_curve(rows):
        global_samples = rows["global_effective_samples"].mode().iloc[0]
        x = np.geomspace(low, global_samples, 200)
        fitted = pd.DataFrame(
            {"x": x, "y": 100 * loss_curve.slope * (1 / x - 1 / global_samples)}
        )
        marks.append(Mark("line", fitted, look=Look(colour="#999999")))
    points = rows.drop(columns=["accuracy", "low", "high"], errors="ignore")
    points = scale_to_percent(points.rename(columns=LOSS_COLUMNS), -100)
    points = points.assign(look=rows["strategy"], x=rows["effective_samples"])
    marks += with_intervals("point", points)
    log = bool(high > 1.5 * low)
    axis_ticks = ticks(round_values(0.95 * low, 1.05 * high)) if log else None
    return marks, Axis(log=log, ticks=axis_ticks, small=True)


def _assign_looks(rows: pd.DataFrame, strategy_order: Sequence[str]) -> pd.DataFrame:
    """Return rows with ``look``, the strategy with its Q ('IS-Pair 0.1'); ``colour``;
    and ``tip``, the look with its accuracy in %.
    """
    labels = [setting_label(row) for row in rows.to_dict("records")]
    colours = {name: look_of(name, strategy_order)["color"] for name in strategy_order}
    tips = pd.Series(labels, rows.index) + (100 * rows["accuracy"]).map(
        ": {:.4g} %".format
    )
    return rows.assign(look=labels, colour=rows["strategy"].map(colours), tip=tips)


# --------------------------------------------------------------------------------------- all panels


def _group_panels(
    rows: pd.DataFrame, columns: list[str]
) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Group rows by ``columns`` (variant, batch norm and perhaps M); return key and
    rows of each group.

    Groups are sorted by variant, then by batch norm in the order of `NORMS` (per rank
    first), then by M.
    """
    groups: Any = rows.groupby(columns, sort=False, dropna=False)
    norms = list(NORMS)
    return sorted(
        groups, key=lambda panel: (panel[0][0], norms.index(panel[0][1]), *panel[0][2:])
    )


def _title(key: tuple[Any, ...]) -> str:
    """Return the title of a panel: M, the kind of batch norm and, below, the variant.

    ``key`` is of `_group_panels`; parts that it lacks or that are '' are left out.
    """
    variant, norm, *world_size = key
    size = f"M = {world_size[0]}" if world_size else ""
    first = ", ".join(filter(None, (size, NORMS[str(norm)])))
    return "\n".join(filter(None, (first, variant)))


def order_strategies(rows: pd.DataFrame) -> list[str]:
    """Return the strategies of a table, each once: first those with a style, in the
    order of `STYLES`, then other ones in the order of the rows.
    """
    present = list(dict.fromkeys(rows["strategy"]))
    return [name for name in STYLES if name in present] + [
        name for name in present if name not in STYLES
    ]


def look_of(strategy: str, strategy_order: Sequence[str]) -> dict[str, Any]:
    """Return the ``color`` and the ``marker`` of a strategy.

    Strategies without a style in `STYLES` have them by their position among each other
    in ``strategy_order``, which must hold them; no two of 30 have equal ones.
    """
    if strategy in STYLES:
        return {"color": STYLES[strategy].colour, "marker": STYLES[strategy].marker}
    position = [name for name in strategy_order if name not in STYLES].index(strategy)
    marker_turn = position + position // math.lcm(
        len(OTHER_COLOURS), len(OTHER_MARKERS)
    )
    return {
        "color": OTHER_COLOURS[position % len(OTHER_COLOURS)],
        "marker": OTHER_MARKERS[marker_turn % len(OTHER_MARKERS)],
    }


def looks_of(
    lines: Sequence[tuple[str, str]], strategy_order: Sequence[str]
) -> dict[str, Look]:
    """Return looks by the label of a line: colour and marker by strategy, and a dash for
    each label of a strategy.

    The `DASHES` repeat. Lines of strategies that ``strategy_order`` lacks are left out.

    Args:
        lines: strategy and label of each line.
        strategy_order: the strategies in their order.
    """
    looks: dict[str, Look] = {}
    for strategy in strategy_order:
        labels = dict.fromkeys(
            label for line_strategy, label in lines if line_strategy == strategy
        )
        look = look_of(strategy, strategy_order)
        for index, label in enumerate(labels):
            dash = DASHES[index % len(DASHES)]
            looks[label] = Look(label, look["color"], look["marker"], dash)
    return looks


def _draw_panels(
    panels: Sequence[tuple[tuple[Any, ...], pd.DataFrame]],
    draw: Callable[[pd.DataFrame, Sequence[str]], PanelContent],
    across_label: str,
    up_label: str,
    training_label: str,
    *,
    share: bool = True,
) -> Chart | None:
    """Draw panels of one kind, two side by side, with one legend of all lines and
    points.

    Args:
        panels: key and rows of each panel.
        draw: makes the marks and the axis of a panel from its rows and the strategies.
        across_label: names the axis from left to right.
        up_label: names the axis upwards.
        training_label: the networks and data that were trained; it stands over the
            legend.
        share: whether panels share the scale of accuracy.

    Returns:
        None where there are no panels.
    """
    if not panels:
        return None
    strategy_order = order_strategies(pd.concat([rows for _, rows in panels]))
    across = 1 if len(panels) == 1 else 2
    drawn_panels = []
    for panel_key, rows in panels:
        marks, x = draw(rows, strategy_order)
        drawn_panels.append(Panel(marks, x, Axis(small=True), _title(panel_key)))
    lines = [
        pair
        for panel in drawn_panels
        for mark in panel.marks
        if {"strategy", "look"} <= set(mark.data)
        for pair in zip(mark.data["strategy"], mark.data["look"], strict=True)
    ]
    return Chart(
        drawn_panels,
        -(-len(panels) // across) * PANEL_INCHES + 0.45,
        looks_of(lines, strategy_order),
        f"{up_label.replace(chr(10), ' ').capitalize()} against {across_label}.",
        legend=training_label,
        across=across,
        share="y" if share else "",
        x=across_label,
        y=up_label,
    )
