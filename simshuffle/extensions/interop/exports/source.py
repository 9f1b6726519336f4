"""Read the run that is exported: of a scenario, or of a result with its tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import list_first, refuse
from simshuffle.job.scenario.scenario import Scenario, all_runs, load_scenarios
from simshuffle.report.table_io import stack_tables
from simshuffle.spec.library import is_folder, suggest_nearest
from simshuffle.spec.overrides import combination_name
from simshuffle.study.long_table import get_long
from simshuffle.study.registry import read_folder
from simshuffle.study.study import Result

MAX_LISTED_RUNS = 12
"""Names of runs that an error lists; of more, it counts the rest."""


@dataclass(frozen=True)
class ExportedRun:
    """The run that is exported, with the epochs and the iteration that are requested."""

    reference: str  # the result folder or scenario, as it was given
    scenario: Scenario  # of the run, without sweep
    run: str  # its name; of several seeds, with the seed
    runs: tuple[str, ...]  # the names of all runs of the scenario
    # the requested epochs, from 1, ascending; at least one
    epochs: tuple[int, ...] = (1,)
    # the requested iteration, from 1; None for the first after which anything is sent
    iteration: int | None = None
    result: Result | None = None  # None for a scenario
    table_run: str = ""  # the name of the run in the tables of the result

    @property
    def epoch(self) -> int:
        """The first of the requested epochs, from 1."""
        return self.epochs[0]

    def stored_rows(self, table: str, epoch: int) -> pd.DataFrame:
        """Return the rows of the result's table that belong to the run and an epoch.

        The rows are empty where the table has none for that run and epoch. With
        several seeds they are those of the scenario's seed. The run must have a result.
        """
        assert self.result is not None  # noqa: S101 - callers ask for it first
        has_seeds = "seed" in self.result.tables["epochs"]
        pieces = []
        for piece in get_long(self.result.tables, table).pieces():
            is_of_run = (piece["run"] == self.table_run) & (piece["epoch"] == epoch)
            if has_seeds:
                is_of_run &= piece["seed"] == self.scenario.seed
            pieces.append(piece[is_of_run])
        return stack_tables(pieces).reset_index(drop=True)


def read_source(
    reference: str,
    overrides: Mapping[str, Any] | None = None,
    run: str | None = None,
    epochs: str | None = None,
    iteration: int | None = None,
    *,
    must_exchange: bool = False,
) -> ExportedRun:
    """Read a run of a result folder, of a scenario file, or of a scenario's name.

    Args:
        reference: the folder, the file, or a name below ``scenarios/``.
        overrides: values of keys of the scenario; a result takes none.
        run: name of the run; the first if None.
        epochs: epochs from 1, such as '2', '1,3' or '2-4'; the first if None.
        iteration: iteration from 1, at most those of the first epoch that is named;
            None for the first after which anything is sent.
        must_exchange: whether the default run is the first that exchanges samples. It
            is the first of all if none does.

    Raises:
        InputError: there is no such result, scenario, run, epoch or iteration; the
            folder is no result of ``simshuffle run``; or ``overrides`` are given for a
            result.
    """
    result, runs = _list_runs(reference, overrides or {})
    chosen_name = next(iter(runs)) if run is None else run
    if run is None and must_exchange:
        exchanging = (
            run_name
            for run_name, (_, run_scenario) in runs.items()
            if run_scenario.workload.exchange.exchange_schedule
        )
        chosen_name = next(exchanging, chosen_name)
    if chosen_name not in runs:
        num_unlisted = len(runs) - MAX_LISTED_RUNS
        unlisted = f" and {num_unlisted} more" if num_unlisted > 0 else ""
        suggestion = suggest_nearest(
            chosen_name, list(runs)[:MAX_LISTED_RUNS]
        ).removesuffix(".")
        remedy = f"{suggestion}{unlisted}."
        refuse(
            "--run", "must be the name of a run", repr(chosen_name), remedy, reference
        )
    table_run, scenario = runs[chosen_name]
    epoch_numbers = _parse_epochs(
        "1" if epochs is None else epochs, scenario, reference
    )
    num_iterations = scenario.workload.iterations(scenario.world_size, epoch_numbers[0])
    if iteration is not None and not 1 <= iteration <= num_iterations:
        rule = f"must be an iteration of epoch {epoch_numbers[0]}, from 1 to {num_iterations}"
        refuse("--iteration", rule, str(iteration), "Name one of these.", reference)
    return ExportedRun(
        reference=reference,
        scenario=scenario,
        run=chosen_name,
        runs=tuple(runs),
        epochs=epoch_numbers,
        iteration=iteration,
        result=result,
        table_run=table_run,
    )


def _list_runs(
    reference: str, overrides: Mapping[str, Any]
) -> tuple[Result | None, dict[str, tuple[str, Scenario]]]:
    """Return the result, if ``reference`` is one, else None, and the runs by their
    names.

    Each run has its name in the tables and its scenario. Each of several seeds of a
    result is a run.

    Raises:
        InputError: ``overrides`` are given for a result, the folder holds another kind
            of result, or its scenario and its meta.json name different runs.
    """
    folder = Path(reference)
    if not is_folder(folder):
        runs = all_runs(load_scenarios(reference, overrides))
        return None, {name: (name, single) for name, single in runs.items()}
    if overrides:
        rule = "cannot be set for a result"
        remedy = "Leave --set out, or name the scenario instead of the result."
        refuse("--set", rule, list_first(list(overrides)), remedy, reference)
    result = read_folder(folder)
    if result.study.verb != "run":
        rule = "must hold a result of 'simshuffle run'"
        remedy = "Name the result folder of a run."
        refuse("", rule, result.study.kind, remedy, reference)
    runs = all_runs(load_scenarios(folder / "scenario.yaml"))
    if set(runs) != set(result.meta["runs"]):
        rule = "must have the same runs as meta.json"
        remedy = "Simulate the scenario again."
        refuse("scenario.yaml", rule, list_first(list(runs)), remedy, reference)
    seeds = result.meta.get("seeds", 1)
    if seeds == 1:
        return result, {name: (name, single) for name, single in runs.items()}
    return result, {
        f"{name} {combination_name({'seed': seed})}": (
            name,
            single.with_values({"seed": seed}),
        )
        for name, single in runs.items()
        for seed in range(single.seed, single.seed + seeds)
    }


def parse_spans(text: str) -> list[tuple[int, int]] | None:
    """Return the spans of numbers in text such as '1,3' or '2-4'; None for other text.

    A span is its first and its last number, equal for a single one. The numbers are
    not checked: 0 may be among them, and the last may be below the first.
    """
    if not re.fullmatch(r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*", text):
        return None
    parts = [part.partition("-") for part in text.split(",")]
    return [(int(first), int(last or first)) for first, _, last in parts]


def _parse_epochs(text: str, scenario: Scenario, reference: str) -> tuple[int, ...]:
    """Return the epochs that a text such as '1,3-5' names, ascending.

    Raises:
        InputError: the text is not understood, or names an epoch that the scenario
            lacks, or a span that falls.
    """
    text = text.strip()
    parts = parse_spans(text)
    if parts is None:
        rule = "must be epochs from 1, such as 2, 1,3 or 2-4"
        refuse("--epoch", rule, repr(text), "For example --epoch 1.", reference)
    for (low, high), part in zip(parts, text.split(","), strict=True):
        if not 1 <= low <= high <= scenario.epochs:
            rule = f"must be an epoch from 1 to {scenario.epochs}"
            refuse("--epoch", rule, part, "Name one of these.", reference)
    return tuple(
        sorted({epoch for low, high in parts for epoch in range(low, high + 1)})
    )
