"""What a figure shows when it is drawn: its words and where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any
from unittest import mock

from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

SMALLEST = 6.0
"""Points of the smallest letters that can be read in print."""


def words(figure: Figure) -> list[tuple[Text, Bbox]]:
    """All texts that are drawn, with their extents in pixels."""
    found: dict[int, Text] = {}
    draw = Text.draw

    def drawn(self: Text, *args: Any, **kwargs: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            found[id(self)] = self
        draw(self, *args, **kwargs)

    with mock.patch.object(Text, "draw", drawn):
        figure.canvas.draw()
    return [(text, text.get_window_extent()) for text in found.values()]


def faults(figure: Figure, drawn: list[tuple[Text, Bbox]] | None = None) -> Iterator[str]:
    """What of a figure's words cannot be read: too small, cut off, or on one another. Slanted words
    have extents larger than what they cover, so they are not compared. Its `words` are ``drawn``
    unless they are given."""
    found = words(figure) if drawn is None else drawn
    edge = figure.bbox.padded(1)
    for text, box in found:
        if "$" in text.get_text():
            yield f"{text.get_text()!r} is written in TeX"
        if text.get_fontsize() < SMALLEST:
            yield f"{text.get_text()!r} has {text.get_fontsize()} points"
        if not (edge.contains(box.x0, box.y0) and edge.contains(box.x1, box.y1)):
            yield f"{text.get_text()!r} is cut: {box} in {figure.bbox}"
    straight = [(text, box.padded(-1)) for text, box in found if not text.get_rotation() % 90]
    for (text, box), (other, on) in combinations(straight, 2):
        if box.overlaps(on):
            yield f"{text.get_text()!r} is on {other.get_text()!r}"
