"""Trying out a network on a few samples: the size of its layers' outputs, and whether
ranks mix.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.spec.arrays import Ints
from simshuffle.train.batch_norm import (
    RankRows,
    apply_mode,
)
from simshuffle.train.loss import FAULTS, Loss, cross_entropy, try_loss
from simshuffle.train.sources import Source
from simshuffle.train.training import BatchNorm


@dataclass
class Probe:
    """Properties of a network, as a forward pass of a few samples shows them."""

    # values of one sample's input and of the outputs of all layers without sublayers; outputs that
    # are no tensors are not counted
    activations: int = 1
    # paths of the batch-norm layers that see one value for each sample and channel
    single_value_norms: list[str] = field(default_factory=list)
    # whether the outputs of a rank's samples depend on the samples of another rank
    mixes_ranks: bool = False
    # whether it has convolutions, and gives the same outputs with channels last in memory
    channels_last: bool = False


def probe_model(
    model: nn.Module,
    mode: BatchNorm,
    source: Source,
    *,
    dtype: torch.dtype,
    device: torch.device,
    loss: Loss = cross_entropy,
) -> Probe:
    """Run a copy of ``model``, with batch norm as ``mode``, on two samples of each of
    two ranks, and give its outputs to ``loss``.

    ``model`` and torch's random state stay as they are. Up to six samples of ``source``
    are read, from the first to the last.

    Args:
        model: to be tried.
        mode: of batch norm.
        source: gives the samples.
        dtype: of the copy.
        device: of the copy; channels last are tried on a CPU alone.
        loss: gives the loss of each sample.

    Raises:
        InputError: the model has no weights to train, cannot take the samples, or does
            not give a logit for each label; or as `try_loss`.
    """
    if not any(weight.requires_grad for weight in model.parameters()):
        rule = "must have weights that can be trained"
        refuse(
            "model",
            rule,
            type(model).__name__,
            "Give the model a layer with weights.",
            "training",
        )
    twin = copy.deepcopy(model)
    rows = apply_mode(twin, mode, 2)
    twin.to(device, dtype).train()
    sample_choice = np.linspace(0, len(source) - 1, 6).astype(np.int64)
    probe = Probe(activations=max(1, source.batch(sample_choice[:1])[0].numel()))
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        hooks = _add_hooks(twin, probe, num_samples=4)
        logits = _logits(twin, rows, source, sample_choice[:4])
        for hook in hooks:
            hook.remove()

        # rows 0 and 2 are rank 0's: it has the same samples, rank 1 has two others
        logits_beside_others = _logits(twin, rows, source, sample_choice[[0, 4, 2, 5]])
    largest_label = int(source.targets.max())
    if logits.shape[1] <= largest_label:
        rule = f"must give a logit for each label; the largest is {largest_label}"
        refuse(
            "model",
            rule,
            f"{logits.shape[1]} outputs",
            "Widen the last layer of the model.",
            "training",
        )
    try_loss(loss, logits, source.batch(sample_choice[:4])[1])
    differences = (logits - logits_beside_others)[0::2].abs()
    probe.mixes_ranks = bool((differences > 1e-5 * logits.abs().max()).any())
    if device.type == "cpu" and any(
        isinstance(layer, nn.Conv2d) for layer in twin.modules()
    ):
        probe.channels_last = _equal_with_channels_last(
            twin, rows, source, sample_choice[:4], logits
        )
    return probe


def _equal_with_channels_last(
    twin: nn.Module, rows: RankRows, source: Source, samples: Ints, logits: torch.Tensor
) -> bool:
    """Return whether ``twin`` gives the ``logits`` (n, classes) of ``samples`` with its
    weights laid out channels last too, to 1e-4 of the largest.

    A network that needs the usual order in memory, or draws random numbers by it, does
    not. ``twin`` stays so laid out.
    """
    twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            new_logits = _logits(twin, rows, source, samples)
    except InputError:
        return False
    return torch.allclose(
        new_logits, logits, rtol=1e-4, atol=1e-4 * float(logits.abs().max())
    )


def _logits(
    twin: nn.Module, rows: RankRows, source: Source, samples: Ints
) -> torch.Tensor:
    """Return the logits (n, classes) that ``twin`` gives for ``samples`` (n,), of two
    ranks by turns; raise InputError if it gives none.

    torch's generator is seeded with 0 before, so that dropouts draw alike every time.
    """
    inputs, _ = source.batch(samples)
    rows.expect(0, 2, len(samples))
    torch.manual_seed(0)
    try:
        logits = twin(inputs)
    except InputError:
        raise
    except FAULTS as error:
        rule = f"cannot take the samples: {error}"
        value = f"inputs {tuple(inputs.shape)}"
        problem = Problem("model", rule, value, "Make model and data fit together.")
        raise InputError(problem, "training") from error
    if (
        not isinstance(logits, torch.Tensor)
        or logits.ndim != 2
        or len(logits) != len(samples)
    ):
        value = f"a {type(logits).__name__}"
        if isinstance(logits, torch.Tensor):
            value = f"{tuple(logits.shape)}"
        rule = f"must give one row of logits for each sample, here ({len(samples)}, classes)"
        refuse(
            "model", rule, value, "Wrap the model in a module that does.", "training"
        )
    return logits


def _add_hooks(twin: nn.Module, probe: Probe, num_samples: int) -> list[Any]:
    """Add hooks that fill in ``probe`` while ``twin`` runs on a batch of
    ``num_samples``; return their handles.
    """

    def count_output(_layer: nn.Module, _inputs: Any, result: Any) -> None:
        """Add the values that one sample has in ``result``, if that is a tensor."""
        if isinstance(result, torch.Tensor):
            probe.activations += result.numel() // num_samples

    def single_value_hook(path: str) -> Any:
        """Return a hook that notes ``path`` if a sample has one value a channel."""

        def list_path(_layer: nn.Module, inputs: tuple[Any, ...]) -> None:
            if math.prod(inputs[0].shape[2:]) == 1:
                probe.single_value_norms.append(path)

        return list_path

    hooks: list[Any] = [
        layer.register_forward_hook(count_output)
        for layer in twin.modules()
        if not any(True for _ in layer.children())
    ]
    norms = [
        (path, layer)
        for path, layer in twin.named_modules()
        if isinstance(layer, _BatchNorm)
    ]
    return hooks + [
        layer.register_forward_pre_hook(single_value_hook(path or "(model)"))
        for path, layer in norms
    ]
