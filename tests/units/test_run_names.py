"""The names of runs beside the bars of a breakdown, and what the figure says of them."""

from itertools import pairwise

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from rich.table import Table

from simshuffle.report.names import name_subset, with_short_names, without_schedule
from simshuffle.report.style import STYLES, in_style
from simshuffle.studies.simulation.figures import breakdown_chart
from tests.drawn import laid_out, legend, rows_of


def tables(*runs, sizes=None, waiting=0.0, hidden=0.0, seconds=1.0):
    """The breakdown of runs of one epoch, and their epochs."""
    work = pd.DataFrame(
        {"run": runs, "epoch": 2, "label": "FW+BW", "cause": "", "seconds": seconds}
    )
    idle = work.assign(label="GE+WU", cause="I/O", seconds=waiting)
    table = pd.concat([work, idle[idle["seconds"] > 0]], ignore_index=True)
    epochs = pd.DataFrame({"run": runs, "epoch": 2, "world_size": sizes or 8})
    nothing = dict.fromkeys(("exchange_exposed_s", "allreduce_hidden_s"), 0.0)
    return table, epochs.assign(exchange_total_s=hidden, **nothing)


def names_of(*runs, **values):
    """Texts beside the bars of a drawn figure, and their extents."""
    with mpl.rc_context():
        figure = laid_out(breakdown_chart(*tables(*runs, **values)))
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        texts = [text for ax in figure.axes for text in ax.get_yticklabels()]
        return [text.get_text() for text in texts], [
            text.get_window_extent(canvas.get_renderer()) for text in texts
        ]


def test_the_world_size_of_all_runs_stands_below_the_axis():
    assert names_of("partial-0.1 @2048", "local @2048")[0] == ["partial-0.1", "local"]
    chart = breakdown_chart(*tables("partial-0.1 @2048", sizes=2048))
    assert laid_out(chart).axes[-1].get_xlabel() == "time per epoch (s), 2048 GPUs"


def test_runs_of_several_world_sizes_stand_in_groups():
    names, _ = names_of("local @8", "IS-0.1 @8", "local @16", sizes=[8, 8, 16])
    assert names == ["8 GPUs", "local", "IS-0.1", "16 GPUs", "local"]


@pytest.mark.parametrize("key", ["partner_scope", "samples_per_message", "loader.workers"])
def test_swept_values_do_not_run_into_each_other(key):
    texts, extents = names_of(
        *(f"ILag-Pair-0.9 @1024 {key}={value}" for value in ("all", "rack", "iteration", "host"))
    )
    assert texts[1].startswith("ILag-Pair-0.9\n")
    assert texts[1].endswith("rack")
    assert all(upper.y0 > lower.y1 for upper, lower in pairwise(extents))


def test_twelve_runs_fit_one_column():
    chart = breakdown_chart(*tables(*(f"partial-0.{i} @8" for i in range(12))))
    assert laid_out(chart).get_size_inches()[0] == pytest.approx(3.4)


@pytest.mark.parametrize("count", [21, 60])
def test_many_bars_fit_a_page_and_their_names_do_not_touch(count):
    runs = [f"partial-0.{i} @8 loader.workers={i} partner_scope=host" for i in range(count)]
    assert laid_out(breakdown_chart(*tables(*runs, waiting=0.1))).get_figheight() <= 9.0
    _, extents = names_of(*runs)
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(extents))


def test_a_run_that_is_much_longer_has_a_panel_of_its_own():
    chart = breakdown_chart(*tables("global", "local", "IS", seconds=[30.0, 2.0, 3.0]))
    assert [len(panel.y.ticks) for panel in chart.panels] == [1, 2]
    assert [len(ax.get_yticklabels()) for ax in laid_out(chart).axes] == [1, 2]


@pytest.mark.parametrize(
    ("seconds", "times"), [([30.0, 2.0, 3.0], 10), ([30.3, 2.97, 2.0], 10), ([40.0, 13.0, 9.0], 3)]
)
def test_scales_of_panels_are_a_round_number_of_times_as_wide_and_say_so(seconds, times):
    """30 s and 3 s look alike on axes of their own: the axis of the short ones is the shaded part
    of the other."""
    chart = breakdown_chart(*tables("global", "local", "IS", seconds=seconds))
    long, short = chart.panels
    assert (long.title, short.title) == (
        "",
        f"the shaded part of the axis above, {times} times as wide",
    )
    assert long.x.high == pytest.approx(times * short.x.high)
    assert short.x.high > max(seconds[1:])
    assert long.marks[0].data.to_dict("records") == [{"x": 0.0, "x2": short.x.high}]
    above, below = laid_out(chart).axes
    assert above.get_xlim()[1] == pytest.approx(times * below.get_xlim()[1])
    assert above.patches[0].get_width() == pytest.approx(below.get_xlim()[1])


def fills(chart):
    """As declared, and as drawn."""
    declared = [chart.looks[name].fill for name in rows_of(chart, "bar")["look"]]
    return declared, [patch.get_hatch() for patch in laid_out(chart).axes[0].patches]


def test_waiting_is_hatched_unless_it_is_booked_as_in_the_papers():
    made = tables("local @8", waiting=0.5)
    # for I/O, then FW+BW
    assert fills(breakdown_chart(*made)) == (["waiting", "plain"], ["/////", None])
    assert legend(breakdown_chart(*made))[:2] == ["I/O", "FW+BW"]
    assert fills(breakdown_chart(*made, booking="paper")) == (["plain"] * 2, [None] * 2)


def test_hidden_exchange_has_a_bar_of_its_own_and_a_name():
    figure = laid_out(breakdown_chart(*tables("IS-0.1 @8", hidden=0.2)))
    widths = [patch.get_width() for patch in figure.axes[0].patches]
    assert widths == [pytest.approx(1.0), pytest.approx(0.2)]
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "exchange hidden\nbehind other work" in texts


def test_a_schedule_stands_beside_a_bar_only_where_schedules_differ():
    same = ["local @8", "partial-0.1 streamlined @8", "partial-0.3 streamlined @8"]
    assert names_of(*same)[0] == ["local", "partial-0.1", "partial-0.3"]
    texts, _ = names_of("partial-0.1 streamlined @8", "partial-0.1 authors @8")
    assert texts == ["partial-0.1\nstreamlined", "partial-0.1 authors"]


@pytest.mark.parametrize("style", ["ieee", "acm", "slides"])
def test_names_of_21_bars_do_not_run_into_each_other_in_any_style(style):
    """Seven strategies at three scales, two of them with names of two lines."""
    strategies = ["global-pfs", "global-ssd", "local", "partial-0.1 authors"]
    strategies += ["partial-0.1 streamlined", "IS-Pair-0.1 streamlined", "ILag-Pair-0.1 authors"]
    sizes = [size for size in (32, 80, 160) for _ in strategies]
    runs = [f"{name} @{size}" for size in (32, 80, 160) for name in strategies]
    with in_style(STYLES[style]):
        texts, extents = names_of(*runs, sizes=sizes)
    assert len(texts) == 24
    assert any("\n" in text for text in texts)
    assert all(upper.y0 > lower.y1 for upper, lower in pairwise(extents))


def test_bars_of_several_epochs_of_a_run_say_which():
    """As on a page, which draws cold and warm epochs."""
    made, epochs = tables("local @8", "partial-0.1 streamlined @8")
    cold = (made.assign(epoch=1, seconds=2.0), epochs.assign(epoch=1))
    both = [pd.concat(pair, ignore_index=True) for pair in zip(cold, (made, epochs), strict=True)]
    bars = [(run, epoch) for run in epochs["run"] for epoch in (1, 2)]
    chart = breakdown_chart(*both, bars=bars)
    assert list(chart.panels[0].y.ticks.values()) == [
        "local @8, epoch 1 cold",
        "local @8, epoch 2",
        "partial-0.1 @8, epoch 1 cold",
        "partial-0.1 @8, epoch 2",
    ]


def test_a_panel_of_one_number_of_ranks_names_it_where_others_have_more():
    chart = breakdown_chart(
        *tables("local @8", "IS @8", "local @64", sizes=[8, 8, 64], seconds=[30.0, 31.0, 3.0])
    )
    names = [list(panel.y.ticks.values()) for panel in chart.panels]
    assert names == [["8 GPUs", "local", "IS"], ["64 GPUs", "local"]]


RUNS = ["local @8", "partial-0.1 new @8", "local @64", "partial-0.1 new @64"]


def test_a_schedule_that_all_exchanges_have_is_left_out():
    assert without_schedule(RUNS) == ["local @8", "partial-0.1 @8", "local @64", "partial-0.1 @64"]
    both = ["partial-0.1 new @8", "partial-0.1 old @8"]
    assert without_schedule(both) == both
    assert without_schedule(["local x=3 @8", "local @8"]) == ["local x=3 @8", "local @8"]
    table = Table("run")
    table.add_row(RUNS[1])
    text, shown = with_short_names([f"of {RUNS[1]}", table], {RUNS[1]: "partial-0.1 @8"})
    assert [text, *shown.columns[0].cells] == ["of partial-0.1 @8", "partial-0.1 @8"]
    assert list(with_short_names([table], {})) == [table]


def test_runs_on_as_many_ranks_are_not_listed():
    assert name_subset(RUNS, RUNS) == ""
    assert name_subset(RUNS[:2], RUNS) == "on 8 ranks"
    assert name_subset(RUNS[1:3], RUNS) == "partial-0.1 new @8, local @64"
