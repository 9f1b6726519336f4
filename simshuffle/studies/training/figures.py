"""The figures of a study, from its tables alone. Each is one column of a two-column paper wide."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simshuffle.results.style import STYLE, legend_above, letters, line_handle, new_figure
from simshuffle.studies.training.intervals import estimate
from simshuffle.studies.training.looks import look_of, strategies
from simshuffle.studies.training.summary import curve, losses, summary
from simshuffle.studies.training.tables import (
    CONDITION,
    NORMS,
    SETTING,
    Tables,
    statistics_of,
    trained,
)

DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (4, 1.2, 1, 1.2)))
MOST_PANELS = 4
PANEL_INCHES = 1.45
TITLE_LETTERS = 56  # of a panel's title in a line across the figure
DODGE = 0.12
"""How far lines stand aside of each other, so that their intervals can be told apart: a power of
two, or twentieths."""
ASIDE = 0.017
"""The same as a share of a logarithmic axis."""
LAST = "test accuracy after\nthe last epoch (%)"
AFTER_EACH = "test accuracy\nafter each epoch (%)"
LOST = "accuracy lost against\nglobal shuffle (points)"
RESTS_ON = "samples that a rank's statistics rest on, n"
LOSS = ("loss_low", "loss", "loss_high")
Look = Callable[[str, str], dict[str, Any]]
"""How a line is drawn, given its strategy and its label."""


def figures(tables: Tables) -> dict[str, Figure]:
    """Every figure that the tables have something for, by the name of its file: against M, against
    Q, against the epoch, and against the samples that statistics rest on."""
    done = tables.finished()
    names = statistics_of(done)
    if not names:
        return {}
    settings, what = summary(tables.runs), trained(done)
    main = settings[settings["statistics"] == names[0]]
    drawn = {
        "accuracy_world_size": world_size_figure(main, what),
        "accuracy_fraction": fraction_figure(main, what),
        "accuracy_epoch": epoch_figure(done, tables.epochs, names[0]),
        "accuracy_samples": samples_figure(main, what),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def world_size_figure(settings: pd.DataFrame, what: str) -> Figure | None:
    """Accuracy after the last epoch against M, a line for each strategy with several M, a panel for
    each kind of batch norm and variant; None where M is not varied.

    Args:
        settings: rows of summary.csv with the statistics to draw.
        what: was trained.
    """
    several = (
        settings.groupby(["variant", "batch_norm", *SETTING[3:]], dropna=False)[
            "world_size"
        ].transform("nunique")
        > 1
    )
    rows = settings[several]
    panels = _panels(rows, ["variant", "batch_norm"])
    if not panels:
        return None
    return _drawn(panels, _against_world_size, "ranks M", LAST, what, strategies(rows))


def fraction_figure(settings: pd.DataFrame, what: str) -> Figure | None:
    """Accuracy after the last epoch against Q, a line for each strategy with several Q, a panel for
    each condition; None where Q is not varied.

    Global and local shuffle are the two bands that the lines lie between, if they do.

    Args:
        settings: rows of summary.csv with the statistics to draw.
        what: was trained.
    """
    exchanged = settings[~settings["strategy"].isin(["global", "local"])]
    several = exchanged.groupby(list(SETTING[:4]))["exchange_fraction"].transform("nunique") > 1
    varied = exchanged[several]
    conditions = set(_keys(varied, CONDITION))
    rows = settings[[key in conditions for key in _keys(settings, CONDITION)]]
    panels = _panels(rows, list(CONDITION))
    if not panels:
        return None
    known, label = strategies(rows), "exchanged fraction Q"
    return _drawn(panels, _against_fraction, label, LAST, what, known, share=False)


def epoch_figure(runs: pd.DataFrame, epochs: pd.DataFrame, statistics: str) -> Figure | None:
    """Accuracy against the epoch: a panel for each condition with several strategies, the four with
    most of them and then most ranks.

    Of a strategy with several Q the smallest one is drawn.

    Args:
        runs: those that are done, columns of runs.csv.
        epochs: columns of epochs.csv.
        statistics: which accuracy.
    """
    column = f"{statistics}_accuracy"
    rows = epochs.merge(runs[["run", "seed", *SETTING]], on="run")
    rows = rows[rows[column].notna()].assign(accuracy=lambda table: table[column])
    smallest = rows.groupby(list(SETTING[:4]))["exchange_fraction"].transform("min")
    rows = rows[rows["exchange_fraction"].isna() | (rows["exchange_fraction"] == smallest)]
    most = rows.groupby(list(CONDITION))["strategy"].transform("nunique")
    panels = _panels(rows.assign(most=most)[most > 1], list(CONDITION))
    places = {key: place for place, (key, _) in enumerate(panels)}
    panels = sorted(
        sorted(panels, key=lambda panel: (-int(panel[1]["most"].max()), -panel[0][2]))[
            :MOST_PANELS
        ],
        key=lambda panel: places[panel[0]],
    )
    if not panels:
        return None
    known = strategies(pd.concat([panel for _, panel in panels]))
    return _drawn(panels, _against_epoch, "epoch", AFTER_EACH, trained(runs), known)


def samples_figure(settings: pd.DataFrame, what: str) -> Figure | None:
    """Accuracy lost against global shuffle over the number of samples that a rank's statistics rest
    on, a marker for each strategy, M and Q, a panel for each variant, and the curve that is fitted
    to it; None where there is none.

    Args:
        settings: rows of summary.csv with the statistics to draw.
        what: was trained.
    """
    rows = losses(settings)
    panels = [each for each in _panels(rows, ["variant", "batch_norm"]) if curve(each[1])]
    if not panels:
        return None
    axes = (_against_samples, RESTS_ON, LOST, what)
    return _drawn(panels, *axes, strategies(rows), share=False)


# ---------------------------------------------------------------------------------------- one panel


def _against_world_size(rows: pd.DataFrame, ax: Axes, look: Look) -> None:
    lines = _lines(rows, ["strategy", "exchange_fraction"])
    sizes = sorted(set(rows["world_size"]))
    step = (sizes[-1] / sizes[0]) ** ASIDE
    for place, ((strategy, fraction), line) in enumerate(lines):
        ordered = line.sort_values("world_size")
        at = ordered["world_size"] * step ** (place - (len(lines) - 1) / 2)
        _bars(ax, at, ordered, look(strategy, _named(strategy, fraction)))
    ax.set_xscale("log", base=2)
    slanted: dict[str, Any] = (
        {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(sizes) > 4 else {}
    )
    ax.set_xticks(sizes, [str(size) for size in sizes], fontsize=6, **slanted)
    ax.minorticks_off()


def _against_fraction(rows: pd.DataFrame, ax: Axes, look: Look) -> None:
    log = _wide(rows["exchange_fraction"])
    lines = _lines(rows, ["strategy"])
    for place, ((strategy,), line) in enumerate(lines):
        style = look(strategy, strategy)
        aside = place - (len(lines) - 1) / 2
        if strategy in {"global", "local"}:
            row = line.iloc[0]
            ax.axhline(
                100 * row["accuracy"], color=style["color"], linewidth=0.9, linestyle=(0, (4, 2))
            )
            ax.axhspan(
                100 * row["low"], 100 * row["high"], color=style["color"], alpha=0.15, linewidth=0
            )
        else:
            ordered = line.sort_values("exchange_fraction")
            at = ordered["exchange_fraction"]
            _bars(
                ax,
                at * 2 ** (DODGE / 2 * aside) if log else at + 0.05 * DODGE * aside,
                ordered,
                style,
            )
    if log:
        ax.set_xscale("log")
    else:
        ax.set_xlim(left=0)
    ticks = sorted({value for value in rows["exchange_fraction"].dropna() if value > 0})
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=6)
    ax.minorticks_off()


def _wide(fractions: pd.Series[float]) -> bool:
    """Whether fractions span more than a factor of twenty, so that they need a logarithmic axis."""
    positive = fractions[fractions > 0]
    return bool(positive.max() > 20 * positive.min())


def _against_epoch(rows: pd.DataFrame, ax: Axes, look: Look) -> None:
    for (strategy, fraction), line in _lines(rows, ["strategy", "exchange_fraction"]):
        style = look(strategy, _named(strategy, fraction))
        x = np.array(sorted(set(line["epoch"])), float)
        found = [estimate(line.loc[line["epoch"] == epoch, "accuracy"].tolist()) for epoch in x]
        mean, low, high = (
            np.clip([100 * getattr(each, name) for each in found], 0, 100)
            for name in ("mean", "low", "high")
        )
        ax.plot(x, mean, **style, markersize=2, linewidth=0.9)
        ax.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)
    ax.set_xlim(left=0)


def _against_samples(rows: pd.DataFrame, ax: Axes, look: Look) -> None:
    if found := curve(rows):
        usual = rows["global_effective_samples"].mode().iloc[0]
        x = np.geomspace(rows["effective_samples"].min(), usual, 200)
        ax.plot(x, 100 * found.slope * (1 / x - 1 / usual), color="#999999", lw=0.9, zorder=0)
    for (strategy,), of in _lines(rows, ["strategy"]):
        low, loss, high = (100 * of[name].to_numpy(float) for name in LOSS)
        known, style = ~np.isnan(low), look(strategy, strategy)
        style["linestyle"] = ""  # in the legend too
        ax.errorbar(
            of["effective_samples"],
            loss,
            np.where(known, [loss - low, high - loss], 0.0),
            **style,
            markersize=2.6,
            elinewidth=0.7,
            capsize=1.3,
        )
    low, high = rows["effective_samples"].min(), rows["effective_samples"].max()
    if high > 1.5 * low:
        ax.set_xscale("log")
        steps = (1, 2, 5) if high > 8 * low else (1, 1.5, 2, 3, 4, 5, 7)
        ticks = [each * 10.0**power for power in range(-1, 9) for each in steps]
        shown = [tick for tick in ticks if 0.95 * low < tick < 1.05 * high]
        ax.set_xticks(shown, [f"{tick:g}" for tick in shown])
        ax.minorticks_off()


def _bars(ax: Axes, x: pd.Series[Any], rows: pd.DataFrame, style: dict[str, Any]) -> None:
    """A line with 95 % intervals; none where there is one seed."""
    mean, low, high = (
        (100 * rows[name].to_numpy(float)).clip(0, 100) for name in ("accuracy", "low", "high")
    )
    known = ~np.isnan(low)
    ax.errorbar(
        x,
        mean,
        np.where(known, [mean - low, high - mean], 0.0),
        **style,
        markersize=2.6,
        linewidth=0.9,
        elinewidth=0.7,
        capsize=1.3,
    )


# --------------------------------------------------------------------------------------- all panels


def _keys(rows: pd.DataFrame, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(rows[list(columns)].itertuples(index=False, name=None))


def _lines(rows: pd.DataFrame, columns: list[str]) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Rows by the values of columns, in the order of the table."""
    if not len(rows):
        return []
    groups = rows.groupby(columns, sort=False, dropna=False)
    return [(key if isinstance(key, tuple) else (key,), group) for key, group in groups]


def _panels(rows: pd.DataFrame, columns: list[str]) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Rows of each panel by the values of ``columns``: batch norm per rank first, then by M."""
    found = dict(_lines(rows, columns))
    order = list(NORMS)
    at = {name: columns.index(name) for name in columns}

    def place(key: tuple[Any, ...]) -> tuple[Any, ...]:
        return (
            key[at["variant"]],
            order.index(key[at["batch_norm"]]),
            key[at["world_size"]] if "world_size" in at else 0,
        )

    return [(key, found[key]) for key in sorted(found, key=place)]


def _title(key: tuple[Any, ...], across: int) -> str:
    """Of a panel of so many ``across``."""
    variant, norm, *world_size = key
    size = f"M = {world_size[0]}" if world_size else ""
    first = ", ".join(filter(None, (size, NORMS[str(norm)])))
    wrapped = textwrap.fill(variant, letters(TITLE_LETTERS // across), break_on_hyphens=False)
    return "\n".join(filter(None, (first, wrapped)))


def _named(strategy: str, fraction: float) -> str:
    """The strategy, with its Q if it has one."""
    return (
        strategy
        if strategy in {"global", "local"} or math.isnan(fraction)
        else f"{strategy} {fraction:g}"
    )


def _look(strategy: str, known: Sequence[str], number: int) -> dict[str, Any]:
    """The same, with a dash of its own for the ``number``-th line (from 0) of the strategy."""
    return {**look_of(strategy, known), "linestyle": DASHES[number % len(DASHES)]}


def _drawn(
    panels: Sequence[tuple[tuple[Any, ...], pd.DataFrame]],
    draw: Callable[[pd.DataFrame, Axes, Look], None],
    across_label: str,
    up_label: str,
    what: str,
    known: Sequence[str],
    *,
    share: bool = True,
) -> Figure:
    """Panels of one kind, two side by side, with one legend, over which stands ``what`` was
    trained; they ``share`` the scale of accuracy."""
    across = 1 if len(panels) == 1 else 2
    down = -(-len(panels) // across)
    used: dict[str, dict[str, Any]] = {}
    lines: dict[str, list[str]] = {}

    def look(strategy: str, label: str) -> dict[str, Any]:
        of_strategy = lines.setdefault(strategy, [])
        if label not in of_strategy:
            of_strategy.append(label)
        used[label] = _look(strategy, known, of_strategy.index(label))
        return used[label]

    with matplotlib.rc_context(STYLE):
        figure = new_figure(down * PANEL_INCHES + 0.45)
        axes = figure.subplots(down, across, sharey=share, squeeze=False).ravel()
        for ax, (key, rows) in zip(axes, panels, strict=False):
            draw(rows, ax, look)
            ax.set_title(_title(key, across), fontsize=6.5 if across == 1 else 6, pad=3)
            ax.spines[["top", "right"]].set_visible(False)
            ax.tick_params(labelsize=6)
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        figure.supxlabel(across_label, fontsize=7.5)
        figure.supylabel(up_label, fontsize=7.5)
        order = [label for name in known for label in lines.get(name, [])]
        legend_above(figure, [line_handle(label, used[label]) for label in order], what)
        return figure
