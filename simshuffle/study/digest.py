"""What stands for code: a digest over the sources that a module imports, and theirs. A change that
cannot change a result, such as a colour, leaves it as it is."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "simshuffle"
_FROM = re.compile(r"^[ \t]*from (\w[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*import (\w[\w.]*)", re.MULTILINE)


@cache
def code_digest(*modules: str) -> str:
    """SHA-256 over the sources of ``modules`` and of all modules of simshuffle, or of their own
    package where they are a plugin's, that they import, directly or not.

    Modules are found by their import statements, wherever these stand, without importing them. The
    data that lies beside modules counts too, such as the catalog. The engine and the list of
    studies do not: how cells are done and kept decides nothing, and figures hang on them.
    """
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
    """The file of a module and those of the packages around it, but for those that decide nothing;
    none if there is no such module."""
    package, *parts = name.split(".")
    root = ROOT if package == PACKAGE else _folder(package)
    if not parts or root is None or (root == ROOT and parts[0] == "study") or parts == ["studies"]:
        return ()
    base = root.joinpath(*parts)
    own = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    around = [root.joinpath(*parts[:depth]) / "__init__.py" for depth in range(1, len(parts))]
    known = [path for path in around if path != ROOT / "studies" / "__init__.py"]
    return (own, *known) if own.is_file() else ()


def _folder(package: str) -> Path | None:
    """The folder of another package; None of a script, which is none."""
    spec = None if package == "__main__" else importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None
