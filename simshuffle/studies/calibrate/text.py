"""A calibration on a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from simshuffle.results.console import new_table
from simshuffle.scenario.calibrated import shown as shown_place
from simshuffle.studies.calibrate.fragment import shown
from simshuffle.studies.calibrate.parameter import Parameter


def parts(parameters: Sequence[Parameter], notes: Sequence[str]) -> list[Table | str]:
    """Tables of what goes into a scenario and of what does not, and sentences on what was left out
    or assumed."""
    out: list[Table | str] = []
    usable = [p for p in parameters if p.usable]
    for model in sorted({p.model for p in usable}):
        title = f"Parameters for a scenario{f' with {model}' if model else ''}"
        out.append(_table(title, [p for p in usable if p.model == model]))
    if others := [p for p in parameters if not p.usable]:
        out.append(_table("Measured too; a scenario has no key for it", others))
    of_keys = [f"{p.key}: {p.note}" for p in usable if p.note]
    return [*out, *(f"- {note}" for note in dict.fromkeys([*of_keys, *notes]))]


def _table(title: str, parameters: list[Parameter]) -> Table:
    table = new_table(title)
    table.add_column("parameter", no_wrap=all(" " not in p.key for p in parameters))
    for name in ("value", "95 % interval"):
        table.add_column(name, justify="right")
    table.add_column("measured over")
    table.add_column("error", justify="right", no_wrap=True)
    for p in parameters:
        low, high = shown(p, p.low), shown(p, p.high)
        missing = "too few points" if p.rows and p.low is None else "-"
        ends = missing if p.low is None else f"{low} to {high}"
        if isinstance(p.value, tuple) and p.low is not None:
            ends = "see the file"
        over = ", ".join(_range(name, *ends_of) for name, ends_of in p.over.items())
        error = "-" if math.isnan(p.residual) else f"{p.residual:.1%}"
        table.add_row(p.key, shown(p, p.value), ends, over, error)
    return table


def _range(name: str, low: float, high: float) -> str:
    ends = dict.fromkeys(shown_place(name, end) for end in (low, high))
    return f"{name.replace('_', ' ')} {' to '.join(ends)}"
