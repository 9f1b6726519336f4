"""Legends above figures, and labels that do not lie on each other: by what is drawn."""

from itertools import combinations
from pathlib import Path
from typing import get_args

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from simshuffle.extensions.calibration.calibrate.figures import residuals_chart
from simshuffle.extensions.learning.time_to_accuracy.figures import figures, frontier_chart
from simshuffle.extensions.learning.time_to_accuracy.tables import JoinTables
from simshuffle.report.canvas import Label, overlap, place_labels, save
from simshuffle.report.chart import SHAPES, Axis, Chart, Look, Mark, Marker, Panel, key
from simshuffle.report.paper import draw
from simshuffle.report.style import COLUMN_INCHES, STYLE, STYLES, in_style
from simshuffle.studies.mechanisms.figures import hiding_chart
from simshuffle.studies.presentation.page_vega import panel_specs
from simshuffle.studies.simulation.sweep_figures import sweep_chart
from tests.drawn import faults, laid_out, legend, rows_of, words


def with_legend(labels, title=""):
    looks = {label: Look(label, "#000000") for label in labels}
    return laid_out(Chart([Panel([key(label) for label in labels])], 1.5, looks, legend=title))


@pytest.mark.parametrize(
    ("label", "count", "rows"),
    [("xor", 1, 1), ("xor", 5, 1), ("partial-0.3 streamlined", 5, 3), ("a long name " * 4, 3, 3)],
)
def test_a_legend_has_as_few_rows_as_there_is_width_for_and_takes_no_room_from_the_panels(
    label, count, rows
):
    figure, one = with_legend([f"{label} {number}" for number in range(count)]), with_legend(["a"])
    assert list(faults(figure)) == []
    assert list(faults(one)) == []
    assert figure.get_figwidth() == COLUMN_INCHES
    texts = figure.legends[0].get_texts()
    assert len({round(text.get_window_extent().y0) for text in texts}) == rows
    heights = [of.axes[0].get_window_extent().height for of in (figure, one)]
    assert heights[0] == pytest.approx(heights[1], abs=2)


def test_a_title_over_a_legend_has_two_lines_at_most():
    figure = with_legend(["local"], "two-layer network on synthetic images, " * 9)
    assert list(faults(figure)) == []
    assert figure.legends[0].get_title().get_text().count("\n") == 1


def test_nothing_to_name_is_no_legend():
    assert with_legend([]).legends == []


# ------------------------------------------------------------------------------------------- labels


def crowd(count, width=12.0, height=6.0):
    """Labels of marks that all lie on one spot."""
    return [Label((98.0, 98.0, 102.0, 102.0), (90.0, 110.0), width, height)] * count


def test_labels_of_one_spot_do_not_overlap_and_those_that_are_far_are_led():
    wanted = crowd(16)
    places = place_labels(wanted, [wanted[0].mark], [], (0.0, 0.0, 200.0, 200.0))
    assert None not in places
    assert not any(overlap(a.box, b.box) for a, b in combinations(places, 2))
    assert not any(overlap(place.box, wanted[0].mark) for place in places)
    assert not places[0].led
    assert places[-1].led


def test_a_label_avoids_other_marks_and_one_without_room_has_no_place():
    (wanted,) = crowd(1)
    other = (103.0, 95.0, 120.0, 105.0)  # to the right, where it would stand
    (place,) = place_labels([wanted], [wanted.mark, other], [], (0.0, 0.0, 200.0, 200.0))
    assert place.box[2] <= wanted.mark[0]
    few = place_labels(crowd(4), [], [], (85.0, 90.0, 117.0, 110.0))
    assert None in few
    assert few[0] is not None


FRONT = pd.read_csv(Path(__file__).parents[1] / "data" / "figures" / "front.csv")
"""Of the study `fractions`: seconds, accuracy, half its interval, and whether on the front."""


def frontier(closer=1.0, **meta):
    """The front of these settings; their times ``closer`` by so many times."""
    fraction = FRONT["exchange_fraction"]
    rows = FRONT.assign(
        total_s=150 + (FRONT["seconds"] - 150) / closer,
        low=FRONT["accuracy"] - FRONT["half"],
        high=FRONT["accuracy"] + FRONT["half"],
        storage_nbytes=1.1e9 * fraction.fillna(0.0),
        total_requests=np.where(fraction.isna(), 4e7, 64.0),
        epochs=10,
        message="",
    )
    curves = pd.DataFrame(columns=["setting", "seed", "epoch", "time_s", "accuracy"])
    tables = JoinTables(curves=curves, settings=rows, targets=pd.DataFrame())
    return laid_out(figures(tables, {"rule": "as trained", **meta})["frontier"])


@pytest.mark.parametrize("closer", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("dpi", [100, 300])
def test_labels_of_a_crowded_front_lie_neither_on_each_other_nor_on_a_mark(closer, dpi):
    figure = frontier(closer)
    figure.set_dpi(dpi)
    assert list(faults(figure)) == []
    ax = figure.axes[0]
    labels = [(text, box) for text, box in words(figure) if text in ax.texts]
    assert len(labels) == len(FRONT)
    assert not any(box.overlaps(other) for (_, box), (_, other) in combinations(labels, 2))
    if closer == 1:
        marks = [
            Bbox.from_extents(*(at - half), *(at + half))
            for line in ax.lines
            if line.get_marker() in "so^DP"
            for at in ax.transData.transform(line.get_xydata())
            for half in [line.get_markersize() / 2 * figure.dpi / 72]
        ]
        assert len(marks) == len(labels)
        assert not any(box.overlaps(mark) for _, box in labels for mark in marks)


@pytest.mark.parametrize(("style", "columns"), [("ieee", 1), ("acm", 2), ("slides", 1)])
def test_many_strategies_are_numbered_and_can_be_read(style, columns):
    """23 settings of 22 strategies, seven on the front; the longest names of loaders."""
    rng = np.random.default_rng(1)
    names = [f"litdata full, not kept {letter}" for letter in "abcdefghijklmnopqrstuvw"]
    rows = pd.DataFrame({"setting": names, "strategy": names, "exchange_fraction": np.nan})
    accuracy = rng.uniform(0.7, 0.8, 23)
    rows = rows.assign(
        total_s=rng.uniform(150, 900, 23),
        accuracy=accuracy,
        low=accuracy - 0.005,
        high=accuracy + 0.005,
        on_front=np.arange(23) < 7,
        storage_nbytes=rng.choice([0, 5e8, 1e9], 23),
        total_requests=rng.choice([64, 1e4, 4e7], 23),
        epochs=30,
    )
    with in_style(STYLES[style], columns):
        figure = laid_out(frontier_chart(rows, {"rule": "as trained"}))
    assert list(faults(figure)) == []
    time, *others = ([text.get_text() for text in ax.texts] for ax in figure.axes)
    assert sorted(filter(None, time), key=int) == [str(number) for number in range(1, 24)]
    for texts in others:  # there the front alone is named
        assert set(filter(None, texts)) <= {str(number) for number in range(1, 8)}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[0] == "1 litdata full, not kept a"
    assert len(legend) == 25


def test_a_front_says_what_was_trained_and_how_samples_were_sent():
    figure = frontier(model="two-layer network on synthetic images", schedules=["authors"])
    assert figure.legends[0].get_title().get_text() == "two-layer network on synthetic images"
    assert "Schedule of the exchange: authors." in figure.get_supxlabel().replace("\n", " ")


# -------------------------------------------------------------------------------------- other kinds


def test_ticks_of_a_calibration_over_less_than_a_decade_do_not_lie_on_each_other():
    measured = np.array([0.24, 0.26, 0.31, 0.45])
    residuals = pd.DataFrame({"law": "iteration", "unit": "s", "measured": measured, "used": True})
    figure = laid_out(residuals_chart(residuals.assign(fitted=measured, relative=0.001)))
    figure.canvas.draw()
    for ax in figure.axes:
        ticks = [t for t in ax.get_xticks() if ax.get_xlim()[0] <= t <= ax.get_xlim()[1]]
        assert 2 <= len(ticks) <= 4


@pytest.mark.parametrize("least", [0.001, 0.004, 0.02, 0.09, 0.5])
def test_no_number_stands_beside_the_strip_of_those_that_hide_nothing(least):
    sizes = {"world_size": [128, 256, 2048], "iterations": [16, 8, 1]}
    rows = [{"way": way, "exchange_fraction": q} for way, q in (("authors", 0.0), ("pair", least))]
    limits = pd.concat([pd.DataFrame(sizes).assign(**row) for row in rows], ignore_index=True)
    chart = hiding_chart({"limits": limits}, {})
    figure = laid_out(chart)
    assert list(faults(figure)) == []
    shown = [text.get_text() for text, _ in words(figure)]
    assert "none" in shown
    assert "100 %" in shown
    none, *others = sorted(chart.panels[0].y.ticks)
    assert chart.panels[0].y.ticks[none] == "none"
    assert min(others) > 1.25 * none
    assert set(rows_of(chart, "point")["y"]) == {none}


def swept(labels, axes, **columns):
    summary = pd.DataFrame({"label": labels, "epoch": 2, "measure": "epoch_s", **columns})
    summary = summary.assign(seeds=3, mean=4.0, low=3.9, high=4.1)
    return laid_out(sweep_chart(summary, axes))


def axis(name, key, *, numbers):
    return {"name": name, "key": key, "numbers": numbers, "values": []}


def test_a_sweep_of_one_key_names_its_run_and_has_ticks_where_it_was_swept():
    ranks = axis("world_size", "world_size", numbers=True)
    labels = ["partial-0.1 streamlined @8", "partial-0.1 streamlined @16"]
    figure = swept(labels, [ranks], world_size=[8, 16])
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["partial-0.1"]
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["8", "16"]
    assert list(faults(figure)) == []


def test_a_sweep_over_q_names_strategy_and_schedule_of_each_line():
    fraction = axis("exchange_fraction", "workload.exchange.exchange_fraction", numbers=True)
    scope = axis("partner_scope", "workload.exchange.schedule.partner_scope", numbers=False)
    pairs = [(q, where) for q in (0.1, 0.11, 0.9) for where in ("all", "host")]
    labels = [f"partial-{q:g} streamlined @64 partner_scope={where}" for q, where in pairs]
    columns = {"exchange_fraction": [q for q, _ in pairs], "partner_scope": [w for _, w in pairs]}
    figure = swept(labels, [fraction, scope], **columns)
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [
        f"partial @64 partner_scope={where}" for where in ("all", "host")
    ]
    assert list(faults(figure)) == []  # ticks at 0.1 and 0.11 would touch


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("mine", ["mine, num samples 1281167", "mine, num samples 1281168"]),
        ("{} GPUs", ["num samples 1281167", "num samples 1281168"]),
    ],
)
def test_lines_that_a_label_does_not_tell_apart_are_all_drawn(label, names):
    """A label of the user's own says nothing about the samples, whose first six digits are one."""
    axes = [axis(name, name, numbers=True) for name in ("world_size", "num_samples")]
    pairs = [(ranks, samples) for samples in (1281167, 1281168) for ranks in (8, 16)]
    columns = dict(zip(("world_size", "num_samples"), zip(*pairs, strict=True), strict=True))
    figure = swept([label.format(ranks) for ranks, _ in pairs], axes, **columns)
    assert [t.get_text() for t in figure.legends[0].get_texts()] == names


def test_a_sweep_shows_another_measure_and_leaves_out_0_where_values_lie_close():
    ranks = axis("world_size", "world_size", numbers=True)
    of = pd.DataFrame({"label": ["a", "b"], "world_size": [8, 16], "epoch": 2, "seeds": 1})
    of = of.assign(measure="epoch_s/iterations", mean=[0.19, 0.2], low=np.nan, high=np.nan)
    figure = laid_out(sweep_chart(of, [ranks], "epoch_s/iterations"))
    assert figure.axes[0].get_ylabel() == "time per iteration (s)"
    assert figure.axes[0].get_ylim()[0] > 0.15
    wider = sweep_chart(of.assign(mean=[0.1, 0.2]), [ranks], "epoch_s/iterations")
    assert laid_out(wider).axes[0].get_ylim()[0] == pytest.approx(0)
    assert list(faults(figure)) == []


def scaling(times, ranks=(16, 32, 64), **more):
    """The figure of these times per epoch over ranks, a line each."""
    rows = [
        {"label": f"{name} @{m}", "world_size": m, "exchange": name, "mean": float(seconds)}
        for name, of in times.items()
        for m, seconds in zip(ranks, of, strict=True)
    ]
    few = {"epoch": 2, "measure": "epoch_s", "seeds": 1, "low": np.nan, "high": np.nan}
    axes = [
        axis("world_size", "world_size", numbers=True),
        axis("exchange", "workload.exchange", numbers=False),
    ]
    return sweep_chart(pd.DataFrame(rows).assign(**{**few, **more}), axes, samples=[1024.0, 960.0])


def test_ranks_are_on_a_logarithmic_axis_whose_ticks_are_those_that_were_swept():
    chart = scaling({"local": (4, 2, 1)})
    assert chart.panels[0].x.log
    (ax,) = laid_out(chart).axes
    assert ax.get_xscale() == "log"
    assert [*ax.get_xticks()] == [16, 32, 64]
    assert [*ax.get_xticks(minor=True)] == []
    ranks = (4, 6, 8, 12, 16, 2000, 2048)
    (ax,) = laid_out(scaling({"local": range(7, 0, -1)}, ranks)).axes
    assert tuple(ax.get_xticks()) == ranks  # where two are close, one has no text
    assert [t.get_text() for t in ax.get_xticklabels()][-2:] == ["", "2048"]
    assert not scaling({"local": [4]}, [16]).panels[0].x.log


def test_one_seed_has_no_intervals_and_the_figure_says_what_it_is_of():
    one, three = scaling({"a": (4, 2, 1)}), scaling({"a": (4, 2, 1)}, seeds=3, low=0.9, high=4.1)
    assert [kinds for kinds, _ in one.legend_keys()] == [{"line"}]
    assert laid_out(one).axes[0].containers == []
    assert one.note == "An epoch has 960 to 1,024 samples. One seed, so no interval over seeds."
    assert len(laid_out(three).axes[0].containers) == 1
    assert "Mean and 95 % interval of 3 seeds." in three.note
    for chart in (one, three):
        assert "interval" not in chart.caption
        assert list(faults(chart)) == []


def test_curves_that_lie_on_each_other_are_said_to_and_are_seen_as_rings():
    """On an axis from 0 to 1.08 x 4 s, curves are on each other up to 1 % of it, 43 ms. c is 40 ms
    from a and b at once, which is 2.0 % of 2.04 s; d is apart at the last of three points."""
    times = {"a": (4, 3, 2), "b": (4, 3, 2), "c": (4, 3, 2.04), "d": (4, 3, 1)}
    chart = scaling(times)
    assert chart.note.endswith(
        "Lines on top of each other: a, b and c (at most 2\u00a0% apart); a and d (at 67\u00a0% of"
        " the points)."
    )
    assert [round(look.size, 1) for look in chart.looks.values()] == [7.8, 6.2, 4.6, 3]
    assert scaling({"a": (4, 3, 2), "b": (4, 3, 2)}).note.endswith(
        "Lines on top of each other: a and b (equal)."
    )
    assert scaling({"a": (0, 0, 0), "b": (0, 0, 0)}).note.endswith("a and b (equal).")
    alone = scaling({"a": (4, 3, 2), "b": (3, 2, 1)})
    assert "each other" not in alone.note
    assert {look.size for look in alone.looks.values()} == {3}


def test_a_figure_whose_axis_leaves_out_0_says_so():
    assert "The axis does not begin at 0." in scaling({"a": (1.00, 0.99, 0.98)}).note


def test_lines_of_a_legend_look_as_they_are_drawn():
    look = Look("IS", "#ff0000", "^", (0, (4, 2)))
    points = pd.DataFrame({"x": [1, 2], "y": [1, 2], "look": "IS"})
    figure = laid_out(Chart([Panel([Mark("line", points)], Axis(), Axis())], 1.0, {"IS": look}))
    (handle,), (line,) = figure.legends[0].legend_handles, figure.axes[0].lines
    assert isinstance(handle, Line2D)
    for of in (handle, line):
        assert (of.get_color(), of.get_marker()) == ("#ff0000", "^")
        assert of.get_linestyle() != "-"
    assert legend(figure) == ["IS"]


# -------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("engine", ["autolayout", "constrained_layout.use"])
def test_what_is_kept_is_laid_out_once_whatever_layout_the_user_has_set(engine, tmp_path):
    figure = with_legend(["a", "b"], "a title")
    with mpl.rc_context({f"figure.{engine}": True}):
        png, pdf = save(figure, tmp_path / "kept")
    layout = figure.get_layout_engine()
    assert layout is not None
    with mpl.rc_context(STYLE):
        figure.set_layout_engine("none")
        figure.savefig(tmp_path / "again.png", dpi=300, metadata={"Software": None})
        figure.savefig(tmp_path / "again.pdf", metadata={"CreationDate": None})
    assert png.read_bytes() == (tmp_path / "again.png").read_bytes()
    assert pdf.read_bytes() == (tmp_path / "again.pdf").read_bytes()


def test_every_marker_is_drawn_on_a_page():
    """The type `Marker` lists the markers that mypy lets a figure use; a page knows them all."""
    assert set(SHAPES) == set(get_args(Marker)) - {""}
    shapes = list(SHAPES.values())
    # "X" and "x" are the same cross
    assert len(set(shapes)) == len(shapes) - 1


@pytest.mark.parametrize(
    ("strategies", "scales", "seeds"),
    [(1, 1, 1), (1, 5, 5), (2, 2, 1), (2, 1, 5), (7, 2, 1), (7, 5, 5), (13, 1, 1), (13, 2, 5)],
)
def test_a_sweep_of_any_number_of_strategies_and_scales_is_drawn(strategies, scales, seeds):
    """On a page and on paper; names have 60 characters."""
    ranks = [64 * 2**scale for scale in range(scales)]
    times = {
        f"{'strategy-' * 6}{n:06d}": [10.0 + n + m / 100 for m in ranks] for n in range(strategies)
    }
    interval = {"low": 9.0, "high": 60.0} if seeds > 1 else {}
    chart = scaling(times, ranks, seeds=seeds, **interval)
    (_, spec), *_ = panel_specs(chart)
    shapes = {
        layer["mark"]["point"]["shape"] if "point" in layer["mark"] else layer["mark"]["shape"]
        for layer in spec["layer"]
        if "point" in layer["mark"] or layer["mark"].get("shape")
    }
    assert shapes <= set(SHAPES.values())
    draw(chart)
