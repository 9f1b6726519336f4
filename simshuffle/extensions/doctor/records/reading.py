"""Read the record of a training in any of the known formats, which is found by the
content.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.recorder.rows import SUFFIX
from simshuffle.extensions.doctor.records.chakra import list_chakra_traces, read_chakra
from simshuffle.extensions.doctor.records.chakra_schema import is_chakra
from simshuffle.extensions.doctor.records.chrome import is_chrome
from simshuffle.extensions.doctor.records.collected import collect_record
from simshuffle.extensions.doctor.records.dlio import list_outputs, read_dlio
from simshuffle.extensions.doctor.records.files import read_unpacked
from simshuffle.extensions.doctor.records.kineto import list_kineto_traces, read_kineto
from simshuffle.extensions.doctor.records.ray import is_ray, read_ray
from simshuffle.extensions.doctor.records.record import Record, read_parquet
from simshuffle.extensions.doctor.records.traceml import (
    SUMMARY,
    is_traceml,
    read_traceml,
)

RECORD = "record.parquet"
"""Name of the record in the folder that `simshuffle doctor` writes."""
HEAD = 1 << 16
"""Bytes at the begin of a file that tell its format."""


class RecordFormat(NamedTuple):
    """A format of records.

    Attributes:
        title: names the format to a user.
        matches: tells whether a path is of the format, from the path and the first
            bytes of the file, unpacked (b'' for a folder).
        read: reads the path, or raises an InputError.
    """

    title: str
    matches: Callable[[Path, bytes], bool]
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
        lambda path: collect_record(path, {}),
    ),
    RecordFormat(
        "a record (Parquet)", lambda _, head: head.startswith(b"PAR1"), read_parquet
    ),
    RecordFormat(
        "a trace of PyTorch's profiler (JSON, plain or .gz), or a folder with one for each rank",
        lambda path, head: (
            bool(list_kineto_traces(path)) if path.is_dir() else is_chrome(head)
        ),
        read_kineto,
    ),
    RecordFormat(
        f"a final summary of TraceML (JSON), or the folder of its session ({SUMMARY})",
        lambda path, head: (path / SUMMARY).is_file() or is_traceml(head),
        lambda path: read_traceml(path / SUMMARY if path.is_dir() else path),
    ),
    RecordFormat(
        "the output of stats() of Ray Data (text, or its metrics as JSON)",
        lambda _, head: is_ray(head),
        read_ray,
    ),
    RecordFormat(
        "an output folder of DLIO",
        lambda path, _: path.is_dir() and bool(list_outputs(path)),
        read_dlio,
    ),
    RecordFormat(
        "a trace of Chakra, or a folder with one for each rank (NAME.RANK.et)",
        lambda path, head: (
            bool(list_chakra_traces(path)) if path.is_dir() else is_chakra(head)
        ),
        read_chakra,
    ),
)
"""Formats of records. The first that matches a path reads it."""


def read(path: Path) -> Record:
    """Read the record at a path.

    Args:
        path: a folder or a file of one of `FORMATS`.

    Raises:
        InputError: it cannot be read, is of none of the formats, or is not complete.
    """
    head = b"" if path.is_dir() else read_unpacked(path, HEAD)[0]
    for record_format in FORMATS:
        if record_format.matches(path, head):
            return record_format.read(path)
    value = (
        "a folder without any of these"
        if path.is_dir()
        else f"a file that begins {head[:20]!r}"
    )
    *titles, last_title = [record_format.title for record_format in FORMATS]
    rule = f"must be {', '.join(titles)} or {last_title}"
    refuse("RECORD", rule, value, "Name one of these.", str(path))
