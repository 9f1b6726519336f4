"""nccl-tests: the table on standard output, and the JSON of ``-J``.

Sizes are bytes, times microseconds, bandwidths 1e9 bytes/s (``src/common.cu`` and ``src/util.cu``
of github.com/NVIDIA/nccl-tests). The out-of-place and the in-place time of a size are two rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from simshuffle.studies.calibrate.files import Source
from simshuffle.studies.calibrate.rows import Row

TOOL = "nccl-tests"
AGAIN, FAILED = "Run it again.", "Leave the failed run out."
OPERATIONS = {"all_reduce_perf": "all_reduce", "alltoall_perf": "all_to_all"}
_PREFIX = re.compile(r"^(?:\[[\d,]+\]<std(?:out|err)>:?|\s*\d+:)\s?")
_DEVICE = re.compile(r"^#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\b")
_TEST = re.compile(r"^#\s+Collective test starting:\s*(\S+)")
_NOISE = re.compile(r"NCCL|INFO|WARN")
_TIMES = ("time", "cputime")


class _Table:
    """What has been read of one table so far."""

    def __init__(self) -> None:
        self.test = ""
        self.hosts: dict[int, str] = {}
        self.columns: list[str] = []
        self.open = False
        self.rows: list[tuple[int, list[str]]] = []


def read(source: Source) -> list[Row]:
    """The rows of all tables in the output of nccl-tests.

    Raises:
        InputError: with the line.
    """
    tables = [_Table()]
    for number, raw in source.lines():
        line = _PREFIX.sub("", raw)
        if line.startswith("#"):
            _comment(tables, line)
        elif line.strip() and tables[-1].open and not _NOISE.search(line):
            tables[-1].rows.append((number, _cells(source, number, line, tables[-1].columns)))
    out = [row for table in tables for row in _rows(source, table)]
    if not out:
        head = "#  size  count  type  redop  root  time  algbw  busbw"
        raise source.bad(0, f"must hold rows of an nccl-tests table below '{head}'")
    return out


def _comment(tables: list[_Table], line: str) -> None:
    words = line[1:].split()
    if (test := _TEST.match(line)) or line.startswith(("# nThread", "# nccl-tests version")):
        if tables[-1].rows:
            tables.append(_Table())
        tables[-1].test = test[1] if test else tables[-1].test
    elif device := _DEVICE.match(line):
        tables[-1].hosts[int(device[1][:9])] = device[2]
    elif words[:2] == ["size", "count"]:
        if tables[-1].rows:
            tables.append(_Table())
        tables[-1].columns, tables[-1].open = words, True
    elif "bounds" in words:
        tables[-1].open = False


def _cells(source: Source, number: int, line: str, columns: list[str]) -> list[str]:
    cells = line.split()
    wanted = len(columns) + (columns[-1] == "timestamp")
    if len(cells) != wanted:
        rule = f"must be a row with the {wanted} columns {' '.join(columns)}"
        raise source.bad(number, rule, line)
    return cells


def _rows(source: Source, table: _Table) -> Iterator[Row]:
    if not table.rows:
        return
    ranks = source.ranks_of_collective(len(table.hosts))
    hosts = len(set(table.hosts.values())) or source.hosts
    for number, cells, found in _halves(table):
        wrong = found.get("#wrong", "0")
        if wrong not in {"0", "N/A"} and source.number(number, wrong, "#wrong") > 0:
            raise source.bad(number, "must have no wrong values (#wrong)", wrong, FAILED)
        time = next(found[name] for name in _TIMES if name in found)
        test = table.test or _guess(source, number, table.columns, cells, ranks)
        yield _row(source, number, test, ranks, hosts, cells[0], time)


def _halves(table: _Table) -> Iterator[tuple[int, list[str], dict[str, str]]]:
    """Each row twice: with the columns of the out-of-place run, then those of the in-place run."""
    starts = [place for place, name in enumerate(table.columns) if name in _TIMES]
    for number, cells in table.rows:
        for start, end in zip(starts, [*starts[1:], len(table.columns)], strict=True):
            columns = table.columns[start:end]
            yield number, cells, dict(zip(columns, cells[start:end], strict=True))


def _guess(source: Source, number: int, columns: list[str], cells: list[str], ranks: int) -> str:
    """The collective of a table of an old version, which does not name it; only an allreduce can be
    told, by its bus bandwidth."""
    found = dict(zip(reversed(columns), reversed(cells[: len(columns)]), strict=False))
    size = source.number(number, cells[0], "size")
    times = (source.number(number, found[name], "time") for name in _TIMES if name in found)
    time = next(times, 0.0)
    bus = source.number(number, found.get("busbw", "0"), "busbw")
    ratio = bus * 1e9 * time * 1e-6 / size if size else 0.0
    expected = 2 * (ranks - 1) / ranks
    if (
        found.get("redop") == "none"
        or found.get("root", "-1") != "-1"
        or (bus >= 0.5 and abs(ratio / expected - 1) > 0.1)
    ):
        rule = "the file does not name its collective, and this row is not of an allreduce"
        remedy = (
            "Use a version of nccl-tests that prints '# Collective test starting: NAME', or -J."
        )
        raise source.bad(number, rule, " ".join(cells), remedy)
    return "all_reduce_perf"


def _row(
    source: Source, number: int, test: str, ranks: int, hosts: float, size: str, time: str
) -> Row:
    name = test.rsplit("/", 1)[-1]
    if name not in OPERATIONS:
        rule = f"must be the output of {' or '.join(OPERATIONS)}"
        raise source.bad(number, rule, name, "Leave the file out.")
    operation, nbytes = OPERATIONS[name], source.whole(number, size, "size (B)")
    seconds = source.positive(number, time, "time (us)") * 1e-6
    # alltoall_perf counts what a rank sends to all ranks, itself among them
    each = nbytes / ranks if operation == "all_to_all" else float(nbytes)
    return Row(source.name, number, TOOL, operation, ranks, hosts, each, seconds)


# --------------------------------------------------------------------------------------------- JSON


def read_json(source: Source) -> list[Row]:
    """The rows of the file that ``-J FILE`` writes; ``line`` is the number of the result.

    Raises:
        InputError: with the line where it is no JSON, or the number of the result.
    """
    try:
        document = json.loads(source.text)
    except json.JSONDecodeError as error:
        rule, remedy = f"must be JSON: {error.msg}", "Was the run cut short? Run it again."
        raise source.bad(error.lineno, rule, remedy=remedy) from None
    except (RecursionError, ValueError) as error:
        raise source.bad(0, "must be JSON", str(error), AGAIN) from None
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or not results:
        rule, remedy = "must hold a list 'results'", "Name a file that nccl-tests -J wrote."
        raise source.bad(0, rule, remedy=remedy)
    config = document.get("config")
    devices = config.get("devices") if isinstance(config, dict) else None
    listed = devices if isinstance(devices, list) else []
    names = [str(device.get("hostname")) for device in listed if isinstance(device, dict)]
    ranks, hosts = source.ranks_of_collective(len(names)), len(set(names)) or source.hosts
    arguments = document.get("args")
    program = str(arguments[0]) if isinstance(arguments, list) and arguments else ""
    return [
        row
        for number, result in enumerate(results, 1)
        for row in _json_rows(source, number, result, program, ranks, hosts)
    ]


def _json_rows(
    source: Source, number: int, result: Any, program: str, ranks: int, hosts: float
) -> Iterator[Row]:
    if not isinstance(result, dict):
        raise source.bad(number, "each of 'results' must be an object", repr(result), AGAIN)
    test = str(result.get("experiment_name") or program)
    test = test if test.rsplit("/", 1)[-1] in OPERATIONS else program
    for half in ("out_of_place", "in_place"):
        body = result.get(half)
        if body is None:
            continue
        time = body.get("time", body.get("cpu_time")) if isinstance(body, dict) else None
        if time is None:
            rule = f"result {number}: '{half}' must be an object with 'time'"
            raise source.bad(number, rule, repr(body), AGAIN)
        wrong = body.get("nwrong")
        if not isinstance(wrong, int | float | None) or wrong not in {0, None}:
            rule = f"result {number}: must have no wrong values (nwrong)"
            raise source.bad(number, rule, repr(wrong), FAILED)
        yield _row(source, number, test, ranks, hosts, str(result.get("size")), str(time))
