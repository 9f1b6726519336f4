"""What stands for a result whose study is not on the engine yet: its text, and all code."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

from simshuffle.version import __version__


@cache
def code_digest() -> str:
    """SHA-256 over the sources of the package, so that results of changed code are never taken for
    those of another."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def fingerprint(text: str) -> str:
    """Twelve hexadecimal digits that stand for ``text`` and the code."""
    return hashlib.sha256(f"{text}\n{code_digest()}".encode()).hexdigest()[:12]


def versions() -> dict[str, str]:
    """Versions of simshuffle, Python and the packages that compute."""
    names = ("numpy", "numba", "simpy", "networkx", "pandas")
    known = {"simshuffle": __version__, "python": platform.python_version()}
    return {**known, **{name: version(name) for name in names}}
