"""Networks as lists of layers: shapes, parameters, operations and what is kept of each."""

from __future__ import annotations

from simshuffle.layers.layer import Layer, LayerList

__all__ = ["Layer", "LayerList"]
