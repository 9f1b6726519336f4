"""The texts of a month, from its tables alone."""

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
    format_duration,
)
from simshuffle.study.study import Result
from simshuffle.study.verdict import Verdict

MIN_INTERRUPTIONS = 100
"""Interruptions of all months together from which on the best period can be told to a
tenth.
"""
EQUAL_GOODPUT = 0.001
"""Shares of useful time that differ by less than this are equal."""
NOTABLE_WAITS = 0.05
"""The share of an epoch from which on waiting for samples is worth a word."""
EQUAL_PERIODS = 0.1
"""Periods that differ by less than this share agree."""


def verdict(result: Result) -> Verdict:
    """Return the verdict on the run of the highest mean goodput.

    The answer is a sentence on its goodput, one on the period of its checkpoints, and
    one on data where the law of a loader is known.
    """
    days = result.tables["days"]
    means = days.groupby("run", sort=False)["goodput"].mean()
    run = str(means.idxmax())
    run_days = days[days["run"] == run]
    rows = result.tables["inputs"].to_dict("records")
    inputs = next(row for row in rows if row["run"] == run)
    waiting_share = inputs["reads_share"]
    waiting_text = (
        f" ({waiting_share:.0%} waiting for samples)"
        if waiting_share > NOTABLE_WAITS
        else ""
    )
    save, restore, restart, epoch = (
        format_duration(inputs[name])
        for name in ("save_s", "restore_s", "restart_s", "steady_s")
    )
    answer = [
        _describe_goodput(run_days, run, len(means)),
        _describe_period(result, run, int(run_days["interruptions"].sum())),
    ]
    if inputs["loader"]:
        answer.append(_describe_data_loss(inputs, run_days))
    return Verdict(
        answer,
        why=_describe_largest_loss(result, run),
        rests_on=(
            f"{run_days['seed'].nunique()} drawn months, a simulated epoch of"
            f" {epoch}{waiting_text}, and closed forms for a save ({save}), a restore ({restore})"
            f" and a restart ({restart})."
        ),
    )


def _describe_data_loss(inputs: Mapping[Any, Any], days: pd.DataFrame) -> str:
    """Return the sentence on the epochs that interruptions repeat and lose in a month.

    Where ``refused`` is 1 it says instead that the loader goes on after no
    interruption.

    Args:
        inputs: the row of table ``inputs`` of a run.
        days: the rows of table ``days`` of the same run.
    """
    mean_interruptions = days["interruptions"].mean()
    if inputs["refused"] == 1:
        return (
            f"{inputs['loader']} cannot go on after an interruption: these days"
            " need another loader."
        )
    repeated_epochs = mean_interruptions * inputs["repeated"]
    lost_epochs = mean_interruptions * inputs["lost"]
    return (
        f"Data: at an interruption {inputs['loader']} repeats {inputs['repeated']:.1%} of the data"
        f" set and loses {inputs['lost']:.1%} of the epoch, in the mean. Of the"
        f" {days['epochs'].mean():.4g} epochs of a month, {repeated_epochs:.3g} come again and"
        f" {lost_epochs:.3g} are never seen."
    )


def _describe_goodput(run_days: pd.DataFrame, run: str, num_runs: int) -> str:
    """Return the sentence on the goodput of a run, from its rows of table ``days``.

    With ``num_runs`` above 1 the run is named as the best.
    """
    run_prefix = f"{run}, the best of {num_runs} runs: " if num_runs > 1 else ""
    return (
        f"{run_prefix}{run_days['goodput'].mean():.2%} of {run_days['days'].mean():.4g} days are"
        " training that counts."
    )


def _describe_largest_loss(result: Result, run: str) -> str:
    """Return the sentence on what costs a run the most days; '' where all days are
    training.
    """
    days = result.tables["days"]
    interruptions = days[days["run"] == run]["interruptions"].mean()
    parts = result.derived["parts"]
    parts = parts[(parts["run"] == run) & (parts["part"] != MEANINGS["training"])]
    largest_part = max(parts.to_dict("records"), key=lambda row: float(row["days"]))
    if not largest_part["days"]:
        return ""
    return (
        f"with {interruptions:.4g} interruptions in the mean, the largest loss is"
        f" {largest_part['part']} ({largest_part['share']:.2%})."
    )


def _describe_period(result: Result, run: str, interruptions: int) -> str:
    """Return the sentence that compares the period of checkpoints in use with the best
    one and with Daly's.

    No period is compared where no host fails or saves stall nothing. Below
    `MIN_INTERRUPTIONS` interruptions, of all months together, no period is called best.
    """
    periods = result.tables["periods"]
    periods_by_name = {
        row["which"]: row for row in periods[periods["run"] == run].to_dict("records")
    }
    used_period = periods_by_name["used"]
    used_duration = format_duration(used_period["period_s"])
    sentence = f"Checkpoints after {used_duration} of training give {used_period['goodput']:.2%}"
    if "best" not in periods_by_name:
        return f"{sentence}; without failures, or with saves that take no time, no period is best."
    best_period = periods_by_name["best"]
    daly_period = periods_by_name["daly"]
    period_ratio = best_period["period_s"] / daly_period["period_s"]
    if interruptions < MIN_INTERRUPTIONS:
        agreement = f"and {interruptions} interruptions in all are too few to tell which is best"
    elif abs(period_ratio - 1) <= EQUAL_PERIODS:
        agreement = f"which agree within {EQUAL_PERIODS:.0%}"
    elif abs(best_period["goodput"] - daly_period["goodput"]) <= EQUAL_GOODPUT:
        agreement = (
            f"which differ by {period_ratio - 1:+.0%} and give the same"
            f" within {EQUAL_GOODPUT:.1%}"
        )
    else:
        agreement = (
            f"which differ by {period_ratio - 1:+.0%}, since failures are not exponential or hosts"
            " are lacking"
        )
    best_duration = format_duration(best_period["period_s"])
    daly_duration = format_duration(daly_period["period_s"])
    return (
        f"{sentence}; the best period of the search is {best_duration}"
        f" ({best_period['goodput']:.2%}), Daly's is {daly_duration}"
        f" ({daly_period['goodput']:.2%}), {agreement}."
    )


def list_parts(result: Result) -> Iterator[Any]:
    """Yield the table of where the days go; categories of 0 days are left out."""
    run_columns = _run_columns(result)
    parts = result.derived["parts"]
    displayed_parts = parts[parts["days"] > 0]
    columns = (*run_columns, "part", "days", "share", "low", "high")
    yield PARTS.listing(
        displayed_parts, "Where the days go", columns, names=len(run_columns) + 1
    )


def list_details(result: Result) -> Iterator[Any]:
    """Yield the tables of periods, of inputs, and of interruptions by cause.

    Periods of the grid are left out, as is the last table without interruptions.
    """
    run_columns = _run_columns(result)
    periods = result.tables["periods"]
    periods = periods[periods["which"] != "grid"].assign(
        which=lambda rows: rows["which"].map(WHICH)
    )
    columns = (*run_columns, "which", "period_s", "goodput", "low", "high", "formula")
    title = "Training between two checkpoints"
    yield PERIODS.listing(periods, title, columns, names=len(run_columns) + 1)
    columns = (
        "run",
        "hosts",
        "between_s",
        "period_s",
        "save_s",
        "stall_s",
        "restore_s",
    )
    columns = (*columns, "reread_s", "steady_s", "reads_share")
    yield INPUTS.listing(result.tables["inputs"], "What the months rest on", columns)
    causes = result.tables["causes"]
    if len(causes):
        columns = (*run_columns, "cause", "interruptions", "days")
        yield CAUSES.listing(
            causes, "Interruptions by cause", columns, names=len(run_columns) + 1
        )


def _run_columns(result: Result) -> tuple[str, ...]:
    """Return the columns that name a run; none where there is one run."""
    return ("run",) if result.tables["days"]["run"].nunique() > 1 else ()
