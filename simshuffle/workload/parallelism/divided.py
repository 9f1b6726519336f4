"""Filter and channel parallelism: parts of the output, or of the input channels of each layer; and
tensor parallelism: matrices of a transformer divided by columns, then by rows."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from simshuffle.spec.arrays import Flags
from simshuffle.spec.record import Count
from simshuffle.workload.layers import INPUT, Layer, LayerList
from simshuffle.workload.parallelism.base import DividedLayers
from simshuffle.workload.parallelism.division import (
    MIXING,
    Division,
    Traffic,
    crossings,
    mixed_division,
    takes_samples,
)
from simshuffle.workload.parallelism.step import Collective, Group


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


class Filter(DividedLayers):
    """Every member of a group has 1/ways of the filters of each convolution and linear layer, and
    computes as many of its output channels.

    As in ParaDL (Kahira et al., HPDC 2021, arXiv 2104.09075): outputs are gathered, but for the
    last layer's, and gradients of inputs, of which each member has a summand, are summed. ParaDL
    divides the time of all layers; here those between, such as norms, take whole outputs, and are
    computed by every member alike.
    """

    short_name: ClassVar[str] = "filter"
    kind: Literal["filter"] = "filter"

    def impossible(self, layers: LayerList, ways: int) -> str:
        """There must be a filter of each layer for every member."""
        filters = [each.output[0] for each in layers.layers if each.kind in MIXING]
        if not filters:
            return "needs layers with filters"
        most = min(filters)
        return "" if ways <= most else f"must be at most the filters of the smallest layer, {most}"

    def division(self, layers: LayerList) -> Division:
        """Outputs are gathered, gradients of inputs summed."""
        mixing = np.array([each.kind in MIXING for each in layers.layers])
        outputs = np.array([float(each.outputs) for each in layers.layers]) * mixing
        outputs[np.flatnonzero(mixing)[-1:]] = 0
        inputs = np.array([0.0 if takes_samples(e) else float(e.inputs) for e in layers.layers])
        return mixed_division(
            mixing,
            self.ways,
            Traffic("activations", "allgather", outputs, before=False),
            Traffic("activation_gradients", "allreduce", inputs * mixing, before=False),
        )


class Channel(DividedLayers):
    """Every member of a group has what convolutions and linear layers do with 1/ways of their input
    channels.

    As in ParaDL (Kahira et al., HPDC 2021, arXiv 2104.09075): outputs, of which each member has a
    summand, are summed, and gradients of inputs gathered. Layers that take the sample itself have
    few channels and are not divided. ParaDL divides the time of all layers; here those between,
    such as norms, take whole outputs, and are computed by every member alike. It counts outputs of
    all layers but the last; here it is those of all that are divided.
    """

    short_name: ClassVar[str] = "channel"
    kind: Literal["channel"] = "channel"

    def impossible(self, layers: LayerList, ways: int) -> str:
        """There must be a channel of each layer for every member."""
        divided = self._divides(layers)
        channels = [n.input[0] for n, each in zip(layers.layers, divided, strict=True) if each]
        if not channels:
            return "needs layers with channels behind the first layer"
        most = min(channels)
        return "" if ways <= most else f"must be at most the channels of the smallest layer, {most}"

    def division(self, layers: LayerList) -> Division:
        """Outputs are summed, gradients of inputs gathered."""
        divided = self._divides(layers)
        inputs = np.array([float(each.inputs) for each in layers.layers]) * divided
        outputs = np.array([float(each.outputs) for each in layers.layers]) * divided
        return mixed_division(
            divided,
            self.ways,
            Traffic("activations", "allreduce", outputs, before=False),
            Traffic("activation_gradients", "allgather", inputs, before=False),
        )

    def _divides(self, layers: LayerList) -> Flags:
        return np.array([e.kind in MIXING and not takes_samples(e) for e in layers.layers])


class Tensor(DividedLayers):
    """Every member of a group has 1/ways of the columns of one matrix, of the rows of the next, and
    of the heads between.

    As in Megatron-LM (Shoeybi et al., arXiv 1909.08053, section 3): outputs of rows are summed in
    the forward pass, gradients of inputs of columns in the backward pass: two sums of a block in
    each. Embedding and logits are divided by words; the loss of divided logits sends nothing that
    counts. With ``sequence``, sums are replaced by reduce-scatter and allgather, and norms,
    dropouts and sums have 1/ways of the tokens each (Korthikanti et al., arXiv 2205.05198, section
    4.2); that inputs of columns are gathered again in the backward pass is taken to be hidden.

    Attributes:
        sequence: whether what is between divided matrices is divided by tokens.
    """

    short_name: ClassVar[str] = "tensor"
    kind: Literal["tensor"] = "tensor"
    sequence: bool = False

    def impossible(self, layers: LayerList, ways: int) -> str:
        """Heads, and tokens where they are divided, must be divided evenly."""
        marked = [each for each in layers.layers if each.tensor]
        if not marked:
            return "needs a network with layers that tensor parallelism divides, a transformer"
        heads = [each.heads for each in layers.layers if each.heads]
        uneven = [n for n in heads if n % ways]
        if uneven:
            return f"must divide the heads of attention, {min(uneven)}"
        most = min(
            each.output[0] if each.tensor == "column" else each.input[0]
            for each in marked
            if each.kind != "embedding"
        )
        if ways > most:
            return f"must be at most the features of the smallest divided layer, {most}"
        tokens = {each.output[1] for each in marked if len(each.output) > 1}
        if self.sequence and any(n % ways for n in tokens):
            return f"must divide the tokens, {min(tokens)}"
        return ""

    def division(self, layers: LayerList) -> Division:
        """Divided are marked layers, and those that take what columns give."""
        between = 1 / self.ways if self.sequence else 1.0
        divided_output = {INPUT: False}
        work, kept = [], []
        for layer in layers.layers:
            takes_divided = any(divided_output[name] for name in layer.after)
            column = layer.tensor == "column" and layer.kind != "embedding"
            divided_output[layer.name] = column or (takes_divided and not layer.tensor)
            divided = bool(layer.tensor) or takes_divided
            work.append(1 / self.ways if divided else between)
            whole = min(layer.saved, layer.inputs) if not takes_divided else 0.0
            rest = (layer.saved - whole) / self.ways if divided else (layer.saved - whole) * between
            kept.append((whole * between + rest) / layer.saved if layer.saved else 1.0)
        held = [1 / self.ways if layer.tensor else 1.0 for layer in layers.layers]
        forward, backward = self._traffic(layers)
        largest = max(float(each.values.max()) for each in (*forward, *backward))
        return Division(np.array(work), np.array(held), np.array(kept), forward, backward, largest)

    def _traffic(self, layers: LayerList) -> tuple[tuple[Traffic, ...], tuple[Traffic, ...]]:
        """What is sent in the forward and in the backward pass."""
        rows, columns = np.zeros(len(layers)), np.zeros(len(layers))
        for number, layer in enumerate(layers.layers):
            if layer.tensor == "row" or (layer.tensor and layer.kind == "embedding"):
                rows[number] = layer.outputs
            elif layer.tensor and not takes_samples(layer):
                columns[number] = layer.inputs
        forward, backward = "activations", "activation_gradients"
        if not self.sequence:
            summed = Traffic(backward, "allreduce", columns, before=False)
            return (Traffic(forward, "allreduce", rows, before=False),), (summed,)
        passes = (forward, columns, rows), (backward, rows, columns)
        one, other = (
            (
                Traffic(label, "allgather", taken, True),
                Traffic(label, "reduce_scatter", given, False),
            )
            for label, taken, given in passes
        )
        return one, other
