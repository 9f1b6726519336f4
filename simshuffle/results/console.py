"""The look of tables on a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

LEAST_NAME = 11  # characters of a line of a name, if there is room for no more


def new_table(
    title: str | None = None, names: Sequence[str] = (), numbers: Sequence[str] = ()
) -> Table:
    """An empty table with these columns; more may be added. Where it is too wide, names go on in
    a second line; numbers never do."""
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
        collapse_padding=True,
    )
    for name in names:
        table.add_column(name, overflow="fold", min_width=LEAST_NAME)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def terminal_text(parts: Iterable[str | Table], width: int = 100) -> str:
    """What a terminal of that width shows of texts and tables."""
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None, force_terminal=False)
    for part in parts:
        print_whole(console, part)
    return file.getvalue()


def print_whole(console: Console, part: str | Table) -> None:
    """Print a text or a table; a table that is wider than the terminal is not cut."""
    if isinstance(part, str):
        console.print(part, highlight=False, markup=False, soft_wrap=True)
        return
    for column in part.columns:
        if column.no_wrap:  # or else rich asks for the longest word of a cell only
            texts = "\n".join(map(str, [column.header, *column.cells]))
            column.min_width = max(map(cell_len, texts.splitlines()))
    least = console.measure(part, options=console.options.update(max_width=1000)).minimum
    part.width = least if least > console.width else None
    console.print(part, highlight=False, markup=False, crop=False, no_wrap=True, overflow="ignore")
