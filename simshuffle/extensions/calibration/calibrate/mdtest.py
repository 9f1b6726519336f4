"""Reader of mdtest, 1.8 to 4.1: the tables 'SUMMARY:' and 'SUMMARY rate:', operations a second of
all tasks together (src/mdtest.c of github.com/hpc/ior and github.com/MDTEST-LANL/mdtest)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.flags import flags_of, nbytes_of
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber, Note

_RATES = "must be an operation and Max, Min, Mean, Std Dev"
_OPERATIONS = {"File stat": "file_stat", "File read": "file_read"}
_LAUNCH = re.compile(r"^\s*mdtest-\S+ was launched with (\d+) total task\(s\) on (\d+) node")
_TASKS = re.compile(r"^\s*(\d+) tasks?, \d+ (?:files|directories)")
_COMMAND = re.compile(r"^\s*Command line(?: used)?\s*:\s*(.*)$")
SUMMARY = re.compile(r"^\s*SUMMARY(?: rate)?(?: \(in ops/sec\))?:?\s*\(of (\d+) iterations?\)")
_OTHER_SUMMARY = re.compile(r"^\s*SUMMARY\b")
_RATE = re.compile(r"^\s*((?:File|Directory|Tree) \w+)\s*:?\s+(\S.*)$")
_LIKE_A_RATE = re.compile(r"\d+\.\d{3}\s+\d+\.\d{3}")
_PHASES = ("-C", "-T", "-E", "-r")
OWN_HOST = "opened where created"
"""Mark of files that the host that created them opened again, maybe from its caches."""


@dataclass
class MdtestRun:
    """The run that is being read, and whether a line may be of its table."""

    tasks: int = 0
    nodes: float = math.nan
    nbytes: float = math.nan
    pattern: str = ""
    iterations: int = 0
    in_table: bool = False

    def take_command(self, text: str) -> None:
        """Take the bytes of a file and how files are used from a command line."""
        flags = flags_of(text)
        self.nbytes = nbytes_of(flags.get("-e", "")) or 0.0
        creates = "-C" in flags or not any(phase in flags for phase in _PHASES)
        words = ["directories of tasks" if "-u" in flags else "shared directories"]
        if creates and flags.get("-N", "0") == "0":
            words.append(OWN_HOST)
        self.pattern = ", ".join(words)


def mdtest(source: MeasurementFile) -> Iterator[MeasuredNumber | Note]:
    """Read rates of opening files ('File read') and of asking for their attributes ('File stat').

    Operations that were not run have a rate of 0, and are left out.
    """
    run = MdtestRun()
    for number, line in source.lines():
        if launch := _LAUNCH.match(line):
            tasks = source.whole(number, launch[1], "tasks", least=1)
            run = MdtestRun(tasks, source.whole(number, launch[2], "nodes", least=1))
        elif tasks_line := _TASKS.match(line):
            run.tasks = run.tasks or source.whole(number, tasks_line[1], "tasks", least=1)
        elif command := _COMMAND.match(line):
            run.take_command(command[1])
        elif summary := SUMMARY.match(line):
            run.iterations = source.whole(number, summary[1], "iterations", least=1)
            run.in_table = True
        elif _OTHER_SUMMARY.match(line):
            run.in_table = False
        elif run.in_table and (row := _RATE.match(line)):
            if source.is_cut(number) and len(row[2].split()) < 4:
                yield Note(source.name, f"line {number} is cut off and was left out")
                continue
            mean, deviation = read_mean(source, number, line, row[2])
            if row[1] in _OPERATIONS and mean > 0:
                yield make_row(source, number, run, _OPERATIONS[row[1]], mean, deviation)
        elif run.in_table and line.strip() and not line.lstrip().startswith(("Operation", "--")):
            if _LIKE_A_RATE.search(line):
                raise source.bad(number, _RATES, line)
            run.in_table = False


def make_row(
    source: MeasurementFile,
    number: int,
    run: MdtestRun,
    operation: str,
    mean: float,
    deviation: float,
) -> MeasuredNumber:
    """Make the row of an operation of a run.

    Raises:
        InputError: nothing says how many tasks took part.
    """
    ranks, hosts = run.tasks, run.nodes
    if not ranks:
        if not source.ranks:
            rule = "comes before a line 'mdtest-... was launched with N total task(s) on M node(s)'"
            remedy = "Keep the head of the output, or add --ranks N and --hosts M."
            raise source.bad(number, rule, operation, remedy)
        ranks, hosts = source.ranks, source.hosts
    # an iteration is one rate; mdtest divides by n, not n - 1
    count = run.iterations
    factor = (count / (count - 1)) ** 0.5 if count > 1 else math.nan
    return MeasuredNumber(
        source=source.name,
        line=number,
        tool="mdtest",
        operation=operation,
        ranks=ranks,
        hosts=hosts,
        nbytes=run.nbytes,
        rate=mean,
        count=count,
        spread=deviation * factor,
        algorithm=run.pattern,
    )


def read_mean(source: MeasurementFile, number: int, line: str, text: str) -> tuple[float, float]:
    """Return mean and standard deviation of the rates in a row: the last four numbers.

    Three numbers may stand before them, of single ranks.

    Raises:
        InputError: there are not four or seven numbers, or the mean is not between the others.
    """
    cells = text.split()
    if len(cells) not in {4, 7}:
        raise source.bad(number, _RATES, line, "Take that line out.")
    highest, lowest, mean, deviation = (
        source.number(number, cell, name)
        for cell, name in zip(cells[-4:], ("Max", "Min", "Mean", "Std Dev"), strict=True)
    )
    if not lowest * 0.999 <= mean <= highest * 1.001:
        raise source.bad(number, "Mean must lie between Min and Max", line)
    return mean, deviation
