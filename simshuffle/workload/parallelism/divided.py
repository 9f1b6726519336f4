"""Spatial, filter and channel parallelism: parts of the extents, or of the output or
input channels of each layer; and tensor parallelism: matrices of a transformer divided
by columns, then by rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from simshuffle.spec.arrays import Flags, Floats
from simshuffle.spec.record import Count
from simshuffle.workload.layers import INPUT, Layer, LayerList
from simshuffle.workload.parallelism.base import DividedLayers
from simshuffle.workload.parallelism.cutting import MIXING, crossings, takes_samples
from simshuffle.workload.parallelism.division import (
    Division,
    PassSettings,
    Traffic,
    mixed_division,
)
from simshuffle.workload.parallelism.step import Collective, DividedWorkload, Group


class Spatial(DividedLayers):
    """Spatial parallelism: a member has a part of the pixels of each sample, and all
    weights.

    As in ParaDL (Kahira et al., HPDC 2021, arXiv 2104.09075) and LBANN (Dryden et al.,
    arXiv 1903.06681): a convolution or pooling of k rows needs (k - 1) / 2 rows of each
    neighbour, in the backward pass of the gradient of its outputs. From the first layer
    on that cannot be divided, all members gather what goes into it and compute the rest
    alike. ParaDL divides their time too, and counts the gradient of the samples, which
    nobody needs.

    Attributes:
        grid: members along each extent, such as [2, 2]; if left out, all along the
            longest one.
        convolutions: how many convolutions are divided, with what lies between them and
            behind the last one; if left out, as many as can be.
        group_sum: whether each group sums its gradients, and then all ranks sum them
            again, as ChainerMNx does; else all ranks sum them once.
    """

    short_name: ClassVar[str] = "spatial"
    input_collective: ClassVar[Collective] = "alltoall"
    gradient_group: ClassVar[Group] = "all"
    kind: Literal["spatial"] = "spatial"
    grid: list[Count] | None = None
    convolutions: Count | None = None
    group_sum: bool = False

    @model_validator(mode="after")
    def _check_grid(self) -> Spatial:
        """Refuse a grid that has not as many members as a group."""
        if self.grid is not None and math.prod(self.grid) != self.ways:
            raise PydanticCustomError("grid", "the product of grid must be ways")
        return self

    def broken_rule(self, layers: LayerList, num_members: int) -> str:
        """Return the rule that is broken; '' if the first layer can be divided.

        The grid counts only if it has ``num_members``; else all are along the longest
        extent.
        """
        extents = layers.input[1:]
        if not extents:
            return "needs samples with extents, such as pixels"
        if self.grid is not None and len(self.grid) > len(extents):
            return f"must have a grid of at most {len(extents)} extents"
        members_by_axis = self._members_by_axis(layers, num_members)
        if _is_divisible(layers.layers[0], len(extents), members_by_axis):
            return ""
        shape = " x ".join(map(str, layers.layers[0].output[1:] or extents))
        return (
            f"must divide the extents of the first layer ({shape}) into"
            " parts as high as its halo"
        )

    def division(self, layers: LayerList) -> Division:
        """Return the division by the work of the largest part, up to the first layer
        that cannot be divided or that ``convolutions`` leaves undivided.

        From that layer on every member does all the work.
        """
        members_by_axis = self._members_by_axis(layers, self.ways)
        num_extents = len(layers.input) - 1
        num_layers = len(layers)
        # the first layers alone: once values are gathered, members compute alike
        end = self._first_whole_layer(layers)
        num_divided = next(
            (
                index
                for index in range(end)
                if not _is_divisible(layers.layers[index], num_extents, members_by_axis)
            ),
            end,
        )
        divided_layers = layers.layers[:num_divided]
        share = np.ones(num_layers)
        share[:num_divided] = [
            _largest_part(layer, members_by_axis) for layer in divided_layers
        ]

        forward = []
        backward = []
        halo_buffers = np.zeros(num_layers)
        for axis, members in members_by_axis.items():
            members_across = self.ways // members
            stride = math.prod(
                n for other_axis, n in members_by_axis.items() if other_axis > axis
            )
            # (layers,) values of one sample that a member sends to each neighbour
            inputs = np.zeros(num_layers)
            output_gradients = np.zeros(num_layers)
            for index, layer in enumerate(divided_layers):
                rows = _halo_rows(layer, axis)
                inputs[index] = rows * layer.inputs / layer.input[axis] / members_across
                if not takes_samples(layer):
                    output_gradients[index] = (
                        rows * layer.outputs / layer.output[axis] / members_across
                    )
            halo_buffers += 2 * inputs
            forward.append(Traffic("halo", "halo", inputs, True, members, stride))
            backward.append(
                Traffic("halo", "halo", output_gradients, True, members, stride)
            )

        gathered = np.zeros(num_layers)
        if num_divided < num_layers:
            gathered[num_divided] = crossings(layers)[0][num_divided]
            forward.append(Traffic("activations", "allgather", gathered, True))
        return Division(
            work_share=share,
            parameter_share=np.ones(num_layers),
            saved_share=share,
            forward=tuple(forward),
            backward=tuple(backward),
            buffers=max(float(halo_buffers.max()), float(gathered.max())),
        )

    def _pass_settings(self, job: DividedWorkload, division: Division) -> PassSettings:
        """Return how the step of a group is computed; a single group sums once."""
        settings = super()._pass_settings(job, division)
        return replace(
            settings, group_sum=self.group_sum and job.world_size > self.ways
        )

    def _first_whole_layer(self, layers: LayerList) -> int:
        """Return the index of the first layer that is not to be divided, by
        ``convolutions``; the number of layers if all may be.
        """
        convolutions = [
            index for index, layer in enumerate(layers.layers) if layer.kind == "conv"
        ]
        if self.convolutions is None or self.convolutions >= len(convolutions):
            return len(layers)
        return convolutions[self.convolutions]

    def _members_by_axis(self, layers: LayerList, num_members: int) -> dict[int, int]:
        """Return the members along each axis that is divided, by the axis, from 1 (0 is
        the channels).

        They are those of ``grid`` if it has ``num_members``; else all are along the
        longest extent, the first of equals.
        """
        if self.grid is not None and num_members == self.ways:
            return {
                axis: members
                for axis, members in enumerate(self.grid, 1)
                if members > 1
            }
        extents = layers.input[1:]
        return {1 + extents.index(max(extents)): num_members}


def _is_divisible(
    layer: Layer, num_extents: int, members_by_axis: dict[int, int]
) -> bool:
    """Return whether each member can have a row of a layer, and no fewer rows than a
    halo.

    Rows that are no multiple of the members are shared out as evenly as they can be.
    Attention, and layers of another number of extents, are never divided.

    Args:
        layer: of the network.
        num_extents: of a sample.
        members_by_axis: members along each divided axis, from 1.
    """
    num_axes = {len(layer.input), len(layer.output)}
    if layer.kind == "attention" or num_axes != {1 + num_extents}:
        return False
    return all(
        layer.output[axis] >= members
        and layer.input[axis] // members >= max(_halo_rows(layer, axis), 1)
        for axis, members in members_by_axis.items()
    )


def _largest_part(layer: Layer, members_by_axis: dict[int, int]) -> float:
    """Return the share of a layer's outputs that the member with most rows has: 2/7 if
    four divide 7 rows.
    """
    return math.prod(
        -(-layer.output[axis] // members) / layer.output[axis]
        for axis, members in members_by_axis.items()
    )


def _halo_rows(layer: Layer, axis: int) -> int:
    """Return the rows that a member needs of each neighbour along an axis (from 1).

    0 without a kernel, or if its windows do not overlap.
    """
    if not layer.kernel:
        return 0
    kernel = layer.kernel[axis - 1]
    has_disjoint_windows = layer.stride and layer.stride[axis - 1] >= kernel
    return 0 if has_disjoint_windows else (kernel - 1) // 2


class Filter(DividedLayers):
    """Filter parallelism: a member of a group has 1/ways of the filters of each
    convolution and linear layer, and computes as many of its output channels.

    As in ParaDL (Kahira et al., HPDC 2021, arXiv 2104.09075): outputs are gathered, but
    for the last layer's, and gradients of inputs, of which each member has a summand,
    are summed. ParaDL divides the time of all layers; here the layers between, such as
    norms, take whole outputs, and every member computes all of them.
    """

    short_name: ClassVar[str] = "filter"
    kind: Literal["filter"] = "filter"

    def broken_rule(self, layers: LayerList, num_members: int) -> str:
        """Return the rule that is broken; '' if every member gets a filter of each
        convolution and linear layer.
        """
        filters = [layer.output[0] for layer in layers.layers if layer.kind in MIXING]
        if not filters:
            return "needs layers with filters"
        max_members = min(filters)
        if num_members <= max_members:
            return ""
        return f"must be at most the filters of the smallest layer, {max_members}"

    def division(self, layers: LayerList) -> Division:
        """Return the division in which outputs are gathered, and gradients of inputs
        summed.
        """
        is_mixing = np.array([layer.kind in MIXING for layer in layers.layers])
        outputs = (
            np.array([float(layer.outputs) for layer in layers.layers]) * is_mixing
        )
        # those of the last layer are not gathered
        outputs[np.flatnonzero(is_mixing)[-1:]] = 0
        inputs = np.array(
            [
                0.0 if takes_samples(layer) else float(layer.inputs)
                for layer in layers.layers
            ]
        )
        return mixed_division(
            is_mixing,
            self.ways,
            Traffic("activations", "allgather", outputs, precedes_layer=False),
            Traffic(
                "activation_gradients",
                "allreduce",
                inputs * is_mixing,
                precedes_layer=False,
            ),
        )


class Channel(DividedLayers):
    """Channel parallelism: a member of a group has 1/ways of the input channels of
    convolutions and linear layers.

    As in ParaDL (Kahira et al., HPDC 2021, arXiv 2104.09075): outputs, of which each
    member has a summand, are summed, and gradients of inputs gathered. Layers that take
    the sample itself have few channels and are not divided. ParaDL divides the time of
    all layers; here the layers between, such as norms, take whole outputs, and every
    member computes all of them. ParaDL counts the outputs of all layers but the last;
    here the outputs of all divided layers count.
    """

    short_name: ClassVar[str] = "channel"
    kind: Literal["channel"] = "channel"

    def broken_rule(self, layers: LayerList, num_members: int) -> str:
        """Return the rule that is broken; '' if every member gets an input channel of
        each divided layer.
        """
        is_divided = self._divides_layer(layers)
        channels = [
            layer.input[0]
            for layer, divided in zip(layers.layers, is_divided, strict=True)
            if divided
        ]
        if not channels:
            return "needs layers with channels behind the first layer"
        max_members = min(channels)
        if num_members <= max_members:
            return ""
        return f"must be at most the channels of the smallest layer, {max_members}"

    def division(self, layers: LayerList) -> Division:
        """Return the division in which outputs are summed, and gradients of inputs
        gathered.
        """
        is_divided = self._divides_layer(layers)
        inputs = np.array([float(layer.inputs) for layer in layers.layers]) * is_divided
        outputs = (
            np.array([float(layer.outputs) for layer in layers.layers]) * is_divided
        )
        return mixed_division(
            is_divided,
            self.ways,
            Traffic("activations", "allreduce", outputs, precedes_layer=False),
            Traffic("activation_gradients", "allgather", inputs, precedes_layer=False),
        )

    def _divides_layer(self, layers: LayerList) -> Flags:
        """Return (layers,) True for layers that mix channels and do not take the
        sample.
        """
        return np.array(
            [
                layer.kind in MIXING and not takes_samples(layer)
                for layer in layers.layers
            ]
        )


class Tensor(DividedLayers):
    """Tensor parallelism: a member of a group has 1/ways of the columns of one matrix,
    of the rows of the next, and of the heads between.

    As in Megatron-LM (Shoeybi et al., arXiv 1909.08053, section 3): outputs of rows are
    summed in the forward pass, gradients of inputs of columns in the backward pass: two
    sums of a block in each. Embedding and logits are divided by words; the loss of
    divided logits sends nothing that counts. With ``sequence``, sums are replaced by
    reduce-scatter and allgather, and norms, dropouts and sums have 1/ways of the tokens
    each (Korthikanti et al., arXiv 2205.05198, section 4.2); that inputs of columns are
    gathered again in the backward pass is taken to be hidden.

    Attributes:
        sequence: whether what is between divided matrices is divided by tokens.
    """

    short_name: ClassVar[str] = "tensor"
    kind: Literal["tensor"] = "tensor"
    sequence: bool = False

    def broken_rule(self, layers: LayerList, num_members: int) -> str:
        """Return the rule that is broken; '' if heads, and tokens with ``sequence``,
        are divided evenly, and every member gets a feature of each divided layer.
        """
        marked = [layer for layer in layers.layers if layer.tensor]
        if not marked:
            return "needs a network with layers that tensor parallelism divides, a transformer"
        heads = [layer.heads for layer in layers.layers if layer.heads]
        indivisible = [number for number in heads if number % num_members]
        if indivisible:
            return f"must divide the heads of attention, {min(indivisible)}"
        max_members = min(
            layer.output[0] if layer.tensor == "column" else layer.input[0]
            for layer in marked
            if layer.kind != "embedding"
        )
        if num_members > max_members:
            return f"must be at most the features of the smallest divided layer, {max_members}"
        tokens = {layer.output[1] for layer in marked if len(layer.output) > 1}
        if self.sequence and any(number % num_members for number in tokens):
            return f"must divide the tokens, {min(tokens)}"
        return ""

    def division(self, layers: LayerList) -> Division:
        """Return the division of marked layers, and of layers that take the output of
        columns.
        """
        undivided_share = 1 / self.ways if self.sequence else 1.0
        # outputs of columns stay divided until a row, or the next column, takes them
        has_divided_output = {INPUT: False}
        work_share = []
        saved_share = []
        for layer in layers.layers:
            takes_divided = any(has_divided_output[name] for name in layer.predecessors)
            is_column = layer.tensor == "column" and layer.kind != "embedding"
            has_divided_output[layer.name] = is_column or (
                takes_divided and not layer.tensor
            )
            share = 1 / self.ways if layer.tensor or takes_divided else undivided_share
            work_share.append(share)
            # values of inputs that are not divided, and other values that are kept
            whole_inputs = min(layer.saved, layer.inputs) if not takes_divided else 0.0
            other_values = layer.saved - whole_inputs
            if layer.tensor or takes_divided:
                other_values = other_values / self.ways
            else:
                other_values = other_values * undivided_share
            saved = whole_inputs * undivided_share + other_values
            saved_share.append(saved / layer.saved if layer.saved else 1.0)
        parameter_share = [
            1 / self.ways if layer.tensor else 1.0 for layer in layers.layers
        ]
        forward, backward = self._traffic(layers)
        return Division(
            work_share=np.array(work_share),
            parameter_share=np.array(parameter_share),
            saved_share=np.array(saved_share),
            forward=forward,
            backward=backward,
            buffers=max(float(sent.values.max()) for sent in (*forward, *backward)),
        )

    def _traffic(
        self, layers: LayerList
    ) -> tuple[tuple[Traffic, ...], tuple[Traffic, ...]]:
        """Return the traffic of the forward and of the backward pass: one allreduce in
        each, or with ``sequence`` an allgather and a reduce-scatter.
        """
        # (layers,) values of one sample: outputs of rows, and inputs of columns
        rows = np.zeros(len(layers))
        columns = np.zeros(len(layers))
        for index, layer in enumerate(layers.layers):
            if layer.tensor == "row" or (layer.tensor and layer.kind == "embedding"):
                rows[index] = layer.outputs
            elif layer.tensor and not takes_samples(layer):
                columns[index] = layer.inputs
        if not self.sequence:
            forward = Traffic("activations", "allreduce", rows, precedes_layer=False)
            backward = Traffic(
                "activation_gradients", "allreduce", columns, precedes_layer=False
            )
            return (forward,), (backward,)
        return (
            _gather_and_scatter("activations", columns, rows),
            _gather_and_scatter("activation_gradients", rows, columns),
        )


def _gather_and_scatter(
    label: str, gathered: Floats, scattered: Floats
) -> tuple[Traffic, ...]:
    """Return an allgather before layers and a reduce-scatter after them, of (layers,)
    values.
    """
    return (
        Traffic(label, "allgather", gathered, precedes_layer=True),
        Traffic(label, "reduce_scatter", scattered, precedes_layer=False),
    )
