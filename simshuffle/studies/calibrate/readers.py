"""The kinds of measurement files: how each is recognised, and what reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from simshuffle.studies.calibrate import logs, nccl
from simshuffle.studies.calibrate.files import Source
from simshuffle.studies.calibrate.tables import Row

_COLUMNS = "#  size  count  type  redop  root  time  algbw  busbw"

_NAME = r'(?:.*,)?[ \t"]*{}[ \t"]*(?:,|$)'  # of a column, in a line of CSV


class Reader(NamedTuple):
    """One kind of files: what only such a file holds, what reads it, and the rule and the remedy
    for one without rows."""

    sign: re.Pattern[str]
    read: Callable[[Source], Iterator[Row]]
    rule: str
    remedy: str = "Write the file again."


READERS = {
    "nccl-tests": Reader(
        re.compile(r"#.*\b(?:algbw|nThread|Collective test starting)\b"),
        nccl.table,
        f"must hold rows of an nccl-tests table below '{_COLUMNS}'",
    ),
    "nccl-json": Reader(
        re.compile(r'\A\s*\{(?s:.*)"results"'),
        nccl.document,
        "must hold a list 'results'",
        "Name a file that nccl-tests -J wrote.",
    ),
    "osu": Reader(
        re.compile(r"^\s*#\s*OSU MPI", re.MULTILINE),
        logs.osu,
        "must hold rows below '# OSU MPI ... Test v...' and '# Size ...'",
    ),
    "ior": Reader(
        re.compile(r"^\s*(?:IOR-\d|access\s+bw\(MiB/s\))", re.MULTILINE),
        logs.ior,
        "must hold rows 'read' or 'write' below 'access    bw(MiB/s) ...'",
        "Run IOR without -q.",
    ),
    "mdtest": Reader(
        re.compile(r"^\s*(?:SUMMARY rate|mdtest-\d)", re.MULTILINE),
        logs.mdtest,
        "must hold 'File read' or 'File stat' with a rate above 0 below 'SUMMARY rate:'",
        "Run mdtest with -E.",
    ),
    "epochs": Reader(
        re.compile(rf"\A\n*(?={_NAME.format('gpus')}){_NAME.format('epoch_s')}", re.MULTILINE),
        logs.epochs,
        "must have a line for each epoch below the names of the columns",
        "Add them.",
    ),
}
"""By kind. Where several signs are found, the first of `_ORDER` counts."""
_ORDER = ("epochs", "osu", "mdtest", "ior", "nccl-tests", "nccl-json")


def recognise(text: str) -> str | None:
    """The kind of a file by what it holds; None if it is of none."""
    return next((kind for kind in _ORDER if READERS[kind].sign.search(text)), None)


def rows_of(source: Source, kind: str | None = None) -> list[Row]:
    """What a file holds; of that ``kind``, a key of `READERS`, or of the one that is recognised.

    Raises:
        InputError: with path and line.
    """
    found = kind or recognise(source.text)
    if found is None:
        first = next((line for _, line in source.lines() if line.strip()), "")
        rule = f"must be output of {', '.join(READERS)}"
        remedy = "Name its kind with --as KIND, or leave the file out."
        raise source.bad(1, rule, first or "nothing", remedy)
    reader = READERS[found]
    rows = list(reader.read(source))
    if not rows:
        raise source.bad(0, reader.rule, remedy=reader.remedy)
    return rows
