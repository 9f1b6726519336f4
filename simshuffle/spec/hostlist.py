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


def expand_node_list(text: str, max_names: int = MOST_HOSTS) -> list[str]:
    """Expand a node list to its names, in order.

    Names stand between commas, and blanks around them count for nothing. A name may
    have numbers and ranges in brackets, in several places; the last ones vary fastest.
    A range has the leading zeros of its lower end. A name that is listed twice comes
    twice.

    Args:
        text: the node list.
        max_names: names that it may stand for.

    Raises:
        InputError: it is no node list, or one of too many names; the problem has no
            path.
    """
    if not _LIST.fullmatch(text):
        _refuse(
            "must be names between commas", text, "Write for example 'node[001-016]'."
        )
    names: list[str] = []
    for name in re.findall(_NAME, text):
        prefix, *groups = re.split(r"\[([^\]]*)\]", name)
        parts = [[prefix]]
        count = 1
        for index, group in enumerate(groups):
            part = [group] if index % 2 else _expand_brackets(group, text, max_names)
            parts.append(part)
            count *= len(part)
            if len(names) + count > max_names:
                _refuse(
                    f"must stand for at most {max_names} names", text, "Name fewer."
                )
        names += map("".join, product(*parts))
    return names


def _expand_brackets(group: str, text: str, max_names: int) -> list[str]:
    """List the numbers, as texts, that a pair of brackets stands for; raises an
    InputError that quotes ``text``, the whole node list.
    """
    numbers: list[str] = []
    for part in group.split(","):
        match = _RANGE.fullmatch(part.strip())
        low = int(match[1]) if match else 0
        high = int(match[2] or match[1]) if match else -1
        if match is None or high < low:
            rule = "brackets must hold whole numbers, and ranges from a lower to a higher one"
            _refuse(rule, text, "Write for example 'node[001-016,020]'.")
        if len(numbers) + high - low >= max_names:
            _refuse(f"must stand for at most {max_names} names", text, "Name fewer.")
        numbers += (f"{number:0{len(match[1])}d}" for number in range(low, high + 1))
    return numbers


def _refuse(rule: str, text: str, remedy: str) -> NoReturn:
    """Raise an InputError about a node list, with an excerpt of its text."""
    excerpt = repr(text) if len(text) <= 60 else f"{text[:57]!r}..."
    refuse("", rule, excerpt, remedy, "node list")
