"""The style of all figures, sized for one column of a two-column paper, their legends, and how they
are kept."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, fontManager
from matplotlib.lines import Line2D

COLUMN_INCHES = 3.4
"""Width of one column of a two-column paper."""
PAGE_INCHES = 7.0
"""Width of both."""
LETTERS = 62
"""Letters in a line across a column."""
COLOURS = {
    "I/O": "#4477AA",
    "FW+BW": "#228833",
    "IMPT": "#AA3377",
    "GE+WU": "#CCBB44",
    "EXCHANGE": "#EE6677",
}

APART: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.3}
"""Between the pieces of a bar, which colours alone do not tell apart in grey."""


def _font() -> str:
    """The name under which matplotlib's own DejaVu Sans is found, and no other of that name that
    the machine may have.

    So a figure is the same to the last byte wherever it is drawn.
    """
    name = "DejaVu Sans of matplotlib"
    if all(entry.name != name for entry in fontManager.ttflist):
        file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
        own = FontEntry(
            fname=str(file),
            name=name,
            style="normal",
            variant="normal",
            weight=400,
            stretch="normal",
            size="scalable",
        )
        fontManager.ttflist.append(own)
    return name


STYLE: dict[Any, Any] = {
    "font.family": _font(),
    "mathtext.fontset": "custom",
    "mathtext.rm": _font(),
    "font.size": 7,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.5,
    "legend.title_fontsize": 6.5,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 0.9,
    "axes.formatter.useoffset": False,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "svg.hashsalt": "simshuffle",
}
NO_LAYOUT: dict[Any, Any] = {"figure.autolayout": False, "figure.constrained_layout.use": False}
"""For a figure without an engine of its own."""


def new_figure(height: float) -> Figure:
    """An empty figure, one column wide and ``height`` inches high without its legend."""
    figure = Figure(figsize=(COLUMN_INCHES, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def legend_above(figure: Figure, handles: Sequence[Any] | None = None, title: str = "") -> None:
    """Set the legend of a figure above its panels, in as few rows as there is width for, and make
    the figure that much higher.

    Args:
        figure: from `new_figure`, with its panels; nothing is set if there is nothing to name.
        handles: what the legend names; None for all that has a label in the panels.
        title: what stands over it, in two lines at most.
    """
    if handles is None:
        handles = [each for ax in figure.axes for each in ax.get_legend_handles_labels()[0]]
    title = textwrap.fill(title, LETTERS, max_lines=2, placeholder=" ...", break_on_hyphens=False)
    for rows in range(1, len(handles) + 1):
        columns = -(-len(handles) // rows)
        look: dict[str, Any] = {"title": title or None, "ncols": columns}
        legend = figure.legend(handles=handles, loc="outside upper center", **look)
        extent = legend.get_window_extent()
        if extent.width <= figure.bbox.width or columns == 1:
            figure.set_figheight(figure.get_figheight() + extent.height / figure.dpi)
            return
        legend.remove()


def line_handle(label: str, look: Mapping[str, Any]) -> Line2D:
    """What stands for a line in a legend; ``look`` has its colour, marker and dash."""
    return Line2D([], [], label=label, markersize=3, linewidth=0.9, **look)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem``.png (300 dpi) and ``stem``.pdf, the same bytes for the same figure; returns
    both paths."""
    png, pdf = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf"))
    with matplotlib.rc_context({**STYLE, **NO_LAYOUT}):
        figure.savefig(png, dpi=300, metadata={"Software": None})
        layout = figure.get_layout_engine()
        # all stands where it is to stand; with any engine it would be drawn once more, to no effect
        figure.set_layout_engine(None)
        figure.savefig(pdf, metadata={"CreationDate": None})
        figure.set_layout_engine(layout)
    return [png, pdf]


def svg(figure: Figure) -> str:
    """A figure as SVG, the same text for the same figure; letters are outlines, so that it looks
    the same wherever it is shown."""
    file = io.StringIO()
    with matplotlib.rc_context({**STYLE, **NO_LAYOUT, "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()
