"""Replace functions of other packages in their modules, at once or when these are
imported.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from .meter import OWN

_ABSENT = object()
Patch = Callable[[Any], None]
"""Replaces functions of the module that it is called with."""


class Patches:
    """Replaced attributes, so that they can be put back.

    It is also a finder of `sys.meta_path`, which finds nothing itself: it patches
    modules after they were imported. It is put before all other finders as it is made.

    Attributes:
        undo: functions that put attributes back, the last replaced one last.
        patches_of_module: by name, patches of modules that are not imported yet.
        failures: a sentence on each patch that failed.
    """

    def __init__(self) -> None:
        self.undo: list[
            Callable[[], object]
        ] = []  # put attributes back, the first one last
        self.patches_of_module: dict[
            str, list[Patch]
        ] = {}  # of modules not yet imported
        self.failures: list[str] = []  # sentences on patches that failed
        sys.meta_path.insert(0, self)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set an attribute of a module or class, and keep how to undo that."""
        old = vars(owner).get(name, _ABSENT)
        setattr(owner, name, new)
        if old is _ABSENT:
            self.undo.append(lambda: delattr(owner, name))
        else:
            self.undo.append(lambda: setattr(owner, name, old))

    def patch_on_import(self, name: str, patch: Patch) -> None:
        """Call ``patch`` with a module: now if it is imported, or else after that.

        A module that is built into Python is imported. A failure of ``patch`` raises
        nothing, and adds a sentence to `failures`.
        """
        if name in sys.builtin_module_names:
            importlib.import_module(name)
        if name in sys.modules:
            self._apply(patch, sys.modules[name])
        else:
            self.patches_of_module.setdefault(name, []).append(patch)

    def _apply(self, patch: Patch, module: Any) -> None:
        """Patch a module; a failure becomes a sentence of `failures`."""
        try:
            patch(module)
        except Exception as error:  # noqa: BLE001 - another version of it must still be usable
            self.failures.append(f"{module.__name__} is not watched: {error!r}")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that the other finders find, whose loader applies the patches
        once; None for modules without patches, and for those that no finder finds.
        """
        if name not in self.patches_of_module:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                self._patch_after_run(spec.loader, self.patches_of_module.pop(name))
                return spec
        return None

    def _patch_after_run(self, loader: Any, patches: list[Patch]) -> None:
        """Have a loader apply patches to its module after it has run that."""
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module  # so that nobody finds the loader changed
            run(module)
            for patch in patches:
                self._apply(patch, module)

        loader.exec_module = exec_module

    def remove(self) -> None:
        """Put back all replaced attributes, the last first; watch no more imports.

        Raises:
            ValueError: they were put back before.
        """
        sys.meta_path.remove(self)
        for undo in reversed(self.undo):
            undo()
        self.undo.clear()


class TimedCallable:
    """A callable in place of a function written in C.

    As such a function, it is not bound where it is an attribute of a class. It is
    printed as the function, and pickled by the name of the function alone.
    """

    def __init__(self, function: Callable[..., Any], operation: int) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.operation = operation

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; within a fetch whose parts are timed, time the call."""
        meter = OWN.meter
        if meter is None:
            return self.function(*args, **kwargs)
        return meter.time_call(self.operation, self.function, args, kwargs)

    def __repr__(self) -> str:
        return repr(self.function)

    def __reduce__(self) -> str:
        return str(self.__name__)  # type: ignore[attr-defined]


def wrap_with_timer(function: Callable[..., Any], operation: int) -> Callable[..., Any]:
    """Return a function in place of another, whose calls within a fetch are timed.

    Calls are not timed where the thread fetches nothing, or the parts of its fetch are
    not timed.

    Args:
        function: of Python or C; a function of Python is replaced by one of Python, any
            other callable by a `TimedCallable`.
        operation: code of what it does.
    """
    if not isinstance(function, types.FunctionType):
        return TimedCallable(function, operation)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        meter = OWN.meter
        if meter is None:
            return function(*args, **kwargs)
        return meter.time_call(operation, function, args, kwargs)

    return wrapper
