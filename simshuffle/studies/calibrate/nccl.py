"""Readers of nccl-tests: the table on standard output, and the JSON of ``-J``.

Sizes are bytes, times microseconds, bandwidths 1e9 bytes/s (``src/common.cu`` and ``src/util.cu``
of github.com/NVIDIA/nccl-tests). The out-of-place and the in-place time of a size are two rows.

All raise InputError, with the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from simshuffle.studies.calibrate.files import Source
from simshuffle.studies.calibrate.tables import Row

AGAIN, FAILED = "Run it again.", "Leave the failed run out."
OPERATIONS = {"all_reduce_perf": "all_reduce", "alltoall_perf": "all_to_all"}
_PREFIX = re.compile(r"^(?:\[[\d,]+\]<std(?:out|err)>:?|\s*\d+:)\s?")
_DEVICE = re.compile(r"^#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\b")
_TEST = re.compile(r"^#\s+Collective test starting:\s*(\S+)")
_NOISE = re.compile(r"NCCL|INFO|WARN")
_TIMES = ("time", "cputime")


@dataclass
class _Table:
    """What has been read of one table so far: its test, the host of each rank, the columns, whether
    rows follow, and the cells of each by its line."""

    test: str = ""
    hosts: dict[int, str] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    open: bool = False
    rows: dict[int, list[str]] = field(default_factory=dict)


def table(source: Source) -> Iterator[Row]:
    """The rows of all tables in the output of nccl-tests."""
    tables = [_Table()]
    for number, raw in source.lines():
        line, last = _PREFIX.sub("", raw), tables[-1]
        if line.startswith("#"):
            _comment(tables, line)
        elif line.strip() and last.open and not _NOISE.search(line):
            stamped = last.columns[-1] == "timestamp"  # which has a blank in it
            last.rows[number] = source.cells(number, line, last.columns, more=stamped)
    for of in tables:
        if of.rows:
            yield from _rows(source, of)


def _comment(tables: list[_Table], line: str) -> None:
    words = line[1:].split()
    test, header = _TEST.match(line), words[:2] == ["size", "count"]
    begins = test or header or line.startswith(("# nThread", "# nccl-tests version"))
    if begins and tables[-1].rows:
        tables.append(_Table())
    last = tables[-1]
    if test:
        last.test = test[1]
    elif device := _DEVICE.match(line):
        last.hosts[int(device[1][:9])] = device[2]
    elif header:
        last.columns, last.open = words, True
    elif "bounds" in words:
        last.open = False


def _rows(source: Source, table: _Table) -> Iterator[Row]:
    """Each row twice: of the out-of-place run, then of the in-place run."""
    ranks, hosts = source.layout(list(table.hosts.values()))
    starts = [place for place, name in enumerate(table.columns) if name in _TIMES]
    for number, cells in table.rows.items():
        for start, end in zip(starts, [*starts[1:], len(table.columns)], strict=True):
            found = dict(zip(table.columns[start:end], cells[start:end], strict=True))
            wrong = found.get("#wrong", "0")
            if wrong not in {"0", "N/A"} and source.number(number, wrong, "#wrong") > 0:
                raise source.bad(number, "must have no wrong values (#wrong)", wrong, FAILED)
            test = table.test or _guess(source, number, table.columns, cells, ranks)
            time = found[table.columns[start]]
            yield _row(source, number, test, ranks, hosts, cells[0], time)


def _guess(source: Source, number: int, columns: list[str], cells: list[str], ranks: int) -> str:
    """The collective of a table of an old version, which does not name it; only an allreduce can be
    told, by its bus bandwidth."""
    found = dict(zip(reversed(columns), reversed(cells[: len(columns)]), strict=False))
    size = source.number(number, cells[0], "size")
    times = [found[name] for name in _TIMES if name in found]
    time = source.number(number, times[0], "time")
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
    return Row(source.name, number, "nccl-tests", operation, ranks, hosts, each, seconds)


def document(source: Source) -> Iterator[Row]:
    """The rows of the file that ``-J FILE`` writes; ``line`` is the number of the result."""
    try:
        found = json.loads(source.text)
    except json.JSONDecodeError as error:
        rule, remedy = f"must be JSON: {error.msg}", "Was the run cut short? Run it again."
        raise source.bad(error.lineno, rule, remedy=remedy) from None
    except (RecursionError, ValueError) as error:
        raise source.bad(0, "must be JSON", str(error), AGAIN) from None
    results = _list(found, "results")
    if not results:
        return
    devices = [of for of in _list(_value(found, "config"), "devices") if isinstance(of, dict)]
    ranks, hosts = source.layout([str(of.get("hostname")) for of in devices])
    program = str(next(iter(_list(found, "args")), ""))
    for number, result in enumerate(results, 1):
        yield from _of_result(source, number, result, program, ranks, hosts)


def _value(of: Any, key: str) -> Any:
    return of.get(key) if isinstance(of, dict) else None


def _list(of: Any, key: str) -> list[Any]:
    value = _value(of, key)
    return value if isinstance(value, list) else []


def _of_result(
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
