"""Filter and channel parallelism: parts of the output, or of the input channels of each layer."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.layers import LayerList
from simshuffle.parallelism.base import DividedLayers
from simshuffle.parallelism.cuts import MIXING, takes_samples
from simshuffle.parallelism.division import Division, Traffic, mixed_division
from simshuffle.spec.arrays import Flags


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
        inputs = np.array(
            [0.0 if takes_samples(each) else float(each.inputs) for each in layers.layers]
        )
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
