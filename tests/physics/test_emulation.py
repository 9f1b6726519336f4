"""Emulated ranks against M networks trained side by side, and against what must hold whatever the
network."""

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simshuffle.spec.rng import stream
from simshuffle.train.batch_norm import statistics_momentum
from simshuffle.train.emulation import Emulation
from simshuffle.train.evaluate import Evaluation, own_pairs, own_score, recalibrate, score
from simshuffle.train.iterations import TrainingEpochs, epoch_samples, local_batches
from simshuffle.train.models import Mlp, ResNet, SmallCnn
from simshuffle.train.network import ACTIVATIONS_AT_ONCE, inference_losses
from simshuffle.train.recording import description, importance_row, variance_between_ranks
from simshuffle.train.samples import Samples
from simshuffle.train.sources import ArraySource
from simshuffle.train.training import Training
from simshuffle.workload.exchange import (
    EpochContext,
    GlobalShuffle,
    ImportanceExchange,
    ImportancePair,
    LocalShuffle,
    PartialLocalShuffle,
    Strategy,
    initial_owner,
)

CLASSES = 4
GLOBAL, LOCAL = GlobalShuffle(kind="global_shuffle"), LocalShuffle(kind="local_shuffle")
PARTIAL = PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=0.4)
STRATEGIES: list[Strategy] = [
    GLOBAL,
    LOCAL,
    PARTIAL,
    ImportanceExchange(kind="importance_exchange", exchange_fraction=0.4),
    ImportancePair(kind="importance_pair", exchange_fraction=0.4, lagging=True),
    PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=0.4, selection="oldest"),
]


pytestmark = pytest.mark.usefixtures("one_thread")


def samples(count: int, shape: tuple[int, ...] = (6,)) -> Samples:
    rng = np.random.default_rng(3)
    return Samples(
        rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(0, CLASSES, count)
    )


def source(count: int, shape: tuple[int, ...] = (6,)) -> ArraySource:
    return ArraySource(samples(count, shape), dtype=torch.float64)


def mlp(shape: tuple[int, ...] = (6,), network: Any = Mlp(kind="mlp", width=10)) -> nn.Module:  # noqa: B008 - frozen
    torch.manual_seed(11)
    model: nn.Module = network.build(shape, CLASSES)
    return model.double()


def training(**values: Any) -> Training:
    return Training(**{"local_batch_size": 4, "dtype": "float64", "epochs": 3, **values})


def emulation(data: ArraySource, strategy: Strategy, ranks: int, **how: Any) -> Emulation:
    return Emulation(mlp(), data, strategy=strategy, world_size=ranks, training=training(**how))


def same(found: dict[str, torch.Tensor], expected: nn.Module, atol: float = 1e-12) -> None:
    for name, weight in expected.named_parameters():
        torch.testing.assert_close(found[name], weight.detach(), rtol=0, atol=atol)


class SideBySide:
    """M networks, each with its own shard as a list, trained with the averaged gradient and
    exchanging samples one by one."""

    def __init__(
        self,
        model: nn.Module,
        data: ArraySource,
        strategy: Strategy,
        world_size: int,
        how: Training,
        seed: int,
    ) -> None:
        self.data, self.strategy, self.how = data, strategy, how
        self.seed, self.world_size = seed, world_size
        self.networks = [copy.deepcopy(model).train() for _ in range(world_size)]
        self.optimizers = [
            torch.optim.SGD(
                n.parameters(), lr=1.0, momentum=how.momentum, weight_decay=how.weight_decay
            )
            for n in self.networks
        ]
        self.owner = initial_owner(len(data), world_size, stream(seed, "partition"))
        self.losses = np.ones(len(data))
        self.held = np.zeros(len(data), int)

    def epoch(self, epoch: int) -> None:
        shards = self.strategy.shards(
            self.owner, self.world_size, stream(self.seed, "shuffle", epoch)
        )
        local = [list(part) for part in np.split(shards.order, shards.start[1:-1])]
        most = max(len(part) for part in local)
        padded = [part + part[: most - len(part)] for part in local]
        b = self.how.local_batch_size
        importance = (
            self.losses.copy() if not self.strategy.inference_pass else self.inference(padded)
        )
        iterations = -(-most // b)
        rng = stream(self.seed, "exchange", epoch)
        known = {"importance": importance, "held": self.held.copy()}
        plan = self.strategy.plan(EpochContext(shards, b, iterations, epoch, rng, **known))
        self.held += 1
        for iteration in range(iterations):
            batches = [part[iteration * b : (iteration + 1) * b] for part in padded]
            self.step(batches, epoch, iteration, iterations)
        for sent, targets in zip(plan.sample, plan.target, strict=True):
            for rank, target in enumerate(targets):
                local[rank].remove(sent[rank])
                local[target].append(sent[rank])
                self.held[sent[rank]] *= target == rank
        if self.strategy.fraction is not None:
            for rank, part in enumerate(local):
                self.owner[part] = rank

    def inference(self, padded: list[list[int]]) -> np.ndarray:
        out = np.full(len(self.data), np.nan)
        refreshes = self.how.importance_pass == "train"
        b = self.how.local_batch_size if refreshes else len(self.data)
        for network, part in zip(self.networks, padded, strict=True):
            network.train(refreshes)
            for begin in range(0, len(part), b):
                batch = part[begin : begin + b]
                inputs, targets = self.data.batch(np.array(batch))
                with torch.no_grad():
                    losses = F.cross_entropy(network(inputs), targets, reduction="none").numpy()
                fresh = np.isnan(out[batch])
                out[np.array(batch)[fresh]] = losses[fresh]
            network.train()
        return out

    def step(self, batches: list[list[int]], epoch: int, iteration: int, iterations: int) -> None:
        for network, batch in zip(self.networks, batches, strict=True):
            network.zero_grad()
            inputs, targets = self.data.batch(np.array(batch))
            losses = F.cross_entropy(network(inputs), targets, reduction="none")
            losses.mean().backward()
            self.losses[batch] = losses.detach().numpy()
        for weights in zip(*(network.parameters() for network in self.networks), strict=True):
            mean = torch.stack([weight.grad for weight in weights]).mean(0)  # the allreduce
            for weight in weights:
                weight.grad = mean.clone()
        rate = self.how.learning_rate_at(
            epoch - 1 + (iteration + 0.5) / iterations, self.world_size
        )
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()


@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        *((strategy, {}) for strategy in STRATEGIES),
        (STRATEGIES[3], {"importance_pass": "train", "statistics_momentum": 0.3}),
    ],
    ids=lambda value: getattr(value, "kind", "".join(map(str, value))),
)
def test_emulated_ranks_are_networks_side_by_side(strategy, more, monkeypatch):
    """Weights, running statistics of every rank, owners and losses after three epochs; 47 samples
    do not divide by 5 ranks or by 4."""
    # so that batches are worked off in parts of 2 or 1 ranks
    monkeypatch.setitem(ACTIVATIONS_AT_ONCE, "cpu", 400)
    data, how = source(47), training(warmup_epochs=1.0, **more)
    ours = Emulation(mlp(), data, strategy=strategy, world_size=5, training=how, seed=4)
    assert 1 < ours.network.rows_at_once < 12
    network = mlp()
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.momentum = how.statistics_momentum or 0.1
    theirs = SideBySide(network, data, strategy, 5, how, seed=4)
    for epoch in range(1, 4):
        ours.epoch()
        theirs.epoch(epoch)
    same(ours.weights(), theirs.networks[0])
    np.testing.assert_array_equal(ours.owner, theirs.owner)
    np.testing.assert_allclose(ours.last_losses, theirs.losses, rtol=0, atol=1e-12)
    for rank, network in enumerate(theirs.networks):
        for name, buffer in network.named_buffers():
            torch.testing.assert_close(
                dict(ours.model(rank).named_buffers())[name], buffer, rtol=0, atol=1e-12
            )


class Viewing(nn.Module):
    """Flattens by ``view``, which needs the usual order in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)
        self.head = nn.Linear(108, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(F.relu(self.norm(self.conv(x))).view(len(x), -1))
        return found


@pytest.mark.parametrize("kind", ["small_cnn", "viewing", "drawing"])
def test_order_in_memory_changes_nothing(kind, monkeypatch):
    """Channels come last in memory where the network takes that, and never where what it finds
    would be another."""
    torch.manual_seed(2)
    model = SmallCnn(kind="small_cnn", width=4).build((1, 8, 8), CLASSES)
    if kind == "drawing":  # in the order of memory
        model.relu1 = nn.Dropout(0.5)
    model = (Viewing() if kind == "viewing" else model).double()
    runs = []
    for usual in (False, True):
        if usual:
            monkeypatch.setattr(
                "simshuffle.train.probe._equal_with_channels_last", lambda *_: False
            )
        run = Emulation(
            model, source(32, (1, 8, 8)), strategy=PARTIAL, world_size=4, training=training()
        )
        kernels = [weight for weight in run.weights().values() if weight.ndim == 4]
        last = kind == "small_cnn" and not usual
        assert kernels and all((kernel.stride(1) == 1) == last for kernel in kernels)
        for _ in range(2):
            run.epoch()
        runs.append(run.network.model)
    for name, found in runs[0].state_dict().items():
        torch.testing.assert_close(found, runs[1].state_dict()[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "network", [SmallCnn(kind="small_cnn", width=4), ResNet(kind="resnet")], ids=lambda n: n.kind
)
def test_one_step_is_the_average_of_the_ranks_gradients(network):
    data, model, batch = source(24, (1, 8, 8)), mlp((1, 8, 8), network), np.arange(24).reshape(6, 4)
    ours = Emulation(
        model, data, strategy=LOCAL, world_size=4, training=training(local_batch_size=6)
    )
    ours.gradient(batch)
    total = [torch.zeros_like(weight) for weight in model.parameters()]
    for rank in range(4):
        alone = copy.deepcopy(model).train()
        inputs, targets = data.batch(batch[:, rank])
        F.cross_entropy(alone(inputs), targets).backward()
        total = [
            sum_ + weight.grad / 4 for sum_, weight in zip(total, alone.parameters(), strict=True)
        ]
    for weight, expected in zip(ours.network.model.parameters(), total, strict=True):
        torch.testing.assert_close(weight.grad, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["none", "sync"])
def test_without_statistics_of_ranks_m_ranks_are_one_with_m_times_the_batch(mode):
    """The same 32 samples in each iteration, however they are dealt out to ranks."""
    data, batches = source(96), np.random.default_rng(0).permutation(96).reshape(3, 32)
    after = []
    for ranks in (1, 4, 32):
        run = emulation(data, LOCAL, ranks, local_batch_size=32 // ranks, batch_norm=mode)
        for batch in batches:
            run.step(batch.reshape(-1, ranks), 0.1)
        after.append(run)
    for other in after[1:]:
        for name, value in after[0].network.model.state_dict().items():
            torch.testing.assert_close(
                other.network.model.state_dict()[name], value, rtol=0, atol=1e-12
            )


def test_global_shuffle_without_batch_norm_does_not_depend_on_the_number_of_ranks():
    """An iteration of 8 ranks with b = 2 and of 2 ranks with b = 8, one iteration an epoch, so that
    both use all samples."""
    data = source(16)
    runs = []
    for ranks in (1, 2, 8):
        run = emulation(data, GLOBAL, ranks, local_batch_size=16 // ranks, batch_norm="none")
        for _ in range(3):
            run.epoch()
        runs.append(run.weights())
    for run in runs[1:]:
        for name, value in runs[0].items():
            torch.testing.assert_close(run[name], value, rtol=0, atol=1e-12)


def test_parts_of_a_batch_change_nothing(monkeypatch):
    found = []
    for activations in (1, 500, 1 << 20):
        monkeypatch.setitem(ACTIVATIONS_AT_ONCE, "cpu", activations)
        run = emulation(
            source(57),
            PARTIAL,
            6,
        )
        run.epoch()
        found.append(run.network.model.state_dict())
    for other in found[1:]:
        for name, value in found[0].items():
            torch.testing.assert_close(other[name], value, rtol=0, atol=1e-12)


# ----------------------------------------------------- gradients of local and partial local shuffle


def mean_gradient(run: Emulation, batches: list[np.ndarray]) -> list[torch.Tensor]:
    total = [torch.zeros_like(weight) for weight in run.network.model.parameters()]
    for batch in batches:
        run.gradient(batch)
        total = [
            t + weight.grad * batch.size
            for t, weight in zip(total, run.network.model.parameters(), strict=True)
        ]
    return [t / sum(batch.size for batch in batches) for t in total]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.kind)
def test_over_an_epoch_at_fixed_weights_the_mean_gradient_is_that_of_all_data(strategy):
    """Every sample is used once in every epoch, whoever holds it: no batch norm, 40 samples on 5
    ranks."""
    data = source(40)
    run = emulation(data, strategy, 5, batch_norm="none", momentum=0.0)
    whole = mean_gradient(run, [np.arange(40).reshape(8, 5)])
    owner, held = run.owner, run.epochs_held
    for epoch in (1, 2, 3):
        shards = strategy.shards(owner, 5, stream(0, "shuffle", epoch))
        order = epoch_samples(shards, drop_last=False)
        for found, expected in zip(mean_gradient(run, [order[:4], order[4:]]), whole, strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
        plan = strategy.plan(
            EpochContext(
                shards,
                batch_size=4,
                iterations=2,
                epoch=epoch,
                importance=np.ones(40),
                rng=stream(0, "exchange", epoch),
                held=held,
            )
        )
        owner, held = plan.apply(owner), plan.held_after(held)


def test_over_all_partitions_local_shuffle_has_the_expectation_of_the_global_gradient():
    """6 samples, 2 ranks of 3, b = 1: all partitions and all choices of the first sample, each as
    likely as any other.

    Gradients without batch norm. A rank's sample is then any sample with probability 1/6, so the
    mean over all cases is the gradient of all data; that of a single fixed partition is so too, as
    both shards have 3 samples.
    """
    data = source(6)
    run = emulation(data, LOCAL, 2, batch_norm="none", local_batch_size=1)
    whole = mean_gradient(run, [np.arange(6).reshape(3, 2)])
    cases = []
    for first in itertools.combinations(range(6), 3):
        second = [i for i in range(6) if i not in first]
        cases += [np.array([[one, other]]) for one in first for other in second]
    for found, expected in zip(mean_gradient(run, cases), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_over_all_exchanges_partial_local_shuffle_has_the_expectation_of_the_global_gradient():
    """4 samples, 2 ranks of 2, Q = 1/2: whatever is sent, to oneself or to the other, each case as
    likely; the next epoch's first batch."""
    data = source(4)
    run = emulation(data, PARTIAL, 2, batch_norm="none", local_batch_size=1)
    whole = mean_gradient(run, [np.arange(4).reshape(2, 2)])
    cases = []
    for sent, swapped in itertools.product(itertools.product((0, 1), (2, 3)), (False, True)):
        shards = [[0, 1], [2, 3]]
        if swapped:
            shards[0].remove(sent[0])
            shards[1].remove(sent[1])
            shards[0].append(sent[1])
            shards[1].append(sent[0])
        cases += [np.array([pair]) for pair in itertools.product(*shards)]
    for found, expected in zip(mean_gradient(run, cases), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_with_batch_norm_by_rank_the_expectation_is_another_one():
    """The counterexample: a rank of two samples normalises them to -1 and +1, whichever they are,
    so who is with whom matters."""
    data = source(8)
    run = emulation(data, LOCAL, 4, local_batch_size=2)
    run.gradient(np.arange(8).reshape(2, 4))
    paired = run.network.model.head.weight.grad.clone()
    run.gradient(np.array([[0, 2, 4, 6], [1, 3, 5, 7]]))
    assert (run.network.model.head.weight.grad - paired).abs().max() > 1e-3


# -------------------------------------------------------------------------------- batches and rates


def test_padding_is_that_of_distributed_sampler():
    """Ranks with fewer samples repeat their first ones; or the surplus is left out."""
    shards = LOCAL.shards(np.repeat([0, 1, 2], [3, 4, 3]), 3, np.random.default_rng(0))
    padded = epoch_samples(shards, drop_last=False)
    assert padded.shape == (4, 3)
    assert padded[3].tolist() == [padded[0, 0], padded[3, 1], padded[0, 2]]
    assert sorted(padded[:, 1]) == [3, 4, 5, 6]
    np.testing.assert_array_equal(epoch_samples(shards, drop_last=True), padded[:3])


@pytest.mark.parametrize(
    ("num", "ranks", "b", "drop", "sizes"),
    [
        (10, 3, 3, False, [3, 1]),
        (10, 3, 3, True, [3]),
        (12, 3, 2, False, [2, 2]),
        (5, 1, 8, False, [5]),
        (8, 8, 1, False, [1]),
    ],
)
def test_local_batches(num, ranks, b, drop, sizes):
    assert local_batches(num, ranks, training(local_batch_size=b, drop_last=drop)) == sizes


def test_the_learning_rate_of_an_iteration_is_that_of_its_middle():
    how = Training(epochs=2, learning_rate=0.8, warmup_epochs=1.0, decay="none")
    run = TrainingEpochs(LOCAL, how, 2 * how.local_batch_size, 1, seed=0, places=None)
    rates = [run.learning_rate(epoch, i) for epoch in (1, 2) for i in (0, 1)]
    assert rates == pytest.approx([0.2, 0.6, 0.8, 0.8], abs=1e-15)


# --------------------------------------------------------------------------------------- evaluation


def trained(ranks: int = 4, **values: Any) -> Emulation:
    run = emulation(source(48), LOCAL, ranks, **values)
    run.epoch()
    return run


@pytest.mark.parametrize(
    ("num", "ranks", "own"), [(10, 7, 3), (5, 8, 8), (6, 2, 8), (3, 64, 2), (9, 1, 8)]
)
def test_own_pairs_are_balanced(num, ranks, own):
    found, counted = own_pairs(num, ranks, own, np.random.default_rng(1))
    each = min(own, ranks)
    pairs = [
        (int(sample), rank)
        for row, valid in zip(found, counted, strict=True)
        for rank, sample in enumerate(row)
        if valid[rank]
    ]
    assert len(set(pairs)) == len(pairs) == num * each
    assert np.bincount([sample for sample, _ in pairs]).tolist() == [each] * num
    by_rank = np.bincount([rank for _, rank in pairs], minlength=ranks)
    assert by_rank.max() - by_rank.min() <= 1


def test_own_is_the_mean_over_ranks_of_their_own_evaluations():
    run, test = trained(), source(30)
    found = own_score(run.network, test, *own_pairs(30, 4, 4, np.random.default_rng(0)))
    alone = [score(run.model(rank), test, 7) for rank in range(4)]
    assert found.accuracy == pytest.approx(np.mean([a.accuracy for a in alone]), abs=1e-12)
    assert found.loss == pytest.approx(np.mean([a.loss for a in alone]), abs=1e-12)


def test_own_on_some_ranks_estimates_own_on_all():
    """The mean over many drawn assignments, with its own standard error."""
    run, test = trained(8), source(30)
    exact = own_score(run.network, test, *own_pairs(30, 8, 8, np.random.default_rng(0))).loss
    drawn = [
        own_score(run.network, test, *own_pairs(30, 8, 2, np.random.default_rng(i))).loss
        for i in range(200)
    ]
    assert abs(np.mean(drawn) - exact) < 5 * np.std(drawn, ddof=1) / 200**0.5


def evaluation(run: Emulation, test: ArraySource) -> Evaluation:
    return Evaluation(run.training, test, run.source, run.world_size, run.rng)


def test_evaluations_use_the_statistics_that_they_say_and_leave_the_training_alone():
    run, test = trained(), source(30)
    before = copy.deepcopy(run.network.model.state_dict())
    random = torch.get_rng_state()
    scores = evaluation(run, test).scores(run.network)
    assert scores["rank0"] == score(run.model(0), test, 64)
    assert scores["pooled"] == score(run.model(), test, 64)
    assert len({s.loss for s in scores.values()}) == 4
    assert run.network.model.training
    assert all(
        torch.equal(before[name], value) for name, value in run.network.model.state_dict().items()
    )
    assert torch.equal(random, torch.get_rng_state())


def test_recalibrated_statistics_are_those_of_all_samples():
    """Of the first layer exactly, in one batch of all samples or in several of equal size, but for
    the unbiased n / (n - 1)."""
    run = trained()
    inputs = run.source.batch(np.arange(48))[0]
    with torch.no_grad():
        first = run.network.model.linear1(inputs)
    for rows in (48, 64):
        model = run.model()
        recalibrate(model, run.source, np.random.default_rng(0).permutation(48), rows)
        torch.testing.assert_close(model.norm1.running_mean, first.mean(0), rtol=0, atol=1e-12)
        torch.testing.assert_close(model.norm1.running_var, first.var(0), rtol=0, atol=1e-12)
        assert model.norm1.momentum == 0.1


@pytest.mark.parametrize(("mode", "different"), [("none", 1), ("sync", 2)])
def test_without_statistics_of_ranks_evaluations_agree(mode, different):
    run, test = trained(batch_norm=mode), source(30)
    assert len({s.loss for s in evaluation(run, test).scores(run.network).values()}) == different


# --------------------------------------------------------------------------------------- importance


def test_fresh_importance_is_each_ranks_inference_loss():
    run = trained(5)
    shards = LOCAL.shards(run.owner, 5, np.random.default_rng(0))
    found = inference_losses(run.network, run.source, shards)
    for rank in range(5):
        mine = np.flatnonzero(run.owner == rank)
        inputs, targets = run.source.batch(mine)
        with torch.no_grad():
            expected = F.cross_entropy(
                run.model(rank).eval()(inputs), targets, reduction="none"
            ).numpy()
        np.testing.assert_allclose(found[mine], expected, rtol=0, atol=1e-12)


def test_a_pass_in_training_mode_refreshes_statistics_and_nothing_else():
    strategy = ImportanceExchange(kind="importance_exchange", exchange_fraction=0.0)
    after = {}
    for mode in ("eval", "train"):
        how = training(importance_pass=mode, learning_rate=1e-300, momentum=0.0, weight_decay=0.0)
        run = Emulation(mlp(), source(40), strategy=strategy, world_size=5, training=how)
        run.epoch()
        after[mode] = run
    assert all(
        torch.equal(after["eval"].weights()[name], weight)
        for name, weight in after["train"].weights().items()
    )
    fresh, still = (
        [layer for layer in run.network.model.modules() if isinstance(layer, nn.BatchNorm1d)]
        for run in (after["train"], after["eval"])
    )
    for layer, other in zip(fresh, still, strict=True):
        # weights stand still: passing the same two batches twice keeps 0.81 of what was there
        assert layer.num_batches_tracked.tolist() == [4] * 5
        assert other.num_batches_tracked.tolist() == [2] * 5
        torch.testing.assert_close(
            layer.running_mean, other.running_mean * 1.81, rtol=0, atol=1e-12
        )


def test_the_momentum_of_running_statistics_is_the_layers_own_or_what_is_said():
    model = mlp()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.momentum = 0.25
    for said, found in ((None, 0.25), (0.01, 0.01)):
        how = training(statistics_momentum=said)
        run = Emulation(model, source(20), strategy=LOCAL, world_size=2, training=how)
        assert statistics_momentum(run.network.model) == found
        told = description(LOCAL, how, run.network.model, world_size=2)
        assert (told["statistics_momentum"], told["importance_pass"]) == (found, "")
        told = description(STRATEGIES[3], how, run.network.model, world_size=2)
        assert told["importance_pass"] == "eval"
    assert statistics_momentum(model) == 0.25
    assert statistics_momentum(nn.Sequential(nn.BatchNorm1d(2), model)) is None


def test_lagging_importance_is_the_loss_of_the_epoch_before_and_even_at_first():
    lagging = ImportanceExchange(kind="importance_exchange", exchange_fraction=0.5, lagging=True)
    run = emulation(
        source(40),
        lagging,
        4,
    )
    first = run.epoch()
    assert first.importance is not None
    assert (first.importance == 1.0).all()
    losses = run.last_losses.copy()
    np.testing.assert_array_equal(run.epoch().importance, losses)


def test_variance_between_ranks_by_hand():
    """Ranks with 0, 2 and 4, 6: means 1 and 5 about 3, so 4 between; all about 3: (9 + 1 + 1 + 9) /
    4 = 5."""
    assert variance_between_ranks(
        np.array([0.0, 4.0, 2.0, 6.0]), np.array([0, 1, 0, 1])
    ) == pytest.approx(0.8)
    assert variance_between_ranks(np.ones(4), np.array([0, 1, 0, 1])) == 0.0
    row = importance_row(
        2, "training", np.array([0.0, 4.0, 2.0, 6.0, np.nan]), np.array([0, 1, 0, 1, 1])
    )
    assert (row["mean"], row["max"], row["top_tenth_share"]) == (3.0, 6.0, 0.5)
