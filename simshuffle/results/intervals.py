"""90 % intervals of runs in words and as a table, from the plain values that a result keeps
(`simshuffle.uncertainty.report.plain`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from simshuffle.results.console import new_table
from simshuffle.spec.units import Dimension, readable

Plain = Mapping[str, Any]
NOTABLE = 0.05
"""Share of the inputs' variance from which on an input is named."""
SURE = 0.995
"""Share of draws from which on an order is called sure."""
LITTLE = 0.01
"""Share of a prediction by which an interval must shrink for it to be said."""
NONE = "errors of inputs and model are in no interval (--interval adds them)"
"""What is said of numbers that have none."""


def table(found: Plain) -> Table:
    """A row for each run: its epoch, the interval, and what each part alone gives."""
    heads = ["epoch", "90 % interval", "inputs", "model", "chance"]
    out = new_table("90 % intervals", ["run"], numbers=heads)
    for run, of in found["runs"].items():
        ends = f"{_seconds(of['low'])} – {_seconds(of['high'])}"
        parts = (_part(of[name]) for name in ("inputs", "model", "chance"))
        out.add_row(run, _seconds(of["seconds"]), ends, *parts)
    return out


def sentences(found: Plain) -> Iterator[str]:
    """Of the runs on the most ranks, how sure their order is, and what the width of the fastest
    one's interval, and of the widest one, hangs on and what would shrink it."""
    most = max(of["ranks"] for of in found["runs"].values())
    runs = {run: of for run, of in found["runs"].items() if of["ranks"] == most}
    fastest = min(runs, key=lambda run: runs[run]["seconds"])
    for odds in found["odds"]:
        if fastest in (odds["first"], odds["second"]):
            yield _order(odds)
    of = runs[fastest]
    yield (
        f"The model's part of the interval of {fastest} is what laws of {of['law']} missed on"
        " machines that were measured, those of as many ranks most of all."
    )
    told = [run for run in runs if run in found["hangs"]]
    widest = max(told, key=lambda run: runs[run]["high"] / runs[run]["low"])
    for run in dict.fromkeys((fastest, widest)):
        yield _hanging(run, runs[run], found["hangs"][run])


def _hanging(run: str, of: Plain, hangs: Any) -> str:
    """What the width of a run's interval hangs on, and what measuring the first input gains."""
    named = [each for each in hangs if each["total"] >= NOTABLE]
    if not named:
        return f"No input without a measurement moves {run}."
    listed = [f"{each['key']} ({each['kind']}, {each['total']:.0%})" for each in named[:3]]
    first = named[0]
    half = (of["high"] - of["low"]) / 2 / of["seconds"]
    gain = half * (1 - first["width"])
    said = f"Of what inputs do to {run}, most hangs on {', '.join(listed)}"
    if gain < LITTLE:
        return f"{said}; that is little beside the rest, so measuring it gains nothing."
    return (
        f"{said}; measuring {first['key']} shrinks the interval from ±{half:.0%} to"
        f" ±{half - gain:.0%}: {first['measured_by']}."
    )


def _order(odds: Plain) -> str:
    share = odds["share"]
    said = f"{odds['first']} is faster than {odds['second']} in "
    said += "all draws" if share > SURE else f"{share:.0%} of the draws"
    if "flips_at" not in odds:
        return f"{said}; no input within 32 times its value changes that."
    return f"{said}; at a {odds['key']} of {odds['flips_at']} ({odds['value']} now) it is not."


def _part(ends: Any) -> str:
    low, high = (100 * (end - 1) for end in ends)
    return f"{low:+.0f} … {high:+.0f} %"


def _seconds(value: float) -> str:
    return readable(value, Dimension.SECONDS, 3)
