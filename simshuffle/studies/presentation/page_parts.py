"""Parts of the page: pieces of HTML, which escape all that comes from outside; what was asked, with
the sources of its numbers; what to beware of; how it was made."""

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
"""Of a chart, in Vega-Lite."""
Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    title: str  # as text
    body: str = ""  # as HTML
    parts: Sequence[Section] = ()  # sections inside it


def tables(parts: Iterable[str | Table]) -> str:
    """Texts and tables of a terminal, whose columns can be sorted. A text that is indented belongs
    to the one before it."""
    joined: list[str | Table] = []
    for part in parts:
        before = joined[-1] if joined else None
        if isinstance(part, str) and isinstance(before, str) and part.startswith(" "):
            joined[-1] = f"{before}\n{part}"
        else:
            joined.append(part)
    return html(joined, sortable=True)


def paragraph(text: str) -> str:
    """A text as a paragraph."""
    return f"<p>{escape(text)}</p>"


def bullets(texts: Iterable[str]) -> str:
    """Texts as a list."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def details(summary: str, body: str) -> str:
    """HTML that is shown when it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def chart(
    spec: Spec,
    title: str,
    about: str = "",
    kind: str = "",
    named: Mapping[str, tuple[Sequence[str], Rows]] | None = None,
) -> str:
    """A chart in Vega-Lite that the page's script draws; ``kind``: its class in the style sheet,
    ``named``: columns and rows of the tables that it names."""
    data = {name: {"columns": of, "rows": rows} for name, (of, rows) in (named or {}).items()}
    said = f"<strong>{escape(title)}</strong> {escape(about)}"
    return (
        f'<figure class="chart {escape(kind)}"><figcaption>{said}</figcaption>'
        f'<div class="box"><div class="plot" role="group" aria-label="{escape(title)}"></div></div>'
        f'<script type="application/json">{as_script({"spec": spec, "tables": data})}</script>'
        "</figure>"
    )


def as_script(value: Any) -> str:
    """Plain values as JSON that cannot end the script around it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


SOURCE = "source"
MOST_LETTERS = 300
MOST_RUNS = 60
"""Whose values are looked at."""


def scenarios(folder: Path, result: Result) -> dict[str, Scenario]:
    """The runs of a result by name; none where it has no scenario, or one that is not valid by
    now."""
    if "scenario.yaml" not in result.documents:
        return {}
    with suppress(SimshuffleError):
        return all_runs(load_scenarios(folder / "scenario.yaml"))
    return {}


def parameters(result: Result) -> Section:
    """All values that were asked for, and where each number is from."""
    out = []
    for file, said in result.documents.items():
        with suppress(SimshuffleError):
            for number, document in enumerate(parse_documents(said, file), 1):
                name = document.get("name", file) if isinstance(document, dict) else file
                table = new_table(None, ["key", "value", SOURCE])
                for key, value, source in sourced(document):
                    shown = str(value)
                    more = "..." if len(shown) > MOST_LETTERS else ""
                    table.add_row(key, f"{shown[:MOST_LETTERS]}{more}", source)
                title = f"{name}, {file}" if number == 1 else f"{name}, {file} {number}"
                out.append(details(f"{title}: {table.row_count} values", tables([table])))
    about = "All values, those that were not given too, and where each number is from."
    return Section("Parameters and their sources", paragraph(about) + "".join(out))


def sourced(value: Any, key: str = "", said: Sequence[tuple[str, Any]] = ()) -> Iterator[Any]:
    """Key, value and source of all that is at the dotted ``key`` of a document, '' for all;
    ``said``: the sources of the records around it, each with the key of its record."""
    if isinstance(value, dict) and value:
        own = value.get(SOURCE)
        inner = [*said, (key, own)] if own and isinstance(own, str | dict) else said
        for name, part in value.items():
            if name != SOURCE:
                yield from sourced(part, f"{key}.{name}" if key else str(name), inner)
        return
    if isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        flattened = flat(value, key)
        yield from ((name, part, _source(name, said)) for name, part in flattened.items())
        return
    yield key, value, _source(key, said)


def _source(key: str, said: Sequence[tuple[str, Any]]) -> str:
    """That of the innermost record that says one for the key; '' if none does."""
    for record, source in reversed(said):
        if isinstance(source, str):
            return source
        inside = key[len(record) + 1 :] if record else key
        parts = inside.split(".")
        for length in range(len(parts), 0, -1):
            if found := source.get(".".join(parts[:length])):
                return str(found)
    return ""


def cautions(result: Result, runs: Mapping[str, Scenario]) -> Section:
    """What may make the numbers wrong."""
    meta = result.meta
    said = ["Unfinished: what is there is shown."] * (meta.get("state") == "unfinished")
    said += [f"Lost: {name}: {why}" for name, why in dict(meta.get("lost") or {}).items()]
    of_runs = meta.get("runs")
    for run, facts in of_runs.items() if isinstance(of_runs, dict) else ():
        found = facts.get("extrapolated", []) if isinstance(facts, dict) else []
        said += [f"{run}: extrapolated: {sentence}." for sentence in found]
    warned: dict[str, list[str]] = {}
    for run, single in list(runs.items())[:MOST_RUNS]:
        with suppress(SimshuffleError):
            for problem in unusual(single):
                warned.setdefault(str(problem), []).append(run)
    for problem_text, names in warned.items():
        whose = "" if len(names) == len(runs) else f" ({', '.join(names[:6])})"
        said.append(f"Unusual: {problem_text}{whose}")
    none = f"None{': nothing is extrapolated or lost, no value looks unusual' if runs else ''}."
    return Section("Warnings", bullets(dict.fromkeys(said)) if said else paragraph(none))


def notes(result: Result) -> Section:
    """How runs were computed."""
    kept = text.about_timeline(result.meta.get("timeline", "full"))
    return Section("Notes", tables([*text.notes(result, extrapolated=False), *kept]))


def provenance(meta: Meta) -> Section:
    """Fingerprint, versions, command, date and machine."""
    made = meta.get("made")
    made = made if isinstance(made, dict) else {}
    values = {
        "command": made.get("command"),
        "date": made.get("date"),
        "kind of result": meta.get("kind"),
        "fingerprint": meta.get("fingerprint"),
        "code": meta.get("code"),
        "commit": made.get("commit"),
        "versions": meta.get("versions"),
        "machine": made.get("machine"),
    }
    rows = ""
    for name, of in values.items():
        said = ", ".join(f"{k} {v}" for k, v in of.items()) if isinstance(of, dict) else str(of)
        rows += f"<dt>{escape(name)}</dt><dd>{escape(said)}</dd>" if of else ""
    return Section("How it was made", f"<dl>{rows}</dl>")
