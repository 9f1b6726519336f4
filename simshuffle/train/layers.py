"""Read a network of torch as a list of layers, from one forward pass without numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.train.reading import LayerReader
from simshuffle.workload.layers import LayerList


def read_layers(
    module: nn.Module, example: torch.Tensor | Sequence[torch.Tensor], name: str = ""
) -> LayerList:
    """Return a network as a list of layers, as `simshuffle.workload.layers.LayerList`
    describes them.

    One forward pass shows them. It computes nothing and allocates nothing, and leaves
    the module as it was. Attention counts as one layer that keeps its scores, fused or
    not. Trained parameters that no call has shown are a layer 'unused', the first.
    Frozen parameters are not counted, and neither are values that the loss keeps.

    Args:
        module: whose forward pass takes ``example``; in training mode dropouts keep
            their masks.
        example: a batch of inputs, of any size, or several such inputs.
        name: of the network; that of its class if left out.

    Raises:
        InputError: the network cannot take the example, or has no parameter that
            requires a gradient.
    """
    inputs = (example,) if isinstance(example, torch.Tensor) else tuple(example)
    name = name or type(module).__name__
    # parameters and buffers on torch's device without memory, by name and identity
    values = {key: value.to("meta") for key, value in module.named_buffers()}
    trained = {}
    for key, value in module.named_parameters():
        values[key] = value.to("meta")
        if value.requires_grad:
            trained[id(values[key])] = values[key]
    if not trained:
        refuse("module", "has nothing to train", name, "Add a layer.", "layers")
    try:
        with torch.no_grad(), torch.device("meta"), sdpa_kernel(SDPBackend.MATH):
            empty = tuple(tensor.to("meta") for tensor in inputs)
            reader = LayerReader(trained, empty)
            with _names_of(module, reader), reader:
                functional_call(module, values, empty)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        batches = ", ".join(
            f"a batch of shape {tuple(tensor.shape)}" for tensor in inputs
        )
        remedy = "Give a batch that the network takes."
        rule = (
            "cannot take the example:"
            f" {str(error).splitlines()[0] if str(error) else 'it fails'}"
        )
        raise InputError(Problem("module", rule, batches, remedy), "layers") from error
    return reader.network(name)


def layers(
    module: nn.Module, example: torch.Tensor | Sequence[torch.Tensor]
) -> dict[str, list[Any]]:
    """Return when which part of a network's gradient is ready, as a scenario may take
    it.

    At ``workload.model.layers``. A part is a layer with multiplications and parameters,
    and the layers behind it that lack either. Arguments and errors as of `read_layers`.

    Returns:
        'parameters': how many each part has, in the order of the forward pass; and
        'backward': the share, 0 to 1, of the backward pass that each part takes. Parts
        without parameters are left out, so that shares may add up to less than 1.
    """
    parameters, backward = read_layers(module, example).gradient_parts
    return {"parameters": parameters, "backward": backward}


@contextmanager
def _names_of(module: nn.Module, reader: LayerReader) -> Iterator[None]:
    """Within the context, tell the reader which part of ``module`` is called.

    The module has hooks for it, which are removed at the end.
    """

    def enter(path: str, part: nn.Module) -> Any:
        """Return a hook that puts ``part`` on the reader's stack of running modules."""
        is_leaf = not any(part.children())
        return lambda *_: reader.drafts.path.append((path, is_leaf))

    def leave(*_: Any) -> None:
        reader.drafts.path.pop()

    # the stack of running modules names the layers that their operations make
    hooks = []
    for path, part in module.named_modules():
        hooks.append(part.register_forward_pre_hook(enter(path, part)))
        hooks.append(part.register_forward_hook(leave))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
