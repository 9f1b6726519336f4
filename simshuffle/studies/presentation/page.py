"""The report page: results of any study as one file that a browser shows without a
network.
"""

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
from importlib.util import find_spec
from pathlib import Path

from simshuffle.errors import InputError, refuse
from simshuffle.report import canvas, paper
from simshuffle.report.chart import Chart
from simshuffle.report.folders import room_for, take_place
from simshuffle.report.names import shorten_names
from simshuffle.studies.comparison import compare, read_side
from simshuffle.studies.presentation import page_parts, page_runs, page_vega
from simshuffle.studies.presentation.named_results import NamedResult
from simshuffle.studies.presentation.page_parts import (
    Section,
    bullets,
    html_tables,
    paragraph,
)
from simshuffle.study.registry import read_folder
from simshuffle.version import __version__

GENERATOR = "simshuffle report"
"""Name of the program in the head of a page."""
RESULTS = "simshuffle-results"
"""Name of the entry in the head that identifies the results."""


def render_page(results: Sequence[NamedResult]) -> str:
    """Return the page of one or more results, as HTML.

    Several are compared first, for which their ``folder`` is read again.
    """
    names = " and ".join(named_result.name for named_result in results)
    if len(results) == 1:
        parts = list(_shortened_sections(results[0]))
    else:
        parts = [_compare_results(results)]
        for index, named_result in enumerate(results):
            title = f"Result {_letter(index)}: {named_result.name}"
            parts.append(Section(title, parts=list(_shortened_sections(named_result))))
    main = "".join(
        _section_html(part, 2, f"part-{number}") for number, part in enumerate(parts, 1)
    )
    title = escape(f"simshuffle: {names}")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>{_head(title, results)}</head>\n<body>'
        '<a class="skip" href="#main">Skip to the results</a>'
        f"<header><h1>{escape(names)}</h1>{_lead_html(results)}</header>"
        f'<nav aria-label="Contents">{_contents_html(parts, "part")}</nav>'
        f'<main id="main">{main}</main>'
        f'<div id="tip" role="tooltip" hidden></div>{page_vega.hatch_patterns()}'
        f"<script>{_bundle()}</script>\n<script>{_file('page.js')}</script></body></html>\n"
    )


def _identity(results: Sequence[NamedResult]) -> str:
    """Return the fingerprints of the results, in order, with spaces between.

    They tell whether a page is theirs.
    """
    return " ".join(
        str(named_result.result.meta["fingerprint"]) for named_result in results
    )


def _letter(index: int) -> str:
    """Return the letter of a result by its index from 0: A to Z, then numbers from 27
    on.
    """
    return chr(ord("A") + index) if index < 26 else str(index + 1)


def _head(title: str, results: Sequence[NamedResult]) -> str:
    """Return the head of the page, whose policy forbids loading and any other script.

    ``title`` is HTML.
    """
    codes = (_bundle().encode(), _file("page.js").encode())
    digests = [
        base64.b64encode(hashlib.sha256(code).digest()).decode() for code in codes
    ]
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
    """Return Vega, Vega-Lite and vega-embed as one script, made once a process.

    The script defines window.vegaEmbed.
    """
    import vl_convert  # noqa: PLC0415 - takes long, and only a page needs it

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


@cache
def _file(name: str) -> str:
    """Return the text of a file of this package, such as page.css; it is read once."""
    return (files("simshuffle.studies.presentation") / name).read_text(encoding="utf-8")


def _lead_html(results: Sequence[NamedResult]) -> str:
    """Return the first paragraph, as HTML: what the page is, and how a reader uses it."""
    kinds = ", ".join(
        dict.fromkeys(str(named_result.result.meta["kind"]) for named_result in results)
    )
    text = (
        f"Report of simshuffle {__version__}; kind of result: {kinds.replace('_', ' ')}. A click"
        " on a heading sorts a table. Charts respond to the pointer, and to arrow keys once a"
        " chart has the focus."
    )
    without_scripts = (
        "<noscript><p>Charts need scripts. The tables have the same"
        " numbers.</p></noscript>"
    )
    return f'<p class="lead">{escape(text)}</p>{without_scripts}'


def _contents_html(parts: Sequence[Section], prefix: str) -> str:
    """Return the list of contents as HTML, whose links are anchors PREFIX-NUMBER."""
    entries = []
    for number, part in enumerate(parts, 1):
        anchor = f"{prefix}-{number}"
        nested = _contents_html(part.parts, anchor) if part.parts else ""
        entries.append(f'<li><a href="#{anchor}">{escape(part.title)}</a>{nested}</li>')
    return f"<ol>{''.join(entries)}</ol>"


def _section_html(part: Section, level: int, anchor: str) -> str:
    """Return a section with its nested ones as HTML; these have the next heading level."""
    nested = "".join(
        _section_html(nested_part, level + 1, f"{anchor}-{number}")
        for number, nested_part in enumerate(part.parts, 1)
    )
    heading = f'<h{level} id="{anchor}-h">{escape(part.title)}</h{level}>'
    head = f'<section id="{anchor}" aria-labelledby="{anchor}-h">'
    return f"{head}{heading}{part.body}{nested}</section>"


def _shortened_sections(named_result: NamedResult) -> Iterator[Section]:
    """Yield the sections of a result; names of runs leave out schedules that all runs
    share.
    """
    short_names = {
        escape(name): escape(short_name)
        for name, short_name in named_result.result.short_names.items()
    }
    for section in _full_sections(named_result):
        yield replace(section, body=shorten_names(section.body, short_names))


def _full_sections(named_result: NamedResult) -> Iterator[Section]:
    """Yield the sections of a result, with full names of runs.

    Results with a breakdown have charts and tables of runs; others their listings and
    declared figures, as pictures where these have over `MOST_ROWS` rows. A result
    without verdict has no such section.
    """
    result = named_result.result
    runs = page_parts.scenarios_of_runs(named_result.folder, result)
    lines = result.verdict()
    if lines:
        num_answers = len(result.structured_verdict().answer)
        answer = f'<div class="answer">{bullets(lines[:num_answers])}</div>'
        yield Section("Verdict", answer + bullets(lines[num_answers:]))
    if "breakdown" in result.study.stored:
        yield page_parts.warning_section(result, runs)
        yield from page_runs.sections(result, runs)
        yield page_parts.notes_section(result)
    else:
        yield Section("Results", html_tables(result.listings()))
        figures = [
            page_vega.html_figure(chart, f"{name.replace('_', ' ').capitalize()}.")
            if chart.rows <= page_vega.MOST_ROWS
            else _picture(name, chart)
            for name, chart in result.study.figures(result).items()
        ]
        if figures:
            yield Section("Figures", "".join(figures))
        yield page_parts.warning_section(result, runs)
    yield page_parts.parameter_section(result)
    yield page_parts.provenance_section(result.meta)


def _picture(name: str, chart: Chart) -> str:
    """Return a figure as an SVG picture inside the HTML, as a result's file has it."""
    figure = paper.draw(chart)
    svg = base64.b64encode(canvas.svg(figure).encode()).decode()
    width = round(96 * 1.7 * figure.get_figwidth())
    image = (
        f'<img alt="Figure {escape(name)}; the tables have its numbers" width="{width}"'
        f' src="data:image/svg+xml;base64,{svg}">'
    )
    return f'<figure class="picture">{image}<figcaption>{escape(name)}</figcaption></figure>'


def _compare_results(results: Sequence[NamedResult]) -> Section:
    """Return a section that compares the first result with each later one.

    It has a section for each later result, unless there is only one. Results that
    cannot be compared have the reason. The folders of the results are read again.
    """
    side_a, *later_sides = (
        replace(read_side(named_result.folder), name=named_result.name)
        for named_result in results
    )
    parts = []
    for index, side_b in enumerate(later_sides, 1):
        title = f"A and {_letter(index)}: {side_a.name} and {side_b.name}"
        try:
            comparison = compare(side_a, side_b)
        except InputError as error:
            parts.append(
                Section(title, paragraph("; ".join(str(p) for p in error.problems)))
            )
            continue
        printed_parts = list(comparison.parts())
        body = html_tables(printed_parts)
        if index > 1:
            body = paragraph(f"{_letter(index)} is called B in these tables. ") + body
        parts.append(Section(title, body))
    if len(parts) == 1:
        return replace(parts[0], title="Comparison")
    return Section("Comparison", parts=parts)


LONGEST_NAME = 100
_HEAD_BYTES = 8192  # of a page, among which its identity is looked for
_IDENTITY = re.compile(f'<meta name="{RESULTS}" content="([^"]*)">')


def write_page(
    folders: Sequence[Path], out: Path | None = None, force: bool = False
) -> Path:
    """Write the page of the results in ``folders`` to ``out``, and return its path.

    By default the page is NAME-report.html in the working directory, called after the
    folders. A page of the same results is replaced; with ``force`` any other file, too,
    but no folder.

    Raises:
        InputError: a folder holds no result or a damaged one; or ``out`` is a folder,
            another file, in a result folder, or in a folder that is not there; or the
            package that holds the scripts of charts is not installed.
    """
    if find_spec("vl_convert") is None:
        remedy = (
            "Run pip install 'simshuffle[page]'; simshuffle figure needs nothing more."
        )
        refuse("", "needs the package vl-convert-python", "", remedy, "report page")
    path = out or Path(default_name(folders))
    problem = ""
    remedy = "Name a file, such as report.html."
    if path.is_dir():
        problem = "is a folder"
    elif not path.parent.is_dir():
        problem = "is in a folder that does not exist"
        remedy = "Make the folder, or name another."
    elif any(path.resolve().is_relative_to(folder.resolve()) for folder in folders):
        problem = "is in a result folder, which may only hold the result"
    if problem:
        refuse("--out", problem, str(path), remedy, "report page")
    results = [
        NamedResult(_name_folder(folder), read_folder(folder), folder)
        for folder in folders
    ]
    _check_file(path, results, force)
    text = render_page(results)
    _check_file(path, results, force)  # it took a while
    with room_for(path, path.parent) as temporary_folder:
        draft = Path(temporary_folder) / "page.html"
        draft.write_text(text, encoding="utf-8")
        take_place(draft, path)
    return path


def _name_folder(folder: Path) -> str:
    """Return the name of a folder, or 'result' for a root."""
    return folder.resolve().name or "result"


def default_name(folders: Sequence[Path]) -> str:
    """Return the name of the page's file: names of folders, then '-report.html'.

    The names together are cut at `LONGEST_NAME` letters.
    """
    return f"{'-'.join(map(_name_folder, folders))[:LONGEST_NAME]}-report.html"


def _check_file(path: Path, results: Sequence[NamedResult], force: bool) -> None:
    """Check that ``path`` is free, holds these results' page, or ``force`` is set.

    The page may be by another version of simshuffle.

    Raises:
        InputError: something else is there.
    """
    if force or not os.path.lexists(path):
        return
    head = ""
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_HEAD_BYTES)
    identity = _IDENTITY.search(head)
    if f'content="{GENERATOR} ' not in head or identity is None:
        rule = "exists, and is not a report page"
    elif unescape(identity[1]) != _identity(results):
        rule = "exists, and is the page of other results"
    else:
        return
    refuse(
        "--out", rule, str(path), "Name another file, or use --force.", "report page"
    )
