"""Pieces of HTML: everything that comes from outside is escaped here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from simshuffle.results.console import html

if TYPE_CHECKING:
    from rich.table import Table

Spec = Mapping[str, Any]
"""Of a chart, in Vega-Lite."""
Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Chart:
    """What the page's script draws."""

    spec: Spec  # in Vega-Lite
    # that it names: their columns, and their rows
    tables: Mapping[str, tuple[Sequence[str], Rows]] = field(default_factory=dict)


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


def terms(values: Mapping[str, str]) -> str:
    """Names and their values."""
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in values.items())
    return f"<dl>{''.join(rows)}</dl>"


def details(summary: str, body: str) -> str:
    """HTML that is shown when it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def chart(drawn: Chart, title: str, about: str = "", kind: str = "") -> str:
    """A chart that the page's script draws; ``kind`` is its class in the style sheet."""
    named = {
        name: {"columns": columns, "rows": rows} for name, (columns, rows) in drawn.tables.items()
    }
    told = as_script({"spec": drawn.spec, "tables": named})
    said = f"<strong>{escape(title)}</strong> {escape(about)}"
    return (
        f'<figure class="chart {escape(kind)}"><figcaption>{said}</figcaption>'
        f'<div class="box"><div class="plot" role="group" aria-label="{escape(title)}"></div></div>'
        f'<script type="application/json">{told}</script></figure>'
    )


def as_script(value: Any) -> str:
    """Plain values as JSON that cannot end the script around it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
