"""Reader of nccl-tests and rccl-tests: the tables on standard output, of all versions.

Sizes are bytes, times microseconds, bandwidths 1e9 bytes/s (``src/common.cu`` and
``src/util.cu`` of github.com/NVIDIA/nccl-tests). Versions of 2017 and 2018 print
milliseconds, below the columns 'bytes N type op'. The out-of-place and the in-place
time of a size are two rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.nccl_table import (
    OPERATION_OF_PROGRAM,
    NcclTable,
    Timing,
)
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber, Note

FAILED_REMEDY = "Leave the failed run out."
# rank that a launcher puts before a line: '3: ', or '[3] ' before a comment
_LAUNCHER_LABEL = re.compile(r"^\s*(?:\d+:\s|\[\d+\]\s)?\s*(?=#)|^\s*\d+:\s")
_DEVICE_LINE = re.compile(r"^#\s+Rank\s+(\d+)\s+.*?\bon\s+(\S+)\s+device\b")
_TEST_START = re.compile(r"^#\s+Collective test starting:\s*(\S+)")
_PROGRAM_NAME = re.compile(r"(?:^|[\s/'\"])([a-z_]+_perf)\b")
# a size and a count; or bytes, N, type and operation, as of 2017 and 2018
_ROW_START = re.compile(r"^\s*-?\d\S*\s+-?\d+\s|^\s*\S+\s+\d+\s+[a-z]\w*\s+\w+\s+-?\d")


def read_tables(source: MeasurementFile) -> Iterator[MeasuredNumber | Note]:
    """Yield the times in all tables of nccl-tests, and notes on what was left out.

    Left out are tables of collectives outside `OPERATION_OF_PROGRAM`, a last line that
    is cut, and lines among the rows that are no rows (one note for all). Without a
    table nothing is yielded. A table that does not say its test is of the program, such
    as 'all_reduce_perf', that a line outside the tables named last.

    Raises:
        InputError: a row lacks cells, its check found wrong values, or a number in it
            is not valid; or as of `measured_numbers`.
    """
    tables = [NcclTable()]
    foreign_lines: list[str] = []
    program = ""
    for line_number, labelled_line in source.numbered_lines():
        line = _LAUNCHER_LABEL.sub("", labelled_line)
        open_table = tables[-1]
        if line.startswith("#"):
            take_comment(tables, line)
            tables[-1].test = tables[-1].test or program
        elif not open_table.is_open or not line.strip():
            match = _PROGRAM_NAME.search(line)
            program = match[1] if match else program
        elif not _ROW_START.match(line):
            foreign_lines.append(line.strip())
        elif (
            source.may_be_cut(line_number)
            and len(line.split()) < len(open_table.columns) - 1
        ):
            yield Note(source.name, f"line {line_number} is cut off and was left out")
        else:
            open_table.rows[line_number] = open_table.complete_cells(
                source, line_number, line
            )
    if foreign_lines:
        example = (
            foreign_lines[0]
            if len(foreign_lines[0]) <= 60
            else f"{foreign_lines[0][:57]}..."
        )
        text = f"{len(foreign_lines)} lines among the rows were left out, such as {example!r}"
        yield Note(source.name, text)
    yield from measured_numbers(source, [table for table in tables if table.rows])


def take_comment(tables: list[NcclTable], line: str) -> None:
    """Enter a line that begins with '#' in the last table: a device, the test, the head
    of the columns, or the end of the rows. Other comments are ignored.

    The head of another run appends a new table once the last one has rows.

    Args:
        tables: the tables so far, at least one; changed in place.
        line: the comment, without the label of a launcher.
    """
    words = line[1:].split()
    test = _TEST_START.match(line)
    is_header = words[:2] in (["size", "count"], ["bytes", "N"])
    begins_table = (
        test or is_header or line.startswith(("# nThread", "# nccl-tests version"))
    )
    if begins_table and tables[-1].rows:
        tables.append(NcclTable())
    open_table = tables[-1]
    if test:
        open_table.test = test[1]
    elif device := _DEVICE_LINE.match(line):
        rank = int(device[1][:9])
        open_table.num_rank_zero_lines += rank == 0
        open_table.hosts[rank] = device[2]
    elif is_header:
        open_table.columns = words
        open_table.is_open = True
    elif "bounds" in words:
        open_table.is_open = False


def measured_numbers(
    source: MeasurementFile, tables: list[NcclTable]
) -> Iterator[MeasuredNumber | Note]:
    """Yield a measured number for each time in the tables, out of place and in place.

    A note on each table of a collective that is not read comes first.

    Args:
        source: the file.
        tables: tables with at least one row each; without tables nothing is yielded.

    Raises:
        InputError: no table is of a collective that is read; nothing tells a table's
            collective or its number of ranks; --ranks contradicts the table; or a row
            is not valid (`make_timing_row`).
    """
    named_tables = [(table, table.program_name(source)) for table in tables]
    foreign_tables = [
        (table, name)
        for table, name in named_tables
        if name not in OPERATION_OF_PROGRAM
    ]
    if foreign_tables and len(foreign_tables) == len(named_tables):
        first_table, name = foreign_tables[0]
        rule = f"must be the output of {' or '.join(OPERATION_OF_PROGRAM)}"
        raise source.error_in_line(
            next(iter(first_table.rows)), rule, name, "Leave the file out."
        )
    for table, name in foreign_tables:
        line = next(iter(table.rows))
        yield Note(source.name, f"the table of {name} in line {line} was left out")
    for table, name in named_tables:
        if name in OPERATION_OF_PROGRAM:
            ranks, hosts = table.ranks_and_hosts(source, name)
            for timing in table.timings():
                yield make_timing_row(source, timing, name, ranks, hosts)


def make_timing_row(
    source: MeasurementFile, timing: Timing, program: str, ranks: int, hosts: float
) -> MeasuredNumber:
    """Return the measured number of one half of a line: out of place or in place.

    A time whose results were not checked ('N/A' as wrong values) counts like any other.

    Args:
        source: the file.
        timing: the half of a line, as the file writes it.
        program: name of the program of nccl-tests, or its path.
        ranks: processes that took part.
        hosts: hosts that they filled; nan if not known.

    Raises:
        InputError: the check found wrong values, ``program`` is not read, the size is
            no whole number, or the time is not above 0.
    """
    line = timing.line
    if timing.wrong != "N/A" and source.read_number(line, timing.wrong, "#wrong") > 0:
        rule = "must have no wrong values (#wrong)"
        raise source.error_in_line(line, rule, timing.wrong, FAILED_REMEDY)
    return make_row(
        source,
        line,
        program,
        ranks=ranks,
        hosts=hosts,
        size=timing.size,
        time=timing.time,
        seconds_per_unit=timing.seconds_per_unit,
    )


def make_row(
    source: MeasurementFile,
    line: int,
    program: str,
    *,
    ranks: int,
    hosts: float,
    size: str,
    time: str,
    seconds_per_unit: float = 1e-6,
) -> MeasuredNumber:
    """Return the measured number of the time of a collective, in seconds.

    Its bytes are ``size``, or for an all-to-all ``size / ranks``: those of a pair.

    Args:
        source: the file.
        line: number of the line, or of the result in JSON.
        program: name of the program of nccl-tests, or its path.
        ranks: processes that took part.
        hosts: hosts that they filled; nan if not known.
        size: bytes of the buffer, as the file writes them.
        time: time of a collective, as the file writes it.
        seconds_per_unit: seconds of the unit of ``time``.

    Raises:
        InputError: ``program`` is not in `OPERATION_OF_PROGRAM`, the size is no whole
            number, or the time is not above 0.
    """
    program_name = program.rsplit("/", 1)[-1]
    if program_name not in OPERATION_OF_PROGRAM:
        rule = f"must be the output of {' or '.join(OPERATION_OF_PROGRAM)}"
        raise source.error_in_line(line, rule, program_name, "Leave the file out.")
    operation = OPERATION_OF_PROGRAM[program_name]
    nbytes = source.read_whole(line, size, "size (B)")
    seconds = source.read_positive(line, time, "time (us)") * seconds_per_unit
    # alltoall_perf counts what a rank sends to all ranks, itself among them
    message_nbytes = nbytes / ranks if operation == "all_to_all" else float(nbytes)
    return MeasuredNumber(
        source=source.name,
        line=line,
        tool="nccl-tests",
        operation=operation,
        ranks=ranks,
        hosts=hosts,
        nbytes=message_nbytes,
        seconds=seconds,
    )
