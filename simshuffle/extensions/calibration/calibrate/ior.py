"""Reader of IOR: 2.10 to 4.1, as text, as CSV and as JSON (src/ior-output.c of
github.com/hpc/ior).

Bandwidths are MiB/s, over all tasks together. A row is a repetition; where a file has
the table 'Summary of all tests' alone, a row is the mean of all repetitions of a test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from simshuffle.extensions.calibration.calibrate.files import MeasurementFile
from simshuffle.extensions.calibration.calibrate.ior_run import IorRun, Rate
from simshuffle.extensions.calibration.calibrate.tables import MeasuredNumber, Note

_BANNER = re.compile(r"^\s*IOR-\d")
_TEST_START = re.compile(r"^\s*(?:TestID\s*:|Test \d+ started)")
_OPTION = re.compile(r"^\s*([A-Za-z][\w ]*?)\s*[:=]\s*(.*?)\s*$")
_SUMMARY_HEAD = ["Operation", "Max(MiB)", "Min(MiB)"]
_OPERATIONS = ("write", "read")
_CUT = "line {} is cut off and was left out"
_MAX_DEPTH = 20


@dataclass
class IorOutput:
    """Runs that have been read of a file, and the columns of the table that is open."""

    # the last one is being read; some may have no rates
    runs: list[IorRun] = field(default_factory=lambda: [IorRun()])
    first_run_of_program: int = 0  # index of the first run since the last banner
    columns: tuple[str, ...] = ()  # of the open table; () where none is open
    separator: str | None = None  # ',' in CSV, None for blanks
    in_summary: bool = False  # whether that table is 'Summary of all tests'

    def begin_program(self) -> None:
        """Start a run, since another call of IOR begins to print."""
        self.runs.append(IorRun())
        self.first_run_of_program = len(self.runs) - 1
        self.columns = ()
        self.in_summary = False

    def begin_test(self) -> None:
        """Start a run, since the open call of IOR begins another test.

        It has the flags of the call. A run without rates goes on instead.
        """
        if self.runs[-1].rates:
            self.runs.append(IorRun(flags=self.runs[-1].flags))


def read_ior(source: MeasurementFile) -> Iterator[MeasuredNumber | Note]:
    """Yield reads and writes of all runs in a file, and notes: on lines left out, and
    on reads that may be of a cache.

    Nothing is yielded for a file without a rate.

    Raises:
        InputError: with the line; or nothing says how many tasks took part.
    """
    if source.text.lstrip().startswith("{"):
        runs = read_json(source)
    else:
        output = IorOutput()
        for line_number, line in source.numbered_lines():
            if note := read_line(source, output, line_number, line):
                yield note
        runs = output.runs
    written_paths: set[str] = set()
    for run in runs:
        yield from run.measured_numbers(source, written_paths)
        if run.wrote_files:
            written_paths.add(run.path)


def read_line(
    source: MeasurementFile, output: IorOutput, line_number: int, line: str
) -> Note | None:
    """Read a line of text or CSV into ``output``; return a note where the last line of
    the file is cut off and left out.

    Lines that are neither of a table nor an option are passed over.

    Raises:
        InputError: a row of repetitions has other columns than its head, or a value is
            not valid.
    """
    words = line.replace(",", " ").split() if output.separator else line.split()
    run = output.runs[-1]
    if _BANNER.match(line):
        output.begin_program()
    elif _TEST_START.match(line):
        output.begin_test()
    elif is_table_head(line):
        output.separator = "," if "," in line else None
        output.columns = tuple(line.replace(",", " ").split())
        output.in_summary = False
    elif words[:3] == _SUMMARY_HEAD:
        output.columns = tuple(words)
        output.in_summary = True
    elif output.in_summary and words and words[0] in _OPERATIONS:
        read_summary(source, output, line_number, words)
    elif output.columns and words and words[0] in _OPERATIONS:
        if len(words) < len(output.columns) and source.may_be_cut(line_number):
            return Note(source.name, _CUT.format(line_number))
        joined = " ".join(words)
        cells = dict(
            zip(
                output.columns,
                source.split_cells(line_number, joined, output.columns),
                strict=True,
            )
        )
        mebibytes = source.read_positive(line_number, cells["bw(MiB/s)"], "bw(MiB/s)")
        run.rates.append(Rate(line_number, words[0], mebibytes * 2**20))
        run.take_cells(source, line_number, cells)
    elif line.strip().startswith(("Max Write", "Max Read", "Summary of all tests")):
        output.columns = ()
    elif option := _OPTION.match(line):
        run.take_option(source, line_number, option[1], option[2])
    return None


def is_table_head(line: str) -> bool:
    """Return whether a line is the head of the table of repetitions."""
    return re.match(r"^\s*access[\s,]+bw\(MiB/s\)", line) is not None


def read_summary(
    source: MeasurementFile, output: IorOutput, line_number: int, words: list[str]
) -> None:
    """Read a row of 'Summary of all tests' into the run of its test.

    The row gives options of the test, and its mean rate where no row of a repetition
    was read. The test is the one that the column Test# numbers since the last banner,
    else the last. A row with another number of columns is passed over.

    Raises:
        InputError: a value is not valid.
    """
    if len(words) != len(output.columns):
        return
    cells = dict(zip(output.columns, words, strict=True))
    index = output.first_run_of_program
    if cells.get("Test#", "").isdecimal():
        index += int(cells["Test#"])
    run = output.runs[index] if index < len(output.runs) else output.runs[-1]
    run.take_summary(source, line_number, cells)
    is_read = any(rate.operation == words[0] and not rate.is_mean for rate in run.rates)
    if not is_read:
        mebibytes = source.read_positive(line_number, cells["Mean(MiB)"], "Mean(MiB)")
        count = source.read_whole(
            line_number, cells.get("reps", "1"), "reps", minimum=1
        )
        run.rates.append(
            Rate(line_number, words[0], mebibytes * 2**20, count, is_mean=True)
        )


# --------------------------------------------------------------------------------------------- JSON


def read_json(source: MeasurementFile) -> list[IorRun]:
    """Read the runs of a file that `-O summaryFormat=JSON` writes.

    The line of a rate is the number of its result, from 1. There are no runs if the
    file holds no test.

    Raises:
        InputError: it is no JSON, or a value is not valid.
    """
    try:
        document = json.loads(source.text)
    except (RecursionError, ValueError) as error:
        line = getattr(error, "lineno", 0)
        remedy = (
            "Was the run cut short? Run IOR again, or save the text that it prints."
        )
        raise source.error_in_line(
            line, f"must be JSON: {error}", remedy=remedy
        ) from None
    tests = document.get("tests") if isinstance(document, dict) else None
    result_number = 0
    runs = []
    for test in tests if isinstance(tests, list) else []:
        run = IorRun()
        command = document.get("Command line")
        if isinstance(command, str):
            run.take_option(source, 0, "Command line", command)
        for section in ("Options", "Parameters"):
            values = test.get(section) if isinstance(test, dict) else None
            for name, value in (values if isinstance(values, dict) else {}).items():
                if isinstance(value, str | int | float):
                    run.take_option(source, 0, name, str(value))
        for result in find_results(test):
            if result["access"] not in _OPERATIONS:
                continue
            result_number += 1
            mebibytes = source.read_positive(
                result_number, str(result["bwMiB"]), "bwMiB"
            )
            run.rates.append(Rate(result_number, result["access"], mebibytes * 2**20))
        runs.append(run)
    return runs


def find_results(value: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the results below a JSON value, wherever a version of IOR puts them.

    Results are mappings with 'access' and 'bwMiB'. Deeper than `_MAX_DEPTH` none is
    looked for.
    """
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        if "access" in value and "bwMiB" in value:
            yield value
            return
        value = list(value.values())
    if isinstance(value, list):
        for member in value:
            yield from find_results(member, depth + 1)
