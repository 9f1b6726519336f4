"""Filter parallelism: every member of a group has a part of the filters of each layer."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.layers import LayerList
from simshuffle.parallelism.cuts import MIXING, takes_samples
from simshuffle.parallelism.division import Division, Traffic, mixed_division
from simshuffle.parallelism.group import DividedLayers


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
