"""Runs with several seeds: which seeds, what the tables say of them, means and intervals, and what
cannot be asked."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.collections import LineCollection

import simshuffle
from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.report import report
from simshuffle.studies.simulation import sweep
from simshuffle.studies.simulation.figures import breakdown_chart
from simshuffle.studies.simulation.study import STUDY, SimulationResult, request
from simshuffle.studies.simulation.tables import means_over_seeds
from simshuffle.studies.simulation.verb import RunOptions, SweepOptions
from simshuffle.study import engine
from simshuffle.study.registry import read_folder
from simshuffle.study.store import Disk
from simshuffle.study.study import fingerprint
from tests.contents import contents
from tests.drawn import laid_out
from tests.small import small

T_2 = 4.302652729911275
"""97.5th percentile of Student's distribution of 2 degrees of freedom, from a table."""
SMALL = ["--set", "sweep={}", "--set", "world_size=4", "--set", "workload.dataset.num_samples=512"]
EXCHANGES = ["local_shuffle", "partial_local_shuffle:exchange_fraction=0.3"]


def scenario(**values: Any) -> Any:
    """Two runs whose reading depends on the seed, which is 5."""
    given = {
        "workload__dataset__num_samples": 160,
        "workload__jitter": {"compute": 0.1, "read": 0.3},
        "world_size": 4,
        "epochs": 2,
        "seed": 5,
    }
    swept = values.pop("sweep", {"workload.exchange": EXCHANGES})
    # what is set to one value is swept no more
    return small(**{**given, **values}).model_copy(update={"sweep": swept})


@pytest.fixture(scope="module")
def result() -> SimulationResult:
    return simshuffle.run(scenario(), seeds=3)


@pytest.fixture(scope="module")
def folder(result: SimulationResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return result.save(tmp_path_factory.mktemp("seeds") / "three")


def plain(table: pd.DataFrame) -> pd.DataFrame:
    return table.astype(
        {column: str for column in ("run", "strategy", "label") if column in table}
    ).reset_index(drop=True)


# ------------------------------------------------------------------------------------------- tables


def test_every_seed_gives_what_it_gives_by_itself(result):
    for seed in (5, 6, 7):
        alone = simshuffle.run(scenario(seed=seed))
        for name, table in alone.tables.items():
            of_seed = result.tables[name][result.tables[name]["seed"] == seed]
            pd.testing.assert_frame_equal(
                plain(of_seed.drop(columns="seed")),
                plain(table),
                check_exact=True,
                check_categorical=False,
            )
    assert set(result.epochs["seed"]) == {5, 6, 7}
    assert result.epochs.groupby(["run", "epoch"], observed=True)["epoch_s"].nunique().eq(3).all()


def test_the_seed_follows_the_run_in_every_table(result):
    for table in result.tables.values():
        assert list(table.columns[:2]) == ["run", "seed"]
    assert list(result.epochs["run"].unique()) == ["local @4", "partial-0.3 streamlined @4"]


def test_what_is_derived_from_the_timeline_is_told_apart_by_seed(result):
    keys = ["run", "seed", "epoch"]
    seconds = report.phase_seconds(result.timeline).set_index(keys).drop(columns="exchange_hidden")
    whole = result.epochs.set_index(keys)["epoch_s"]
    assert list(seconds.index) == list(whole.index)
    assert seconds.sum(axis=1).to_numpy() == pytest.approx(whole.to_numpy(), rel=1e-9)
    sums = report.book_as_papers(result.breakdown).groupby(keys, observed=True)["seconds"].sum()
    assert sums.to_numpy() == pytest.approx(whole.to_numpy())


def test_one_seed_is_as_if_nobody_had_asked_for_seeds(tmp_path):
    study, asked = request(RunOptions(scenario=scenario(), seeds=1))
    _, without = request(RunOptions(scenario=scenario()))
    assert study is STUDY
    assert fingerprint(study, asked) == fingerprint(STUDY, without)
    for name, words in (("without", []), ("one", ["--seeds", "1"])):
        arguments = ["run", "quickstart", *SMALL, *words, "--out", str(tmp_path / name)]
        assert main([*arguments, "-q"]) == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "without")
    assert not {"summary.csv"} & {path.name for path in (tmp_path / "one").iterdir()}
    assert "seeds" not in json.loads((tmp_path / "one" / "meta.json").read_text())
    assert "seed" not in pd.read_csv(tmp_path / "one" / "epochs.csv")


def test_scenarios_draw_from_their_own_seed_on():
    a = scenario(sweep={}, seed=2, name="a")
    b = scenario(sweep={}, seed=9, name="b", world_size=2)
    _, asked = request(RunOptions(scenario=[a, b], seeds=2))
    found = [(run, *seed.values()) for _, run, seed in asked.values.cells()]
    assert found == [("local @4", 2), ("local @4", 3), ("local @2", 9), ("local @2", 10)]


def test_an_added_seed_is_the_only_one_that_is_simulated(tmp_path):
    store = Disk(tmp_path / "cells")
    kept = []
    for seeds in (1, 2, 3):
        study, asked = request(RunOptions(scenario=scenario(), seeds=seeds))
        engine.run(study, asked, store=store)
        kept.append(len(list(store.digests())))
    assert kept == [2, 4, 6]


# -------------------------------------------------------------------------------- means, intervals


def by_hand(values: list[float]) -> tuple[float, float]:
    """Mean and half the 95 % interval of three values."""
    mean = sum(values) / 3
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
    return mean, T_2 * spread / math.sqrt(3)


def test_the_interval_of_the_summary_is_that_by_hand(result, folder):
    table = pd.read_csv(folder / "summary.csv").set_index(["run", "epoch", "measure"])
    assert table.index.is_unique
    for (run, epoch), rows in result.epochs.groupby(["run", "epoch"], observed=True):
        for measure in ("epoch_s", "samples_per_s", "accelerator_utilisation", "samples_moved"):
            mean, half = by_hand(rows[measure].tolist())
            row = table.loc[(run, epoch, measure)]
            assert row["seeds"] == 3
            wanted = (mean, mean - half, mean + half)
            assert (row["mean"], row["low"], row["high"]) == pytest.approx(wanted, rel=1e-9)
    own = result.breakdown.query("label == 'I/O' and cause == '' and epoch == 2")
    mean, half = by_hand(own[own["run"] == "local @4"]["seconds"].tolist())
    row = table.loc[("local @4", 2, "io_s")]
    assert (row["mean"], row["high"]) == pytest.approx((mean, mean + half), rel=1e-9)


def test_a_sweep_over_the_same_seeds_has_the_same_means(result):
    asked = sweep.request(SweepOptions(scenario=scenario(), seeds=3))
    swept = engine.run(sweep.STUDY, asked).derived["summary"].rename(columns={"label": "run"})
    keys = ["run", "epoch", "measure"]
    both = result.derived["summary"].merge(swept, on=keys, suffixes=("", "_swept"))
    assert len(both) == len(result.derived["summary"]) == len(swept)
    for name in ("seeds", "mean", "low", "high"):
        assert both[name].tolist() == both[f"{name}_swept"].tolist()


def hand_made(seconds: dict[int, float], waiting: dict[int, float]) -> Any:
    """Means of a run of one epoch, from its computing and its waiting by seed."""
    epochs = pd.DataFrame(
        [
            dict.fromkeys(report.EPOCH_COLUMNS, 0.0)
            | {"run": "a", "epoch": 2, "strategy": "local_shuffle", "world_size": 4, "seed": seed}
            | {"epoch_s": value + waiting.get(seed, 0.0)}
            for seed, value in seconds.items()
        ]
    )
    own = [("a", seed, 2, "FW+BW", "", value) for seed, value in seconds.items()]
    idle = [("a", seed, 2, "GE+WU", "I/O", value) for seed, value in waiting.items()]
    columns = ["run", "seed", "epoch", "label", "cause", "seconds"]
    return means_over_seeds(epochs, pd.DataFrame([*own, *idle], columns=columns))


def test_waiting_that_a_seed_does_not_have_counts_as_nothing():
    of = hand_made({1: 1.0, 2: 2.0, 3: 3.0}, {2: 0.6})
    found = of.breakdown.set_index(["label", "cause"])["seconds"].to_dict()
    assert found == {("FW+BW", ""): 2.0, ("GE+WU", "I/O"): pytest.approx(0.2)}
    assert of.breakdown["seconds"].sum() == pytest.approx(of.epochs["epoch_s"][0])
    assert of.half_intervals is not None
    assert of.half_intervals["epoch_s"]["a", 2] == pytest.approx(by_hand([1.0, 2.6, 3.0])[1])
    assert of.seeds == 3


def test_the_whisker_of_the_figure_is_the_interval_of_the_epoch():
    of = hand_made({1: 1.0, 2: 2.0, 3: 3.0}, {})
    with mpl.rc_context():
        chart = breakdown_chart(
            of.breakdown,
            of.epochs,
            "cause",
            half_intervals=of.epoch_half,
            interval_subject=of.interval_subject,
        )
        figure = laid_out(chart)
    (ax,) = figure.axes
    (line,) = [each for each in ax.collections if isinstance(each, LineCollection)]
    (low, _), (high, _) = line.get_segments()[0]
    mean, half = by_hand([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((mean - half, mean + half))
    assert ax.get_xlim()[1] > high
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "95 % interval of the mean\nover 3 seeds" in texts


def test_one_seed_has_no_whisker():
    of = simshuffle.run(scenario())
    figure = laid_out(STUDY.figures(of)["breakdown"])
    assert not [each for each in figure.axes[0].collections if isinstance(each, LineCollection)]
    assert "interval" not in str([text.get_text() for text in figure.legends[0].get_texts()])


# ------------------------------------------------------------------------------------------- verbs


def test_what_is_printed_has_means_intervals_and_the_number_of_seeds(result, folder, capsys):
    rows = result.epochs[(result.epochs["run"] == "local @4") & (result.epochs["epoch"] == 2)]
    mean, half = by_hand(rows["epoch_s"].tolist())
    assert half >= 0.001  # a digit of it shows
    speed, half_of_speed = by_hand(rows["samples_per_s"].tolist())
    for words in (["-v"], ["--to", "markdown"]):
        assert main(["results", "show", str(folder), *words]) == 0
        out = capsys.readouterr().out
        assert f"{mean:.3f} ± {half:.3f}" in out
        assert (f"{speed:,.3f} ± {half_of_speed:,.3f}" in out) == (words == ["-v"])
        assert "mean over 3 seeds" in out
        assert "± is half the 95 % interval, by Student's t, of the mean over 3 seeds." in out
    assert main(["results", "show", str(folder), "--to", "latex"]) == 0
    assert rf"{mean:.3f} $\pm$ {half:.3f}" in capsys.readouterr().out


def test_json_has_the_epochs_of_every_seed_and_the_summary(result, folder, capsys):
    assert main(["results", "show", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["run"], row["seed"], row["epoch"]) for row in found["epochs"]] == [
        (run, seed, epoch)
        for run in ("local @4", "partial-0.3 streamlined @4")
        for seed in (5, 6, 7)
        for epoch in (1, 2)
    ]
    for row in found["epochs"]:
        total = sum(part["seconds"] for part in row["breakdown"])
        assert total == pytest.approx(row["epoch_s"])
    assert len(found["summary"]) == len(result.derived["summary"])


def test_a_result_whose_waiting_is_booked_as_in_the_papers_is_verified_too(tmp_path):
    for seeds in ("1", "2"):
        out = str(tmp_path / seeds)
        words = ["--labels", "paper", "--seeds", seeds, "--out", out, "-q"]
        assert main(["run", "quickstart", *SMALL, *words]) == 0
        assert main(["results", "verify", out]) == 0


def test_means_are_compared_with_one_seed(result, folder, tmp_path, capsys):
    one = simshuffle.run(scenario()).save(tmp_path / "one", draw=False)
    assert main(["compare", str(one), str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["key"], row["a"], row["b"]) for row in found["asked"]] == [("seeds", None, 3)]
    (row,) = [
        row
        for row in found["seconds"]
        if (row["run"], row["epoch"], row["label"]) == ("local @4", 2, report.WHOLE)
    ]
    of = result.epochs[(result.epochs["run"] == "local @4") & (result.epochs["epoch"] == 2)]
    assert row["b"] == pytest.approx(of["epoch_s"].mean())
    assert row["a"] == of[of["seed"] == 5]["epoch_s"].item()


# --------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("seeds", [0, -1, True, 2.0, "3", None])
def test_what_is_no_number_of_seeds_is_refused_in_python(seeds):
    with pytest.raises(InputError, match=r"--seeds: must be a whole number from 1 on"):
        simshuffle.run(scenario(), seeds=seeds)


def test_seeds_of_a_swept_seed_are_refused():
    with pytest.raises(InputError, match=r"--seeds: cannot be combined with a swept seed; got 2"):
        simshuffle.run(scenario(sweep={"seed": [1, 2]}), seeds=2)
    swept = simshuffle.run(scenario(sweep={"seed": [1, 2]}, epochs=1))
    assert list(swept.epochs["run"]) == ["local @4 seed=1", "local @4 seed=2"]


@pytest.mark.parametrize("damage", [{"seeds": 4}, {"seeds": 1}, None])
def test_a_folder_without_all_its_seeds_is_refused(damage, result, tmp_path):
    """Where no other number is said, a run has one seed less."""
    tables = result.tables
    if damage is None:
        fewer = [(table["seed"] != 7) | (table["run"] == "local @4") for table in tables.values()]
        tables = {name: tables[name][rows] for name, rows in zip(tables, fewer, strict=True)}
    other = replace(result, tables=tables, meta={**result.meta, **(damage or {})})
    with pytest.raises(InputError, match=r"meta\.json: seeds: must fit the other files"):
        read_folder(other.save(tmp_path / "other", draw=False))
