"""Trying a network out on a few samples before it is trained, so that what cannot work is said at
once."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from simshuffle.errors import InputError, Problem
from simshuffle.train.batch_norm import RankRows, apply_mode
from simshuffle.train.loss import Loss, cross_entropy, try_loss
from simshuffle.train.source import Ints, Source
from simshuffle.train.training import BatchNorm

_FAULTS = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError)


@dataclass
class Probe:
    """What a trial found.

    Attributes:
        activations: numbers that go in and that the layers put out, for a sample.
        flat: paths of the batch-norm layers that see one value for each sample and channel.
        mixes: whether what the network makes of a rank's samples depends on those of another rank.
    """

    activations: int = 1
    flat: list[str] = field(default_factory=list)
    mixes: bool = False


def try_out(
    model: nn.Module,
    mode: BatchNorm,
    source: Source,
    dtype: torch.dtype,
    device: torch.device,
    loss: Loss = cross_entropy,
) -> Probe:
    """Give two samples of each of two ranks to a copy of ``model`` with batch norm as ``mode``, and
    what it puts out to ``loss``. Changes neither it nor any random state.

    Raises:
        InputError: it has nothing to train, cannot take the samples, does not give one row of
            logits for each, or has fewer logits than there are labels; or as of `try_loss`.
    """
    if not any(weight.requires_grad for weight in model.parameters()):
        rule, remedy = "must have weights that can be trained", "Give it a layer that has some."
        raise InputError(Problem("model", rule, type(model).__name__, remedy), "training")
    twin = copy.deepcopy(model)
    rows = apply_mode(twin, mode, 2)
    twin.to(device, dtype).train()
    spread = np.linspace(0, len(source) - 1, 6).astype(np.int64)
    probe = Probe(activations=max(1, source.batch(spread[:1])[0].numel()))
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        hooks = _watch(twin, probe, samples=4)
        logits = _logits(twin, rows, source, spread[:4])
        for hook in hooks:
            hook.remove()
        other = _logits(twin, rows, source, spread[[0, 4, 2, 5]])
    largest = int(source.targets.max())
    if logits.shape[1] <= largest:
        rule = f"must give a logit for each label; the largest is {largest}"
        raise InputError(
            Problem("model", rule, f"{logits.shape[1]} outputs", "Widen its last layer."),
            "training",
        )
    try_loss(loss, logits, source.batch(spread[:4])[1])
    # rank 0 has the same samples in both
    probe.mixes = bool(((logits - other)[0::2].abs() > 1e-5 * logits.abs().max()).any())
    return probe


def _logits(twin: nn.Module, rows: RankRows, source: Source, samples: Ints) -> torch.Tensor:
    inputs, _ = source.batch(samples)
    rows.expect(0, 2, len(samples))
    torch.manual_seed(0)
    try:
        logits = twin(inputs)
    except InputError:
        raise
    except _FAULTS as error:
        rule = f"cannot take the samples: {error}"
        raise InputError(
            Problem("model", rule, f"inputs {tuple(inputs.shape)}", "Make model and data fit."),
            "training",
        ) from error
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != len(samples):
        shown = (
            f"{tuple(logits.shape)}"
            if isinstance(logits, torch.Tensor)
            else f"a {type(logits).__name__}"
        )
        rule = f"must give one row of logits for each sample, here ({len(samples)}, classes)"
        raise InputError(
            Problem("model", rule, shown, "Wrap it in a module that does."), "training"
        )
    return logits


def _watch(twin: nn.Module, probe: Probe, samples: int) -> list[Any]:
    """Hooks that fill ``probe`` in while the network runs."""

    def output(_layer: nn.Module, _given: Any, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            probe.activations += result.numel() // samples

    def flat(path: str) -> Any:
        def note(_layer: nn.Module, given: tuple[Any, ...]) -> None:
            if math.prod(given[0].shape[2:]) == 1:
                probe.flat.append(path)

        return note

    hooks: list[Any] = [
        m.register_forward_hook(output)
        for m in twin.modules()
        if not any(True for _ in m.children())
    ]
    normal = [(path, m) for path, m in twin.named_modules() if isinstance(m, _BatchNorm)]
    return hooks + [m.register_forward_pre_hook(flat(path or "(model)")) for path, m in normal]
