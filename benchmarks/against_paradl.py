"""Writes the predictions of divided training beside those of ParaDL into
docs/reference/validation-parallelism.md, and draws
docs/figures/oracle-abci.png: python benchmarks/against_paradl.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from paradl import (
    PARTS,
    Published,
    accuracy,
    markdown_means,
    markdown_points,
    points,
    published,
)
from validation_tables import put

from simshuffle import validate
from simshuffle.extensions.calibration.validation.answers import iteration_parts
from simshuffle.extensions.calibration.validation.table import (
    ValidationRow,
    parse_assignments,
    read_rows,
)
from simshuffle.report.canvas import legend_above, new_figure, save
from simshuffle.report.style import STYLE
from simshuffle.spec.library import shipped_folder

ROOT = Path(__file__).parent.parent
APART = {"edgecolor": "white", "linewidth": 0.3}
SETS = ["parallelism", "parallelism_data", "parallelism_log"]
PAGE = ROOT / "docs" / "reference" / "validation-parallelism.md"
FIGURE = ROOT / "docs" / "figures" / "oracle-abci"
PANELS = {
    "resnet50": "ResNet-50",
    "vgg16": "VGG-16",
    "cosmoflow_256": "CosmoFlow 256³",
    "cosmoflow_512": "CosmoFlow 512³",
}
SMALLEST = 16
"""GPUs from which on data parallelism is shown."""
COLOURS = {"compute": "#228833", "communication": "#CCBB44", "input": "#4477AA"}
MEASURED = "#CCCCCC"
WIDTH, GAP = 0.4, 0.9


@dataclass(frozen=True)
class Column:
    """A point of the figure, in s of an iteration.

    Attributes:
        strategy, gpus: what it is of.
        parts: s by the keys of `COLOURS`.
        measured: s.
        fitted: whether a parameter was fitted on it.
    """

    strategy: str
    gpus: int
    parts: dict[str, float]
    measured: float
    fitted: bool


def columns(model: str) -> list[Column]:
    """The columns of a model, those of a strategy together."""
    rows = {
        (row.case, row.quantity): row for row in read_rows(shipped_folder("validation"))
    }
    found = [
        _column(line, rows[line.case, line.quantity])
        for line in published()
        if line.model == model
        and line.part in PARTS
        and line.measured
        and (line.strategy != "data" or line.gpus >= SMALLEST)
    ]
    return sorted(found, key=lambda each: each.strategy != "data")


def _column(line: Published, row: ValidationRow) -> Column:
    parts = iteration_parts(row.scenario, parse_assignments(row.values))
    whole = parts.quantity("iteration")
    with_input = (
        parts.quantity("iteration with input") if line.quantity == "epoch" else whole
    )
    iterations = 1.0 if line.part == "iteration" else parts.iterations
    assert line.measured is not None
    return Column(
        line.strategy,
        line.gpus,
        {
            "compute": parts.compute,
            "communication": parts.communication,
            "input": with_input - whole,
        },
        line.measured / iterations,
        row.use == "fit",
    )


def figure() -> Figure:
    """Iterations predicted and measured, a panel for each model."""
    with matplotlib.rc_context(STYLE):
        out = new_figure(4.7)
        grid = out.add_gridspec(3, 2, height_ratios=(1.2, 1, 0.9))
        places = (grid[0, :], grid[1, :], grid[2, 0], grid[2, 1])
        for (model, title), place in zip(PANELS.items(), places, strict=True):
            panel(columns(model), title, out.add_subplot(place))
        handles = [
            Patch(facecolor=colour, label=name) for name, colour in COLOURS.items()
        ]
        legend_above(out, [*handles, Patch(facecolor=MEASURED, label="measured")])
        return out


def panel(shown: Sequence[Column], title: str, ax: Axes) -> Axes:
    """Columns of what is predicted, what was measured beside each, our accuracy above both."""
    strategies = [each.strategy for each in shown]
    changes = [0, *(a != b for a, b in pairwise(strategies))]
    middles = np.arange(len(shown)) + GAP * np.cumsum(changes)
    highest = 0.0
    for middle, each in zip(middles, shown, strict=True):
        foot = 0.0
        for name, colour in COLOURS.items():
            ax.bar(
                middle - WIDTH / 2,
                each.parts[name],
                WIDTH,
                bottom=foot,
                facecolor=colour,
                **APART,
            )
            foot += each.parts[name]
        ax.bar(middle + WIDTH / 2, each.measured, WIDTH, facecolor=MEASURED, **APART)
        share = f"{100 * accuracy(foot, each.measured):.0f} %"
        top = max(foot, each.measured)
        highest = max(highest, top)
        ax.annotate(
            f"({share})" if each.fitted else share,
            (middle, top),
            (0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            rotation=90,
            fontsize=6,
        )
    ax.set_xticks(middles, [str(each.gpus) for each in shown], fontsize=6, rotation=90)
    ax.tick_params(axis="x", length=0, pad=2)
    for strategy in dict.fromkeys(strategies):
        own = [
            m for m, each in zip(middles, strategies, strict=True) if each == strategy
        ]
        ax.annotate(
            strategy,
            ((own[0] + own[-1]) / 2, 0),
            (0, -18),
            xycoords=ax.get_xaxis_transform(),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=6.5,
        )
    beside = 0.8 if len(shown) > 2 else 2.0
    ax.set_xlim(middles[0] - beside, middles[-1] + beside)
    ax.set_ylim(0, (1.4 if len(shown) > 2 else 1.55) * highest)
    ax.set_ylabel("s an iteration")
    ax.set_title(title, fontsize=7.5, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def main() -> None:
    compared = points(validate(only=SETS, processes=1).tables["validation"])
    put(PAGE, "against means", markdown_means(compared))
    put(PAGE, "against points", markdown_points(compared))
    save(figure(), FIGURE)
    FIGURE.with_suffix(".pdf").unlink()


if __name__ == "__main__":
    main()
