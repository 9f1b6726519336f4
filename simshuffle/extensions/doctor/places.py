"""Where in the code the time of fetches goes, by the stacks that the recorder looked at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import PurePath

from simshuffle.extensions.doctor.loop import RecordedLoop

FEWEST_LOOKS = 10
"""Looks at an operation below which no place is named (chosen)."""
NOTABLE = 0.25
"""Share of the looks from which on a function is named (chosen)."""
MOSTLY = 0.5
"""Share of the looks in which a transform is at work, from which on the operation is one."""


@dataclass(frozen=True)
class CodePlace:
    """A function in which an operation spends its time."""

    function: str
    file: str
    line: int  # the most frequent one
    calls: str  # what is called there of a library; '' for nothing
    share: float  # of the looks at the operation

    @property
    def where(self) -> str:
        """Function, file and line."""
        return f"{self.function} ({PurePath(self.file).name}:{self.line})"

    def sentence(self) -> str:
        """What was seen, for the end of a sentence on the operation."""
        called = f", which calls {self.calls}" if self.calls else ""
        return f" {100 * self.share:.0f} % of that is in {self.where}{called}."


def main_place(loop: RecordedLoop, operation: str) -> CodePlace | None:
    """Return the function in which an operation of a fetch spends most of its time; None if none
    stands out, or too few stacks were looked at."""
    looks = [look for look in loop.places if look["operation"] == operation]
    total = sum(look["count"] for look in looks)
    functions: Counter[tuple[str, str]] = Counter()
    lines: Counter[tuple[str, str, int]] = Counter()
    calls: Counter[tuple[str, str, str]] = Counter()
    for look in looks:
        file, function, count = look["file"], look["function"], look["count"]
        functions[file, function] += count
        lines[file, function, look["line"]] += count
        calls[file, function, look["calls"]] += count
    if total < FEWEST_LOOKS:
        return None
    (file, function), count = functions.most_common(1)[0]
    if count < NOTABLE * total:
        return None
    line = max((n, at) for (path, name, at), n in lines.items() if (path, name) == (file, function))
    call = max((n, at) for (path, name, at), n in calls.items() if (path, name) == (file, function))
    return CodePlace(function, file, line[1], call[1], count / total)


def is_transform(loop: RecordedLoop) -> bool:
    """Whether what samples take beside opening, reading and decoding is a transform: as far as is
    known, for a record in which no stacks were looked at."""
    looks = [look for look in loop.places if look["operation"] == "transform"]
    total = sum(look["count"] for look in looks)
    if not loop.places_known:
        return True
    transforming = sum(look["count"] for look in looks if look["transforms"])
    return bool(total >= FEWEST_LOOKS and transforming >= MOSTLY * total)
