"""A layer of a network, and a network as a list of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Kind = Literal[
    "conv",
    "linear",
    "norm",
    "pool",
    "activation",
    "add",
    "concat",
    "embedding",
    "attention",
    "other",
]
Shape = tuple[int, ...]
INPUT = "input"
"""What the first layers come after."""


@dataclass(frozen=True)
class Layer:
    """A layer, for one sample.

    Shapes have the channels first, then the extents: pixels, voxels, or tokens of a sequence. A
    linear layer after tokens has shape (features, tokens).

    Attributes:
        name: unique in its network.
        kind: what it does.
        after: names of the layers whose outputs it takes; `INPUT` for the sample itself.
        input: shape of what it takes, all that ``after`` gives together.
        output: shape of what it gives.
        parameters: that are trained.
        flops: floating-point operations of its forward pass for one sample; a multiplication and
            the addition of its result are two.
        kernel, stride: of a convolution or pooling, by extent; () where it has none.
        saved: values kept of it for the backward pass, for one sample.
        tensor: how tensor parallelism splits a linear layer or an embedding: its outputs
            ('column'), its inputs ('row'), or not at all ('').
    """

    name: str
    kind: Kind
    after: tuple[str, ...]
    input: Shape
    output: Shape
    parameters: int = 0
    flops: float = 0.0
    kernel: Shape = ()
    stride: Shape = ()
    saved: float = 0.0
    tensor: Literal["", "column", "row"] = ""

    @property
    def inputs(self) -> int:
        """Values that it takes of one sample."""
        return math.prod(self.input)

    @property
    def outputs(self) -> int:
        """Values that it gives for one sample."""
        return math.prod(self.output)


@dataclass(frozen=True)
class LayerList:
    """A network, its layers in the order of the forward pass.

    Attributes:
        name: of the network.
        layers: first to last; a layer comes after all that it takes.
        input: shape of a sample.
    """

    name: str
    layers: tuple[Layer, ...]
    input: Shape

    def __len__(self) -> int:
        return len(self.layers)

    @cached_property
    def parameters(self) -> int:
        """That are trained."""
        return sum(layer.parameters for layer in self.layers)

    @cached_property
    def flops(self) -> float:
        """Floating-point operations of the forward pass of one sample."""
        return math.fsum(layer.flops for layer in self.layers)

    @cached_property
    def saved(self) -> float:
        """Values kept of one sample for the backward pass."""
        return math.fsum(layer.saved for layer in self.layers)

    def crossing(self, cut: int) -> int:
        """Values of one sample that layers before number ``cut`` give to those from it on: each
        output that is taken there counts once."""
        before = {layer.name: layer for layer in self.layers[:cut]}
        taken = {name for layer in self.layers[cut:] for name in layer.after}
        sample = math.prod(self.input) if INPUT in taken else 0
        return sample + sum(before[name].outputs for name in taken if name in before)
