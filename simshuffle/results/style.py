"""The style of all figures, sized for one column of a two-column paper, and how they are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, fontManager

COLUMN_INCHES = 3.4
"""Width of one column of a two-column paper."""
PAGE_INCHES = 7.0
"""Width of both."""
COLOURS = {
    "I/O": "#4477AA",
    "FW+BW": "#228833",
    "IMPT": "#AA3377",
    "GE+WU": "#CCBB44",
    "EXCHANGE": "#EE6677",
}


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
    "legend.fontsize": 7,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
    "svg.hashsalt": "simshuffle",
}


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``stem``.png (300 dpi) and ``stem``.pdf, the same bytes for the same figure; returns
    both paths."""
    png, pdf = (stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf"))
    with matplotlib.rc_context(STYLE):
        figure.savefig(png, dpi=300, metadata={"Software": None})
        figure.savefig(pdf, metadata={"CreationDate": None})
    return [png, pdf]
