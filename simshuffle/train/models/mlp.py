"""Multi-layer perceptron with batch norm."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import ClassVar, Literal

from torch import nn

from simshuffle.spec.record import Few, Spec


class Mlp(Spec):
    """``layers`` times linear, batch norm and ReLU, each ``width`` units wide, and a linear head.
    Images are flattened.

    Attributes:
        width: units of a layer.
        layers: before the linear head.
    """

    has_batch_norm: ClassVar[bool] = True
    kind: Literal["mlp"]
    width: Few = 128
    layers: Few = 2

    @property
    def label(self) -> str:
        """In words: 'two-layer network'."""
        words = ("one", "two", "three", "four", "five", "six")
        count = words[self.layers - 1] if self.layers <= len(words) else str(self.layers)
        return f"{count}-layer network"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for samples of ``shape``, whatever it is; weights drawn from torch's global
        generator."""
        parts: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        inputs = math.prod(shape)
        for number in range(1, self.layers + 1):
            parts[f"linear{number}"] = nn.Linear(inputs, self.width, bias=False)
            parts[f"norm{number}"] = nn.BatchNorm1d(self.width)
            parts[f"relu{number}"] = nn.ReLU()
            inputs = self.width
        parts["head"] = nn.Linear(inputs, classes)
        return nn.Sequential(parts)
