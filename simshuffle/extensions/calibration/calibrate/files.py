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

LARGEST = 64 * 2**20
"""Bytes of a measurement file; what is larger is none."""
_WHOLE = 2.0**53
_SMALLEST, _LARGEST = 1e-9, 1e18  # no tool prints anything beyond


@dataclass(frozen=True)
class MeasurementFile:
    """A measurement file that has been read."""

    path: Path  # where it is
    text: str  # what it holds
    ranks: int = 0  # processes that took part, for tools that do not print it; 0 if not given
    hosts: float = math.nan  # hosts that they filled, likewise; nan if not given
    collective: str = ""  # program of nccl-tests, where it does not say it; '' if not given

    @property
    def name(self) -> str:
        """The file's name without its folder; what is no text in it is replaced."""
        return os.fsencode(self.path.name).decode("utf-8", "replace")

    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines with their numbers, from 1, without the ends."""
        return enumerate(self.text.split("\n"), 1)

    @cached_property
    def last_line(self) -> int:
        """The number of the last line with text; 0 if there is none."""
        numbers = [number for number, line in self.lines() if line.strip()]
        return numbers[-1] if numbers else 0

    def is_cut(self, line: int) -> bool:
        """Whether a line that has too few cells may be where the file was cut off: the last one."""
        return line == self.last_line

    def bad(
        self, line: int, rule: str, value: str = "", remedy: str = "Write the file again."
    ) -> InputError:
        """The error that says which line breaks which rule; 0 stands for the whole file."""
        shown = value.strip()
        shown = repr(shown if len(shown) <= 70 else f"{shown[:67]}...") if value else ""
        return bad_file(self.path, rule, shown, remedy, line)

    def number(self, line: int, text: str, what: str, *, least: float = 0.0) -> float:
        """A finite number of at least ``least``.

        Raises:
            InputError: it is none.
        """
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= least):
            rule = f"{what} must be a number of at least {least:g}"
            raise self.bad(line, rule, text or "nothing")
        if value and not _SMALLEST <= abs(value) <= _LARGEST:
            raise self.bad(line, f"{what} must lie between {_SMALLEST:g} and {_LARGEST:g}", text)
        return value

    def positive(self, line: int, text: str, what: str) -> float:
        """A number above 0; errors as in `number`."""
        value = self.number(line, text, what)
        if value <= 0:
            remedy = "Measure again, with more iterations."
            raise self.bad(line, f"{what} must be greater than 0", text, remedy)
        return value

    def whole(self, line: int, text: str, what: str, *, least: int = 0) -> int:
        """A whole number of at least ``least``; errors as in `number`."""
        value = self.number(line, text, what, least=least)
        if not value.is_integer() or value > _WHOLE:
            raise self.bad(line, f"{what} must be a whole number", text)
        return int(value)

    def cells(self, line: int, text: str, columns: Sequence[str], *, more: int = 0) -> list[str]:
        """The cells of a row below a head of ``columns``, of which ``more`` have no name.

        Raises:
            InputError: they are not as many.
        """
        cells, wanted = text.split(), len(columns) + more
        if len(cells) != wanted:
            rule = f"must be a row with the {wanted} columns {' '.join(columns)}"
            raise self.bad(line, rule, text)
        return cells

    def records(self, required: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
        """The lines of a CSV table below its head, each with its number and its cells by column,
        without blanks around.

        Raises:
            InputError: a column of ``required`` is missing, two have the same name, a line has
                another number of cells, or it is no CSV.
        """
        reader = csv.reader(io.StringIO(self.text, newline=""), strict=True)
        try:
            head = [name.strip() for name in next(reader, [])]
            missing = [name for name in required if name not in head]
            if missing or len(set(head)) < len(head):
                rule = f"the first line must name the columns {', '.join(required)}, each once"
                remedy = f"Add {', '.join(missing)}." if missing else "Rename one of them."
                raise self.bad(1, rule, ",".join(head) or "nothing", remedy)
            for cells in filter(None, reader):
                if len(cells) != len(head):
                    rule = f"must have {len(head)} cells: {','.join(head)}"
                    raise self.bad(reader.line_num, rule, ",".join(cells), "Correct that line.")
                named = zip(head, map(str.strip, cells), strict=True)
                yield reader.line_num, dict(named)
        except csv.Error as error:
            line, remedy = max(reader.line_num, 1), "Save the table as CSV with commas."
            raise self.bad(line, f"must be CSV: {error}", remedy=remedy) from None

    def layout(self, listed: Sequence[str] = ()) -> tuple[int, float]:
        """Ranks of a collective and hosts that they fill, from the host of each rank that the file
        lists, or else as the caller gave them.

        Raises:
            InputError: there are none, or fewer than 2.
        """
        ranks = len(listed) or self.ranks
        if not ranks:
            rule = "does not say how many ranks took part"
            raise self.bad(0, rule, remedy="Add --ranks N, and --hosts H.")
        if ranks < 2:
            rule = "a collective needs at least 2 ranks"
            raise self.bad(0, rule, str(ranks), "Leave the file out, or correct --ranks.")
        return ranks, len(set(listed)) or self.hosts


def bad_file(path: Path, rule: str, value: str = "", remedy: str = "", line: int = 0) -> InputError:
    """The error that says what is wrong with a file, and in which line if it is in one."""
    return InputError(Problem(f"line {line}" if line else "", rule, value, remedy), str(path))


def read_text(path: Path) -> str:
    """The text of a measurement file, without what launchers and issue trackers put around it.

    Raises:
        InputError: it cannot be read, is too large, or is not text.
    """
    raw = b""
    try:
        if not path.is_file():
            rule = "is a folder" if path.is_dir() else "no such file"
            raise bad_file(path, rule, remedy="Name a file that a benchmark wrote.")
        if (size := path.stat().st_size) > LARGEST:
            rule = f"must be at most {LARGEST >> 20} MiB"
            raise bad_file(path, rule, f"{size} B", "Cut out the benchmark's table.")
        raw = path.read_bytes()
        text = decode(raw)
    except OSError as error:
        what = error.strerror or str(error)
        raise bad_file(path, f"cannot be read: {what}", remedy="Check the path.") from None
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        rule, remedy = "must be text in UTF-8 or UTF-16", "Save it as UTF-8."
        raise bad_file(path, rule, "other bytes", remedy, line) from None
    return clean_text(text)


def sources(
    paths: Sequence[str | Path],
    ranks: int | None = None,
    hosts: int | None = None,
    collective: str = "",
) -> list[MeasurementFile]:
    """The texts of all files; ``ranks``, ``hosts`` and ``collective`` for those that do not say it.

    Raises:
        InputError: a file cannot be read, there is none, or two have the same name.
    """
    names = [Path(path).name for path in paths]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        rule = "files must have different names"
        refuse("", rule, ", ".join(twice), "Rename one of them.", "calibrate")
    if not names:
        refuse("", "needs at least one measurement file", "none", "Name one.", "calibrate")
    given = ranks or 0, math.nan if hosts is None else float(hosts), collective
    return [MeasurementFile(Path(path), read_text(Path(path)), *given) for path in paths]
