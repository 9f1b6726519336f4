"""Reading the record of a training, in whichever of the formats it is: found by the content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.recorder.rows import SUFFIX
from simshuffle.extensions.doctor.records.chakra import ranks_in, read_chakra
from simshuffle.extensions.doctor.records.chakra_schema import is_chakra
from simshuffle.extensions.doctor.records.chrome import is_chrome
from simshuffle.extensions.doctor.records.collected import collected
from simshuffle.extensions.doctor.records.dlio import outputs_in, read_dlio
from simshuffle.extensions.doctor.records.files import unpacked
from simshuffle.extensions.doctor.records.kineto import read_kineto, traces_in
from simshuffle.extensions.doctor.records.ray import is_ray, read_ray
from simshuffle.extensions.doctor.records.record import Record, read_parquet
from simshuffle.extensions.doctor.records.traceml import SUMMARY, is_traceml, read_traceml

RECORD = "record.parquet"
"""Name of the record in the folder that `simshuffle doctor` writes."""
HEAD = 1 << 16
"""Bytes of a file that tell its format."""


class RecordFormat(NamedTuple):
    """A format of records.

    Attributes:
        what: it is, for a user.
        is_of: whether a path is of it, from the path and the first bytes of the file, unpacked
            (b'' for a folder).
        read: reads it, or raises an InputError.
    """

    what: str
    is_of: Callable[[Path, bytes], bool]
    read: Callable[[Path], Record]


FORMATS = (
    RecordFormat(
        f"a folder of `simshuffle doctor` ({RECORD})",
        lambda path, _: (path / RECORD).is_file(),
        lambda path: read_parquet(path / RECORD),
    ),
    RecordFormat(
        "a folder of rows that `simshuffle doctor` kept",
        lambda path, _: any(path.glob(f"*{SUFFIX}")),
        lambda path: collected(path, {}),
    ),
    RecordFormat("a record (Parquet)", lambda _, head: head.startswith(b"PAR1"), read_parquet),
    RecordFormat(
        "a trace of PyTorch's profiler (JSON, plain or .gz), or a folder with one for each rank",
        lambda path, head: bool(traces_in(path)) if path.is_dir() else is_chrome(head),
        read_kineto,
    ),
    RecordFormat(
        f"a final summary of TraceML (JSON), or the folder of its session ({SUMMARY})",
        lambda path, head: (path / SUMMARY).is_file() or is_traceml(head),
        lambda path: read_traceml(path / SUMMARY if path.is_dir() else path),
    ),
    RecordFormat(
        "what stats() of Ray Data tells (text, or its metrics as JSON)",
        lambda _, head: is_ray(head),
        read_ray,
    ),
    RecordFormat(
        "an output folder of DLIO",
        lambda path, _: path.is_dir() and bool(outputs_in(path)),
        read_dlio,
    ),
    RecordFormat(
        "a trace of Chakra, or a folder with one for each rank (NAME.RANK.et)",
        lambda path, head: bool(ranks_in(path)) if path.is_dir() else is_chakra(head),
        read_chakra,
    ),
)
"""The first one that a path is of reads it."""


def read(path: Path) -> Record:
    """The record at a path: a folder or a file of one of `FORMATS`. Raises an InputError if it is
    of none, or not whole."""
    head = b"" if path.is_dir() else unpacked(path, HEAD)[0]
    for known in FORMATS:
        if known.is_of(path, head):
            return known.read(path)
    what = "a folder without one" if path.is_dir() else f"a file that begins {head[:20]!r}"
    rule = f"must be {', '.join(known.what for known in FORMATS[:-1])} or {FORMATS[-1].what}"
    refuse("RECORD", rule, what, "Name one of these.", str(path))
