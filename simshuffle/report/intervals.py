"""Show 90 % intervals of runs in words, tables and figures, from the plain values that
a result stores (`simshuffle.job.uncertainty.report.plain`); and say where there are
none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    seconds: _Positive  # the last epoch as predicted
    low: _Positive  # s, ends of its 90 % interval
    high: _Positive
    law: str  # in words: the law whose error the model's part is
    # low and high of the factors on the epoch that each part alone gives
    inputs: _Factors
    model: _Factors
    chance: _Factors
    # with measured runs: the middle of the interval, and its ends without them (s)
    centre: NotRequired[_Positive]
    before: NotRequired[_Factors]


class _Measured(TypedDict):
    run: str  # with its ranks, such as 'local @64'
    ranks: Annotated[int, Field(ge=1)]
    predicted_s: _Positive  # an epoch
    measured_s: _Positive
    low: _Positive  # s, ends of the 90 % interval without any measured run
    high: _Positive
    is_expected: bool  # whether the measured epoch lies within
    fitted: bool  # whether a value of the scenario was fitted to it
    # predicted and measured seconds of an epoch, by label
    parts: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]]
    misfit: str  # clause on where it does not fit, and what to look at; '' if it does


class _Hang(TypedDict):
    key: str  # dotted key of an input of the scenario
    kind: str  # where its value is from
    value: str  # with its unit
    low: _Positive  # ends of its range, as factors on its value
    high: _Positive
    first: _Share  # of the variance that it makes alone
    total: _Share  # of the variance that it makes alone and together with others
    width: _Share  # of the interval if the input was measured, over that of now
    measured_by: str  # the command or benchmark that measures it


class _Odds(TypedDict):
    first: str  # name of a run
    second: str
    share: _Share  # of the draws in which the first run is faster
    # the input whose change turns the order: its value now, and the one that does;
    # missing where no input does
    key: NotRequired[str]
    value: NotRequired[str]
    flips_at: NotRequired[str]


class Intervals(TypedDict):
    """The intervals in ``meta.json``, as `simshuffle.job.uncertainty.report.plain`
    makes them.
    """

    runs: Annotated[dict[str, _OfRun], Field(min_length=1)]
    hangs: dict[str, list[_Hang]]
    odds: list[_Odds]
    measured: NotRequired[list[_Measured]]


class ModelError(TypedDict):
    """The best point of an oracle in ``meta.json``, and how sure it is that it is
    faster than the second one, if there is one.
    """

    strategy: str
    law: str
    iteration_s: _Positive
    low_s: _Positive
    high_s: _Positive
    second: NotRequired[str]
    shared: NotRequired[bool]
    faster: NotRequired[_Share]


MIN_NOTABLE_SHARE = 0.05
"""Share of the inputs' variance from which on an input is named."""
MIN_SURE_SHARE = 0.995
"""Share of draws from which on an order is called sure."""
MIN_SHRINKAGE = 0.01
"""Share of a prediction by which half an interval must shrink for it to be said."""
NO_INTERVALS_TO_COMPARE = "no interval: run with --interval"
"""Phrase on numbers without an interval, where results are compared."""
ERRORS_LEFT_OUT = "errors of inputs and laws (simshuffle run --interval)"
"""Phrase on what to ask next where times have no interval."""
NOTHING_NARROWS = "no input, as none alone narrows an interval notably"
"""Phrase on what to measure next where no measurement helps."""
OVERLAP = "both results; A and B share errors, so intervals that overlap are no tie."
"""What a comparison of results with intervals rests on."""
COMPARE_NEXT = "how sure the order is (A and B in one simshuffle run --interval)."
"""What to ask next after a comparison."""
WITH_MEASURED = "with yours"
"""Heading of the middle of an interval that measured runs have moved."""
WHISKER = Look("90 % interval\n(inputs, model, chance)", "#555555", size=7.0, width=0.9)
"""How figures show them, and what the legend says of them."""
LOW, HIGH, CENTRE = "low_90", "high_90", "centre_90"
"""Columns of a table that has their ends, and the middle that measured runs moved."""
MIDDLE = Look("", "#555555", "o", size=2.2)
"""How figures show that middle."""
Ends = Mapping[str, tuple[float, ...]]
"""The ends of the last epoch's interval (s), by run; with measured runs its middle, too."""


def interval_ends(stored: Plain | None) -> dict[str, tuple[float, ...]]:
    """Return the ends of the interval of the last epoch of every run (s), and its middle
    where measured runs moved it; {} where there are none.
    """
    runs = {} if stored is None else stored["runs"]
    names = ("low", "high", "centre")
    return {
        run: tuple(interval[name] for name in names if name in interval)
        for run, interval in runs.items()
    }


def add_interval_ends(
    rows: pd.DataFrame, ends_of_run: Ends, run: str = "run"
) -> pd.DataFrame:
    """Return rows of last epochs with the columns `LOW` and `HIGH` (s), and `CENTRE` if
    measured runs moved the middle of any.

    ``run`` is the column of names. NaN where there is no interval, or where several
    rows have one name.
    """
    is_unique = ~rows[run].duplicated(keep=False)
    names = rows[run].astype(str).where(is_unique)
    num_columns = 2 if all(len(ends) == 2 for ends in ends_of_run.values()) else 3
    columns = {
        column: names.map(
            {name: ends[k] for name, ends in ends_of_run.items() if len(ends) > k}
        ).astype(float)
        for k, column in enumerate((LOW, HIGH, CENTRE)[:num_columns])
    }
    return rows.assign(**columns)


def frame(stored: Plain) -> pd.DataFrame:
    """Return seconds, low and high of the last epoch's interval (s), with runs as
    index.
    """
    columns = ("seconds", "low", "high")
    rows = {
        run: [interval[name] for name in columns]
        for run, interval in stored["runs"].items()
    }
    return pd.DataFrame.from_dict(rows, "index", columns=columns).rename_axis("run")


def intervals_side_by_side(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that both tables of `frame` have, in the order of ``a``.

    Columns run, a, a_low, a_high, b, b_low, b_high (s), and ``overlap``: whether the
    two intervals share a point. Runs that only one table has are left out.
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


def measured_count(stored: Plain | None) -> int:
    """Return how many measured runs the intervals of a result take in."""
    return 0 if stored is None else len(stored.get("measured", ()))


def whisker(num_measured: int) -> Look:
    """Return the look of intervals that take in as many measured runs."""
    if not num_measured:
        return WHISKER
    runs = "run" if num_measured == 1 else "runs"
    label = f"{WHISKER.label[:-1]},\nand {num_measured} measured {runs}; dot: middle)"
    return replace(WHISKER, label=label)


def centre_of(stored: Plain, run: str) -> str:
    """Return the middle of the interval of a run that measured runs have moved, for a
    table; '-' where it has none.
    """
    interval = stored["runs"].get(run, {})
    return _seconds(interval["centre"]) if "centre" in interval else "-"


def describe_measured(stored: Plain) -> list[str]:
    """Return what measured runs say of the fastest run on the most ranks, without '.';
    [] without measured runs.
    """
    measured = stored.get("measured", [])
    moved = {run: facts for run, facts in stored["runs"].items() if "centre" in facts}
    if not measured or not moved:
        return []
    max_ranks = max(facts["ranks"] for facts in moved.values())
    of_most_ranks = [run for run, facts in moved.items() if facts["ranks"] == max_ranks]
    run = min(of_most_ranks, key=lambda name: moved[name]["seconds"])
    facts = moved[run]
    yours = "your run" if len(measured) == 1 else f"your {len(measured)} runs"
    return [
        f"{yours} took {_errors_text(measured)}, so {run} is {_seconds(facts['centre'])}, not"
        f" {_seconds(facts['seconds'])}"
    ]


def describe_misfits(stored: Plain) -> list[str]:
    """Return a clause on the measured run that fits worst, without '.'; [] if all fit."""
    misfit_rows = [row for row in stored.get("measured", []) if not row["is_expected"]]
    if not misfit_rows:
        return []
    ratios = [row["measured_s"] / row["predicted_s"] for row in misfit_rows]
    ratio = max(ratios, key=lambda ratio: abs(math.log(ratio)))
    worst = misfit_rows[ratios.index(ratio)]
    max_ranks = max(facts["ranks"] for facts in stored["runs"].values())
    trust = f" before you trust {max_ranks:,} ranks" * ("look at" in worst["misfit"])
    count = f", the worst of {len(ratios)}" * (len(ratios) > 1)
    return [
        f"why your run {worst['run']} takes {ratio:.2g} times as long as predicted{count}:"
        f" {worst['misfit']}{trust}"
    ]


def _errors_text(measured: Sequence[Plain]) -> str:
    """Return in words by how much measured runs took longer than predicted: the mean
    over runs, or the least and the most where they differ by over 5 %.
    """
    logs = [math.log(row["measured_s"] / row["predicted_s"]) for row in measured]
    if max(logs) - min(logs) > math.log(1.05):
        least, most = (_percent_longer(log) for log in (min(logs), max(logs)))
        if least.split(" % ")[1] == most.split(" % ")[1]:
            least = least.split(" ")[0]
        return f"{least} to {most} than predicted"
    mean = sum(logs) / len(logs)
    if abs(math.expm1(mean)) < 0.005:
        return "as long as predicted"
    return f"{_percent_longer(mean)} than predicted"


def _percent_longer(log: float) -> str:
    """Return a natural logarithm of a factor as '8 % longer' or '3 % less'."""
    percent = 100 * math.expm1(log)
    return f"{abs(percent):.0f} % {'longer' if percent >= 0 else 'less'}"


def measured_table(stored: Plain) -> Table | None:
    """Return the measured runs beside their predictions; None without any.

    The interval is that without measured runs.
    """
    rows = [
        [
            row["run"],
            _seconds(row["measured_s"]),
            _seconds(row["predicted_s"]),
            format_range(row["low"], row["high"]),
            f"{100 * (row['measured_s'] / row['predicted_s'] - 1):+.0f} %",
            "yes" if row["is_expected"] else "no",
        ]
        for row in stored.get("measured", [])
    ]
    if not rows:
        return None
    title = "Measured runs and what was predicted of them, an epoch"
    heads = ["measured", "predicted", "90 %", "longer by"]
    return new_table(title, ["run"], heads, rows, ["as expected"])


def range_of(stored: Plain, run: str) -> str:
    """Return the ends of the interval of a run, for a table; '-' where it has none."""
    interval = stored["runs"].get(run)
    return format_range(interval["low"], interval["high"]) if interval else "-"


def side_by_side_table(rows: pd.DataFrame) -> Table:
    """Return the rows of `intervals_side_by_side` as a table for people."""
    heads = ["A", "90 % of A", "B", "90 % of B"]
    cells = (
        [
            row["run"],
            _seconds(row["a"]),
            format_range(row["a_low"], row["a_high"]),
            _seconds(row["b"]),
            format_range(row["b_low"], row["b_high"]),
            "yes" if row["overlap"] else "no",
        ]
        for row in rows.to_dict("records")
    )
    return new_table(
        "Epochs and their 90 % intervals", ["run"], heads, cells, ["overlap"]
    )


def table(stored: Plain) -> Table:
    """Return a table with a row for each run: its epoch, the interval, and its causes.

    Each cause's range is the change of the epoch that it alone makes, in percent.
    """
    causes = ["inputs", "model", "chance"]
    has_measured = measured_count(stored) > 0
    heads = ["epoch", *[WITH_MEASURED] * has_measured, "90 % interval", *causes]
    rows = (
        [
            run,
            _seconds(interval["seconds"]),
            *[centre_of(stored, run)] * has_measured,
            format_range(interval["low"], interval["high"]),
            *(_factor_range(interval[name]) for name in causes),
        ]
        for run, interval in stored["runs"].items()
    )
    title = "90 % intervals"
    if has_measured:
        title += "; inputs, model and chance without measured runs"
    return new_table(title, ["run"], heads, rows)


def odds_table(stored: Plain) -> Table | None:
    """Return how sure the order of runs is, a row for each pair; None where no pair is
    known.

    The share of draws is 'all' above `MIN_SURE_SHARE`. The last column is the input
    that turns the order, and the value at which it does; '-' where none does.
    """
    if not stored["odds"]:
        return None
    rows = []
    for odds in stored["odds"]:
        flips = "flips_at" in odds
        change = (
            f"{odds['key']} {odds['flips_at']} (now {odds['value']})" if flips else "-"
        )
        share = odds["share"]
        sure = "all" if share > MIN_SURE_SHARE else f"{100 * share:.0f} %"
        rows.append([odds["first"], odds["second"], sure, change])
    names = ["run", "faster than"]
    return new_table(
        "How sure the order is", names, ["in draws"], rows, ["order turns at"]
    )


def hangs_table(stored: Plain) -> Table | None:
    """Return what each interval's width hangs on, and what measures it; None for
    nothing.

    Inputs below `MIN_NOTABLE_SHARE` are left out. The share is of the variance, with
    what an input makes together with others.
    """
    rows = [
        [
            run,
            hang["key"],
            f"{100 * hang['total']:.0f} %",
            hang["kind"],
            hang["measured_by"],
        ]
        for run, hangs in stored["hangs"].items()
        for hang in hangs
        if is_notable(hang)
    ]
    if not rows:
        return None
    title = "What the intervals depend on: shares of the part that inputs make"
    texts = ["is", "measured by"]
    return new_table(title, ["run", "input"], ["share"], rows, texts)


def details(stored: Plain) -> list[Table]:
    """Return the tables of intervals that there are: measured runs, intervals, orders,
    and inputs.
    """
    tables = (
        measured_table(stored),
        table(stored),
        odds_table(stored),
        hangs_table(stored),
    )
    return [interval_table for interval_table in tables if interval_table is not None]


def worth_table(stored: Plain) -> Table | None:
    """Return the measurements that are worth making for a run, the cheapest first, each
    with half the interval that is expected after it; None if none narrows it.
    """
    worth = stored.get("worth")
    if not worth or not worth["measurements"]:
        return None
    rows = [
        [row["what"], f"{row['host_hours']:.2g}", f"±{100 * row['then']:.0f} %"]
        for row in worth["measurements"]
    ]
    title = f"What narrows {worth['run']}, now ±{100 * worth['now']:.0f} %"
    return new_table(title, ["measurement"], ["host-hours", "narrows to"], rows)


def measure_next(stored: Plain) -> str:
    """Return which input's measurement shrinks an interval most, without '.', or ''.

    Only runs on the most ranks and their first inputs are considered, if notable; half
    an interval must shrink by at least `MIN_SHRINKAGE` of its prediction.
    """
    max_ranks = max(run["ranks"] for run in stored["runs"].values())
    gains = [
        (_half_width(stored["runs"][run]) * (1 - hangs[0]["width"]), run, hangs[0])
        for run, hangs in stored["hangs"].items()
        if stored["runs"][run]["ranks"] == max_ranks and hangs and is_notable(hangs[0])
    ]
    if not gains or max(gain for gain, *_ in gains) < MIN_SHRINKAGE:
        return ""
    gain, run, hang = max(gains, key=lambda gain_and_input: gain_and_input[0])
    half_width = _half_width(stored["runs"][run])
    return (
        f"{hang['key']} ({hang['measured_by']}), which narrows {run} from"
        f" ±{100 * half_width:.0f} % to ±{100 * (half_width - gain):.0f} %"
    )


def is_notable(hang: Plain) -> bool:
    """Return whether an input, alone or with others, causes `MIN_NOTABLE_SHARE` or more
    of the variance.
    """
    return bool(hang["total"] >= MIN_NOTABLE_SHARE)


def _half_width(run: Plain) -> float:
    """Return half the interval of a run, as a share of its middle if measured runs moved
    it, else of its epoch.
    """
    return float((run["high"] - run["low"]) / 2 / run.get("centre", run["seconds"]))


def format_range(low: float, high: float) -> str:
    """Return both ends (s) of an interval, each with its unit."""
    return f"{_seconds(low)} – {_seconds(high)}"


def _factor_range(factors: Any) -> str:
    """Return two factors as changes in whole percent: '-3 … +5 %'."""
    # 0.0 is added, as a rounded -0.2 is a minus nothing
    low, high = (round(100 * (end - 1)) + 0.0 for end in factors)
    return f"{low:+.0f} … {high:+.0f} %"


def _seconds(value: float) -> str:
    return readable(value, Dimension.SECONDS, 3)
