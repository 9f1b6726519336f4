"""What an export is made of: a run of a scenario, and its result where there is one."""

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

SHOWN = 12
"""Names of runs that an error lists; of more, it counts the rest."""


@dataclass(frozen=True)
class ExportedRun:
    """The run that is exported."""

    reference: str  # the result folder or scenario, as it was given
    scenario: Scenario  # of the run, without sweep
    run: str  # its name; of several seeds, with the seed
    runs: tuple[str, ...]  # the names of all
    epochs: tuple[int, ...] = (1,)  # those wanted, from 1, in their order; at least one
    # the one wanted, from 1; None for the first after which anything is sent
    iteration: int | None = None
    result: Result | None = None  # None for a scenario
    table_run: str = ""  # the name of the run in the tables of the result

    @property
    def epoch(self) -> int:
        """The first of those wanted."""
        return self.epochs[0]

    def stored(self, table: str, epoch: int) -> pd.DataFrame:
        """The rows of a table of the result that are of the run and an epoch; none where the result
        does not have them. There is a result."""
        assert self.result is not None  # noqa: S101 - callers ask for it first
        several = "seed" in self.result.tables["epochs"]
        parts = []
        for piece in get_long(self.result.tables, table).pieces():
            of = (piece["run"] == self.table_run) & (piece["epoch"] == epoch)
            if several:
                of &= piece["seed"] == self.scenario.seed
            parts.append(piece[of])
        return stack_tables(parts).reset_index(drop=True)


def read_source(
    reference: str,
    assigned: Mapping[str, Any] | None = None,
    run: str | None = None,
    epochs: str | None = None,
    iteration: int | None = None,
    *,
    sends: bool = False,
) -> ExportedRun:
    """The run that is asked for, of a result folder of ``simshuffle run``, a scenario file, or a
    name below ``scenarios/``, of which values of keys may be ``assigned``. The first run if None
    (if it ``sends``, the first that exchanges samples); the first epoch, of '2', '1,3' or '2-4';
    the first iteration after which anything is sent. Raises an InputError if there is no such
    result, scenario, run, epoch or iteration."""
    result, runs = _runs(reference, assigned or {})
    name = next(iter(runs)) if run is None else run
    if run is None and sends:
        exchanging = (
            of for of, (_, each) in runs.items() if each.workload.exchange.exchange_schedule
        )
        name = next(exchanging, name)
    if name not in runs:
        many = f" and {len(runs) - SHOWN} more" * (len(runs) > SHOWN)
        remedy = f"{suggest_nearest(name, list(runs)[:SHOWN])[:-1]}{many}."
        refuse("--run", "must be the name of a run", repr(name), remedy, reference)
    table_run, scenario = runs[name]
    wanted = _epochs("1" if epochs is None else epochs, scenario, reference)
    last = scenario.workload.iterations(scenario.world_size, wanted[0])
    if iteration is not None and not 1 <= iteration <= last:
        rule = f"must be an iteration of epoch {wanted[0]}, from 1 to {last}"
        refuse("--iteration", rule, str(iteration), "Name one of them.", reference)
    return ExportedRun(reference, scenario, name, tuple(runs), wanted, iteration, result, table_run)


def _runs(
    reference: str, assigned: Mapping[str, Any]
) -> tuple[Result | None, dict[str, tuple[str, Scenario]]]:
    """The result, if it is one; and by the name of each run what the tables call it, and its
    scenario. Each of several seeds of a result is a run."""
    folder = Path(reference)
    if not is_folder(folder):
        runs = all_runs(load_scenarios(reference, assigned))
        return None, {name: (name, single) for name, single in runs.items()}
    if assigned:
        rule, remedy = "cannot be changed of a result", "Leave --set out, or name the scenario."
        refuse("--set", rule, list_first(list(assigned)), remedy, reference)
    result = read_folder(folder)
    if result.study.verb != "run":
        rule, remedy = "must hold a result of 'simshuffle run'", "Name such a folder."
        refuse("", rule, result.study.kind, remedy, reference)
    runs = all_runs(load_scenarios(folder / "scenario.yaml"))
    if set(runs) != set(result.meta["runs"]):
        rule, remedy = "must have the runs of meta.json", "Simulate the scenario again."
        refuse("scenario.yaml", rule, list_first(list(runs)), remedy, reference)
    seeds = result.meta.get("seeds", 1)
    if seeds == 1:
        return result, {name: (name, single) for name, single in runs.items()}
    return result, {
        f"{name} {combination_name({'seed': seed})}": (name, single.with_values({"seed": seed}))
        for name, single in runs.items()
        for seed in range(single.seed, single.seed + seeds)
    }


def spans(text: str) -> list[tuple[int, int]] | None:
    """First and last of each part of a text such as '1,3' or '2-4'; None if it is no such text."""
    if not re.fullmatch(r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*", text):
        return None
    ends = [part.partition("-") for part in text.split(",")]
    return [(int(first), int(last or first)) for first, _, last in ends]


def _epochs(text: str, scenario: Scenario, reference: str) -> tuple[int, ...]:
    """The epochs that a text names, in their order."""
    text = text.strip()
    parts = spans(text)
    if parts is None:
        rule = "must be epochs from 1, such as 2, 1,3 or 2-4"
        refuse("--epoch", rule, repr(text), "For example --epoch 1.", reference)
    for (low, high), part in zip(parts, text.split(","), strict=True):
        if not 1 <= low <= high <= scenario.epochs:
            rule = f"must be an epoch from 1 to {scenario.epochs}"
            refuse("--epoch", rule, part, "Name one of them.", reference)
    return tuple(sorted({epoch for low, high in parts for epoch in range(low, high + 1)}))
