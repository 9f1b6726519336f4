"""OSU micro-benchmarks: osu_latency, osu_bw, osu_alltoall, osu_allreduce.

Sizes are bytes, times microseconds, bandwidths MB/s of 1e6 bytes (github.com/mvapich,
util/osu_util). ``osu_alltoall`` counts the bytes for each pair of ranks. The tables do not say how
many ranks took part; a collective needs them from the caller.
"""

from __future__ import annotations

import re

from simshuffle.studies.calibrate.files import Source
from simshuffle.studies.calibrate.table import Row

TOOL = "osu"
TITLE = re.compile(r"^\s*#\s*OSU MPI(?:-\S+)?\s+(.+?)\s+(?:Test\s+)?v\d")
OPERATIONS = {
    "Latency": "latency",
    "Bandwidth": "bandwidth",
    "All-to-All Personalized Exchange Latency": "all_to_all",
    "Allreduce Latency": "all_reduce",
}
_COLUMNS = {
    "latency": "latency(us)",
    "bandwidth": "bandwidth(mb/s)",
    "all_to_all": "latency(us)",
    "all_reduce": "latency(us)",
}
_NAMES = {
    "latency": "osu_latency",
    "bandwidth": "osu_bw",
    "all_to_all": "osu_alltoall",
    "all_reduce": "osu_allreduce",
}


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
                raise source.bad(
                    number,
                    f"must be the table of {', '.join(_NAMES.values())}",
                    line,
                    "Leave that table out.",
                )
            operation, columns = OPERATIONS[name], 0
        elif line.lstrip().startswith("#"):
            columns = _columns(source, number, line, operation) or columns
        elif line.strip() and operation:
            rows.append(_row(source, number, line, operation, columns))
    if not rows:
        raise source.bad(
            0,
            "must hold rows below '# OSU MPI ... Test v...' and '# Size ...'",
            remedy="Write the file again.",
        )
    return rows


def _columns(source: Source, number: int, line: str, operation: str) -> int:
    """The number of columns that the line '# Size ...' announces; 0 for another comment."""
    header = re.sub(r"\s+\(", "(", line.lstrip()[1:].strip())
    names = [name.strip() for name in re.split(r"\s{2,}", header)]
    if not names or names[0] != "Size" or not operation:
        return 0
    if len(names) < 2 or not names[1].lower().endswith(_COLUMNS[operation]):
        unit = "MB/s" if operation == "bandwidth" else "us"
        raise source.bad(
            number,
            f"the second column of {_NAMES[operation]} must be in {unit}",
            line,
            "Run it without options on columns.",
        )
    return len(names)


def _row(source: Source, number: int, line: str, operation: str, columns: int) -> Row:
    cells = line.split()
    if columns == 0 or len(cells) != columns:
        expected = (
            f"a size and {columns - 1} value{'s' if columns > 2 else ''}"
            if columns
            else "below a line '# Size ...'"
        )
        raise source.bad(number, f"must be {expected}", line, "Take other output out of the table.")
    nbytes = source.whole(number, cells[0], "size (B)")
    value = source.number(
        number, cells[1], "bandwidth (MB/s)" if operation == "bandwidth" else "latency (us)"
    )
    if value <= 0:
        raise source.bad(
            number,
            "the value must be greater than 0",
            cells[1],
            "Measure again with more iterations.",
        )
    ranks = 2 if operation in {"latency", "bandwidth"} else source.stated_ranks()
    if ranks < 2:
        raise source.bad(
            number, "a collective needs at least 2 ranks", str(ranks), "Give --ranks of at least 2."
        )
    hosts = float("nan") if source.hosts is None else float(source.hosts)
    if operation == "bandwidth":
        return Row(
            source.name, number, TOOL, operation, ranks, hosts, float(nbytes), rate=value * 1e6
        )
    return Row(
        source.name, number, TOOL, operation, ranks, hosts, float(nbytes), seconds=value * 1e-6
    )
