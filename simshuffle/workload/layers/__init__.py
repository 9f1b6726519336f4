"""Networks as lists of layers: shapes, parameters, operations and what is kept of each."""

from __future__ import annotations

from simshuffle.workload.layers.layer import INPUT, Layer, LayerList
from simshuffle.workload.layers.shipped import SHIPPED, ModelLayer, as_written, layer_list, network

__all__ = [
    "INPUT",
    "SHIPPED",
    "Layer",
    "LayerList",
    "ModelLayer",
    "as_written",
    "layer_list",
    "network",
]
