"""The figure of a comparison, from its tables alone. Sized for one column of a two-column paper."""

from __future__ import annotations

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simshuffle.results.style import APART, STYLE, legend_above, new_figure

COLOURS = {
    "pfs": "#EE6677",
    "remote_ssd": "#CCBB44",
    "remote_memory": "#66CCEE",
    "own_ssd": "#228833",
    "own_memory": "#4477AA",
    "staging_buffer": "#BBBBBB",
}
NAMES = {
    "pfs": "file system",
    "remote_ssd": "another's SSD",
    "remote_memory": "another's memory",
    "own_ssd": "own SSD",
    "own_memory": "own memory",
    "staging_buffer": "(no fetching)",
}
ROW, MARGIN = 0.135, 0.42
"""Inches of a bar, and of a panel's axis and title."""


def policies_figure(policies: pd.DataFrame) -> Figure:
    """Time of all epochs of each policy, a panel for each case; two panels side by side if there
    are several."""
    cases = list(dict.fromkeys(policies["case"]))
    across = 1 if len(cases) == 1 else 2
    down = -(-len(cases) // across)
    bars = int(policies.groupby("case").size().max())
    with matplotlib.rc_context(STYLE):
        figure = new_figure(down * (MARGIN + ROW * bars) + 0.3)
        axes = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
        for ax, case in zip(axes, cases, strict=False):
            stacked(policies[policies["case"] == case], ax)
            ax.set_title(case, fontsize=7, pad=3)
        for ax in axes[len(cases) :]:
            ax.set_visible(False)
        figure.supxlabel("time of all epochs / time without any wait", fontsize=7.5)
        _legend(figure, policies)
        return figure


def stacked(policies: pd.DataFrame, ax: Axes) -> Axes:
    """A bar for each policy, as long as its ratio to perfect, divided like the bytes of its
    sources.

    Args:
        policies: rows of one case, columns `simshuffle.studies.policies.tables.POLICY_COLUMNS`.
        ax: where to draw.

    Returns:
        ``ax``.
    """
    rows = policies.to_dict("records")
    longest = max((row["total_ratio"] for row in rows if not row["problem"]), default=1.0) or 1.0
    for y, row in enumerate(rows):
        if row["problem"]:
            ax.text(1 + 0.03 * longest, y, "does not fit", va="center", fontsize=6, color="#666666")
            continue
        left = 0.0
        for source, colour in COLOURS.items():
            width = row["total_ratio"] * row[f"{source}_share"]
            ax.barh(y, width, 0.72, left, facecolor=colour, **APART)
            left += width
        partial = f" ({100 * row['coverage']:.0f} %)" if row["coverage"] < 1 else ""
        ax.text(left + 0.02 * longest, y, f"{left:.2f}{partial}", va="center", fontsize=6)
    ax.axvline(1.0, color="black", linewidth=0.6, linestyle=(0, (2, 1.5)))
    ax.set_xlim(0, longest * 1.36)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(range(len(rows)), [row["policy"].replace("_", " ") for row in rows], fontsize=6)
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", labelsize=6)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _legend(figure: Figure, policies: pd.DataFrame) -> None:
    used = [source for source in COLOURS if (policies[f"{source}_share"] > 0).any()]
    handles: list[Patch | Line2D] = [
        Patch(facecolor=COLOURS[source], label=NAMES[source]) for source in used
    ]
    handles.append(
        Line2D([], [], color="black", linewidth=0.6, linestyle=(0, (2, 1.5)), label="no wait")
    )
    if (policies["coverage"] < 1).any():
        handles.append(Line2D([], [], linestyle="none", label="(%): share of set read"))
    legend_above(figure, handles)
