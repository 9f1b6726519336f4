"""Trainings of a model, data, loss and optimiser of the caller's: what they give, and what is said
about those that cannot be trained."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from simshuffle.errors import InputError
from simshuffle.train import EmulatedRun, emulate

LAGGING = "importance_exchange:exchange_fraction=0.5,lagging=true"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def tensors(count: int = 64) -> TensorDataset:
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(count, 6)).astype(np.float32)
    return TensorDataset(
        torch.from_numpy(inputs), torch.from_numpy((inputs[:, 0] > 0).astype(np.int64))
    )


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def emulated(**values: Any) -> EmulatedRun:
    torch.manual_seed(3)
    how = {"world_size": 4, "epochs": 2, "local_batch_size": 4, **values}
    return emulate(network(), tensors(), tensors(20), **how)


def weights(run: EmulatedRun) -> list[torch.Tensor]:
    return [weight.detach() for weight in run.model.parameters()]


# ----------------------------------------------------------------------------------------- the loss


def test_a_loss_is_trained_on_evaluated_with_and_taken_for_importance() -> None:
    """Twice the cross-entropy at half the learning rate: the same weights, twice the losses."""
    how = {"strategy": LAGGING, "weight_decay": 0.0, "dtype": "float64"}
    plain = emulated(learning_rate=0.1, **how)
    double = emulated(
        learning_rate=0.05,
        loss=lambda output, target: 2 * F.cross_entropy(output, target, reduction="none"),
        **how,
    )
    for one, other in zip(weights(plain), weights(double), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    for column in ("train_loss", "own_loss", "pooled_loss"):
        np.testing.assert_allclose(double.epochs[column], 2 * plain.epochs[column], rtol=1e-10)
    np.testing.assert_allclose(double.importance["mean"], 2 * plain.importance["mean"], rtol=1e-10)


def test_a_module_of_torch_is_a_loss() -> None:
    smooth = emulated(loss=nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1))
    assert smooth.status == "done"
    assert not torch.equal(weights(smooth)[0], weights(emulated())[0])


def centred(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(output, target, reduction="none")
    return losses - losses.mean() + 1


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (F.cross_entropy, "one number for each sample.*reduction='none'"),
        (nn.CrossEntropyLoss(), "one number for each sample.*got shape \\(\\)"),
        (lambda output, target: output, "one number for each sample.*got shape \\(4, 2\\)"),
        (lambda output, target: 0.0, "one number for each sample.*got a float"),
        (partial(F.mse_loss, reduction="none"), "cannot take them.*outputs \\(4, 2\\)"),
        (centred, "must not depend on the other samples.*got centred"),
        (lambda o, t: F.cross_entropy(o.detach(), t, reduction="none"), "must have a gradient"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_that_cannot_be_trained_with_is_refused_at_once(loss: Any, told: str) -> None:
    with pytest.raises(InputError, match=f"loss: .*{told}"):
        emulated(loss=loss)


# ------------------------------------------------------------------------------------ the optimiser


def test_an_optimizer_that_is_sgd_trains_as_sgd_to_the_last_bit() -> None:
    how = {"epochs": 3, "warmup_epochs": 1, "learning_rate_scaling": "sqrt"}
    plain = emulated(learning_rate=0.3, momentum=0.5, weight_decay=0.01, **how)
    factory = partial(torch.optim.SGD, lr=0.3, momentum=0.5, weight_decay=0.01, foreach=True)
    own = emulated(optimizer=factory, **how)
    for one, other in zip(weights(plain), weights(own), strict=True):
        assert torch.equal(one, other)
    assert own.description["learning_rate"] == plain.description["learning_rate"]
    assert own.epochs.learning_rate.tolist() == plain.epochs.learning_rate.tolist()


def test_adam_on_one_rank_is_adam() -> None:
    """Whole batches of all samples, so that their order does not matter; without decay."""
    how = {"world_size": 1, "local_batch_size": 64, "epochs": 5, "decay": "none"}
    own = emulated(optimizer=partial(torch.optim.Adam, lr=0.02), dtype="float64", **how)
    torch.manual_seed(3)
    model = network().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    inputs, targets = (part for part in tensors().tensors)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs.double()), targets).backward()
        optimizer.step()
    for one, other in zip(weights(own), model.parameters(), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=0, atol=1e-10)


def test_groups_keep_their_ratio_under_warm_up_and_decay() -> None:
    """A group of a learning rate next to nothing stays where it was."""

    def groups(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        first, *others = parameters
        slow = {"params": [first], "lr": 1e-30}
        return torch.optim.SGD([{"params": others}, slow], lr=0.1)

    torch.manual_seed(3)
    begin = network()[0].weight.detach().clone()
    run = emulated(optimizer=groups, warmup_epochs=1)
    found = weights(run)
    assert torch.equal(found[0], begin)
    assert not torch.equal(found[2], weights(emulated(optimizer=groups, epochs=1))[2])
    assert run.description["learning_rate"] == 0.1


@pytest.mark.parametrize(
    ("optimizer", "values", "told"),
    [
        (partial(torch.optim.Adam, rate=1), {}, "optimizer: cannot be made.*rate"),
        (lambda parameters: None, {}, "optimizer: must make a torch.optim.Optimizer.*NoneType"),
        (lambda p: torch.optim.SGD(list(p)[1:], lr=1.0), {}, "hold all weights.*0.weight"),
        (partial(torch.optim.SGD, lr=0.0), {}, "optimizer: must have a learning rate lr above 0"),
        (torch.optim.LBFGS, {}, "optimizer: must step without a closure; got LBFGS"),
        (torch.optim.Adam, {"learning_rate": 0.1}, "learning_rate: is not used beside an opti"),
        (torch.optim.Adam, {"momentum": 0.1, "nesterov": True}, "2 problems"),
    ],
)
def test_an_optimizer_that_cannot_be_used_is_refused(
    optimizer: Any, values: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        emulated(optimizer=optimizer, **values)
