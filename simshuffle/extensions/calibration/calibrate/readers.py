"""The kinds of measurement files: how each kind is recognised, and its reader.

All readers raise InputError, with the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from simshuffle.errors import InputError
from simshuffle.extensions.calibration.calibrate import csvs, nccl, nccl_json
from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.ior import read_ior
from simshuffle.extensions.calibration.calibrate.mdtest import read_mdtest
from simshuffle.extensions.calibration.calibrate.osu import read_osu
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber, Note

_COLUMNS = "#  size  count  type  redop  root  time  algbw  busbw"


def csv_head(*columns: str) -> re.Pattern[str]:
    """Return a pattern of the first line of a CSV table that has all ``columns``, in
    any order.

    Each of ``columns`` is a pattern itself. Empty lines may come before.
    """
    lookaheads = "".join(
        rf'(?=(?:.*,)?[ \t"]*{name}[ \t"]*(?:,|$))' for name in columns
    )
    return re.compile(rf"\A\n*{lookaheads}", re.MULTILINE)


class MeasurementReader(NamedTuple):
    """A kind of measurement files: how to recognise it, its reader, and the error of a
    file without rows.
    """

    signature: re.Pattern[str]  # what only such a file holds
    read: Callable[[MeasurementFile], Iterator[MeasuredNumber | Note]]
    # rule and remedy of the error that a file without rows gives
    rule: str
    remedy: str = "Write the file again."


READERS = {
    "nccl-tests": MeasurementReader(
        re.compile(r"#.*\b(?:algbw|nThread|Collective test starting)\b"),
        nccl.read_tables,
        f"must hold rows of an nccl-tests table below '{_COLUMNS}'",
    ),
    "nccl-json": MeasurementReader(
        re.compile(r'\A\s*\{(?s:.*)"results"'),
        nccl_json.read_document,
        "must hold a list 'results'",
        "Name a file that nccl-tests -J wrote.",
    ),
    "osu": MeasurementReader(
        re.compile(r"^\s*#\s*OSU (?:MPI|NCCL|RCCL)", re.MULTILINE),
        read_osu,
        "must hold rows below '# OSU MPI ... Test v...' and '# Size ...'",
    ),
    "ior": MeasurementReader(
        re.compile(
            r"^\s*(?:IOR-\d|access[\s,]+bw\(MiB/s\)|Operation\s+Max\(MiB\))"
            r'|\A\s*\{(?s:.*)"bwMiB"',
            re.MULTILINE,
        ),
        read_ior,
        "must hold rows 'read' or 'write' below 'access    bw(MiB/s) ...'",
        "Run IOR without -q.",
    ),
    "mdtest": MeasurementReader(
        re.compile(r"^\s*(?:SUMMARY\b.*\(of \d+ iteration|mdtest-\d)", re.MULTILINE),
        read_mdtest,
        "must hold 'File read' or 'File stat' with a rate above 0 below 'SUMMARY:' or"
        " 'SUMMARY rate:'",
        "Run mdtest with -E, and without -D and -Z.",
    ),
    "epochs": MeasurementReader(
        csv_head("gpus", "epoch_s"),
        csvs.read_epochs,
        "must have a line for each epoch below the names of the columns",
        "Add a line for each epoch.",
    ),
    "pico": MeasurementReader(
        csv_head(
            "algo(?:rithm|_name)", "(?:bytes_per_pair|buffer_size)", "median(?:_s)?"
        ),
        csvs.read_pico,
        "must have a line of an all-to-all below the names of the columns",
        "Summarise a run of ALLTOALL.",
    ),
    "pico-raw": MeasurementReader(
        re.compile(r"\A\n*highest(?:,rank\d+)*[ \t]*$", re.MULTILINE),
        csvs.read_pico_raw,
        "must have a line for each iteration below 'highest'",
    ),
    "crab": MeasurementReader(
        csv_head("run_id", "msg_size", r"\d+_Max-Duration_s"),
        csvs.read_crab,
        "must have a line for each sample below the names of the columns",
    ),
}
"""By kind. Where several signs are found, the first of `_ORDER_OF_KINDS` counts."""
_ORDER_OF_KINDS = (
    "epochs",
    "pico",
    "pico-raw",
    "crab",
    "osu",
    "mdtest",
    "ior",
    "nccl-tests",
    "nccl-json",
)
_WITHOUT_COLLECTIVE = ("pico-raw", "crab")
"""Kinds whose files do not say which collective ran: they are read where they are
named.
"""


REMEDIES_BY_TOOL = {
    r"^\[RESULT\].*(?:ior|mdtest)": "The file is a summary of IO500. Name ior-easy-read.txt and"
    " mdtest-hard-read.txt of the same run.",
    r"\"fio version\"|^\s*(?:READ|WRITE): bw=": "simshuffle does not read output of fio."
    " Write the bandwidth into the scenario, as cluster.ssd.read_bandwidth.",
}
"""What to do with output that no reader takes, by what only such output holds."""


def recognise_kind(text: str) -> str | None:
    """Return the kind of a file by its text: the first of `_ORDER_OF_KINDS` that
    matches; None if none matches.
    """
    return next(
        (kind for kind in _ORDER_OF_KINDS if READERS[kind].signature.search(text)), None
    )


@dataclass(frozen=True)
class FileReading:
    """The rows of a file, at least one, and notes on what was left out or assumed."""

    rows: list[MeasuredNumber]
    notes: list[Note]


def read_rows(source: MeasurementFile, kind: str | None = None) -> FileReading:
    """Read a file of a ``kind``, a key of `READERS`, or of the one that is recognised.

    Rows are in the order of the file; repeated notes are left out.

    Raises:
        InputError: with path and line. Also if ``kind`` is None and no kind is
            recognised, or one that does not say which collective ran ('pico-raw',
            'crab'); or if the file has no rows.
    """
    kind_of_file = kind or recognise_kind(source.text)
    if kind_of_file is None:
        raise unknown_kind_error(source)
    if kind is None and kind_of_file in _WITHOUT_COLLECTIVE:
        rule = "does not say which collective ran"
        remedy = f"Add --as {kind_of_file} if it was an all-to-all."
        first_line = source.text.lstrip().split("\n")[0]
        raise source.error_in_line(1, rule, first_line, remedy)
    reader = READERS[kind_of_file]
    rows_and_notes = list(reader.read(source))
    rows = [row for row in rows_and_notes if isinstance(row, MeasuredNumber)]
    notes = [note for note in rows_and_notes if isinstance(note, Note)]
    if not rows:
        left_out = dict.fromkeys(note.text for note in notes)
        raise source.error_in_line(
            0, "; ".join([reader.rule, *left_out]), remedy=reader.remedy
        )
    return FileReading(rows, list(dict.fromkeys(notes)))


def unknown_kind_error(source: MeasurementFile) -> InputError:
    """Return the error of a file that no reader recognises.

    Its remedy is that of `REMEDIES_BY_TOOL` for output of a known tool.
    """
    first_line = next((line for _, line in source.numbered_lines() if line.strip()), "")
    rule = f"must be output of {', '.join(READERS)}"
    remedy = "Name its kind with --as KIND, or leave the file out."
    for signature, remedy_of_tool in REMEDIES_BY_TOOL.items():
        if re.search(signature, source.text, re.MULTILINE):
            remedy = remedy_of_tool
    return source.error_in_line(1, rule, first_line or "nothing", remedy)
