"""Two results, or two scenarios, side by side: what differs in what was asked, and then in what
came out of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.errors import InputError, Problem, SimshuffleError
from simshuffle.results.console import new_table, terminal_text
from simshuffle.results.export import html
from simshuffle.results.table_io import rows as rows_of
from simshuffle.scenario.inputs import by_content
from simshuffle.scenario.scenario import Scenario, all_runs, load_scenarios
from simshuffle.spec.library import documents
from simshuffle.studies import read_folder
from simshuffle.study.study import Result

if TYPE_CHECKING:
    from rich.table import Table


MOST_RUNS = 200
"""Runs of a result whose scenarios are compared one by one; of more, the files are."""
MOST_ROWS = 60
"""Rows of a table that are all shown; of a longer one, those that differ, and at most so many."""
ABSENT, SHORT = "-", 60
"""What stands for no value in a table, and letters of a value that it shows."""
_NOT_ASKED = {"name", "description"}
_OF_THE_RESULT = {"kind", "fingerprint", "versions", "code", "made", "lost", "state", "files"}
_OF_THE_RESULT |= {"runs", "study", "scenario", "description"}
"""Keys of ``meta.json`` that do not say what was asked."""

Flat = Mapping[str, Any]
"""Values by dotted key."""


@dataclass(frozen=True)
class Side:
    """One of the two."""

    name: str  # as it was given
    # what was asked, by the name of the run; of results that are not simulations, by the name of
    # the scenario or study
    asked: Mapping[str, Flat]
    result: Result | None = None  # None for a scenario


@dataclass(frozen=True)
class Comparison:
    """What differs."""

    # a, b: what is compared
    a: Side
    b: Side
    asked: pd.DataFrame  # columns run ('' for all), key, a, b
    versions: pd.DataFrame  # columns key, a, b: versions, code and machine that differ
    # by name: columns that tell rows apart, a, b, and difference, in % of a
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    # what else is to be said: runs of other names, rows without a counterpart
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        """What a terminal shows of it."""
        return terminal_text(self.parts())

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        return html(self.parts())

    def parts(self) -> Iterator[str | Table]:
        """What a terminal shows: texts and tables."""
        yield from (f"{letter}: {_about(side)}" for letter, side in self._sides())
        if self.asked.empty:
            yield "What was asked is the same."
        else:
            yield _differences("What was asked", self.asked)
        if not self.versions.empty:
            yield _differences("What computed it", self.versions)
        yield from self.notes
        for name, table in self.tables.items():
            yield from _values(name, table)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values; what is empty is None."""
        about = {
            letter.lower(): {"name": side.name, **_meta(side, "kind", "fingerprint")}
            for letter, side in self._sides()
        }
        tables = {name: rows_of(table) for name, table in self.tables.items()}
        asked, versions = rows_of(self.asked), rows_of(self.versions)
        return {**about, "asked": asked, "versions": versions, "notes": [*self.notes], **tables}

    def _sides(self) -> list[tuple[str, Side]]:
        return [("A", self.a), ("B", self.b)]


def side(reference: str | Path | Result | Scenario) -> Side:
    """A result or its folder, or a scenario: one that is loaded, a file, or a name.

    Raises:
        InputError: it is none of these, or damaged.
    """
    if isinstance(reference, Result):
        with tempfile.TemporaryDirectory() as place:
            kept = reference.save(Path(place) / reference.meta["fingerprint"], draw=False)
            return replace(side(kept), name=kept.name, result=reference)
    if isinstance(reference, Scenario):
        return Side(reference.name, _of_runs([reference]))
    reference = str(reference)
    folder = Path(reference)
    if not folder.is_dir():
        return Side(reference, _of_runs(load_scenarios(reference)))
    result = read_folder(folder)
    about = flat({k: value for k, value in result.meta.items() if k not in _OF_THE_RESULT})
    asked = _runs(result, folder) or _documents(result)
    return Side(reference, {name: {**about, **of} for name, of in asked.items()}, result)


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
        for number, document in enumerate(documents(text, file), 1):
            plain = document if isinstance(document, dict) else {"": document}
            name = str(plain.get("name", file))
            out[f"{name} {number}" if name in out else name] = flat(plain)
    return out or {result.study.kind: {}}


def flat(value: Any, key: str = "") -> dict[str, Any]:
    """Values by dotted key; a list without mappings is one value."""
    if isinstance(value, list) and any(isinstance(inner, dict) for inner in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict) or not value:
        return {key: value} if key else {}
    out: dict[str, Any] = {}
    for name, inner in value.items():
        out |= flat(inner, f"{key}.{name}" if key else str(name))
    return out


def compare(a: Side, b: Side) -> Comparison:
    """What differs between the two.

    Raises:
        InputError: they are results of different kinds.
    """
    pairs, notes = paired(list(a.asked), list(b.asked), "runs")
    asked = _asked(a, b, pairs)
    tables: dict[str, pd.DataFrame] = {}
    versions: list[tuple[str, Any, Any]] = []
    if a.result is not None and b.result is not None:
        studies = (a.result.study, b.result.study)
        kinds = [study.kind for study in studies]
        # those of one seed and of several are compared by the same function
        if kinds[0] != kinds[1] and (
            studies[0].compared is None or studies[0].compared is not studies[1].compared
        ):
            rule, remedy = "both must be results of the same verb", "Name two of one kind."
            raise InputError(Problem("", rule, " and ".join(kinds), remedy), "compare")
        versions = list(_computed_by(a.result, b.result))
        tables = _tables(a.result, b.result, notes)
    else:
        notes.append("A scenario has no results: what was asked is all that is compared.")
    made_by = pd.DataFrame(versions, columns=["key", "a", "b"], dtype=object)
    return Comparison(a, b, asked, made_by, tables, list(dict.fromkeys(notes)))


def paired(a: Sequence[str], b: Sequence[str], what: str) -> tuple[dict[str, str], list[str]]:
    """Names of B by those of A that they are compared with: those that both have; the others in
    their order, if they are equally many. And notes on the others."""
    pairs = {name: name for name in a if name in set(b)}
    left, right = [n for n in a if n not in pairs], [n for n in b if n not in pairs]
    if len(left) == len(right):
        pairs |= dict(zip(left, right, strict=True))
        matched = ", ".join(f"'{x}' with '{y}'" for x, y in zip(left, right, strict=True))
        return pairs, [f"Names of {what} differ; compared in their order: {matched}."] * bool(left)
    notes = [
        f"Only {letter} has these {what}: {', '.join(names)}."
        for letter, names in (("A", left), ("B", right))
        if names
    ]
    return pairs, notes


def _asked(a: Side, b: Side, pairs: Mapping[str, str]) -> pd.DataFrame:
    """What differs in what was asked: once where it is the same for all runs."""
    found: dict[tuple[str, str, str], list[tuple[str, Any, Any]]] = {}
    for name, other in pairs.items():
        of_a, of_b = a.asked[name], b.asked[other]
        for key in dict.fromkeys([*of_a, *of_b]):
            values = of_a.get(key), of_b.get(key)
            if key not in _NOT_ASKED and (values[0] != values[1] or (key in of_a) != (key in of_b)):
                found.setdefault((key, repr(values[0]), repr(values[1])), []).append(
                    (name, *values)
                )
    rows = [
        ("" if len(runs) == len(pairs) else name, key, *values)
        for (key, _, _), runs in found.items()
        for name, *values in (runs[:1] if len(runs) == len(pairs) else runs)
    ]
    return pd.DataFrame(rows, columns=["run", "key", "a", "b"], dtype=object)


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


def _tables(a: Result, b: Result, notes: list[str]) -> dict[str, pd.DataFrame]:
    """The tables of both, row beside row; what has no counterpart is added to ``notes``."""
    of_a, of_b = a.compared(), b.compared()
    out = {}
    for name in of_a.keys() & of_b.keys():
        left, right = of_a[name], of_b[name]
        if left.index.names != right.index.names:
            rows = " and ".join(", ".join(map(str, t.index.names)) for t in (left, right))
            notes.append(f"{name} is not compared: its rows are told apart by {rows}.")
            continue
        right, more = _renamed(left, right)
        notes += more
        out[name] = _beside(name, left, right, notes)
    return {name: out[name] for name in of_a if name in out}


def _renamed(left: pd.DataFrame, right: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """``right`` with the names of ``left`` in its first column that tells rows apart; and notes."""
    column = left.index.names[0]
    mine, others = (list(dict.fromkeys(t.index.get_level_values(0))) for t in (left, right))
    if not all(isinstance(name, str) for name in [*mine, *others]):
        return right, []
    pairs, notes = paired(mine, others, "runs" if column == "run" else f"{column} column")
    back = {other: name for name, other in pairs.items()}
    return right.rename(index=back, level=0) if right.index.nlevels > 1 else right.rename(
        back
    ), notes


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
    columns = [column for column in left if column in right]
    pieces = [
        pd.DataFrame({"measure": column, "a": of_a[column], "b": of_b[column]})
        for column in columns
    ]
    if not pieces:
        return pd.DataFrame(columns=[*left.index.names, "a", "b", "difference"])
    long = pd.concat(pieces).reset_index().dropna(subset=["a", "b"], how="all")
    if len(columns) == 1:
        long = long.drop(columns="measure")
    change = 100 * (long["b"] - long["a"]) / long["a"].abs()
    change = change.where(long["a"] != long["b"], 0.0)
    return long.assign(difference=change.where(change.abs() < float("inf"))).reset_index(drop=True)


# --------------------------------------------------------------------------------- on a terminal


def _about(side: Side) -> str:
    if side.result is None:
        return f"{side.name}, scenario"
    of, made = _meta(side, "kind", "fingerprint"), side.result.meta.get("made")
    when = f", made {made['date']}" if isinstance(made, dict) and made.get("date") else ""
    return f"{side.name}, {of['kind']}, fingerprint {of['fingerprint']}{when}"


def _meta(side: Side, *keys: str) -> dict[str, Any]:
    return {key: side.result.meta[key] for key in keys} if side.result is not None else {}


def _differences(title: str, table: pd.DataFrame) -> Table:
    """Keys and their values in A and B; the run only where they are not those of all."""
    several = "run" in table and (table["run"] != "").any()
    shown = new_table(title, ["run"] if several else [])
    for name in ("key", "A", "B"):
        shown.add_column(name, overflow="fold")
    for row in table.to_dict("records"):
        run = [row["run"] or "all"] if several else []
        shown.add_row(*run, row["key"], _value(row["a"]), _value(row["b"]))
    return shown


def _value(value: Any) -> str:
    """A value as a file has it, cut where it is long."""
    text = ABSENT if value is None else str(value).lower() if value in (True, False) else str(value)
    return text if len(text) <= SHORT else f"{text[: SHORT - 3]}..."


def _values(name: str, table: pd.DataFrame) -> Iterator[str | Table]:
    """A table of the results, and a sentence on how much of it is the same."""
    if table.empty:
        yield f"{name}: nothing to compare."
        return
    differ = table[table["difference"] != 0]
    shown = table if len(table) <= MOST_ROWS else differ.head(MOST_ROWS)
    keys = [str(column) for column in table if column not in {"a", "b", "difference"}]
    if len(shown):
        yield _side_by_side(name, shown, keys)
    same = len(table) - len(differ)
    text = f"{name}: {same} of {len(table)} values are the same to the last bit"
    if differ["difference"].notna().any():
        most = differ.loc[[differ["difference"].abs().idxmax()]].to_dict("records")[0]
        where = ", ".join(str(most[key]) for key in keys)
        text += f"; the largest difference is {_change(most['difference'])}, {where}"
    more = len(differ) - len(shown)
    yield f"{text}." + (f" {more} more values differ; --json has them." if more > 0 else "")


def _side_by_side(name: str, table: pd.DataFrame, keys: Sequence[str]) -> Table:
    words = [key for key in keys if not pd.api.types.is_numeric_dtype(table[key])]
    shown = new_table(f"{name[0].upper()}{name[1:]}: A, B, difference in % of A")
    for key in keys:
        shown.add_column(str(key), justify="left" if key in words else "right")
    for letter in ("A", "B", "difference"):
        shown.add_column(letter, justify="right", no_wrap=True)
    for row in table.to_dict("records"):
        cells = [str(row[key]) for key in keys]
        shown.add_row(*cells, _number(row["a"]), _number(row["b"]), _change(row["difference"]))
    return shown


def _number(value: float) -> str:
    """Four digits, or all before the point."""
    if pd.isna(value):
        return ABSENT
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _change(percent: float) -> str:
    """A difference in percent; '=' where there is none to the last bit."""
    if pd.isna(percent):
        return ABSENT
    if percent == 0:
        return "="
    return f"{percent:+.1f} %" if abs(percent) >= 0.1 else f"{percent:+.1g} %"
