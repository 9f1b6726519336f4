"""The figures of a study, from its tables alone."""

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
from simshuffle.studies.training.summary import curve, estimate, losses, summary
from simshuffle.studies.training.tables import (
    CONDITION,
    NORMS,
    SETTING,
    TrainingTables,
    statistics_of,
    trained,
)
from simshuffle.studies.training.wording import setting
from simshuffle.workload.exchange import STYLES

MOST_PANELS = 4
PANEL_INCHES = 1.45
DODGE = 0.12
"""How far lines stand apart, so that intervals can be told: a power of two, or twentieths."""
ASIDE = 0.017
"""The same as a share of a logarithmic axis."""
LAST = "test accuracy after\nthe last epoch (%)"
AFTER_EACH = "test accuracy\nafter each epoch (%)"
LOST = "accuracy lost against\nglobal shuffle (points)"
RESTS_ON = "samples that a rank's statistics rest on, n"
LOSS = {"loss_low": "low", "loss": "accuracy", "loss_high": "high"}
ALONE = ("global", "local")
"""Strategies without Q."""
OTHERS = ("#EE7733", "#009988", "#882255", "#999933", "#DDAA33", "#77AADD")
OTHER_MARKERS = ("X", "p", "*", "h", ">")
"""Colours and markers of strategies without a style."""
Drawn = tuple[Sequence[Mark], Axis]
"""Marks of a panel, and its axis from left to right."""


def figures(tables: TrainingTables) -> dict[str, Chart]:
    """Every figure that the tables have something for, by the name of its file."""
    done = tables.finished()
    names = statistics_of(done)
    if not names:
        return {}
    settings, what = summary(tables.runs), trained(done)
    main = settings[settings["statistics"] == names[0]]
    drawn = {
        "accuracy_world_size": world_size_chart(main, what),
        "accuracy_fraction": fraction_chart(main, what),
        "accuracy_epoch": epoch_chart(done, tables.epochs, names[0]),
        "accuracy_samples": samples_chart(main, what),
    }
    return {name: chart for name, chart in drawn.items() if chart is not None}


def world_size_chart(settings: pd.DataFrame, what: str) -> Chart | None:
    """Accuracy after the last epoch against M, of rows of summary.csv: a line for each strategy
    with several M, a panel for each kind of batch norm and variant; None where M is not varied."""
    several = (
        settings.groupby(["variant", "batch_norm", *SETTING[3:]], dropna=False)[
            "world_size"
        ].transform("nunique")
        > 1
    )
    panels = _panels(settings[several], ["variant", "batch_norm"])
    return _drawn(panels, _against_world_size, "ranks M", LAST, what)


def fraction_chart(settings: pd.DataFrame, what: str) -> Chart | None:
    """Accuracy after the last epoch against Q, of rows of summary.csv: a line for each strategy
    with several Q, a panel for each condition, global and local shuffle as bands; None of one Q."""
    exchanged = settings[~settings["strategy"].isin(["global", "local"])]
    several = exchanged.groupby(list(SETTING[:4]))["exchange_fraction"].transform("nunique") > 1
    conditions = exchanged.loc[several, list(CONDITION)].drop_duplicates()
    panels = _panels(settings.merge(conditions), list(CONDITION))
    return _drawn(panels, _against_fraction, "exchanged fraction Q", LAST, what, share=False)


def epoch_chart(runs: pd.DataFrame, epochs: pd.DataFrame, statistics: str) -> Chart | None:
    """Accuracy against the epoch: a panel for each condition with several strategies, the four with
    most of them and then most ranks; of several Q the smallest. ``runs`` are those that are
    done."""
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
    return _drawn(panels, _against_epoch, "epoch", AFTER_EACH, trained(runs))


def samples_chart(settings: pd.DataFrame, what: str) -> Chart | None:
    """Accuracy lost against global shuffle over the number of samples that a rank's statistics rest
    on, a panel for each variant, with the curve that is fitted to it; None where there is none."""
    rows = losses(settings)
    panels = [each for each in _panels(rows, ["variant", "batch_norm"]) if curve(each[1])]
    return _drawn(panels, _against_samples, RESTS_ON, LOST, what, share=False)


# ---------------------------------------------------------------------------------------- one panel


def in_percent(rows: pd.DataFrame, low: float = 0.0) -> pd.DataFrame:
    """Rows with y, low and high in %: accuracy and its interval, from ``low`` to 100."""
    shares = {"y": "accuracy", "low": "low", "high": "high"}
    return rows.assign(**{to: (100 * rows[of]).clip(low, 100) for to, of in shares.items()})


def _against_world_size(rows: pd.DataFrame, known: Sequence[str]) -> Drawn:
    sizes = sorted(set(rows["world_size"]))
    placed = rows.assign(x=rows["world_size"]).sort_values("x", kind="stable")
    placed = in_percent(_looking(placed, known))
    lines = spread_points(placed, "look", (sizes[-1] / sizes[0]) ** ASIDE, log=True)
    slanted = 45 if len(sizes) > 4 else 0
    axis = Axis(log=True, ticks=ticks(sizes, str), turned=slanted, small=True)
    return with_intervals("line", lines), axis


def _against_fraction(rows: pd.DataFrame, known: Sequence[str]) -> Drawn:
    placed = in_percent(rows.assign(look=rows["strategy"], x=rows["exchange_fraction"]))
    positive = rows.loc[rows["exchange_fraction"] > 0, "exchange_fraction"]
    log = bool(positive.max() > 20 * positive.min())
    alone = placed["strategy"].isin(ALONE)
    marks = []
    for row in placed[alone].drop_duplicates("strategy").to_dict("records"):
        colour = look_of(row["strategy"], known)["color"]
        if not math.isnan(row["low"]):
            marks.append(rule(Look(colour=colour, alpha=0.15), y=row["low"], y2=row["high"]))
        marks.append(rule(Look(row["strategy"], colour, dash=DASHES[1]), y=row["y"]))
    step = 2 ** (DODGE / 2) if log else 0.05 * DODGE
    lines = spread_points(placed[~alone].sort_values("x", kind="stable"), "look", step, log=log)
    marks += with_intervals("line", lines)
    shown = ticks(sorted(set(positive)))
    return marks, Axis(log=log, low=None if log else 0.0, ticks=shown, small=True)


def _against_epoch(rows: pd.DataFrame, known: Sequence[str]) -> Drawn:
    keys = ["strategy", "exchange_fraction", "epoch"]
    found = [
        {**dict(zip(keys, key, strict=True)), **vars(estimate(of["accuracy"].tolist()))}
        for key, of in rows.groupby(keys, sort=False, dropna=False)
    ]
    lines = pd.DataFrame(found).rename(columns={"mean": "accuracy", "epoch": "x"})
    return with_bands(_looking(in_percent(lines), known).sort_values("x", kind="stable")), Axis(
        low=0.0, small=True
    )


def with_bands(lines: pd.DataFrame) -> list[Mark]:
    """Lines with the band of their intervals; ``colour`` is a column."""
    bands = [
        Mark("band", of, y="low", y2="high", look=Look(colour=str(colour), alpha=0.2))
        for (_, colour), of in lines.groupby(["look", "colour"], sort=False)
    ]
    return [*bands, Mark("line", lines)]


def _against_samples(rows: pd.DataFrame, known: Sequence[str]) -> Drawn:
    low, high = rows["effective_samples"].min(), rows["effective_samples"].max()
    marks = []
    if found := curve(rows):
        usual = rows["global_effective_samples"].mode().iloc[0]
        x = np.geomspace(low, usual, 200)
        fitted = pd.DataFrame({"x": x, "y": 100 * found.slope * (1 / x - 1 / usual)})
        marks.append(Mark("line", fitted, look=Look(colour="#999999")))
    points = rows.drop(columns=["accuracy", "low", "high"], errors="ignore").rename(columns=LOSS)
    points = in_percent(points, -100).assign(look=rows["strategy"], x=rows["effective_samples"])
    marks += with_intervals("point", points)
    log = bool(high > 1.5 * low)
    shown = ticks(round_values(0.95 * low, 1.05 * high)) if log else None
    return marks, Axis(log=log, ticks=shown, small=True)


def _looking(rows: pd.DataFrame, known: Sequence[str]) -> pd.DataFrame:
    """Rows with ``look``, the strategy with its Q, in the order of the table; and ``colour``."""
    looks = [setting(row) for row in rows.to_dict("records")]
    colours = {name: look_of(name, known)["color"] for name in known}
    tips = pd.Series(looks, rows.index) + (100 * rows["accuracy"]).map(": {:.4g} %".format)
    return rows.assign(look=looks, colour=rows["strategy"].map(colours), tip=tips)


# --------------------------------------------------------------------------------------- all panels


def _panels(rows: pd.DataFrame, columns: list[str]) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Rows by the values of ``columns``, variant, batch norm and perhaps M: per rank first, then by
    M."""
    found: Any = rows.groupby(columns, sort=False, dropna=False)
    norms = list(NORMS)
    return sorted(found, key=lambda of: (of[0][0], norms.index(of[0][1]), *of[0][2:]))


def _title(key: tuple[Any, ...]) -> str:
    variant, norm, *world_size = key
    size = f"M = {world_size[0]}" if world_size else ""
    first = ", ".join(filter(None, (size, NORMS[str(norm)])))
    return "\n".join(filter(None, (first, variant)))


def strategies(rows: pd.DataFrame) -> list[str]:
    """The strategies of a table: those of `STYLES` first, in that order."""
    known = list(dict.fromkeys(rows["strategy"]))
    return [name for name in STYLES if name in known] + [
        name for name in known if name not in STYLES
    ]


def look_of(strategy: str, known: Sequence[str]) -> dict[str, Any]:
    """Colour and marker of a strategy among those that are ``known``: others than those of
    `STYLES` have them by their place alone, and no two of 30 the same."""
    if strategy in STYLES:
        return {"color": STYLES[strategy].colour, "marker": STYLES[strategy].marker}
    place = [name for name in known if name not in STYLES].index(strategy)
    turn = place + place // math.lcm(len(OTHERS), len(OTHER_MARKERS))
    return {
        "color": OTHERS[place % len(OTHERS)],
        "marker": OTHER_MARKERS[turn % len(OTHER_MARKERS)],
    }


def looks_of(lines: Sequence[tuple[str, str]], known: Sequence[str]) -> dict[str, Look]:
    """Looks by the label of a line: those of one strategy have its colour and marker, and a dash of
    their own. ``lines`` are strategy and label of each, ``known`` strategies in their order."""
    out: dict[str, Look] = {}
    for strategy in known:
        labels = dict.fromkeys(label for of, label in lines if of == strategy)
        look = look_of(strategy, known)
        for number, label in enumerate(labels):
            dash = DASHES[number % len(DASHES)]
            out[label] = Look(label, look["color"], look["marker"], dash)
    return out


def _drawn(
    panels: Sequence[tuple[tuple[Any, ...], pd.DataFrame]],
    draw: Callable[[pd.DataFrame, Sequence[str]], Drawn],
    across_label: str,
    up_label: str,
    what: str,
    *,
    share: bool = True,
) -> Chart | None:
    """Panels of one kind, two side by side, with one legend, over which stands ``what`` was
    trained; they ``share`` the scale of accuracy. None where there are no panels."""
    if not panels:
        return None
    known = strategies(pd.concat([rows for _, rows in panels]))
    across = 1 if len(panels) == 1 else 2
    made = []
    for panel_key, rows in panels:
        marks, x = draw(rows, known)
        made.append(Panel(marks, x, Axis(small=True), _title(panel_key)))
    lines = [
        pair
        for panel in made
        for mark in panel.marks
        if {"strategy", "look"} <= set(mark.data)
        for pair in zip(mark.data["strategy"], mark.data["look"], strict=True)
    ]
    return Chart(
        made,
        -(-len(panels) // across) * PANEL_INCHES + 0.45,
        looks_of(lines, known),
        f"{up_label.replace(chr(10), ' ').capitalize()} against {across_label}.",
        legend=what,
        across=across,
        share="y" if share else "",
        x=across_label,
        y=up_label,
    )
