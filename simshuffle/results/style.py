"""The styles of all figures, sized for the columns of papers or for slides, their legends, and how
they are kept."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, fontManager
from matplotlib.lines import Line2D

from simshuffle.version import __version__

COLUMN_INCHES = 3.4
"""Width of a figure that nobody chose a style for."""
LETTERS = 62
"""Letters of a legend's title in a line across that."""
COLOURS = {
    "I/O": "#4477AA",
    "FW+BW": "#228833",
    "IMPT": "#AA3377",
    "GE+WU": "#CCBB44",
    "EXCHANGE": "#EE6677",
}

APART: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.3}
"""Between the pieces of a bar, which colours alone do not tell apart in grey."""


def _font(name: str, file: str) -> str:
    """The name under which matplotlib's own font is found, and no other of that name that the
    machine may have.

    So a figure is the same to the last byte wherever it is drawn.
    """
    name = f"{name} of matplotlib"
    if all(entry.name != name for entry in fontManager.ttflist):
        own = FontEntry(
            fname=str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / file),
            name=name,
            style="normal",
            variant="normal",
            weight=400,
            stretch="normal",
            size="scalable",
        )
        fontManager.ttflist.append(own)
    return name


def _sizes(text: float, label: float, tick: float, legend: float) -> dict[str, Any]:
    """Of letters, in points."""
    return {
        "font.size": text,
        "axes.labelsize": label,
        "xtick.labelsize": tick,
        "ytick.labelsize": tick,
        "legend.fontsize": legend,
        "legend.title_fontsize": legend,
    }


_COMMON: dict[str, Any] = {
    "font.family": _font("DejaVu Sans", "DejaVuSans.ttf"),
    "text.parse_math": False,  # a dollar in the name of a run is a dollar
    **_sizes(7, 7.5, 7, 6.5),
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 0.9,
    "axes.formatter.useoffset": False,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "svg.hashsalt": "simshuffle",
}


@dataclass(frozen=True)
class Style:
    """How figures look."""

    widths: tuple[float, float]  # inches of a figure of one column and of two, as it is drawn
    # parameters of matplotlib beside those that all styles share
    rc: Mapping[str, Any] = field(default_factory=dict)
    enlarged: float = 1.0  # how many times larger than drawn it is kept, letters and lines with it
    aspect: float = 0.0  # of height to width, at least; a figure with more rows than that is higher


_STIX = _font("STIXGeneral", "STIXGeneral.ttf")
STYLES = {
    "ieee": Style((3.5, 7.16), {"font.family": _STIX, **_sizes(8, 8.5, 8, 7.5)}),
    "acm": Style((3.33, 7.0)),
    "slides": Style((4.5, 4.5), enlarged=10 / 4.5, aspect=9 / 16),
}
"""By the name that people choose. IEEE's papers have Times, which STIX resembles; 10 inches are the
width of a slide of 16:9."""
_PLAIN = Style((COLUMN_INCHES, 7.0))
_now: ContextVar[tuple[Style, int]] = ContextVar("style of figures", default=(_PLAIN, 1))


@contextmanager
def in_style(style: Style, columns: int = 1) -> Iterator[None]:
    """Figures that are made in here look like that; ``columns`` is 1 or 2."""
    before = _now.set((style, columns))
    try:
        yield
    finally:
        _now.reset(before)


def width() -> float:
    """Inches of a figure that is made now, as it is drawn."""
    style, columns = _now.get()
    return style.widths[columns - 1]


def letters(count: int) -> int:
    """How many letters a line has room for now that has room for ``count`` in `COLUMN_INCHES`."""
    return int(count * width() / COLUMN_INCHES + 1e-9)


def line_height() -> float:
    """How high a line of text is now, over one in the style that nobody chose."""
    return float(STYLE["font.size"] / _COMMON["font.size"])


class _Parameters(Mapping[str, Any]):
    """Those of matplotlib for the style that figures are made in now."""

    def __getitem__(self, name: str) -> Any:
        return {**_COMMON, **_now.get()[0].rc}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMON)

    def __len__(self) -> int:
        return len(_COMMON)


STYLE: Any = _Parameters()
"""What every figure is made and kept with: ``matplotlib.rc_context(STYLE)``."""
NO_LAYOUT: dict[Any, Any] = {"figure.autolayout": False, "figure.constrained_layout.use": False}
"""For a figure without an engine of its own."""


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
    figure.set_figheight(max(figure.wanted, _now.get()[0].aspect * figure.get_figwidth()))


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
    title = textwrap.fill(
        title, letters(LETTERS), max_lines=2, placeholder=" ...", break_on_hyphens=False
    )
    for rows in range(1, len(handles) + 1):
        columns = -(-len(handles) // rows)
        look: dict[str, Any] = {"title": title or None, "ncols": columns}
        legend = figure.legend(handles=handles, loc="outside upper center", **look)
        extent = legend.get_window_extent()
        if extent.width <= figure.bbox.width or columns == 1:
            _stretch(figure, extent.height / figure.dpi)
            return
        legend.remove()


def line_handle(label: str, look: Mapping[str, Any]) -> Line2D:
    """What stands for a line in a legend; ``look`` has its colour, marker and dash."""
    return Line2D([], [], label=label, markersize=3, linewidth=0.9, **look)


def signed(name: str, fingerprints: Sequence[str]) -> str:
    """What a figure's file says of itself: that simshuffle drew it, which version, the figure's
    name, and the fingerprints of the results that it shows."""
    of = f" of results {', '.join(fingerprints)}" if fingerprints else ""
    return f"{SIGNED} {__version__}, figure {name}{of}"


SIGNED = "simshuffle"
"""How `signed` begins."""


_METADATA = {".png": ("Software", "Description"), ".pdf": ("CreationDate", "Subject")}
"""What would say when or by what a file was made, and what says what it is about."""


def metadata(suffix: str, about: str) -> dict[str, Any]:
    """Of a file with that suffix, .png, .pdf or .svg, which says ``about`` of itself, and not when
    it was made."""
    made, said = _METADATA.get(suffix, ("Date", "Description"))
    return {made: None, **({said: about} if about else {})}


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
