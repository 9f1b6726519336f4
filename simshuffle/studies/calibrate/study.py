"""The study behind ``simshuffle machine calibrate``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from typing_extensions import TypedDict

from simshuffle.errors import Problem, refuse
from simshuffle.results.chart import Chart
from simshuffle.scenario.calibrated import QUANTITIES
from simshuffle.studies.calibrate import text
from simshuffle.studies.calibrate.cell import CalibrationCell, check
from simshuffle.studies.calibrate.figures import residuals_chart
from simshuffle.studies.calibrate.files import sources
from simshuffle.studies.calibrate.parameter import Parameter, parameters_of
from simshuffle.studies.calibrate.tables import STORED
from simshuffle.studies.calibrate.text import FRAGMENT, MODELS, fragments, record
from simshuffle.study.cell import Outcome
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Files, Meta, Outcomes, Request, Result, Study, Tables

if TYPE_CHECKING:
    from simshuffle.studies.calibrate.verb import CalibrationOptions

_CELL = "calibration"


class Calibration(Result):
    """What was read and fitted; tables as in `simshuffle.studies.calibrate.tables`."""

    @cached_property
    def parameters(self) -> list[Parameter]:
        """What was fitted, with intervals."""
        return _parameters(self)

    @property
    def measurements(self) -> pd.DataFrame:
        """What was read: columns of `MEASUREMENTS`."""
        return self.tables["measurements"]

    @property
    def residuals(self) -> pd.DataFrame:
        """Measured and fitted values: columns of `RESIDUALS`."""
        return self.tables["residuals"]

    @property
    def notes(self) -> list[str]:
        """What was left out or assumed, for people."""
        return list(self.meta["notes"])

    def fragments(self) -> dict[str, str]:
        """What scenarios include, by the path in the folder; see
        `simshuffle.studies.calibrate.text.fragments`."""
        return fragments(self.parameters)

    def to_yaml(self) -> str:
        """The fragment for a scenario. Of several models, the step times are left out; see
        `fragments`."""
        return self.fragments()[FRAGMENT]


def request(options: CalibrationOptions) -> Request[CalibrationCell]:
    """What is asked: the fit of one measurement file or several.

    Raises:
        InputError: a file cannot be read, or an option is not valid.
    """
    check(options)
    cell = CalibrationCell(tuple(sources(options.files, options.ranks, options.hosts)), options)
    asked = {"measured": cell.digests, "settings": cell.settings}
    return Request(Path(cell.sources[0].name).stem, cell, {}, asked)


class Says(TypedDict):
    """What ``meta.json`` holds for texts."""

    notes: list[str]
    measured: dict[str, str]


def _parameters(of: Result | Outcome) -> list[Parameter]:
    return parameters_of(of.tables["parameters"])


def _of_models(cell: CalibrationCell, outcomes: Outcomes) -> Files:
    """The fragments of single models."""
    found = fragments(_parameters(outcomes[_CELL]))
    return {Path(name).name: of.encode() for name, of in found.items() if name != FRAGMENT}


def _json(result: Result) -> dict[str, Any]:
    """Parameters and notes; quantities as text with units."""
    found = [
        {**record(p).model_dump(mode="json"), "rows": p.rows, "in_scenario": p.usable}
        for p in _parameters(result)
    ]
    return {"parameters": found, "notes": result.meta["notes"]}


def _figures(result: Result) -> dict[str, Chart]:
    return {"residuals": residuals_chart(result.tables["residuals"])}


def _faults(result: Result) -> Iterator[Problem]:
    """Points without a place, and intervals and ranges with one end."""
    table = result.tables["parameters"]
    number = table["number"]
    points = number.map(number.value_counts())
    ends = table[["low", "high"]].isna().sum(axis=1)
    wrong = table["place"].isna() & (points > 1)
    wrong |= ends.eq(1) | (ends.groupby(number).transform("nunique") > 1)
    for name in QUANTITIES:
        low, high = table[f"{name}_low"], table[f"{name}_high"]
        wrong |= (low > high) | (low.isna() != high.isna())
    if wrong.any():
        rule = "must have a place for every point, and both ends of intervals and ranges or none"
        yield Problem("parameters.csv", rule, f"row {int(wrong.argmax()) + 1}", REMEDY)


def _compared(result: Result) -> Tables:
    """Every parameter with its interval, and its residual."""
    found = result.tables["parameters"]
    place = found["place"].map(lambda at: "" if pd.isna(at) else f"{at:g}")
    rows = found.assign(place=place).set_index(["key", "model", "place"])
    return {"parameters": rows[["value", "low", "high", "residual"]]}


def again(folder: Path, meta: Meta) -> Request[CalibrationCell]:
    """No request: the folder has digests of the files that were read, not the files.

    Raises:
        InputError: always; it names them.
    """
    files = ", ".join(meta["measured"])
    rule = "must hold the files that were read, and a calibration has their digests alone"
    remedy = f"Calibrate {files} again, and simshuffle compare the two folders."
    refuse("", rule, "calibration", remedy, str(folder))


STUDY: Study[CalibrationCell] = Study(
    kind="calibration",
    verb="machine calibrate",
    stages=(lambda cell, outcomes: {_CELL: cell},),
    collect=lambda cell, outcomes: outcomes[_CELL].tables,
    stored=STORED,
    texts={FRAGMENT: lambda result: fragments(_parameters(result))[FRAGMENT]},
    files_in={MODELS: _of_models},
    figures=_figures,
    compared=_compared,
    one_figure=True,
    parts=lambda result: text.parts(_parameters(result), result.meta["notes"]),
    as_json=_json,
    facts=lambda cell, outcomes, tables: {"notes": outcomes[_CELL].values["notes"]},
    says=Says,
    faults=_faults,
    again=f"{__name__}:again",
    versions=("numpy", "scipy", "pandas"),
    result=Calibration,
)
