"""The contrastive loss by hand and against a plain loop over ranks; views; class means; what is
refused."""

import copy
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.job.scenario.options import kinds_of, record_of
from simshuffle.train import Emulation, Training, check_run
from simshuffle.train.evaluate import ClassMeans, Evaluation, first_samples_of_classes, score
from simshuffle.train.loss import Views, info_nce
from simshuffle.train.models import Mlp
from simshuffle.train.network import ACTIVATIONS_AT_ONCE, RankedNetwork
from simshuffle.train.run import Run
from simshuffle.train.samples import Augmentation, Samples
from simshuffle.train.shuffling import check_all
from simshuffle.train.sources import ArraySource
from simshuffle.train.study import load_study
from simshuffle.workload.exchange import Exchange, ImportancePair, LocalShuffle, Strategy
from tests.shared import needs_extensions

LOCAL = LocalShuffle(kind="local_shuffle")
IMAGE = Augmentation((1, 2, 3), shift=1, contrast=0.4, noise=0.7)
RANKS, EACH = 4, 3


pytestmark = pytest.mark.usefixtures("one_thread")


def source(count: int = 24) -> ArraySource:
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(count, 6)).astype(np.float32)
    return ArraySource(Samples(inputs, np.arange(count) % 3), dtype=torch.float64)


def network() -> nn.Module:
    torch.manual_seed(11)
    return Mlp(kind="mlp", width=10).build((6,), 5).double()


def training(**values: Any) -> Training:
    contrastive = {"kind": "contrastive", "temperature": 0.3}
    negatives = {"negatives": values.pop("negatives")} if "negatives" in values else {}
    fixed = {"local_batch_size": EACH, "dtype": "float64", "loss": contrastive | negatives}
    return Training(**(fixed | values))


def emulation(how: Training, world_size: int = RANKS, strategy: Strategy = LOCAL) -> Emulation:
    return Emulation(
        network(),
        source(),
        strategy=strategy,
        world_size=world_size,
        training=how,
        seed=5,
        augmentation=IMAGE,
    )


def gradients(of: nn.Module) -> list[torch.Tensor]:
    return [weight.grad.clone() for weight in of.parameters() if weight.grad is not None]


# ----------------------------------------------------------------------------------------- the loss


def test_the_loss_of_two_samples_by_hand():
    """Temperature 1/2. Orthogonal embeddings, views alike: cosines 1 and 0, so -log(e^2 / (e^2 +
    1)). All embeddings alike: a choice of one in two. At last, both first views like the first
    sample's second: rows give log(1 + e^-2) and log(1 + e^2), columns log 2. Lengths do not count.
    """
    axes = torch.eye(2, dtype=torch.float64)[None]
    apart = info_nce(3 * axes, axes / 7, 0.5)
    assert apart.tolist() == [pytest.approx([math.log1p(math.exp(-2))] * 2)]
    alike = torch.ones((1, 2, 5), dtype=torch.float64)
    assert info_nce(alike, alike, 0.5).tolist() == [pytest.approx([math.log(2)] * 2)]
    found = info_nce(axes[:, [0, 0]], axes, 0.5)[0].tolist()
    rows = [math.log1p(math.exp(-2)), math.log1p(math.exp(2))]
    assert found == pytest.approx([(row + math.log(2)) / 2 for row in rows])


def test_local_negatives_are_those_of_real_ranks(monkeypatch):
    """A loop over ranks, each with a copy of the network and its own local batch: losses, the mean
    of the gradients, and running statistics; also where a batch is worked off in parts."""
    monkeypatch.setitem(ACTIVATIONS_AT_ONCE, "cpu", 400)
    ours, batch = emulation(training()), np.arange(24)[5:17].reshape(EACH, RANKS)
    assert ours.network.rows_at_once < batch.size
    losses = ours.gradient(batch)
    views, copies = Views(IMAGE, 24, seed=5), []
    for rank in range(RANKS):
        alone = copy.deepcopy(network()).train()
        inputs, _ = source().batch(batch[:, rank])
        both = F.normalize(alone(views.pair(inputs, batch[:, rank], 1)))
        table = both[:EACH] @ both[EACH:].T / 0.3
        own = torch.arange(EACH)
        loss = F.cross_entropy(table, own, reduction="none") / 2
        loss = loss + F.cross_entropy(table.T, own, reduction="none") / 2
        loss.mean().backward()
        np.testing.assert_allclose(losses[:, rank], loss.detach().numpy(), rtol=0, atol=1e-12)
        copies.append(alone)
        for name, buffer in alone.named_buffers():
            found = dict(ours.model(rank).named_buffers())[name]
            torch.testing.assert_close(found, buffer, rtol=0, atol=1e-12)
    expected = [torch.stack(parts).mean(0) for parts in zip(*map(gradients, copies), strict=True)]
    for weight, other in zip(gradients(ours.network.model), expected, strict=True):
        torch.testing.assert_close(weight, other, rtol=0, atol=1e-12)


def test_gathered_negatives_make_one_batch_of_all_ranks():
    """And local ones do not, by far."""
    batch, found = np.arange(24)[3:15], {}
    for negatives, ranks in (("gathered", RANKS), ("gathered", 1), ("local", 1), ("local", RANKS)):
        how = training(
            negatives=negatives, batch_norm="sync", local_batch_size=RANKS * EACH // ranks
        )
        run = emulation(how, ranks)
        losses = run.gradient(batch.reshape(-1, ranks)).ravel()
        found[negatives, ranks] = losses, gradients(run.network.model)
    losses, whole = found["local", 1]
    for key in (("gathered", RANKS), ("gathered", 1)):
        np.testing.assert_allclose(found[key][0], losses, rtol=0, atol=1e-12)
        for weight, other in zip(found[key][1], whole, strict=True):
            torch.testing.assert_close(weight, other, rtol=0, atol=1e-12)
    assert found["local", RANKS][0].mean() < losses.mean() - 0.5  # log 3 against log 12


# ---------------------------------------------------------------------------------------- the views


def test_views_depend_on_seed_epoch_and_sample_alone():
    inputs = source().batch(np.arange(24))[0]
    whole = Views(IMAGE, 24, seed=5).pair(inputs, np.arange(24), 2)
    some, again = np.array([7, 3, 20]), Views(IMAGE, 24, seed=5)
    again.pair(inputs, np.arange(24), 1)
    both = again.pair(inputs[some], some, 2)
    assert torch.equal(both, torch.cat([whole[some], whole[24 + some]]))
    others = [Views(IMAGE, 24, 5).pair(inputs, np.arange(24), 3), Views(IMAGE, 24, 6)]
    others[1] = others[1].pair(inputs, np.arange(24), 2)
    for other in [*others, torch.cat([whole[24:], whole[:24]])]:
        assert (whole != other).any(dim=1).all()


def test_a_view_is_the_sample_shifted_with_another_contrast_and_noise():
    """Without noise a view is one of the shifted images times its contrast; with it, samples of
    variance 1 keep that: (1 + 0.6^2 / 3 + 4) / (1 + 4) with contrasts even from 0.4 to 1.6."""
    images = torch.randn((200, 2, 4, 5), generator=torch.Generator().manual_seed(1))
    plain = Augmentation((2, 4, 5), shift=1, contrast=0.5, noise=0.0)
    pair = Views(plain, 200, seed=0).pair(images, np.arange(200), 1)
    seen, contrasts = set(), []
    for image, view in zip(torch.cat([images, images]), pair, strict=True):
        for shift in [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)]:
            ratio = view / torch.roll(image, shift, (1, 2))
            if torch.allclose(ratio, ratio.flatten()[0], rtol=1e-3):
                seen.add(shift)
                contrasts.append(float(ratio.flatten()[0]))
    assert (len(seen), len(contrasts)) == (9, 400)
    assert 0.5 <= min(contrasts) < 0.55
    assert 1.45 < max(contrasts) <= 1.5
    noisy = Augmentation((2, 4, 5), shift=1, contrast=0.6, noise=2.0)
    images = images / images.std()
    spread = Views(noisy, 200, seed=0).pair(images, np.arange(200), 1).var()
    assert float(spread) == pytest.approx((1 + 0.6**2 / 3 + 4) / 5, rel=0.03)


# ----------------------------------------------------------------------------------- the evaluation


class Still(nn.Module):
    """Puts out its inputs."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs


def test_the_nearest_class_mean_by_hand():
    """Classes 0 along x, 1 along y; lengths do not count: (5, 4) is of class 0, at cosines 5 and 4
    over the root of 41. Class 2 has no samples."""
    inputs = np.array([[3, 0], [1, 0], [0, 9], [0, 1]], np.float32)
    train = ArraySource(Samples(inputs, np.array([0, 0, 1, 3])))
    means = ClassMeans(RankedNetwork.of_one_rank(Still(), 3), train, np.array([2, 1, 3, 0]), 0.5)
    assert means.means.tolist() == [[[1, 0], [0, 1], [0, 0], [0, 1]]]
    logits = means.logits(torch.tensor([[5.0, 4.0]]))[0].tolist()
    assert logits == pytest.approx([10 / 41**0.5, 8 / 41**0.5, 0, 8 / 41**0.5])
    targets = np.arange(200) % 2
    chosen = first_samples_of_classes(targets, np.arange(200)[::-1])
    assert np.bincount(targets[chosen]).tolist() == [64, 64]
    assert chosen.min() == 200 - 128


def test_own_accuracy_is_the_mean_of_ranks_with_their_own_class_means(monkeypatch):
    monkeypatch.setitem(ACTIVATIONS_AT_ONCE, "cpu", 400)
    run = emulation(training(learning_rate=0.5))
    run.epoch()
    rng, test = np.random.default_rng, source(10)
    loss = {"kind": "contrastive", "temperature": 0.3}
    how = Training(statistics=["own", "rank0"], own_ranks=RANKS, loss=loss)
    evaluation = Evaluation(how, test, run.source, RANKS, lambda name: rng(len(name)))
    found = evaluation.scores(run.network)
    alone = []
    for rank in range(RANKS):
        model = run.model(rank).eval()
        means = ClassMeans(RankedNetwork.of_one_rank(model, 50), run.source, evaluation.order, 0.3)
        alone.append(score(model, test, 50, means=means))
    assert found["own"].accuracy == pytest.approx(np.mean([each.accuracy for each in alone]))
    assert found["own"].loss == pytest.approx(np.mean([each.loss for each in alone]))
    assert found["rank0"].accuracy == alone[0].accuracy
    assert run.network.model.training


# -------------------------------------------------------------------------------------- bad input


def test_a_batch_of_one_and_importance_and_another_loss_are_refused():
    with pytest.raises(InputError, match=r"training\.local_batch_size.*without negatives"):
        emulation(training(local_batch_size=1))
    with pytest.raises(InputError, match="the last local batch holds one sample"):
        emulation(training(local_batch_size=5))
    emulation(training(local_batch_size=2))
    gathered = training(local_batch_size=1, negatives="gathered", batch_norm="none")
    emulation(gathered, world_size=2)
    with pytest.raises(InputError, match="local_batch_size holds one sample"):
        emulation(gathered, world_size=1)
    pair = ImportancePair(kind="importance_pair", exchange_fraction=0.4, lagging=True)
    with pytest.raises(InputError, match=r"exchange.*cannot go by importance"):
        emulation(training(), strategy=pair)
    values = {"strategy": LOCAL, "world_size": 2, "training": training()}
    with pytest.raises(InputError, match=r"training\.loss.*your own loss"):
        Emulation(network(), source(), augmentation=IMAGE, loss=nn.CrossEntropyLoss(), **values)
    with pytest.raises(InputError, match=r"training\.loss.*these data have none"):
        Emulation(network(), source(), **values)


STUDY = """
name: wrong
data: {kind: %s, flat: true%s}
model: {kind: mlp, width: 8}
training: {local_batch_size: %d, loss: "contrastive:temperature=0.2"}
runs: [{exchange: local_shuffle, world_size: 2}]
"""


def test_importance_is_refused_beside_runs_without_it_before_the_first_trains():
    kinds = "partial_local_shuffle:exchange_fraction=0.4", "importance_pair:exchange_fraction=0.4"
    runs = [
        SimpleNamespace(
            data="d", model="m", training="t", world_size=2, cluster=None,
            exchange=record_of("exchange", kind, kinds_of(Exchange), {}),
        )
        for kind in kinds
    ]  # fmt: skip
    checked = []
    check_all(runs, "here", lambda run: checked.append(run.exchange.kind))
    assert checked == ["partial_local_shuffle", "importance_pair"]


@needs_extensions
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("digits", "", 8), "training.loss"),
        (("procedural", ", num_samples: 64", 1), "training.local_batch_size"),
    ],
)
def test_what_cannot_be_contrasted_is_said_before_anything_runs(given, told, tmp_path, capsys):
    path = tmp_path / "wrong.yaml"
    path.write_text(STUDY % given)
    assert main(["train", str(path), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert "Use" in said
    assert not (tmp_path / "out").exists()


@needs_extensions
def test_data_optimised_training_goes_by_labels(tmp_path, capsys):
    values = ["retrain.training.loss={kind: contrastive}", "seeds=1"]
    words = [word for value in values for word in ("--set", value)]
    assert main(["train", "data-optimised-digits", *words, "--out", str(tmp_path / "out")]) == 2
    assert "needs loss: cross_entropy" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- the study


def test_the_study_compares_both_losses_and_can_be_trained():
    runs = load_study("contrastive-local-negatives").all_runs()
    assert {run.seed for run in runs} == set(range(10))
    kinds = {
        (run.training.loss.kind, run.partition.kind, run.exchange.kind, run.world_size)
        for run in runs
    }
    assert len(kinds) == 2 * 2 * 3 * 2  # partial and oldest are of one kind
    first: dict[Any, Run] = {}
    for run in runs:
        first.setdefault((run.training.loss.kind, run.world_size), run)
    for run in first.values():
        check_run(run)
