"""The report page: results of any study as one file that a browser shows without a network."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from html import escape, unescape
from importlib.resources import files
from pathlib import Path

from simshuffle.errors import InputError, refuse
from simshuffle.report import canvas, paper
from simshuffle.report.chart import Chart
from simshuffle.report.folders import room_for, take_place
from simshuffle.report.names import shorten_names
from simshuffle.studies.comparison import compare, side
from simshuffle.studies.presentation import page_parts, page_runs, page_vega
from simshuffle.studies.presentation.of_runs import Given
from simshuffle.studies.presentation.page_parts import Section, bullets, paragraph, tables
from simshuffle.study.registry import read_folder
from simshuffle.version import __version__

GENERATOR = "simshuffle report"
"""What the head of a page says that made it."""
RESULTS = "simshuffle-results"
"""The name under which the head says of which results it is."""


def document(results: Sequence[Given]) -> str:
    """The page of one or more results, as HTML."""
    names = " and ".join(of.name for of in results)
    if len(results) == 1:
        parts = list(_sections(results[0]))
    else:
        parts = [_comparison(results)]
        for place, of in enumerate(results):
            title = f"Result {_letter(place)}: {of.name}"
            parts.append(Section(title, parts=list(_sections(of))))
    main = "".join(_section(part, 2, f"part-{number}") for number, part in enumerate(parts, 1))
    title = escape(f"simshuffle: {names}")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>{_head(title, results)}</head>\n<body>'
        '<a class="skip" href="#main">Skip to the results</a>'
        f"<header><h1>{escape(names)}</h1>{_lead(results)}</header>"
        f'<nav aria-label="Contents">{_contents(parts, "part")}</nav>'
        f'<main id="main">{main}</main>'
        f'<div id="tip" role="tooltip" hidden></div>{page_vega.patterns()}'
        f"<script>{_bundle()}</script>\n<script>{_file('page.js')}</script></body></html>\n"
    )


def _identity(results: Sequence[Given]) -> str:
    return " ".join(str(of.result.meta["fingerprint"]) for of in results)


def _letter(place: int) -> str:
    return chr(ord("A") + place) if place < 26 else str(place + 1)


def _head(title: str, results: Sequence[Given]) -> str:
    """With a policy that lets nothing be loaded, and no other script run."""
    codes = (_bundle().encode(), _file("page.js").encode())
    digests = [base64.b64encode(hashlib.sha256(code).digest()).decode() for code in codes]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    return (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta name="generator" content="{GENERATOR} {__version__}">'
        f'<meta name="{RESULTS}" content="{escape(_identity(results))}">'
        f"<title>{title}</title><style>{_file('page.css')}</style>"
    )


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one script, which gives vegaEmbed to that of the page."""
    import vl_convert  # noqa: PLC0415 - takes long, and only a page needs it

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


@cache
def _file(name: str) -> str:
    return (files("simshuffle.studies.presentation") / name).read_text(encoding="utf-8")


def _lead(results: Sequence[Given]) -> str:
    """What the page is, and how it is used."""
    kinds = ", ".join(dict.fromkeys(str(of.result.meta["kind"]) for of in results))
    said = (
        f"Report of simshuffle {__version__}; kind of result: {kinds.replace('_', ' ')}."
        " A click on a heading sorts a table. Charts answer to the pointer, and to arrow keys once"
        " they have the focus."
    )
    none = "<noscript><p>Charts need scripts. The tables have their numbers.</p></noscript>"
    return f'<p class="lead">{escape(said)}</p>{none}'


def _contents(parts: Sequence[Section], place: str) -> str:
    items = []
    for number, part in enumerate(parts, 1):
        here = f"{place}-{number}"
        inner = _contents(part.parts, here) if part.parts else ""
        items.append(f'<li><a href="#{here}">{escape(part.title)}</a>{inner}</li>')
    return f"<ol>{''.join(items)}</ol>"


def _section(part: Section, level: int, place: str) -> str:
    inner = "".join(
        _section(each, level + 1, f"{place}-{number}") for number, each in enumerate(part.parts, 1)
    )
    heading = f'<h{level} id="{place}-h">{escape(part.title)}</h{level}>'
    head = f'<section id="{place}" aria-labelledby="{place}-h">'
    return f"{head}{heading}{part.body}{inner}</section>"


def _sections(of: Given) -> Iterator[Section]:
    """All that is said of a result; names of runs are without schedules that all share."""
    short = {escape(name): escape(plain) for name, plain in of.result.short_names.items()}
    for section in _full_sections(of):
        yield replace(section, body=shorten_names(section.body, short))


def _full_sections(of: Given) -> Iterator[Section]:
    result, runs = of.result, page_parts.scenarios(of.folder, of.result)
    if said := result.verdict():
        yield Section("Verdict", bullets(said))
    if "breakdown" in result.study.stored:
        yield page_parts.cautions(result, runs)
        yield from page_runs.sections(result, runs)
        yield page_parts.notes(result)
    else:
        yield Section("Results", tables(result.listings()))
        drawn = [
            page_vega.figure(chart, f"{name.replace('_', ' ').capitalize()}.")
            if chart.rows <= page_vega.MOST_ROWS
            else _picture(name, chart)
            for name, chart in result.study.figures(result).items()
        ]
        if drawn:
            yield Section("Figures", "".join(drawn))
        yield page_parts.cautions(result, runs)
    yield page_parts.parameters(result)
    yield page_parts.provenance(result.meta)


def _picture(name: str, chart: Chart) -> str:
    """A figure with many marks, as it is in its file."""
    figure = paper.draw(chart)
    data = base64.b64encode(canvas.svg(figure).encode()).decode()
    width = round(96 * 1.7 * figure.get_figwidth())
    image = (
        f'<img alt="Figure {escape(name)}; the tables have its numbers" width="{width}"'
        f' src="data:image/svg+xml;base64,{data}">'
    )
    return f'<figure class="picture">{image}<figcaption>{escape(name)}</figcaption></figure>'


def _comparison(results: Sequence[Given]) -> Section:
    """The first result beside each of the others: what was asked, and then what came out."""
    first, *others = (replace(side(of.folder), name=of.name) for of in results)
    parts = []
    for place, other in enumerate(others, 1):
        title = f"A and {_letter(place)}: {first.name} and {other.name}"
        try:
            found = compare(first, other)
        except InputError as error:
            parts.append(Section(title, paragraph("; ".join(str(p) for p in error.problems))))
            continue
        said = list(found.parts())
        b = f"{_letter(place)} is called B in these tables. " if place > 1 else ""
        parts.append(Section(title, (paragraph(b) if b else "") + tables(said)))
    if len(parts) == 1:
        return replace(parts[0], title="Comparison")
    return Section("Comparison", parts=parts)


LONGEST_NAME = 100
_HEAD_BYTES = 8192
_IDENTITY = re.compile(f'<meta name="{RESULTS}" content="([^"]*)">')


def write_page(folders: Sequence[Path], out: Path | None = None, force: bool = False) -> Path:
    """Write the page of the results in ``folders`` to ``out``, by default NAME-report.html in the
    working directory, after the folders; returns its path. ``force``: replace a file that is no
    page of the same results.

    Raises:
        InputError: a folder holds no result or a damaged one, or ``out`` is in the way.
    """
    path = out or Path(default_name(folders))
    rule, remedy = "", "Name a file, such as report.html."
    if path.is_dir():
        rule = "is a folder"
    elif not path.parent.is_dir():
        rule, remedy = "is in a folder that is not there", "Make the folder, or name another."
    elif any(path.resolve().is_relative_to(folder.resolve()) for folder in folders):
        rule = "is in a result folder, which holds the result alone"
    if rule:
        refuse("--out", rule, str(path), remedy, "report page")
    results = [Given(_name(folder), read_folder(folder), folder) for folder in folders]
    _check_file(path, results, force)
    text = document(results)
    _check_file(path, results, force)  # it took a while
    with room_for(path, path.parent) as room:
        draft = Path(room) / "page.html"
        draft.write_text(text, encoding="utf-8")
        take_place(draft, path)
    return path


def _name(folder: Path) -> str:
    return folder.resolve().name or "result"


def default_name(folders: Sequence[Path]) -> str:
    """Of the page of these results."""
    return f"{'-'.join(map(_name, folders))[:LONGEST_NAME]}-report.html"


def _check_file(path: Path, results: Sequence[Given], force: bool) -> None:
    """See that what is there may be replaced: a page of the same results, or anything if that is
    asked for."""
    if force or not os.path.lexists(path):
        return
    head = ""
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_HEAD_BYTES)
    found = _IDENTITY.search(head)
    if f'content="{GENERATOR} ' not in head or found is None:
        rule = "is there, and is no report page"
    elif unescape(found[1]) != _identity(results):
        rule = "is there, and is the page of other results"
    else:
        return
    refuse("--out", rule, str(path), "Name another, or use --force.", "report page")
