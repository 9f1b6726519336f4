"""Spatial parallelism: every member of a group has a part of the extents of each sample."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from simshuffle.layers import Layer, LayerList
from simshuffle.parallelism.base import DividedLayers
from simshuffle.parallelism.division import Division, Traffic, crossings, takes_samples
from simshuffle.parallelism.step import Collective, Group
from simshuffle.spec.record import Count


class Spatial(DividedLayers):
    """Every member of a group has a part of the pixels of each sample, and all weights.

    As in ParaDL (Kahira et al., HPDC 2021, arXiv 2104.09075) and LBANN (Dryden et al.,
    arXiv 1903.06681): a convolution or pooling of k rows needs (k - 1) / 2 rows of each neighbour,
    in the backward pass of the gradient of its outputs. From the first layer on that cannot be
    divided, all members gather what goes into it and compute the rest alike. ParaDL divides their
    time too, and counts the gradient of the samples, which nobody needs.

    Attributes:
        grid: members along each extent, such as [2, 2]; if left out, all along the longest one.
        convolutions: how many convolutions are divided, with what lies between them and behind the
            last one; if left out, as many as can be.
    """

    short_name: ClassVar[str] = "spatial"
    gathered: ClassVar[Collective] = "alltoall"
    gradient_group: ClassVar[Group] = "all"
    kind: Literal["spatial"] = "spatial"
    grid: list[Count] | None = None
    convolutions: Count | None = None

    @model_validator(mode="after")
    def _grid_is_of_all(self) -> Spatial:
        if self.grid is not None and math.prod(self.grid) != self.ways:
            raise PydanticCustomError("grid", "the product of grid must be ways")
        return self

    def impossible(self, layers: LayerList, ways: int) -> str:
        """The first layer must be divided at least."""
        extents = layers.input[1:]
        if not extents:
            return "needs samples with extents, such as pixels"
        if self.grid is not None and len(self.grid) > len(extents):
            return f"must have a grid of at most {len(extents)} extents"
        parts = self._parts(layers, ways)
        if _divisible(layers.layers[0], len(extents), parts):
            return ""
        shape = " x ".join(map(str, layers.layers[0].output[1:] or extents))
        return (
            f"must divide the extents of the first layer ({shape}) into parts as high as its halo"
        )

    def division(self, layers: LayerList) -> Division:
        """Layers up to the first that cannot be divided have the work of the largest part."""
        parts = self._parts(layers, self.ways)
        extents = len(layers.input) - 1
        count = len(layers)
        last = self._end(layers)
        divided = next(
            (n for n in range(last) if not _divisible(layers.layers[n], extents, parts)), last
        )
        share = np.ones(count)
        share[:divided] = [_largest_part(each, parts) for each in layers.layers[:divided]]
        forward, backward = [], []
        beside = np.zeros(count)
        for axis, members in parts.items():
            across = self.ways // members
            stride = math.prod(n for other, n in parts.items() if other > axis)
            values = np.zeros((2, count))
            for number, layer in enumerate(layers.layers[:divided]):
                rows = _halo(layer, axis)
                values[0, number] = rows * layer.inputs / layer.input[axis] / across
                if not takes_samples(layer):
                    values[1, number] = rows * layer.outputs / layer.output[axis] / across
            beside += 2 * values[0]
            forward.append(Traffic("halo", "halo", values[0], True, members, stride))
            backward.append(Traffic("halo", "halo", values[1], True, members, stride))
        gathered = np.zeros(count)
        if divided < count:
            gathered[divided] = crossings(layers)[0][divided]
            forward.append(Traffic("activations", "allgather", gathered, True))
        return Division(
            work=share,
            held=np.ones(count),
            kept=share,
            forward=tuple(forward),
            backward=tuple(backward),
            buffers=max(float(beside.max()), float(gathered.max())),
        )

    def _end(self, layers: LayerList) -> int:
        """The number of the first layer that is not to be divided."""
        found = [n for n, layer in enumerate(layers.layers) if layer.kind == "conv"]
        if self.convolutions is None or self.convolutions >= len(found):
            return len(layers)
        return found[self.convolutions]

    def _parts(self, layers: LayerList, ways: int) -> dict[int, int]:
        """Members along each axis that is divided."""
        if self.grid is not None and ways == self.ways:
            return {axis: n for axis, n in enumerate(self.grid, 1) if n > 1}
        extents = layers.input[1:]
        return {1 + extents.index(max(extents)): ways}


def _divisible(layer: Layer, extents: int, parts: dict[int, int]) -> bool:
    """Whether each member has a row of a layer, and no fewer than a halo. Rows that are no multiple
    are shared out as evenly as they can be."""
    if layer.kind == "attention" or {len(layer.input), len(layer.output)} != {1 + extents}:
        return False
    return all(
        layer.output[axis] >= n and layer.input[axis] // n >= max(_halo(layer, axis), 1)
        for axis, n in parts.items()
    )


def _largest_part(layer: Layer, parts: dict[int, int]) -> float:
    """What a member has of a layer that has as many rows as any: 2 of 7 if four divide them."""
    return math.prod(-(-layer.output[axis] // n) / layer.output[axis] for axis, n in parts.items())


def _halo(layer: Layer, axis: int) -> int:
    """Rows that a member needs of each neighbour."""
    if not layer.kernel:
        return 0
    kernel = layer.kernel[axis - 1]
    apart = layer.stride and layer.stride[axis - 1] >= kernel
    return 0 if apart else (kernel - 1) // 2
