"""An empty figure of matplotlib in the style of now, its legend, and how it is kept."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, fontManager

from simshuffle.results.style import (
    SANS,
    SERIF,
    STYLE,
    least_height,
    letters,
    metadata,
    width,
)

LETTERS = 62
"""Letters of a legend's title in a line across `simshuffle.results.style.COLUMN_INCHES`."""
NO_LAYOUT: dict[Any, Any] = {"figure.autolayout": False, "figure.constrained_layout.use": False}
"""For a figure without an engine of its own."""


# matplotlib's own fonts are found by these names, and no other ones that the machine may have, so
# that a figure is the same to the last byte wherever it is drawn
for _name, _file in ((SANS, "DejaVuSans.ttf"), (SERIF, "STIXGeneral.ttf")):
    if all(entry.name != _name for entry in fontManager.ttflist):
        _path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / _file
        _look: dict[str, Any] = {"style": "normal", "variant": "normal", "stretch": "normal"}
        _font = FontEntry(fname=str(_path), name=_name, weight=400, size="scalable", **_look)
        fontManager.ttflist.append(_font)


class _Figure(Figure):
    """A figure that knows how high it would be if it could be of any height."""

    wanted: float = 0.0


def new_figure(height: float) -> Figure:
    """An empty figure, one column wide and ``height`` inches high without its legend; higher in a
    style whose figures have a least height."""
    figure = _Figure(figsize=(width(), height), layout="constrained")
    figure.wanted = height
    FigureCanvasAgg(figure)
    _stretch(figure, 0.0)
    return figure


def _stretch(figure: Figure, more: float) -> None:
    """Make a figure higher by ``more`` inches, or as high as its style wants it at least."""
    if not isinstance(figure, _Figure):
        figure.set_figheight(figure.get_figheight() + more)
        return
    figure.wanted += more
    figure.set_figheight(max(figure.wanted, least_height()))


def legend_above(
    figure: Figure,
    handles: Sequence[Any],
    title: str = "",
    place: str = "upper center",
    **look: Any,
) -> None:
    """Set the legend above the panels of a figure from `new_figure`, or at another ``place``
    outside of them, in as few rows as there is width for, and make the figure that much higher;
    none without ``handles``. ``title`` has two lines at most; ``look`` is as of matplotlib."""
    title = textwrap.fill(
        title, letters(LETTERS), max_lines=2, placeholder=" ...", break_on_hyphens=False
    )
    for rows in range(1, len(handles) + 1):
        columns = -(-len(handles) // rows)
        given: Any = {**look, "loc": f"outside {place}", "title": title or None}
        legend = figure.legend(handles=handles, ncols=columns, **given)
        extent = legend.get_window_extent()
        if extent.width <= figure.bbox.width or columns == 1:
            _stretch(figure, extent.height / figure.dpi)
            return
        legend.remove()


def save(figure: Figure, stem: Path, about: str = "") -> list[Path]:
    """Write ``stem``.png (300 dpi) and ``stem``.pdf, the same bytes for the same figure, which say
    ``about`` of themselves; returns both paths."""
    png, pdf = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf"))
    with matplotlib.rc_context({**STYLE, **NO_LAYOUT}):
        figure.savefig(png, dpi=300, metadata=metadata(".png", about))
        layout = figure.get_layout_engine()
        # all stands where it is to stand; with any engine it would be drawn once more, to no effect
        figure.set_layout_engine(None)
        figure.savefig(pdf, metadata=metadata(".pdf", about))
        figure.set_layout_engine(layout)
    return [png, pdf]


def svg(figure: Figure) -> str:
    """A figure as SVG, the same text for the same figure; letters are outlines, so that it looks
    the same wherever it is shown."""
    file = io.StringIO()
    with matplotlib.rc_context({**STYLE, **NO_LAYOUT, "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()
