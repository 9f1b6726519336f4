"""A layer of a network, and a network as a list of layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from simshuffle.spec.arrays import Floats

WORK_SHARE = 0.65
"""Share of a pass that is in proportion to the multiplications of a layer; the rest is
in proportion to their root, as small layers leave much of an accelerator idle
(estimate).
"""
SHARE_DIGITS = 6
"""Decimal digits to which the shares of the backward pass are rounded
(`gradient_parts`).
"""


def work_shares(multiplications: Sequence[float]) -> list[float]:
    """Return the share of a pass that each layer takes, given the multiplications of
    each.

    `WORK_SHARE` of it is in proportion to these, the rest to their root; the shares
    add up to 1, or are all 0 if there are none.
    """
    roots = [number**0.5 for number in multiplications]
    total = sum(multiplications) or 1.0
    root_total = sum(roots) or 1.0
    return [
        WORK_SHARE * number / total + (1 - WORK_SHARE) * root / root_total
        for number, root in zip(multiplications, roots, strict=True)
    ]


def gradient_parts(
    layers: Iterable[tuple[int, float]],
) -> tuple[list[int], list[float]]:
    """Divide the gradient into parts that become ready one after the other.

    A layer without multiplications, such as a norm, or without parameters, is a part
    with the layer before it. A part without parameters is left out, with its share.

    Args:
        layers: parameters and multiplications of each layer, first to last.

    Returns:
        The parameters of each part, first to last; and the share of the backward pass
        of each, 0 to 1, rounded to `SHARE_DIGITS` digits. A share of exactly 0 becomes
        the smallest number of so many digits.
    """
    sizes = list(layers)
    shares = work_shares([multiplications for _, multiplications in sizes])
    part_parameters = [0]
    part_shares = [0.0]
    for (parameters, multiplications), share in zip(sizes, shares, strict=True):
        if parameters and multiplications:
            part_parameters.append(parameters)
            part_shares.append(share)
        else:
            part_parameters[-1] += parameters
            part_shares[-1] += share
    with_parameters = [index for index, count in enumerate(part_parameters) if count]
    return [part_parameters[index] for index in with_parameters], [
        round(part_shares[index] or 10**-SHARE_DIGITS, SHARE_DIGITS)
        for index in with_parameters
    ]


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
"""The name by which a layer's predecessors name the sample itself."""


@dataclass(frozen=True)
class Layer:
    """A layer, for one sample.

    Shapes have the channels first, then the extents: pixels, voxels, or tokens of a
    sequence. A linear layer after tokens has shape (features, tokens). The outputs of
    several layers are joined along the channels.

    ``saved`` counts the values that PyTorch keeps. A convolution, a linear layer and a
    norm keep their input. A ReLU keeps its output, which takes the place of its input.
    A max pooling keeps its input and the indices of the maxima, 8 B each, as two
    values. Addition and concatenation keep nothing. Values that two layers keep count
    for the first of them alone. A mask of a dropout, 1 B each, is half a value.
    """

    name: str  # unique in its network
    kind: Kind  # its operation
    # names of the layers whose outputs it takes; `INPUT` for the sample itself
    predecessors: tuple[str, ...]
    input: Shape  # shape of the outputs of its predecessors together; flat or not
    output: Shape  # shape of its output
    parameters: int = 0  # trained parameters
    # floating-point operations of its forward pass for one sample: two for each multiplication of a
    # convolution, a linear layer or attention, and of others none
    flops: float = 0.0
    # positions that the kernel of a convolution or pooling spans, by extent, holes included; ()
    # where it has none
    kernel: Shape = ()
    # stride of a convolution or pooling, by extent; () where it has none, and where it makes
    # extents larger
    stride: Shape = ()
    saved: float = 0.0  # values kept of it for the backward pass, for one sample
    # how tensor parallelism splits a linear layer or an embedding: its outputs ('column'), its
    # inputs ('row'), or not at all ('')
    tensor: Literal["", "column", "row"] = ""
    heads: int = 0  # of attention; 0 where it is none

    @property
    def inputs(self) -> int:
        """The values that it takes of one sample."""
        return math.prod(self.input)

    @property
    def outputs(self) -> int:
        """The values that it gives for one sample."""
        return math.prod(self.output)


@dataclass(frozen=True)
class LayerList:
    """A network: its layers in the order of the forward pass."""

    name: str  # of the network
    layers: tuple[Layer, ...]  # first to last; a layer comes after all that it takes
    input: Shape  # shape of a sample

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self.layers)

    @cached_property
    def parameters(self) -> int:
        """The trained parameters of all layers."""
        return sum(layer.parameters for layer in self.layers)

    @cached_property
    def flops(self) -> float:
        """The floating-point operations of the forward pass of one sample."""
        return math.fsum(layer.flops for layer in self.layers)

    @cached_property
    def saved(self) -> float:
        """The values kept of one sample for the backward pass."""
        return math.fsum(layer.saved for layer in self.layers)

    @cached_property
    def shares(self) -> Floats:
        """(layers,) the share of a pass that each layer takes; they add up to 1.

        Layers without operations take none: their time is in that of the others. All
        are 0 if no layer has operations.
        """
        return np.array(work_shares([layer.flops / 2 for layer in self.layers]))

    def seconds(self, per_sample: float) -> Floats:
        """Return the seconds of each layer, (layers,), in a pass that takes
        ``per_sample`` s for one sample; all 0 if no layer has operations.
        """
        return per_sample * self.shares

    @cached_property
    def gradient_parts(self) -> tuple[list[int], list[float]]:
        """The parameters of groups of layers, first to last, and each group's share of
        the backward pass.

        A group is a layer with operations and parameters, and those after it that lack
        one of them or both, such as norms and attention. A group without parameters is
        left out, with its share.
        """
        return gradient_parts(
            [(layer.parameters, layer.flops / 2) for layer in self.layers]
        )
