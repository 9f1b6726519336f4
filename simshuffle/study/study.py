"""Study: how a kind of question is computed, stored, shown and drawn.

Request: the checked question. Result: the tables and facts of the answer, equal whether
just computed or read from its folder.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pandas as pd

from simshuffle.errors import Problem, refuse
from simshuffle.report.console import html, terminal_text
from simshuffle.report.folders import INPUTS, write_folder
from simshuffle.report.names import short_names, with_short_names
from simshuffle.report.style import load_artists, sign_figure
from simshuffle.report.table_io import plain_rows
from simshuffle.study.cell import Cell, Outcome, code_digest
from simshuffle.study.long_table import LazyTables, get_lazily, get_long
from simshuffle.study.schema import Column, Schema
from simshuffle.study.store import write_file
from simshuffle.study.verdict import Verdict
from simshuffle.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from simshuffle.report.chart import Chart

LINE = 100  # columns of a verdict on a terminal
V = TypeVar("V")
Tables = Mapping[str, pd.DataFrame]
Meta = Mapping[str, Any]
Outcomes = Mapping[str, Outcome]  # outcomes by the names of their cells
Stage = Callable[[V, Outcomes], Mapping[str, Cell]]
"""The cells of a stage by name, from what is asked and the outcomes of the stages
before it.
"""
Files = Mapping[str, bytes | Path]  # files by name: their contents, or where they are


@dataclass(frozen=True)
class Derived:
    """A table that follows from the stored ones, and is written beside them for other
    programs.
    """

    schema: Schema  # of it
    table: Callable[[Result], pd.DataFrame]  # makes it


@dataclass(frozen=True)
class Study(Generic[V]):
    """A kind of study: its cells, tables, texts and figures."""

    kind: str  # what ``meta.json`` calls it
    verb: str  # of the command line, which also begins the names of its folders; '' for none
    stages: tuple[Stage[V], ...]  # of cells; none where nothing is cached
    # the stored tables, from what was asked and the outcomes of all stages
    collect: Callable[[V, Outcomes], Tables]
    # their schemas by name, which is also that of the file
    stored: Mapping[str, Schema]
    # names of further text files, such as 'scenario.yaml'
    documents: tuple[str, ...] = ()
    # tables that follow from the stored ones
    derived: Mapping[str, Derived] = field(default_factory=dict)
    # columns that depend on what was asked, by what ``meta.json`` says, such as the axes of a
    # sweep; they stand first in every table
    leading: Callable[[Meta], Mapping[str, Column]] = lambda meta: {}
    # further text files by name, and what makes them
    texts: Mapping[str, Callable[[Result], str]] = field(default_factory=dict)
    # further files by the folder that they are in, such as 'plans'
    files_in: Mapping[str, Callable[[V, Outcomes], Files]] = field(default_factory=dict)
    # figures by name, as they are declared
    figures: Callable[[Result], Mapping[str, Chart]] = lambda result: {}
    one_figure: bool = False  # whether there is always one
    # what a terminal shows: texts and tables
    parts: Callable[[Result], Iterable[str | Table]] = lambda result: ()
    # tables and texts that a terminal shows with -v alone, before ``parts``
    details: Callable[[Result], Iterable[str | Table]] = lambda result: ()
    # the answer, from the tables; it stands last on a terminal and first on a page
    verdict: Callable[[Result], Verdict] | None = None
    # ``parts`` for LaTeX and Markdown, where the terminal shows a report that has its tables in its
    # text; None for ``parts``
    exported: Callable[[Result], Iterable[str | Table]] | None = None
    # what ``--json`` prints, as plain values; None for all tables. With a verdict it is by name
    as_json: Callable[[Result], Any] | None = None
    # tables by name that are put beside those of another result: what tells rows apart as index,
    # and columns of numbers; None for all tables in CSV whose schemas have a key
    compared: Callable[[Result], Tables] | None = None
    # what ``meta.json`` says beside kind, fingerprint and versions
    facts: Callable[[V, Outcomes, Tables], Meta] = lambda values, outcomes, tables: {}
    # what ``meta.json`` holds for figures and texts, as a TypedDict: other values are refused where
    # a folder is read
    says: Any = dict[str, Any]
    # s of one core that the stages after number ``stage`` (from 0) take, by estimate, before their
    # cells are known: the time that is left counts them
    later_cost: Callable[[V, int], float] = lambda values, stage: 0.0
    # what is wrong with a result that was read, whose tables and ``meta.json`` are each as they
    # should be: where they do not fit together
    faults: Callable[[Result], Iterable[Problem]] = lambda result: ()
    # modules whose code, with what they import, decides the stored tables beside the code of the
    # cells; the module of ``collect`` if none are named
    decides: tuple[str, ...] = ()
    # whether there is a result although cells are lost (``meta['lost']`` says which and why) or the
    # study was stopped: ``meta['state']`` is 'finished', 'incomplete' (cells are lost) or
    # 'unfinished'. ``collect`` is then given outcomes of lost cells, and none of those that are
    # still to be done; it raises a SimshuffleError if it can do nothing.
    partial: bool = False
    # the function, as 'module:name', that gives the request of a result from its folder and
    # ``meta.json``; it raises an InputError where these do not hold all that was asked. It is named
    # because it may need what a study may not import.
    again: str = ""
    # last parts of keys of ``meta.json`` that a clock measured while the result was made, as of
    # `simshuffle.study.schema.Column`
    measured: tuple[str, ...] = ()
    # packages whose versions ``meta.json`` names
    versions: tuple[str, ...] = ("numpy", "numba", "simpy", "networkx", "pandas")
    # the class of its results
    result: type[Result] = field(default_factory=lambda: Result)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files right in a result folder, but the figures."""
        names = (f"{name}{schema.suffix}" for name, schema in self._schemas.items())
        return ("meta.json", "columns.json", *self.documents, *names, *self.texts)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all files and folders in a result folder, but the figures and
        `INPUTS`.
        """
        return (*self.files, *self.files_in)

    def schemas(self, meta: Meta) -> dict[str, Schema]:
        """The schema of every table by name, stored ones first, with ``leading``
        columns.
        """
        leading = dict(self.leading(meta))
        return {
            name: replace(schema, columns={**leading, **schema.columns})
            for name, schema in self._schemas.items()
        }

    @property
    def _schemas(self) -> dict[str, Schema]:
        """The schemas of stored and derived tables by name, without leading columns."""
        return {
            **self.stored,
            **{name: derived.schema for name, derived in self.derived.items()},
        }


@dataclass(frozen=True)
class Request(Generic[V]):
    """A checked request of a user: the values, documents and files that decide the
    result.
    """

    name: str  # of the scenario or study, which names the folder
    values: V  # checked; what the stages and ``collect`` are given
    # texts that are kept in the folder by file name, such as the resolved scenario
    documents: Mapping[str, str]
    # further plain values that decide the result; ``meta.json`` has them
    asked: Meta = field(default_factory=dict)
    # files that the documents name, by their names in the folder `INPUTS`, which stand for their
    # contents
    inputs: Mapping[str, Path] = field(default_factory=dict)
    about: str = (
        ""  # what is to be known before it begins, such as how much there is to do
    )
    # whether its cells share a device: they are done one after another, unless a number of
    # processes is named
    one_device: bool = False


def fingerprint(study: Study[V], request: Request[V]) -> str:
    """Return the fingerprint of a request: twelve hexadecimal digits.

    They stand for the kind, the documents, the asked values, and the code that decides
    the result. Inputs count by their names in the documents.
    """
    deciding = [
        study.kind,
        dict(request.documents),
        dict(request.asked),
        code_of_study(study),
    ]
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[
        :12
    ]


def code_of_study(study: Study[Any]) -> str:
    """Return the SHA-256 of the code that decides a study's tables (64 digits), beside
    that of its cells.
    """
    return code_digest(*(study.decides or (study.collect.__module__,)))


def documents_with_details(
    parts: Callable[[Result], Iterable[str | Table]],
    details: Callable[[Result], Iterable[str | Table]],
) -> dict[str, Any]:
    """Return the fields parts, details and exported (both) of a `Study`."""
    return {
        "parts": parts,
        "details": details,
        "exported": lambda result: [*parts(result), *details(result)],
    }


def versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of simshuffle, Python and installed packages, by name."""
    version_of_name = {"simshuffle": __version__, "python": platform.python_version()}
    return version_of_name | {name: _installed_version(name) for name in names}


@cache
def _installed_version(name: str) -> str:
    """Return the version of an installed package, which its files are read for once."""
    return version(name)


@dataclass(frozen=True, repr=False)
class Result:
    """The tables, facts, documents and files of a study's answer. Its text, and its
    view in a notebook, are its tables.
    """

    study: Study[Any]  # its kind
    tables: Tables  # the stored tables by name
    meta: Meta  # kind, fingerprint, versions, and what the study says of itself
    documents: Mapping[str, str]  # text files by name, such as 'scenario.yaml'
    # further files by folder
    files_in: Mapping[str, Files] = field(default_factory=dict)
    # files that the documents name, by their names in the folder `INPUTS`; copied with the result
    inputs: Mapping[str, Path] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return its kind, and its tables with the numbers of their rows."""
        rows = {name: len(get_long(self.all_tables, name)) for name in self.all_tables}
        tables = ", ".join(f"{name} ({count})" for name, count in rows.items())
        return f"<{self.study.kind} result {self.meta['fingerprint']}: {tables}>"

    def __str__(self) -> str:
        """Return the text that a terminal shows with -v, verdict included."""
        return terminal_text([*self.details(), *self.parts()])

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return html(self.exported())

    @cached_property
    def derived(self) -> Tables:
        """The tables that follow from the stored ones, by name; computed once."""
        return {
            name: derived.table(self) for name, derived in self.study.derived.items()
        }

    @property
    def all_tables(self) -> Tables:
        """The stored tables and those that follow from them, by name; long ones
        unloaded.
        """
        stored = {name: get_lazily(self.tables, name) for name in self.tables}
        return LazyTables({**stored, **self.derived})

    def save(
        self, folder: str | Path, *, replace: bool = False, draw: bool = True
    ) -> Path:
        """Write the result folder, with its figures if ``draw``, and return its path.

        It is written completely or not at all.

        Raises:
            InputError: the folder holds something that is no result; or it holds a
                result, and ``replace`` is False.
        """

        def fill(draft: Path) -> None:
            self._fill(draft)
            if draw:
                self.draw(draft)

        return write_folder(
            Path(folder), fill, replace=replace, known_names=self.study.names
        )

    def _fill(self, folder: Path) -> None:
        """Write all files but the figures into ``folder``; inputs are copied, not
        linked.
        """
        for name, text in self.documents.items():
            (folder / name).write_text(text, encoding="utf-8")
        meta = json.dumps(self.meta, indent=1, sort_keys=True)
        (folder / "meta.json").write_text(f"{meta}\n", encoding="utf-8")
        schemas = self.study.schemas(self.meta)
        meanings = {
            f"{name}{schema.suffix}": schema.meanings
            for name, schema in schemas.items()
        }
        (folder / "columns.json").write_text(
            f"{json.dumps(meanings, indent=1)}\n", encoding="utf-8"
        )
        for name in self.all_tables:
            schemas[name].write(get_lazily(self.all_tables, name), folder / name)
        for name, text_of in self.study.texts.items():
            (folder / name).write_text(text_of(self), encoding="utf-8")
        for subfolder, files in self.files_in.items():
            for name, content in files.items():
                (folder / subfolder).mkdir(exist_ok=True)
                write_file(content, folder / subfolder / name)
        for name, path in self.inputs.items():
            (folder / INPUTS).mkdir(exist_ok=True)
            # no link: the file is its owner's, who may change it
            shutil.copyfile(path, folder / INPUTS / name)

    def draw(self, folder: str | Path, name: str = "") -> list[Path]:
        """Draw the figures into ``folder``, which is made if need be; return their
        files: a PNG and a PDF of each, which replace older ones.

        ``name`` is that of the file, without suffix, where there is only one figure;
        several keep the names that the study gives them.
        """
        load_artists()
        from simshuffle.report import canvas, paper  # noqa: PLC0415 - matplotlib

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        figures = self.study.figures(self)
        paths = []
        for figure_name, chart in figures.items():
            stem = target / (name if name and len(figures) == 1 else figure_name)
            signature = sign_figure(figure_name, [self.meta["fingerprint"]])
            paths += canvas.save(paper.draw(chart), stem, signature)
        return paths

    def figure(self, name: str = "") -> Figure:
        """Draw and return the figure of that name; the only one if none is named.

        Raises:
            InputError: there is no such figure, or there are several and none is named.
        """
        # matplotlib, where it is drawn
        from simshuffle.report import paper  # noqa: PLC0415

        figures = self.study.figures(self)
        if not name and len(figures) == 1:
            (name,) = figures
        if name not in figures:
            remedy = (
                f"There are {', '.join(figures)}." if figures else "There are none."
            )
            refuse("name", "no such figure", repr(name), remedy, "figure")
        return paper.draw(figures[name])

    def table(self, name: str) -> pd.DataFrame:
        """Return the table of that name, stored or derived; a long one is loaded, anew
        in each call.

        Raises:
            InputError: there is no such table.
        """
        if name not in self.all_tables:
            remedy = f"There are {', '.join(self.all_tables)}."
            refuse("name", "no such table", repr(name), remedy, "table")
        return self.all_tables[name]

    def structured_verdict(self) -> Verdict:
        """Return the verdict with short names of runs; empty if the study has none."""
        verdict = Verdict() if self.study.verdict is None else self.study.verdict(self)
        return verdict.shorten(self.short_names)

    def verdict(self) -> list[str]:
        """Return the lines of the verdict, the answer first; [] if there is none."""
        return self.structured_verdict().lines()

    def answer(self, width: int = LINE) -> list[str]:
        """Return the lines of the verdict, each folded at ``width`` columns, of which
        at least a third of `LINE` and at most `LINE` are used.
        """
        width = max(min(width, LINE), LINE // 3)
        folded = partial(
            textwrap.fill, width=width, subsequent_indent="  ", break_on_hyphens=False
        )
        return [folded(line) for line in self.verdict()]

    def parts(self) -> list[str | Table]:
        """Return what a terminal shows: texts and tables, and the verdict last."""
        return [*self.parts_before_verdict(), *self.answer()]

    def parts_before_verdict(self) -> list[str | Table]:
        """Return the texts and tables before the verdict."""
        return self._plainly(self.study.parts(self))

    def details(self) -> list[str | Table]:
        """Return the texts and tables that a terminal shows with -v alone."""
        return self._plainly(self.study.details(self))

    def listings(self) -> list[str | Table]:
        """Return the texts and tables that documents show beside the verdict."""
        return self._plainly((self.study.exported or self.study.parts)(self))

    @cached_property
    def short_names(self) -> dict[str, str]:
        """Short names of runs and strategies, by name, without schedules that all
        share.

        A long table stays unloaded: it is of runs that the short ones name too.
        """
        columns = ("label" if "axes" in self.meta else "run", "strategy")
        tables = [get_lazily(self.tables, name) for name in self.tables]
        return short_names(
            str(name)
            for table in tables
            if isinstance(table, pd.DataFrame)
            for column in columns
            if column in table
            for name in table[column].unique()
        )

    def _plainly(self, parts: Iterable[str | Table]) -> list[str | Table]:
        """Return texts and tables with the `short_names` of runs."""
        return list(with_short_names(parts, self.short_names))

    def exported(self) -> list[str | Table]:
        """Return the parts for LaTeX and Markdown: `listings`, then the answer as text."""
        return [*self.listings(), *self.verdict()]

    def as_json(self) -> Any:
        """Return plain values for ``--json``: the rows of every table, by its name.

        'verdict' and 'verdict_parts' come first where the study has one. Values that the
        study makes itself stand in place of the tables. Empty values of tables are None.
        """
        values = (
            {name: plain_rows(table) for name, table in self.all_tables.items()}
            if self.study.as_json is None
            else self.study.as_json(self)
        )
        if self.study.verdict is None:
            return values
        return {**self.structured_verdict().as_json(), **values}

    def compared(self) -> Tables:
        """Return tables to put beside another result's: key as index, columns of
        numbers.

        They are those that the study names, or else all tables in CSV that have a key,
        with their columns of kinds real and count.
        """
        if self.study.compared is not None:
            return self.study.compared(self)
        tables = self.all_tables
        compared_tables = {}
        for name, schema in self.study.schemas(self.meta).items():
            if schema.key and schema.suffix == ".csv":
                numbers = [
                    column
                    for column, description in schema.columns.items()
                    if description.kind in {"real", "count"}
                    and column not in schema.key
                ]
                compared_tables[name] = tables[name].set_index(list(schema.key))[
                    numbers
                ]
        return compared_tables
