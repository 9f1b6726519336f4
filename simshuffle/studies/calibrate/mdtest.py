"""mdtest: the table 'SUMMARY rate'. Rates are operations a second of all tasks together."""

from __future__ import annotations

import math
import re
from functools import partial

from simshuffle.studies.calibrate.files import Source
from simshuffle.studies.calibrate.rows import Row

TOOL = "mdtest"
RULE = "must be an operation and Max, Min, Mean, Std Dev"
OPERATIONS = {"File stat": "file_stat", "File read": "file_read"}
SUMMARY = re.compile(r"^\s*SUMMARY rate(?: \(in ops/sec\))?:? \(of (\d+) iterations?\)")
_LAUNCH = re.compile(r"^\s*mdtest-\S+ was launched with (\d+) total task\(s\) on (\d+) node")
_COMMAND = re.compile(r"^\s*Command line(?: used)?\s*:")
_READ = re.compile(r"(?<![\w-])-e['\"]?[ =]*['\"]?(\d+)\b")
_ROW = re.compile(r"^\s*((?:File|Directory|Tree) \w+)\s*:?\s*(.*)$")


def read(source: Source) -> list[Row]:
    """Rates of opening files ('File read') and of asking for their attributes ('File stat'); what
    was not run (0) is left out.

    Raises:
        InputError: with the line.
    """
    tasks = nodes = iterations = 0
    nbytes, rows, inside = math.nan, list[Row](), False
    for number, line in source.lines():
        if launch := _LAUNCH.match(line):
            tasks, nodes = (
                source.whole(number, text, "tasks and nodes", least=1) for text in launch.groups()
            )
            nbytes, inside = math.nan, False
        elif _COMMAND.match(line):
            size = _READ.search(line)
            nbytes = source.number(number, size[1], "-e") if size else 0.0
        elif summary := SUMMARY.match(line):
            iterations, inside = source.whole(number, summary[1], "iterations", least=1), True
        elif inside and (row := _ROW.match(line)):
            mean, deviation = _values(source, number, line, row[2])
            if row[1] in OPERATIONS and mean > 0:
                if not tasks:
                    rule = (
                        "comes before a line 'mdtest-... was launched with N total task(s) on M"
                        " node(s)'"
                    )
                    raise source.bad(number, rule, line, "Keep the head of the output.")
                # an iteration is one rate; mdtest divides by n, not n - 1
                several = iterations > 1
                factor = (iterations / (iterations - 1)) ** 0.5 if several else math.nan
                where = (source.name, number, TOOL, OPERATIONS[row[1]], tasks, nodes, nbytes)
                found = Row(*where, rate=mean, count=iterations, spread=deviation * factor)
                rows.append(found)
        elif inside and line.strip() and not line.lstrip().startswith(("Operation", "---", "--")):
            inside = _ends_table(source, number, line)
    if not rows:
        rule = "must hold 'File read' or 'File stat' with a rate above 0 below 'SUMMARY rate:'"
        raise source.bad(0, rule, remedy="Run mdtest with -E.")
    return rows


def _ends_table(source: Source, number: int, line: str) -> bool:
    """False where the table is over; a line that looks like a row of it but is none is an error."""
    if re.search(r"\d+\.\d{3}\s+\d+\.\d{3}", line) and not line.strip().startswith("SUMMARY"):
        raise source.bad(number, RULE, line)
    return False


def _values(source: Source, number: int, line: str, text: str) -> tuple[float, float]:
    """Mean and standard deviation."""
    cells = text.split()
    if len(cells) != 4:
        raise source.bad(number, RULE, line)
    names = ("Max", "Min", "Mean", "Std Dev")
    highest, lowest, mean, deviation = map(partial(source.number, number), cells, names)
    if not lowest * 0.999 <= mean <= highest * 1.001:
        raise source.bad(number, "Mean must lie between Min and Max", line)
    return mean, deviation
