"""The styles of figures, for columns of papers or for slides, and the metadata of
figures' files.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from simshuffle.version import __version__

COLUMN_INCHES = 3.4  # width of a figure that nobody chose a style for
# colour of each label of a breakdown
COLOURS = {
    "I/O": "#4477AA",
    "FW+BW": "#228833",
    "IMPT": "#AA3377",
    "GE+WU": "#CCBB44",
    "EXCHANGE": "#EE6677",
    "CHECKPOINT": "#66CCEE",
    "LOST": "#BBBBBB",
}
BRIGHT = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB")
"""P. Tol's bright scheme, which colour-blind people can tell apart."""
SMALL = 6.0  # points of the smallest letters
SANS, SERIF = "DejaVu Sans of matplotlib", "STIXGeneral of matplotlib"


def _sizes(text: float, label: float, tick: float, legend: float) -> dict[str, Any]:
    """Return matplotlib's sizes of letters (points): text, axis labels, ticks, legend."""
    return {
        "font.size": text,
        "axes.labelsize": label,
        "xtick.labelsize": tick,
        "ytick.labelsize": tick,
        "legend.fontsize": legend,
        "legend.title_fontsize": legend,
    }


_COMMON: dict[str, Any] = {
    "font.family": SANS,
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
class FigureStyle:
    """The widths, letters and proportions of figures."""

    # inches of a figure of one column and of two, as it is drawn
    widths: tuple[float, float]
    # parameters of matplotlib beside those that all styles share
    rc: Mapping[str, Any] = field(default_factory=dict)
    # distance of lines of text, as matplotlib multiplies the font's own line height; STIX declares
    # lines 1.26 times as high as DejaVu Sans
    line_spacing: float = 1.2
    enlarged: float = (
        1.0  # how many times larger than drawn it is kept, letters and lines with it
    )
    aspect: float = (
        0.0  # of height to width, at least; a figure with more rows than that is higher
    )


STYLES = {
    "ieee": FigureStyle(
        (3.5, 7.16), {"font.family": SERIF, **_sizes(8, 8.5, 8, 7.5)}, line_spacing=1.0
    ),
    "acm": FigureStyle((3.33, 7.0)),
    "slides": FigureStyle((4.5, 4.5), enlarged=10 / 4.5, aspect=9 / 16),
}
"""By the name that people choose. IEEE's papers have Times, which STIX resembles; 10
inches are the width of a slide of 16:9.
"""
_PLAIN = FigureStyle((COLUMN_INCHES, 7.0))
_current_style: ContextVar[tuple[FigureStyle, int]] = ContextVar(
    "style of figures", default=(_PLAIN, 1)
)


@contextmanager
def in_style(style: FigureStyle, columns: int = 1) -> Iterator[None]:
    """Make figures look like ``style`` within this context; ``columns`` is 1 or 2."""
    token = _current_style.set((style, columns))
    try:
        yield
    finally:
        _current_style.reset(token)


def width() -> float:
    """Return the width (inches) of a figure in the current style, as it is drawn."""
    style, columns = _current_style.get()
    return style.widths[columns - 1]


def min_height() -> float:
    """Return the least height (inches) of a figure in the current style."""
    return _current_style.get()[0].aspect * width()


def letters_in_line(count: int) -> int:
    """Return how many letters a line of the current style has room for, if a line of
    `COLUMN_INCHES` has room for ``count``; rounded down.
    """
    return int(count * width() / COLUMN_INCHES + 1e-9)


def spacing_of_lines() -> float:
    """Return the multiple of the font's own line height at which lines of a text stand
    now.
    """
    return _current_style.get()[0].line_spacing


def line_height() -> float:
    """Return the height of a line of text in the current style, over that of the plain
    style.
    """
    return float(STYLE["font.size"] / _COMMON["font.size"])


class _Parameters(Mapping[str, Any]):
    """Matplotlib's parameters of the style that is current when they are read."""

    def __getitem__(self, name: str) -> Any:
        return {**_COMMON, **_current_style.get()[0].rc}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMON)

    def __len__(self) -> int:
        return len(_COMMON)


STYLE: Any = _Parameters()
"""What every figure is made and kept with now: ``matplotlib.rc_context(STYLE)``."""


def sign_figure(name: str, fingerprints: Sequence[str]) -> str:
    """Return the signature of a figure's file: that simshuffle drew it, the version,
    the figure's name, and the fingerprints of the results that it shows, if any.
    """
    results = f" of results {', '.join(fingerprints)}" if fingerprints else ""
    return f"{SIGNATURE_START} {__version__}, figure {name}{results}"


SIGNATURE_START = "simshuffle"  # how `sign_figure` begins


_METADATA = {".png": ("Software", "Description"), ".pdf": ("CreationDate", "Subject")}
"""What would say when or by what a file was made, and what says what it is about."""


def metadata(suffix: str, description: str) -> dict[str, Any]:
    """Return the metadata of a .png, .pdf or .svg file: a ``description``, and no date.

    None makes matplotlib leave an entry out: a date, or in a .png its own name. ''
    adds no description.
    """
    date_key, subject_key = _METADATA.get(suffix, ("Date", "Description"))
    return {date_key: None, **({subject_key: description} if description else {})}


_with_property_tables: ContextVar[bool] = ContextVar(
    "with_property_tables", default=True
)
"""Whether the docstrings of matplotlib's artists list the properties of the artists."""


def leave_out_property_tables() -> None:
    """Have `load_artists` import matplotlib without the tables of properties in its
    docstrings, in a process that shows no docstrings.
    """
    _with_property_tables.set(False)


def load_artists() -> None:
    """Import matplotlib's artists, which are needed next.

    matplotlib makes the tables of properties when it is imported, in a quarter of the
    time of the import. They are left out only after `leave_out_property_tables`, and
    not where matplotlib is imported already.
    """
    if _with_property_tables.get() or "matplotlib.artist" in sys.modules:
        return
    artist: Any = importlib.import_module("matplotlib.artist")
    make_table = artist.kwdoc
    artist.kwdoc = lambda _: ""
    try:
        importlib.import_module("matplotlib.figure")
    finally:
        artist.kwdoc = make_table
