"""Note the calls that open, connect or parse: which line makes them, how long they take,
and whether they are made anew for every sample.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from .meter import OWN, Meter, clock
from .patching import Patches
from .places import is_of_script

HANDLE, EXACT, PARSE = "handle", "exact", "parse"
"""Kinds of calls: one that gives a handle, whose first use costs time, too; one that
takes all the time itself; one that parses a file or text.
"""
KNOWN_CALLS = {
    "boto3": {"client": HANDLE, "resource": HANDLE},
    "duckdb": {"connect": HANDLE},
    "h5py._hl.files": {"File.__init__": HANDLE},
    "http.client": {"HTTPConnection.connect": EXACT},
    "json": {"load": PARSE, "loads": PARSE},
    "lmdb": {"open": HANDLE},
    "mysql.connector": {"connect": HANDLE},
    "numpy": {"load": PARSE, "loadtxt": PARSE, "genfromtxt": PARSE},
    "netCDF4": {"Dataset.__init__": HANDLE},
    "pandas": {
        "read_csv": PARSE,
        "read_excel": PARSE,
        "read_feather": PARSE,
        "read_hdf": PARSE,
        "read_json": PARSE,
        "read_parquet": PARSE,
        "read_pickle": PARSE,
        "read_table": PARSE,
    },
    "pickle": {"load": PARSE, "loads": PARSE},
    "psycopg2": {"connect": HANDLE},
    "pyarrow.parquet.core": {"ParquetFile.__init__": HANDLE, "read_table": PARSE},
    "pymysql": {"connect": HANDLE},
    "PIL.ImageFont": {"truetype": PARSE},
    "scipy.io": {"loadmat": PARSE},
    "sqlite3": {"connect": HANDLE},
    "tarfile": {"open": HANDLE},
    "tomllib": {"load": PARSE, "loads": PARSE},
    "torch": {"load": PARSE},
    "xml.etree.ElementTree": {"parse": PARSE},
    "yaml": {"load": PARSE, "safe_load": PARSE},
    "zipfile": {"ZipFile.__init__": HANDLE},
}
"""By module: names of functions, or of methods with their class, and the kind of each."""
NEAR = 8
"""Samples within which a call for the same file or text is made anew, also in the next
epoch (chosen: a data set with as few files opens each of them for every few samples).
"""
_MAX_KEYS = 4096
"""Files and texts of a process that are told apart at most."""
_MAX_LINES = 200
"""Lines that call, of a process, that are told apart at most."""
_WRITTEN = 20
"""Lines that are written at most, those that took longest."""
_EDGE = 1024
"""Letters at each end of a text by which it is known again, beside its length."""


class CallLog:
    """The known calls that a process made while it fetched.

    Attributes:
        samples: that earlier fetches of the process brought.
        epoch: index of the epoch that the process fetches for.
        lines: by function, kind, file, calling function and line: calls, ns, calls that
            were made anew, and ns of these.
        last_uses: by function and what it was called for, epoch and number of the last
            sample for which.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.epoch = 0
        self.lines: dict[tuple[str, str, str, str, int], list[int]] = {}
        self.last_uses: dict[tuple[str, int], tuple[int, int]] = {}

    def note(
        self, meter: Meter, name: str, kind: str, subject: Any, duration: int
    ) -> None:
        """Note a call of a fetch that has just ended.

        It is made anew if a call for the same came earlier in the epoch, as where many
        samples share an archive, or at most `NEAR` samples before. A file of one sample
        is opened once an epoch.

        Args:
            meter: of the fetch.
            name: of the function, with its module.
            kind: of the call.
            subject: what was opened or parsed.
            duration: ns of the call.
        """
        meter.noted_calls += 1
        sample = self.samples + len(meter.samples)
        key = (name, _key_of(subject))
        is_known = key in self.last_uses
        last_epoch, last_sample = self.last_uses.get(key, (0, 0))
        if is_known or len(self.last_uses) < _MAX_KEYS:
            self.last_uses[key] = (self.epoch, sample)
        is_near = last_epoch == self.epoch or sample - last_sample <= NEAR
        is_anew = is_known and is_near
        line = (name, kind, *_calling_line(sys._getframe(1)))
        if line in self.lines or len(self.lines) < _MAX_LINES:
            sums = self.lines.setdefault(line, [0, 0, 0, 0])
            sums[0] += 1
            sums[1] += duration
            sums[2] += is_anew
            sums[3] += duration * is_anew
        if is_anew:
            meter.repeats += 1
            meter.repeat_ns += duration

    def longest(self) -> list[list[Any]]:
        """Return the `_WRITTEN` lines that took longest, each as a list: the key of
        `lines`, and its sums.
        """
        ordered = sorted(self.lines.items(), key=lambda entry: -entry[1][1])
        return [[*line, *sums] for line, sums in ordered[:_WRITTEN]]


def _calling_line(frame: Any) -> tuple[str, str, int]:
    """Return file, function and line of the innermost frame that is neither of the
    recorder, nor of the standard library, nor installed, nor a comprehension; of the
    first one without.
    """
    first = frame
    while frame is not None and not is_of_script(frame):
        frame = frame.f_back
    frame = frame or first
    code = frame.f_code
    return (
        code.co_filename,
        getattr(code, "co_qualname", code.co_name),
        frame.f_lineno,
    )


def _key_of(subject: Any) -> int:
    """Return a number that equals that of other calls for this file or text."""
    if isinstance(subject, (str, bytes)):
        return hash((len(subject), subject[:_EDGE], subject[-_EDGE:]))
    name = getattr(subject, "name", None) or getattr(subject, "host", None)
    try:
        return hash(os.fspath(subject) if hasattr(subject, "__fspath__") else name)
    except TypeError:
        return 0


def watch_known_calls(patches: Patches, log: CallLog) -> None:
    """Note the calls of `KNOWN_CALLS` from now on, also of modules that are imported
    later.
    """
    for module, kinds in KNOWN_CALLS.items():
        patches.patch_on_import(module, functools.partial(_patch, patches, log, kinds))


def _patch(patches: Patches, log: CallLog, kinds: dict[str, str], module: Any) -> None:
    """Replace functions of a module by noted ones; names that it does not have are
    passed over.
    """
    package = module.__name__.partition(".")[0]
    for name, kind in kinds.items():
        owner, _, attribute = name.rpartition(".")
        holder = getattr(module, owner, None) if owner else module
        function = vars(holder).get(attribute) if holder is not None else None
        if function is not None:
            full_name = f"{package}.{owner or attribute}"
            call = _wrap_known_call(log, function, full_name, kind, bool(owner))
            patches.replace(holder, attribute, call)


def _wrap_known_call(
    log: CallLog, function: Callable[..., Any], name: str, kind: str, is_method: bool
) -> Callable[..., Any]:
    """Return a function in place of another, whose calls within a fetch are noted if
    its parts are timed; of calls within one another only the outermost.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        meter = OWN.meter
        if meter is None or meter.in_known_call:
            return function(*args, **kwargs)
        meter.in_known_call = True
        begin = clock()
        try:
            return function(*args, **kwargs)
        finally:
            meter.in_known_call = False
            subjects = args[is_method and len(args) > 1 :] or tuple(kwargs.values())
            subject = subjects[0] if subjects else None
            log.note(meter, name, kind, subject, clock() - begin)

    return wrapper
