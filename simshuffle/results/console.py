"""The look of tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table


def new_table(
    title: str | None = None, names: Sequence[str] = (), numbers: Sequence[str] = ()
) -> Table:
    """An empty table with these columns, none of which is wrapped; more may be added."""
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
        collapse_padding=True,
    )
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table
