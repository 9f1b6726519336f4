"""What the docstring of a record says of each of its keys."""

from __future__ import annotations

import inspect
import re
from functools import cache

_SECTION = re.compile(r"^Attributes:\n((?:    .*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*\n(?: {8}.*\n)*)", re.MULTILINE)


def sentences(record: type) -> dict[str, str]:
    """What the section Attributes of a class and of those above it says, by name; each as one line
    without the backticks."""
    found: dict[str, str] = {}
    for of in reversed(record.__mro__):
        found |= _own(of)
    return found


def summary(record: type) -> str:
    """The first paragraph of the class's own docstring, as one line without the backticks."""
    text = inspect.cleandoc(record.__dict__.get("__doc__") or "")
    return _line(text.split("\n\n", maxsplit=1)[0])


@cache
def _own(record: type) -> dict[str, str]:
    text = inspect.cleandoc(record.__dict__.get("__doc__") or "")
    section = _SECTION.search(f"{text}\n")
    entries = _ENTRY.findall(section[1]) if section else []
    return {name: _line(said) for names, said in entries for name in re.split(", ", names)}


def _line(text: str) -> str:
    return " ".join(text.replace("``", "'").replace("`", "'").split())
