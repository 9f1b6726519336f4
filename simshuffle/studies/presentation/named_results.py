"""Results that a figure shows, the names of their runs, and errors of unsuitable
results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.report import report
from simshuffle.report.chart import Chart
from simshuffle.report.report import EPOCH_COLUMNS, LABELS, seconds_of_rows
from simshuffle.report.timeline import Timeline
from simshuffle.studies.simulation.tables import label_column
from simshuffle.study.long_table import get_long
from simshuffle.study.study import Result


@dataclass(frozen=True)
class NamedResult:
    """A result with the name under which a figure shows it."""

    name: str  # end of its folder's path
    result: Result  # itself
    # where it is, if that is needed; no file that is written says so
    folder: Path = Path()


def unsuitable_results(
    rule: str, results: Sequence[NamedResult], remedy: str
) -> InputError:
    """Return the error that ``results`` lack what a figure needs.

    ``rule`` says what that is, and ``remedy`` how to get it.
    """
    names = ", ".join(named_result.name for named_result in results)
    return InputError(Problem("RESULT", rule, names, remedy), "command line")


PHASES = ("exchange", "wait_exchange", "exchange_hidden")
"""Phases of an exchange: shown, waiting for others in it, and hidden behind other work."""

_TIMELINE_COLUMNS = [
    "run",
    "seed",
    "epoch",
    "iteration",
    "rank",
    "phase",
    "start_s",
    "end_s",
]


def exchange_phases(result: Result) -> Iterator[pd.DataFrame]:
    """Yield the rows of the timeline in `PHASES`, in pieces that are not empty.

    Beside the columns of the timeline, `seed` is 0 where it has none, and `seconds` is
    the length of the row (s), times the iterations that it stands for. Run and phase
    are texts.
    """
    for piece in get_long(result.tables, "timeline").pieces(_TIMELINE_COLUMNS):
        rows = piece[piece["phase"].isin(PHASES)]
        if len(rows):
            seconds = seconds_of_rows(Timeline(rows, rows, result.tables["sources"]))
            texts = {name: rows[name].astype(str) for name in ("run", "phase")}
            yield rows.assign(**texts, seed=rows.get("seed", 0), seconds=seconds)


def missing_exchange(results: Sequence[NamedResult]) -> InputError:
    """Return the error of results in which no run exchanges samples."""
    remedy = "Simulate partial_local_shuffle, or an importance exchange."
    return unsuitable_results("needs runs that exchange samples", results, remedy)


def check_run_count(
    results: Sequence[NamedResult], num_runs: int, max_runs: int
) -> None:
    """Check that a figure can draw so many runs.

    Raises:
        InputError: there are more than ``max_runs``; it names the results.
    """
    if num_runs > max_runs:
        rule = f"draws at most {max_runs} runs; there are {num_runs}"
        raise unsuitable_results(rule, results, "Give results of fewer runs.")


def declared_figure(
    name: str, check: Callable[[Sequence[NamedResult]], Any] = lambda results: None
) -> Callable[[Sequence[NamedResult]], Chart]:
    """Return a function that draws the figure ``name``, declared by a result's study.

    The function draws the first of its results, and no other.

    Args:
        name: of the figure in the study's ``figures``.
        check: raises InputError where the results have nothing for it.
    """

    def chart(results: Sequence[NamedResult]) -> Chart:
        check(results)
        result = results[0].result
        return result.study.figures(result)[name]

    return chart


class RenamedRuns(NamedTuple):
    """A result with its tables, whose runs have names that no other result uses."""

    named_result: NamedResult
    # by the names of runs in their results; those of the other results too
    new_names: Mapping[str, str]
    # epochs, breakdown: as `simshuffle.report.report` makes them, with new names; a column seed
    # only where the result has one
    epochs: pd.DataFrame
    breakdown: pd.DataFrame  # seconds by label and cause, mean over ranks


def distinguish_runs(results: Sequence[NamedResult]) -> list[RenamedRuns]:
    """Return the results with names of runs that no two results share.

    A run's name that several results use becomes 'RESULT: RUN'; others stay.
    """
    tables_of_results = [
        _epochs_and_breakdown(named_result.result) for named_result in results
    ]
    run_counts = Counter(
        run for epochs, _ in tables_of_results for run in epochs["run"].unique()
    )
    renamed_results = []
    for named_result, (epochs, breakdown) in zip(
        results, tables_of_results, strict=True
    ):
        new_names = {
            run: f"{named_result.name}: {run}" if occurrences > 1 else run
            for run, occurrences in run_counts.items()
        }
        renamed_runs = RenamedRuns(
            named_result,
            new_names,
            epochs.assign(run=epochs["run"].map(new_names)),
            breakdown.assign(run=breakdown["run"].map(new_names)),
        )
        renamed_results.append(renamed_runs)
    return renamed_results


def _epochs_and_breakdown(result: Result) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables of epochs and of their seconds by label; their runs are texts."""
    if result.study.kind == "sweep":
        return _divide_sweep(result)
    epochs = result.tables["epochs"]
    breakdown = result.tables["breakdown"]
    return (
        epochs.assign(run=epochs["run"].astype(str)),
        breakdown.assign(run=breakdown["run"].astype(str)),
    )


def _divide_sweep(result: Result) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a sweep's one table as the two of a simulation: epochs and breakdown.

    A run is called by its label, and by its axes too where labels are not unique.
    Waiting for 0 s is left out, and so is the column of a single seed.
    """
    table = result.tables["sweep"].rename(columns={"label": "run"})
    table["run"] = table["run"].astype(str)
    axes = [axis["name"] for axis in result.meta["axes"]]
    if table.duplicated(["run", "seed", "epoch"]).any():
        for name in axes:
            table["run"] += " " + name + "=" + table[name].astype(str)
    epochs = table[["run", "seed", *(name for name in EPOCH_COLUMNS if name != "run")]]
    keys = ["run", "seed", "epoch"]
    rows = []
    for label in LABELS:
        for cause in ("", label):
            seconds = table[label_column(label, waiting=bool(cause))]
            rows.append(table[keys].assign(label=label, cause=cause, seconds=seconds))
    parts = pd.concat(rows)
    parts = parts[(parts["cause"] == "") | (parts["seconds"] > 0)]
    parts = report.drop_absent_labels(
        parts.sort_index(kind="stable").reset_index(drop=True)
    )
    if epochs["seed"].nunique() == 1:
        return epochs.drop(columns="seed"), parts.drop(columns="seed")
    return epochs, parts
