"""Optimisers: SGD as `Training` describes it, or one of the caller's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NoReturn

import torch
from torch import nn

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.train.training import Training

OptimizerFactory = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimiser, such as ``functools.partial(torch.optim.AdamW, lr=1e-3)``, of parameters."""
OF_SGD = ("learning_rate", "momentum", "weight_decay", "nesterov")
"""Fields of `Training` whose place an optimiser of the caller's takes."""


def load_optimizers() -> None:
    """Load what the first optimiser of a process makes torch load, torch._dynamo and sympy: more
    than a second, in which a small network is trained."""
    torch.optim.SGD([torch.zeros(1)], lr=1.0)


def sgd(model: nn.Module, training: Training) -> torch.optim.SGD:
    """The optimiser of ``model``; its learning rate is set before every step."""
    return torch.optim.SGD(
        model.parameters(),
        lr=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        nesterov=training.nesterov,
        foreach=True,
    )


def optimizer_of(
    model: nn.Module, training: Training, factory: OptimizerFactory | None
) -> torch.optim.Optimizer:
    """The optimiser that trains ``model``: SGD, or that of ``factory``, whose groups keep the ratio
    of their rates; errors as of `own_optimizer`. `set_rate` sets its learning rate."""
    optimizer = sgd(model, training) if factory is None else own_optimizer(model, factory)
    for group in optimizer.param_groups:
        group["relative_lr"] = float(group["lr"]) / training.learning_rate
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Let the next step of ``optimizer``, one of `optimizer_of`, have this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["relative_lr"]


def own_optimizer(model: nn.Module, factory: OptimizerFactory) -> torch.optim.Optimizer:
    """The optimiser of ``model`` that ``factory`` makes. Raises InputError if it makes none, or one
    that leaves out a weight, has no learning rate, or steps only with a closure."""
    if not callable(factory):
        _refuse("must be a function that makes an optimiser of the weights", f"a {_shown(factory)}")
    try:
        optimizer = factory(model.parameters())
    except (TypeError, ValueError) as error:
        _refuse(f"cannot be made of the model's parameters: {error}", _shown(factory))
    if not isinstance(optimizer, torch.optim.Optimizer):
        _refuse("must make a torch.optim.Optimizer", f"a {type(optimizer).__name__}")
    groups = optimizer.param_groups
    if not all(float(group.get("lr", 0.0)) > 0 for group in groups):
        _refuse("must have a learning rate lr above 0 in every group", _shown(factory))
    held = {id(weight) for group in groups for weight in group["params"]}
    left = [n for n, w in model.named_parameters() if w.requires_grad and id(w) not in held]
    if left:
        _refuse("must hold all weights that are trained", f"none of {', '.join(left[:3])}")
    try:
        optimizer.step()  # there are no gradients yet: nothing changes
    except TypeError:
        _refuse("must step without a closure", type(optimizer).__name__)
    return optimizer


def training_values(
    model: nn.Module, factory: OptimizerFactory, given: Collection[str]
) -> dict[str, float]:
    """Fields of `Training` under an optimiser of the caller's: the learning rate of its first
    group, and nothing of SGD. Raises InputError if one of them is ``given`` too; or as of
    `own_optimizer`."""
    optimizer = own_optimizer(model, factory)
    problems = [
        Problem(name, "is not used beside an optimizer", "both", "Set it in the optimizer alone.")
        for name in OF_SGD
        if name in given
    ]
    if problems:
        raise InputError(problems, "training")
    rate = float(optimizer.param_groups[0]["lr"])
    return {"learning_rate": rate, "momentum": 0.0, "weight_decay": 0.0}


def _shown(factory: OptimizerFactory) -> str:
    return str(getattr(factory, "__name__", type(factory).__name__))


def _refuse(rule: str, value: str) -> NoReturn:
    remedy = "For example optimizer=functools.partial(torch.optim.AdamW, lr=1e-3)."
    refuse("optimizer", rule, value, remedy, "training")
