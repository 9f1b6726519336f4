"""The figures, from tables alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from simshuffle.results.chart import Axis, Chart, Panel
from simshuffle.studies.time_to_accuracy.drawing import note, time_axis, time_unit
from simshuffle.studies.time_to_accuracy.frontier import frontier_chart
from simshuffle.studies.time_to_accuracy.tables import Tables
from simshuffle.studies.training.figures import ALONE, in_percent, looks_of, with_bands
from simshuffle.studies.training.intervals import estimate
from simshuffle.studies.training.looks import look_of, strategies

PANEL_INCHES = 1.45


def figures(tables: Tables, meta: Mapping[str, Any]) -> dict[str, Chart]:
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
    out = {"frontier": frontier_chart(simulated, meta)}
    curves = tables.curves[tables.curves["setting"].isin(simulated["setting"])]
    if len(curves):
        out["accuracy_time"] = time_chart(simulated, curves, meta)
    return out


def time_chart(settings: pd.DataFrame, curves: pd.DataFrame, meta: Mapping[str, Any]) -> Chart:
    """Accuracy against simulated time with 95 % bands, a panel for each Q, with global and local
    shuffle in each.

    Args:
        settings: columns `SETTING_COLUMNS`, those that were simulated.
        curves: columns `CURVE_COLUMNS`, of these settings.
        meta: as of `figures`.
    """
    everywhere = settings[settings["strategy"].isin(ALONE)]
    others = settings.drop(everywhere.index)
    exchanged = others[others["exchange_fraction"].notna()]
    loaders = others.drop(exchanged.index)
    groups = {f"Q = {q:g}": of for q, of in exchanged.groupby("exchange_fraction")}
    groups |= {"loaders": loaders} if len(loaders) else {}
    groups = groups or {"": others}
    unit, name = time_unit(float(settings["total_s"].max()))
    known, lines = strategies(settings), _lines(settings, curves, unit)
    x = time_axis(f"simulated time ({name})", settings["total_s"] / unit, lines["x"].min())
    panels = []
    for title, rows in groups.items():
        own = _once(pd.concat([everywhere, rows]))
        here = lines.merge(own[["setting", "strategy", "look"]], on="setting")
        colour = {each: look_of(each, known)["color"] for each in known}
        here = here.assign(colour=here["strategy"].map(colour))
        panels.append(Panel(with_bands(here), x, Axis(small=True), title))
    across = 1 if len(panels) == 1 else 2
    names = _once(settings)[["strategy", "look"]].itertuples(index=False, name=None)
    return Chart(
        panels,
        -(-len(panels) // across) * PANEL_INCHES + (0.9 if across == 1 else 0.35),
        looks_of(list(names), known),
        "Test accuracy against simulated time, with 95 % bands.",
        legend=str(meta.get("model", "")),
        note=note(meta),
        across=across,
        share="xy",
        y="test accuracy (%)",
    )


def _lines(settings: pd.DataFrame, curves: pd.DataFrame, unit: float) -> pd.DataFrame:
    """Mean accuracy and its interval in %, after each epoch of each setting."""
    found = [
        {
            "setting": setting,
            "x": of["time_s"].iloc[0] / unit,
            **vars(estimate(of["accuracy"].tolist())),
        }
        for (setting, _), of in curves.groupby(["setting", "epoch"])
    ]
    return in_percent(pd.DataFrame(found).rename(columns={"mean": "accuracy"}))


def _once(settings: pd.DataFrame) -> pd.DataFrame:
    """The settings that have a line, with its name in the legend as ``look``: the first of each
    strategy, and of each source of global shuffle."""
    looks = settings["strategy"].where(settings["strategy"] != "global", settings["setting"])
    return settings.assign(look=looks).drop_duplicates("look")
