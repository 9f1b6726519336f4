"""Show 90 % intervals of runs in words, tables and figures, from the plain values that a result
stores (`simshuffle.job.uncertainty.report.plain`); and say where there are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NotRequired

import pandas as pd
from pydantic import Field
from rich.table import Table
from typing_extensions import TypedDict

from simshuffle.report.chart import Look
from simshuffle.report.columns import LARGEST
from simshuffle.report.console import new_table
from simshuffle.spec.units import Dimension, readable

Plain = Mapping[str, Any]
_Positive = Annotated[float, Field(gt=0, le=LARGEST)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Factors = Annotated[list[_Positive], Field(min_length=2, max_length=2)]


class _OfRun(TypedDict):
    ranks: Annotated[int, Field(ge=1)]
    seconds: _Positive
    low: _Positive
    high: _Positive
    law: str
    inputs: _Factors
    model: _Factors
    chance: _Factors


class _Hang(TypedDict):
    key: str
    kind: str
    value: str
    low: _Positive
    high: _Positive
    first: _Share
    total: _Share
    width: _Share
    measured_by: str


class _Odds(TypedDict):
    first: str
    second: str
    share: _Share
    key: NotRequired[str]
    value: NotRequired[str]
    flips_at: NotRequired[str]


class Intervals(TypedDict):
    """The intervals in ``meta.json``, as `simshuffle.job.uncertainty.report.plain` makes them."""

    runs: Annotated[dict[str, _OfRun], Field(min_length=1)]
    hangs: dict[str, list[_Hang]]
    odds: list[_Odds]


class ModelError(TypedDict):
    """The best point of an oracle in ``meta.json``, and how sure it is that it is faster than the
    second one, if there is one.
    """

    strategy: str
    law: str
    iteration_s: _Positive
    low_s: _Positive
    high_s: _Positive
    second: NotRequired[str]
    shared: NotRequired[bool]
    faster: NotRequired[_Share]


NOTABLE = 0.05
"""Share of the inputs' variance from which on an input is named."""
SURE = 0.995
"""Share of draws from which on an order is called sure."""
LITTLE = 0.01
"""Share of a prediction by which an interval must shrink for it to be said."""
NONE = "errors of inputs and model are in no interval (--interval adds them)"
"""What is said of numbers that have none."""
NONE_COMPARED = "no interval: run with --interval"
"""The same of results that are compared."""
NONE_OF_TIMES = (
    "Errors of inputs and model are in no interval of these times: run --interval of the same"
    " scenario gives that of an epoch."
)
"""The same of times beside those of a run's epochs."""
OVER_SEEDS = "ranges are over seeds alone, without errors of inputs and model"
"""The same of what is compared on the same bytes and machine."""
OVERLAP = (
    "Intervals that overlap are no tie: errors that A and B share are in both. How sure an order is"
    " says one run of both with --interval."
)
"""What is said beside intervals of two results."""
WHISKER = Look("90 % interval\n(inputs, model, chance)", "#555555", size=7.0, width=0.9)
"""How figures show them, and what the legend says of them."""
LOW, HIGH = "low_90", "high_90"
"""Columns of a table that has their ends."""
Ends = Mapping[str, tuple[float, float]]
"""The ends of the last epoch's interval (s), by run."""


def interval_ends(stored: Plain | None) -> dict[str, tuple[float, float]]:
    """Return the ends of the interval of the last epoch of every run (s); {} where there are
    none.
    """
    runs = {} if stored is None else stored["runs"]
    return {run: (interval["low"], interval["high"]) for run, interval in runs.items()}


def add_interval_ends(rows: pd.DataFrame, ends_of_run: Ends, run: str = "run") -> pd.DataFrame:
    """Return rows of last epochs with the columns `LOW` and `HIGH` (s), by the name in the column
    ``run``; NaN where there is no interval, or where several rows have one name.
    """
    is_unique = ~rows[run].duplicated(keep=False)
    names = rows[run].astype(str).where(is_unique)
    low, high = (
        names.map({name: pair[end_index] for name, pair in ends_of_run.items()})
        for end_index in (0, 1)
    )
    return rows.assign(**{LOW: low.astype(float), HIGH: high.astype(float)})


def frame(stored: Plain) -> pd.DataFrame:
    """Return the epoch and the ends of its interval (s), with runs as index."""
    columns = ("seconds", "low", "high")
    rows = {run: [interval[name] for name in columns] for run, interval in stored["runs"].items()}
    return pd.DataFrame.from_dict(rows, "index", columns=columns).rename_axis("run")


def intervals_side_by_side(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that both have, from `frame`: columns run, a, a_low, a_high, b, b_low, b_high
    (s), and whether the two intervals overlap.
    """
    shared = a.index[a.index.isin(b.index)]
    frames = {"a": a.loc[shared], "b": b.loc[shared]}
    names = {"seconds": "{}", "low": "{}_low", "high": "{}_high"}
    rows = pd.DataFrame(
        {
            text.format(letter): frames[letter][name]
            for letter in "ab"
            for name, text in names.items()
        },
        shared,
    )
    overlap = (rows["a_low"] <= rows["b_high"]) & (rows["b_low"] <= rows["a_high"])
    return rows.assign(overlap=overlap).reset_index()


def range_of(stored: Plain, run: str) -> str:
    """Return the ends of the interval of a run, for a table; '-' where it has none."""
    interval = stored["runs"].get(run)
    return _range(interval["low"], interval["high"]) if interval else "-"


def side_by_side_table(rows: pd.DataFrame) -> Table:
    """Return the rows of `intervals_side_by_side` as a table for people."""
    heads = ["A", "90 % of A", "B", "90 % of B"]
    cells = (
        [
            row["run"],
            _seconds(row["a"]),
            _range(row["a_low"], row["a_high"]),
            _seconds(row["b"]),
            _range(row["b_low"], row["b_high"]),
            "yes" if row["overlap"] else "no",
        ]
        for row in rows.to_dict("records")
    )
    return new_table("Epochs and their 90 % intervals", ["run"], heads, cells, ["overlap"])


def table(found: Plain) -> Table:
    """A row for each run: its epoch, the interval, and what each part alone gives."""
    heads = ["epoch", "90 % interval", "inputs", "model", "chance"]
    rows = (
        [
            run,
            _seconds(interval["seconds"]),
            _range(interval["low"], interval["high"]),
            *(_factor_range(interval[name]) for name in heads[2:]),
        ]
        for run, interval in found["runs"].items()
    )
    return new_table("90 % intervals", ["run"], heads, rows)


def odds_table(found: Plain) -> Table | None:
    """Return how sure the order of runs is, a row for each pair; None where no pair is known."""
    if not found["odds"]:
        return None
    rows = []
    for odds in found["odds"]:
        flips = "flips_at" in odds
        change = f"{odds['key']} {odds['flips_at']} (now {odds['value']})" if flips else "-"
        share = odds["share"]
        sure = "all" if share > SURE else f"{100 * share:.0f} %"
        rows.append([odds["first"], odds["second"], sure, change])
    names = ["run", "faster than"]
    return new_table("How sure the order is", names, ["in draws"], rows, ["is not, at"])


def hangs_table(found: Plain) -> Table | None:
    """Return what the width of each interval hangs on, and what measures it; None for nothing."""
    rows = [
        [run, hang["key"], f"{100 * hang['total']:.0f} %", hang["kind"], hang["measured_by"]]
        for run, hangs in found["hangs"].items()
        for hang in hangs
        if _is_named(hang)
    ]
    if not rows:
        return None
    title, texts = "What the intervals hang on", ["is", "measured by"]
    return new_table(title, ["run", "input"], ["share"], rows, texts)


def details(found: Plain) -> list[Table]:
    """Return all tables of intervals: what makes them, how sure orders are, what they hang on."""
    tables = (table(found), odds_table(found), hangs_table(found))
    return [each for each in tables if each is not None]


def measure_next(found: Plain) -> Iterator[str]:
    """Yield a line: the input whose measurement shrinks an interval most, of the runs on the most
    ranks; or that none does."""
    most = max(run["ranks"] for run in found["runs"].values())
    gains = [
        (_half_width(found["runs"][run]) * (1 - hangs[0]["width"]), run, hangs[0])
        for run, hangs in found["hangs"].items()
        if found["runs"][run]["ranks"] == most and hangs and _is_named(hangs[0])
    ]
    if not gains or max(gain for gain, *_ in gains) < LITTLE:
        yield "No measurement of a single input shrinks an interval notably."
        return
    gain, run, first = max(gains, key=lambda each: each[0])
    half = _half_width(found["runs"][run])
    yield (
        f"Measure next: {first['key']} ({first['measured_by']}); the interval of {run} shrinks from"
        f" ±{100 * half:.0f} % to ±{100 * (half - gain):.0f} %."
    )


def _is_named(hang: Plain) -> bool:
    return bool(hang["total"] >= NOTABLE)


def _half_width(run: Plain) -> float:
    """Half the interval of a run, as a share of its epoch."""
    return float((run["high"] - run["low"]) / 2 / run["seconds"])


def _range(low: float, high: float) -> str:
    return f"{_seconds(low)} – {_seconds(high)}"


def _factor_range(factors: Any) -> str:
    # 0.0 is added, as a rounded -0.2 is a minus nothing
    low, high = (round(100 * (end - 1)) + 0.0 for end in factors)
    return f"{low:+.0f} … {high:+.0f} %"


def _seconds(value: float) -> str:
    return readable(value, Dimension.SECONDS, 3)
