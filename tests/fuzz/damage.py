"""Result folders with one file of theirs changed, lost or cut off."""

import io
import json
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

ODD_NUMBERS = (np.nan, np.inf, -np.inf, -1.0, 0.0, 1e308, 1e30, 2.5)
ODD_VALUES: tuple[Any, ...] = (
    *(None, "", "odd", True, 0, -1, 2**63, 1e308, math.nan, math.inf),
    *([], {}, [1, "a"], {"a": {}}),
)
TABLES = (".csv", ".parquet")


class Damage(NamedTuple):
    """One file of a folder as it might be found.

    Attributes:
        what: what was done to it.
        file: its path in the folder.
        content: its bytes; None if it is missing.
    """

    what: str
    file: str
    content: bytes | None


Change = tuple[str, Callable[[], bytes | None]]


def damages(folder: Path) -> Iterator[Damage]:
    """Every damage that is tried of a result folder, the same ones in the same order each time."""
    for path in _files(folder):
        for what, change in _of_file(path):
            yield Damage(what, path.relative_to(folder).as_posix(), change())


def some_damage(folder: Path, rng: random.Random) -> Damage:
    """One of them, or bytes changed at random, of a file that is drawn."""
    path = rng.choice(list(_files(folder)))
    file = path.relative_to(folder).as_posix()
    if rng.random() < 0.2:
        content = bytearray(path.read_bytes())
        for _ in range(rng.randint(1, 8)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        return Damage("bytes", file, bytes(content))
    what, change = rng.choice(list(_of_file(path)))
    return Damage(what, file, change())


def _files(folder: Path) -> Iterator[Path]:
    """What is read of a result, in the order of their names."""
    for path in sorted(folder.iterdir()):
        if path.suffix in {*TABLES, ".json", ".yaml"}:
            yield path


@contextmanager
def damaged(folder: Path, damage: Damage) -> Iterator[Path]:
    """The folder with that damage; whole again afterwards."""
    path = folder / damage.file
    whole = path.read_bytes()
    try:
        if damage.content is None:
            path.unlink()
        else:
            path.write_bytes(damage.content)
        yield folder
    finally:
        path.write_bytes(whole)


def _of_file(path: Path) -> Iterator[Change]:
    content = path.read_bytes()
    yield "missing", lambda: None
    yield "empty", lambda: b""
    yield "half", lambda: content[: len(content) // 2]
    yield "garbage", lambda: bytes(range(256))
    yield "zeros", lambda: bytes(len(content))
    if path.suffix in TABLES:
        yield from _of_table(path)
    elif path.suffix == ".json":
        yield from _of_json(content)


# ------------------------------------------------------------------------------------------- tables


def _of_table(path: Path) -> Iterator[Change]:
    table = (
        pd.read_csv(path, keep_default_na=False) if path.suffix == ".csv" else pd.read_parquet(path)
    )
    for what, change in _changes(table):
        yield what, partial(_changed, change, table, path.suffix)


def _changed(change: Callable[[Any], Any], table: pd.DataFrame, suffix: str) -> bytes:
    found: pd.DataFrame = change(table)
    if suffix == ".csv":
        return found.to_csv(index=False).encode()
    out = io.BytesIO()
    found.to_parquet(out, index=False)
    return out.getvalue()


def _changes(table: pd.DataFrame) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    yield "no rows", lambda t: t.head(0)
    yield "one row", lambda t: t.head(1)
    yield "last row", lambda t: t.tail(1)
    yield "rows backwards", lambda t: t.iloc[::-1]
    yield "rows twice", lambda t: pd.concat([t, t])
    yield "no columns", lambda t: t[[]]
    yield "columns backwards", lambda t: t[list(t.columns)[::-1]]
    yield "another column", lambda t: t.assign(another=1)
    for name in table.columns:
        yield f"{name} missing", lambda t, name=name: t.drop(columns=name)
        yield f"{name} renamed", lambda t, name=name: t.rename(columns={name: f"{name}_"})
        for odd in ("odd", None, True, *ODD_NUMBERS):
            yield f"{name} all {odd}", lambda t, name=name, odd=odd: t.assign(**{name: odd})
        yield f"{name} all different", lambda t, name=name: t.assign(**{name: _different(len(t))})
        if len(table) > 1:
            for number in ODD_NUMBERS:
                yield (
                    f"{name} one {number}",
                    lambda t, name=name, odd=number: t.assign(**{name: _one(t[name], odd)}),
                )


def _different(count: int) -> list[str]:
    return [f"odd {number}" for number in range(count)]


def _one(column: Any, number: float) -> Any:
    """The column with ``number`` in its middle row; of numbers as numbers, else all as text."""
    numeric = pd.api.types.is_numeric_dtype(column.dtype) and column.dtype != bool
    values = list(column) if numeric else [str(value) for value in column]
    values[len(values) // 2] = number if numeric else str(number)
    return pd.Series(values, index=column.index)


# --------------------------------------------------------------------------------------------- JSON


def _of_json(content: bytes) -> Iterator[Change]:
    values = json.loads(content)
    for odd in ODD_VALUES:
        yield f"all {odd!r}", partial(_json, odd)
    yield "NaN in it", lambda: content.replace(b"1", b"NaN", 1)
    yield "deep", lambda: b"[" * 100_000 + b"]" * 100_000
    yield "a long number", lambda: b'{"kind": ' + b"1" * 10_000 + b"}"
    for steps in _steps(values, 3):
        where = ".".join(map(str, steps))
        yield f"{where} missing", partial(_without, values, steps)
        for odd in ODD_VALUES:
            yield f"{where} {odd!r}", partial(_with, values, steps, odd)


def _json(values: Any) -> bytes:
    return json.dumps(values).encode()


def _steps(values: Any, depth: int) -> Iterator[tuple[Any, ...]]:
    """The ways to what ``values`` holds, ``depth`` levels down; of each level the first few."""
    for key, value in list(values.items() if isinstance(values, dict) else enumerate(values))[:12]:
        yield (key,)
        if depth > 1 and isinstance(value, dict | list):
            for steps in _steps(value, depth - 1):
                yield (key, *steps)


def _with(values: Any, steps: tuple[Any, ...], odd: Any) -> bytes:
    out, at = _parent(values, steps)
    at[steps[-1]] = odd
    return _json(out)


def _without(values: Any, steps: tuple[Any, ...]) -> bytes:
    out, at = _parent(values, steps)
    del at[steps[-1]]
    return _json(out)


def _parent(values: Any, steps: tuple[Any, ...]) -> tuple[Any, Any]:
    """A copy of all, and what in it holds the last step."""
    out = at = json.loads(json.dumps(values))
    for step in steps[:-1]:
        at = at[step]
    return out, at
