"""Losses: one number for each sample, of that sample alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from simshuffle.errors import InputError, refuse

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""The loss of each sample, (n,), by what the model puts out, (n, classes), and the targets,
(n,)."""
FAULTS = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError)
"""What torch raises where shapes or kinds do not fit."""


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of each sample, nats."""
    return F.cross_entropy(output, target, reduction="none")


def loss_name(loss: Loss) -> str:
    """What tables call it: the name of the function or class."""
    return str(getattr(loss, "__name__", type(loss).__name__))


def check_losses(losses: object, count: int | None = None, source: str = "training") -> None:
    """See that these are losses of ``count`` samples, of any number if None, or raise
    InputError."""
    if isinstance(losses, torch.Tensor) and losses.ndim == 1 and count in {None, len(losses)}:
        return
    shown = f"a {type(losses).__name__}"
    if isinstance(losses, torch.Tensor):
        shown = f"shape {tuple(losses.shape)}"
    rule = (
        f"must be one number for each sample, shape ({'n' if count is None else count},): the"
        " importance of a sample is its own loss, and every rank takes the mean of its own samples"
    )
    refuse("loss", rule, shown, "Use reduction='none'; the mean is taken for you.", source)


def try_loss(loss: Loss, logits: torch.Tensor, targets: torch.Tensor) -> None:
    """See that a network can be trained with ``loss``, on a few samples of several ranks: that it
    takes them, gives a loss for each, mixes none and has a gradient; or raise InputError."""
    if not callable(loss):
        rule = "must be a function of outputs and targets"
        remedy = "Use CrossEntropyLoss(reduction='none')."
        refuse("loss", rule, f"a {type(loss).__name__}", remedy, "training")
    with torch.enable_grad():
        given = logits.detach().clone().requires_grad_()
        try:
            losses = loss(given, targets)
            check_losses(losses, len(targets))
            first = loss(given[:2], targets[:2])
        except InputError:
            raise
        except FAULTS as error:
            shown = f"outputs {tuple(logits.shape)}, targets {tuple(targets.shape)}"
            rule, remedy = f"cannot take them: {error}", "Make model, data and loss fit."
            refuse("loss", rule, shown, remedy, "training")
    if not losses.requires_grad:
        rule, remedy = "must have a gradient", "Compute it with torch's functions alone."
        refuse("loss", rule, loss_name(loss), remedy, "training")
    if not torch.allclose(losses[:2], first, rtol=1e-4, atol=1e-6, equal_nan=True):
        rule = "of a sample must not depend on the other samples, which may be of other ranks"
        remedy = "Take out what goes over the whole batch."
        refuse("loss", rule, loss_name(loss), remedy, "training")
