"""Reading the record of a training, in whichever of the formats it is: found by the content."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from simshuffle.errors import refuse
from simshuffle.recorder.rows import SUFFIX
from simshuffle.records.collected import collected
from simshuffle.records.record import Record, read_parquet

RECORD = "record.parquet"
"""Name of the record in the folder that `simshuffle doctor` writes."""
HEAD = 1 << 16
"""Bytes of a file that tell its format."""


class Format(NamedTuple):
    """A format of records.

    Attributes:
        what: it is, for a user.
        is_of: whether a path is of it, from the path and the first bytes of the file, unpacked
            (b'' for a folder).
        read: reads it, or raises an InputError.
    """

    what: str
    is_of: Callable[[Path, bytes], bool]
    read: Callable[[Path], Record]


FORMATS = (
    Format(
        f"a folder of `simshuffle doctor` ({RECORD})",
        lambda path, _: (path / RECORD).is_file(),
        lambda path: read_parquet(path / RECORD),
    ),
    Format(
        "a folder of rows that `simshuffle doctor` kept",
        lambda path, _: any(path.glob(f"*{SUFFIX}")),
        lambda path: collected(path, {}),
    ),
    Format("a record (Parquet)", lambda _, head: head.startswith(b"PAR1"), read_parquet),
)
"""The first one that a path is of reads it."""


def read(path: Path) -> Record:
    """The record at a path: a folder or a file of one of `FORMATS`. Raises an InputError if it is
    of none, or not whole."""
    head = _head(path)
    for known in FORMATS:
        if known.is_of(path, head):
            return known.read(path)
    what = "a folder without one" if path.is_dir() else f"a file that begins {head[:20]!r}"
    rule = f"must be {', '.join(known.what for known in FORMATS[:-1])} or {FORMATS[-1].what}"
    refuse("RECORD", rule, what, "Name one of these.", str(path))


def _head(path: Path) -> bytes:
    """The first bytes of a file, unpacked, of as much as can be unpacked."""
    try:
        if path.is_dir():
            return b""
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError as error:
        remedy = "Name a file or folder that can be read."
        refuse("RECORD", f"must be readable: {error.strerror}", "", remedy, str(path))
    if not head.startswith(b"\x1f\x8b"):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD)
    except zlib.error as error:
        refuse("RECORD", f"must be whole: {error}", "", "Copy it again.", str(path))
