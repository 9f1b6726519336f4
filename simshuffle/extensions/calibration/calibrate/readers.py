"""The kinds of measurement files: how each is recognised, and what reads it. All readers raise
InputError, with the line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from simshuffle.errors import InputError
from simshuffle.extensions.calibration.calibrate import csvs, nccl, nccl_json
from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.ior import ior
from simshuffle.extensions.calibration.calibrate.mdtest import mdtest
from simshuffle.extensions.calibration.calibrate.osu import osu
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber, Note

_COLUMNS = "#  size  count  type  redop  root  time  algbw  busbw"


def _head(*columns: str) -> re.Pattern[str]:
    """The first line of a CSV table that has columns of these names, which are patterns."""
    each = "".join(rf'(?=(?:.*,)?[ \t"]*{name}[ \t"]*(?:,|$))' for name in columns)
    return re.compile(rf"\A\n*{each}", re.MULTILINE)


class MeasurementReader(NamedTuple):
    """One kind of files: what only such a file holds, what reads it, and the rule and the remedy
    for one without rows."""

    sign: re.Pattern[str]
    read: Callable[[MeasurementFile], Iterator[MeasuredNumber | Note]]
    rule: str
    remedy: str = "Write the file again."


READERS = {
    "nccl-tests": MeasurementReader(
        re.compile(r"#.*\b(?:algbw|nThread|Collective test starting)\b"),
        nccl.table,
        f"must hold rows of an nccl-tests table below '{_COLUMNS}'",
    ),
    "nccl-json": MeasurementReader(
        re.compile(r'\A\s*\{(?s:.*)"results"'),
        nccl_json.document,
        "must hold a list 'results'",
        "Name a file that nccl-tests -J wrote.",
    ),
    "osu": MeasurementReader(
        re.compile(r"^\s*#\s*OSU (?:MPI|NCCL|RCCL)", re.MULTILINE),
        osu,
        "must hold rows below '# OSU MPI ... Test v...' and '# Size ...'",
    ),
    "ior": MeasurementReader(
        re.compile(
            r"^\s*(?:IOR-\d|access[\s,]+bw\(MiB/s\)|Operation\s+Max\(MiB\))"
            r'|\A\s*\{(?s:.*)"bwMiB"',
            re.MULTILINE,
        ),
        ior,
        "must hold rows 'read' or 'write' below 'access    bw(MiB/s) ...'",
        "Run IOR without -q.",
    ),
    "mdtest": MeasurementReader(
        re.compile(r"^\s*(?:SUMMARY\b.*\(of \d+ iteration|mdtest-\d)", re.MULTILINE),
        mdtest,
        "must hold 'File read' or 'File stat' with a rate above 0 below 'SUMMARY:' or"
        " 'SUMMARY rate:'",
        "Run mdtest with -E, and without -D and -Z.",
    ),
    "epochs": MeasurementReader(
        _head("gpus", "epoch_s"),
        csvs.epochs,
        "must have a line for each epoch below the names of the columns",
        "Add them.",
    ),
    "pico": MeasurementReader(
        _head("algo(?:rithm|_name)", "(?:bytes_per_pair|buffer_size)", "median(?:_s)?"),
        csvs.pico,
        "must have a line of an all-to-all below the names of the columns",
        "Summarise a run of ALLTOALL.",
    ),
    "pico-raw": MeasurementReader(
        re.compile(r"\A\n*highest(?:,rank\d+)*[ \t]*$", re.MULTILINE),
        csvs.pico_raw,
        "must have a line for each iteration below 'highest'",
    ),
    "crab": MeasurementReader(
        _head("run_id", "msg_size", r"\d+_Max-Duration_s"),
        csvs.crab,
        "must have a line for each sample below the names of the columns",
    ),
}
"""By kind. Where several signs are found, the first of `_ORDER` counts."""
_ORDER = ("epochs", "pico", "pico-raw", "crab", "osu", "mdtest", "ior", "nccl-tests", "nccl-json")
_ASKED = ("pico-raw", "crab")
"""Kinds whose files do not say which collective ran: they are read where they are named."""


OTHER_TOOLS = {
    r"^\[RESULT\].*(?:ior|mdtest)": "It is a summary of IO500. Name ior-easy-read.txt and"
    " mdtest-hard-read.txt of the same run.",
    r"\"fio version\"|^\s*(?:READ|WRITE): bw=": "fio is not read: write its bandwidth into the"
    " scenario, as cluster.ssd.read_bandwidth.",
}
"""What to do with output that no reader takes, by what only such output holds."""


def recognise(text: str) -> str | None:
    """The kind of a file by what it holds; None if it is of none."""
    return next((kind for kind in _ORDER if READERS[kind].sign.search(text)), None)


@dataclass(frozen=True)
class FileReading:
    """What a file holds: its rows, and notes on what was left out or assumed."""

    rows: list[MeasuredNumber]
    notes: list[Note]


def read_rows(source: MeasurementFile, kind: str | None = None) -> FileReading:
    """Read a file of a ``kind``, a key of `READERS`, or of the one that is recognised.

    Raises:
        InputError: with path and line.
    """
    kind_of_file = kind or recognise(source.text)
    if kind_of_file is None:
        raise unknown_kind(source)
    if kind is None and kind_of_file in _ASKED:
        rule, head = "does not say which collective ran", source.text.lstrip().split("\n")[0]
        raise source.bad(1, rule, head, f"Add --as {kind_of_file} if it was an all-to-all.")
    reader = READERS[kind_of_file]
    found = list(reader.read(source))
    rows = [row for row in found if isinstance(row, MeasuredNumber)]
    notes = [note for note in found if isinstance(note, Note)]
    if not rows:
        left_out = dict.fromkeys(note.text for note in notes)
        raise source.bad(0, "; ".join([reader.rule, *left_out]), remedy=reader.remedy)
    return FileReading(rows, list(dict.fromkeys(notes)))


def unknown_kind(source: MeasurementFile) -> InputError:
    """Return the error of a file that no reader recognises."""
    first = next((line for _, line in source.lines() if line.strip()), "")
    rule = f"must be output of {', '.join(READERS)}"
    remedy = "Name its kind with --as KIND, or leave the file out."
    for sign, cure in OTHER_TOOLS.items():
        if re.search(sign, source.text, re.MULTILINE):
            remedy = cure
    return source.bad(1, rule, first or "nothing", remedy)
