"""Old names of verbs, options and modules, which work in one version with a message.

`FAREWELL` is the version without them: a verb is refused from then on with its new
name, and the others are unknown.
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

FAREWELL = "0.4"
"""Version that no longer takes the old names of this module."""
OLD_VERBS = {
    **{name: f"study {name}" for name in ("audit", "blame", "loader", "oracle", "tta")},
    "export": "results export",
    "schema": "study schema",
    "study congestion": "congestion",
}
"""New name of each verb, by its name in version 0.2."""
REFUSED_VERBS = {
    **{
        name: f"study {name}"
        for name in ("ablate", "collective", "hiding", "replay", "validate")
    },
    **{name: f"results {name}" for name in ("plot", "show", "verify")},
    **{name: f"machine {name}" for name in ("calibrate", "probe", "testbed")},
    "topology": "machine",
}
"""New name of each verb whose old name, of version 0.1, is refused."""
OLD_OPTIONS = {"study hiding --way": "--variant"}
"""New name of each option, by its verb and its name in version 0.2."""
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
    "plan.verdict": "job.verdict",
    "plan.running_statistics": "studies.training.running_statistics",
    "results": "report",
    "resuming.dealing": "workload.exchange.dealing",
    "resuming.epochs": "workload.exchange.epochs",
    "resuming.states": "workload.exchange.states",
    "studies.calibrate.sample_costs": "extensions.calibration.probe",
    "studies.planning": "extensions.planning",
    "train.source": "train.sources",
    **{
        old: f"{room}.{old.split('.')[-1]}"
        for room, olds in FOLDERS.items()
        for old in olds
    },
}
"""New place of each folder or file that moved, by its old name below ``simshuffle``."""


def describe_new_name(old_name: str, new_name: str) -> str:
    """Return the sentence that an old name prints or warns with."""
    return f"{old_name} is {new_name} now; the old name goes in {FAREWELL}."


def find_new_name(name: str) -> str | None:
    """Return the new name of the module ``name``, its full dotted name; None if it has
    not moved.

    A module below a folder that moved has moved with it.
    """
    package, *parts = name.split(".")
    if package == "simshuffle":
        for count in (3, 2, 1):
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
        message = describe_new_name(old_name, new_name)
        warnings.warn(message, FutureWarning, stacklevel=2)
        sys.modules[old_name] = importlib.import_module(new_name)


def keep_old_names() -> None:
    """Make the old names importable, by a finder before all others: a folder that is
    found by its old name would else have its files imported once more, under that name.
    A second call does nothing.
    """
    if not any(isinstance(finder, MovedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedFinder())
