"""Small convolutional network for images of a few pixels."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar, Literal

from torch import nn

from simshuffle.spec.record import Few, Spec
from simshuffle.train.models.base import image_shape


class SmallCnn(Spec):
    """Two times 3 x 3 convolution, 2 x 2 max-pooling, batch norm and ReLU, ``width`` and twice as
    many channels; then a linear head.

    Pooling comes first because batch norm and ReLU then have a quarter to do.

    Attributes:
        width: channels of the first convolution; the second one has twice as many.
    """

    has_batch_norm: ClassVar[bool] = True
    kind: Literal["small_cnn"]
    width: Few = 16

    @property
    def label(self) -> str:
        """In words."""
        return "small convolutional network"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for images of ``shape`` (channels, height, width); weights drawn from torch's
        global generator.

        Raises:
            InputError: samples are not images of at least 8 x 8 pixels.
        """
        channels, height, width = image_shape(shape, self.kind)
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        for number, outputs in enumerate((self.width, 2 * self.width), 1):
            parts[f"conv{number}"] = nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
            parts[f"pool{number}"] = nn.MaxPool2d(2)
            parts[f"norm{number}"] = nn.BatchNorm2d(outputs)
            parts[f"relu{number}"] = nn.ReLU()
            channels = outputs
        parts["flatten"] = nn.Flatten()
        parts["head"] = nn.Linear(channels * (height // 4) * (width // 4), classes)
        return nn.Sequential(parts)
