"""Two results, or two scenarios, side by side: what differs in what was asked, then in what came
out of it, and last in what computed it."""

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
from simshuffle.study.matching import (
    Flat,
    RequestsByRun,
    describe_pairs,
    flat,
    match_runs,
    pair_names,
    table_of_differing_requests,
)
from simshuffle.study.registry import read_folder, verbs
from simshuffle.study.study import Result

if TYPE_CHECKING:
    from rich.table import Table


MOST_RUNS = 200
"""Runs of a result whose scenarios are compared one by one; of more, the files are."""
ROUNDING = 1e-11
"""Share of the largest value of a run by which two may differ by rounding alone: sums of a million
numbers of 53 bits."""
RATES = "rates"
"""The table of samples, iterations and samples/s; shown where the first two differ."""
_OF_THE_RESULT = {"kind", "fingerprint", "versions", "code", "made", "lost", "state", "files"}
_OF_THE_RESULT |= {"runs", "study", "scenario", "description", "intervals", "model_error"}
_OF_THE_RESULT |= {"hidden", "not_steady"}
"""Keys of ``meta.json`` that do not say what was asked."""
HALF = "half"
"""Column of a table of `Result.compared` with half the 95 % interval of each row's value."""
_WITH_INTERVALS = {"run", "sweep"}
"""Verbs whose results may have 90 % intervals."""
_ABOUT = ("kind", "fingerprint")
"""Those by which a result is known."""


@dataclass(frozen=True)
class ComparedSide:
    """One of the two."""

    name: str  # as it was given
    # what was asked, by the name of the run; of results that are not simulations, by the name of
    # the scenario or study
    asked: Mapping[str, Flat]
    result: Result | None = None  # None for a scenario

    @property
    def meta(self) -> Mapping[str, Any]:
        """How the result was made; empty of a scenario."""
        return {} if self.result is None else self.result.meta


@dataclass(frozen=True)
class Comparison:
    """What differs."""

    a: ComparedSide
    b: ComparedSide
    # columns run ('' for all), key, a, b; a list has the values of several runs
    asked: pd.DataFrame
    versions: pd.DataFrame  # columns key, a, b: versions, code and machine that differ
    # by name: columns that tell rows apart, a, b, and difference, in % of a
    tables: Mapping[str, pd.DataFrame]
    # what else is to be said: how runs are matched, rows without a counterpart, other lengths
    notes: Sequence[str]
    runs: Mapping[str, str]  # of B, by those of A matched with them
    # as of `simshuffle.report.intervals.beside`; None unless both have intervals
    intervals: pd.DataFrame | None = None

    def __str__(self) -> str:
        """What a terminal shows of it."""
        return terminal_text(self.parts())

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        return html(self.parts())

    def parts(self) -> Iterator[str | Table]:
        """What a terminal shows: texts and tables, where they come from last; names of runs are
        without schedules that all share."""
        names = [*self.a.asked, *self.b.asked]
        for table in self.tables.values():
            names += table["run"].unique().tolist() if "run" in table else []
        return with_short_names(self._parts(), short_names(names))

    def _parts(self) -> Iterator[str | Table]:
        sides = [("A", self.a), ("B", self.b)]
        for letter, side in sides:
            yield f"{letter}: {side.name}, {side.meta.get('kind', 'scenario')}"
        for table in self.tables.values():
            yield from side_by_side.last_epochs(table)
        if self.asked.empty:
            yield "What was asked is the same."
        else:
            yield from side_by_side.list_differing_keys(self.asked)
        yield from self.notes
        if self.intervals is not None:
            yield intervals.side_by_side_table(self.intervals)
            yield intervals.OVERLAP
        for name, table in self.tables.items():
            yield from side_by_side.values(name, table)
            if "label" in table and (
                said := report.explain_labels(map(str, table["label"].unique()))
            ):
                yield said
        if not self.versions.empty:
            yield side_by_side.differences("What computed it", self.versions)
        for letter, side in sides:
            if side.meta:
                date = (side.meta.get("made") or {}).get("date")
                when = f", made {date}" if date else ""
                yield f"{letter}: fingerprint {side.meta['fingerprint']}{when}."

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values; what is empty is None."""
        about = {
            letter: {"name": of.name, **{key: of.meta[key] for key in _ABOUT if key in of.meta}}
            for letter, of in (("a", self.a), ("b", self.b))
        }
        return {
            **about,
            "asked": rows_of(self.asked),
            "runs": [{"a": a, "b": b} for a, b in self.runs.items()],
            "notes": [*self.notes],
            "intervals": None if self.intervals is None else rows_of(self.intervals),
            **{name: rows_of(table) for name, table in self.tables.items()},
            "versions": rows_of(self.versions),
        }


def side(reference: str | Path | Result | Scenario) -> ComparedSide:
    """A result or its folder, or a scenario: one that is loaded, a file, or a name. Raises an
    InputError if it is none of these, or damaged."""
    if isinstance(reference, Result):
        with tempfile.TemporaryDirectory() as place:
            kept = reference.save(Path(place) / reference.meta["fingerprint"], draw=False)
            return replace(side(kept), name=kept.name, result=reference)
    if isinstance(reference, Scenario):
        return ComparedSide(reference.name, _of_runs([reference]))
    reference = str(reference)
    folder = Path(reference)
    if not folder.is_dir():
        return ComparedSide(reference, _of_runs(load_scenarios(reference)))
    if meta_of(folder).get("kind") == "doctor":
        known = ", ".join(sorted(verb.name for verb in verbs().values()))
        rule = f"must be a scenario, or a result of one of these verbs: {known}"
        remedy = "Show each recorded training by itself: simshuffle doctor FOLDER."
        refuse("", rule, "a result of doctor", remedy, str(folder))
    result = read_folder(folder)
    about = flat({k: value for k, value in result.meta.items() if k not in _OF_THE_RESULT})
    asked = _runs(result, folder) or _documents(result)
    return ComparedSide(reference, {name: {**about, **of} for name, of in asked.items()}, result)


def _runs(result: Result, folder: Path) -> dict[str, Flat]:
    """The scenarios of a result of run by the name of the run; none if there are too many, or if
    they are not valid by now: they come from an older version."""
    if result.study.verb != "run" or len(result.meta["runs"]) > MOST_RUNS:
        return {}
    with suppress(SimshuffleError):
        return _of_runs(load_scenarios(folder / "scenario.yaml"))
    return {}


def _of_runs(scenarios: Sequence[Scenario]) -> dict[str, Flat]:
    """What was asked of each run."""
    runs = all_runs(scenarios)
    return {name: flat(by_content(run.to_dict())) for name, run in runs.items()}


def _documents(result: Result) -> dict[str, Flat]:
    """What the stored documents hold, by the name that each gives itself."""
    out: dict[str, Flat] = {}
    for file, text in result.documents.items():
        for number, document in enumerate(parse_documents(text, file), 1):
            plain = document if isinstance(document, dict) else {"": document}
            name = str(plain.get("name", file))
            out[f"{name} {number}" if name in out else name] = flat(plain)
    return out or {result.study.kind: {}}


def compare(a: ComparedSide, b: ComparedSide) -> Comparison:
    """What differs between the two. Raises an InputError if they are results of different kinds."""
    pairs = match_runs(a.asked, b.asked)
    asked = table_of_differing_requests(a.asked, b.asked, pairs)
    notes = describe_pairs(a.asked, b.asked, pairs)
    tables: dict[str, pd.DataFrame] = {}
    versions: list[tuple[str, Any, Any]] = []
    bounded: pd.DataFrame | None = None
    if a.result is not None and b.result is not None:
        one, other = a.result.study, b.result.study
        # those of one seed and of several are compared by the same function
        alike = one.compared is not None and one.compared is other.compared
        if one.kind != other.kind and not alike:
            rule, remedy = "both must be results of the same verb", "Name two of one kind."
            refuse("", rule, f"{one.kind} and {other.kind}", remedy, "compare")
        versions = list(_computed_by(a.result, b.result))
        tables = _tables(a.result, b.result, pairs, notes)
        if one.verb in _WITH_INTERVALS:
            bounded = _intervals(a.meta, b.meta, pairs, notes)
    else:
        notes.append("A scenario has no results: what was asked is all that is compared.")
    made_by = pd.DataFrame(versions, columns=["key", "a", "b"], dtype=object)
    return Comparison(a, b, asked, made_by, tables, list(dict.fromkeys(notes)), pairs, bounded)


def _computed_by(a: Result, b: Result) -> Iterator[tuple[str, Any, Any]]:
    """Versions, code and machine that differ."""
    of = [
        flat({key: meta[key] for key in ("code", "versions", "made") if key in meta})
        for meta in (a.meta, b.meta)
    ]
    for key in dict.fromkeys([*of[0], *of[1]]):
        told = key.startswith(("code", "versions.", "made.commit", "made.machine"))
        if told and of[0].get(key) != of[1].get(key):
            yield key, of[0].get(key), of[1].get(key)


# -------------------------------------------------------------------------------------- the results


def _tables(
    a: Result, b: Result, pairs: Mapping[str, str], notes: list[str]
) -> dict[str, pd.DataFrame]:
    """The tables of both, row beside row; what has no counterpart is added to ``notes``."""
    of_b = b.compared()
    out = {}
    for name, left in a.compared().items():
        if name not in of_b:
            continue
        right = of_b[name]
        if left.index.names != right.index.names:
            rows = " and ".join(", ".join(map(str, t.index.names)) for t in (left, right))
            notes.append(f"{name} is not compared: its rows are told apart by {rows}.")
            continue
        right, more = _renamed(left, right, pairs)
        notes += more
        out[name] = _beside(name, left, right, notes)
    if not _of_other_lengths(out, notes):
        out.pop(RATES, None)
    return out


def _intervals(
    a: Mapping[str, Any], b: Mapping[str, Any], pairs: Mapping[str, str], notes: list[str]
) -> pd.DataFrame | None:
    """Epochs of both with their intervals, from ``meta``; None where one has none, and a note says
    so."""
    none = [letter for letter, meta in (("A", a), ("B", b)) if "intervals" not in meta]
    if none:
        notes.append(f"{' and '.join(none)}: {intervals.NO_INTERVALS_TO_COMPARE}.")
        return None
    left, right = (intervals.frame(meta["intervals"]) for meta in (a, b))
    return intervals.intervals_side_by_side(left, _renamed(left, right, pairs)[0])


def _of_other_lengths(tables: Mapping[str, pd.DataFrame], notes: list[str]) -> bool:
    """Whether epochs that are compared have other samples or iterations; then a note says so."""
    rates = tables.get(RATES)
    if rates is None or rates.empty:
        return False
    wide = rates.pivot(
        index=[column for column in rates if column not in {"measure", "a", "b", "difference"}],
        columns="measure",
        values=["a", "b"],
    )
    for count in ("samples", "iterations"):
        apart = wide[wide["a", count] != wide["b", count]]
        if len(apart):
            key = apart.index[0]
            key = key if isinstance(key, tuple) else (key,)
            row, where = apart.iloc[0], ", epoch ".join(map(str, key[:2]))
            of = [f"{row[x, 'samples']:,.0f} in {row[x, 'iterations']:,.0f}" for x in "ab"]
            rule = (
                "seconds of an epoch do not tell which is faster; samples/s does"
                if count == "samples"
                else "they have the same samples"
            )
            notes.insert(
                0,
                f"Epochs differ in length, samples in iterations: A {of[0]}, B {of[1]} ({where});"
                f" {rule}.",
            )
            return True
    return False


def _renamed(
    left: pd.DataFrame, right: pd.DataFrame, runs: Mapping[str, str]
) -> tuple[pd.DataFrame, list[str]]:
    """``right`` with the names of ``left`` in its first column that tells rows apart; and notes."""
    column = left.index.names[0]
    mine, others = (list(dict.fromkeys(t.index.get_level_values(0))) for t in (left, right))
    if not all(isinstance(name, str) for name in [*mine, *others]):
        return right, []
    notes: list[str] = []
    if column != "run":
        pairs, notes = pair_names(mine, others, f"{column} column")
    elif set(mine) & runs.keys():
        pairs = dict(runs)
    else:  # labels of a sweep, which are no names of scenarios
        a: RequestsByRun = {name: {} for name in mine}
        b: RequestsByRun = {name: {} for name in others}
        pairs = match_runs(a, b)
        notes = describe_pairs(a, b, pairs)
    # a run of B that is not compared must not pass for one of A with its name
    back = {name: f"{name} of B" for name in others} | {y: x for x, y in pairs.items()}
    several = right.index.nlevels > 1
    return right.rename(index=back, level=0) if several else right.rename(back), notes


def _filled(left: pd.DataFrame, right: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both with the rows of either whose first keys both have, where a table says what stands for a
    row that is not there (``attrs['absent']``)."""
    if "absent" not in left.attrs:
        return left, right
    rows = left.index.union(right.index, sort=False)
    known = [{key[:-1] for key in table.index} for table in (left, right)]
    rows = rows[[key[:-1] in known[0] & known[1] for key in rows]]
    absent = left.attrs["absent"]
    more = [table.reindex(rows.union(table.index, sort=False)) for table in (left, right)]
    return more[0].fillna(absent), more[1].fillna(absent)


def _beside(name: str, left: pd.DataFrame, right: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Values of both by row and column, and how much larger those of B are, in % of A."""
    left, right = _filled(left, right)
    for letter, only in (
        ("A", left.index.difference(right.index)),
        ("B", right.index.difference(left.index)),
    ):
        if len(only):
            notes.append(f"{name}: {len(only)} rows that only {letter} has are left out.")
    both = left.index[left.index.isin(right.index)]
    of_a, of_b = left.loc[both], right.loc[both]
    columns = [column for column in left if column in right and column != HALF]
    sides = {"a_half": of_a, "b_half": of_b}
    halves = {
        name: rows[HALF] for name, rows in sides.items() if HALF in rows and rows[HALF].gt(0).any()
    }
    pieces = [
        pd.DataFrame({"measure": of, "a": of_a[of], "b": of_b[of], **halves}) for of in columns
    ]
    if not pieces:
        return pd.DataFrame(columns=[*left.index.names, "a", "b", "difference"])
    long = pd.concat(pieces).reset_index().dropna(subset=["a", "b"], how="all")
    if len(columns) == 1:
        long = long.drop(columns="measure")
    change = 100 * (long["b"] - long["a"]) / long["a"].abs()
    change = change.where(long["a"] != long["b"], 0.0)
    change = change.mask(_is_rounding(long), 0.0)
    return long.assign(difference=change.where(change.abs() < float("inf"))).reset_index(drop=True)


def _is_rounding(long: pd.DataFrame) -> pd.Series[bool]:
    """(rows,) whether two values differ by no more than `ROUNDING` of the largest one beside
    them."""
    size = side_by_side.largest_beside(long)
    gap = (long["b"] - long["a"]).abs()
    return (gap > 0) & (gap <= ROUNDING * size)
