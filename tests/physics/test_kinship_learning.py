"""Larger runs of a validation from the smaller ones of their machine: which rows count, and what
is learned from rows that were drawn with a known kinship."""

import numpy as np
import pandas as pd
import pytest

from simshuffle.extensions.calibration.validation import kinship
from simshuffle.extensions.calibration.validation.kinship import (
    larger_runs,
    learn_kinship,
    median_half_width,
    name_machine,
    name_series,
    narrow_larger_runs,
    num_ranks,
    summarize_narrowing,
)
from simshuffle.extensions.calibration.validation.table import SCHEMA

ROW = {
    "set": "a",
    "case": "ResNet-50",
    "quantity": "steady epoch",
    "unit": "s",
    "use": "predict",
    "kind": "run",
    "scenario": "validation/m",
    "spread": "",
    "predicted": 10.0,
}


def results(*rows):
    table = pd.DataFrame([ROW | row for row in rows]).reindex(columns=list(SCHEMA.columns))
    table["error"] = table["predicted"] / table["measured"] - 1
    return table


def row(ranks, measured, **values):
    return {"values": f"world_size={ranks}", "measured": measured} | values


def test_only_rows_on_fewer_ranks_of_the_same_machine_count():
    table = results(
        row(8, 11.0, use="fit"),
        row(64, 12.0),
        row(64, 13.0),
        row(512, 14.0),
        row(8, 20.0, scenario="validation/other"),
        row(4, 20.0, set="b"),
        row(2, np.nan),
    )
    found = {(run.row, len(run.errors) - 1) for run in larger_runs(table)}
    assert found == {(1, 1), (2, 1), (3, 3)}
    (last,) = [run for run in larger_runs(table) if run.row == 3]
    assert last.is_fitted.tolist() == [True, False, False]
    assert last.errors == pytest.approx(np.log([1.4, 1.1, 1.2, 1.3]))
    assert last.ranks.tolist() == [512, 8, 64, 64]


def test_a_rate_that_is_too_low_is_a_time_that_is_too_long():
    time, rate = (
        larger_runs(results(*(row(n, m, quantity=name) for n, m in pairs)))
        for name, pairs in (
            ("steady epoch", ((8, 11.0), (64, 12.0))),
            ("throughput", ((8, 100 / 11.0), (64, 100 / 12.0))),
        )
    )
    assert rate[0].errors == pytest.approx(time[0].errors)
    assert rate[0].mean == pytest.approx(time[0].mean)
    assert rate[0].deviation == pytest.approx(time[0].deviation)


@pytest.mark.parametrize(
    ("values", "case", "ranks"),
    [
        ("world_size=64;epochs=2", "", 64),
        ("clients=504", "", 504),
        ("algorithm=linear", "Leonardo, 1,024 ranks on 256 hosts", 1024),
        ("", "no number", 32),
    ],
)
def test_ranks_of_a_row(values, case, ranks):
    assert num_ranks({"values": values, "case": case}) == ranks


def test_machines_and_series_of_rows():
    first = {"scenario": "s", "values": "cluster=a;world_size=4;x=1", "quantity": "epoch 3"}
    larger = first | {"values": "cluster=a;world_size=8;x=1", "quantity": "epoch 9"}
    other = first | {"values": "cluster=b;world_size=4;x=2"}
    loaded = first | {"values": f"{first['values']};cluster.x.background_load=0.5"}
    assert name_machine(first) == name_machine(larger) == name_machine(loaded)
    assert name_machine(first) != name_machine(other)
    assert name_series(first) == name_series(larger) != name_series(other)
    jobs = [{"quantity": "q", "values": f"job=vgg16 {n};log=l{n}"} for n in (4, 8)]
    assert name_series(jobs[0]) == name_series(jobs[1])


def drawn(num_machines, own, rng):
    """Rows on 8, 16 and 32 ranks of machines, each with an error of its own, and of each row."""
    rows = []
    for machine in range(num_machines):
        common = rng.normal(0, 0.15)
        for ranks in (8, 16, 32):
            measured = 10.0 * np.exp(common + rng.normal(0, own))
            rows.append(row(ranks, measured, scenario=f"m{machine}", set=f"s{machine % 4}"))
    return results(*rows)


def test_errors_that_runs_share_are_learned_and_those_that_they_do_not():
    """Alike errors of a machine's runs: shares of nearly 1 - `MIN_OWN_SHARE`. Errors that have
    nothing in common: small shares."""
    rng = np.random.default_rng(1)
    alike = learn_kinship(larger_runs(drawn(16, 0.005, rng)))
    assert alike.machine + alike.series > 0.8
    apart = learn_kinship(larger_runs(drawn(16, 0.4, rng)))
    assert apart.machine + apart.series < 0.6


def test_narrowed_rows_are_judged_beside_the_others(monkeypatch):
    """What is learned for a set leaves this set out."""
    asked = []
    monkeypatch.setattr(
        kinship,
        "learn_kinship",
        lambda runs, without: asked.append(without) or kinship._kinship_of(np.log(kinship.START)),
    )
    table = drawn(8, 0.02, np.random.default_rng(2))
    before, narrowed = narrow_larger_runs(table)
    assert asked == ["s0", "s1", "s2", "s3"]
    assert len(before) == len(narrowed) == 16  # 16 and 32 ranks of 8 machines
    assert median_half_width(narrowed) < 0.85 * median_half_width(before)
    rows = summarize_narrowing(before, narrowed)
    assert [each["set"] for each in rows] == asked
    assert all(each["with"][1] < each["without"][1] for each in rows)
    assert all(each["rows"] == 4 for each in rows)


def test_half_a_width_is_a_share_of_the_middle():
    rows = pd.DataFrame({"interval_low": [5.0, 9.0, 1.0], "interval_high": [15.0, 11.0, 3.0]})
    assert median_half_width(rows) == 0.5
