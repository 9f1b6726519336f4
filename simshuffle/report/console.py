"""Print tables and texts on a terminal, and write them as LaTeX, Markdown and HTML."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import groupby

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from simshuffle.report.excerpt import narrow

MIN_NAME_WIDTH = 11  # characters of a line of a name, if there is room for no more


def new_table(
    title: str | None = None,
    names: Sequence[str] = (),
    numbers: Sequence[str] = (),
    rows: Iterable[Sequence[str]] = (),
    texts: Sequence[str] = (),
) -> Table:
    """Return a table with these rows and columns: names at the left, numbers, then
    texts.

    Where the table is too wide, names and texts fold; numbers never do. Cells of a row
    are in the order of the columns. Columns can be added to the table.
    """
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
        collapse_padding=True,
    )
    for name in names:
        table.add_column(name, overflow="fold", min_width=MIN_NAME_WIDTH)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for name in texts:
        table.add_column(name)
    for row in rows:
        table.add_row(*row)
    return table


def terminal_text(parts: Iterable[str | Table], width: int = 100) -> str:
    """Return the text that a terminal of ``width`` letters shows, without colours.

    Texts are not wrapped, and tables are as of `print_whole`.
    """
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, force_terminal=False)
    for part in parts:
        print_whole(console, part)
    return file.getvalue()


def print_whole(console: Console, part: str | Table) -> None:
    """Print a text or a table; a table that is wider than the terminal is not cut.

    Texts are not wrapped, and have no markup. It sets widths in the table.
    """
    if isinstance(part, str):
        console.print(part, highlight=False, markup=False, soft_wrap=True)
        return
    for column in part.columns:
        if column.no_wrap:  # or else rich asks for the longest word of a cell only
            texts = "\n".join(map(str, [column.header, *column.cells]))
            column.min_width = max(map(cell_len, texts.splitlines()))
    least_width = console.measure(
        part, options=console.options.update(max_width=1000)
    ).minimum
    part.width = least_width if least_width > console.width else None
    console.print(
        part, highlight=False, markup=False, crop=False, no_wrap=True, overflow="ignore"
    )


_LATEX = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # the old encoding of LaTeX's fonts prints other letters in the place of these
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after the end of a row it would begin an argument
    "±": r"$\pm$",
    "×": r"$\times$",
    "→": r"$\rightarrow$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "µ": r"$\mu$",
    "\u2212": "$-$",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "\u00a0": "~",
}
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~&#$])")


def export_parts(parts: Iterable[str | Table], file_format: str) -> str:
    """Return ``parts`` in a format of `FORMATS`, with a line end at the end.

    'latex' has tables of the package booktabs, with texts as comments; a table has at
    most `MAX_COLUMNS` (8) columns, and a comment names those left out. 'markdown' has
    tables with vertical bars, with texts as paragraphs, or as blocks where they have
    several lines. Empty texts and tables without columns are left out.

    Raises:
        KeyError: `FORMATS` has no such format.
    """
    write_table, write_note, separator = FORMATS[file_format]
    pieces = ["% needs \\usepackage{booktabs}"] if file_format == "latex" else []
    for are_notes, group in groupby(parts, key=lambda part: isinstance(part, str)):
        if are_notes:
            pieces.append(
                separator.join(filter(None, map(write_note, map(str, group))))
            )
        else:
            pieces += [
                write_table(part)
                for part in group
                if isinstance(part, Table) and part.columns
            ]
    return "\n\n".join(filter(None, pieces)) + "\n"


def table_content(table: Table) -> tuple[str, list[str], list[list[str]], list[bool]]:
    """Return title ('' for none), headings and rows of a table, and for each column
    whether it holds numbers.

    Texts are on one line each. A column that is aligned at the right counts as numbers.
    """
    headings = [plain_line(str(column.header)) for column in table.columns]
    cells = [
        [plain_line(str(cell)) for cell in column.cells] for column in table.columns
    ]
    rows = [list(row) for row in zip(*cells, strict=True)]
    is_numeric = [column.justify == "right" for column in table.columns]
    return plain_line(str(table.title or "")), headings, rows, is_numeric


def plain_line(text: str) -> str:
    """Return the text on one line: white space joined to single spaces and cut at both
    ends, control characters dropped. Spaces that do not break a line stay.
    """
    line = re.sub(r"[^\S\u00a0]+", " ", text).strip(" ")
    return "".join(letter for letter in line if unicodedata.category(letter) != "Cc")


# -------------------------------------------------------------------------------------------- LaTeX


def latex(text: str) -> str:
    """Return the text as LaTeX prints it; two hyphens stay two, and are no dash."""
    separated = re.sub("-(?=-)", "-\0", text)
    return "".join(_LATEX.get(letter, letter) for letter in separated).replace(
        "\0", "{}"
    )


def _latex_cell(text: str, right: bool) -> str:
    """Return a cell as LaTeX; with ``right``, in columns of numbers, a hyphen before a
    number is a minus.
    """
    escaped = latex(text)
    if right:  # a minus, not a hyphen
        escaped = re.sub(r"(?<![\w.,)}-])-(?=[\d.])", "$-$", escaped)
    return f"{{*}}{escaped[1:]}" if escaped.startswith("*") else escaped


def _latex_table(table: Table) -> str:
    """Return a table as LaTeX, with at most `MAX_COLUMNS` columns.

    A comment names those left out.
    """
    table, left_out = narrow(table)
    comment = f"% left out: {', '.join(left_out)}; choose with results show --columns\n"
    title, headings, rows, are_numeric = table_content(table)
    alignment = "".join("r" if is_numeric else "l" for is_numeric in are_numeric)

    def line(cells: Sequence[str]) -> str:
        """Return a row of the table as LaTeX."""
        return "    " + " & ".join(map(_latex_cell, cells, are_numeric)) + r" \\"

    return comment * bool(left_out) + "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            *([f"  \\caption{{{latex(title)}}}"] if title else []),
            f"  \\begin{{tabular}}{{{alignment}}}",
            r"    \toprule",
            line(headings),
            r"    \midrule",
            *map(line, rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


def _latex_note(text: str) -> str:
    """Return the lines of a text as comments; '' for no text."""
    return "\n".join(f"% {line}".rstrip() for line in text.splitlines())


# ----------------------------------------------------------------------------------------- Markdown


def _markdown(text: str) -> str:
    """Return the text with what Markdown would read as marks escaped."""
    return _MARKDOWN.sub(r"\\\1", text)


def _markdown_table(table: Table) -> str:
    """Return a table as Markdown, numbers to the right, its title in bold above it."""
    title, headings, rows, are_numeric = table_content(table)
    rule = ["---:" if is_numeric else "---" for is_numeric in are_numeric]
    lines = [
        list(map(_markdown, headings)),
        rule,
        *(list(map(_markdown, row)) for row in rows),
    ]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{_markdown(title)}**\n\n{text}" if title else text


def _markdown_note(text: str) -> str:
    """Return a text as a paragraph; '' for no text.

    A text of several lines, which may be a table of its own, keeps them in a block of
    code, unescaped.
    """
    if len(text.splitlines()) > 1:
        longest = max(map(len, re.findall("`+", text)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{fence}text\n{text.rstrip()}\n{fence}"
    # a line that begins like an item of a list or a heading is none
    return re.sub(r"^(\d+)([.)])|^([-+=])", r"\1\\\2\3", _markdown(plain_line(text)))


# --------------------------------------------------------------------------------------------- HTML


def html(parts: Iterable[str | Table], *, sortable: bool = False) -> str:
    """Return ``parts`` as a piece of HTML, as a notebook shows them. With ``sortable``,
    as on the report page, each table lies in a box that scrolls, and headings are
    buttons. Texts are escaped, and blank ones left out; the buttons need a script.
    """
    written = (
        _html_note(part) if isinstance(part, str) else _html_table(part, sortable)
        for part in parts
        if not isinstance(part, str) or part.strip()
    )
    return "\n".join(written)


def _html_table(table: Table, sortable: bool) -> str:
    """Return a table as HTML; with ``sortable`` in a box that scrolls, with headings
    that are buttons.
    """
    title, headings, rows, are_numeric = table_content(table)
    sides = ["right" if is_numeric else "left" for is_numeric in are_numeric]

    def line(cells: Sequence[str], tag: str) -> str:
        """Return a row of the table, each cell, which is HTML already, in a ``tag``."""
        written = (
            f'<{tag} style="text-align: {side}">{cell}</{tag.partition(" ")[0]}>'
            for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{''.join(written)}</tr>"

    caption = f"<caption><span>{escape(title)}</span></caption>" if title else ""
    body = "\n".join(line([escape(cell) for cell in row], "td") for row in rows)
    heads = [escape(text) for text in headings]
    tag = "th"
    box = ""
    end = ""
    if sortable:
        heads = [f'<button type="button">{text}</button>' for text in heads]
        tag = 'th scope="col"'
        label = escape(title) or "Table"
        box = f'<div class="box" tabindex="0" role="region" aria-label="{label}">'
        end = "</div>"
    head = f"<thead>{line(heads, tag)}</thead>"
    return f"{box}<table>{caption}{head}<tbody>\n{body}\n</tbody></table>{end}"


def _html_note(text: str) -> str:
    """Return a text as a paragraph; one of several lines as preformatted text."""
    tag = "pre" if len(text.splitlines()) > 1 else "p"
    return f"<{tag}>{escape(text.strip())}</{tag}>"


FORMATS: dict[str, tuple[Callable[[Table], str], Callable[[str], str], str]] = {
    "latex": (_latex_table, _latex_note, "\n"),
    "markdown": (_markdown_table, _markdown_note, "\n\n"),
}
"""By name: how a table is written, how a text beside it, and what stands between two
texts.
"""
