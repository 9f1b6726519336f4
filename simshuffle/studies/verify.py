"""Verification of a result: do it again from its folder, and compare it with what the
folder holds.
"""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pandas as pd

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.study import engine
from simshuffle.study.differences import (
    Difference,
    compare_files,
    compare_tables,
    compare_values,
)
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
"""Largest difference of a number, as a share of the larger, where another version made
it. Sums that are added up in another order differ by some 1e-15, and errors differ by
much more.
"""
_CODE_IN_NAME = r"_[0-9a-f]{12}$"
"""Part of the name of a training that stands for its code, as a regular expression."""


@dataclass(frozen=True)
class Rule:
    """The rule by which two results are compared, with its reason."""

    # as of `simshuffle.study.differences.compare_tables`; 0 for equal to the last bit
    tolerance: float
    # versions and code of the stored result that are not those of now, as 'numpy 1.26 (here 2.1)';
    # () if all are equal
    others: tuple[str, ...]
    given: bool  # true if the caller gave the tolerance

    def __str__(self) -> str:
        """Return the rule as a sentence."""
        versions_text = ", ".join(self.others) or "the same versions and code"
        origin = f"the result was made with {versions_text}"
        if self.tolerance == 0:
            return f"Rule: equal to the last bit; {origin}."
        reason = "as --tolerance says;" if self.given else "because"
        limit = f"numbers may differ by {self.tolerance:g} of their size"
        return f"Rule: {limit}, {reason} {origin}."


@dataclass(frozen=True)
class Verification:
    """The outcome of a verification: what was compared, and what differs."""

    rule: Rule  # rule of the comparison
    # differences that count; [] if the results are identical
    differences: list[Difference]
    compared: list[str]  # names of the compared files, and the fingerprint
    left_out: list[str]  # files and columns that are not compared, each with the reason
    notes: list[str]  # differences that were to be expected

    @property
    def is_identical(self) -> bool:
        """Return true if nothing differs."""
        return not self.differences

    def parts(self) -> Iterator[str]:
        """Yield the texts that a terminal shows; the verdict comes last."""
        yield str(self.rule)
        yield f"Not compared: {'; '.join(self.left_out)}."
        yield from (f"Expected: {note}." for note in self.notes)
        if self.is_identical:
            precision_text = (
                f"within {self.rule.tolerance:g}"
                if self.rule.tolerance
                else "to the last bit"
            )
            yield f"The same {precision_text}: {', '.join(self.compared)}."
        elif len(self.differences) == 1:
            yield f"NOT the same: {self.differences[0]}."
        else:
            yield "\n".join(
                [
                    "NOT the same:",
                    *(f"  - {difference}." for difference in self.differences),
                ]
            )

    def as_json(self) -> dict[str, Any]:
        """Return the verification as plain values: ``same`` and the fields.

        The rule has its sentence as ``text``.
        """
        fields = asdict(self)
        return {
            "same": self.is_identical,
            **fields,
            "rule": {**fields["rule"], "text": str(self.rule)},
        }


def verify(
    folder: Path,
    executor: Executor | None = None,
    progress: Progress | None = None,
    tolerance: float | None = None,
) -> Verification:
    """Do again what is in the result folder of any verb, and compare.

    All is done in a temporary folder, which is removed; SIGTERM is handled until then.
    Stored outcomes are not used: every cell runs again, however long it takes. The
    result folder itself is not changed. Figures and timelines are not compared.

    Args:
        folder: the result folder, which holds all that is needed.
        executor: as of `simshuffle.study.engine.run`.
        progress: as of `simshuffle.study.engine.run`.
        tolerance: of `Rule`, from 0 to below 1; None is 0 where equal versions and code
            made the result, else `TOLERANCE`.

    Raises:
        InputError: the folder holds no complete result, or not the whole request, or
            the tolerance is no share, or the cells are too much for the machine.
        SimshuffleError: the result cannot be done again.
        Interrupted: by Ctrl-C or SIGTERM; nothing is left behind.
    """
    if tolerance is not None and not 0 <= tolerance < 1:
        rule = "must be from 0 to below 1"
        refuse("--tolerance", rule, f"{tolerance:g}", "Try 1e-9.", COMMAND_LINE)
    result = read_folder(folder)
    if result.meta.get("state", "finished") != "finished":
        refuse(
            "",
            "must be finished",
            result.meta["state"],
            "Finish it first.",
            str(folder),
        )
    request = _repeat_request(folder, result)
    # a store that processes share; and both are written and read
    with (
        handle_signals(interrupt, signal.SIGTERM),
        tempfile.TemporaryDirectory(prefix="simshuffle-") as temporary,
    ):
        store = Disk(Path(temporary) / CELLS)
        computed = engine.run(result.study, request, executor, store, progress)
        fresh_folder = computed.save(Path(temporary) / "again", draw=False)
        fresh_result = engine.read(result.study, fresh_folder)
        chosen_rule = _choose_rule(result, tolerance)
        return _compare_results(result, folder, fresh_result, fresh_folder, chosen_rule)


def _repeat_request(folder: Path, result: Result) -> Request[Any]:
    """Return the request of a stored result.

    Raises:
        InputError: a package is missing, or ``meta.json`` lacks a part of the request,
            or the stored request is no longer valid.
    """
    try:
        request: Request[Any] = resolve_name(result.study.again)(folder, result.meta)
    except ImportError as error:
        remedy = "Install it: pip install 'simshuffle[train]'."
        problem = Problem("", f"needs {error.name or error}", "", remedy)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        rule = (
            "must hold the whole request; another version or a person wrote meta.json"
        )
        remedy = "Run the command in meta.json again, then simshuffle compare on both folders."
        problem = Problem("meta.json", rule, str(error), remedy)
    else:
        return request
    raise InputError(problem, str(folder))


def _choose_rule(result: Result, tolerance: float | None) -> Rule:
    """Choose the rule by which results are compared, with the versions that differ.

    The tolerance is the user's; without one (None) it is 0 where versions and code are
    equal, else `TOLERANCE`. A version that one side lacks counts as different.
    """
    current_versions = {
        **versions(result.study.versions),
        "code": code_of_study(result.study)[:12],
    }
    stored_versions = {
        **result.meta["versions"],
        "code": result.meta.get("code", "unknown"),
    }
    differing_versions = tuple(
        f"{name} {stored_versions.get(name, 'unknown')} (here {current_versions.get(name, 'none')})"
        for name in dict.fromkeys([*stored_versions, *current_versions])
        if stored_versions.get(name) != current_versions.get(name)
    )
    if tolerance is None:
        return Rule(
            TOLERANCE if differing_versions else 0.0, differing_versions, given=False
        )
    return Rule(tolerance, differing_versions, given=True)


def _compare_results(
    stored_result: Result,
    stored_folder: Path,
    fresh_result: Result,
    fresh_folder: Path,
    rule: Rule,
) -> Verification:
    """Compare a stored result with the fresh one, each in its folder.

    If another version made the stored one, differing fingerprints and files are notes,
    not differences. Texts are left out where the study has measurements. Figures and
    the folder ``timelines`` are left out always, and further folders where the stored
    result has none.
    """
    study = stored_result.study
    folders = (stored_folder, fresh_folder)
    tables = _compare_result_tables(
        stored_result, stored_folder, fresh_result, fresh_folder, rule
    )
    left_out = ["figures", "date, command and machine", *tables.left_out]
    if study.measured:
        left_out.append(
            f"{', '.join(study.measured)} of meta.json, measured by a clock"
        )
    has_measurements = len(left_out) > 2
    left_out += [
        f"{name}, which contains measured values"
        for name in study.texts
        if has_measurements
    ]
    files = [
        *study.documents,
        "columns.json",
        *(name for name in study.texts if not has_measurements),
    ]
    files += [
        name
        for name in study.files_in
        if name != "timelines" and (stored_folder / name).is_dir()
    ]
    differences = [
        *tables.differences,
        *_compare_meta(stored_result, fresh_result, rule),
    ]
    stored_fingerprint, fresh_fingerprint = (
        {"fingerprint": result.meta["fingerprint"]}
        for result in (stored_result, fresh_result)
    )
    expected = [
        *compare_values("meta.json", stored_fingerprint, fresh_fingerprint, 0.0),
        *(difference for name in files for difference in _compare_file(name, *folders)),
    ]
    compared = ["fingerprint", *tables.compared, "meta.json", *files]
    # what another version writes otherwise says nothing of the numbers
    if not rule.others:
        differences = [*expected, *differences]
        expected = []
    return Verification(rule, differences, compared, left_out, [*map(str, expected)])


@dataclass(frozen=True)
class TableComparison:
    """The outcome of comparing the tables of two results."""

    differences: list[Difference]
    compared: list[str]  # names of the files of all tables
    left_out: list[str]  # columns that a clock measured, each with the reason


def _compare_result_tables(
    stored_result: Result,
    stored_folder: Path,
    fresh_result: Result,
    fresh_folder: Path,
    rule: Rule,
) -> TableComparison:
    """Compare each table of a stored result with the fresh one, within the rule.

    Tables with other columns count as one difference, and their rows are not compared.
    Where another version made a training, names of runs are compared without their
    code.
    """
    study = stored_result.study
    fresh_schemas = fresh_result.study.schemas(fresh_result.meta)
    differences: list[Difference] = []
    compared = []
    left_out = []
    for name, schema in study.schemas(stored_result.meta).items():
        file = f"{name}{schema.suffix}"
        compared.append(file)
        tables = [
            _stored_table(result, schema, name, folder)
            for result, folder in (
                (stored_result, stored_folder),
                (fresh_result, fresh_folder),
            )
        ]
        if fresh_schemas[name].columns.keys() != schema.columns.keys():
            differences += compare_files(file, b"columns", b"others")
            continue
        if rule.others and study.verb == "train":
            tables = [_drop_code(table) for table in tables]
        differences += compare_tables(
            file, schema, tables[0], tables[1], rule.tolerance
        )
        if measured_columns := [
            key for key, column in schema.columns.items() if column.measured
        ]:
            left_out.append(
                f"{', '.join(measured_columns)} of {file}, measured by a clock"
            )
    return TableComparison(differences, compared, left_out)


def _stored_table(result: Result, schema: Schema, name: str, folder: Path) -> LongTable:
    """Return a table as its folder has it, whether it is stored or derived from stored
    ones.

    Raises:
        InputError: the file of a derived table is damaged, or not as its schema says.
    """
    if name in result.tables:
        return get_long(result.tables, name)
    table = schema.read(folder / name)
    return table if isinstance(table, LongTable) else LongTable((TablePart(table),))


def _drop_code(table: LongTable) -> LongTable:
    """Return a table whose column ``run``, if it has one, has no code in its names.

    The whole table is loaded.
    """
    rows = table.load()
    if "run" in rows:
        rows["run"] = rows["run"].astype(str).str.replace(_CODE_IN_NAME, "", regex=True)
    return LongTable((TablePart(pd.DataFrame(rows)),))


def _compare_meta(a: Result, b: Result, rule: Rule) -> list[Difference]:
    """Return the differences in meta.json, beside how the results were made.

    Date, command, machine, versions, code, fingerprint and measured values are left
    out. If another version made the stored result, only numbers that both have are
    compared.
    """
    ignored_keys = {MADE, "versions", "code", "fingerprint"}

    def plain_values(meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return the flat values of ``meta.json`` that are compared."""
        text = json.dumps(
            {key: value for key, value in meta.items() if key not in ignored_keys}
        )
        return dict(flat(json.loads(text)))

    sides = plain_values(a.meta), plain_values(b.meta)

    def counts_as_difference(key: str) -> bool:
        """Return whether a difference at a key counts."""
        are_numbers = all(isinstance(side.get(key), int | float) for side in sides)
        is_measured = key.rpartition(".")[2] in a.study.measured
        return not is_measured and (are_numbers or not rule.others)

    values_a, values_b = (
        {key: value for key, value in side.items() if counts_as_difference(key)}
        for side in sides
    )
    return compare_values("meta.json", values_a, values_b, rule.tolerance)


def _compare_file(
    name: str, stored_folder: Path, fresh_folder: Path
) -> Iterator[Difference]:
    """Yield the differences of a file, or of each file of a folder.

    Contents are compared byte by byte; a file that one side lacks is a difference.
    """
    folders = [folder / name for folder in (stored_folder, fresh_folder)]
    inner_names = sorted(
        {
            path.name
            for folder in folders
            if folder.is_dir()
            for path in folder.iterdir()
        }
    )
    for file_name in [f"{name}/{inner_name}" for inner_name in inner_names] or [name]:
        paths = (stored_folder / file_name, fresh_folder / file_name)
        yield from compare_files(
            file_name,
            *(path.read_bytes() if path.is_file() else None for path in paths),
        )
