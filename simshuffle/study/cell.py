"""Cell: one piece of a study's work, done anywhere and kept by its content."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

Tell = Callable[
    [float], None
]  # called with the share of a cell that is done, from 0 to 1

SMALL_MEMORY = 200e6
"""Bytes of a process that has loaded what it computes with, and computes little."""


@dataclass(frozen=True)
class Outcome:
    """The result of one cell: plain values, tables and files."""

    # plain values that JSON can hold, NaN included
    values: Mapping[str, Any] = field(default_factory=dict)
    # data frames by name, which go to Parquet
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    # further files by name: their contents, or where a store has them
    files: Mapping[str, bytes | Path] = field(default_factory=dict)

    def content(self, name: str) -> bytes:
        """Return the bytes of file ``name``, read from the store if it is there.

        Raises:
            KeyError: there is no such file.
        """
        file = self.files[name]
        return file if isinstance(file, bytes) else file.read_bytes()

    # why there is nothing; '' if there is. Studies with partial results are given such outcomes of
    # cells that are lost.
    lost: str = ""


class PlainCell(Protocol):
    """The properties that most cells leave as they are."""

    @property
    def cost(self) -> float:
        """Expected seconds of one core, roughly: costly cells begin first, and the
        estimate of the remaining time rests on it.
        """
        return 1.0

    @property
    def timed_as(self) -> str:
        """Kind of the cell: cells of a kind take about as many times longer than their
        costs say.
        """
        return f"{type(self).__module__}.{type(self).__qualname__}"

    @property
    def memory(self) -> float:
        """Expected bytes of a process that runs the cell, beside the memory that such
        cells share.
        """
        return SMALL_MEMORY

    @property
    def parts(self) -> frozenset[str]:
        """Names of the tables and files that a stored outcome must have to be used.

        A table is named with '.parquet'. An outcome that is read from a disk has these
        tables and files alone.
        """
        return frozenset()

    def make_ready(self) -> None:
        """Load the modules that such cells compute with and that their own modules do
        not load. Processes that are forked for cells inherit them. A second call does
        nothing.
        """
        return  # without it the method were abstract


class Cell(PlainCell, Protocol):
    """A piece of work that can be pickled, such as a frozen dataclass.

    It needs no other cell of its stage, prints nothing and writes no files.
    """

    @property
    def key(self) -> Any:
        """Plain values (as JSON holds them) that decide the outcome, beside the code."""

    @property
    def label(self) -> str:
        """Name of the cell for people: in the progress bars, and in the message if it
        is lost.
        """

    def run(self, tell: Tell) -> Outcome:
        """Run the cell with one thread; its outcome does not depend on where it runs.

        Raises:
            SimshuffleError: the cell cannot be done; no outcome is stored.
        """


def digest_of(cell: Cell) -> str:
    """Return the digest of a cell, 32 hexadecimal digits: of its key, its kind, and the
    code that decides its outcome.

    Raises:
        TypeError: the key is nothing that JSON holds.
    """
    kind = type(cell)
    text = json.dumps(
        [kind.__module__, kind.__qualname__, code_digest(kind.__module__), cell.key],
        sort_keys=True,
        separators=(",", ":"),
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


ROOT = Path(__file__).parents[1]
PACKAGE = "simshuffle"
_FROM = re.compile(r"\n[ \t]*from (\w[\w.]*) import (\([^)]*\)|[^\n]*)")
_IMPORT = re.compile(r"\n[ \t]*import (\w[\w.]*)")


@cache
def code_digest(*modules: str) -> str:
    """Return the SHA-256 (64 hexadecimal digits) over the sources of ``modules`` and of
    all that they import of simshuffle, or of their own package where they are a
    plugin's.

    It is computed once in a process; later changes of the files go unseen. A docstring
    and a comment count like code. The order of ``modules`` does not matter.

    Import statements are found wherever they stand, without importing. The YAML files
    in the folder of an imported package count too, such as the catalog. The engine and
    the list of studies do not count: how cells are run and stored decides no number,
    and figures depend on them.
    """
    digest = hashlib.sha256()
    root = f"{ROOT.as_posix()}/"
    for file in sorted(_find_imported_python_files(modules)):
        path = Path(file)
        name = file.removeprefix(root) if file.startswith(root) else path.name
        digest.update(name.encode())
        digest.update(path.read_bytes())
        for data in (
            sorted(path.parent.rglob("*.yaml")) if path.name == "__init__.py" else ()
        ):
            digest.update(data.read_bytes())
    return digest.hexdigest()


def _find_imported_python_files(modules: tuple[str, ...]) -> set[str]:
    """Return the paths of the Python files of ``modules`` and of all that they import,
    directly or not, of simshuffle and of their own packages.
    """
    packages = {PACKAGE, *(name.partition(".")[0] for name in modules)}
    visited: set[str] = set()
    unvisited = {file for name in modules for file in _python_files_of_module(name)}
    while unvisited:
        file = unvisited.pop()
        visited.add(file)
        for name in _parse_imports(file):
            if name.partition(".")[0] in packages:
                unvisited.update(_python_files_of_module(name))
        unvisited -= visited
    return visited


@cache
def _parse_imports(file: str) -> set[str]:
    """Return the modules that the import statements of the file at path ``file`` name,
    and the names that may be modules (``from package import name``).

    Of ``import a, b`` only the first is found, and no relative import.
    """
    # a pattern that begins with the end of a line is found fastest
    source = "\n" + Path(file).read_text(encoding="utf-8")
    names = set(_IMPORT.findall(source))
    for module, names_listed in _FROM.findall(source):
        names.add(module)
        for part in names_listed.strip("()").split(","):
            names.update(f"{module}.{word}" for word in part.split()[:1])
    return names


@cache
def _python_files_of_module(name: str) -> tuple[str, ...]:
    """Return the paths of the Python file of module ``name`` and of the ``__init__.py``
    of the packages around it; () for modules that decide no outcome
    (`simshuffle.study`) and for names that are no module.

    The ``__init__.py`` of the topmost package is left out.
    """
    package, *parts = name.split(".")
    root = ROOT if package == PACKAGE else _folder_of_package(package)
    if not parts or root is None or (root == ROOT and parts[0] == "study"):
        return ()
    folder = root.as_posix()
    base = "/".join([folder, *parts])
    # texts and the functions of os: thousands of names are tried, and a Path takes longer
    file = f"{base}/__init__.py" if os.path.isdir(base) else f"{base}.py"  # noqa: PTH112
    if not os.path.isfile(file):  # noqa: PTH113
        return ()
    packages = [parts[:depth] for depth in range(1, len(parts))]
    return (
        file,
        *("/".join([folder, *package, "__init__.py"]) for package in packages),
    )


def _folder_of_package(package: str) -> Path | None:
    """Return the folder of another package; None for a script, and if it has none."""
    spec = None if package == "__main__" else importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None
