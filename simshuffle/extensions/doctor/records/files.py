"""What the readers of traces share: files that may be packed or cut, and odd numbers."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from simshuffle.errors import refuse

PIECE = 1 << 20
"""Bytes that are unpacked at a time."""
LARGEST = 2**62
"""Above it, a count or a size is taken for unknown."""


def unpacked(path: Path, limit: int | None = None) -> tuple[bytes, bool]:
    """What a file holds, gunzipped if it is packed, at most about ``limit`` bytes of it; and
    whether it ends too early, or goes on with something else. Raises an InputError if it cannot be
    opened."""
    try:
        with path.open("rb") as file:
            content = file.read() if limit is None else file.read(limit)
    except OSError as error:
        rule, remedy = f"must be readable: {error.strerror}", "Name a file that can be read."
        refuse("RECORD", rule, repr(path.name), remedy, str(path))
    if not content.startswith(b"\x1f\x8b"):
        return content, False
    packer, pieces = zlib.decompressobj(wbits=31), list[bytes]()
    try:
        for at in range(0, len(content), PIECE):
            pieces.append(packer.decompress(content[at : at + PIECE], limit or 0))
    except zlib.error:
        return b"".join(pieces), True
    return b"".join(pieces), not packer.eof


def json_of(path: Path) -> Any:
    """The JSON of a file, plain or packed. Raises an InputError if it is not whole."""
    content, cut = unpacked(path)
    try:
        if cut:
            raise ValueError("it is cut")
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        rule = f"must be whole JSON: {error}"
        refuse("RECORD", rule, repr(path.name), "Write or copy it again.", str(path))


def mapping(value: Any) -> dict[str, Any]:
    """A value that should be an object of JSON; an empty one if it is none."""
    return value if isinstance(value, dict) else {}


def text(value: Any) -> str:
    """A value as a text that can be printed: JSON may hold halves of characters."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def number(value: Any) -> float:
    """A value that should be a number from 0; nan if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return math.nan
    return float(value) if 0 <= value < LARGEST else math.nan


def whole(value: Any) -> int:
    """A value that should be a count or a size; -1 if it is none."""
    found = number(value)
    return -1 if math.isnan(found) else int(value)
