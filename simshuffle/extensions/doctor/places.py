"""Find where in the code the time of fetches goes, from the stacks that the recorder
looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeVar

from simshuffle.extensions.doctor.loop import FETCH_PARTS, RecordedLoop
from simshuffle.spec.arrays import Flags

MIN_SIGHTINGS = 10
"""Stacks seen of an operation from which a place is named (chosen)."""
NOTABLE = 0.25
"""Share of the stacks from which on a function is named (chosen)."""
MOSTLY = 0.5
"""Share of the stacks in which a transform is at work, from which on the operation is
one.
"""


Key = TypeVar("Key", int, str)


def name_place(file: str, function: str, line: int) -> str:
    """Return function, name of the file without its folder, and line: "f (a.py:3)"."""
    return f"{function} ({PurePath(file).name}:{line})"


@dataclass(frozen=True)
class CodePlace:
    """A function in which an operation spends its time."""

    function: str  # its name
    file: str  # path of its file
    line: int  # the line seen most often
    calls: str  # the function of a library seen most often below it; '' for none
    share: float  # of the stacks seen of the operation, in which this function is

    @property
    def where(self) -> str:
        """Function, file and line, as `name_place` writes them."""
        return name_place(self.file, self.function, self.line)

    @property
    def where_and_calls(self) -> str:
        """The place as of `where`, and the function of a library that it calls."""
        library_call = f", which calls {self.calls}" if self.calls else ""
        return f"{self.where}{library_call}"


def select_sightings(loop: RecordedLoop, operation: str) -> list[Mapping[str, Any]]:
    """Return the stacks seen of an operation, and of fetches without timed parts if the
    operation takes `MOSTLY` of the fetches.
    """
    operations = {operation}
    if operation in loop.recorded_operations:
        operation_s = loop.sum_of(operation).sum()
        if operation_s >= MOSTLY * loop.sum_of("fetch").sum() > 0:
            operations.add("fetch")
    return [
        sighting
        for sighting in loop.code_places or ()
        if sighting["operation"] in operations
    ]


def describe_main_place(loop: RecordedLoop, operation: str) -> str:
    """Return the sentence on where an operation spends its time, to stand behind one on
    the operation; '' if no place stands out.
    """
    place = main_place(loop, operation)
    if place is None:
        return ""
    return f" {100 * place.share:.0f} % of that is in {place.where_and_calls}."


def describe_line(what: str, place: Sequence[Any] | None) -> str:
    """Return the sentence on the line that sets something, to stand behind another:
    " The loader is made in main (a.py:3)."; '' if the line is not known.

    Args:
        what: the sentence up to the line: "The loader is made".
        place: file, function and line; None if not known.
    """
    return "" if place is None else f" {what} in {name_place(*place)}."


def describe_loader_line(loop: RecordedLoop) -> str:
    """Return the sentence on the line that makes the loader, as `describe_line` does."""
    return describe_line("The loader is made", loop.settings.get("made_at"))


def describe_main_part(loop: RecordedLoop, is_slow: Flags) -> str:
    """Return the sentence on where the part is that makes some fetches slow, to stand
    behind another sentence; '' if no place stands out.

    The part is the one that takes the most more in slow fetches than in others.

    Args:
        loop: of the fetches.
        is_slow: (B, M) whether a fetch is slow.
    """

    def excess_s(part: str) -> float:
        """Return the mean s that a part takes more in slow fetches than in others."""
        seconds = loop.sum_of(part)
        slow_s, other_s = seconds[is_slow], seconds[~is_slow]
        return float(slow_s.mean() - (other_s.mean() if other_s.size else 0.0))

    place = main_place(loop, max((*FETCH_PARTS, "collate"), key=excess_s))
    return f" What takes longer is mostly in {place.where_and_calls}." if place else ""


def is_of_torch(place: CodePlace) -> bool:
    """Return whether a place is in PyTorch itself."""
    return "torch" in PurePath(place.file).parts


def main_place(loop: RecordedLoop, operation: str) -> CodePlace | None:
    """Return the function in which an operation of a fetch spends most of its time.

    None if the function has less than `NOTABLE` of the operation's stacks, if these are
    fewer than `MIN_SIGHTINGS`, or if the recorder looked at no stacks.
    """
    sightings = select_sightings(loop, operation)
    total = sum(sighting["count"] for sighting in sightings)
    functions: Counter[tuple[str, str]] = Counter()
    for sighting in sightings:
        functions[sighting["file"], sighting["function"]] += sighting["count"]
    if total < MIN_SIGHTINGS:
        return None
    (file, function), count = functions.most_common(1)[0]
    if count < NOTABLE * total:
        return None

    lines: Counter[int] = Counter()
    calls: Counter[str] = Counter()
    for sighting in sightings:
        if (sighting["file"], sighting["function"]) == (file, function):
            lines[sighting["line"]] += sighting["count"]
            calls[sighting["calls"]] += sighting["count"]
    return CodePlace(
        function=function,
        file=file,
        line=_most_frequent(lines),
        calls=_most_frequent(calls),
        share=count / total,
    )


def _most_frequent(counts: Counter[Key]) -> Key:
    """Return the key that was counted most often; of several the greatest."""
    return max((count, key) for key, count in counts.items())[1]


def is_transform(loop: RecordedLoop) -> bool:
    """Return whether what samples take beside opening, reading and decoding is a
    transform.

    True for a record in which the recorder looked at no stacks; else if the operation
    was seen in `MIN_SIGHTINGS` stacks or more, and a transform is at work in at least
    `MOSTLY` of them.
    """
    if loop.code_places is None:
        return True
    sightings = select_sightings(loop, "transform")
    total = sum(sighting["count"] for sighting in sightings)
    transforming = sum(
        sighting["count"] for sighting in sightings if sighting["transforms"]
    )
    return bool(total >= MIN_SIGHTINGS and transforming >= MOSTLY * total)
