"""Markdown of the generated pages: tables, and texts in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

RENEWED = "*Made by `make reference` from the code; not written by hand.*"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already; columns without any text are left out."""
    cells = [list(row) for row in rows]
    kept = [k for k in range(len(head)) if any(row[k] for row in cells)]
    lines = [[head[k] for k in kept], ["---" for _ in kept]]
    lines += [[row[k] for k in kept] for row in cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plain(text: str) -> str:
    """A text whose characters mean nothing to Markdown, on one line; quoted names as code."""
    escaped = re.sub(r"([\\|*<>\[\]`$])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<!\w)'([\w.]+)'(?!\w)", r"`\1`", escaped)


def code(text: str) -> str:
    """A text as code, in a table."""
    return f"`{text.replace('|', chr(92) + '|')}`"


def anchor(heading: str) -> str:
    """What a link names a heading by: lower case, without punctuation, blanks as hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
