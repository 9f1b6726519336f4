"""Note where in the code a training makes its loaders, and sets the threads of torch."""

from __future__ import annotations

import functools
import sys
from contextlib import suppress
from typing import Any

from .places import locate
from .process import Process

MADE_AT = "_made_at"
"""Attribute of a DataLoader with the file, function and line that made it."""


def watch_settings(process: Process) -> None:
    """Note the lines that make DataLoaders and that set the threads of torch, from now on.

    A loader keeps its line as its attribute `MADE_AT`; the line that last set threads is
    the fact ``threads_set_at`` of the process.
    """

    def watch_loaders(module: Any) -> None:
        """Have every new DataLoader keep the line that made it."""
        init = module.DataLoader.__init__

        @functools.wraps(init)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            """Make a loader, and note the line that does."""
            init(self, *args, **kwargs)
            with suppress(AttributeError, ValueError):  # as of a class with slots
                setattr(self, MADE_AT, _locate_caller())

        process.patches.replace(module.DataLoader, "__init__", __init__)

    def watch_threads(torch: Any) -> None:
        """Note each line that sets the threads of torch."""
        set_threads = torch.set_num_threads

        @functools.wraps(set_threads)
        def set_num_threads(*args: Any, **kwargs: Any) -> None:
            """Set the threads of torch, and note the line that does."""
            set_threads(*args, **kwargs)
            process.journal.facts["threads_set_at"] = _locate_caller()

        process.patches.replace(torch, "set_num_threads", set_num_threads)

    process.patches.patch_on_import("torch.utils.data.dataloader", watch_loaders)
    process.patches.patch_on_import("torch", watch_threads)


def _locate_caller() -> Any:
    """Return the file, function and line that called the recorder, as `locate` finds
    them; None if no frame counts there.
    """
    place = locate(sys._getframe(1))
    return None if place is None else list(place[:3])
