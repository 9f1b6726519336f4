"""Intervals of 90 % where results are shown: beside another result, in figures, on the page, in an
oracle; and what is said where there are none."""

import json
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simshuffle import run
from simshuffle.api import read
from simshuffle.cli import main
from simshuffle.job.uncertainty import interval
from simshuffle.job.uncertainty.residuals import residuals
from simshuffle.report import intervals
from simshuffle.report.intervals import (
    HIGH,
    LOW,
    NO_INTERVALS_TO_COMPARE,
    add_interval_ends,
    frame,
    intervals_side_by_side,
)
from simshuffle.studies.comparison import compare, read_side
from simshuffle.studies.oracle import text
from simshuffle.studies.oracle.cell import model_error
from simshuffle.studies.oracle.tables import STORED
from simshuffle.studies.presentation import run_figures
from simshuffle.studies.presentation.named_results import NamedResult
from simshuffle.studies.presentation.page import render_page
from simshuffle.studies.simulation import sweep
from simshuffle.studies.simulation.figures import breakdown_chart
from simshuffle.studies.simulation.verb import SweepOptions
from simshuffle.study import engine
from simshuffle.study.standing import Standing
from tests.drawn import faults, legend, rows_of
from tests.small import small
from tests.units.test_run_names import tables

SIZE = {"workload__dataset__num_samples": 160, "world_size": 4, "epochs": 2}
LEGEND = "90 % interval\n(inputs, model, chance)"


def scenario(**values):
    return small(**{**SIZE, **values})


@pytest.fixture(scope="module")
def result():
    return run(scenario(), interval=True)


@pytest.fixture(scope="module")
def swept():
    options = SweepOptions(scenario=scenario(), over={"world_size": [2, 4]}, interval=True)
    return engine.run(sweep.STUDY, sweep.request(options))


@pytest.fixture(scope="module")
def folders(result, tmp_path_factory):
    place = tmp_path_factory.mktemp("results")
    slow = scenario(cluster__topology__link_bandwidth="1 GB/s")
    return {
        "with": str(result.save(place / "with", draw=False)),
        "slow": str(run(slow, interval=True).save(place / "slow", draw=False)),
        "none": str(run(scenario()).save(place / "none", draw=False)),
    }


def kept(**runs):
    names = ("seconds", "low", "high")
    return {"runs": {run: dict(zip(names, of, strict=True)) for run, of in runs.items()}}


# ------------------------------------------------------------------------------------------ compare


def test_intervals_overlap_from_the_end_they_share_on():
    a = frame(kept(a=(2.0, 1.0, 3.0), b=(2.0, 1.0, 3.0), c=(2.0, 1.0, 3.0), only=(1.0, 1.0, 1.0)))
    b = frame(kept(a=(4.0, 3.0, 5.0), b=(4.0, 3.1, 5.0), c=(0.5, 0.2, 0.9)))
    rows = intervals_side_by_side(a, b).set_index("run")
    assert rows["overlap"].to_dict() == {"a": True, "b": False, "c": False}
    assert rows.loc["b"].tolist() == [2.0, 1.0, 3.0, 4.0, 3.1, 5.0, False]


def test_two_results_have_their_epochs_with_intervals(folders, capsys):
    found = compare(read_side(folders["with"]), read_side(folders["slow"]))
    assert list(found.asked["key"]) == ["cluster.topology.link_bandwidth"]  # no end of an interval
    (row,) = found.intervals.to_dict("records")
    assert row["a_low"] < row["a"] < row["a_high"] and row["overlap"] == (
        row["b_low"] <= row["a_high"] and row["a_low"] <= row["b_high"]
    )
    assert main(["compare", folders["with"], folders["slow"], "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["intervals"] == [row]
    assert main(["compare", folders["with"], folders["slow"]]) == 0
    out = capsys.readouterr().out
    assert "Epochs and their 90 % intervals" in out and "overlap" in out


@pytest.mark.parametrize(("a", "b", "said"), [("with", "none", "B"), ("none", "none", "A and B")])
def test_one_line_says_which_has_none(folders, a, b, said, capsys):
    assert main(["compare", folders[a], folders[b]]) == 0
    assert f"{said}: {NO_INTERVALS_TO_COMPARE}." in capsys.readouterr().out.splitlines()
    assert main(["compare", folders[a], folders[b], "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["intervals"] is None
    assert f"{said}: {NO_INTERVALS_TO_COMPARE}." in printed["notes"]


def test_sweeps_are_compared_by_their_labels(swept):
    found = compare(read_side(swept), read_side(swept))
    assert list(found.intervals["run"]) == list(swept.meta["intervals"]["runs"])
    assert found.intervals["overlap"].all()


# ------------------------------------------------------------------------------------------ figures


def test_a_name_of_several_rows_has_no_interval():
    known = {"a": (1.0, 2.0), "b": (3.0, 4.0)}
    rows = add_interval_ends(pd.DataFrame({"run": ["a", "b", "b", "c"]}), known)
    assert rows[LOW].tolist()[0] == 1.0 and rows[HIGH].tolist()[0] == 2.0
    assert rows[HIGH].isna().tolist() == [False, True, True, True]


def test_the_whisker_of_a_bar_is_the_interval_of_the_last_epoch(result):
    (of,) = result.meta["intervals"]["runs"].values()
    chart = result.study.figures(result)["breakdown"]
    (row,) = rows_of(chart, "interval").to_dict("records")
    assert (row["x"], row["x2"]) == (of["low"], of["high"])
    assert LEGEND in legend(chart) and not [*faults(chart)]
    (label,) = rows_of(chart, "text")["text"]
    assert label.count("–") == 1 and label.endswith(")")
    bare = result.study.figures(run(scenario()))["breakdown"]
    assert LEGEND not in legend(bare) and rows_of(bare, "text")["text"][0].count("–") == 0


def test_the_whiskers_of_a_line_are_those_of_its_points(swept):
    chart = swept.study.figures(swept)["sweep"]
    rows = rows_of(chart, "interval")
    runs = swept.meta["intervals"]["runs"]
    assert rows["y"].tolist() == [of["low"] for of in runs.values()]
    assert rows["y2"].tolist() == [of["high"] for of in runs.values()]
    assert LEGEND in legend(chart) and not [*faults(chart)]
    assert "no intervals" not in chart.note
    assert chart.panels[0].y.high >= rows["y2"].max()


def test_another_measure_has_no_whiskers(swept):
    options = {"world_size": [2, 4]}
    asked = SweepOptions(scenario=scenario(), over=options, interval=True, measure="samples_per_s")
    chart = sweep.STUDY.figures(engine.run(sweep.STUDY, sweep.request(asked)))["sweep"]
    assert LEGEND not in legend(chart)


def test_a_short_bar_with_a_long_whisker_shares_the_axis_of_the_long_one():
    parts, epochs = tables("a", "b", seconds=[30.0, 2.0])
    apart = breakdown_chart(parts, epochs, interval_ends={"b": (1.8, 3.0)})
    assert len(apart.panels) == 2 and not [*faults(apart)]
    together = breakdown_chart(parts, epochs, interval_ends={"b": (1.8, 40.0)})
    assert len(together.panels) == 1
    assert rows_of(together, "interval")["x2"].tolist() == [40.0]


def test_figures_of_several_results_have_the_whiskers_of_each(result, swept):
    given = [NamedResult("one", result), NamedResult("two", swept)]
    found = run_figures.interval_ends_of_results(given)
    (of,) = result.meta["intervals"]["runs"].values()
    assert found["one: local @4"] == (of["low"], of["high"])
    assert len(rows_of(run_figures.breakdown(given), "interval")) == 3
    table = run_figures.scaling_table([given[1]])
    assert table["high_90"].tolist() == [
        of["high"] for of in swept.meta["intervals"]["runs"].values()
    ]
    chart = run_figures.scaling_chart([given[1]], "world_size", "epoch_s", ideal=True)
    assert len(rows_of(chart, "interval")) == 2 and not [*faults(chart)]


def test_the_page_has_the_table_and_the_sentences(folders):
    result = read(folders["with"])
    page = render_page([NamedResult("with", result, Path(folders["with"]))])
    assert page.count("<caption><span>90 % intervals</span></caption>") == 1
    assert page.count(escape(result.verdict()[-1])) == 1


# ------------------------------------------------------------------- folders, terminal and notebook


def test_a_folder_is_the_same_done_again_until_an_end_is_changed(result, folders, tmp_path, capsys):
    assert main(["results", "verify", folders["with"], "--processes", "1", "-q"]) == 0
    meta = json.loads(json.dumps(dict(result.meta)))
    (of,) = meta["intervals"]["runs"].values()
    of["high"] *= 1.01
    changed = replace(result, meta=meta).save(tmp_path / "changed", draw=False)
    capsys.readouterr()
    assert main(["results", "verify", str(changed), "--processes", "1", "-q"]) == 1
    assert "intervals.runs" in capsys.readouterr().out


def test_json_and_a_notebook_have_intervals(result, folders, capsys):
    assert main(["results", "show", folders["with"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["intervals"] == result.meta["intervals"]
    assert "90 % intervals" in result._repr_html_()
    assert "90 % intervals" not in read(folders["none"])._repr_html_()


# ------------------------------------------------------------------------------------------- oracle


def points(*rows):
    about = {"world_size": 8, "ways": 1, "replicas": 8, "hosts": 8, "group_batch": 1}
    about |= {"iterations": 10, "feasible": True, "fits": None, "why_not": "", "io_by": ""}
    about |= {"bottleneck": "compute", "io_s": 0.0, "memory_nbytes": 1.0}
    return {"points": STORED["points"].framed([{**about, **row} for row in rows])}


def point(name, kind, loop, io=0.0):
    epoch = max(loop, io + loop / 10)
    return {"strategy": name, "kind": kind, "loop_s": loop, "epoch_s": epoch, "io_s": io}


def test_an_iteration_has_the_quantiles_of_its_own_mechanism():
    found = model_error(points(point("data", "data", 20.0)))
    low, high = np.exp(residuals().quantiles("step", 8, np.array([0.05, 0.95])))
    assert found["iteration_s"] == 2.0 and "second" not in found
    assert (found["low_s"], found["high_s"]) == pytest.approx((2.0 * low, 2.0 * high))
    other = model_error(points(point("spatial", "spatial", 20.0)))
    assert other["high_s"] != found["high_s"]


def test_one_error_for_both_keeps_the_order_and_two_do_not():
    shared = model_error(points(point("a", "spatial", 20.0), point("b", "pipeline", 20.1)))
    assert shared["shared"] and shared["faster"] == 1.0
    apart = model_error(points(point("a", "data", 20.0), point("b", "pipeline", 20.1)))
    assert not apart["shared"] and 0.2 < apart["faster"] < 0.8
    swapped = model_error(points(point("a", "pipeline", 20.0), point("b", "data", 20.0)))
    straight = model_error(points(point("a", "data", 20.0), point("b", "pipeline", 20.0)))
    assert swapped["faster"] + straight["faster"] == pytest.approx(1.0)
    far = model_error(points(point("a", "data", 20.0), point("b", "pipeline", 2000.0)))
    assert far["faster"] == 1.0


def test_two_that_wait_for_the_same_reading_are_a_toss():
    rows = (point("a", "spatial", 20.0, io=500.0), point("b", "pipeline", 20.0, io=500.0))
    assert model_error(points(*rows))["faster"] == 0.5


def test_nothing_that_fits_has_no_error_and_older_folders_say_so():
    assert model_error(points({**point("a", "data", 20.0), "fits": False})) == {}
    best = pd.DataFrame([{"strategy": "data", "at": 8, "epoch_s": 1.0, "second": ""}])
    best = best.assign(epoch_low_s=1.0, epoch_high_s=1.0, memory_nbytes=1.0)
    assert text.verdict(best, {}).measure_next == f"{intervals.ERRORS_LEFT_OUT}."
    error = {"strategy": "data", "law": "x", "iteration_s": 2.0, "low_s": 1.9, "high_s": 2.4}
    error |= {"second": "b", "shared": False, "faster": 0.75}
    assert "1.9 s to 2.4 s is the 90 % interval" in text._iteration_interval(error)
    said = text.verdict(best, {}, error)
    assert "faster than b with a probability of 75 % (independent errors" in said.why
    assert said.measure_next == ""


def test_what_is_to_be_measured_next_makes_a_twentieth_of_an_interval():
    """±15 % of 100 s; a measurement leaves 0.8 of it: 12 %. Of fewer ranks nothing is said; 6 % of
    15 % shrink by less than 1 %."""
    run = {"ranks": 8, "seconds": 100.0, "low": 90.0, "high": 120.0}

    def said(total, width):
        hang = {"key": "k", "measured_by": "nccl", "total": total, "width": width}
        few = {"few": {**run, "ranks": 4, "high": 190.0}}
        found = {"runs": {"many": run, **few}, "hangs": {"many": [hang], "few": [hang]}}
        return intervals.measure_next(found)

    assert said(0.05, 0.8) == "k (nccl), which narrows many from ±15 % to ±12 %"
    for total, width in ((0.049, 0.8), (1.0, 0.94)):
        assert said(total, width) == ""


def test_what_check_prints_as_json_is_what_its_table_and_sentences_say(capsys, monkeypatch):
    monkeypatch.setattr(interval, "DRAWS", 64)
    monkeypatch.setattr(interval, "INDEX_DRAWS", 16)
    words = ["check", "quickstart", "--interval"]
    assert main([*words, "--json"]) == 0
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    for row in rows.values():
        assert row["interval"]["low"] < row["epoch_s"] < row["interval"]["high"]
        assert row["hangs"][0]["total"] >= row["hangs"][-1]["total"]
    (fastest,) = (row for row in rows.values() if len(row["odds"]) == 2)
    assert "How sure the order is" in said and "What the intervals depend on" in said
    for odds in fastest["odds"]:
        share = odds["share"]
        assert ("all" if share > intervals.MIN_SURE_SHARE else f"{100 * share:.0f} %") in said
    assert "Measure next: " in said
    assert "are of the least times above" in said and "order turns at" in said


def test_drawing_intervals_tells_how_far_it_is():
    """Two runs that were simulated before: what is left is intervals alone."""
    told: list[Standing] = []
    options = SweepOptions(scenario=scenario(), over={"world_size": [2, 4]}, interval=True)
    engine.run(sweep.STUDY, sweep.request(options), progress=told.append)
    shares = [standing.share for standing in told if "intervals" in standing.running]
    # each run is drawn, then what its width hangs on; runs of other sizes are no pair
    assert len(shares) == 4
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
