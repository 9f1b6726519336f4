"""Packages that are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import Any


class Late:
    """Stands for a package that takes longer to import than a command that does not need it takes
    in all, such as ``simshuffle check``; has all its attributes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def load(self) -> None:
        """Import it now, for what is forked from this process."""
        importlib.import_module(self._name)

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


networkx = Late("networkx")
special = Late("scipy.special")
stats = Late("scipy.stats")
sparse = Late("scipy.sparse")
csgraph = Late("scipy.sparse.csgraph")
