"""What of the gradient of a network is ready when, from the network itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from simshuffle.errors import InputError, Problem

BY_WORK = 0.65
"""Share of the backward pass that is in proportion to the multiplications of a layer; the rest is
in proportion to their root, as small layers leave much of an accelerator idle (estimate)."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def layers(module: nn.Module, example: torch.Tensor) -> dict[str, list[float]]:
    """The layers of a network as a scenario takes them, at ``workload.model.layers``.

    One forward pass counts multiplications; on the meta device it computes nothing. Layers without
    any, such as norms, count as part of the one before.

    Args:
        module: whose forward pass takes ``example``.
        example: a batch of inputs, of any size.

    Returns:
        'parameters' of each layer, in the order of the forward pass; and 'backward', the share of
        the backward pass that each takes.

    Raises:
        InputError: the network cannot take the example, or has nothing to train.
    """
    calls: dict[nn.Module, float] = {}
    hooks = [
        m.register_forward_hook(_counting(calls), always_call=False)
        for m in module.modules()
        if any(p.requires_grad for p in m.parameters(recurse=False))
    ]
    try:
        with torch.no_grad():
            module(example)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        shown = f"a batch of shape {tuple(example.shape)}"
        remedy = "Give a batch as the network takes it."
        rule = f"cannot take the example: {str(error).splitlines()[0]}"
        raise InputError(Problem("module", rule, shown, remedy), "layers") from error
    finally:
        for hook in hooks:
            hook.remove()
    counted, work, seen = [0], [0.0], set()
    for m, multiplications in calls.items():
        own = {p: p.numel() for p in m.parameters(recurse=False) if p.requires_grad}
        new = sum(count for p, count in own.items() if p not in seen)
        seen |= set(own)
        if multiplications:
            counted.append(new)
            work.append(multiplications)
        else:
            counted[-1] += new
    # what no call has shown is ready last
    unseen = [p.numel() for p in module.parameters() if p.requires_grad and p not in seen]
    counted[0] += sum(unseen)
    kept = [place for place, count in enumerate(counted) if count]
    if not kept:
        problem = Problem("module", "has nothing to train", type(module).__name__, "Add a layer.")
        raise InputError(problem, "layers")
    roots = [each**0.5 for each in work]
    whole, root = sum(work) or 1.0, sum(roots) or 1.0
    shares = [
        BY_WORK * each / whole + (1 - BY_WORK) * small / root
        for each, small in zip(work, roots, strict=True)
    ]
    return {
        "parameters": [counted[place] for place in kept],
        "backward": [round(shares[place] or 1e-6, 6) for place in kept],
    }


def _counting(calls: dict[nn.Module, float]) -> Any:
    """A hook that adds up the multiplications of each module, in the order of the first calls."""

    def count(m: nn.Module, given: tuple[Any, ...], result: Any) -> None:
        found = 0.0
        if isinstance(result, torch.Tensor) and given and isinstance(given[0], torch.Tensor):
            weight = getattr(m, "weight", None)
            if isinstance(m, (*_CONVOLUTIONS, *_TRANSPOSED)):
                at = given[0] if isinstance(m, _TRANSPOSED) else result
                found = m.weight.numel() * at.numel() / at.shape[1]
            elif isinstance(weight, nn.Parameter) and weight.ndim > 1 and not _looks_up(m):
                found = weight.numel() * result.numel() / result.shape[-1]
        calls[m] = calls.get(m, 0.0) + found

    return count


def _looks_up(m: nn.Module) -> bool:
    return isinstance(m, (nn.Embedding, nn.EmbeddingBag))
