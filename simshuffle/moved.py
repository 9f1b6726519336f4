"""Modules by the names that they had in version 0.2, for one more version, with a
warning.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

FOLDERS = {
    "fabric": ("allreduce", "network", "routing", "topology"),
    "workload": ("exchange", "layers", "orders", "parallelism", "resuming"),
    "job": (
        "lowering",
        "plan",
        "reliability",
        "scenario",
        "sim",
        "uncertainty",
        "verdict",
    ),
    "studies": ("alltoall", "collective", "comparison", "presentation", "verify"),
    "extensions.doctor": ("blame", "recorder", "records"),
    "extensions.calibration": ("probe", "studies.calibrate", "studies.validation"),
    "extensions.interop": ("exports", "fabrics"),
    "extensions.planning": ("studies.month",),
    "extensions.planning.month": (
        "reliability.daly",
        "reliability.goodput",
        "reliability.hosts",
    ),
    "extensions.learning": (
        "studies.accuracy",
        "studies.filtering",
        "studies.time_to_accuracy",
    ),
}
NEW_PLACES = {
    "audit": "extensions.resuming",
    "doctor": "extensions.doctor",
    "plan.running_statistics": "studies.training.running_statistics",
    "results": "report",
    "resuming.dealing": "workload.exchange.dealing",
    "resuming.epochs": "workload.exchange.epochs",
    "resuming.states": "workload.exchange.states",
    "studies.planning": "extensions.planning",
    **{
        old: f"{room}.{old.split('.')[-1]}"
        for room, olds in FOLDERS.items()
        for old in olds
    },
}
"""New place of each folder or file that moved, by its old name below ``simshuffle``."""


def find_new_name(name: str) -> str | None:
    """Return the new name of the module ``name``, its full dotted name; None if it has
    not moved.

    A module below a folder that moved has moved with it.
    """
    package, *parts = name.split(".")
    if package == "simshuffle":
        for count in (2, 1):
            old = ".".join(parts[:count])
            if len(parts) >= count and old in NEW_PLACES:
                return ".".join([package, NEW_PLACES[old], *parts[count:]])
    return None


class MovedFinder(MetaPathFinder, Loader):
    """Finder that imports a module at its new place where an old name is asked for."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return a spec for the old name of a moved module; None for others."""
        return spec_from_loader(fullname, self) if find_new_name(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        """Import the module at its new place, and register it under the old name as
        well.

        It warns with a FutureWarning. The caller of the import gets the module at the
        new place, not ``module``.

        Raises:
            ImportError: the new place cannot be imported.
        """
        old_name = module.__name__
        new_name = str(find_new_name(old_name))
        text = f"{old_name} is now {new_name}; the old name goes with version 0.4"
        warnings.warn(text, FutureWarning, stacklevel=2)
        sys.modules[old_name] = importlib.import_module(new_name)


def keep_old_names() -> None:
    """Make the old names importable, by a finder before all others: a folder that is
    found by its old name would else have its files imported once more, under that name.
    A second call does nothing.
    """
    if not any(isinstance(finder, MovedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedFinder())
