"""Networks as lists of layers: shapes, parameters, operations and saved values of each
layer.
"""

from __future__ import annotations

from simshuffle.workload.layers.layer import INPUT, Layer, LayerList
from simshuffle.workload.layers.shipped import (
    SHIPPED,
    ModelLayer,
    as_written,
    layer_list,
    read_network,
)

__all__ = [
    "INPUT",
    "SHIPPED",
    "Layer",
    "LayerList",
    "ModelLayer",
    "as_written",
    "layer_list",
    "read_network",
]
