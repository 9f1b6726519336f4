"""Reader of mdtest, 1.8 to 4.1: the tables 'SUMMARY:' and 'SUMMARY rate:', operations a
second of all tasks together (src/mdtest.c of github.com/hpc/ior and
github.com/MDTEST-LANL/mdtest).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.flags import parse_flags, parse_nbytes
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber, Note

_RATES_RULE = "must be an operation and Max, Min, Mean, Std Dev"
_OPERATIONS = {"File stat": "file_stat", "File read": "file_read"}
_LAUNCH_LINE = re.compile(
    r"^\s*mdtest-\S+ was launched with (\d+) total task\(s\) on (\d+) node"
)
_TASKS_LINE = re.compile(r"^\s*(\d+) tasks?, \d+ (?:files?|directories)")
_COMMAND_LINE = re.compile(r"^\s*Command line(?: used)?\s*:\s*(.*)$")
SUMMARY = re.compile(
    r"^\s*SUMMARY(?: rate)?(?: \(in ops/sec\))?:?\s*\(of (\d+) iterations?\)"
)
_OTHER_SUMMARY = re.compile(r"^\s*SUMMARY\b")
_RATE = re.compile(r"^\s*((?:File|Directory|Tree) \w+)\s*:?\s+(\S.*)$")
_LOOKS_LIKE_A_RATE = re.compile(r"\d+\.\d{3}\s+\d+\.\d{3}")
_PHASES = ("-C", "-T", "-E", "-r")
OWN_HOST = "opened where created"
"""Mark of files that the host that created them opened again, maybe from its caches."""


@dataclass
class MdtestRun:
    """The run of mdtest that is being read, and whether its table is open."""

    launched_tasks: int = 0  # processes that were launched; 0 if not known
    launched_nodes: float = math.nan  # hosts that they filled; nan if not known
    # processes of the next table, fewer than launched in a series (-f, -l, -s); 0 if not known
    tasks: int = 0
    # bytes of a file; 0 if the command line has no size, nan without a command line
    nbytes: float = math.nan
    # how files are used, for people and to group rows by; '' without a command line
    pattern: str = ""
    iterations: int = 0  # that the open table averages over
    in_table: bool = False  # whether the next line may be a rate

    @property
    def nodes(self) -> float:
        """Hosts that the processes of the next table filled; nan if not known, as of
        fewer processes than were launched.
        """
        return self.launched_nodes if self.tasks == self.launched_tasks else math.nan

    def take_command(self, text: str) -> None:
        """Set `nbytes` and `pattern` from a command line.

        Without a valid ``-e`` a file has 0 bytes. The pattern holds `OWN_HOST` if the
        run creates the files and no ``-N`` shifts the ranks that open them.
        """
        flags = parse_flags(text)
        self.nbytes = parse_nbytes(flags.get("-e", "")) or 0.0
        creates = "-C" in flags or not any(phase in flags for phase in _PHASES)
        parts = ["directories of tasks" if "-u" in flags else "shared directories"]
        if creates and flags.get("-N", "0") == "0":
            parts.append(OWN_HOST)
        self.pattern = ", ".join(parts)


def read_mdtest(source: MeasurementFile) -> Iterator[MeasuredNumber | Note]:
    """Yield rates of opening files ('File read') and of asking for their attributes
    ('File stat'), and a note if the last row is cut.

    A rate is operations/s of all tasks together, the mean over the iterations. In a
    series (-f, -l, -s) each table has the tasks of the line before it. Rows of
    other operations are checked and left out. Operations that were not run have a rate
    of 0, and are left out.

    Raises:
        InputError: a row has no four or seven numbers, its mean is not between the
            others, or nothing says how many tasks took part.
    """
    run = MdtestRun()
    for line_number, line in source.numbered_lines():
        if launch := _LAUNCH_LINE.match(line):
            tasks = source.read_whole(line_number, launch[1], "tasks", minimum=1)
            nodes = source.read_whole(line_number, launch[2], "nodes", minimum=1)
            run = MdtestRun(tasks, nodes, tasks)
        elif tasks_line := _TASKS_LINE.match(line):
            run.tasks = source.read_whole(
                line_number, tasks_line[1], "tasks", minimum=1
            )
        elif command := _COMMAND_LINE.match(line):
            run.take_command(command[1])
        elif summary := SUMMARY.match(line):
            run.iterations = source.read_whole(
                line_number, summary[1], "iterations", minimum=1
            )
            run.in_table = True
        elif _OTHER_SUMMARY.match(line):
            run.in_table = False
        elif run.in_table and (row := _RATE.match(line)):
            if source.may_be_cut(line_number) and len(row[2].split()) < 4:
                yield Note(
                    source.name, f"line {line_number} is cut off and was left out"
                )
                continue
            mean, deviation = read_mean(source, line_number, line, row[2])
            if row[1] in _OPERATIONS and mean > 0:
                operation = _OPERATIONS[row[1]]
                yield make_row(
                    source, line_number, run, operation, mean=mean, deviation=deviation
                )
        elif (
            run.in_table
            and line.strip()
            and not line.lstrip().startswith(("Operation", "--"))
        ):
            if _LOOKS_LIKE_A_RATE.search(line):
                raise source.error_in_line(line_number, _RATES_RULE, line)
            run.in_table = False


def make_row(
    source: MeasurementFile,
    line_number: int,
    run: MdtestRun,
    operation: str,
    *,
    mean: float,
    deviation: float,
) -> MeasuredNumber:
    """Return the measured number of an operation of a run.

    If the run does not name its tasks, ranks and hosts are those of the options
    --ranks and --hosts. The spread is the sample standard deviation (n - 1); nan for a
    single iteration.

    Args:
        source: the file.
        line_number: of the row in the file.
        run: the run that the row is of.
        operation: 'file_stat' or 'file_read'.
        mean: operations a second of all tasks together.
        deviation: their standard deviation over n iterations, as mdtest computes it:
            with the divisor n, not n - 1.

    Raises:
        InputError: nothing says how many tasks took part.
    """
    ranks = run.tasks
    hosts = run.nodes
    if not ranks:
        if not source.ranks:
            rule = (
                "the rate comes before any line 'mdtest-... was launched with N total task(s) on M"
                " node(s)'"
            )
            remedy = (
                "Keep the first lines of the output, or add --ranks N and --hosts M."
            )
            raise source.error_in_line(line_number, rule, operation, remedy)
        ranks = source.ranks
        hosts = source.hosts
    # an iteration is one rate; mdtest divides by n, not n - 1
    count = run.iterations
    factor = (count / (count - 1)) ** 0.5 if count > 1 else math.nan
    return MeasuredNumber(
        source=source.name,
        line=line_number,
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


def read_mean(
    source: MeasurementFile, line_number: int, line: str, text: str
) -> tuple[float, float]:
    """Return mean and standard deviation of the rates in a row: the last two numbers.

    The last four numbers are Max, Min, Mean, Std Dev of all tasks together. Three
    numbers of single ranks may stand before them.

    Args:
        source: the file.
        line_number: of the row in the file.
        line: the row, for the error.
        text: the row behind the name of its operation.

    Raises:
        InputError: there are not four or seven cells, one of the last four is no number
            of at least 0, or the mean is not between Min and Max (within 0.1 %).
    """
    cells = text.split()
    if len(cells) not in {4, 7}:
        raise source.error_in_line(
            line_number, _RATES_RULE, line, "Take that line out."
        )
    highest, lowest, mean, deviation = (
        source.read_number(line_number, cell, name)
        for cell, name in zip(
            cells[-4:], ("Max", "Min", "Mean", "Std Dev"), strict=True
        )
    )
    if not lowest * 0.999 <= mean <= highest * 1.001:
        raise source.error_in_line(
            line_number, "Mean must lie between Min and Max", line
        )
    return mean, deviation
