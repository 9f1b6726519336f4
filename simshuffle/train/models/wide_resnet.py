"""Wide residual networks, as Zagoruyko and Komodakis 2016 (arXiv 1605.07146)."""

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
"""Channels of the three groups at a widening factor of 1."""


def _six_n_plus_four(depth: int) -> int:
    if depth % 6 != 4:
        raise PydanticCustomError("depth", "must be 6 n + 4: 10, 16, 22, 28, ...")
    return depth


class WideResNet(Spec):
    """WRN-``depth``-``widen_factor`` without dropout: 6 n + 4 = ``depth`` layers in pre-activation
    blocks B(3, 3); table 1 there.

    Attributes:
        depth: layers in all: 6 n + 4.
        widen_factor: by which stages are wider than those of a ResNet.
    """

    has_batch_norm: ClassVar[bool] = True
    kind: Literal["wide_resnet"]
    depth: Annotated[int, Field(ge=10, le=1000), AfterValidator(_six_n_plus_four)] = 28
    widen_factor: Annotated[int, Field(ge=1, le=64)] = 10

    @property
    def label(self) -> str:
        """In words."""
        return f"WRN-{self.depth}-{self.widen_factor}"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for images of ``shape`` (channels, height, width); weights drawn from torch's
        global generator.

        Raises:
            InputError: samples are not images of at least 8 x 8 pixels.
        """
        return _WideResNet(
            image_shape(shape, self.kind)[0], (self.depth - 4) // 6, self.widen_factor, classes
        )


class _Block(nn.Module):
    """Batch norm, ReLU, convolution, twice; the shortcut is a 1 x 1 convolution of the activated
    input where the channels change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = (
            nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        active = F.relu(self.norm1(x))
        residual: torch.Tensor = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return residual + (x if self.shortcut is None else self.shortcut(active))


class _WideResNet(nn.Module):
    def __init__(self, channels: int, blocks: int, widen_factor: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, WIDTHS[0], 3, 1, 1, bias=False)
        groups, inputs = [], WIDTHS[0]
        for narrow in WIDTHS:
            for number in range(blocks):
                groups.append(
                    _Block(
                        inputs, narrow * widen_factor, 2 if narrow > WIDTHS[0] and not number else 1
                    )
                )
                inputs = narrow * widen_factor
        self.blocks = nn.Sequential(*groups)
        self.norm = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.blocks(self.conv(x))))
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits
