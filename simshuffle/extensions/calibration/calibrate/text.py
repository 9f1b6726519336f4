"""A calibration as text: its tables on a terminal, and the YAML fragment that a scenario
includes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from rich.table import Table

from simshuffle.extensions.calibration.calibrate.findings import Parameter
from simshuffle.job.scenario.calibrated import QUANTITIES, Calibrated
from simshuffle.job.scenario.calibrated import format_quantity as shown_place
from simshuffle.report.console import new_table
from simshuffle.spec.units import format_quantity, readable
from simshuffle.version import __version__

FRAGMENT = "calibration.yaml"
MODELS = "models"
"""Folder of what holds for one model only, where several were measured."""


def fragments(parameters: Sequence[Parameter]) -> dict[str, str]:
    """All fragments by the path in the folder: `FRAGMENT`, and where several models were measured,
    one more in `MODELS` with the step times of each."""
    models = sorted({p.model for p in parameters if p.usable and p.model})
    if len(models) < 2:
        return {FRAGMENT: as_yaml(parameters)}
    out = {FRAGMENT: as_yaml([p for p in parameters if not (p.usable and p.model)])}
    for model in models:
        of = [p for p in parameters if p.usable and p.model == model]
        out[f"{MODELS}/{model}.yaml"] = as_yaml(of)
    return out


def as_yaml(parameters: Sequence[Parameter]) -> str:
    """The fragment: ``values`` by dotted key, and in ``calibrated`` what is known of each. What no
    scenario has a key for is a comment."""
    usable = [p for p in parameters if p.usable]
    document = {
        "values": {p.key: p.plain(p.value) for p in usable},
        "calibrated": [
            record(p).model_dump(mode="json", exclude_none=True, exclude_defaults=True)
            | {"confidence": 0.95}
            for p in usable
        ],
    }
    others = [
        f"#   {p.key}: {shown(p, p.value)}{f' ({p.note})' if p.note else ''}"
        for p in parameters
        if not p.usable
    ]
    if others:
        others.insert(0, "# Measured too, but a scenario has no key for it:")
    head = (
        f"# Written by simshuffle {__version__} calibrate. Name it under 'include:' in a scenario"
        " (docs/calibrate.md)."
    )
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=130)
    return "\n".join([head, *others, body])


def record(parameter: Parameter) -> Calibrated:
    """What the scenario keeps of a parameter."""
    return Calibrated(
        key=parameter.key,
        value=parameter.plain(parameter.value),
        low=parameter.plain(parameter.low),
        high=parameter.plain(parameter.high),
        over={name: [_place(name, end) for end in ends] for name, ends in parameter.over.items()},
        residual=None if math.isnan(parameter.residual) else float(f"{parameter.residual:.3g}"),
        source=parameter.source,
        model=parameter.model,
        note=parameter.note,
    )


def _place(name: str, value: float) -> Any:
    if dimension := QUANTITIES[name]:
        return format_quantity(value, dimension)
    return int(value) if value.is_integer() else value


def shown(parameter: Parameter, value: Any) -> str:
    """A value for people, with its unit; the points of a curve from the first to the last."""
    if isinstance(value, tuple):
        return " … ".join(shown(parameter, y) for y in (value[0][1], value[-1][1]))
    return readable(value, parameter.dimension, 4) if parameter.dimension else f"{value:.4g}"


def parts(parameters: Sequence[Parameter], notes: Sequence[str]) -> Iterator[Table | str]:
    """Yield tables of what goes into a scenario, and how many notes -v adds."""
    yield from _for_scenarios(parameters, places=False)
    if said := _notes(parameters, notes):
        yield f"{len(said)} notes on what was left out or assumed: -v prints them."


def details(parameters: Sequence[Parameter], notes: Sequence[str]) -> Iterator[Table | str]:
    """Yield the tables with where each value was measured, what no scenario has a key for, and
    sentences on what was left out or assumed."""
    yield from _for_scenarios(parameters, places=True)
    if others := [p for p in parameters if not p.usable]:
        yield _table("Measured too; a scenario has no key for it", others)
    yield from _notes(parameters, notes)


def _notes(parameters: Sequence[Parameter], notes: Sequence[str]) -> list[str]:
    """Return the notes on parameters of a scenario and on the whole, each once."""
    of_keys = [f"{p.key}: {p.note}" for p in parameters if p.usable and p.note]
    return [f"- {note}" for note in dict.fromkeys([*of_keys, *notes])]


def _for_scenarios(parameters: Sequence[Parameter], *, places: bool) -> Iterator[Table]:
    """Yield a table for each model of what goes into a scenario."""
    usable = [p for p in parameters if p.usable]
    for model in sorted({p.model for p in usable}):
        title = f"Parameters for a scenario{f' with {model}' if model else ''}"
        yield _table(title, [p for p in usable if p.model == model], places=places)


def _table(title: str, parameters: list[Parameter], *, places: bool = True) -> Table:
    """Return a row for each parameter; with where it was measured if ``places``."""
    table = new_table(title)
    table.add_column("parameter", no_wrap=all(" " not in p.key for p in parameters))
    for name in ("value", "95 % interval"):
        table.add_column(name, justify="right")
    if places:
        table.add_column("measured over")
    table.add_column("error", justify="right", no_wrap=True)
    for p in parameters:
        if p.low is None:
            ends = "too few points" if p.rows else "-"
        else:
            curve = isinstance(p.value, tuple)
            ends = "see the file" if curve else f"{shown(p, p.low)} to {shown(p, p.high)}"
        over = [", ".join(_range(name, *ends_of) for name, ends_of in p.over.items())]
        error = "-" if math.isnan(p.residual) else f"{p.residual:.1%}"
        table.add_row(p.key, shown(p, p.value), ends, *(over if places else ()), error)
    return table


def _range(name: str, low: float, high: float) -> str:
    ends = dict.fromkeys(shown_place(name, end) for end in (low, high))
    return f"{name.replace('_', ' ')} {' to '.join(ends)}"
