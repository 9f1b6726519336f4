"""Residual networks for small images, as He et al. 2015 (arXiv 1512.03385), section 4.2, trained on
CIFAR-10."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError
from torch import nn

from simshuffle.spec.record import Spec
from simshuffle.train.models.base import image_shape

WIDTHS = (16, 32, 64)
"""Channels of the three stages."""


def _six_n_plus_two(depth: int) -> int:
    if depth % 6 != 2:
        raise PydanticCustomError("depth", "must be 6 n + 2: 8, 14, 20, ...")
    return depth


class ResNet(Spec):
    """6 n + 2 = ``depth`` layers: a convolution, three stages of n basic blocks with 16, 32 and 64
    channels, and a linear head.

    Shortcuts without parameters: where the channels double, every second pixel, with zeros in the
    new channels (option A).

    Attributes:
        depth: layers in all: 6 n + 2.
    """

    has_batch_norm: ClassVar[bool] = True
    kind: Literal["resnet"]
    depth: Annotated[int, Field(ge=8, le=1202), AfterValidator(_six_n_plus_two)] = 8

    @property
    def label(self) -> str:
        """In words."""
        return f"ResNet-{self.depth}"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for images of ``shape`` (channels, height, width); weights drawn from torch's
        global generator.

        Raises:
            InputError: samples are not images of at least 8 x 8 pixels.
        """
        return _ResNet(image_shape(shape, self.kind)[0], (self.depth - 2) // 6, classes)


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride, self.added = stride, outputs - inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.added:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return F.relu(x + residual)


class _ResNet(nn.Module):
    def __init__(self, channels: int, blocks: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, WIDTHS[0], 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        stages, inputs = [], WIDTHS[0]
        for outputs in WIDTHS:
            for number in range(blocks):
                stages.append(
                    _Block(inputs, outputs, 2 if outputs > WIDTHS[0] and not number else 1)
                )
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)
        for layer in self.modules():
            # He et al. 2015 (arXiv 1502.01852), as section 4.2 says
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(F.relu(self.norm(self.conv(x))))
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits
