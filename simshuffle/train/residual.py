"""Residual networks as torch modules: basic blocks, and wide pre-activation blocks.

Sources: He et al. 2015 (arXiv 1512.03385), section 4.2; Zagoruyko and Komodakis 2016
(arXiv 1605.07146); Wu and He 2018 (arXiv 1803.08494) for group norm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from simshuffle.train.batch_norm import rectify_norm

WIDTHS = (16, 32, 64)
"""Channels of the three stages of a residual network."""


MOST_GROUPS = 8
"""The most groups of a group norm: the first stage's 16 channels are then groups of
two, as the 64 channels of the first layer of a ResNet-50 in the paper's usual 32
groups.
"""


Norm = Literal["batch", "group"]


def norm_2d(norm: Norm, channels: int) -> nn.Module:
    """Return batch norm, or group norm of as many groups as the channels can be divided
    into.

    At most `MOST_GROUPS`, of at least two channels each; one group if none fit.
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    fitting = [
        n for n in range(1, MOST_GROUPS + 1) if not channels % n and channels >= 2 * n
    ]
    return nn.GroupNorm(max(fitting, default=1), channels)


class _BasicBlock(nn.Module):
    """Two convolutions with norm and ReLU, beside a shortcut without parameters.

    The shortcut takes every ``stride``-th pixel, and adds channels of zeros. A block
    with stride 2 must have more ``outputs`` than ``inputs``.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = norm_2d(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = norm_2d(norm, outputs)
        self.stride = stride
        self.new_channels = outputs - inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs (n, outputs, height / stride, width / stride)."""
        residual = self.conv2(rectify_norm(self.norm1, self.conv1(x)))
        if self.new_channels:
            # the mean of one pixel is that pixel; unlike that of a slice, its gradient stays in the
            # order of memory that the rest has
            x = F.pad(
                F.avg_pool2d(x, 1, self.stride), (0, 0, 0, 0, 0, self.new_channels)
            )
        return rectify_norm(self.norm2, residual, x)


class _WideBlock(nn.Module):
    """Batch norm, ReLU, convolution, twice; beside a 1 x 1 convolution where the
    channels change, else the input itself.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = (
            nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            if inputs != outputs
            else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs (n, outputs, height / stride, width / stride)."""
        active = rectify_norm(self.norm1, x)
        residual: torch.Tensor = self.conv2(
            rectify_norm(self.norm2, self.conv1(active))
        )
        return residual + (x if self.shortcut is None else self.shortcut(active))


def _stages(
    block: Callable[[int, int, int], nn.Module], blocks: int, widen: int
) -> nn.Sequential:
    """Return three stages of ``blocks`` blocks, of `WIDTHS` times ``widen`` channels.

    The first takes ``WIDTHS[0]`` channels; the second and third halve the image's
    sides. ``block`` makes a block of its inputs, outputs (channels) and stride.
    """
    layers = []
    inputs = WIDTHS[0]
    for width in WIDTHS:
        for index in range(blocks):
            stride = 2 if width > WIDTHS[0] and not index else 1
            layers.append(block(inputs, width * widen, stride))
            inputs = width * widen
    return nn.Sequential(*layers)


def _draw_convolutions(network: nn.Module) -> None:
    """Draw the first weights of convolutions, in place, as He et al. 2015 (arXiv
    1502.01852), which both papers follow; by torch's own generator.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


class ResidualNetwork(nn.Module):
    """The layers of `simshuffle.train.models.ResNet`.

    Args:
        channels: of the image.
        blocks: of each stage.
        classes: logits.
        norm: of all layers.
        stride: of the first convolution.
    """

    def __init__(
        self, channels: int, blocks: int, classes: int, norm: Norm, stride: int
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, WIDTHS[0], 3, stride, 1, bias=False)
        self.norm = norm_2d(norm, WIDTHS[0])
        self.blocks = _stages(partial(_BasicBlock, norm=norm), blocks, 1)
        self.head = nn.Linear(WIDTHS[-1], classes)
        _draw_convolutions(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes) of images (n, channels, height, width)."""
        x = self.blocks(rectify_norm(self.norm, self.conv(x)))
        logits: torch.Tensor = self.head(F.avg_pool2d(x, x.shape[2:]).flatten(1))
        return logits


class WideResidualNetwork(nn.Module):
    """The layers of `simshuffle.train.models.WideResNet`.

    Args:
        channels: of the image.
        blocks: of each stage.
        widen_factor: by which stages are wider than those of a ResNet.
        classes: logits.
    """

    def __init__(
        self, channels: int, blocks: int, widen_factor: int, classes: int
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, WIDTHS[0], 3, 1, 1, bias=False)
        self.blocks = _stages(_WideBlock, blocks, widen_factor)
        self.norm = nn.BatchNorm2d(WIDTHS[-1] * widen_factor)
        self.head = nn.Linear(WIDTHS[-1] * widen_factor, classes)
        _draw_convolutions(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes) of images (n, channels, height, width)."""
        x = rectify_norm(self.norm, self.blocks(self.conv(x)))
        logits: torch.Tensor = self.head(F.avg_pool2d(x, x.shape[2:]).flatten(1))
        return logits
