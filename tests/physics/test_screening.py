"""Screening: the statistics of ranks under weights that stay, against a training whose weights
do not move, and against what was derived by hand."""

import json
import math

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from simshuffle.errors import InputError
from simshuffle.extensions.learning.accuracy.sensitivity import (
    read_screening_file,
    screening_sensitivity,
)
from simshuffle.train import emulate
from simshuffle.train.screening import screen
from simshuffle.train.screening_result import Screening

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLES, CLASSES = 96, 4
STILL = {"learning_rate": 1e-30, "momentum": 0.0, "weight_decay": 0.0}


def data(count: int, seed: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    inputs = torch.randn(count, 6, generator=draw)
    inputs[torch.arange(count), labels] += 1.5
    return TensorDataset(inputs, labels)


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


STRATEGIES = (
    "local_shuffle",
    "partial_local_shuffle:exchange_fraction=0.5",
    "partial_local_shuffle:exchange_fraction=0.25,selection=oldest",
)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_statistics_are_those_of_a_training_that_stands_still(strategy):
    """Of 4 ranks all evaluate every test sample, in both: the same share is right. The momentum is
    so large that neither remembers where it began."""
    train, test = data(SAMPLES, 0), data(400, 1)
    found = screen(
        model(),
        train,
        test,
        strategies=strategy,
        world_size=4,
        local_batch_size=4,
        momentum=0.5,
        epochs=6,
        seeds=1,
        progress=False,
    )
    trained = emulate(
        model(),
        train,
        test,
        strategy=strategy,
        world_size=4,
        local_batch_size=4,
        statistics_momentum=0.5,
        epochs=6,
        **STILL,
    )
    row = found.settings.set_index("strategy").drop(index="global_shuffle").iloc[0]
    assert row["accuracy"] == pytest.approx(trained.epochs["own_accuracy"].iloc[-1], abs=1e-12)


def test_few_of_many_ranks_rest_on_as_many_samples():
    """A shard of 4 that is one batch: n = 4, on the 4 ranks that are emulated of 24."""
    found = screen(
        model(), data(SAMPLES, 0), data(40, 1), world_size=24, ranks=4, local_batch_size=4,
        seeds=2, progress=False,
    )  # fmt: skip
    rows = found.settings.set_index("strategy")
    assert rows.loc["local_shuffle", "effective_samples"] == pytest.approx(4.0)
    # fresh batches of 4: b (2 - m)/m = 76, less what returns by chance among 96 samples
    assert 30.0 < rows.loc["global_shuffle", "effective_samples"] < 76.0
    assert rows.loc["local_shuffle", "samples_per_rank"] == pytest.approx(4.0)


def test_the_law_is_fitted_through_its_settings(tmp_path):
    """And `simshuffle accuracy` reads it."""
    found = screen(
        model(), data(SAMPLES, 0), data(400, 1), world_size=[8, 24], local_batch_size=4,
        seeds=4, progress=False,
    )  # fmt: skip
    rows = found.settings
    of = rows.set_index(["strategy", "world_size"])
    n = of["effective_samples"]
    x = [1 / n["local_shuffle", m] - 1 / n["global_shuffle", m] for m in (8, 24)]
    y = [of.loc[("local_shuffle", m), "loss_points"] for m in (8, 24)]
    c = sum(a * b for a, b in zip(x, y, strict=True)) / sum(a * a for a in x)
    assert found.c_points == pytest.approx(c, rel=0.02)  # x of means, or mean of x
    assert found.c_low < found.c_points < found.c_high
    found.save(tmp_path / "screening.json")
    asked = screening_sensitivity(read_screening_file(tmp_path / "screening.json"), 0.1, None)
    # a training may lose 0.8 to 3 times that, and 1.5 times most likely; both errors as squares
    c, low, high = found.c_points, found.c_low, found.c_high
    assert (asked.c, asked.rms) == pytest.approx((1.5 * c, found.rms))
    assert asked.low == pytest.approx(1.5 * c - math.hypot(0.7 * c, 1.5 * (c - low)))
    assert asked.high == pytest.approx(1.5 * c + math.hypot(1.5 * c, 1.5 * (high - c)))
    assert asked.tried["n"] == pytest.approx((n.min(), n.max()))
    assert of.loc[("local_shuffle", 24), "loss_points"] > 1.0


def test_sorted_shards_have_no_law(tmp_path):
    found = screen(
        model(), data(SAMPLES, 0), data(40, 1), world_size=[4, 8], partition="sorted",
        local_batch_size=4, seeds=2, progress=False,
    )  # fmt: skip
    assert math.isnan(found.c_points)
    rows = found.settings.set_index(["strategy", "world_size"])
    # a rank of 4 holds one class of four: half of |1 - 1/4| + 3/4
    assert rows.loc[("local_shuffle", 4), "label_divergence"] == pytest.approx(0.75)
    found.save(tmp_path / "screening.json")
    kept = json.loads((tmp_path / "screening.json").read_text())
    assert kept["c_points"] is None
    assert [row["strategy"] for row in kept["settings"]] == list(found.settings["strategy"])
    assert kept["momentum"] == 0.1


def test_the_verdict_names_the_worst():
    rows = [("global_shuffle", 0.0, 0.0, 0.2), ("local_shuffle", 0.9, 1.2, 0.25)]
    rows.append(("other", 0.4, 0.7, 0.29))
    columns = ["strategy", "loss_points", "high", "label_divergence"]
    table = pd.DataFrame(rows, columns=columns).assign(world_size=24)
    found = Screening("M", "D", 0.1, 8, "random", table, *[math.nan] * 4, seeds=3)
    assert found.verdict(1.3).startswith("No setting loses more than 1.3 points")
    assert found.verdict(1.0).startswith("1 of 2 settings may lose more than 1 points")
    assert found.verdict(0.5).startswith("2 of 2 settings")
    assert "local_shuffle on 24 ranks, 0.90" in found.verdict(0.5)
    assert "labels" not in found.verdict(0.5)
    assert "Measure next" not in found.verdict(1.3)
    _, basis, following = found.verdict(0.5).splitlines()
    assert basis.startswith("Rests on: 3 draws of shards; ")
    assert following.startswith("Measure next: these settings")
    table.loc[2, "label_divergence"] = 0.31
    assert (
        "under other on 24 ranks, labels of shards differ from the set's (divergence 0.31"
        in found.verdict()
    )


def test_a_network_without_batch_norm_is_refused():
    net = nn.Sequential(nn.Linear(6, CLASSES))
    with pytest.raises(InputError, match="batch norm with running statistics") as error:
        screen(net, data(8, 0), data(8, 1), world_size=2, progress=False)
    assert error.value.problems[0].path == "model"
    assert error.value.problems[0].remedy


def test_more_ranks_than_samples_are_refused():
    with pytest.raises(InputError, match="ranks"):
        screen(model(), data(8, 0), data(8, 1), world_size=9, progress=False)


def test_a_last_batch_of_one_sample_is_refused():
    """Ranks of 5 samples, of which two are emulated that would have 10."""
    with pytest.raises(InputError, match="cannot normalise a single sample") as error:
        screen(
            model(), data(20, 0), data(8, 1), world_size=4, ranks=2, local_batch_size=4,
            progress=False,
        )  # fmt: skip
    assert "local_batch_size" in error.value.problems[0].path


def test_layers_that_differ_in_momentum_need_one():
    net = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.BatchNorm1d(8, momentum=0.3), nn.Linear(8, CLASSES)
    )
    with pytest.raises(InputError, match="one momentum"):
        screen(net, data(96, 0), data(8, 1), world_size=2, progress=False)
    assert screen(
        net, data(96, 0), data(8, 1), world_size=2, momentum=0.2, seeds=1, progress=False
    ).momentum == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["seeds", "ranks"])
def test_less_than_one_draw_or_rank_is_refused(name):
    with pytest.raises(InputError, match=f"{name}: must be at least 1; got 0"):
        screen(model(), data(8, 0), data(8, 1), world_size=2, progress=False, **{name: 0})
