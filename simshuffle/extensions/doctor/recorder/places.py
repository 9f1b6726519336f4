"""Find where in the code the time of fetches and steps goes, from stacks seen now and
then.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
import sys
import threading
from collections.abc import Collection
from typing import Any, Optional

from .meter import clock, thread_cpu_ns

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
_CALL_THAT_WAITS = re.compile(
    r"\b(sleep|wait|get|join|acquire|recv|accept|select|poll)\w*\s*\("
)
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Functions that Python makes of a part of a line; from 3.12 on only the last one."""
MAX_PLACES = 1000
"""Places of a process that are told apart at most."""
WRITTEN = 40
"""Places of a process that are written at most, the most frequent ones."""
OTHER_THREAD = "other thread"
"""Operation of threads that neither fetch nor loop."""
LONG_STEP = "long step"
"""Operation of the loop in a step that takes longer than others already."""
BUSY = 0.25
"""Share of the time between two looks from which a thread computes (chosen)."""
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
    has_transform = False
    user_frame: Any = None
    library_frame: Any = None
    inner_frame: Any = None
    outermost: Any = None
    while frame is not None:
        code = frame.f_code
        kind, is_transform = _describe_line(
            code.co_filename, code.co_name, frame.f_lineno
        )
        if kind == _FETCH:
            break
        if kind != _SKIPPED:
            has_transform = has_transform or is_transform
            outermost = frame
            if kind == _USER and user_frame is None:
                user_frame = frame
                library_frame = inner_frame
            inner_frame = frame
        frame = frame.f_back
    place = user_frame or outermost
    if place is None:
        return None
    library_call = ""
    if library_frame is not None:
        module = library_frame.f_globals.get("__name__", "")
        library_call = f"{module}.{_name_of(library_frame.f_code)}"
    path = place.f_code.co_filename
    return path, _name_of(place.f_code), place.f_lineno, library_call, has_transform


def is_of_script(frame: Any) -> bool:
    """Return whether a frame is neither of the recorder, nor of the standard library,
    nor installed, nor a comprehension.
    """
    code = frame.f_code
    return _describe_line(code.co_filename, code.co_name, frame.f_lineno)[0] == _USER


@functools.lru_cache(MAX_PLACES)
def is_library(path: str) -> bool:
    """Return whether a file is of the standard library, or installed."""
    return path.startswith(_STANDARD) or any(name in path for name in _INSTALLED)


def _calls_wait(path: str, line: int) -> bool:
    """Return whether a line is a library's, or calls what waits for something."""
    return is_library(path) or bool(
        _CALL_THAT_WAITS.search(linecache.getline(path, line))
    )


def _name_of(code: Any) -> str:
    """Return the name of a function, with its class from Python 3.11 on."""
    return str(getattr(code, "co_qualname", code.co_name))


_SKIPPED, _FETCH, _LIBRARY, _USER = range(4)
"""Kinds of lines: that do not count, of the fetch itself, of a library, of others."""


@functools.lru_cache(8 * MAX_PLACES)
def _describe_line(path: str, function: str, line: int) -> tuple[int, bool]:
    """Return the kind of a line that runs, and whether a transform is at work in it.

    The name of a transform has "augment", or "transform" but not "transformer", in it.
    A function is one by its name or the folders of its file. A line of no library is,
    too, that calls one, as ``self.transform(image)`` does whatever class that is.
    """
    if path.startswith(_OWN):
        return (_FETCH if function == FETCH_FUNCTION else _SKIPPED), False
    if path.startswith("<frozen") or _LOADING in path or function in _COMPREHENSIONS:
        return _SKIPPED, False
    is_transform = re.match(_NAME_OF_TRANSFORM, function, re.IGNORECASE) is not None
    is_transform = is_transform or any(part in path for part in _TRANSFORMS)
    if is_library(path):
        return _LIBRARY, is_transform
    calls_one = _CALL_OF_TRANSFORM.search(linecache.getline(path, line)) is not None
    return _USER, is_transform or calls_one


class PlaceCounts:
    """Counts of the places in which threads were seen.

    Attributes:
        counts: by place, how often a thread was seen there.
        last_cpu_ns: by thread, ns that it had computed when others were looked at.
        looked_at: clock at that time.
    """

    def __init__(self) -> None:
        self.counts: dict[Key, int] = {}
        self.last_cpu_ns: dict[int, int] = {}
        self.looked_at = 0

    def look(self, thread: int, operation: str) -> None:
        """Count the place of a thread that does an operation.

        Counts nothing if the thread has ended, if none of its frames counts, or in a
        new place beyond `MAX_PLACES`.

        Args:
            thread: its identifier, as of `threading.get_ident`.
            operation: its name.
        """
        place = locate(sys._current_frames().get(thread))
        if place is not None:
            self._count((operation, *place))

    def look_at_others(self, known_threads: Collection[int]) -> None:
        """Count the places of threads that computed since they were last looked at, for
        `BUSY` of that time or more, in a line that is not a library's and does not wait.

        Threads that the threading module does not know, and all of a system that does
        not say what a thread computed, are not counted.

        Args:
            known_threads: identifiers of threads that do not count.
        """
        now = clock()
        computed_ns = {}
        threads = vars(threading).get("_active", {})  # without the lock of `enumerate`
        for thread, frame in sys._current_frames().items():
            native_id = getattr(threads.get(thread), "native_id", None)
            if thread in known_threads or native_id is None:
                continue
            computed_ns[thread] = thread_cpu_ns(native_id)
            added_ns = computed_ns[thread] - self.last_cpu_ns.get(
                thread, computed_ns[thread]
            )
            if added_ns >= BUSY * (now - self.looked_at):
                place = locate(frame)
                if place is not None and not _calls_wait(place[0], place[2]):
                    self._count((OTHER_THREAD, *place))
        self.last_cpu_ns, self.looked_at = computed_ns, now

    def _count(self, key: Key) -> None:
        """Count a place, unless it is a new one beyond `MAX_PLACES`."""
        if key in self.counts or len(self.counts) < MAX_PLACES:
            self.counts[key] = self.counts.get(key, 0) + 1

    def most_frequent(self) -> list[list[Any]]:
        """Return the `WRITTEN` most frequent places, the most frequent first, each as a
        list: the parts of `Key`, and the count.
        """
        # the thread that looks may add a place meanwhile
        ordered = sorted(list(self.counts.items()), key=lambda item: -item[1])  # noqa: C414
        return [[*key, count] for key, count in ordered[:WRITTEN]]
