"""Reading measurement files: safely, with the line of whatever is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simshuffle.errors import InputError, Problem

LARGEST = 64 * 2**20
"""Bytes of a measurement file; what is larger is none."""
_WHOLE = 2.0**53
_SMALLEST, _LARGEST = 1e-9, 1e18  # no tool prints anything beyond


@dataclass(frozen=True)
class Source:
    """A measurement file that has been read.

    Attributes:
        path: where it is.
        text: what it holds.
        ranks: processes that took part, for tools that do not print it; None if not given.
        hosts: hosts that they filled, likewise.
    """

    path: Path
    text: str
    ranks: int | None = None
    hosts: int | None = None

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self.path.name

    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines with their numbers, from 1, without the ends."""
        return enumerate(self.text.split("\n"), 1)

    def bad(self, line: int, rule: str, value: str = "", remedy: str = "") -> InputError:
        """The error that says which line breaks which rule; 0 stands for the whole file."""
        shown = value.strip()
        shown = repr(shown if len(shown) <= 70 else f"{shown[:67]}...") if value else ""
        return InputError(
            Problem(f"line {line}" if line else "", rule, shown, remedy), str(self.path)
        )

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
            raise self.bad(
                line,
                f"{what} must be a number of at least {least:g}",
                text or "nothing",
                "Write the file again.",
            )
        if value and not _SMALLEST <= abs(value) <= _LARGEST:
            raise self.bad(
                line,
                f"{what} must lie between {_SMALLEST:g} and {_LARGEST:g}",
                text,
                "Write the file again.",
            )
        return value

    def whole(self, line: int, text: str, what: str, *, least: int = 0) -> int:
        """A whole number of at least ``least``; errors as in `number`."""
        value = self.number(line, text, what, least=least)
        if not value.is_integer() or value > _WHOLE:
            raise self.bad(line, f"{what} must be a whole number", text, "Write the file again.")
        return int(value)

    def stated_ranks(self) -> int:
        """The ranks that the caller gave, for a file that does not say.

        Raises:
            InputError: the caller gave none.
        """
        if self.ranks is None:
            raise self.bad(
                0, "does not say how many ranks took part", remedy="Add --ranks N, and --hosts H."
            )
        return self.ranks


def read_text(path: Path) -> str:
    """The text of a measurement file, its line ends as in Unix.

    Raises:
        InputError: it cannot be read, is too large, or is not text.
    """
    try:
        if not path.is_file():
            rule = "is a folder" if path.is_dir() else "no such file"
            raise InputError(
                Problem("", rule, remedy="Name a file that a benchmark wrote."), str(path)
            )
        size = path.stat().st_size
        if size > LARGEST:
            raise InputError(
                Problem(
                    "",
                    f"must be at most {LARGEST >> 20} MiB",
                    f"{size} B",
                    "Cut out the benchmark's table.",
                ),
                str(path),
            )
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        what = getattr(error, "strerror", None) or str(error)
        raise InputError(
            Problem("", f"cannot be read: {what}", remedy="Check the path."), str(path)
        ) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError(
            Problem(f"line {line}", "must be text in UTF-8", "other bytes", "Save it as UTF-8."),
            str(path),
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")
