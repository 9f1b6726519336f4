"""Read files that may be packed or cut, and check the values of their JSON."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from simshuffle.errors import refuse

CHUNK = 1 << 20
"""Bytes that are unpacked at a time."""
LARGEST = 2**62
"""Count or size from which on a value is taken for unknown."""


def read_unpacked(path: Path, limit: int | None = None) -> tuple[bytes, bool]:
    """Read a file, gunzipped if it is packed.

    Args:
        path: of the file.
        limit: about the most bytes that are read; None for all.

    Returns:
        The content, and whether a packed file is cut: it ends too early, is damaged, or
        has more than the limit. Of a plain file, this is always False. What follows the
        first packed stream is left out, and so is all from the damage on.

    Raises:
        InputError: the file cannot be opened.
    """
    try:
        with path.open("rb") as file:
            content = file.read() if limit is None else file.read(limit)
    except OSError as error:
        rule = f"must be readable: {error.strerror}"
        refuse(
            "RECORD", rule, repr(path.name), "Name a file that can be read.", str(path)
        )
    if not content.startswith(b"\x1f\x8b"):
        return content, False
    decompressor = zlib.decompressobj(wbits=31)
    chunks = list[bytes]()
    try:
        for begin in range(0, len(content), CHUNK):
            chunks.append(
                decompressor.decompress(content[begin : begin + CHUNK], limit or 0)
            )
    except zlib.error:
        return b"".join(chunks), True
    return b"".join(chunks), not decompressor.eof


def read_json(path: Path) -> Any:
    """Read the JSON of a file, plain or packed.

    Raises:
        InputError: the file cannot be read, or is no complete JSON.
    """
    content, is_cut = read_unpacked(path)
    try:
        if is_cut:
            raise ValueError("it is cut")
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        rule = f"must be whole JSON: {error}"
        refuse("RECORD", rule, repr(path.name), "Write or copy it again.", str(path))


def to_mapping(value: Any) -> dict[str, Any]:
    """Return a value that should be an object of JSON; an empty one if it is none."""
    return value if isinstance(value, dict) else {}


def printable(value: Any) -> str:
    """Return a value as a text that can be printed: JSON may hold halves of characters,
    which become "?".
    """
    return str(value).encode("utf-8", "replace").decode("utf-8")


def to_number(value: Any) -> float:
    """Return a value that should be a number from 0 to below `LARGEST`; nan if it is
    none, as of truth values, texts and negative numbers.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return math.nan
    return float(value) if 0 <= value < LARGEST else math.nan


def to_count(value: Any) -> int:
    """Return a value that should be a count or size as an int, without its fraction; -1
    if it is no number from 0 to below `LARGEST`.
    """
    return -1 if math.isnan(to_number(value)) else int(value)
