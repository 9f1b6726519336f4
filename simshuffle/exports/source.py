"""What an export is made of: a run of a scenario, and its result where there is one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem, first_of
from simshuffle.results.table_io import stacked
from simshuffle.scenario.scenario import Scenario, all_runs, load_scenarios
from simshuffle.spec.library import nearest
from simshuffle.spec.overrides import combination_name
from simshuffle.study.long_table import long
from simshuffle.study.registry import read_folder
from simshuffle.study.study import Result

SHOWN = 12
"""Names of runs that an error lists; of more, it counts the rest."""


@dataclass(frozen=True)
class Source:
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
        for piece in long(self.result.tables, table).pieces():
            of = (piece["run"] == self.table_run) & (piece["epoch"] == epoch)
            if several:
                of &= piece["seed"] == self.scenario.seed
            parts.append(piece[of])
        return stacked(parts).reset_index(drop=True)


def read_source(
    reference: str,
    assigned: Mapping[str, Any] | None = None,
    run: str | None = None,
    epochs: str | None = None,
    iteration: int | None = None,
    *,
    sends: bool = False,
) -> Source:
    """The run that is asked for.

    Args:
        reference: a result folder of ``simshuffle run``, a scenario file, or a name below
            ``scenarios/``.
        assigned: values of the scenario's keys; none for a result.
        run: the name of a run; the first if None.
        epochs: '2', '1,3' or '2-4'; the first if None.
        iteration: from 1; the first after which anything is sent if None.
        sends: the first run that exchanges samples is meant where none is named.

    Raises:
        InputError: there is no such result, scenario, run, epoch or iteration.
    """
    result, runs = _runs(reference, assigned or {})
    name = _first(runs, sends) if run is None else run
    if name not in runs:
        many = f" and {len(runs) - SHOWN} more" * (len(runs) > SHOWN)
        remedy = f"{nearest(name, list(runs)[:SHOWN])[:-1]}{many}."
        problem = Problem("--run", "must be the name of a run", repr(name), remedy)
        raise InputError(problem, reference)
    table_run, scenario = runs[name]
    wanted = _epochs(epochs, scenario, reference)
    _check_iteration(iteration, scenario, wanted[0], reference)
    return Source(reference, scenario, name, tuple(runs), wanted, iteration, result, table_run)


def _first(runs: Mapping[str, tuple[str, Scenario]], sends: bool) -> str:
    """The name of the first run; if ``sends``, of those that exchange samples, if any do."""
    for name, (_, scenario) in runs.items():
        if not sends or scenario.workload.exchange.exchange_schedule is not None:
            return name
    return next(iter(runs))


def _runs(
    reference: str, assigned: Mapping[str, Any]
) -> tuple[Result | None, dict[str, tuple[str, Scenario]]]:
    """The result, if it is one; and by the name of each run what the tables call it, and its
    scenario."""
    folder = Path(reference)
    if not _is_folder(folder):
        runs = all_runs(load_scenarios(reference, assigned))
        return None, {name: (name, single) for name, single in runs.items()}
    if assigned:
        rule, remedy = "cannot be changed of a result", "Leave --set out, or name the scenario."
        raise InputError(Problem("--set", rule, first_of(list(assigned)), remedy), reference)
    result = read_folder(folder)
    if result.study.verb != "run":
        rule, remedy = "must hold a result of 'simshuffle run'", "Name such a folder."
        raise InputError(Problem("", rule, result.study.kind, remedy), reference)
    runs = all_runs(load_scenarios(folder / "scenario.yaml"))
    if set(runs) != set(result.meta["runs"]):
        rule, remedy = "must have the runs of meta.json", "Simulate the scenario again."
        raise InputError(Problem("scenario.yaml", rule, first_of(list(runs)), remedy), reference)
    return result, dict(_with_seeds(runs, result.meta.get("seeds", 1)))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _with_seeds(
    runs: Mapping[str, Scenario], seeds: int
) -> Iterator[tuple[str, tuple[str, Scenario]]]:
    """The runs of a result; each seed of several is one."""
    for name, single in runs.items():
        if seeds == 1:
            yield name, (name, single)
            continue
        for seed in range(single.seed, single.seed + seeds):
            one = single.with_values({"seed": seed})
            yield f"{name} {combination_name({'seed': seed})}", (name, one)


def _epochs(text: str | None, scenario: Scenario, reference: str) -> tuple[int, ...]:
    """The epochs that a text names, in their order."""
    text = "1" if text is None else text.strip()
    parts = re.fullmatch(r"[0-9]{1,9}(-[0-9]{1,9})?(,[0-9]{1,9}(-[0-9]{1,9})?)*", text)
    problem = None
    out: set[int] = set()
    if parts is None:
        rule = "must be epochs from 1, such as 2, 1,3 or 2-4"
        problem = Problem("--epoch", rule, repr(text), "For example --epoch 1.")
    else:
        for part in text.split(","):
            first, _, last = part.partition("-")
            low, high = int(first), int(last or first)
            if not 1 <= low <= high <= scenario.epochs:
                rule = f"must be an epoch from 1 to {scenario.epochs}"
                problem = Problem("--epoch", rule, part, "Name one of them.")
                break
            out.update(range(low, high + 1))
    if problem is not None:
        raise InputError(problem, reference)
    return tuple(sorted(out))


def _check_iteration(iteration: int | None, scenario: Scenario, epoch: int, reference: str) -> None:
    last = scenario.workload.iterations(scenario.world_size, epoch)
    if iteration is not None and not 1 <= iteration <= last:
        rule = f"must be an iteration of epoch {epoch}, from 1 to {last}"
        problem = Problem("--iteration", rule, str(iteration), "Name one of them.")
        raise InputError(problem, reference)
