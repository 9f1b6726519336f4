"""A layer of a network, and a network as a list of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from simshuffle.spec.arrays import Floats

BY_WORK = 0.65
"""Share of a pass that is in proportion to the multiplications of a layer; the rest is in
proportion to their root, as small layers leave much of an accelerator idle (estimate)."""
DIGITS = 6
"""Of the shares by which gradients are ready."""


def shares_of_work(work: Sequence[float]) -> list[float]:
    """The part of a pass that each layer takes, from the multiplications of each."""
    roots = [each**0.5 for each in work]
    whole, root = sum(work) or 1.0, sum(roots) or 1.0
    return [
        BY_WORK * each / whole + (1 - BY_WORK) * small / root
        for each, small in zip(work, roots, strict=True)
    ]


def parts_of_gradient(layers: Iterable[tuple[int, float]]) -> tuple[list[int], list[float]]:
    """What of the gradient is ready when: parameters of groups of ``layers``, of which each has
    parameters and multiplications, first to last; and the share of the backward pass that each
    group takes. What has no multiplications, such as a norm, or no parameters, is a group with what
    is before it."""
    parameters, shares = [0], [0.0]
    given = list(layers)
    every = shares_of_work([work for _, work in given])
    for (count, work), share in zip(given, every, strict=True):
        if count and work:
            parameters.append(count)
            shares.append(share)
        else:
            parameters[-1] += count
            shares[-1] += share
    kept = [place for place, count in enumerate(parameters) if count]
    return [parameters[place] for place in kept], [
        round(shares[place] or 10**-DIGITS, DIGITS) for place in kept
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
"""What the first layers come after."""


@dataclass(frozen=True)
class Layer:
    """A layer, for one sample.

    Shapes have the channels first, then the extents: pixels, voxels, or tokens of a sequence. A
    linear layer after tokens has shape (features, tokens). What several layers give together is
    joined along the channels.

    What is ``saved`` is what PyTorch keeps: a convolution, a linear layer and a norm keep their
    input, a ReLU its output, which takes the place of its input, a max pooling its input and the
    places of the maxima, 8 B each, as two values; addition and concatenation keep nothing. What
    two layers keep counts for the first of them alone. A mask of a dropout, 1 B each, is half a
    value."""

    name: str  # unique in its network
    kind: Kind  # what it does
    # names of the layers whose outputs it takes; `INPUT` for the sample itself
    after: tuple[str, ...]
    input: Shape  # shape of what it takes, all that ``after`` gives together; flat or not
    output: Shape  # shape of what it gives
    parameters: int = 0  # that are trained
    # floating-point operations of its forward pass for one sample: two for each multiplication of a
    # convolution, a linear layer or attention, and of others none
    flops: float = 0.0
    # what a convolution or pooling reaches over, by extent, holes and all; () where it has none
    kernel: Shape = ()
    # of a convolution or pooling, by extent; () where it has none, and where it makes extents
    # larger
    stride: Shape = ()
    saved: float = 0.0  # values kept of it for the backward pass, for one sample
    # how tensor parallelism splits a linear layer or an embedding: its outputs ('column'), its
    # inputs ('row'), or not at all ('')
    tensor: Literal["", "column", "row"] = ""
    heads: int = 0  # of attention; 0 where it is none

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
    """A network, its layers in the order of the forward pass."""

    name: str  # of the network
    layers: tuple[Layer, ...]  # first to last; a layer comes after all that it takes
    input: Shape  # shape of a sample

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

    @cached_property
    def shares(self) -> Floats:
        """(layers,) the part of a pass that each takes; they add up to 1. Those without operations
        take none: their time is in that of the others."""
        return np.array(shares_of_work([layer.flops / 2 for layer in self.layers]))

    def seconds(self, per_sample: float) -> Floats:
        """(layers,) s of each, of a pass that takes ``per_sample`` s for one sample."""
        return per_sample * self.shares

    @cached_property
    def parts_of_gradient(self) -> tuple[list[int], list[float]]:
        """Parameters of groups of layers, first to last, and the share of the backward pass that
        each takes. A group is a layer with operations, and those after it that have parameters or
        operations alone, such as norms and attention."""
        return parts_of_gradient([(layer.parameters, layer.flops / 2) for layer in self.layers])
