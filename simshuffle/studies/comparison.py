"""Comparison of two results or scenarios: what differs in their requests, in their
tables, and in what computed them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.errors import SimshuffleError, refuse
from simshuffle.job.scenario.reading import by_content
from simshuffle.job.scenario.scenario import Scenario, all_runs, load_scenarios
from simshuffle.report import intervals, report, side_by_side
from simshuffle.report.console import html, terminal_text
from simshuffle.report.folders import meta_of
from simshuffle.report.names import short_names, with_short_names
from simshuffle.report.table_io import plain_rows as rows_of
from simshuffle.spec.library import parse_documents
from simshuffle.studies.comparison_tables import compare_intervals, compare_tables
from simshuffle.study.matching import (
    Flat,
    describe_pairs,
    flat,
    match_runs,
    table_of_differing_requests,
)
from simshuffle.study.registry import read_folder, verbs
from simshuffle.study.study import Result
from simshuffle.study.verdict import Verdict

if TYPE_CHECKING:
    from rich.table import Table


MAX_RUNS = 200
"""Runs of a result whose scenarios are compared one by one; of more, the files are."""
_KEYS_OF_RESULT = {
    "kind",
    "fingerprint",
    "versions",
    "code",
    "made",
    "lost",
    "state",
    "files",
}
_KEYS_OF_RESULT |= {
    "runs",
    "study",
    "scenario",
    "description",
    "intervals",
    "model_error",
}
_KEYS_OF_RESULT |= {"hidden", "not_steady"}
"""Keys of ``meta.json`` that are no part of the request."""
_VERBS_WITH_INTERVALS = {"run", "sweep"}
"""Verbs whose results may have 90 % intervals."""
_IDENTIFYING_KEYS = ("kind", "fingerprint")
"""Keys of ``meta.json`` that identify a result."""


@dataclass(frozen=True)
class ComparedSide:
    """A result or scenario that is compared with another."""

    name: str  # name or path by which the caller named it
    # flat values of each request by the name of the run; for results other than simulations, by the
    # name of the scenario or study
    requests: Mapping[str, Flat]
    result: Result | None = None  # None for a scenario

    @property
    def meta(self) -> Mapping[str, Any]:
        """Return ``meta.json`` of the result; {} for a scenario."""
        return {} if self.result is None else self.result.meta


@dataclass(frozen=True)
class Comparison:
    """The differences between two results or scenarios."""

    a: ComparedSide
    b: ComparedSide
    # columns run ('' for all), key, a, b; a list has the values of several runs
    asked: pd.DataFrame
    versions: pd.DataFrame  # columns key, a, b: versions, code and machine that differ
    # tables by name, with columns that tell rows apart, a, b, and difference (% of a)
    tables: Mapping[str, pd.DataFrame]
    # sentences on how runs are matched, on rows without a counterpart, and on other lengths
    notes: Sequence[str]
    runs: Mapping[str, str]  # runs of B, by those of A matched with them
    # as of `simshuffle.report.intervals.intervals_side_by_side`; None unless both have intervals
    intervals: pd.DataFrame | None = None

    def __str__(self) -> str:
        """Return the text that a terminal shows."""
        return terminal_text(self.parts())

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return html(self.parts())

    def parts(self) -> Iterator[str | Table]:
        """Return an iterator over the texts and tables that a terminal shows; the
        origin of both comes last.

        Names of runs are without schedules that all share.
        """
        names = [*self.a.requests, *self.b.requests]
        for table in self.tables.values():
            names += table["run"].unique().tolist() if "run" in table else []
        return with_short_names(self._parts(), short_names(names))

    def _parts(self) -> Iterator[str | Table]:
        """Yield the texts and tables of `parts`, with full names of runs."""
        sides = [("A", self.a), ("B", self.b)]
        for letter, side in sides:
            yield f"{letter}: {side.name}, {side.meta.get('kind', 'scenario')}"
        yield from self.verdict().lines()
        if self.asked.empty:
            yield "No inputs differ."
        else:
            yield from side_by_side.list_differing_keys(self.asked)
        yield from self.notes
        if self.intervals is not None:
            yield intervals.side_by_side_table(self.intervals)
        for name, table in self.tables.items():
            yield from side_by_side.values(name, table)
            if "label" in table and (
                labels_text := report.explain_labels(map(str, table["label"].unique()))
            ):
                yield labels_text
        if not self.versions.empty:
            yield side_by_side.differences("What computed it", self.versions)
        for letter, side in sides:
            if side.meta:
                date = (side.meta.get("made") or {}).get("date")
                date_text = f", made {date}" if date else ""
                yield f"{letter}: fingerprint {side.meta['fingerprint']}{date_text}."

    def verdict(self) -> Verdict:
        """Return the verdict: how much the last epoch differs, and by what.

        It is empty where no epochs are compared.
        """
        answer: list[str] = []
        for table in self.tables.values():
            answer += side_by_side.last_epochs(table, self._num_epochs())
        if not answer:
            return Verdict()
        causes = map(side_by_side.explain_change, self.tables.values())
        return Verdict(
            answer,
            why=next(filter(None, causes), ""),
            rests_on=intervals.OVERLAP * (self.intervals is not None),
            measure_next=intervals.COMPARE_NEXT,
        )

    def _num_epochs(self) -> tuple[int, ...]:
        """Return the number of the last epoch of A and of B, as far as there is one."""
        epochs = [
            side.result.tables["epochs"]["epoch"]
            for side in (self.a, self.b)
            if side.result is not None
            and "epoch" in side.result.tables.get("epochs", ())
        ]
        return tuple(int(numbers.max()) for numbers in epochs if len(numbers))

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as plain values; missing numbers (NaN) are None.

        Keys are verdict, verdict_parts, a and b (name, kind and fingerprint), asked,
        runs, notes, intervals (None without), the name of each table, and versions; tables
        are lists of rows.
        """
        sides = {
            letter: {
                "name": side.name,
                **{
                    key: side.meta[key] for key in _IDENTIFYING_KEYS if key in side.meta
                },
            }
            for letter, side in (("a", self.a), ("b", self.b))
        }
        return {
            **self.verdict().as_json(),
            **sides,
            "asked": rows_of(self.asked),
            "runs": [{"a": a, "b": b} for a, b in self.runs.items()],
            "notes": [*self.notes],
            "intervals": None if self.intervals is None else rows_of(self.intervals),
            **{name: rows_of(table) for name, table in self.tables.items()},
            "versions": rows_of(self.versions),
        }


def read_side(reference: str | Path | Result | Scenario) -> ComparedSide:
    """Read a result or its folder, or a scenario: one that is loaded, a file, or a
    name.

    A result in memory is saved in a temporary folder and read from there. Each request
    of a result has the values of ``meta.json`` (without `_KEYS_OF_RESULT`) and of its
    scenario, or of its stored documents: for other verbs than ``run``, more than
    `MAX_RUNS` runs, or scenarios that are not valid any more.

    Raises:
        InputError: it is none of these, is damaged, or is a result of doctor.
    """
    if isinstance(reference, Result):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / reference.meta["fingerprint"]
            saved_folder = reference.save(folder, draw=False)
            return replace(
                read_side(saved_folder), name=saved_folder.name, result=reference
            )
    if isinstance(reference, Scenario):
        return ComparedSide(reference.name, _requests_of_scenarios([reference]))
    reference = str(reference)
    folder = Path(reference)
    if not folder.is_dir():
        return ComparedSide(
            reference, _requests_of_scenarios(load_scenarios(reference))
        )
    if meta_of(folder).get("kind") == "doctor":
        verb_names = ", ".join(sorted(verb.name for verb in verbs().values()))
        rule = f"must be a scenario, or a result of one of these verbs: {verb_names}"
        remedy = "Show each recorded training by itself: simshuffle doctor FOLDER."
        refuse("", rule, "a result of doctor", remedy, str(folder))
    result = read_folder(folder)
    meta_values = flat(
        {key: value for key, value in result.meta.items() if key not in _KEYS_OF_RESULT}
    )
    requests = _requests_of_result(result, folder) or _requests_of_documents(result)
    requests = {name: {**meta_values, **request} for name, request in requests.items()}
    return ComparedSide(reference, requests, result)


def _requests_of_result(result: Result, folder: Path) -> dict[str, Flat]:
    """Return the scenarios of a result of ``run``, by the name of the run.

    They are {} for other verbs and for more than `MAX_RUNS` runs, or if they come from
    an older version and are not valid any more.
    """
    if result.study.verb != "run" or len(result.meta["runs"]) > MAX_RUNS:
        return {}
    with suppress(SimshuffleError):
        return _requests_of_scenarios(load_scenarios(folder / "scenario.yaml"))
    return {}


def _requests_of_scenarios(scenarios: Sequence[Scenario]) -> dict[str, Flat]:
    """Return the request of each run, as flat values by dotted key, by run's name."""
    runs = all_runs(scenarios)
    return {name: flat(by_content(run.to_dict())) for name, run in runs.items()}


def _requests_of_documents(result: Result) -> dict[str, Flat]:
    """Return the values of the stored documents, by the name that each has in itself.

    A document without a name has that of its file, and a further document of a name its
    position (from 1) behind it. Without documents the kind of the study has {}.
    """
    requests: dict[str, Flat] = {}
    for file, text in result.documents.items():
        for position, document in enumerate(parse_documents(text, file), 1):
            values = document if isinstance(document, dict) else {"": document}
            name = str(values.get("name", file))
            requests[f"{name} {position}" if name in requests else name] = flat(values)
    return requests or {result.study.kind: {}}


def compare(a: ComparedSide, b: ComparedSide) -> Comparison:
    """Return the differences between two sides.

    Tables and versions are compared where both are results (else they are empty),
    intervals if these are of `_VERBS_WITH_INTERVALS`. Rows and runs that only one side
    has are left out, with a note. Equal notes stand once.

    Raises:
        InputError: they are results of different kinds that do not share compared
            tables.
    """
    pairs = match_runs(a.requests, b.requests)
    differing_requests = table_of_differing_requests(a.requests, b.requests, pairs)
    notes = describe_pairs(a.requests, b.requests, pairs)
    tables: dict[str, pd.DataFrame] = {}
    versions: list[tuple[str, Any, Any]] = []
    interval_table: pd.DataFrame | None = None
    if a.result is not None and b.result is not None:
        study_a = a.result.study
        study_b = b.result.study
        # those of one seed and of several are compared by the same function
        has_same_tables = (
            study_a.compared is not None and study_a.compared is study_b.compared
        )
        if study_a.kind != study_b.kind and not has_same_tables:
            rule = "both must be results of the same verb"
            remedy = "Name two results of the same verb."
            refuse("", rule, f"{study_a.kind} and {study_b.kind}", remedy, "compare")
        versions = list(_differing_versions(a.result, b.result))
        tables = compare_tables(a.result, b.result, pairs, notes)
        if study_a.verb in _VERBS_WITH_INTERVALS:
            interval_table = compare_intervals(a.meta, b.meta, pairs, notes)
    else:
        notes.append("A scenario has no results, so only the inputs are compared.")
    version_table = pd.DataFrame(versions, columns=["key", "a", "b"], dtype=object)
    return Comparison(
        a,
        b,
        differing_requests,
        version_table,
        tables,
        list(dict.fromkeys(notes)),
        pairs,
        interval_table,
    )


def _differing_versions(a: Result, b: Result) -> Iterator[tuple[str, Any, Any]]:
    """Yield the versions, code and machine that differ, as key, value of A, value of B.

    A value is None where that side has none.
    """
    values = [
        flat({key: meta[key] for key in ("code", "versions", "made") if key in meta})
        for meta in (a.meta, b.meta)
    ]
    for key in dict.fromkeys([*values[0], *values[1]]):
        is_compared = key.startswith(
            ("code", "versions.", "made.commit", "made.machine")
        )
        if is_compared and values[0].get(key) != values[1].get(key):
            yield key, values[0].get(key), values[1].get(key)
