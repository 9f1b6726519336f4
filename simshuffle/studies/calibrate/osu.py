"""OSU micro-benchmarks: osu_latency, osu_bw, osu_alltoall, osu_allreduce.

Sizes are bytes, times microseconds, bandwidths MB/s of 1e6 bytes (github.com/mvapich,
util/osu_util). ``osu_alltoall`` counts the bytes for each pair of ranks. The tables do not say how
many ranks took part; a collective needs them from the caller.
"""

from __future__ import annotations

import re
from dataclasses import replace

from simshuffle.studies.calibrate.files import Source
from simshuffle.studies.calibrate.rows import Row

TOOL = "osu"
TITLE = re.compile(r"^\s*#\s*OSU MPI(?:-\S+)?\s+(.+?)\s+(?:Test\s+)?v\d")
OPERATIONS = {
    "Latency": "latency",
    "Bandwidth": "bandwidth",
    "All-to-All Personalized Exchange Latency": "all_to_all",
    "Allreduce Latency": "all_reduce",
}
_PROGRAMS = ("osu_latency", "osu_bw", "osu_alltoall", "osu_allreduce")
_NAMES = dict(zip(OPERATIONS.values(), _PROGRAMS, strict=True))


def read(source: Source) -> list[Row]:
    """The rows of all tables.

    Raises:
        InputError: with the line.
    """
    operation, columns = "", 0
    rows = []
    for number, line in source.lines():
        if title := TITLE.match(line):
            name = title[1].removesuffix(" Test")
            if name not in OPERATIONS:
                rule = f"must be the table of {', '.join(_NAMES.values())}"
                raise source.bad(number, rule, line, "Leave that table out.")
            operation, columns = OPERATIONS[name], 0
        elif line.lstrip().startswith("#"):
            columns = _columns(source, number, line, operation) or columns
        elif line.strip() and operation:
            rows.append(_row(source, number, line, operation, columns))
    if not rows:
        raise source.bad(0, "must hold rows below '# OSU MPI ... Test v...' and '# Size ...'")
    return rows


def _columns(source: Source, number: int, line: str, operation: str) -> int:
    """The number of columns that the line '# Size ...' announces; 0 for another comment."""
    header = re.sub(r"\s+\(", "(", line.lstrip()[1:].strip())
    names = [name.strip() for name in re.split(r"\s{2,}", header)]
    if not names or names[0] != "Size" or not operation:
        return 0
    column = "bandwidth(mb/s)" if operation == "bandwidth" else "latency(us)"
    if len(names) < 2 or not names[1].lower().endswith(column):
        unit = "MB/s" if operation == "bandwidth" else "us"
        rule = f"the second column of {_NAMES[operation]} must be in {unit}"
        raise source.bad(number, rule, line, "Run it without options on columns.")
    return len(names)


def _row(source: Source, number: int, line: str, operation: str, columns: int) -> Row:
    cells = line.split()
    if columns == 0 or len(cells) != columns:
        expected = f"a size and {columns - 1} value{'s' if columns > 2 else ''}"
        expected = expected if columns else "below a line '# Size ...'"
        raise source.bad(number, f"must be {expected}", line, "Take other output out of the table.")
    nbytes = float(source.whole(number, cells[0], "size (B)"))
    pair, rated = operation in {"latency", "bandwidth"}, operation == "bandwidth"
    value = source.positive(number, cells[1], "bandwidth (MB/s)" if rated else "latency (us)")
    ranks = 2 if pair else source.ranks_of_collective()
    row = Row(source.name, number, TOOL, operation, ranks, source.hosts, nbytes)
    return replace(row, rate=value * 1e6) if rated else replace(row, seconds=value * 1e-6)
