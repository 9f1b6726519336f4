"""Find where in the code the time of fetches and steps goes, from stacks seen now and
then.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
from typing import Any, Optional

_OWN = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow
_STANDARD = os.path.dirname(os.path.abspath(os.__file__))  # noqa: PTH100, PTH120
_INSTALLED = ("site-packages", "dist-packages")
_LOADING = f"torch{os.sep}utils{os.sep}data{os.sep}"
_TRANSFORMS = tuple(
    f"{os.sep}{name}{os.sep}"
    for name in ("transforms", "albumentations", "kornia", "imgaug")
)
_NAME_OF_TRANSFORM = r"\w*(?:transform(?!er)|augment)\w*"
_CALL_OF_TRANSFORM = re.compile(_NAME_OF_TRANSFORM + r"\s*\(", re.IGNORECASE)
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Functions that Python makes of a part of a line; from 3.12 on only the last one."""
MAX_PLACES = 1000
"""Places of a process that are told apart at most."""
WRITTEN = 40
"""Places of a process that are written at most, the most frequent ones."""
FETCH_FUNCTION = "fetch_batch"
"""Name of the function of `fetching` that stands in place of torch's fetch."""
Key = tuple[str, str, str, int, str, bool]
"""Operation, file, function, line, the function of a library that is called there (''
for none), and whether a transform is at work.
"""


def locate(frame: Any) -> Optional[tuple[str, str, int, str, bool]]:  # noqa: UP045 - Python 3.9
    """Return where a thread is: the innermost function that is neither of the standard
    library nor installed, and what it calls of these; if all are library frames, the
    outermost one.

    Frames of the recorder, of torch.utils.data, of frozen modules and of comprehensions,
    which are a part of the function that they stand in, do not count. If
    the thread fetches a batch, frames around the fetch do not count.

    Args:
        frame: the innermost frame of the thread; None for a thread that has ended.

    Returns:
        file, function (with its class, from Python 3.11 on), the line that runs, the
        library function that is called there as ``module.function`` ('' for none), and
        whether a function on the stack is a transform, or a line that runs calls one.
        None if no frame counts.
    """
    library_call = ""
    has_transform = False
    user_place: Optional[tuple[str, str, int]] = None  # noqa: UP045
    outermost: Optional[tuple[str, str, int]] = None  # noqa: UP045
    inner_function = ""
    while frame is not None:
        code = frame.f_code
        path = code.co_filename
        if path.startswith(_OWN):
            if code.co_name == FETCH_FUNCTION:
                break
        elif not (
            path.startswith("<frozen")
            or _LOADING in path
            or code.co_name in COMPREHENSIONS
        ):
            name = getattr(code, "co_qualname", code.co_name)
            has_transform = has_transform or _is_transform(code.co_name, path)
            outermost = (path, name, frame.f_lineno)
            if not is_library(path):
                has_transform = has_transform or _calls_transform(path, frame.f_lineno)
                if user_place is None:
                    user_place = outermost
                    library_call = inner_function
            inner_function = f"{frame.f_globals.get('__name__', '')}.{name}"
        frame = frame.f_back
    place = user_place or outermost
    return None if place is None else (*place, library_call, has_transform)


def is_own(path: str) -> bool:
    """Return whether a file is of the recorder."""
    return path.startswith(_OWN)


@functools.lru_cache(MAX_PLACES)
def is_library(path: str) -> bool:
    """Return whether a file is of the standard library, or installed."""
    return path.startswith(_STANDARD) or any(name in path for name in _INSTALLED)


@functools.lru_cache(MAX_PLACES)
def _is_transform(function: str, path: str) -> bool:
    """Return whether a function is a transform, by its name or the folders of its file.

    The name of a transform has "augment", or "transform" but not "transformer", in it.
    """
    is_named_so = re.match(_NAME_OF_TRANSFORM, function, re.IGNORECASE) is not None
    return is_named_so or any(part in path for part in _TRANSFORMS)


@functools.lru_cache(MAX_PLACES)
def _calls_transform(path: str, line: int) -> bool:
    """Return whether a line of a file calls what is named as a transform, as
    ``self.transform(image)`` does whatever class that is; False if there is no file.
    """
    return _CALL_OF_TRANSFORM.search(linecache.getline(path, line)) is not None


class PlaceCounts:
    """Counts of the places in which threads were seen."""

    def __init__(self) -> None:
        self.counts: dict[Key, int] = {}

    def look(self, thread: int, operation: str) -> None:
        """Count the place of a thread that does an operation.

        Counts nothing if the thread has ended, if none of its frames counts, or in a
        new place beyond `MAX_PLACES`.

        Args:
            thread: its identifier, as of `threading.get_ident`.
            operation: its name.
        """
        place = locate(sys._current_frames().get(thread))
        if place is None:
            return
        key = (operation, *place)
        if key in self.counts or len(self.counts) < MAX_PLACES:
            self.counts[key] = self.counts.get(key, 0) + 1

    def most_frequent(self) -> list[list[Any]]:
        """Return the `WRITTEN` most frequent places, the most frequent first, each as a
        list: the parts of `Key`, and the count.
        """
        # the thread that looks may add a place meanwhile
        ordered = sorted(list(self.counts.items()), key=lambda item: -item[1])  # noqa: C414
        return [[*key, count] for key, count in ordered[:WRITTEN]]
