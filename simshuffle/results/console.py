"""The look of tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

LEAST_NAME = 11
"""Characters of a line of a name, if there is room for no more."""


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
