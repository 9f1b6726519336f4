"""What is said of a month, from its tables alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from simshuffle.extensions.planning.month.tables import (
    CAUSES,
    INPUTS,
    MEANINGS,
    PARTS,
    PERIODS,
    WHICH,
    in_words,
)
from simshuffle.study.study import Result

FEW = 100
"""Interruptions of all months together from which on the best period can be told to a tenth."""
HAIR = 0.001
"""Shares of useful time that differ by less than this are equal."""
FEW_WAITS = 0.05
"""The share of an epoch from which on waiting for samples is worth a word."""
NEAR = 0.1
"""Periods that differ by less than this share agree."""


def verdict(result: Result) -> Iterator[str]:
    """Three sentences of the run that is best, or the only one."""
    days = result.tables["days"]
    means = days.groupby("run", sort=False)["goodput"].mean()
    run = str(means.idxmax())
    own = days[days["run"] == run]
    yield _goodput(result, run, len(means))
    yield _period(result, run, int(own["interruptions"].sum()))
    inputs = result.tables["inputs"].to_dict("records")
    of = next(row for row in inputs if row["run"] == run)
    waits = of["reads_share"]
    reads = f", {waits:.0%} of it waiting for samples," if waits > FEW_WAITS else ""
    epoch = f"an epoch of {in_words(of['steady_s'])}{reads}"
    save, restore, restart = (in_words(of[f"{name}_s"]) for name in ("save", "restore", "restart"))
    yield (
        f"Rests on {own['seed'].nunique()} drawn months, {epoch} simulated until it repeated"
        f" (epoch {of['simulated']:.0f}), and closed forms of what a save ({save}), a restore"
        f" ({restore}) and a restart ({restart}) take."
    )
    if of["loader"]:
        yield _data(of, own)


def _data(of: Mapping[Any, Any], days: pd.DataFrame) -> str:
    """What interruptions do to what is learnt from."""
    times = days["interruptions"].mean()
    if of["refused"] == 1:
        return f"{of['loader']} goes on after no interruption: the days above need another loader."
    again, lost = times * of["repeated"], times * of["lost"]
    return (
        f"Data: at an interruption {of['loader']} repeats {of['repeated']:.1%} of the data set and"
        f" loses {of['lost']:.1%} of the epoch, in the mean: {again:.3g} of the"
        f" {days['epochs'].mean():.4g} epochs of a month come again, {lost:.3g} are never seen."
    )


def _goodput(result: Result, run: str, runs: int) -> str:
    own = result.tables["days"]
    own = own[own["run"] == run]
    goodput = own["goodput"]
    low, high = goodput.quantile(0.05), goodput.quantile(0.95)
    named = f"{run}, the best of {runs} runs: " if runs > 1 else ""
    said = (
        f"{named}{goodput.mean():.2%} of {own['days'].mean():.4g} days are training that counts"
        f" (90 % of the months: {low:.2%} to {high:.2%})"
    )
    parts = result.derived["parts"]
    parts = parts[(parts["run"] == run) & (parts["part"] != MEANINGS["training"])]
    most = max(parts.to_dict("records"), key=lambda row: float(row["days"]))
    if not most["days"]:
        return f"{said}."
    return (
        f"{said}; {own['interruptions'].mean():.4g} interruptions, and the most goes to"
        f" {most['part']} ({most['share']:.2%})."
    )


def _period(result: Result, run: str, interruptions: int) -> str:
    periods = result.tables["periods"]
    of = {row["which"]: row for row in periods[periods["run"] == run].to_dict("records")}
    used = of["used"]
    said = f"Checkpoints after {in_words(used['period_s'])} of training give {used['goodput']:.2%}"
    if "best" not in of:
        return f"{said}; without failures, or with saves that take no time, no period is best."
    best, daly = of["best"], of["daly"]
    ratio = best["period_s"] / daly["period_s"]
    if interruptions < FEW:
        agree = f"and {interruptions} interruptions in all are too few to tell which is best"
    elif abs(ratio - 1) <= NEAR:
        agree = f"which agree within {NEAR:.0%}"
    elif abs(best["goodput"] - daly["goodput"]) <= HAIR:
        agree = f"which differ by {ratio - 1:+.0%} and give the same within {HAIR:.1%}"
    else:
        agree = f"which differ by {ratio - 1:+.0%}, as failures are not exponential or hosts lack"
    return (
        f"{said}; the best of the search is {in_words(best['period_s'])} ({best['goodput']:.2%}),"
        f" Daly's is {in_words(daly['period_s'])} ({daly['goodput']:.2%}), {agree}."
    )


def parts_shown(result: Result) -> Iterator[Any]:
    """Yield the table of where the days go."""
    names = _names(result)
    parts = result.derived["parts"]
    shown = parts[parts["days"] > 0]
    columns = (*names, "part", "days", "share", "low", "high")
    yield PARTS.listing(shown, "Where the days go", columns, names=len(names) + 1)


def details(result: Result) -> Iterator[Any]:
    """Yield the tables of periods, of inputs, and of interruptions by cause."""
    names = _names(result)
    periods = result.tables["periods"]
    periods = periods[periods["which"] != "grid"].assign(which=lambda of: of["which"].map(WHICH))
    columns = (*names, "which", "period_s", "goodput", "low", "high", "formula")
    title = "Training between two checkpoints"
    yield PERIODS.listing(periods, title, columns, names=len(names) + 1)
    columns = ("run", "hosts", "between_s", "period_s", "save_s", "stall_s", "restore_s")
    columns = (*columns, "reread_s", "steady_s", "reads_share")
    yield INPUTS.listing(result.tables["inputs"], "What the months rest on", columns)
    causes = result.tables["causes"]
    if len(causes):
        columns = (*names, "cause", "interruptions", "days")
        yield CAUSES.listing(causes, "Interruptions by cause", columns, names=len(names) + 1)


def _names(result: Result) -> tuple[str, ...]:
    """Return the columns that name a run; none where there is one run."""
    return ("run",) if result.tables["days"]["run"].nunique() > 1 else ()
