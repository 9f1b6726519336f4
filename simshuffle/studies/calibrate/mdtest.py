"""mdtest: the table 'SUMMARY rate'. Rates are operations a second of all tasks together."""

from __future__ import annotations

import re

from simshuffle.studies.calibrate.files import Source
from simshuffle.studies.calibrate.table import Row

TOOL = "mdtest"
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
    nbytes, rows, inside = float("nan"), list[Row](), False
    for number, line in source.lines():
        if launch := _LAUNCH.match(line):
            tasks, nodes = (
                source.whole(number, text, "tasks and nodes", least=1) for text in launch.groups()
            )
            nbytes, inside = float("nan"), False
        elif _COMMAND.match(line):
            size = _READ.search(line)
            nbytes = source.number(number, size[1], "-e") if size else 0.0
        elif summary := SUMMARY.match(line):
            iterations, inside = source.whole(number, summary[1], "iterations", least=1), True
        elif inside and (row := _ROW.match(line)):
            values = _values(source, number, line, row[2])
            if row[1] in OPERATIONS and values[2] > 0:
                if not tasks:
                    rule = (
                        "comes before a line 'mdtest-... was launched with N total task(s) on M"
                        " node(s)'"
                    )
                    raise source.bad(number, rule, line, "Keep the head of the output.")
                operation = OPERATIONS[row[1]]
                # an iteration is one rate; mdtest divides by n, not n - 1
                spread = (
                    values[3] * (iterations / (iterations - 1)) ** 0.5
                    if iterations > 1
                    else float("nan")
                )
                rows.append(
                    Row(
                        source.name,
                        number,
                        TOOL,
                        operation,
                        tasks,
                        nodes,
                        nbytes,
                        rate=values[2],
                        count=iterations,
                        spread=spread,
                    )
                )
        elif inside and line.strip() and not line.lstrip().startswith(("Operation", "---", "--")):
            inside = _ends_table(source, number, line)
    if not rows:
        raise source.bad(
            0,
            "must hold 'File read' or 'File stat' with a rate above 0 below 'SUMMARY rate:'",
            remedy="Run mdtest with -E.",
        )
    return rows


def _ends_table(source: Source, number: int, line: str) -> bool:
    """False where the table is over; a line that looks like a row of it but is none is an error."""
    if re.search(r"\d+\.\d{3}\s+\d+\.\d{3}", line) and not line.strip().startswith("SUMMARY"):
        raise source.bad(
            number,
            "must be an operation and Max, Min, Mean, Std Dev",
            line,
            "Write the file again.",
        )
    return False


def _values(source: Source, number: int, line: str, text: str) -> list[float]:
    cells = text.split()
    if len(cells) != 4:
        raise source.bad(
            number,
            "must be an operation and Max, Min, Mean, Std Dev",
            line,
            "Write the file again.",
        )
    values = [
        source.number(number, cell, name)
        for cell, name in zip(cells, ("Max", "Min", "Mean", "Std Dev"), strict=True)
    ]
    if not values[1] * 0.999 <= values[2] <= values[0] * 1.001:
        raise source.bad(number, "Mean must lie between Min and Max", line, "Write the file again.")
    return values
