"""Measured runs: read, matched with the scenarios that predict them, shown, and refused."""

import json

import pandas as pd
import pytest

from simshuffle import run
from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.scenario.measured import PARTS, MeasuredEpoch, match_measured, read_measured
from simshuffle.job.scenario.scenario import all_runs, load_scenario
from simshuffle.job.sim.cell import RunCell
from simshuffle.job.uncertainty.measured_facts import (
    MeasuredPrediction,
    measured_facts,
    measured_runs,
    predict_by_bounds,
)
from simshuffle.report import intervals
from simshuffle.studies.comparison_tables import compare_intervals
from simshuffle.studies.simulation import sweep
from simshuffle.studies.simulation.tables import label_column
from simshuffle.studies.simulation.verb import SweepOptions
from simshuffle.study import engine
from tests.drawn import faults, rows_of
from tests.small import small

SIZE = {"workload__dataset__num_samples": 160, "epochs": 2}


def scenario(**values):
    return small(**{**SIZE, "world_size": 8, **values})


def write(tmp_path, *lines):
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def refused(call):
    with pytest.raises(InputError) as caught:
        call()
    return str(caught.value)


def test_a_file_has_columns_parts_and_dotted_keys(tmp_path):
    header = "world_size, strategy,epoch_s,io_s,fitted,workload.local_batch_size"
    (row,) = read_measured(write(tmp_path, header, "8,local,12.5,3,yes,20"))
    assert row == {
        "world_size": 8,
        "strategy": "local",
        "epoch_s": 12.5,
        "parts": {"I/O": 3.0},
        "values": {"workload.local_batch_size": 20},
        "fitted": True,
        "source": "runs.csv:2",
    }
    assert {label_column(label): label for label in PARTS.values()} == PARTS


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["world_size,epoch_s", "8,12 s"], "line 2 epoch_s: must be a number of seconds"),
        (["world_size,epoch_s", "8,-1"], "line 2 epoch_s"),
        (["world_size,epoch_s", "8,nan"], "line 2 epoch_s"),
        (["world_size,epoch_s", "8.5,3"], "a whole number"),
        (["world_size,epoch_s", ",3"], "line 2 world_size: is required"),
        (["world_size,epoch_s", "8"], "as many cells"),
        (["world_size,epoch_s,fitted", "8,3,perhaps"], "yes or no"),
        (["world_size,epoch", "8,3"], "Did you mean 'epoch_s'"),
        (["strategy,epoch_s", "local,3"], "must have a column world_size"),
        (["world_size,strategy", "8,local"], "one of epoch_s, iteration_s, samples_per_s"),
        (["world_size,epoch_s"], "must have 1 to 64 rows"),
        (["world_size,epoch_s", *["8,3"] * 65], "must have 1 to 64 rows"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_line_and_remedy(tmp_path, lines, words):
    text = refused(lambda: read_measured(write(tmp_path, *lines)))
    assert words in text and "runs.csv" in text


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert "readable CSV" in refused(lambda: read_measured(tmp_path / "none.csv"))


BOTH = {"workload.exchange": ["local_shuffle", "global_shuffle:source=pfs"]}


def match(*rows, sweep=None):
    runs = all_runs([scenario().with_values({"sweep": sweep or {}})])
    return match_measured([MeasuredEpoch(**row) for row in rows], runs)


def test_a_row_is_predicted_by_the_run_of_its_strategy():
    for strategy in ("global-pfs", "global-pfs @8", "global_shuffle"):
        (found,) = match({"world_size": 4, "strategy": strategy, "epoch_s": 3}, sweep=BOTH)
        assert (found.name, found.scenario.world_size) == ("global-pfs @4", 4)
        assert found.scenario.workload.exchange.kind == "global_shuffle"


def test_seconds_of_an_epoch_from_iterations_and_rates():
    """160 samples on 8 ranks, 10 a batch: 2 iterations."""
    one, two, three = match(
        {"world_size": 8, "epoch_s": 3},
        {"world_size": 8, "iteration_s": 1.5},
        {"world_size": 8, "samples_per_s": 50},
    )
    assert one.epoch_seconds() == two.epoch_seconds() == 3
    assert three.epoch_seconds() == pytest.approx(3.2)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"world_size": 8, "strategy": "globl", "epoch_s": 3}, "strategy: is none of the runs"),
        ({"world_size": 8, "epoch_s": 3}, "strategy: fits several runs"),
        ({"world_size": 8000, "strategy": "local", "epoch_s": 3}, "world_size"),
        ({"world_size": 8, "strategy": "local"}, "needs one of epoch_s"),
        ({"world_size": 8, "strategy": "local", "epoch_s": 3, "parts": {"IO": 1}}, "no label"),
        ({"world_size": 8, "strategy": "local", "epoch_s": 3, "values": {"a.b": 1}}, "a"),
        (
            {"world_size": 8, "strategy": "local", "epoch_s": 3, "samples_per_s": 500},
            "an epoch of 160 samples, as the scenario has; got 1,500",
        ),
        (
            {"world_size": 8, "strategy": "local", "epoch_s": 3, "iteration_s": 1},
            "an epoch of 2 iterations",
        ),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_its_place(row, words):
    row = row | {"source": "runs.csv:7"}
    text = refused(lambda: match(row, sweep=BOTH))
    assert words in text and "measured[1] (runs.csv:7)" in text


def test_rows_that_contradict_each_other_are_refused():
    rows = [{"world_size": 8, "epoch_s": 3}, {"world_size": 8, "epoch_s": 6.5}]
    assert "2 times apart; got 3 s and 6.5 s" in refused(lambda: match(*rows))
    assert len(match(rows[0], {"world_size": 8, "epoch_s": 5})) == 2


def measured(*rows, **values):
    return measured_runs(all_runs([scenario(measured=[*rows], **values)]))


def test_a_unit_that_is_wrong_by_a_thousand_is_refused():
    seconds = bounds(scenario()).epoch
    assert len(measured({"world_size": 8, "epoch_s": 50 * seconds})) == 1
    for factor in (1000, 0.001):
        row = {"world_size": 8, "epoch_s": factor * seconds}
        assert "within a factor of 100" in refused(lambda row=row: measured(row))


def test_runs_on_several_machines_share_no_measurement():
    row = {"world_size": 8, "epoch_s": 3}
    runs = {
        name: scenario(measured=[row], cluster__name=name).model_copy() for name in ("one", "two")
    }
    assert "on several" in refused(lambda: measured_runs(runs))


def test_measured_runs_decide_no_simulation_and_are_read_back():
    plain, own = scenario(), scenario(measured=[{"world_size": 4, "epoch_s": 3}])
    assert "measured" not in plain.to_dict()
    cells = [RunCell(each.to_dict(), "run") for each in (plain, own)]
    assert cells[0].key == cells[1].key
    again = load_scenario("quickstart", {"measured": own.to_dict()["measured"]})
    assert again.measured == own.measured


def test_the_parts_of_closed_forms_add_up_to_the_bound():
    (single,) = match({"world_size": 8, "strategy": "global-pfs", "epoch_s": 3}, sweep=BOTH)
    found = predict_by_bounds(single)
    bound = bounds(single.scenario)
    assert found.seconds == bound.epoch == pytest.approx(sum(found.parts.values()))
    assert found.parts["FW+BW"] == bound.compute and found.parts["I/O"] > 0


def prediction(measured_s, parts, predicted_parts):
    (single,) = match({"world_size": 8, "epoch_s": measured_s, "parts": parts})
    return MeasuredPrediction(single, 1.0, predicted_parts)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"I/O": 1.4}, "all of it in I/O: look at"),
        ({"I/O": 0.9, "GE+WU": 0.7}, "most of it in I/O"),
        ({"I/O": 0.6, "FW+BW": 0.9, "GE+WU": 0.6}, "in several parts: its bottleneck is"),
        ({"FW+BW": 1.7}, "all of it in FW+BW: look at the step times"),
        ({}, "columns io_s"),
    ],
)
def test_what_does_not_fit_says_where(parts, words):
    """Predicted 1 s: I/O 0.2, FW+BW 0.5, GE+WU 0.3. Measured 2.2 s, beyond 1.5 s."""
    predicted = {"I/O": 0.2, "FW+BW": 0.5, "GE+WU": 0.3}
    (fact,) = measured_facts([prediction(2.2, parts, predicted)], [(0.9, 1.5)])
    assert words in fact["misfit"] and not fact["is_expected"]
    (fact,) = measured_facts([prediction(1.2, parts, predicted)], [(0.9, 1.5)])
    assert fact["misfit"] == "" and fact["is_expected"]


STORED = {
    "runs": {
        "local @2048": {
            "ranks": 2048,
            "seconds": 2.94,
            "low": 2.5,
            "high": 4.0,
            "before": [2.1, 5.78],
            "centre": 3.15,
            "law": "",
            "inputs": [1.0, 1.0],
            "model": [0.9, 1.2],
            "chance": [1.0, 1.0],
        }
    },
    "hangs": {},
    "odds": [],
}


def row_of(run, ratio, **values):
    facts = {"run": run, "ranks": 64, "predicted_s": 10.0, "measured_s": 10.0 * ratio}
    return facts | {"low": 9.0, "high": 12.0, "is_expected": True, "misfit": ""} | values


def test_sentences_on_measured_runs():
    rows = [row_of("local @16", 1.08), row_of("local @64", 1.08)]
    (sentence,) = intervals.describe_measured(STORED | {"measured": rows})
    assert sentence == (
        "your 2 runs took 8 % longer than predicted, so local @2048 is 3.15 s, not 2.94 s"
    )
    rows = [
        row_of("local @16", 0.97),
        row_of("local @64", 2.3, is_expected=False, misfit="look at x"),
    ]
    (first,) = intervals.describe_measured(STORED | {"measured": rows})
    assert "3 % less to 130 % longer than predicted" in first
    assert intervals.describe_misfits(STORED | {"measured": rows}) == [
        "why your run local @64 takes 2.3 times as long as predicted: look at x before you trust"
        " 2,048 ranks"
    ]
    worse = row_of("local @32", 0.3, is_expected=False, misfit="in several parts: y")
    (worst,) = intervals.describe_misfits(STORED | {"measured": [*rows, worse]})
    assert worst == (
        "why your run local @32 takes 0.3 times as long as predicted, the worst of 2: in several"
        " parts: y"
    )
    rows[1] |= {"misfit": "its parts say where"}
    (misfit,) = intervals.describe_misfits(STORED | {"measured": rows})
    assert misfit.endswith("say where")
    (alone,) = intervals.describe_measured(STORED | {"measured": [row_of("local @16", 1.0)]})
    assert "your run took as long as predicted, so local @2048" in alone
    assert not [*intervals.describe_measured(STORED)]


def test_two_errors_to_one_side_are_said_once():
    rows = [row_of("local @16", 1.05), row_of("local @64", 1.13)]
    (sentence,) = intervals.describe_measured(STORED | {"measured": rows})
    assert "your 2 runs took 5 to 13 % longer than predicted," in sentence


def test_figures_have_the_middle_that_measured_runs_moved():
    ends = intervals.interval_ends(STORED)
    assert ends == {"local @2048": (2.5, 4.0, 3.15)}
    rows = pd.DataFrame({"run": ["local @2048", "local @16"]})
    found = intervals.add_interval_ends(rows, ends | {"local @16": (1.0, 2.0)})
    assert found[intervals.CENTRE].tolist()[0] == 3.15 and found[intervals.CENTRE].isna()[1]
    plain = intervals.add_interval_ends(rows, {"local @16": (1.0, 2.0)})
    assert intervals.CENTRE not in plain


def test_tables_of_measured_runs():
    stored = STORED | {"measured": [row_of("local @16", 1.08)]}
    assert intervals.measured_table(STORED) is None
    assert intervals.measured_table(stored).row_count == 1
    assert [str(column.header) for column in intervals.table(stored).columns][2] == "with yours"
    assert "with yours" not in [str(c.header) for c in intervals.table(STORED).columns]
    assert intervals.whisker(0) is intervals.WHISKER
    assert intervals.whisker(2).label.endswith("chance,\nand 2 measured runs; dot: middle)")


def test_a_run_predicts_measured_runs_and_repeats(tmp_path):
    path = write(tmp_path, "world_size,strategy,epoch_s", "4,local,1", "2,local,2")
    result = run(scenario(), measured=path)
    stored = result.meta["intervals"]
    assert [row["run"] for row in stored["measured"]] == ["local @4", "local @2"]
    (facts,) = stored["runs"].values()
    assert facts["low"] < facts["centre"] < facts["high"]
    shown = "\n".join(map(str, result.verdict()))
    assert "your 2 runs took" in shown and "so local @8" in shown
    assert set(result.epochs["run"]) == {"local @8"}  # measured runs are in no table
    chart = result.study.figures(result)["breakdown"]
    (middle,) = rows_of(chart, "point")["x"]
    (label,) = rows_of(chart, "text")["text"]
    assert middle == facts["centre"] and " → " in label and not [*faults(chart)]
    plain = run(scenario(), interval=True).meta["intervals"]
    (before,) = plain["runs"].values()
    assert facts["before"] == [before["low"], before["high"]] and "measured" not in plain


def test_a_sweep_shows_the_same_in_table_figure_and_page(tmp_path):
    path = write(tmp_path, "world_size,epoch_s", "2,2")
    options = SweepOptions(scenario=scenario(), over={"world_size": [4, 8]}, measured=path)
    result = engine.run(sweep.STUDY, sweep.request(options))
    stored = result.meta["intervals"]
    assert [row["run"] for row in stored["measured"]] == ["local @2"]
    assert set(stored["runs"]) == set(result.tables["sweep"]["label"])
    assert "your run took" in "\n".join(result.verdict())
    assert "and 1 measured run; dot: middle)" in str(sweep._figures(result)["sweep"].looks)
    result.save(tmp_path / "out")
    again = sweep.repeat(tmp_path / "out", result.meta)
    assert again.asked["interval"] and len(again.values.measured) == 1


def test_a_comparison_says_which_side_has_measured_runs():
    meta = {"intervals": STORED | {"measured": [row_of("local @16", 1.08)]}}
    notes = []
    table = compare_intervals(meta, {"intervals": STORED}, {}, notes)
    assert len(table) == 1 and notes == ["A: its intervals take in 1 measured run."]


def test_check_shows_the_same_by_closed_forms(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text(scenario().to_yaml())
    rows = write(tmp_path, "world_size,epoch_s", "4,1")
    assert main(["check", str(path), "--measured", str(rows)]) == 0
    assert "your run took" in " ".join(capsys.readouterr().out.split())
    assert main(["check", str(path), "--measured", str(rows), "--json"]) == 0
    (verdict,) = json.loads(capsys.readouterr().out)
    assert verdict["measured"][0]["run"] == "local @4"
    assert verdict["interval"]["centre"] > 0
    assert verdict["worth"]["run"] == "local @8"
