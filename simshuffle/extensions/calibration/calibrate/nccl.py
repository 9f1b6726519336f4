"""Reader of nccl-tests and rccl-tests: the tables on standard output, of all versions.

Sizes are bytes, times microseconds, bandwidths 1e9 bytes/s (``src/common.cu`` and ``src/util.cu``
of github.com/NVIDIA/nccl-tests). Versions of 2017 and 2018 print milliseconds, below the columns
'bytes N type op'. The out-of-place and the in-place time of a size are two rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.nccl_table import OPERATIONS, NcclTable, Timing
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber, Note

FAILED = "Leave the failed run out."
_LABEL = re.compile(r"^\s*(?:\d+:\s|\[\d+\]\s)?\s*(?=#)|^\s*\d+:\s")
_DEVICE = re.compile(r"^#\s+Rank\s+(\d+)\s+.*?\bon\s+(\S+)\s+device\b")
_TEST = re.compile(r"^#\s+Collective test starting:\s*(\S+)")
_PROGRAM = re.compile(r"(?:^|[\s/'\"])([a-z_]+_perf)\b")
_BEGINS_AS_A_ROW = re.compile(r"^\s*-?\d\S*\s+-?\d+\s|^\s*\S+\s+\d+\s+[a-z]\w*\s+\w+\s+-?\d")


def table(source: MeasurementFile) -> Iterator[MeasuredNumber | Note]:
    """Read the rows of all tables.

    Tables of other collectives, and lines among the rows that are none, are left out.
    """
    tables = [NcclTable()]
    foreign: list[str] = []
    program = ""
    for number, raw in source.lines():
        line, last = _LABEL.sub("", raw), tables[-1]
        if line.startswith("#"):
            take_comment(tables, line)
            tables[-1].test = tables[-1].test or program
        elif not last.is_open or not line.strip():
            match = _PROGRAM.search(line)
            program = match[1] if match else program
        elif not _BEGINS_AS_A_ROW.match(line):
            foreign.append(line.strip())
        elif source.is_cut(number) and len(line.split()) < len(last.columns) - 1:
            yield Note(source.name, f"line {number} is cut off and was left out")
        else:
            last.rows[number] = last.complete(source, number, line)
    if foreign:
        example = foreign[0] if len(foreign[0]) <= 60 else f"{foreign[0][:57]}..."
        text = f"{len(foreign)} lines among the rows were left out, such as {example!r}"
        yield Note(source.name, text)
    yield from rows_of_tables(source, [each for each in tables if each.rows])


def take_comment(tables: list[NcclTable], line: str) -> None:
    """Take a line that begins with '#': a device, the name of the test, the head of the columns."""
    words = line[1:].split()
    test, header = _TEST.match(line), words[:2] in (["size", "count"], ["bytes", "N"])
    begins = test or header or line.startswith(("# nThread", "# nccl-tests version"))
    if begins and tables[-1].rows:
        tables.append(NcclTable())
    last = tables[-1]
    if test:
        last.test = test[1]
    elif device := _DEVICE.match(line):
        rank = int(device[1][:9])
        last.num_alone += rank == 0
        last.hosts[rank] = device[2]
    elif header:
        last.columns, last.is_open = words, True
    elif "bounds" in words:
        last.is_open = False


def rows_of_tables(
    source: MeasurementFile, tables: list[NcclTable]
) -> Iterator[MeasuredNumber | Note]:
    """Make the rows of tables, out of place and in place.

    Raises:
        InputError: no table is of a collective that is read; or as of `NcclTable`.
    """
    named = [(each, each.name(source)) for each in tables]
    others = [(each, name) for each, name in named if name not in OPERATIONS]
    if others and len(others) == len(named):
        first, name = others[0]
        rule = f"must be the output of {' or '.join(OPERATIONS)}"
        raise source.bad(next(iter(first.rows)), rule, name, "Leave the file out.")
    for each, name in others:
        line = next(iter(each.rows))
        yield Note(source.name, f"the table of {name} in line {line} was left out")
    for each, name in named:
        if name in OPERATIONS:
            ranks, hosts = each.layout(source, name)
            for timing in each.timings():
                yield row_of_timing(source, timing, name, ranks, hosts)


def row_of_timing(
    source: MeasurementFile, timing: Timing, name: str, ranks: int, hosts: float
) -> MeasuredNumber:
    """Make the row of one half of a line.

    Raises:
        InputError: the check of the results failed, or a number is none.
    """
    line = timing.line
    if timing.wrong != "N/A" and source.number(line, timing.wrong, "#wrong") > 0:
        raise source.bad(line, "must have no wrong values (#wrong)", timing.wrong, FAILED)
    return make_row(source, line, name, ranks, hosts, timing.size, timing.time, timing.second)


def make_row(
    source: MeasurementFile,
    line: int,
    test: str,
    ranks: int,
    hosts: float,
    size: str,
    time: str,
    second: float = 1e-6,
) -> MeasuredNumber:
    """Make the row of a time, in units of ``second`` seconds.

    Raises:
        InputError: the test is not read, or a number is none.
    """
    name = test.rsplit("/", 1)[-1]
    if name not in OPERATIONS:
        rule = f"must be the output of {' or '.join(OPERATIONS)}"
        raise source.bad(line, rule, name, "Leave the file out.")
    operation, nbytes = OPERATIONS[name], source.whole(line, size, "size (B)")
    seconds = source.positive(line, time, "time (us)") * second
    # alltoall_perf counts what a rank sends to all ranks, itself among them
    message = nbytes / ranks if operation == "all_to_all" else float(nbytes)
    return MeasuredNumber(
        source.name, line, "nccl-tests", operation, ranks, hosts, message, seconds
    )
