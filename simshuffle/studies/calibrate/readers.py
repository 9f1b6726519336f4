"""The kinds of measurement files: how each is recognised, and what reads it.

OSU (github.com/mvapich, util/osu_util): sizes are bytes, times microseconds, bandwidths MB/s of 1e6
bytes. ``osu_alltoall`` counts the bytes for each pair of ranks. The tables do not say how many
ranks took part; a collective needs them from the caller.

IOR, versions 3.0 to 4.0: bandwidths are MiB/s, over all tasks together.

mdtest, the table 'SUMMARY rate': operations a second of all tasks together.

Tables in CSV (epoch logs, PICO, CRAB): `simshuffle.studies.calibrate.csvs`.

All raise InputError, with the line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from simshuffle.studies.calibrate import csvs, nccl
from simshuffle.studies.calibrate.files import Source
from simshuffle.studies.calibrate.tables import Row

# ---------------------------------------------------------------------------------------------- OSU

_TITLE = re.compile(r"^\s*#\s*OSU MPI(?:-\S+)?\s+(.+?)\s+(?:Test\s+)?v\d")
_TESTS = {
    "Latency": ("latency", "osu_latency"),
    "Bandwidth": ("bandwidth", "osu_bw"),
    "All-to-All Personalized Exchange Latency": ("all_to_all", "osu_alltoall"),
    "Allreduce Latency": ("all_reduce", "osu_allreduce"),
}
"""Operation and program by the title of the table."""


def osu(source: Source) -> Iterator[Row]:
    """The rows of all tables."""
    operation, program, columns = "", "", 0
    for number, line in source.lines():
        if title := _TITLE.match(line):
            name = title[1].removesuffix(" Test")
            if name not in _TESTS:
                rule = f"must be the table of {', '.join(of for _, of in _TESTS.values())}"
                raise source.bad(number, rule, line, "Leave that table out.")
            (operation, program), columns = _TESTS[name], 0
        elif line.lstrip().startswith("#"):
            columns = _osu_columns(source, number, line, program) or columns
        elif line.strip() and operation:
            yield _osu_row(source, number, line, operation, columns)


def _osu_columns(source: Source, number: int, line: str, program: str) -> int:
    """The number of columns that the line '# Size ...' announces; 0 for another comment."""
    header = re.sub(r"\s+\(", "(", line.lstrip()[1:].strip())
    names = [name.strip() for name in re.split(r"\s{2,}", header)]
    if names[0] != "Size" or not program:
        return 0
    unit, column = ("MB/s", "bandwidth(mb/s)") if program == "osu_bw" else ("us", "latency(us)")
    if len(names) < 2 or not names[1].lower().endswith(column):
        rule = f"the second column of {program} must be in {unit}"
        raise source.bad(number, rule, line, "Run it without options on columns.")
    return len(names)


def _osu_row(source: Source, number: int, line: str, operation: str, columns: int) -> Row:
    cells = line.split()
    if columns == 0 or len(cells) != columns:
        expected = f"a size and {columns - 1} value{'s' if columns > 2 else ''}"
        expected = expected if columns else "below a line '# Size ...'"
        raise source.bad(number, f"must be {expected}", line, "Take other output out of the table.")
    nbytes = float(source.whole(number, cells[0], "size (B)"))
    rated = operation == "bandwidth"
    value = source.positive(number, cells[1], "bandwidth (MB/s)" if rated else "latency (us)")
    pair = operation in {"latency", "bandwidth"}
    ranks, hosts = (2, source.hosts) if pair else source.layout()
    row = Row(source.name, number, "osu", operation, ranks, hosts, nbytes)
    return replace(row, rate=value * 1e6) if rated else replace(row, seconds=value * 1e-6)


# ---------------------------------------------------------------------------------------------- IOR

_BANNER = re.compile(r"^\s*IOR-\d")
_OPTION = re.compile(r"^\s*(tasks|nodes|clients|xfersize)\s*[:=]\s*(.*?)\s*$")
_CLIENTS = re.compile(r"^(\d+)(?:\s+\((\d+) per node\))?")
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*(bytes|KiB|MiB|GiB|TiB)$")
_SCALE = {"bytes": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}


@dataclass
class _IorRun:
    """The options of the run that is being read, and the columns of its table once that began."""

    tasks: int = 0
    nodes: int = 0
    transfer: float = math.nan
    columns: tuple[str, ...] = ()

    def option(self, source: Source, number: int, name: str, text: str) -> None:
        """Take over one line of the options."""
        if name == "xfersize":
            if (size := _SIZE.match(text)) is None:
                rule = "xfersize must be a size such as '1 MiB' or '262144 bytes'"
                raise source.bad(number, rule, text)
            self.transfer = source.number(number, size[1], "xfersize") * _SCALE[size[2]]
        elif name == "clients":  # IOR 3.0: 'clients = 16 (8 per node)'
            if (clients := _CLIENTS.match(text)) is None:
                raise source.bad(number, "clients must be written 'N (M per node)'", text)
            self.tasks = source.whole(number, clients[1], "clients", least=1)
            each = source.whole(number, clients[2] or "1", "clients per node", least=1)
            self.nodes = -(-self.tasks // each) if clients[2] else 0
        elif name == "tasks":
            self.tasks = source.whole(number, text, name, least=1)
        else:
            self.nodes = source.whole(number, text, name, least=1)


def ior(source: Source) -> Iterator[Row]:
    """The reads and writes of all runs in the file; a row for each repetition."""
    run = _IorRun()
    for number, line in source.lines():
        words = line.split()
        if _BANNER.match(line):
            run = _IorRun()
        elif option := _OPTION.match(line):
            run.option(source, number, option[1], option[2])
        elif words[:2] == ["access", "bw(MiB/s)"]:
            run.columns = tuple(words)
        elif line.strip().startswith(("Max Write", "Max Read", "Summary of all tests")):
            run.columns = ()
        elif run.columns and words and words[0] in {"read", "write"}:
            cells = source.cells(number, line, run.columns)
            if not run.tasks:
                rule = "comes before a line 'tasks : N' among the options"
                raise source.bad(number, rule, line, "Keep the options in the file.")
            rate = source.positive(number, cells[1], "bw(MiB/s)") * 2**20
            where = (source.name, number, "ior", cells[0], run.tasks)
            yield Row(*where, float(run.nodes or math.nan), run.transfer, rate=rate)


# ------------------------------------------------------------------------------------------- mdtest

_RATES = "must be an operation and Max, Min, Mean, Std Dev"
_OPERATIONS = {"File stat": "file_stat", "File read": "file_read"}
_LAUNCH = re.compile(r"^\s*mdtest-\S+ was launched with (\d+) total task\(s\) on (\d+) node")
_COMMAND = re.compile(r"^\s*Command line(?: used)?\s*:")
_READ = re.compile(r"(?<![\w-])-e['\"]?[ =]*['\"]?(\d+)\b")
_SUMMARY = re.compile(r"^\s*SUMMARY rate(?: \(in ops/sec\))?:? \(of (\d+) iterations?\)")
_RATE = re.compile(r"^\s*((?:File|Directory|Tree) \w+)\s*:?\s*(.*)$")
_LIKE_A_RATE = re.compile(r"\d+\.\d{3}\s+\d+\.\d{3}")


def mdtest(source: Source) -> Iterator[Row]:
    """Rates of opening files ('File read') and of asking for their attributes ('File stat'); what
    was not run (0) is left out."""
    tasks = nodes = iterations = 0
    nbytes, inside = math.nan, False
    for number, line in source.lines():
        if launch := _LAUNCH.match(line):
            tasks, nodes = (
                source.whole(number, text, "tasks and nodes", least=1) for text in launch.groups()
            )
            nbytes, inside = math.nan, False
        elif _COMMAND.match(line):
            size = _READ.search(line)
            nbytes = source.number(number, size[1], "-e") if size else 0.0
        elif summary := _SUMMARY.match(line):
            iterations, inside = source.whole(number, summary[1], "iterations", least=1), True
        elif inside and (row := _RATE.match(line)):
            mean, deviation = _mean(source, number, line, row[2])
            if row[1] not in _OPERATIONS or mean == 0:
                continue
            if not tasks:
                rule = "comes before a line 'mdtest-... was launched with N total task(s) on M"
                raise source.bad(number, f"{rule} node(s)'", line, "Keep the head of the output.")
            # an iteration is one rate; mdtest divides by n, not n - 1
            factor = (iterations / (iterations - 1)) ** 0.5 if iterations > 1 else math.nan
            where = (source.name, number, "mdtest", _OPERATIONS[row[1]], tasks, nodes, nbytes)
            yield Row(*where, rate=mean, count=iterations, spread=deviation * factor)
        elif inside and line.strip() and not line.lstrip().startswith(("Operation", "--")):
            if _LIKE_A_RATE.search(line) and not line.strip().startswith("SUMMARY"):
                raise source.bad(number, _RATES, line)
            inside = False


def _mean(source: Source, number: int, line: str, text: str) -> tuple[float, float]:
    """Mean and standard deviation of the four rates in a row."""
    cells = text.split()
    if len(cells) != 4:
        raise source.bad(number, _RATES, line)
    highest, lowest, mean, deviation = (
        source.number(number, cell, name)
        for cell, name in zip(cells, ("Max", "Min", "Mean", "Std Dev"), strict=True)
    )
    if not lowest * 0.999 <= mean <= highest * 1.001:
        raise source.bad(number, "Mean must lie between Min and Max", line)
    return mean, deviation


# ---------------------------------------------------------------------------------------- all kinds

_COLUMNS = "#  size  count  type  redop  root  time  algbw  busbw"


def _head(*columns: str) -> re.Pattern[str]:
    """The first line of a CSV table that has columns of these names, which are patterns."""
    each = "".join(rf'(?=(?:.*,)?[ \t"]*{name}[ \t"]*(?:,|$))' for name in columns)
    return re.compile(rf"\A\n*{each}", re.MULTILINE)


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
        osu,
        "must hold rows below '# OSU MPI ... Test v...' and '# Size ...'",
    ),
    "ior": Reader(
        re.compile(r"^\s*(?:IOR-\d|access\s+bw\(MiB/s\))", re.MULTILINE),
        ior,
        "must hold rows 'read' or 'write' below 'access    bw(MiB/s) ...'",
        "Run IOR without -q.",
    ),
    "mdtest": Reader(
        re.compile(r"^\s*(?:SUMMARY rate|mdtest-\d)", re.MULTILINE),
        mdtest,
        "must hold 'File read' or 'File stat' with a rate above 0 below 'SUMMARY rate:'",
        "Run mdtest with -E.",
    ),
    "epochs": Reader(
        _head("gpus", "epoch_s"),
        csvs.epochs,
        "must have a line for each epoch below the names of the columns",
        "Add them.",
    ),
    "pico": Reader(
        _head("algo(?:rithm|_name)", "(?:bytes_per_pair|buffer_size)", "median(?:_s)?"),
        csvs.pico,
        "must have a line of an all-to-all below the names of the columns",
        "Summarise a run of ALLTOALL.",
    ),
    "pico-raw": Reader(
        re.compile(r"\A\n*highest(?:,rank\d+)*[ \t]*$", re.MULTILINE),
        csvs.pico_raw,
        "must have a line for each iteration below 'highest'",
    ),
    "crab": Reader(
        _head("run_id", "msg_size", r"\d+_Max-Duration_s"),
        csvs.crab,
        "must have a line for each sample below the names of the columns",
    ),
}
"""By kind. Where several signs are found, the first of `_ORDER` counts."""
_ORDER = ("epochs", "pico", "pico-raw", "crab", "osu", "mdtest", "ior", "nccl-tests", "nccl-json")
_ASKED = ("pico-raw", "crab")
"""Kinds whose files do not say which collective ran: they are read where they are named."""


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
    if kind is None and found in _ASKED:
        rule, head = "does not say which collective ran", source.text.lstrip().split("\n")[0]
        raise source.bad(1, rule, head, f"Add --as {found} if it was an all-to-all.")
    reader = READERS[found]
    rows = list(reader.read(source))
    if not rows:
        raise source.bad(0, reader.rule, remedy=reader.remedy)
    return rows
