"""Parts of the page: pieces of HTML, which escape all text from outside; inputs with
the sources of their numbers; warnings; how the result was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simshuffle.errors import SimshuffleError
from simshuffle.job.plan.findings import warnings as unusual
from simshuffle.job.scenario.scenario import Scenario, all_runs, load_scenarios
from simshuffle.report.console import html, new_table
from simshuffle.spec.library import parse_documents
from simshuffle.studies.simulation import text
from simshuffle.study.matching import flat
from simshuffle.study.study import Meta, Result

if TYPE_CHECKING:
    from rich.table import Table

Spec = Mapping[str, Any]
"""A chart in Vega-Lite."""
Rows = Sequence[Sequence[Any]]
"""Rows of a table, with a value for each column."""


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    title: str  # as text
    body: str = ""  # as HTML
    parts: Sequence[Section] = ()  # sections inside it


def html_tables(parts: Iterable[str | Table]) -> str:
    """Return texts and tables of a terminal as HTML, whose tables can be sorted by
    columns.

    A text that is indented belongs to the one before it.
    """
    joined: list[str | Table] = []
    for part in parts:
        previous_part = joined[-1] if joined else None
        if (
            isinstance(part, str)
            and isinstance(previous_part, str)
            and part.startswith(" ")
        ):
            joined[-1] = f"{previous_part}\n{part}"
        else:
            joined.append(part)
    return html(joined, sortable=True)


def paragraph(text: str) -> str:
    """Return a text as a paragraph of HTML; it is escaped."""
    return f"<p>{escape(text)}</p>"


def bullets(texts: Iterable[str]) -> str:
    """Return texts as a list of HTML; they are escaped."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def details(summary: str, body: str) -> str:
    """Return HTML that shows ``body`` (HTML) when the reader opens ``summary`` (text)."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def chart(
    spec: Spec,
    title: str,
    about: str = "",
    kind: str = "",
    named_tables: Mapping[str, tuple[Sequence[str], Rows]] | None = None,
) -> str:
    """Return a chart in Vega-Lite as HTML; the page's script draws it.

    Args:
        spec: of the chart; NaN is not allowed in it, nor in tables.
        title: above it, as text.
        about: a text behind the title.
        kind: its class in the style sheet.
        named_tables: columns and rows of the tables that ``spec`` names.
    """
    tables = {
        name: {"columns": columns, "rows": rows}
        for name, (columns, rows) in (named_tables or {}).items()
    }
    caption = f"<strong>{escape(title)}</strong> {escape(about)}"
    return (
        f'<figure class="chart {escape(kind)}"><figcaption>{caption}</figcaption>'
        f'<div class="box"><div class="plot" role="group" aria-label="{escape(title)}"></div></div>'
        f'<script type="application/json">{embed_json({"spec": spec, "tables": tables})}</script>'
        "</figure>"
    )


def embed_json(value: Any) -> str:
    """Return plain values as JSON that cannot end the script around it.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return (
        text.replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


SOURCE = "source"
MOST_LETTERS = 300
"""Letters of a value after which it is cut."""
MOST_RUNS = 60
"""Most runs whose values are checked for warnings."""


def scenarios_of_runs(folder: Path, result: Result) -> dict[str, Scenario]:
    """Return the scenarios of a result's runs, by name, from its folder.

    They are {} where it has no scenario, or one that is not valid now.
    """
    if "scenario.yaml" not in result.documents:
        return {}
    with suppress(SimshuffleError):
        return all_runs(load_scenarios(folder / "scenario.yaml"))
    return {}


def parameter_section(result: Result) -> Section:
    """Return the section of all values of a result's inputs, and the source of each.

    A value is cut after `MOST_LETTERS` letters. A document that cannot be parsed is
    left out.
    """
    details_of_documents = []
    for file, content in result.documents.items():
        with suppress(SimshuffleError):
            for document_index, document in enumerate(
                parse_documents(content, file), 1
            ):
                name = (
                    document.get("name", file) if isinstance(document, dict) else file
                )
                table = new_table(None, ["key", "value", SOURCE])
                for key, value, source in list_values(document):
                    value_text = str(value)
                    ellipsis = "..." if len(value_text) > MOST_LETTERS else ""
                    table.add_row(key, f"{value_text[:MOST_LETTERS]}{ellipsis}", source)
                title = (
                    f"{name}, {file}"
                    if document_index == 1
                    else f"{name}, {file} {document_index}"
                )
                details_of_documents.append(
                    details(f"{title}: {table.row_count} values", html_tables([table]))
                )
    about = "All values, including defaults, with the source of each number."
    return Section(
        "Parameters and their sources", paragraph(about) + "".join(details_of_documents)
    )


def list_values(
    value: Any, key: str = "", outer_sources: Sequence[tuple[str, Any]] = ()
) -> Iterator[Any]:
    """Yield dotted key, value and source ('' if unknown) of each value of a document.

    Sources themselves are left out, but not those inside lists. A list of plain values
    is one value; elements of other lists are numbered from 0.

    Args:
        value: the document, or a part of it.
        key: the dotted key of that part; '' for all.
        outer_sources: the sources of the records around it, outermost first, each with
            the key of its record.
    """
    if isinstance(value, dict) and value:
        record_source = value.get(SOURCE)
        inner_sources = outer_sources
        if record_source and isinstance(record_source, str | dict):
            inner_sources = [*outer_sources, (key, record_source)]
        for name, nested_value in value.items():
            if name != SOURCE:
                yield from list_values(
                    nested_value, f"{key}.{name}" if key else str(name), inner_sources
                )
        return
    if isinstance(value, list) and any(
        isinstance(nested_value, dict | list) for nested_value in value
    ):
        flattened = flat(value, key)
        yield from (
            (name, nested_value, _find_source(name, outer_sources))
            for name, nested_value in flattened.items()
        )
        return
    yield key, value, _find_source(key, outer_sources)


def _find_source(key: str, outer_sources: Sequence[tuple[str, Any]]) -> str:
    """Return the source of the innermost record that has one for the key, or ''.

    A source that is a text is of all keys in its record. Of a mapping it is that of the
    longest beginning of the key.
    """
    for record, source in reversed(outer_sources):
        if isinstance(source, str):
            return source
        key_in_record = key[len(record) + 1 :] if record else key
        parts = key_in_record.split(".")
        for length in range(len(parts), 0, -1):
            if source_of_key := source.get(".".join(parts[:length])):
                return str(source_of_key)
    return ""


def warning_section(result: Result, runs: Mapping[str, Scenario]) -> Section:
    """Return the section of what may make the numbers wrong.

    These are lost and unfinished runs, extrapolated values, and unusual values of the
    first `MOST_RUNS` runs, with at most six names of runs. Runs whose values cannot be
    checked are left out.
    """
    meta = result.meta
    sentences = ["Unfinished: the page shows what is finished."] * (
        meta.get("state") == "unfinished"
    )
    sentences += [
        f"Lost: {name}: {why}" for name, why in dict(meta.get("lost") or {}).items()
    ]
    facts_of_runs = meta.get("runs")
    for run, facts in facts_of_runs.items() if isinstance(facts_of_runs, dict) else ():
        extrapolations = (
            facts.get("extrapolated", []) if isinstance(facts, dict) else []
        )
        sentences += [
            f"{run}: extrapolated: {sentence}." for sentence in extrapolations
        ]
    runs_by_problem: dict[str, list[str]] = {}
    for run, scenario in list(runs.items())[:MOST_RUNS]:
        with suppress(SimshuffleError):
            for problem in unusual(scenario):
                runs_by_problem.setdefault(str(problem), []).append(run)
    for problem_text, names in runs_by_problem.items():
        which_runs = "" if len(names) == len(runs) else f" ({', '.join(names[:6])})"
        sentences.append(f"Unusual: {problem_text}{which_runs}")
    no_warning = "None."
    if runs:
        no_warning = "None: nothing is extrapolated or lost, no value looks unusual."
    return Section(
        "Warnings",
        bullets(dict.fromkeys(sentences)) if sentences else paragraph(no_warning),
    )


def notes_section(result: Result) -> Section:
    """Return the section of how runs were computed, and whose timelines are kept."""
    timeline_notes = text.describe_timeline(result.meta.get("timeline", "full"))
    return Section(
        "Notes",
        html_tables([*text.list_notes(result, extrapolated=False), *timeline_notes]),
    )


def provenance_section(meta: Meta) -> Section:
    """Return the section with fingerprint, versions, command, date and machine.

    What ``meta`` lacks is left out.
    """
    origin = meta.get("made")
    origin = origin if isinstance(origin, dict) else {}
    values = {
        "command": origin.get("command"),
        "date": origin.get("date"),
        "kind of result": meta.get("kind"),
        "fingerprint": meta.get("fingerprint"),
        "code": meta.get("code"),
        "commit": origin.get("commit"),
        "versions": meta.get("versions"),
        "machine": origin.get("machine"),
    }
    rows = ""
    for name, value in values.items():
        value_text = str(value)
        if isinstance(value, dict):
            value_text = ", ".join(
                f"{package} {version}" for package, version in value.items()
            )
        rows += f"<dt>{escape(name)}</dt><dd>{escape(value_text)}</dd>" if value else ""
    return Section("How it was made", f"<dl>{rows}</dl>")
