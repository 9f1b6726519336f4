"""Node lists as Slurm writes them: 'node[001-016,020],login1'."""

from __future__ import annotations

import re
from itertools import product
from typing import NoReturn

from simshuffle.errors import refuse
from simshuffle.spec.record import MOST_HOSTS

_NAME = r"(?:[^\[\],\s]|\[[^\[\]]*\])+"
_LIST = re.compile(rf"\s*{_NAME}(?:\s*,\s*{_NAME})*\s*")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expanded(text: str, most: int = MOST_HOSTS) -> list[str]:
    """The names that a node list stands for, at most ``most``, in its order. Names stand between
    commas, and blanks around them count for nothing. A name may have numbers and ranges in
    brackets, in several places; the last ones vary fastest. A range has the leading zeros of its
    lower end. Raises an InputError if it is no such list, or one of too many names; its problem has
    no path."""
    if not _LIST.fullmatch(text):
        _refuse("must be names between commas", text, "Write for example 'node[001-016]'.")
    out: list[str] = []
    for name in re.findall(_NAME, text):
        plain, *groups = re.split(r"\[([^\]]*)\]", name)
        parts, count = [[plain]], 1
        for number, group in enumerate(groups):
            part = [group] if number % 2 else _numbers(group, text, most)
            parts.append(part)
            count *= len(part)
            if len(out) + count > most:
                _refuse(f"must stand for at most {most} names", text, "Name fewer.")
        out += map("".join, product(*parts))
    return out


def _numbers(group: str, text: str, most: int) -> list[str]:
    """The numbers of a pair of brackets."""
    out: list[str] = []
    for part in group.split(","):
        found = _RANGE.fullmatch(part.strip())
        low = int(found[1]) if found else 0
        high = int(found[2] or found[1]) if found else -1
        if found is None or high < low:
            rule = "brackets must hold whole numbers, and ranges from a lower to a higher one"
            _refuse(rule, text, "Write for example 'node[001-016,020]'.")
        if len(out) + high - low >= most:
            _refuse(f"must stand for at most {most} names", text, "Name fewer.")
        out += (f"{number:0{len(found[1])}d}" for number in range(low, high + 1))
    return out


def _refuse(rule: str, text: str, remedy: str) -> NoReturn:
    shown = repr(text) if len(text) <= 60 else f"{text[:57]!r}..."
    refuse("", rule, shown, remedy, "node list")
