"""The names of runs below the bars of a breakdown."""

from itertools import pairwise

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from simshuffle.results.style import breakdown_figure


def labels_of(*runs):
    """Texts below the bars of a drawn figure, and their extents."""
    table = pd.DataFrame({"run": runs, "epoch": 2, "label": "FW+BW", "seconds": 1.0})
    waiting = pd.DataFrame(columns=["run", "epoch", "label", "cause", "seconds"])
    epochs = pd.DataFrame(
        {"run": runs, "epoch": 2, "exchange_total_s": 0.0, "exchange_exposed_s": 0.0}
    )
    with mpl.rc_context():
        figure = breakdown_figure(table, waiting, epochs)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        texts = figure.axes[0].get_xticklabels()
        return [text.get_text() for text in texts], [
            text.get_window_extent(canvas.get_renderer()) for text in texts
        ]


def test_strategy_and_world_size_have_a_line_each():
    assert labels_of("partial-0.1 @2048", "local @2048")[0] == [
        "partial-0.1\n@2048",
        "local\n@2048",
    ]


@pytest.mark.parametrize("key", ["partner_scope", "samples_per_message", "loader.workers"])
def test_swept_values_do_not_run_into_each_other(key):
    texts, extents = labels_of(
        *(f"ILag-Pair-0.9 @1024 {key}={value}" for value in ("all", "rack", "iteration", "host"))
    )
    assert texts[1].startswith("ILag-Pair-0.9\n@1024\n")
    assert texts[1].endswith("rack")
    assert all(left.x1 < right.x0 for left, right in pairwise(extents))
