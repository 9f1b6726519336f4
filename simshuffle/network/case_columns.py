"""Lists from a JSON file as arrays: every element is checked, problems are collected, and good
lists are converted without a loop."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from simshuffle.errors import Problem
from simshuffle.spec.arrays import Floats, Ints, Ints32, Ints64

Places = list[int] | Ints

MOST_SHOWN = 3
"""Elements of one list that are named one by one; the others that break the same rule are
counted."""
LARGEST = 1e30
"""Bound of every number, so that sums and quotients of all of them stay finite. Capacities are at
least its inverse."""
MOST_HOPS = 2**30
"""Entries of the padded table of routes: the compiled network numbers them with 32 bits."""
ROWS_AT_ONCE = 1 << 18

_short = reprlib.Repr()
_short.maxlist = _short.maxdict = 6
_short.maxstring = _short.maxlong = _short.maxother = 40


def shown(value: object) -> str:
    """``value`` as text of bounded length."""
    return _short.repr(value)


class Columns:
    """Converts lists and collects what is wrong with them.

    Attributes:
        problems: all problems so far.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, path: str, rule: str, value: str = "", remedy: str = "") -> None:
        """Note a problem."""
        self.problems.append(Problem(path, rule, value, remedy))

    def sequence(self, values: object, path: str, count: int | None, of: str) -> list[Any] | None:
        """``values`` if it is a list; noted if it is not, or if it does not have ``count``
        elements."""
        if not isinstance(values, list):
            self.add(path, f"must be a list of {of}", shown(values), "Write it in brackets.")
            return None
        if count is not None and len(values) != count:
            rule = f"must have {count} elements, as the lists beside it"
            self.add(path, rule, str(len(values)), "Give one for each.")
        return values

    def numbers(
        self, part: Mapping[str, Any], path: str, count: int | None, unit: str, least: float = 0.0
    ) -> Floats | None:
        """The list of a part of the file that the last word of ``path`` names: (count,) floats from
        ``least`` to `LARGEST`; None if there is none, or with a problem."""
        key = path.rpartition(".")[2]
        column = self.sequence(part[key], path, count, "numbers") if key in part else None
        if column is None:
            return None
        try:
            out = np.array(
                column
                if set(map(type, column)) <= {int, float}
                else [_number(value) for value in column],
                np.float64,
            )
        except OverflowError:
            out = np.array([_number(value) for value in column], np.float64)
        bad = np.flatnonzero(~((out >= least) & (out <= LARGEST)))
        what = "at least 0" if least == 0 else f"greater than 0 (at least {least:g})"
        rule = f"must be a number of {unit}, {what} and at most {LARGEST:g}"
        remedy = f"Give {unit} as a plain number."
        self.each(path, rule, bad, lambda i: shown(column[i]), remedy)
        return None if len(bad) else out

    def texts(self, values: object, path: str, count: int | None) -> list[str] | None:
        """A list of ``count`` texts, or None."""
        column = self.sequence(values, path, count, "texts")
        if column is None:
            return None
        bad = [i for i, value in enumerate(column) if type(value) is not str]
        self.each(path, "must be a text", bad, lambda i: shown(column[i]), "Write it in quotes.")
        return None if bad else column

    def ragged(
        self, values: object, path: str, count: int | None, noun: str, limit: int
    ) -> tuple[Ints64, Ints64] | None:
        """A list of ``count`` lists of numbers of ``noun``, from 0 to below ``limit``: (count,)
        lengths, and all numbers; or None."""
        rows = self.sequence(values, path, count, f"lists of {noun} numbers")
        if rows is None:
            return None
        bad: list[int] = []
        if set(map(type, rows)) <= {list} and set(map(type, chain.from_iterable(rows))) <= {int}:
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            try:
                flat = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
                outside = (flat < 0) | (flat >= limit)
                if not outside.any():
                    return lengths, flat
                bad = np.unique(np.repeat(np.arange(len(rows)), lengths)[outside]).tolist()
            except OverflowError:
                pass
        bad = bad or [i for i, row in enumerate(rows) if _first_outside(row, limit) is not _NONE]
        rule = (
            f"must be a list of {noun} numbers from 0 to {limit - 1}"
            if limit
            else f"must be empty, as there is no {noun}"
        )
        remedy = f"Give each {noun} by its place in the file, from 0 on."
        self.each(path, rule, bad, lambda i: _where(rows[i], limit), remedy)
        return None

    def table(self, path: str, lengths: Ints64, flat: Ints64) -> Ints32 | None:
        """(rows, longest) int32 table of the lists, padded with -1; None if it would be too large,
        or if a list names anything twice."""
        width = max(int(lengths.max(initial=0)), 1)
        if len(lengths) * width > MOST_HOPS:
            rule = f"flows times links of the longest route must be at most {MOST_HOPS}"
            remedy = "Put the flows with long routes into a case of their own."
            self.add(path, rule, f"{len(lengths)} x {width}", remedy)
            return None
        out = np.full((len(lengths), width), -1, np.int32)
        if len(flat) == out.size:
            out[:] = flat.reshape(out.shape)
        else:
            out[np.arange(width) < lengths[:, None]] = flat
        bad: list[int] = []
        for first in range(0, len(out), ROWS_AT_ONCE):
            piece = np.sort(out[first : first + ROWS_AT_ONCE], axis=1)
            twice = (piece[:, 1:] == piece[:, :-1]) & (piece[:, 1:] >= 0)
            bad += (np.flatnonzero(twice.any(axis=1)) + first).tolist()
        rule, remedy = "must not use a link twice", "Give a route without a loop."
        self.each(path, rule, bad, lambda i: shown(out[i, : lengths[i]].tolist()), remedy)
        return None if bad else out

    def each(
        self, path: str, rule: str, bad: Places, value: Callable[[int], str], remedy: str
    ) -> None:
        """Note the first of the elements at the places ``bad``, which break one rule, each with its
        ``value``, and how many more there are."""
        for i in bad[:MOST_SHOWN]:
            self.add(f"{path}[{i}]", rule, value(int(i)), remedy)
        if more := len(bad[MOST_SHOWN:]):
            rule, remedy = "as many more break the same rule", "Correct them likewise."
            self.add(path, rule, str(more), remedy)


_NONE = object()


def _number(value: object) -> float:
    """A JSON number as a float; nan for anything else."""
    if type(value) is float:
        return value
    if type(value) is not int:
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _first_outside(row: object, limit: int) -> object:
    """The first element that is no whole number from 0 to below ``limit``; the whole if it is no
    list; `_NONE` if all is well."""
    if not isinstance(row, list):
        return row
    return next((value for value in row if type(value) is not int or not 0 <= value < limit), _NONE)


def _where(row: object, limit: int) -> str:
    value = _first_outside(row, limit)
    return shown(row) if value is row else f"{shown(value)} in {shown(row)}"
