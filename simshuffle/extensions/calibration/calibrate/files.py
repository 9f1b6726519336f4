"""Reading measurement files: safely, with the line of whatever is wrong."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.spec.plain_text import clean_text, decode

MAX_NBYTES = 64 * 2**20
"""Bytes of a measurement file; what is larger is none."""
_MAX_WHOLE = 2.0**53
_SMALLEST, _LARGEST = 1e-9, 1e18  # no tool prints anything beyond


@dataclass(frozen=True)
class MeasurementFile:
    """A measurement file that has been read."""

    path: Path  # where it is
    text: str  # what it holds
    ranks: int = (
        0  # processes that took part, for tools that do not print it; 0 if not given
    )
    # hosts that the processes filled, as ``ranks``; nan if not given
    hosts: float = math.nan
    collective: str = (
        ""  # program of nccl-tests, where it does not say it; '' if not given
    )

    @property
    def name(self) -> str:
        """The file's name without its folder; what is no text in it is replaced."""
        return os.fsencode(self.path.name).decode("utf-8", "replace")

    def numbered_lines(self) -> Iterator[tuple[int, str]]:
        """Return the lines with their numbers, from 1, without the line ends."""
        return enumerate(self.text.split("\n"), 1)

    @cached_property
    def last_line(self) -> int:
        """The number of the last line with text; 0 if there is none."""
        numbers = [number for number, line in self.numbered_lines() if line.strip()]
        return numbers[-1] if numbers else 0

    def may_be_cut(self, line: int) -> bool:
        """Return whether the file may have been cut off in this line: True only for the
        last one with text, whether or not it ends in a newline.

        Readers of tables leave a line with too few cells out there, and refuse it
        elsewhere; `csv_records` refuses it everywhere.
        """
        return line == self.last_line

    def error_in_line(
        self,
        line: int,
        rule: str,
        value: str = "",
        remedy: str = "Write the file again.",
    ) -> InputError:
        """Return the error that says which line breaks which rule; line 0 stands for
        the whole file.
        """
        quoted_value = value.strip()
        quoted_value = (
            repr(quoted_value if len(quoted_value) <= 70 else f"{quoted_value[:67]}...")
            if value
            else ""
        )
        return file_error(self.path, rule, quoted_value, remedy, line)

    def read_number(
        self, line: int, text: str, quantity: str, *, minimum: float = 0.0
    ) -> float:
        """Return the finite number in a text, of at least ``minimum``.

        It is 0, or its amount lies from `_SMALLEST` to `_LARGEST`.

        Args:
            line: number of the line, for the error.
            text: the number as the file writes it.
            quantity: its name and unit, for the error.
            minimum: the smallest number that is valid.

        Raises:
            InputError: the text is no such number.
        """
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= minimum):
            rule = f"{quantity} must be a number of at least {minimum:g}"
            raise self.error_in_line(line, rule, text or "nothing")
        if value and not _SMALLEST <= abs(value) <= _LARGEST:
            raise self.error_in_line(
                line,
                f"{quantity} must lie between {_SMALLEST:g} and {_LARGEST:g}",
                text,
            )
        return value

    def read_positive(self, line: int, text: str, quantity: str) -> float:
        """Return the number above 0 in a text; arguments and errors as of
        `read_number`.
        """
        value = self.read_number(line, text, quantity)
        if value <= 0:
            remedy = "Measure again, with more iterations."
            raise self.error_in_line(
                line, f"{quantity} must be greater than 0", text, remedy
            )
        return value

    def read_whole(
        self, line: int, text: str, quantity: str, *, minimum: int = 0
    ) -> int:
        """Return the whole number in a text, from ``minimum`` to 2^53; arguments and
        errors as of `read_number`.
        """
        value = self.read_number(line, text, quantity, minimum=minimum)
        if not value.is_integer() or value > _MAX_WHOLE:
            raise self.error_in_line(line, f"{quantity} must be a whole number", text)
        return int(value)

    def split_cells(
        self, line: int, text: str, columns: Sequence[str], *, num_unnamed: int = 0
    ) -> list[str]:
        """Split a row at blanks into cells, one for each of ``columns`` and
        ``num_unnamed`` more.

        Raises:
            InputError: the row has more or fewer cells.
        """
        cells = text.split()
        num_cells = len(columns) + num_unnamed
        if len(cells) != num_cells:
            rule = f"must be a row with the {num_cells} columns {' '.join(columns)}"
            raise self.error_in_line(line, rule, text)
        return cells

    def csv_records(
        self, required: Sequence[str]
    ) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield each line of a CSV table below its head: its number, and its cells by
        column.

        Blanks around a cell are removed, and empty lines left out. Of a row over
        several lines the number is that of the last one.

        Raises:
            InputError: a column of ``required`` is missing, two have the same name, a
                line, even the last, has another number of cells, or it is no CSV.
        """
        reader = csv.reader(io.StringIO(self.text, newline=""), strict=True)
        try:
            head = [name.strip() for name in next(reader, [])]
            missing = [name for name in required if name not in head]
            if missing or len(set(head)) < len(head):
                rule = f"the first line must name the columns {', '.join(required)}, each once"
                remedy = (
                    f"Add {', '.join(missing)}."
                    if missing
                    else "Give each column its own name."
                )
                raise self.error_in_line(1, rule, ",".join(head) or "nothing", remedy)
            for cells in filter(None, reader):
                if len(cells) != len(head):
                    rule = f"must have {len(head)} cells: {','.join(head)}"
                    raise self.error_in_line(
                        reader.line_num, rule, ",".join(cells), "Correct that line."
                    )
                cells_by_column = zip(head, map(str.strip, cells), strict=True)
                yield reader.line_num, dict(cells_by_column)
        except csv.Error as error:
            line = max(reader.line_num, 1)
            remedy = "Save the table as CSV with commas."
            raise self.error_in_line(
                line, f"must be CSV: {error}", remedy=remedy
            ) from None

    def ranks_and_hosts(self, host_of_rank: Sequence[str] = ()) -> tuple[int, float]:
        """Return the ranks of a collective and the hosts that they fill.

        They come from ``host_of_rank``, the hosts that the file lists for its ranks, or
        else from `ranks` and `hosts`: hosts may be nan.

        Raises:
            InputError: there are no ranks, or fewer than 2.
        """
        ranks = len(host_of_rank) or self.ranks
        if not ranks:
            rule = "does not say how many ranks took part"
            raise self.error_in_line(0, rule, remedy="Add --ranks N, and --hosts H.")
        if ranks < 2:
            rule = "a collective needs at least 2 ranks"
            raise self.error_in_line(
                0, rule, str(ranks), "Leave the file out, or correct --ranks."
            )
        return ranks, len(set(host_of_rank)) or self.hosts


def file_error(
    path: Path, rule: str, value: str = "", remedy: str = "", line: int = 0
) -> InputError:
    """Return the error that says what is wrong with a file, and in which line if it is
    in one.
    """
    return InputError(
        Problem(f"line {line}" if line else "", rule, value, remedy), str(path)
    )


def read_text(path: Path) -> str:
    """Return the text of a measurement file, without what launchers and issue trackers
    put around it.

    Raises:
        InputError: it cannot be read, is larger than `MAX_NBYTES`, or is not text in
            UTF-8 or UTF-16.
    """
    content = b""
    try:
        if not path.is_file():
            rule = "is a folder" if path.is_dir() else "no such file"
            raise file_error(path, rule, remedy="Name a file that a benchmark wrote.")
        if (size := path.stat().st_size) > MAX_NBYTES:
            rule = f"must be at most {MAX_NBYTES >> 20} MiB"
            raise file_error(
                path, rule, f"{size} B", "Keep only the benchmark's table."
            )
        content = path.read_bytes()
        text = decode(content)
    except OSError as error:
        reason = error.strerror or str(error)
        raise file_error(
            path, f"cannot be read: {reason}", remedy="Check the path."
        ) from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        rule = "must be text in UTF-8 or UTF-16"
        remedy = "Save the file as UTF-8."
        raise file_error(path, rule, "other bytes", remedy, line) from None
    return clean_text(text)


def read_files(
    paths: Sequence[str | Path],
    ranks: int | None = None,
    hosts: int | None = None,
    collective: str = "",
) -> list[MeasurementFile]:
    """Read all measurement files.

    Args:
        paths: the files, each with another name.
        ranks: processes that took part, for files that do not say it.
        hosts: hosts that the ranks filled, for files that do not say it.
        collective: program of nccl-tests, for files that do not say it.

    Raises:
        InputError: a file cannot be read, there is none, or two have the same name.
    """
    names = [Path(path).name for path in paths]
    if repeated_names := sorted({name for name in names if names.count(name) > 1}):
        rule = "files must have different names"
        refuse("", rule, ", ".join(repeated_names), "Rename one file.", "calibrate")
    if not names:
        refuse(
            "", "needs at least one measurement file", "none", "Name one.", "calibrate"
        )
    return [
        MeasurementFile(
            Path(path),
            read_text(Path(path)),
            ranks or 0,
            math.nan if hosts is None else float(hosts),
            collective,
        )
        for path in paths
    ]
