"""What a figure shows when it is drawn: its words and where they stand."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any
from unittest import mock

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from simshuffle.report import paper
from simshuffle.report.chart import Chart

SMALLEST = 6.0
"""Points of the smallest letters that can be read in print."""


def laid_out(figure: Figure | Chart) -> Figure:
    """A figure that is declared, or one that is drawn already, as it is drawn for paper."""
    return paper.draw(figure) if isinstance(figure, Chart) else figure


def words(figure: Figure | Chart) -> list[tuple[Text, Bbox]]:
    """All texts that are drawn, with their extents in pixels."""
    figure = laid_out(figure)
    found: dict[int, Text] = {}
    draw = Text.draw

    def drawn(self: Text, *args: Any, **kwargs: Any) -> None:
        if self.get_visible() and self.get_text().strip():
            found[id(self)] = self
        draw(self, *args, **kwargs)

    with mock.patch.object(Text, "draw", drawn):
        figure.canvas.draw()
    return [(text, text.get_window_extent()) for text in found.values()]


def legend(figure: Figure | Chart) -> list[str]:
    """The texts of its legend."""
    return [text.get_text() for text in laid_out(figure).legends[0].get_texts()]


def rows_of(chart: Chart, kind: str, panel: int = 0) -> pd.DataFrame:
    """The rows of all marks of a kind in a panel, as they are drawn."""
    marks = [
        of for of in chart.panels[panel].marks if of.kind == kind and {"x", "y"} & {*of.places()}
    ]
    return pd.concat([mark.places() for mark in marks], ignore_index=True)


def faults(figure: Figure | Chart) -> Iterator[str]:
    """What of a figure's words cannot be read: too small, cut off, or on one another. Slanted words
    have extents larger than what they cover, so they are not compared."""
    figure = laid_out(figure)
    found = words(figure)
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
