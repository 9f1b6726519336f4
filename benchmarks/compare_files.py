"""Two result files compared bit for bit: what of them differs, column by column or key by key.

Files that are equal byte by byte are equal. Otherwise tables are compared by column, JSON by key,
and text by line, so that a difference has a name; every other file is one part, named "".
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FINGERPRINT = re.compile(r"(?<=\w[-_])[0-9a-f]{12}(?![0-9A-Za-z])")
"""At the end of the name of a result folder or run; twelve digits alone may be a number."""
ABSENT = "(not there)"

Difference = tuple[str, str]
"""The part that differs (a column, a dotted key, a line of text, or "" for the whole) and how."""


def differences(old: bytes, new: bytes, name: str) -> list[Difference]:
    """What differs between two contents of the file ``name``; nothing if they are the same.

    Fingerprints are taken as equal; numbers are compared as they are written, and values of Parquet
    and npz files by their bits.
    """
    if old == new:
        return []
    if name.endswith(".gz"):
        return differences(
            gzip.decompress(old), gzip.decompress(new), name.removesuffix(".gz")
        )
    suffix = Path(name).suffix
    if suffix == ".stdout" and old[:1] + new[:1] in {b"{{", b"[["}:
        suffix = ".json"
    compare = {
        ".csv": _csv,
        ".json": _json,
        ".npz": _npz,
        ".parquet": _parquet,
        ".png": _bytes,
        ".pdf": _bytes,
    }.get(suffix, _text)
    found = list(compare(old, new))
    if (
        not found
        and len(
            {without_fingerprints(content.decode("latin1")) for content in (old, new)}
        )
        > 1
    ):
        found = [("(bytes)", "the same values in other bytes")]
    return found


def without_fingerprints(text: str) -> str:
    """The text with FINGERPRINT in the place of each fingerprint."""
    return FINGERPRINT.sub("FINGERPRINT", text)


def _bytes(old: bytes, new: bytes) -> Iterator[Difference]:
    first = next(
        (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), None
    )
    place = (
        "one is the beginning of the other"
        if first is None
        else f"from byte {first} on"
    )
    yield "", f"{len(old)} and {len(new)} bytes, {place}"


def _text(old: bytes, new: bytes) -> Iterator[Difference]:
    texts = [
        without_fingerprints(content.decode(errors="replace")).splitlines()
        for content in (old, new)
    ]
    for line in list(difflib.unified_diff(*texts, n=0, lineterm=""))[2:]:
        if not line.startswith("@@"):
            yield line[1:], f"{'new' if line[0] == '+' else 'old'} line"


def _json(old: bytes, new: bytes) -> Iterator[Difference]:
    leaves = []
    for content in (old, new):
        text = without_fingerprints(content.decode(errors="replace"))
        try:
            leaves.append(dict(_leaves(json.loads(text, parse_float=str), "")))
        except ValueError:  # not JSON, whatever its name says
            yield from _text(old, new)
            return
    before, after = leaves
    for key in dict.fromkeys([*before, *after]):
        a = before.get(key, ABSENT)
        b = after.get(key, ABSENT)
        if type(a) is not type(b) or a != b:
            yield key, f"{_short(a)} -> {_short(b)}"


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Every value that is neither a list nor a mapping, by its dotted key; empty ones as they
    are."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    if not items:
        yield key, value
    for name, inner in items:
        yield from _leaves(inner, f"{key}.{name}".removeprefix("."))


def _csv(old: bytes, new: bytes) -> Iterator[Difference]:
    tables = [list(csv.reader(io.StringIO(content.decode()))) for content in (old, new)]
    columns = []
    for table in tables:
        header, *rows = table or [[]]
        columns.append(
            {
                name: [row[i] if i < len(row) else ABSENT for row in rows]
                for i, name in enumerate(header)
            }
        )
    yield from _columns(*columns)


def _parquet(old: bytes, new: bytes) -> Iterator[Difference]:
    tables = [pq.read_table(pa.BufferReader(content)) for content in (old, new)]
    yield from _columns(
        *({name: _bits(table[name]) for name in table.column_names} for table in tables)
    )


def _bits(column: pa.ChunkedArray) -> list[Any]:
    """Values with their type; floats in hexadecimal, so that -0.0 and each NaN are themselves."""
    values = column.to_pylist()
    if pa.types.is_floating(column.type):
        values = [value if value is None else value.hex() for value in values]
    return [f"type {column.type}", *values]


def _npz(old: bytes, new: bytes) -> Iterator[Difference]:
    arrays = [
        np.load(io.BytesIO(content), allow_pickle=False) for content in (old, new)
    ]
    yield from _columns(
        *(
            {
                name: [
                    f"{stored[name].dtype}{stored[name].shape}",
                    stored[name].tobytes(),
                ]
                for name in stored.files
            }
            for stored in arrays
        )
    )


def _columns(
    old: dict[str, list[Any]], new: dict[str, list[Any]]
) -> Iterator[Difference]:
    """Columns that are not in both, or not the same, and then an order that changed."""
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            yield name, f"only in the {'new' if name in new else 'old'} file"
        elif change := _first_change(old[name], new[name]):
            yield name, change
    shared = [
        [name for name in table if name in old and name in new] for table in (old, new)
    ]
    if shared[0] != shared[1]:
        yield "(order of columns)", f"{', '.join(shared[0])} -> {', '.join(shared[1])}"


def _first_change(old: Sequence[Any], new: Sequence[Any]) -> str:
    for row, (a, b) in enumerate(zip(old, new, strict=False)):
        if a != b and without_fingerprints(str(a)) != without_fingerprints(str(b)):
            return f"row {row}: {_short(a)} -> {_short(b)}"
    return "" if len(old) == len(new) else f"{len(old)} rows -> {len(new)} rows"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
