"""A result done again from its folder, and compared with what the folder holds."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.study import engine
from simshuffle.study.differences import Difference, compare_files, compare_tables, compare_values
from simshuffle.study.executors import Executor
from simshuffle.study.long_table import LongTable, TablePart, get_long
from simshuffle.study.matching import flat
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.origin import MADE
from simshuffle.study.registry import read_folder
from simshuffle.study.schema import Schema
from simshuffle.study.server import handle_signals, interrupt
from simshuffle.study.standing import Progress
from simshuffle.study.store import CELLS, Disk
from simshuffle.study.study import Request, Result, code_of_study, versions

TOLERANCE = 1e-9
"""By how much a number may differ, as a share of the larger, where another version made it: sums
that are added up in another order differ by some 1e-15, and errors by much more."""
_OF_RUN = r"_[0-9a-f]{12}$"
"""What in the name of a training stands for its code."""


@dataclass(frozen=True)
class Rule:
    """How two results are compared."""

    tolerance: (
        float  # as of `simshuffle.study.differences.compare_tables`; 0 for equal to the last bit
    )
    # versions and code of the stored result that are not those of now, as 'numpy 1.26 (here 2.1)'
    others: tuple[str, ...]
    given: bool  # whether the caller gave the tolerance

    def __str__(self) -> str:
        """As a sentence."""
        made = f"made with {', '.join(self.others) or 'the same versions and code'}"
        if self.tolerance == 0:
            return f"Rule: equal to the last bit; {made}."
        why = "as asked" if self.given else "for it was"
        return (
            f"Rule: equal but for {self.tolerance:g} of a number, {why}{',' * self.given} {made}."
        )


@dataclass(frozen=True)
class Verification:
    """What came of it."""

    rule: Rule  # how it was compared
    differences: list[Difference]  # what is not the same; nothing if all is
    compared: list[str]  # files by name, and the fingerprint
    left_out: list[str]  # files and columns that are not compared, each with the reason
    notes: list[str]  # what differs and was to be expected

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def parts(self) -> Iterator[str]:
        """What a terminal shows; the verdict last."""
        yield str(self.rule)
        yield f"Not compared: {'; '.join(self.left_out)}."
        yield from (f"Expected: {note}." for note in self.notes)
        if self.same:
            how = f"but for {self.rule.tolerance:g}" if self.rule.tolerance else "to the last bit"
            yield f"The same {how}: {', '.join(self.compared)}."
        elif len(self.differences) == 1:
            yield f"NOT the same: {self.differences[0]}."
        else:
            yield "\n".join(["NOT the same:", *(f"  - {each}." for each in self.differences)])

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        plain = asdict(self)
        return {"same": self.same, **plain, "rule": {**plain["rule"], "text": str(self.rule)}}


def verify(
    folder: Path,
    executor: Executor | None = None,
    progress: Progress | None = None,
    tolerance: float | None = None,
) -> Verification:
    """Do again what is in the result folder of any verb, from what it holds. ``executor`` and
    ``progress`` are as of `simshuffle.study.engine.run`; for the tolerance see `Rule`, None is 0
    where the same versions and code made the result, else `TOLERANCE`. Raises an InputError if the
    folder holds no whole result, or not all that was asked, or the tolerance is none; a
    SimshuffleError if it cannot be done again; Interrupted by Ctrl-C or SIGTERM, when nothing is
    left."""
    if tolerance is not None and not 0 <= tolerance < 1:
        rule = "must be from 0 to below 1"
        refuse("--tolerance", rule, f"{tolerance:g}", "Try 1e-9.", COMMAND_LINE)
    result = read_folder(folder)
    if result.meta.get("state", "finished") != "finished":
        refuse("", "must be finished", result.meta["state"], "Finish it first.", str(folder))
    request = _request(folder, result)
    # a store that processes share; and both are written and read
    with (
        handle_signals(interrupt, signal.SIGTERM),
        tempfile.TemporaryDirectory(prefix="simshuffle-") as place,
    ):
        store = Disk(Path(place) / CELLS)
        fresh = engine.run(result.study, request, executor, store, progress)
        other = fresh.save(Path(place) / "again", draw=False)
        again = engine.read(result.study, other)
        return _compared(result, folder, again, other, _rule(result, tolerance))


def _request(folder: Path, result: Result) -> Request[Any]:
    """The request of a stored result."""
    try:
        request: Request[Any] = resolve_name(result.study.again)(folder, result.meta)
    except ImportError as error:
        remedy = "Install it: pip install 'simshuffle[train]'."
        problem = Problem("", f"needs {error.name or error}", "", remedy)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        rule = "must say all that was asked; meta.json does not, as of another version or by hand"
        remedy = "Give the command in its meta.json again, and simshuffle compare the two folders."
        problem = Problem("meta.json", rule, str(error), remedy)
    else:
        return request
    raise InputError(problem, str(folder))


def _rule(result: Result, tolerance: float | None) -> Rule:
    now = {**versions(result.study.versions), "code": code_of_study(result.study)[:12]}
    then = {**result.meta["versions"], "code": result.meta.get("code", "unknown")}
    others = tuple(
        f"{name} {then.get(name, 'unknown')} (here {now.get(name, 'none')})"
        for name in dict.fromkeys([*then, *now])
        if then.get(name) != now.get(name)
    )
    if tolerance is None:
        return Rule(TOLERANCE if others else 0.0, others, given=False)
    return Rule(tolerance, others, given=True)


def _compared(a: Result, stored: Path, b: Result, again: Path, rule: Rule) -> Verification:
    """What differs between a result, A, and the same done again, B, in their folders."""
    study, schemas = a.study, a.study.schemas(a.meta)
    found: list[Difference] = []
    left_out = ["figures", "date, command and machine"]
    for name, schema in schemas.items():
        file = f"{name}{schema.suffix}"
        tables = [_table(of, schema, name, place) for of, place in ((a, stored), (b, again))]
        if b.study.schemas(b.meta)[name].columns.keys() != schema.columns.keys():
            found += compare_files(file, b"columns", b"others")
            continue
        if rule.others and study.verb == "train":
            tables = [_without_code(table) for table in tables]
        found += compare_tables(file, schema, tables[0], tables[1], rule.tolerance)
        if measured := [key for key, of in schema.columns.items() if of.measured]:
            left_out.append(f"{', '.join(measured)} of {file}, by a clock")
    if study.measured:
        left_out.append(f"{', '.join(study.measured)} of meta.json, by a clock")
    clock = len(left_out) > 2
    left_out += [f"{name}, which tells of them" for name in study.texts if clock]
    files = [*study.documents, "columns.json", *(name for name in study.texts if not clock)]
    files += [of for of in study.files_in if of != "timelines" and (stored / of).is_dir()]
    found += _values(a, b, rule)
    expected = [each for name in files for each in _files(name, stored, again)]
    if a.meta["fingerprint"] != b.meta["fingerprint"]:
        marks = (a.meta["fingerprint"], b.meta["fingerprint"])
        expected.insert(0, Difference("meta.json", "fingerprint", 0, 0, None, None, "", *marks))
    compared = ["fingerprint", *(f"{name}{of.suffix}" for name, of in schemas.items())]
    compared += ["meta.json", *files]
    # what another version writes otherwise says nothing of the numbers
    if not rule.others:
        found, expected = [*expected, *found], []
    return Verification(rule, found, compared, left_out, [*map(str, expected)])


def _table(of: Result, schema: Schema, name: str, folder: Path) -> LongTable:
    """A table as its folder has it, whether it is stored or follows from those that are."""
    if name in of.tables:
        return get_long(of.tables, name)
    table = schema.read(folder / name)
    return table if isinstance(table, LongTable) else LongTable((TablePart(table),))


def _without_code(table: LongTable) -> LongTable:
    """A table whose names of trainings do not stand for their code."""
    whole = table.load()
    if "run" in whole:
        whole["run"] = whole["run"].astype(str).str.replace(_OF_RUN, "", regex=True)
    return LongTable((TablePart(pd.DataFrame(whole)),))


def _values(a: Result, b: Result, rule: Rule) -> list[Difference]:
    """What differs in meta.json beside how it was made; of what another version made, numbers that
    both have."""
    apart = {MADE, "versions", "code", "fingerprint"}
    left, right = (
        flat(json.loads(json.dumps({key: of for key, of in meta.items() if key not in apart})))
        for meta in (a.meta, b.meta)
    )
    for values, others in ((left, {**right}), (right, {**left})):
        for key, value in [*values.items()]:
            numbers = all(isinstance(of, int | float) for of in (value, others.get(key)))
            if key.rpartition(".")[2] in a.study.measured or (rule.others and not numbers):
                del values[key]
    return compare_values("meta.json", left, right, rule.tolerance)


def _files(name: str, stored: Path, again: Path) -> Iterator[Difference]:
    """Whether a file, or each file of a folder, is the same."""
    folders = [place / name for place in (stored, again)]
    inside = sorted({path.name for place in folders if place.is_dir() for path in place.iterdir()})
    for one in [f"{name}/{each}" for each in inside] or [name]:
        paths = (stored / one, again / one)
        yield from compare_files(
            one, *(path.read_bytes() if path.is_file() else None for path in paths)
        )
