"""Batch norm over groups of neighbouring ranks: by hand, against fewer ranks with larger batches,
and against its two ends, one rank and all. Real ranks: test_ddp_equivalence.py."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from simshuffle.errors import InputError
from simshuffle.train.emulate import emulate
from simshuffle.train.emulation import Emulation
from simshuffle.train.evaluate import Evaluation, recalibrate, score
from simshuffle.train.models import Mlp, SmallCnn
from simshuffle.train.network import ACTIVATIONS_AT_ONCE, inference_losses, ranked_network
from simshuffle.train.samples import Augmentation, Samples
from simshuffle.train.sources import ArraySource
from simshuffle.train.training import Contrastive, Training
from simshuffle.workload.exchange import ImportanceExchange, LocalShuffle, PartialLocalShuffle

LOCAL = LocalShuffle(kind="local_shuffle")
PARTIAL = PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=0.4)
SELECTED = ImportanceExchange(kind="importance_exchange", exchange_fraction=0.4)


pytestmark = pytest.mark.usefixtures("one_thread")


def source(count: int, shape: tuple[int, ...] = (6,)) -> ArraySource:
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(count, *shape)).astype(np.float32)
    return ArraySource(Samples(inputs, rng.integers(0, 4, count)), dtype=torch.float64)


def network(shape: tuple[int, ...] = (6,)) -> nn.Module:
    torch.manual_seed(11)
    chosen = Mlp(kind="mlp", width=10) if len(shape) == 1 else SmallCnn(kind="small_cnn", width=4)
    return chosen.build(shape, 4).double()


def training(**values: Any) -> Training:
    return Training(**{"local_batch_size": 4, "dtype": "float64", "epochs": 3, **values})


def groups_of(ranks: int, **values: Any) -> Training:
    return training(batch_norm="sync", sync_ranks=ranks, **values)


def emulation(how: Training, world_size: int, **values: Any) -> Emulation:
    given = {"strategy": LOCAL, "seed": 4, **values}
    return Emulation(network(), source(48), world_size=world_size, training=how, **given)


def same(one: Emulation, other: Emulation, atol: float) -> None:
    expected = other.network.model.state_dict()
    for name, value in one.network.model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=atol)


def evaluated(run: Emulation) -> dict[str, Any]:
    test = source(30)
    evaluation = Evaluation(run.training, test, run.source, run.world_size, run.rng)
    return dict(evaluation.scores(run.network))


# ------------------------------------------------------------------------------------------ by hand


def test_two_groups_of_two_ranks_by_hand():
    """Ranks 0 and 1 have 0, 2 and 4, 6: mean 3, variance (9 + 1 + 1 + 9) / 4 = 5, unbiased 20 / 3.
    Ranks 2 and 3 have 10, 10 and 10, 14: mean 11, variance (1 + 1 + 1 + 9) / 4 = 3, unbiased 4.
    With eps 1 they are divided by sqrt 6 and 2."""
    values = np.array([[0.0, 4.0, 10.0, 10.0], [2.0, 6.0, 10.0, 14.0]])
    numbers = np.arange(8).reshape(2, 4)  # a column for each rank
    of_numbers = Samples(values.reshape(8, 1).astype(np.float32), np.zeros(8, np.int64))
    layer = nn.BatchNorm1d(1, eps=1.0)
    ranked = ranked_network(
        layer,
        ArraySource(of_numbers, dtype=torch.float64),
        4,
        groups_of(2, local_batch_size=2),
        torch.device("cpu"),
    )
    found, _ = ranked.outputs(ArraySource(of_numbers, dtype=torch.float64), 0, numbers)
    expected = np.hstack([(values[:, :2] - 3) / 6**0.5, (values[:, 2:] - 11) / 2])
    np.testing.assert_allclose(found.detach().numpy().reshape(2, 4), expected, rtol=0, atol=1e-12)
    kept = dict(ranked.model.named_buffers())
    np.testing.assert_allclose(kept["running_mean"].numpy(), [[0.3], [1.1]], rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        kept["running_var"].numpy(), [[0.9 + 2 / 3], [0.9 + 0.4]], rtol=0, atol=1e-12
    )
    assert kept["num_batches_tracked"].tolist() == [1, 1]


def test_a_rank_evaluates_with_the_statistics_of_its_group():
    """Own evaluation is the mean over ranks, and neighbours agree."""
    run, test = emulation(groups_of(2), 6), source(30)
    run.epoch()
    alone = [score(run.model(rank), test, 64) for rank in range(6)]
    assert alone[0::2] == alone[1::2]
    assert len({each.loss for each in alone}) == 3
    scores = evaluated(run)
    assert scores["own"].accuracy == pytest.approx(np.mean([a.accuracy for a in alone]), abs=1e-12)
    assert scores["own"].loss == pytest.approx(np.mean([a.loss for a in alone]), abs=1e-12)
    assert scores["rank0"] == alone[0]
    assert scores["pooled"] == score(run.model(), test, 64)
    assert len({each.loss for each in scores.values()}) == 4


# ------------------------------------------------------------- against fewer ranks, or one, or all


@pytest.mark.parametrize("activations", [1, 1 << 23])
@pytest.mark.parametrize("shape", [(6,), (1, 8, 8)], ids=["flat", "images"])
def test_a_group_is_one_rank_with_all_its_samples(shape, activations, monkeypatch):
    """12 ranks with b = 2 in groups of 3 against 4 ranks with b = 6: weights, running statistics
    and the loss of each sample, in training, in a pass and in parts of one group."""
    monkeypatch.setitem(ACTIVATIONS_AT_ONCE, "cpu", activations)
    data, strategy = source(72, shape), LOCAL
    in_groups = Emulation(
        network(shape), data, strategy=strategy, world_size=12, training=groups_of(3)
    )
    few = Emulation(network(shape), data, strategy=strategy, world_size=4, training=training())
    # of a sample itself, flattened, of layers (10 + 10) twice or (256, 64, 64; 128, 32, 32), of 4
    each = 6 + 6 + 2 * 20 + 4 if len(shape) == 1 else 64 + 32 + 384 + 192 + 4
    assert in_groups.network.rows_at_once == max(1, activations // each)
    losses = []
    for batch in np.random.default_rng(1).permutation(72).reshape(3, 2, 12):
        # the 2 samples of each of 3 neighbours, one below the other
        of_few = batch.reshape(2, 4, 3).swapaxes(1, 2).reshape(6, 4)
        found, expected = in_groups.step(batch, 0.1), few.step(of_few, 0.1)
        np.testing.assert_allclose(
            found.reshape(2, 4, 3).swapaxes(1, 2).reshape(6, 4), expected, rtol=0, atol=1e-12
        )
        losses.append(found)
    assert in_groups.network.model.state_dict().keys() == few.network.model.state_dict().keys()
    same(in_groups, few, 1e-12)
    owner = np.repeat(np.arange(12), 6)
    passes = [
        inference_losses(run.network, data, strategy.shards(of, m, np.random.default_rng(0)))
        for run, of, m in ((in_groups, owner, 12), (few, owner // 3, 4))
    ]
    np.testing.assert_allclose(*passes, rtol=0, atol=1e-12)


def test_contrastive_losses_come_back_to_their_ranks():
    """Two ranks of a group of two have their own negatives, whatever normalises them."""
    rng = np.random.default_rng(5)
    samples = Samples(rng.normal(size=(24, 1, 4, 4)).astype(np.float32), np.arange(24) % 4)
    data = ArraySource(samples, dtype=torch.float64)
    views = Augmentation((1, 4, 4), 1, 0.5, 0.5)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    batch, found, loss = np.arange(12).reshape(3, 4), {}, Contrastive(kind="contrastive")
    for ranks in (2, None):
        how = training(
            batch_norm="sync",
            sync_ranks=ranks,
            local_batch_size=3,
            loss=loss,
        )
        run = Emulation(model, data, strategy=LOCAL, world_size=4, training=how, augmentation=views)
        found[ranks] = run.gradient(batch if ranks else batch[:, [0, 1, 0, 1]])
    # the first two ranks, twice over, have the statistics of one group of them
    np.testing.assert_allclose(found[2][:, :2], found[None][:, :2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("strategy", [PARTIAL, SELECTED], ids=lambda s: s.kind)
def test_one_rank_a_group_is_batch_norm_by_rank_bit_by_bit(strategy):
    one, alone = (emulation(how, 6, strategy=strategy) for how in (groups_of(1), training()))
    for run in (one, alone):
        run.epoch()
        run.epoch()
    same(one, alone, 0)
    assert evaluated(one) == evaluated(alone)


def test_all_ranks_in_one_group_are_synchronised_batch_norm():
    whole, sync = (
        emulation(groups_of(ranks, importance_pass="train"), 6, strategy=SELECTED)
        for ranks in (6, None)
    )
    for run in (whole, sync):
        run.epoch()
        run.epoch()
    same(whole, sync, 1e-12)
    assert evaluated(whole)["own"].loss == pytest.approx(evaluated(sync)["own"].loss, abs=1e-12)


def test_two_ranks_of_a_group_need_no_two_samples_of_their_own():
    """Batch norm cannot normalise a single value, and two ranks with one each can."""
    emulation(groups_of(2, local_batch_size=1), 6).epoch()
    with pytest.raises(InputError, match="cannot normalise a single sample"):
        emulation(groups_of(1, local_batch_size=1), 6)


# ------------------------------------------------------------------------------------------ refused


def test_groups_that_cannot_be_are_refused():
    with pytest.raises(
        InputError,
        match=(
            r"training\.sync_ranks: must divide the number of ranks, 6; got 4\. Use a divisor of 6,"
            r" or leave sync_ranks out"
        ),
    ):
        emulation(groups_of(4), 6)
    pairs = torch.utils.data.TensorDataset(torch.randn(8, 6), torch.arange(8) % 4)
    for mode in ("per_rank", "none"):
        with pytest.raises(
            InputError,
            match=r"training\.sync_ranks: needs batch_norm: sync; got 2\. Use batch",
        ):
            emulate(network(), pairs, pairs, world_size=2, batch_norm=mode, sync_ranks=2, epochs=1)


def test_what_mixes_groups_is_refused():
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x - x.mean(0))

    how = groups_of(2)
    with pytest.raises(InputError, match=r"must not depend on samples of other groups of 2 ranks"):
        Emulation(Centred(), source(48), strategy=LOCAL, world_size=6, training=how)
    Emulation(Centred(), source(48), strategy=LOCAL, world_size=2, training=how)


# ---------------------------------------------------------------- recalibrated on some samples


def test_statistics_of_a_sample_are_those_of_the_first_in_the_drawn_order():
    """20 of 48: mean and variance of the first layer over exactly these, and no other accuracy than
    with them."""
    run, test = emulation(training(recalibration_samples=20), 4), source(30)
    run.epoch()
    order = run.rng("recalibrate").permutation(48)
    model = run.model()
    recalibrate(model, run.source, order[:20], 64)
    with torch.no_grad():
        first = model.linear1(run.source.batch(order[:20])[0])
    torch.testing.assert_close(model.norm1.running_mean, first.mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(model.norm1.running_var, first.var(0), rtol=0, atol=1e-12)
    assert evaluated(run)["recalibrated"] == score(model, test, 64)
    for more in (48, 1000, None):
        run.training = run.training.model_copy(update={"recalibration_samples": more})
        model = run.model()
        recalibrate(model, run.source, order, 64)
        assert evaluated(run)["recalibrated"] == score(model, test, 64)
