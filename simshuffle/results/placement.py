"""Where the labels of points stand so that none lies on another: from boxes alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, all in one unit."""
GAP = 1.0
"""Around a label, in points."""
AWAY = (0.0, 2.0, 5.0, 9.0, 14.0, 20.0, 28.0, 38.0, 50.0, 64.0)
"""How far from its point a label may stand, in points."""
FAR = 5.0
"""In points: from there on a line leads from a label to its point."""
SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
"""Right, left, above, below, and the corners; the first that are free are taken."""
ON_MARK, ON_LEADER, ON_LINE = 400.0, 120.0, 25.0
"""What it costs to lie on a mark, to cross a leading line, and to lie on any other line; a point of
distance costs 1."""
STEPS = 12
"""Pieces in which a leading line is looked at."""


@dataclass(frozen=True)
class Wanted:
    """A label to place: the box of its mark, its interval from bottom to top, width and height."""

    mark: Box
    interval: tuple[float, float]
    width: float
    height: float


@dataclass(frozen=True)
class Place:
    """Where a label stands, and whether a line must lead to it."""

    box: Box
    led: bool


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes have an area in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def placed(
    wanted: Sequence[Wanted],
    marks: Sequence[Box],
    lines: Sequence[Box],
    room: Box,
    point: float = 1.0,
) -> list[Place | None]:
    """A place for each label inside ``room``, one after the other; None where all are taken.

    Args:
        wanted: the most important ones first.
        marks: boxes of all marks, which should not be hidden.
        lines: boxes of other things that are drawn, which may be.
        room: where labels may stand.
        point: a typographic point in the unit of the boxes.
    """
    out: list[Place | None] = []
    taken: list[Box] = []
    leaders: list[Box] = []
    for label in wanted:
        best, least = None, float("inf")
        for away, box in _candidates(label, point):
            if not _inside(box, room) or any(overlap(box, other) for other in taken):
                continue
            leader = _leader(label.mark, box, point) if away >= FAR else []
            cost = away + _cost(box, label.mark, marks, lines, leaders)
            cost += ON_LEADER * _count(leader, taken) + ON_LINE * _count(leader, marks)
            if cost < least:
                best, least = (Place(box, away >= FAR), leader), cost
        out.append(best and best[0])
        if best:
            taken.append(best[0].box)
            leaders += best[1]
    return out


def _candidates(label: Wanted, point: float) -> Iterator[tuple[float, Box]]:
    """Boxes around a mark, the nearest first, each with its distance in points; above and below
    stand clear of the interval."""
    left, bottom, right, top = label.mark
    ends = min(bottom, label.interval[0]), max(top, label.interval[1])
    middle = (left + right) / 2, (bottom + top) / 2
    half = label.width / 2 + GAP * point, label.height / 2 + GAP * point
    for away in AWAY:
        for across, up in SIDES:
            x = middle[0] + across * ((right - left) / 2 + half[0] + away * point)
            y = middle[1] + up * ((top - bottom) / 2 + half[1] + away * point)
            beyond = 0.0
            if not across:
                y = (ends[1] if up > 0 else ends[0]) + up * (half[1] + away * point)
                beyond = (ends[1] - top if up > 0 else bottom - ends[0]) / point
            yield away + beyond / 4, (x - half[0], y - half[1], x + half[0], y + half[1])


def _inside(box: Box, room: Box) -> bool:
    return room[0] <= box[0] and room[1] <= box[1] and box[2] <= room[2] and box[3] <= room[3]


def _leader(mark: Box, box: Box, point: float) -> list[Box]:
    """The line from a mark to the middle of its label's box, in small boxes outside both."""
    ends = [((of[0] + of[2]) / 2, (of[1] + of[3]) / 2) for of in (mark, box)]
    shares = [step / STEPS for step in range(1, STEPS)]
    dots = [tuple(a + share * (b - a) for a, b in zip(*ends, strict=True)) for share in shares]
    size = point / 2
    boxes = [(x - size, y - size, x + size, y + size) for x, y in dots]
    return [dot for dot in boxes if not overlap(dot, mark) and not overlap(dot, box)]


def _cost(
    box: Box, own: Box, marks: Sequence[Box], lines: Sequence[Box], leaders: Sequence[Box]
) -> float:
    on_marks = sum(overlap(box, mark) for mark in marks if mark != own)
    return (
        ON_MARK * on_marks
        + ON_LINE * sum(overlap(box, line) for line in lines)
        + ON_LEADER * any(overlap(box, leader) for leader in leaders)
    )


def _count(dots: Sequence[Box], boxes: Sequence[Box]) -> int:
    return sum(any(overlap(dot, box) for dot in dots) for box in boxes)
