"""Reader of OSU's tables (github.com/mvapich, util/osu_util).

Sizes are bytes, times microseconds, bandwidths MB/s of 1e6 bytes. ``osu_alltoall``
counts the bytes for each pair of ranks. The tables do not say how many ranks took part;
a collective needs them from the caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber, Note

_TITLE = re.compile(r"^\s*#\s*OSU (?:MPI|NCCL|RCCL)(?:-\S+)?\s+(.+?)\s+(?:Test\s+)?v\d")
_ROW_START = re.compile(r"^\s*[-+]?\d")
TEST_OF_TITLE = {
    "Latency": ("latency", "osu_latency"),
    "Bandwidth": ("bandwidth", "osu_bw"),
    "All-to-All Personalized Exchange Latency": ("all_to_all", "osu_alltoall"),
    "Alltoall Latency": ("all_to_all", "osu_alltoall"),
    "Allreduce Latency": ("all_reduce", "osu_allreduce"),
}
"""Operation and program by the title of the table."""


@dataclass
class OsuTable:
    """The table of OSU that is being read; without a program it is not read."""

    operation: str = ""  # a value of `OPERATIONS`; '' if the table is not read
    program: str = ""  # such as osu_bw; '' if the table is not read
    num_columns: int = 0  # with the size; 0 above the line '# Size ...'


def read_osu(source: MeasurementFile) -> Iterator[MeasuredNumber | Note]:
    """Yield the rows of all tables: bytes/s of a bandwidth, else seconds.

    Left out, with notes, are tables of tests outside `TEST_OF_TITLE`, a last row that
    is cut, and lines among the rows that do not begin with a size (one note for all).

    Raises:
        InputError: a row or the head of a table is not valid, or a table of a
            collective lacks --ranks.
    """
    table = OsuTable()
    num_foreign_lines = 0
    for line_number, line in source.numbered_lines():
        if title := _TITLE.match(line):
            name = title[1].removesuffix(" Test")
            table = OsuTable(*TEST_OF_TITLE.get(name, ("", "")))
            if not table.program:
                programs = ", ".join(
                    dict.fromkeys(program for _, program in TEST_OF_TITLE.values())
                )
                text = (
                    f"the table '{name}' in line {line_number} was left out: simshuffle reads"
                    f" {programs}"
                )
                yield Note(source.name, text)
        elif line.lstrip().startswith("#"):
            table.num_columns = (
                count_columns(source, line_number, line, table) or table.num_columns
            )
        elif line.strip() and table.operation:
            if not _ROW_START.match(line):
                num_foreign_lines += 1
                continue
            if source.may_be_cut(line_number) and len(line.split()) < table.num_columns:
                yield Note(
                    source.name, f"line {line_number} is cut off and was left out"
                )
                continue
            yield read_row(source, line_number, line, table)
    if num_foreign_lines:
        text = (
            f"{num_foreign_lines} lines among the rows were left out: they do not begin with a"
            " size"
        )
        yield Note(source.name, text)


def count_columns(
    source: MeasurementFile, line_number: int, line: str, table: OsuTable
) -> int:
    """Return the number of columns that the line '# Size ...' announces; 0 for another
    comment, and for a table that is not read.

    Raises:
        InputError: the second column has another unit.
    """
    header = re.sub(r"\s+\(", "(", line.lstrip()[1:].strip())
    names = [name.strip() for name in re.split(r"\s{2,}|\t", header) if name.strip()]
    if not names or names[0] != "Size" or not table.program:
        return 0
    is_bandwidth = table.program == "osu_bw"
    unit, column = (
        ("MB/s", "bandwidth(mb/s)") if is_bandwidth else ("us", "latency(us)")
    )
    if len(names) < 2 or not names[1].lower().endswith(column):
        rule = f"the second column of {table.program} must be in {unit}"
        raise source.error_in_line(
            line_number, rule, line, "Run OSU without options that change its columns."
        )
    return len(names)


def read_row(
    source: MeasurementFile, line_number: int, line: str, table: OsuTable
) -> MeasuredNumber:
    """Return the measured number in a row of a table: bytes/s of a bandwidth, else s.

    The number is the second column; further columns are ignored. A latency and a
    bandwidth have 2 ranks, a collective those of the option --ranks.

    Raises:
        InputError: the row has other columns than the table or comes before '# Size
            ...', its size is no whole number, its value is not above 0, or a collective
            lacks --ranks.
    """
    cells = line.split()
    if table.num_columns == 0 or len(cells) != table.num_columns:
        num_values = table.num_columns - 1
        expected = f"a size and {num_values} value{'s' if num_values > 1 else ''}"
        expected = expected if table.num_columns else "below a line '# Size ...'"
        raise source.error_in_line(
            line_number, f"must be {expected}", line, "Take that line out."
        )
    nbytes = float(source.read_whole(line_number, cells[0], "size (B)"))
    is_bandwidth = table.operation == "bandwidth"
    value = source.read_positive(
        line_number, cells[1], "bandwidth (MB/s)" if is_bandwidth else "latency (us)"
    )
    is_pair = table.operation in {"latency", "bandwidth"}
    ranks, hosts = (2, source.hosts) if is_pair else source.ranks_and_hosts()
    row = MeasuredNumber(
        source.name, line_number, "osu", table.operation, ranks, hosts, nbytes
    )
    return (
        replace(row, rate=value * 1e6)
        if is_bandwidth
        else replace(row, seconds=value * 1e-6)
    )
