"""Replacing functions of others where they stand, at once or when their module is imported."""

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


class Patches:
    """What was replaced, so that it can be put back.

    It is also a finder of `sys.meta_path`, which finds nothing itself: it has the modules that
    somebody waits for patched after they were run.
    """

    def __init__(self) -> None:
        self.undo: list[Callable[[], object]] = []
        self.awaited: dict[str, list[Patch]] = {}
        self.failed: list[str] = []
        sys.meta_path.insert(0, self)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        """Set an attribute of a module or class."""
        old = vars(owner).get(name, _ABSENT)
        setattr(owner, name, new)
        if old is _ABSENT:
            self.undo.append(lambda: delattr(owner, name))
        else:
            self.undo.append(lambda: setattr(owner, name, old))

    def when_imported(self, name: str, patch: Patch) -> None:
        """Call ``patch`` with a module: now if it is there, else after it is imported."""
        if name in sys.builtin_module_names:
            importlib.import_module(name)
        if name in sys.modules:
            self._apply(patch, sys.modules[name])
        else:
            self.awaited.setdefault(name, []).append(patch)

    def _apply(self, patch: Patch, module: Any) -> None:
        try:
            patch(module)
        except Exception as error:  # noqa: BLE001 - another version of it must still be usable
            self.failed.append(f"{module.__name__} is not watched: {error!r}")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """What the other finders find, with the patches to follow."""
        if name not in self.awaited:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                self._follow(spec.loader, self.awaited.pop(name))
                return spec
        return None

    def _follow(self, loader: Any, patches: list[Patch]) -> None:
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module  # it is as it was, for whoever looks
            run(module)
            for patch in patches:
                self._apply(patch, module)

        loader.exec_module = exec_module

    def remove(self) -> None:
        """Put everything back."""
        sys.meta_path.remove(self)
        for undo in reversed(self.undo):
            undo()
        self.undo.clear()


class Timed:
    """In place of a function written in C, which like that is not bound where it is an attribute of
    a class."""

    def __init__(self, function: Callable[..., Any], operation: int) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.operation = operation

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function gives."""
        meter = OWN.meter
        if meter is None:
            return self.function(*args, **kwargs)
        return meter.timed(self.operation, self.function, args, kwargs)

    def __repr__(self) -> str:
        return repr(self.function)

    def __reduce__(self) -> str:
        return str(self.__name__)  # type: ignore[attr-defined]


def timed(function: Callable[..., Any], operation: int) -> Callable[..., Any]:
    """A function in its place that takes part in the time of a fetch: one of Python for one of
    Python, else one that is not bound either."""
    if not isinstance(function, types.FunctionType):
        return Timed(function, operation)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        meter = OWN.meter
        if meter is None:
            return function(*args, **kwargs)
        return meter.timed(operation, function, args, kwargs)

    return called
