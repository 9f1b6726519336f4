"""Packages that are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import Any


class LatePackage:
    """A package that is imported when an attribute is first used: one that takes
    longer to import than a command such as ``simshuffle check`` takes in all.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def load(self) -> None:
        """Import the package now, for processes that are forked from this one."""
        importlib.import_module(self._name)

    def __getattr__(self, attribute: str) -> Any:
        """Import the package, and return its attribute, which is kept for later."""
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


networkx = LatePackage("networkx")
special = LatePackage("scipy.special")
stats = LatePackage("scipy.stats")
sparse = LatePackage("scipy.sparse")
csgraph = LatePackage("scipy.sparse.csgraph")
