"""Predicted against measured: the rows, the table, the texts, the figure and the verb. Nothing here
simulates more than a small cluster."""

import contextlib
import csv
import math
import runpy
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.extensions.calibration.validation.answers import RunTimes
from simshuffle.extensions.calibration.validation.entries import ENTRIES
from simshuffle.extensions.calibration.validation.figures import ratios_chart
from simshuffle.extensions.calibration.validation.predict import (
    MAX_TRAFFIC,
    list_tasks,
    predict_rows,
    tasks_of_variants,
    traffic_share,
)
from simshuffle.extensions.calibration.validation.study import STUDY
from simshuffle.extensions.calibration.validation.table import (
    COLUMNS,
    ValidationRow,
    count_covered_rows,
    parse_assignments,
    read_rows,
    spread_ends,
    summarize_sets,
    validation_table,
)
from simshuffle.extensions.calibration.validation.text import (
    coverage_text,
    format_range,
    format_value,
    parts,
)
from simshuffle.spec.library import shipped_folder
from simshuffle.study.study import Result
from tests.drawn import laid_out, rows_of

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "benchmarks"))

from validation_tables import markdown, markdown_summary  # noqa: E402

GOOD = {"set": "mine", "case": "8 ranks", "quantity": "steady epoch", "unit": "s"}
GOOD |= {"measured": "1.5", "low": "1.4", "high": "1.6", "use": "predict", "kind": "run"}
GOOD |= {"scenario": "quickstart", "values": "world_size=2;epochs=2", "spread": "", "reason": ""}
GOOD |= {"source": "a page"}


def write(folder: Path, *records: dict[str, str], name: str = "mine.csv") -> Path:
    with (folder / name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(COLUMNS))
        writer.writeheader()
        writer.writerows(records)
    return folder


def row(**values: object) -> ValidationRow:
    numbers = {"measured": 2.0, "low": None, "high": None}
    return ValidationRow(**{**GOOD, **numbers, **values})


# --------------------------------------------------------------------------------------------- rows


def test_a_good_file_is_read(tmp_path):
    assert read_rows(write(tmp_path, GOOD)) == [row(measured=1.5, low=1.4, high=1.6)]


def test_every_problem_of_every_file_is_told_at_once(tmp_path):
    write(tmp_path, GOOD | {"use": "x"}, GOOD | {"measured": "y"})
    (tmp_path / "other.csv").write_text("set,case\n1,2\n")
    with pytest.raises(InputError) as caught:
        read_rows(tmp_path)
    assert [problem.path.split()[0] for problem in caught.value.problems] == [
        "mine.csv:2",
        "mine.csv:3",
        "mine.csv:3",
        "other.csv",
    ]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"set\x00,case\n"])
def test_what_is_no_table_is_refused(tmp_path, content):
    with pytest.raises(InputError, match="must hold CSV files"):
        read_rows(tmp_path)
    (tmp_path / "bad.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.csv"):
        read_rows(tmp_path)


@given(st.text(max_size=60))
def test_no_text_of_values_ends_in_a_traceback(text):
    for parse in (parse_assignments, spread_ends):
        with contextlib.suppress(InputError):
            parse(text)


def test_the_ends_of_a_spread():
    assert spread_ends("seed=1..2;a.b=0.5..0.7") == ["seed=1;a.b=0.5", "seed=2;a.b=0.7"]


# -------------------------------------------------------------------------------------- predictions


def test_a_spread_is_simulated_at_both_ends_and_a_ratio_on_both_sides():
    tasks = tasks_of_variants(
        row(kind="ratio", values="world_size=2|world_size=4", spread="seed=1..2")
    )
    assert [[task.values for task in pair] for pair in tasks] == [
        ["world_size=2", "world_size=4"],
        ["world_size=2;seed=1", "world_size=4;seed=1"],
        ["world_size=2;seed=2", "world_size=4;seed=2"],
    ]


def test_rows_of_one_evening_share_their_simulation():
    evening = "log=abci_dataparallel_2020.csv;from=2020-01-22-19-00-00;to=2020-01-22-19-30-00"
    spread = "cluster.parallel_file_system.background_load=0.2..0.6"
    tasks = [
        tasks_of_variants(row(kind="concurrent", values=f"{evening};job={job}", spread=spread))
        for job in ("resnet50 4", "resnet50 64")
    ]
    # as it is, and at both ends of the background load
    assert len({task for variant in tasks for side in variant for task in side}) == 3


def test_quantities_of_a_run():
    times = RunTimes((5.0, 2.0, 4.0), staging=7.0, samples=600)
    wanted = {"first epoch": 5, "steady epoch": 3, "throughput": 200, "run time": 11, "staging": 7}
    assert {name: times.quantity(name) for name in wanted} == wanted


@pytest.mark.parametrize("name", ["steady epoch", "throughput"])
def test_a_steady_epoch_needs_a_second_one(name):
    with pytest.raises(InputError, match="at least 2"):
        RunTimes((5.0,), 0.0, 1).quantity(name)


SMALL = "world_size=2;epochs=2;workload.dataset.num_samples=2000;workload.local_batch_size=32"


def test_an_error_in_another_process_is_told_as_well(tmp_path, capsys):
    write(tmp_path, GOOD | {"values": SMALL + ";nonsense.key=3"}, GOOD | {"values": SMALL})
    assert main(["study", "validate", "--from", str(tmp_path), "--processes", "2"]) == 2
    assert "nonsense" in capsys.readouterr().err


# -------------------------------------------------------------------------------- table and summary


def results() -> pd.DataFrame:
    left_out = {"set": "other", "use": "none", "kind": "", "reason": "a figure without numbers"}
    rows = [
        row(case="a", low=1.9, high=2.1),
        row(case="b", measured=4.0),
        row(case="c", use="fit", reason="the rate"),
        row(case="d", measured=None, **left_out),
    ]
    return validation_table(
        rows, [(2.2, 2.05, 2.3, 0.47), (2.0, 2.0, 2.0, 0), (2.1, 2.1, 2.1, 0), None]
    )


def result() -> Result:
    """`results` as they are stored."""
    meta = {"kind": "validation", "fingerprint": "0" * 12, "versions": {}}
    tables = {"validation": results(), "entries": ENTRIES.empty()}
    return Result(STUDY, tables, meta, {})


def test_errors_are_relative_to_what_was_measured():
    out = results()
    assert out["error"].tolist()[:3] == pytest.approx([0.1, -0.5, 0.05])
    assert math.isnan(out["error"][3])
    assert out["inside"].tolist() == [True, False, False, False]


def test_fitted_rows_are_judged_apart():
    out = summarize_sets(results()).set_index(["set", "use"])
    errors = out.loc[("mine", "predict"), ["mean_error", "median_error", "worst_error"]]
    assert errors.tolist() == pytest.approx([0.3, 0.3, 0.5])
    others = out.loc[("mine", "predict"), ["rows", "worst_case", "inside"]]
    assert others.tolist() == [2, "b, steady epoch", 0.5]
    assert out.loc[("mine", "fit"), "mean_error"] == pytest.approx(0.05)
    assert out.loc[("other", "none"), "worst_case"] == ""


def test_the_coverage_counts_predicted_rows_within_their_interval():
    # a has an interval and is in it, b is one number and is not it; c is fitted, d not predicted
    counts = {"rows": 2, "inside": 1, "intervals": 1, "inside_intervals": 1}
    # both have a 90 % interval from the shipped sets: 2 s where 2.2 were predicted lie below it
    counts |= {"scored": 2, "covered": 0, "scored_sets": 1, "sets_better_than_naive": 0}
    assert count_covered_rows(results()) == counts
    text = coverage_text(results())
    assert "Of 2 predicted rows 1 lie within their interval" in text
    assert "1 have an interval rather than one number; 1 of these lie within it" in text
    assert "up to 47 %" in text and "ParaDL's report" in text
    assert result().as_json()["coverage"] == counts
    without = results().assign(traffic=0.0)
    assert "traffic" not in coverage_text(without)
    assert coverage_text(without[without["use"] == "fit"]) == ""


ABCI = "validation/abci-chainer-2020"
EVENING = "log=abci_dataparallel_2020.csv;from=2020-01-21-20-00-00;to=2020-01-21-23-00-00"


@pytest.mark.parametrize(
    ("change", "more"),
    [
        # racks of 34 hosts with 4 GPUs each
        ({"scenario": ABCI, "values": "world_size=136"}, 0.0),
        ({"scenario": ABCI, "values": "world_size=140"}, MAX_TRAFFIC),
        ({"scenario": ABCI, "values": "world_size=140", "use": "fit"}, 0.0),
        ({"scenario": ABCI, "values": "world_size=140", "quantity": "staging"}, 0.0),
        ({"scenario": ABCI, "values": f"{EVENING};job=vgg16 128", "kind": "concurrent"}, 0.0),
        (
            {"scenario": ABCI, "values": f"{EVENING};job=vgg16 256", "kind": "concurrent"},
            MAX_TRAFFIC,
        ),
        ({"values": "world_size=2"}, 0.0),
    ],
)
def test_traffic_counts_above_one_rack_of_abci(change, more):
    assert traffic_share(row(**change)) == more


def test_traffic_only_ever_lengthens_an_epoch():
    times = RunTimes((10.0, 8.0), staging=0.0, samples=400)
    for quantity, expected in (
        ("steady epoch", (8.0, 8.0, 8.0 * (1 + MAX_TRAFFIC))),
        ("throughput", (50.0, 50.0 / (1 + MAX_TRAFFIC), 50.0)),
    ):
        one = row(scenario=ABCI, values="world_size=140", quantity=quantity)
        (found,) = predict_rows([one], dict.fromkeys(list_tasks([one]), times))
        assert found is not None
        assert (found.value, found.low, found.high) == pytest.approx(expected)


def test_numbers_for_a_reader():
    numbers = [(12.345, "s"), (6.2e9, "B/s"), (43000, "1/s"), (0.345, "1"), (math.nan, "s")]
    assert [format_value(*of) for of in numbers] == ["12.3 s", "6.2 GB/s", "43 k/s", "0.345", "–"]
    ends_of = [(1.0, 2.0), (1.0, 1.0), (0.5, 2.0), (math.nan, 2.0)]
    assert [format_range(*of, "s") for of in ends_of] == ["1–2 s", "", "500 ms–2 s", ""]


def test_texts_hold_every_row():
    text = markdown(results())
    assert "| a | steady epoch | 2 s | 1.9–2.1 s | 2.2 s | 2.05–2.3 s | +10.0 % |" in text
    assert (
        text.index("Fitted:") < text.index("| c |") < text.index("Predicted:") < text.index("| b |")
    )
    assert "| other | d, steady epoch | a figure without numbers |" in text
    *tables, covered = parts(results())
    assert len(tables) == 7
    assert isinstance(covered, str)
    assert covered in markdown_summary(results())
    assert "| mine | 2 | 1 | 30.0 % |" in markdown_summary(results())
    parsed = result().as_json()
    assert (len(parsed["rows"]), len(parsed["summary"])) == (4, 3)
    assert parsed["rows"][3]["predicted"] is None


def test_the_figure_shows_a_mark_for_each_compared_row():
    chart = ratios_chart(results())
    drawn = laid_out(chart)
    (ax,) = drawn.axes
    marks = [line.get_xdata() for line in ax.lines if line.get_marker() == "o"]
    assert sorted(np.concatenate(marks).round(3)) == [0.5, 1.05, 1.1]
    assert sorted(rows_of(chart, "point")["x"].dropna().round(3)) == [0.5, 1.05, 1.1]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["mine"]
    assert drawn.get_size_inches()[0] == pytest.approx(3.4)


# ------------------------------------------------------------------------------------- shipped rows


def test_the_rows_of_abci_follow_from_the_log(capsys):
    runpy.run_path(str(ROOT / "benchmarks" / "abci_2020_rows.py"), run_name="__main__")
    assert capsys.readouterr().out == (shipped_folder("validation") / "abci_2020.csv").read_text(
        encoding="utf-8"
    )


def test_nothing_was_fitted_on_more_than_32_gpus_and_latency_on_64():
    for one in read_rows(shipped_folder("validation")):
        if one.set.startswith("abci_2020") and one.use == "fit":
            most = 64 if one.set == "abci_2020_latency" else 32
            assert int(parse_assignments(one.values)["world_size"]) <= most
