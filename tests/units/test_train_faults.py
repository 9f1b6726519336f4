"""Bad input and faults of trainings: said at once, with what to do; and what a training must never
do to the caller's things."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from simshuffle.errors import InputError
from simshuffle.spec.library import parse_kind
from simshuffle.studies.training.tables import EPOCH_COLUMNS, IMPORTANCE_COLUMNS, ITERATION_COLUMNS
from simshuffle.study.store import TABLE
from simshuffle.train import Diverged, Emulation, Run, Training, check_run, emulate, train_run
from simshuffle.train.cell import TrainingCell
from simshuffle.train.data import Digits
from simshuffle.train.models import Mlp, SmallCnn
from simshuffle.train.partition import DirichletPartition
from simshuffle.train.recording import strategy_label
from simshuffle.train.samples import Samples, TrainingSet
from simshuffle.train.sources import ArraySource, DatasetSource
from simshuffle.workload.exchange import (
    ImportanceExchange,
    ImportancePair,
    LocalShuffle,
    PartialLocalShuffle,
)

LOCAL = LocalShuffle(kind="local_shuffle")
PARTIAL, EXCHANGE, PAIR = (
    f"{kind}:exchange_fraction"
    for kind in ("partial_local_shuffle", "importance_exchange", "importance_pair")
)
RULE = "schedule.partner_rule"


pytestmark = pytest.mark.usefixtures("one_thread")


def tensors(count: int = 64, features: int = 6) -> TensorDataset:
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(count, features)).astype(np.float32)
    return TensorDataset(
        torch.from_numpy(inputs), torch.from_numpy((inputs[:, 0] > 0).astype(np.int64))
    )


def network(features: int = 6) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def training_set(count: int = 64) -> TrainingSet:
    rng = np.random.default_rng(2)
    some = [
        Samples(rng.normal(size=(n, 6)).astype(np.float32), rng.integers(0, 3, n))
        for n in (count, 20)
    ]
    return TrainingSet("noise", some[0], some[1], 3)


def run(**values: Any) -> Run:
    how = values.pop("training", {})
    return Run(
        **{
            "data": Digits(kind="digits"),
            "model": Mlp(kind="mlp", width=8),
            "exchange": PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=0.25),
            "world_size": 4,
            "training": Training(**{"epochs": 2, **how}),
            **values,
        }
    )


def emulated(model: nn.Module | None = None, train: Any = None, **values: Any) -> Any:
    return emulate(
        network() if model is None else model,
        tensors() if train is None else train,
        tensors(20),
        **{"world_size": 4, "epochs": 2, "learning_rate": 0.1, **values},
    )


# ----------------------------------------------------------------------------------------- the door


def test_three_lines_train_a_model_of_the_caller():
    """A linearly separable problem is learnt; the model and its mode, the random state and the data
    stay as they were."""
    model = network().eval()
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    shares: list[float] = []
    record = emulated(model, strategy=f"{PARTIAL}=0.1", epochs=40, progress=shares.append)
    assert record.status == "done"
    assert record.epochs.own_accuracy.iloc[-1] >= 0.9
    assert record.description["strategy"] == "partial_local_shuffle"
    assert not model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    trained = type(model)(*[copy.deepcopy(layer) for layer in model])
    trained.load_state_dict(record.model.state_dict())
    inputs, targets = tensors(20).tensors
    found = (record.model(inputs).argmax(1) == targets).float().mean()
    assert float(found) == pytest.approx(record.epochs.pooled_accuracy.iloc[-1])


def test_a_record_is_as_good_as_its_text():
    model, pair = (
        network(),
        ImportancePair(kind="importance_pair", exchange_fraction=0.2, lagging=True),
    )
    named = emulated(model, strategy=f"{PAIR}=0.2,lagging=true", partition="dirichlet:alpha=0.5")
    partition = DirichletPartition(kind="dirichlet", alpha=0.5)
    given = emulated(model, strategy=pair, partition=partition)
    pd.testing.assert_series_equal(named.epochs.train_loss, given.epochs.train_loss)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"strategy": "partial_shuffle:exchange_fraction=1"}, "strategy.kind: .*partial_local_sh"),
        ({"strategy": "partial_local_shuffle:0.1"}, "strategy: parameters are written name=value"),
        ({"strategy": "partial_local_shuffle:exchange_fraction=2"}, "exchange_fraction: .* to 1"),
        ({"partition": "sorted_by_label"}, "partition.kind: must be one of"),
        ({"epohcs": 3}, "training.epohcs: is not a known key.*Did you mean 'epochs'"),
        ({"learning_rate": -0.1}, "training.learning_rate: .*greater than 0"),
        ({"world_size": 0}, "world_size: .*greater than or equal to 1"),
        ({"world_size": 65}, "world_size: must not exceed .* training samples, 64; got 65"),
        ({"device": "tpu3"}, "device: cannot be used"),
        ({"world_size": 16, "local_batch_size": 8, "drop_last": True}, "not be more than the 4 s"),
        ({"local_batch_size": 1}, "batch norm '1' cannot .* single sample, but local_batch_size"),
        ({"local_batch_size": 5}, "but the last local batch holds.*drop_last: true"),
    ],
)
def test_bad_arguments_are_named(values, message):
    with pytest.raises(InputError, match=message):
        emulated(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"local_batch_size": 5, "drop_last": True},
        {"local_batch_size": 5, "batch_norm": "sync"},
        {"local_batch_size": 1, "batch_norm": "none"},
    ],
)
def test_the_remedies_for_a_single_sample_work(values):
    assert emulated(**values).status == "done"


def test_as_many_ranks_as_samples_and_a_single_one():
    assert emulated(world_size=64, local_batch_size=1, batch_norm="none").status == "done"
    alone = emulated(world_size=1)
    assert alone.epochs.own_accuracy.equals(alone.epochs.rank0_accuracy)
    assert alone.epochs.own_accuracy.equals(alone.epochs.pooled_accuracy)


# ----------------------------------------------------------------------------------------- datasets


class Listed(Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([])


X = torch.zeros(6)
PAIRS, INPUTS = "train: items must be pairs ", "train: inputs must be "
TARGETS = "train: targets must be whole numbers from 0; got "


def eight(item: Any) -> Listed:
    return Listed([item] * 8)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (TensorDataset(torch.zeros(8, 6)), PAIRS + r"\(input, .*got 1 values at 0.*needs targets"),
        (eight(X), PAIRS + ".*; got a Tensor at 0"),
        (eight({"image": 1, "label": 0}), PAIRS + ".*; got a dict at 0"),
        (Listed([(X, 0)] * 7 + [(X, None)]), TARGETS + "None at 7"),
        (eight((X, -1)), TARGETS + "-1 at 0"),
        (eight((X, 0.5)), TARGETS + "0.5 at 0"),
        (eight((X, torch.zeros(2, dtype=torch.int64))), TARGETS),
        (eight((object(), 0)), INPUTS + "tensors or arrays of one shape.*; got object.*ToTensor"),
        (Listed([(torch.zeros(6 + i), 0) for i in range(8)]), INPUTS + "tensors or arrays of one"),
        (eight(((X, X), 0)), INPUTS + "one tensor or array each; got tuple"),
        (Listed([]), "train: must hold samples; got none"),
        (Stream(), "train: must be a map-style dataset.*; got Stream"),
        (eight((X, 2)), "model: must give a logit for .*; the largest is 2; got 2 outputs"),
        (eight((torch.zeros(5), 1)), r"model: cannot take the samples: .*; got inputs \(4, 5\)"),
    ],
)
def test_datasets_that_cannot_be_trained_on(dataset, message):
    with pytest.raises(InputError, match=f"(?s){message}"):
        emulated(train=dataset)


def test_items_are_read_as_they_come_and_targets_in_many_forms():
    targets = [0, np.int32(1), torch.tensor(1), np.array([0]), torch.tensor([1])]
    items = [(np.full(6, i, np.float32), target) for i, target in enumerate(targets)]
    source = DatasetSource(Listed(items), dtype=torch.float64)
    assert source.targets.tolist() == [0, 1, 1, 0, 1]
    inputs, labels = source.batch(np.array([3, 1]))
    assert inputs.dtype == torch.float64
    assert inputs[:, 0].tolist() == [3, 1]
    assert labels.tolist() == [0, 1]


def test_targets_of_a_dataset_spare_reading_all_items():
    class Counted(Listed):
        read = 0

        def __getitem__(self, index: int) -> Any:
            Counted.read += 1
            return super().__getitem__(index)

    data = Counted([(torch.zeros(6), i % 2) for i in range(8)])
    data.targets = [i % 2 for i in range(8)]  # type: ignore[attr-defined]
    assert DatasetSource(data).targets.tolist() == data.targets  # type: ignore[attr-defined]
    assert Counted.read == 1
    data.target_transform = lambda label: label  # type: ignore[attr-defined]
    DatasetSource(data)
    assert Counted.read == 10  # a transform of targets may change them


def test_bytes_become_fractions_normalised_by_channel():
    raw = np.array([[[[0, 255]], [[51, 102]]]], np.uint8)  # one sample of two channels, 1 x 2
    source = ArraySource(Samples(raw, np.array([1])), (0.5, 0.2), (0.25, 0.1), dtype=torch.float64)
    expected = torch.tensor([[[[-2.0, 2.0]], [[0.0, 2.0]]]], dtype=torch.float64)
    torch.testing.assert_close(source.batch(np.array([0]))[0], expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(raw, [[[[0, 255]], [[51, 102]]]])


# ------------------------------------------------------------------------------------------- models


class Centred(nn.Module):
    """Subtracts the mean over the batch, unseen by who looks at its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x - x.mean(0))


class Pair(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), x


@pytest.mark.parametrize("mode", ["per_rank", "none"])
def test_a_model_that_mixes_ranks_is_found_by_trying(mode):
    with pytest.raises(InputError, match=r"depend on samples of other ranks; got Centred.*sync"):
        emulated(Centred(), batch_norm=mode)
    assert emulated(Centred(), batch_norm="sync").status == "done"


def layers(*parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(*parts)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (layers(nn.Linear(6, 8), nn.SyncBatchNorm(8)), "1: keeps statistics.*SyncBatchNorm.*sync"),
        (layers(nn.LazyLinear(2)), "0: has no weights yet; got LazyLinear"),
        (layers(nn.Linear(6, 2), nn.Flatten(0)), r"one row .*\(4, classes\); got \(8,\)"),
        (Pair(6, 2), "must give one row of logits .*; got a tuple"),
    ],
)
def test_models_that_cannot_be_trained(model, message):
    with pytest.raises(InputError, match=message):
        emulated(model)


def test_dropout_trains_and_draws_the_same_every_time():
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    first = emulated(model)
    torch.manual_seed(99)  # the caller's generator is of no effect
    second = emulated(model)
    pd.testing.assert_series_equal(first.epochs.train_loss, second.epochs.train_loss)


# --------------------------------------------------------------------------------------- divergence


def test_a_loss_that_is_not_finite_ends_the_run_with_epoch_rank_and_learning_rate():
    data = training_set()
    data.train.inputs[17] = np.inf
    how = {"batch_norm": "none", "decay": "none", "learning_rate": 0.25}
    one = run(exchange=LOCAL, training=how)
    owner = one.partition.owner(data.train.targets, 4, one.rng("partition"))
    record = train_run(one, data=data)
    assert record.status == "failed"
    assert "epoch 1, iteration" in record.message
    assert f"first on rank {owner[17]}, learning rate 0.25" in record.message
    assert len(record.epochs) == 0
    assert list(record.epochs.columns) == list(EPOCH_COLUMNS)


def test_a_learning_rate_that_is_too_high_leaves_the_epochs_before():
    """A step multiplies the weights by about 1 - rate; with a rate that is the epoch, float32
    overflows within 30 epochs of two steps."""
    how = {"learning_rate": 30, "batch_norm": "none", "momentum": 0.0, "weight_decay": 1.0}
    how |= {"epochs": 30, "warmup_epochs": 30}
    record = train_run(run(training=how), data=training_set())
    assert record.status == "failed"
    assert "not finite: epoch" in record.message
    assert 0 < len(record.epochs) < 30
    assert np.isfinite(record.epochs.train_loss).all()
    assert record.plans is not None
    assert len(record.plans.plans) == len(record.epochs)


def test_step_by_step_it_is_an_exception_and_weights_are_those_before():
    data = training_set()
    data.train.inputs[:] = np.nan
    with pytest.raises(Diverged, match="epoch 1, iteration 0, first on rank 0") as caught:
        emulation(data).epoch()
    assert (caught.value.epoch, caught.value.iteration, caught.value.rank) == (1, 0, 0)


def emulation(data: TrainingSet, **values: Any) -> Emulation:
    model = Mlp(kind="mlp", width=8).build((6,), 3)
    return Emulation(
        model,
        ArraySource(data.train),
        **{"strategy": LOCAL, "world_size": 4, "training": Training(), **values},
    )


# ------------------------------------------------------------------------------------------ records


def test_the_tables_of_a_run():
    exchange = ImportanceExchange(kind="importance_exchange", exchange_fraction=0.25)
    record = train_run(
        run(exchange=exchange, training={"epochs": 5, "evaluate_every": 2}), data=training_set(70)
    )
    assert list(record.epochs.columns) == list(EPOCH_COLUMNS)
    assert list(record.iterations.columns) == list(ITERATION_COLUMNS)
    assert list(record.importance.columns) == list(IMPORTANCE_COLUMNS)
    assert record.epochs.epoch.tolist() == [1, 2, 3, 4, 5]
    assert record.epochs.samples.tolist() == [72] * 5  # 18 on each of 4 ranks
    assert record.epochs.own_accuracy.notna().tolist() == [False, True, False, True, True]
    assert (record.epochs.importance_s > 0).all()
    assert record.importance.source.tolist() == ["inference", "training"] * 5
    assert len(record.iterations) == 5 * 3
    assert (record.iterations[["forward_s", "backward_s", "update_s"]] > 0).all(axis=None)
    assert record.plans is not None
    moved = [plan.samples_moved for plan in record.plans.plans]
    assert record.epochs.moved.tolist() == moved
    expected = {
        "data": "noise",
        "model": "mlp",
        "partition": "random",
        "strategy": "importance_exchange",
        "label": "importance_exchange-0.25",
        "exchange_fraction": 0.25,
        "lagging": False,
        "selection": "importance",
        "partner_rule": "random",
        "statistics_momentum": 0.1,
        "importance_pass": "eval",
        "world_size": 4,
        "local_batch_size": 8,
        "batch_norm": "per_rank",
        "sync_ranks": None,
        "learning_rate": 0.1,
        "epochs": 5,
        "seed": 0,
        "num_samples": 70,
        "parameters": 6 * 8 + 8 * 8 + 4 * 8 + 9 * 3,
        "device": "cpu",
    }
    found = dict(record.description)
    trained = ImportanceExchange(kind="importance_exchange", exchange_fraction=0.25)
    assert ImportanceExchange.model_validate(found.pop("exchange")) == trained
    measured = {key: found.pop(key) for key in ("samples_per_s", "effective_samples")}
    assert found == expected
    assert measured["samples_per_s"] > 0
    assert 70 / 4 < measured["effective_samples"] < 70


@pytest.mark.parametrize("kind", ["global_shuffle", "local_shuffle"])
def test_nothing_exchanged_leaves_no_plans(kind):
    record = train_run(run(exchange={"kind": kind}), data=training_set())
    assert record.plans is None
    assert record.epochs.moved.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("strategy", "label"),
    [
        ("global_shuffle", "global_shuffle"),
        ("local_shuffle", "local_shuffle"),
        (f"{PARTIAL}=0.1", "partial_local_shuffle-0.1"),
        (f"{PARTIAL}=0.1,selection=oldest", "partial_local_shuffle-0.1-oldest"),
        (f"{PAIR}=0.1,lagging=true", "importance_pair-0.1-lagging"),
        (f"{EXCHANGE}=1,selection=highest", "importance_exchange-1-highest"),
        (f"{PARTIAL}=0.3,{RULE}=random_pairs", "partial_local_shuffle-0.3-random_pairs"),
        (f"{PAIR}=0.1,schedule.rank_importance=mean", "importance_pair-0.1-mean"),
    ],
)
def test_labels(strategy, label):
    assert strategy_label(run(exchange=parse_kind(strategy)).exchange) == label


def test_the_same_run_gives_the_same_weights_bit_by_bit():
    """And evaluations, and another number of them, shift nothing."""
    first, second = train_run(run(), data=training_set()), train_run(run(), data=training_set())
    pd.testing.assert_frame_equal(first.epochs, second.epochs)
    how = {"evaluate_every": 2, "statistics": ["rank0"], "own_ranks": 1}
    seldom = train_run(run(training=how), data=training_set())
    pd.testing.assert_series_equal(first.epochs.train_loss, seldom.epochs.train_loss)
    assert first.epochs.rank0_loss.iloc[-1] == seldom.epochs.rank0_loss.iloc[-1]
    other = train_run(run(seed=1), data=training_set())
    assert other.epochs.train_loss.iloc[0] != first.epochs.train_loss.iloc[0]


def test_the_number_of_threads_changes_rounding_at_most():
    weights = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        one = emulation(training_set(512), world_size=16)
        one.epoch()
        weights.append(one.weights())
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-5)


def test_a_cell_computes_with_one_thread_and_leaves_the_others_as_they_were():
    torch.set_num_threads(2)
    seen: list[int] = []
    cell = TrainingCell(run(training={"epochs": 1}), 1438, "one", "cpu")
    outcome = cell.run(lambda share: seen.append(torch.get_num_threads()))
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2
    assert outcome.values["status"] == "done"
    assert {f"{name}{TABLE}" for name in outcome.tables} | set(outcome.files) == cell.parts


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"world_size": 65}, "world_size: must not exceed the number of training samples, 64"),
        ({"model": SmallCnn(kind="small_cnn")}, "small_cnn takes images"),
        ({"training": {"local_batch_size": 5}}, "cannot normalise a single sample"),
    ],
)
def test_a_run_can_be_checked_before_it_is_trained(values, said):
    check_run(run(), training_set())
    with pytest.raises(InputError, match=said):
        check_run(run(**values), training_set())


def test_a_run_loads_its_data_itself():
    record = train_run(run(training={"epochs": 1}))
    assert record.status == "done"
    assert record.description["data"] == Digits(kind="digits").load().name


# ------------------------------------------------------------------------------ places of the ranks


def near(**values: Any) -> Run:
    exchange = f"{PARTIAL}=0.5,{RULE}=random_pairs,schedule.partner_scope=host"
    raw = {
        "data": {"kind": "digits", "flat": True},
        "model": {"kind": "mlp", "width": 8},
        "exchange": parse_kind(exchange),
        "world_size": 16,
        "training": {"epochs": 3, "local_batch_size": 16, "statistics": ["own"]},
    }
    return Run.model_validate(raw | values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "cluster: is needed to find partners on the same host"),
        ({"cluster": "nowhere"}, "no such topology"),
        ({"cluster": "small-fat-tree", "world_size": 1000}, "world_size: must not exceed the"),
    ],
)
def test_partners_of_the_same_host_need_a_cluster(values, said):
    with pytest.raises(InputError, match=said):
        check_run(near(**values))


def test_samples_stay_on_the_host_whose_ranks_exchange_them():
    """ABCI has 4 GPUs a host: rank r is on host r // 4, and nobody else gets its samples."""
    record = train_run(near(cluster="abci"))
    assert record.plans is not None
    for plan in record.plans.plans:
        assert plan.samples_moved > 0
        assert (plan.target // 4 == np.arange(16) // 4).all()


def test_label_divergence_of_sorted_shards_falls_as_samples_are_exchanged():
    """Sorted by label, 16 ranks of 10 labels are far from the whole set (0.5 and more); with
    everything exchanged at random, near it."""
    exchange = parse_kind("partial_local_shuffle:exchange_fraction=1")
    epochs = train_run(near(exchange=exchange, partition={"kind": "sorted"})).epochs
    assert epochs["label_divergence"].iloc[0] > 0.8
    assert epochs["label_divergence"].iloc[1] < 0.25


def test_a_contrastive_loss_and_an_importance_pass_cost_passes():
    """Two views are two passes; measuring importance is a third of one more."""
    plain, contrastive = (
        TrainingCell(run(training={"epochs": 1} | more), 1438, "one", "cpu").cost
        for more in ({}, {"loss": {"kind": "contrastive", "temperature": 0.2}})
    )
    assert contrastive == pytest.approx(2 * plain)
    exchange = ImportanceExchange(kind="importance_exchange", exchange_fraction=0.5, lagging=False)
    measured = TrainingCell(run(training={"epochs": 1}, exchange=exchange), 1438, "one", "cpu")
    assert measured.cost == pytest.approx((1 + 1 / 3) * plain)
