"""Cell: one piece of a study's work, done anywhere and kept by its content."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

Tell = Callable[[float], None]  # called with the share of a cell that is done, from 0 to 1

SMALL_MEMORY = 200e6
"""Bytes of a process that has loaded what it computes with, and computes little."""


@dataclass(frozen=True)
class Outcome:
    """What a cell gives."""

    # plain values that JSON can hold, NaN included
    values: Mapping[str, Any] = field(default_factory=dict)
    # data frames by name, which go to Parquet
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    # further files by name: their contents, or where a store has them
    files: Mapping[str, bytes | Path] = field(default_factory=dict)

    def content(self, name: str) -> bytes:
        """What a file holds."""
        file = self.files[name]
        return file if isinstance(file, bytes) else file.read_bytes()

    # why there is nothing; '' if there is. Studies with partial results are given such outcomes of
    # cells that are lost.
    lost: str = ""


class PlainCell(Protocol):
    """The properties that most cells leave as they are."""

    @property
    def cost(self) -> float:
        """Expected s of one core, roughly: costly cells begin first, and the time left rests on
        it."""
        return 1.0

    @property
    def timed_as(self) -> str:
        """Its kind, of which all take about as many times longer than by their costs."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    @property
    def memory(self) -> float:
        """Expected bytes of a process that does it, beside what such cells share."""
        return SMALL_MEMORY

    @property
    def parts(self) -> frozenset[str]:
        """Names of the tables and files without which a stored outcome does not do."""
        return frozenset()

    def make_ready(self) -> None:
        """Load what such cells compute with and their modules do not load by themselves; processes
        that are forked for cells find it there. The second time it does nothing."""
        return  # without it the method were abstract


class Cell(PlainCell, Protocol):
    """A piece of work that can be pickled, such as a frozen dataclass, and that needs none of the
    others of its stage. It prints nothing and writes no files."""

    @property
    def key(self) -> Any:
        """Plain values that decide the outcome, beside the code: what JSON can hold."""

    @property
    def label(self) -> str:
        """What it is, for people: in the progress, and where it is lost."""

    def run(self, tell: Tell) -> Outcome:
        """Do it, with one thread: the same outcome wherever it is done. Where it cannot be done,
        that is a SimshuffleError, and nothing is kept."""


def digest_of(cell: Cell) -> str:
    """32 hexadecimal digits for the cell: its key, its kind, and the code that decides its
    outcome."""
    kind = type(cell)
    text = json.dumps(
        [kind.__module__, kind.__qualname__, code_digest(kind.__module__), cell.key],
        sort_keys=True,
        separators=(",", ":"),
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


ROOT = Path(__file__).parents[1]
PACKAGE = "simshuffle"
_FROM = re.compile(r"^[ \t]*from (\w[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*import (\w[\w.]*)", re.MULTILINE)


@cache
def code_digest(*modules: str) -> str:
    """SHA-256 over the sources of ``modules`` and of all that they import of simshuffle, or of
    their own package where they are a plugin's: found by import statements, wherever these stand,
    without importing. Data beside modules counts too, such as the catalog. The engine and the list
    of studies do not: how cells are done and kept decides nothing, and figures hang on them."""
    digest = hashlib.sha256()
    for path in sorted(_closure(modules)):
        own = path.is_relative_to(ROOT)
        digest.update((path.relative_to(ROOT).as_posix() if own else path.name).encode())
        digest.update(path.read_bytes())
        for data in sorted(path.parent.rglob("*.yaml")) if path.name == "__init__.py" else ():
            digest.update(data.read_bytes())
    return digest.hexdigest()


def _closure(modules: tuple[str, ...]) -> set[Path]:
    packages = {PACKAGE, *(name.partition(".")[0] for name in modules)}
    found: set[Path] = set()
    waiting = [path for name in modules for path in _files(name)]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            names = (name for name in _imported(path) if name.partition(".")[0] in packages)
            waiting += (file for name in names for file in _files(name))
    return found


@cache
def _imported(path: Path) -> tuple[str, ...]:
    """The modules that the one in ``path`` names in import statements, and what may be one."""
    source = path.read_text(encoding="utf-8")
    names = _IMPORT.findall(source)
    for module, listed in _FROM.findall(source):
        parts = (part.split()[0] for part in listed.strip("()").split(",") if part.strip())
        names += [module, *(f"{module}.{part}" for part in parts)]
    return tuple(names)


@cache
def _files(name: str) -> tuple[Path, ...]:
    """The files of a module and the packages around it; none of what decides nothing, or is
    none."""
    package, *parts = name.split(".")
    root = ROOT if package == PACKAGE else _folder(package)
    if not parts or root is None or (root == ROOT and parts[0] == "study"):
        return ()
    base = root.joinpath(*parts)
    own = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    around = [root.joinpath(*parts[:depth]) / "__init__.py" for depth in range(1, len(parts))]
    return (own, *around) if own.is_file() else ()


def _folder(package: str) -> Path | None:
    """The folder of another package; None of a script, which is none."""
    spec = None if package == "__main__" else importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None
