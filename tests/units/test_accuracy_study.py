"""What a shuffle is expected to cost in accuracy: the sensitivity of networks, remedies and their
costs, and what is refused. Nothing is trained."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from simshuffle import accuracy
from simshuffle.errors import InputError
from simshuffle.extensions.learning.accuracy import study
from simshuffle.extensions.learning.accuracy.asked import _main_layer_kind, repeat, request
from simshuffle.extensions.learning.accuracy.cells import StatisticsSumCell
from simshuffle.extensions.learning.accuracy.first import lines
from simshuffle.extensions.learning.accuracy.remedies import closed_form_epoch
from simshuffle.extensions.learning.accuracy.remedy import RemedyEstimate, front_names
from simshuffle.extensions.learning.accuracy.sensitivity import (
    NO_LOSS,
    NORMAL_QUANTILE,
    LossEstimate,
    Sensitivity,
    pool_sensitivities,
    predict_sensitivity,
    read_sensitivities,
)
from simshuffle.extensions.learning.accuracy.study import STUDY
from simshuffle.extensions.learning.accuracy.tables import SENSITIVITY
from simshuffle.extensions.learning.accuracy.verb import AccuracyOptions
from simshuffle.job.scenario.scenario import Scenario, load_scenario
from simshuffle.report.report import WHOLE
from simshuffle.studies.mechanisms.variants import WarmCell
from simshuffle.study import engine
from simshuffle.study.cell import Outcome
from simshuffle.study.study import Result, fingerprint
from simshuffle.workload.layers import INPUT, Layer, LayerList
from tests.small import small

SCREENING = json.loads((Path(__file__).parents[1] / "data" / "screening.json").read_text())
# c of 100, 80 to 130, and what trainings lose of that: 1.5 times, 0.8 to 3
C, C_LOW, C_HIGH = 150, 150 - math.hypot(70, 30), 150 + math.hypot(150, 45)


def screening(place: Path, **values: Any) -> Path:
    path = place / "screening.json"
    path.write_text(json.dumps({**SCREENING, **values}))
    return path


def rows(*made: dict[str, Any]) -> pd.DataFrame:
    """Rows of the table, with what tests do not look at."""
    plain = {
        "data": "d",
        "norm": "batch",
        "layers": "dense",
        "rms": 0.1,
        "c_low": np.nan,
        "c_high": np.nan,
    }
    usual = dict.fromkeys(SENSITIVITY.columns, 8) | {"source": "made up"} | plain
    return pd.DataFrame([{**usual, **of} for of in made])


# ------------------------------------------------------------------------------ the sensitivity


def test_the_table_is_whole_and_has_a_source_for_each_row():
    found = read_sensitivities()
    assert {"mlp"} <= set(found["model"])
    assert (found["source"].str.len() > 10).all()
    batch = found[found["norm"] == "batch"]
    assert (batch["c"] > 0).all()
    assert (found.loc[found["norm"] != "batch", "c"] == 0).all()
    assert found.loc[found["c_low"].notna(), "c"].le(found["c_high"].dropna()).all()


def test_of_two_networks_the_next_one_by_hand():
    """c of 50 and 200: the mean of logs is log 100, their deviation s = log 4/sqrt 2, and t of one
    degree is 6.3138 at 95 %: 100 times or over exp(6.3138 s sqrt(1 + 1/2))."""
    c, low, high = pool_sensitivities(rows({"model": "a", "c": 50.0}, {"model": "b", "c": 200.0}))
    reach = 6.313752 * math.log(4) / math.sqrt(2) * math.sqrt(1.5)
    assert c == pytest.approx(100.0)
    assert (low, high) == pytest.approx((100 / math.exp(reach), 100 * math.exp(reach)), rel=1e-5)


@pytest.mark.parametrize(("factor", "rest"), [(1.2, True), (8.0, False)])
def test_errors_of_rows_are_taken_out_of_their_spread(factor, rest):
    """Four rows known as well as one another: tau^2 is their variance less the square of an error,
    or 0, and the error of the mean sqrt((tau^2 + s^2)/4)."""
    logs = np.log([60.0, 90.0, 140.0, 200.0])
    error = math.log(factor) / NORMAL_QUANTILE
    made = [
        {
            "model": f"{n}",
            "c": math.exp(of),
            "c_low": math.exp(of) / factor,
            "c_high": math.exp(of) * factor,
        }
        for n, of in enumerate(logs)
    ]
    square = max(0.0, logs.var(ddof=1) - error**2)
    assert (square > 0) == rest
    reach = stats.t.ppf(0.95, 3) * math.sqrt(square + (square + error**2) / 4)
    c, low, high = pool_sensitivities(rows(*made))
    assert c == pytest.approx(math.exp(logs.mean()), rel=1e-6)
    assert math.log(high / c) == pytest.approx(reach, rel=1e-6)
    assert math.log(c / low) == pytest.approx(reach, rel=1e-6)


def test_another_network_counts_by_those_of_its_kind():
    """Two dense networks, one of them with two sets, of which the mean counts; and three of
    convolutions, which are enough for one more."""
    dense = [{"model": "a", "data": "x", "c": 50.0}, {"model": "a", "data": "y", "c": 200.0}]
    dense.append({"model": "b", "c": 400.0})
    others = [{"model": f"c{n}", "layers": "convolution", "c": c} for n, c in enumerate((1, 2, 4))]
    of = rows(*dense, *others)
    near = predict_sensitivity(of, "new", "batch", layers="convolution")
    assert near.c == pytest.approx(2.0)
    assert "c0; c1; c2" in near.basis and "a" not in near.basis.split("(")[1].split(",")
    reach = stats.t.ppf(0.95, 2) * math.log(2) * math.sqrt(1 + 1 / 3)
    assert math.log(near.high / near.c) == pytest.approx(reach, rel=1e-6)
    whole = predict_sensitivity(
        of, "new", "batch", layers="dense"
    )  # two are too few: all five count
    assert whole.c == pytest.approx((100 * 400 * 1 * 2 * 4) ** (1 / 5))


def test_a_network_counts_by_its_own_rows_first():
    of = rows(
        {"model": "a", "data": "x", "c": 50.0, "c_low": 40.0, "c_high": 70.0, "rms": 0.3},
        {"model": "a", "data": "y", "c": 80.0},
        {"model": "b", "data": "x", "c": 200.0},
        {"model": "v", "norm": "layer", "c": 0.0, "rms": 0.2},
    )
    own = predict_sensitivity(of, "a", "batch", "x")
    assert (own.c, own.low, own.high, own.rms, own.known) == (50.0, 40.0, 70.0, 0.3, True)
    both = predict_sensitivity(of, "a", "batch", "z")
    assert both.c == pytest.approx(math.sqrt(50 * 80), rel=0.05)
    assert both.known and both.low < 50 and both.high > 80
    other = predict_sensitivity(of, "c", "batch")
    assert not other.known
    assert "a; b" in other.basis
    assert other.tried["local batch"] == (8, 8)
    without = predict_sensitivity(of, "t", "layer")
    assert (without.c, without.low, without.high, without.rms) == (0.0, 0.0, 0.0, 0.2)
    assert predict_sensitivity(of, "t", "group").rms == 0.2  # others without batch norm
    with pytest.raises(InputError, match="two rows"):
        predict_sensitivity(of[of["model"] == "b"], "c", "batch")


def test_three_errors_are_added_as_squares():
    """1/n 0.01 more, c of 100 (80 to 130), n known to 0.001, settings 0.2 beside the curve."""
    of = Sensitivity("a", "batch", 100.0, 80.0, 130.0, 0.2, "", True, {}, 0.1)
    middle, low, high = of.expected_loss(0.01, 0.009, 0.012)
    beside = NORMAL_QUANTILE * 0.2
    assert middle == 1.0
    assert low == pytest.approx(1.0 - math.sqrt(0.2**2 + 0.1**2 + beside**2))
    assert high == pytest.approx(1.0 + math.sqrt(0.3**2 + 0.2**2 + beside**2))
    gained = of.expected_loss(-0.01)
    assert gained == pytest.approx(
        (-1.0, -1.0 - math.hypot(0.3, beside), -1.0 + math.hypot(0.2, beside))
    )


@pytest.mark.parametrize(
    ("model", "norm", "found"),
    [
        (None, None, "batch"),  # resnet50, by its layers
        ("vit_b_16", None, "layer"),
        ("vgg16", None, "none"),
        ("mlp", None, "batch"),  # by the table
        ("never heard of", None, "batch"),
        ("ViT-L/16 of ours", None, "layer"),  # by its name
        ("llama-3-8b", None, "layer"),
        ("levit_128", None, "batch"),  # not a vit: it has batch norm
        ("never heard of", "group", "group"),
    ],
)
def test_what_a_network_normalises_by(model, norm, found):
    asked = request(AccuracyOptions(scenario=small(), model=model, norm=norm)).values
    assert asked.sensitivity.norm == found
    known = model == "mlp" or found == "none"
    assert asked.sensitivity.known == (model == "mlp")
    assert known or "network" in asked.sensitivity.basis or "scatter" in asked.sensitivity.basis
    assert bool(asked.channels) == (model is None)
    if model is None:  # 53 norms of ResNet-50, with 26,560 channels in all
        assert (len(asked.channels), sum(asked.channels)) == (53, 26_560)


@pytest.mark.parametrize(
    ("kinds", "counts"),
    [
        ({"conv": 53, "linear": 1}, "convolution"),
        ({"conv": 1, "linear": 4}, "dense"),  # a stem alone makes no network of convolutions
        ({"conv": 2, "linear": 2}, "convolution"),
        ({"conv": 1, "attention": 12, "linear": 49}, "attention"),  # as vit_b_16
        ({"linear": 1, "norm": 9}, "dense"),
        ({"embedding": 2, "norm": 9}, ""),
    ],
)
def test_the_layers_that_most_are_count_for_a_network(kinds, counts):
    layers = tuple(
        Layer(f"{kind}{index}", kind, (INPUT,), (4,), (4,))
        for kind, number in kinds.items()
        for index in range(number)
    )
    assert _main_layer_kind(LayerList("ours", layers, (4,))) == counts
    assert _main_layer_kind(None) == ""


# --------------------------------------------------------------------------- what is lost


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of 10 s and more, so that the law alone is computed."""

    def run(self: WarmCell, tell: Any) -> Outcome:
        workload = self.scenario.workload
        more = 1.0 if workload.exchange.redraws else workload.exchange.fraction or 0.0
        return Outcome({WHOLE: 10.0 + more - 0.01 * workload.local_batch_size})

    monkeypatch.setattr(WarmCell, "run", run)
    sums = {"buffers": 0.25, "host": 0.5, "all": 2.0}
    monkeypatch.setattr(StatisticsSumCell, "run", lambda self, tell: Outcome(sums))


def found(scenario: Scenario, **options: Any) -> Result:
    """Done in this process, where the fixture is."""
    return engine.run(STUDY, request(AccuracyOptions(scenario=scenario, **options)))


def test_a_resnet_on_64_512_and_2048_ranks(quick):
    """1,281,167 samples: 20,019, 2,503 and 626 a rank. 1/n is more than under global shuffle by
    2 a/((1 + a) S) (1 - 1/M), a = 0.9^20 on 2,048 ranks (3.5e-4); by less than 1e-6 on
    512 (0.9^78), and by nothing on 64. c is that of networks of convolutions."""
    scenario = load_scenario("abci-imagenet1k", {"workload.exchange": "local_shuffle"})
    result = found(scenario, world_size=(2048, 64, 512))
    rows = result.tables["settings"].set_index("world_size")
    assert list(rows.index) == [64, 512, 2048]
    assert rows["samples"].tolist() == [20_019, 2_503, 626]
    assert rows["iterations"].tolist() == [626, 78, 20]
    # 625 batches of 32 and one of 19; 78 of 32, as 7 more are less than half a batch
    last = 0.1**2 / 19 + 0.9**2 * 0.1 / (32 * 1.9)
    assert rows["n"].tolist()[:2] == pytest.approx([1 / last, 32 * 1.9 / 0.1], rel=2e-4)
    of = read_sensitivities().query("norm == 'batch' and layers == 'convolution'")
    c = math.exp(np.log(of["c"]).mean())  # a row for each network, known about as well
    a = 0.9**20
    expected = c * 2 * a / ((1 + a) * 626) * (1 - 1 / 2048)
    assert 0.0002 < expected < 0.01
    assert rows["loss_points"].tolist() == pytest.approx([0.0, 0.0, expected], abs=1e-4)
    assert rows.loc[2048, "loss_points"] == pytest.approx(expected, rel=0.3)
    beside = NORMAL_QUANTILE * math.sqrt(
        float((of["rms"] ** 2).mean())
    )  # settings beside the curve
    assert (rows["high_points"] - rows["loss_points"] >= beside - 1e-9).all()
    assert rows["enough"].all()
    said = " ".join(result.verdict())
    assert "nothing has to be done" in said
    assert "network resnet50" in said and "samples a rank 20,019, 2,503" in said
    assert "random shards" in said


@pytest.mark.parametrize("model", [None, "never heard of"])
def test_remedies_of_unknown_layers_say_which_costs_are_missing(model, quick, tmp_path):
    """Pooling and summing in training have no cost then; recomputing has that of its passes."""
    scenario = small(world_size=16, workload__dataset__num_samples=160, cluster__host__gpus=4)
    options = {"screening": screening(tmp_path), "tolerance": 0.5, "model": model}
    table = found(scenario, **options).tables["remedies"]
    summing = table[table["kind"].isin({"pooled", "recomputed", "sync batch norm"})]
    costs = summing.set_index("kind")["added_s"]
    assert (costs["recomputed"] > 0).all()
    known = model is None
    assert costs.drop("recomputed").notna().all() == known
    assert summing["note"].str.contains("layers are not known").all() != known


def test_where_much_is_lost_the_quickest_remedy_that_is_enough(quick, tmp_path):
    """16 ranks with 10 samples, one batch: n = 10, against 1/n = 1/190 + (1/10 - 1/190)/160, and c
    of 150: 13.3 points. Larger batches cannot be had; statistics of all ranks together rest on more
    than global shuffle has on one, for the 0.25 s of a sum."""
    scenario = small(world_size=16, workload__dataset__num_samples=160, cluster__host__gpus=4)
    result = found(scenario, screening=screening(tmp_path), tolerance=0.5)
    of = result.tables["settings"].iloc[0]
    fresh = 0.1 / (10 * 1.9)
    everywhere = fresh + (0.1 - fresh) / 16
    assert of["n"] == pytest.approx(10.0, rel=1e-6)
    assert of["n_global"] == pytest.approx(1 / everywhere, rel=1e-4)
    assert of["loss_points"] == pytest.approx(C * (0.1 - everywhere), rel=1e-4)
    assert of["low_points"] == pytest.approx(C_LOW * (0.1 - everywhere), rel=1e-4)
    assert of["high_points"] == pytest.approx(C_HIGH * (0.1 - everywhere), rel=1e-4)
    assert not of["enough"] and "local batch" not in of["outside"]  # 10, which was tried
    table = result.tables["remedies"].set_index("remedy")
    assert table.loc[table["chosen"]].index.tolist() == ["pooled"]
    row = table.loc["pooled"]
    assert row["n"] == pytest.approx(160.0, rel=1e-6)  # all samples, each always there
    assert row["added_s"] == pytest.approx(0.25)
    assert row["own_points"] == pytest.approx(0.0, abs=1e-9)
    assert "10 samples" in table.loc["local batch 20", "note"]
    assert pd.isna(table.loc["local batch 20", "loss_points"])
    host = table.loc["sync batch norm, host"]
    assert host["added_s"] == pytest.approx(0.5)  # one iteration
    assert host["n"] == pytest.approx(40.0, rel=1e-6)  # 4 ranks of a host with 10 each
    assert host["low_points"] < host["loss_points"] < host["high_points"]
    partial, oldest = table.loc["partial 0.3"], table.loc["oldest 0.3"]
    assert 10.0 < partial["n"] < oldest["n"] < of["n_global"]
    assert partial["added_s"] == pytest.approx(0.3)
    assert table.loc[
        "global from the PFS", ["loss_points", "low_points", "high_points"]
    ].tolist() == [0, 0, 0]
    slow = table.loc["momentum 0.01"]
    assert slow["n"] == pytest.approx(10.0, rel=1e-4)  # a shard is all that there is
    assert "momentum 0.01 (tried: 0.1)" in slow["outside"] and "too slow" in slow["note"]
    assert not slow["chosen"] and not slow["front"]
    # each on the front is beaten by none
    front = table[table["front"]].sort_values("added_s")
    assert front["loss_points"].is_monotonic_decreasing
    said = " ".join(result.verdict())
    assert "is pooled" in said and "a screening of mine on my images" in said


def test_the_front_is_of_remedies_that_no_other_beats():
    """By seconds and points. Equal remedies do not beat each other."""
    known = {"slow": (2.0, 1.0), "fast": (1.0, 2.0), "as fast": (1.0, 2.0)}
    beaten = {"slower": (3.0, 1.0), "worse": (1.0, 2.5)}
    found = [
        RemedyEstimate(name, "", None, LossEstimate(p, 0, 0), None, s)
        for name, (s, p) in (known | beaten).items()
    ]
    found.append(RemedyEstimate("impossible", "", None, NO_LOSS, None, 0.0, is_choosable=False))
    found += [
        RemedyEstimate("no points", "", None, None, None, 0.0),
        RemedyEstimate("no time", "", None, NO_LOSS),
    ]
    assert front_names(found) == {*known}


@pytest.mark.parametrize(("samples", "last"), [(800, []), (840, [5])])
def test_what_recomputed_statistics_take(quick, tmp_path, samples, last):
    """All samples on 8 ranks: forward passes of ten batches, a last one of the rest, and a sum."""
    scenario = small(workload__dataset__num_samples=samples)
    rows = found(scenario, screening=screening(tmp_path)).tables["remedies"].set_index("remedy")
    row = rows.loc[f"recomputed on {samples} samples"]
    forward = scenario.step_times.forward_of(np.array([10] * 10 + last)).sum()
    assert row["n"] == samples
    assert row["added_s"] == pytest.approx(forward + 0.25, rel=1e-9)
    assert row["own_points"] == 0.0


@pytest.mark.parametrize(("epochs", "note"), [(299, "too slow"), (301, "")])
def test_a_slow_momentum_may_reach_back_a_tenth_of_the_training(quick, tmp_path, epochs, note):
    """3/0.01 iterations: 30 epochs of ten."""
    rows = found(small(), screening=screening(tmp_path), epochs=epochs).tables["remedies"]
    (told,) = rows.loc[rows["remedy"] == "momentum 0.01", "note"]
    assert told.partition(":")[0] == note


def test_a_larger_batch_is_told_against_both(quick, tmp_path):
    """100 samples in batches of 20, not of 10: n and n of global shuffle both grow."""
    table = found(small(), screening=screening(tmp_path)).tables["remedies"].set_index("remedy")
    a, m, b = 0.9**5, 0.1, 20
    repeats = 2 * a / ((1 + a) * 100)
    row = table.loc["local batch 20"]
    assert row["n"] == pytest.approx(1 / (m / (b * 1.9) + repeats), rel=1e-3)
    assert row["own_points"] == pytest.approx(C * repeats * (1 - 1 / 8), rel=1e-3)
    assert row["loss_points"] < row["own_points"]
    assert row["added_s"] == pytest.approx(-0.1)
    assert table.loc["sync batch norm, all", "added_s"] == pytest.approx(10 * 2.0)  # iterations
    assert "local batch 20 (tried: 10)" in row["outside"]


def test_global_shuffle_loses_nothing_and_has_no_remedies(quick):
    result = found(small(workload__exchange="global_shuffle"))
    assert result.tables["remedies"]["remedy"].tolist() == ["as it is"]
    lost = result.tables["settings"][["loss_points", "low_points", "high_points"]]
    assert (lost.to_numpy() == 0).all()


def test_without_batch_norm_n_is_not_defined(quick):
    result = found(small(), model="vit_b_16")
    row = result.tables["settings"].iloc[0]
    assert pd.isna(row["n"]) and pd.isna(row["n_global"])
    assert row["loss_points"] == 0.0
    assert row["high_points"] == -row["low_points"] > 0
    assert "n is not defined" in " ".join(result.verdict())
    assert result.tables["remedies"]["remedy"].tolist() == ["as it is"]


def swept(exchanges: list[str], **axes: list[Any]) -> Scenario:
    return small().model_copy(update={"sweep": {**axes, "workload.exchange": exchanges}})


PARTIAL = "partial_local_shuffle:exchange_fraction"


def test_every_run_of_a_sweep_has_its_answer(quick, tmp_path):
    """Not global shuffle of the scenario compared with itself: local shuffle on 4 and 8 ranks loses
    what it loses alone, and an exchange less."""
    runs = swept(["global_shuffle", "local_shuffle", f"{PARTIAL}=0.5"], world_size=[8, 4])
    result = found(runs, screening=screening(tmp_path))
    settings = result.tables["settings"].set_index(["world_size", "strategy"])["loss_points"]
    assert list(settings.index) == [
        (size, name)
        for size in (4, 8)
        for name in ("global-pfs", "local", "partial-0.5 streamlined")
    ]
    for size in (4, 8):
        alone = small(workload__exchange="local_shuffle", world_size=size)
        single = found(alone, screening=screening(tmp_path)).tables["settings"].iloc[0]
        assert settings[size, "local"] == pytest.approx(single["loss_points"])
        assert settings[size, "global-pfs"] == 0
        assert 0 < settings[size, "partial-0.5 streamlined"] < settings[size, "local"]
    of_local = result.tables["remedies"].query("world_size == 8 and strategy == 'local'")
    assert of_local["chosen"].sum() <= 1 < len(of_local)
    said = " ".join(result.verdict())
    assert "On 4 ranks" in said and "On 8 ranks" in said
    assert again_is_the_same(result, request(AccuracyOptions(scenario=runs)), tmp_path)


def again_is_the_same(result: Result, asked: Any, place: Path) -> bool:
    folder = result.save(place / "kept", draw=False)
    names = [case.name for case in repeat(folder, result.meta).values.cases]
    return names == [case.name for case in asked.values.cases]


def test_world_sizes_that_are_given_take_the_place_of_those_that_are_swept(quick):
    asked = request(
        AccuracyOptions(
            scenario=swept(["local_shuffle", f"{PARTIAL}=0.5"], world_size=[8, 4]),
            world_size=(2,),
        )
    )
    assert [case.name for case in asked.values.cases] == [
        "local @2",
        "partial-0.5 streamlined @2",
    ]


def test_a_network_of_which_nothing_is_known_is_not_silently_one_with_batch_norm(quick):
    said = " ".join(found(small(), model="ours").verdict())
    assert "the norm of ours is not known: batch norm is assumed." in said
    assert "--norm layer" in said
    said = " ".join(found(small(), model="our-vit-huge").verdict())
    assert "assumed" not in said
    assert "the law does not apply" in said and "lose 0 points" in said


def test_without_batch_norm_only_the_runs_are_simulated():
    asked = request(AccuracyOptions(scenario=small(), model="vit_b_16")).values
    first, second = (stage(asked, {}) for stage in STUDY.stages)
    assert [name for name in first if not name.startswith("n of ")] == ["as it is, local @8"]
    assert second == {}


def test_epochs_beyond_the_limit_are_timed_by_closed_forms(quick, monkeypatch):
    monkeypatch.setattr(study, "MAX_SIMULATED_SECONDS", 0.0)
    row = found(small()).tables["settings"].iloc[0]
    assert row["timed"] == "closed forms"
    assert row["epoch_s"] == pytest.approx(closed_form_epoch(small(epochs=2)))
    exact = found(small(), exact=True).tables["settings"].iloc[0]
    assert (exact["timed"], exact["epoch_s"]) == ("simulation", 9.9)
    assert exact["loss_points"] == row["loss_points"]


def test_the_first_answer_is_what_local_shuffle_loses(quick, tmp_path):
    asked = request(
        AccuracyOptions(
            scenario=swept(["global_shuffle", "local_shuffle", f"{PARTIAL}=0.5"]),
            screening=screening(tmp_path),
        )
    ).values
    (line,) = lines(asked)
    lost = found(small(), screening=screening(tmp_path)).tables["settings"]["loss_points"].iloc[0]
    assert f"local, partial-0.5 streamlined lose at most {lost:.2f} points" in line


def test_results_of_earlier_versions_are_read(quick, tmp_path):
    result = found(small(), screening=screening(tmp_path))
    folder = result.save(tmp_path / "old", draw=False)
    for name, lacking in (("settings", "timed"), ("remedies", "strategy")):
        path = folder / f"{name}.csv"
        pd.read_csv(path).drop(columns=lacking).to_csv(path, index=False)
    meta = json.loads((folder / "meta.json").read_text())
    del meta["asked"]["exact"], meta["accuracy"]["norm_is_known"]
    (folder / "meta.json").write_text(json.dumps(meta))
    old = engine.read(STUDY, folder)
    assert [*old.verdict()] == [*result.verdict()]
    assert len([*old.parts()]) == len([*result.parts()])
    assert repeat(folder, meta).values.exact


def test_the_scenario_s_own_exchange_is_not_offered_again(quick):
    own = "partial_local_shuffle:exchange_fraction=0.1,schedule=authors"
    asked = request(AccuracyOptions(scenario=small(workload__exchange=own))).values
    changes = {of.name: of.scenario for of in asked.cases[0].changes}
    assert "partial 0.1" not in changes and "partial 0.03" not in changes
    assert {"oldest 0.1", "partial 0.3", "oldest 0.3"} <= set(changes)
    chosen = changes["oldest 0.3"]
    assert chosen is not None
    exchange = chosen.workload.exchange
    assert exchange.exchange_schedule is not None
    assert (exchange.fraction, exchange.exchange_schedule.barriers) == (0.3, "message")


def test_an_exchange_that_does_not_fit_the_hosts_says_so(quick):
    """100 samples of 100 kB a rank are 10 MB: no room for three tenths more."""
    result = found(small(cluster__ssd__capacity="11.5 MB"), exact=True)
    table = result.tables["remedies"].set_index("remedy")
    assert pd.isna(table.loc["partial 0.3", "loss_points"])
    assert "keeps" in table.loc["partial 0.3", "note"]
    assert pd.notna(table.loc["partial 0.1", "loss_points"])


# --------------------------------------------------------------------------- what is refused


def test_a_screening_takes_the_place_of_the_table(tmp_path):
    path = screening(tmp_path, seeds=5)  # what is not known is left out
    asked = request(AccuracyOptions(scenario=small(), screening=path)).values
    assert (asked.sensitivity.model, asked.sensitivity.c) == ("mine", C)
    assert (asked.sensitivity.low, asked.sensitivity.high) == pytest.approx((C_LOW, C_HIGH))
    assert asked.sensitivity.tried == {"local batch": (10, 10), "n": (20.0, 180.0)}
    layer = screening(tmp_path, norm="layer", rms=0.4)
    asked = request(AccuracyOptions(scenario=small(), screening=layer)).values
    assert (asked.sensitivity.c, asked.sensitivity.rms) == (0.0, 0.4)


def test_a_result_with_a_screening_is_asked_for_again_from_its_folder(quick, tmp_path):
    asked = request(AccuracyOptions(scenario=small(), screening=screening(tmp_path)))
    folder = engine.run(STUDY, asked).save(tmp_path / "mine")
    (tmp_path / "screening.json").unlink()
    same = repeat(folder, engine.read(STUDY, folder).meta)
    assert fingerprint(STUDY, same) == fingerprint(STUDY, asked)


def test_importances_of_every_epoch_anew_are_owned_up_to(quick):
    exchange = "importance_exchange:exchange_fraction=0.3"
    assert "the loss is larger" in str(found(small(workload__exchange=exchange)))
    assert "the loss is larger" not in str(found(small()))


def test_a_function_gives_the_same(tmp_path):
    path = screening(tmp_path)
    result = accuracy(small(cluster__host__gpus=4), screening=path, momentum=0.1, progress=False)
    remedies = result.tables["remedies"].set_index("remedy")
    # the sums of the machine: all at once take less than layer by layer
    assert 0 < remedies.loc["pooled", "added_s"] < remedies.loc["sync batch norm, all", "added_s"]
    assert remedies.loc["sync batch norm, host", "added_s"] > 0
