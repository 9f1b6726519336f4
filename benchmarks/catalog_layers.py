"""The layers of the catalog's models, computed from their architectures.

    python benchmarks/catalog_layers.py resnet50 vgg16

prints what `simshuffle/scenario/catalog/models.yaml` has below `layers`: the parameters of each,
and its share of the backward pass. Architectures: He et al., arXiv 1512.03385 (ResNet; the stride
of a bottleneck in its 3 x 3 convolution); Xie et al., arXiv 1611.05431 (ResNeXt); Simonyan and
Zisserman, arXiv 1409.1556 (VGG); Krizhevsky, arXiv 1404.5997 (AlexNet, as torchvision has it);
Huang et al., arXiv 1608.06993 (DenseNet); Zagoruyko and Komodakis, arXiv 1605.07146 (WRN);
github.com/mlcommons/hpc (CosmoFlow). Those of *_chainer are as in github.com/ankahira/paraDL. Of
the other models of the catalog no layers are given.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from itertools import pairwise
from textwrap import indent

import torch
import yaml
from torch import nn

from simshuffle.train.layers import layers
from simshuffle.train.models.wide_resnet import WideResNet


class Bottleneck(nn.Module):
    """A block of three convolutions and a shortcut."""

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False),
            nn.BatchNorm2d(inner),
            nn.Conv2d(inner, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of both ways."""
        return self.body(x) + self.shortcut(x)


def resnet(blocks: tuple[int, ...], groups: int = 1, width: int = 64) -> nn.Module:
    """Of bottlenecks, for 224 x 224 pixels."""
    parts = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(blocks):
        inner, outputs = groups * width * 2**stage, 256 * 2**stage
        for block in range(count):
            stride = 2 if stage and block == 0 else 1
            parts.append(Bottleneck(inputs, inner, outputs, stride, groups))
            inputs = outputs
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def vgg16(last: int = 7) -> nn.Module:
    """Thirteen convolutions and three linear layers, the first of ``last`` x ``last`` pixels."""
    parts: list[nn.Module] = []
    inputs = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            parts.append(nn.Conv2d(inputs, width, 3, padding=1))
            inputs = width
        parts.append(nn.MaxPool2d(2, ceil_mode=True))
    return nn.Sequential(*parts, nn.Flatten(), *dense(512 * last**2, 4096, 4096, 1000))


def dense(*sizes: int) -> list[nn.Module]:
    """Linear layers one after the other."""
    return [nn.Linear(a, b) for a, b in pairwise(sizes)]


def alexnet(first: int = 64, second: int = 192) -> nn.Module:
    """Five convolutions and three linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, first, 11, 4, 2 if first == 64 else 0),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(first, second, 5, padding=2),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(second, 384, 3, padding=1),
        nn.Conv2d(384, 384 if first == 96 else 256, 3, padding=1),
        nn.Conv2d(384 if first == 96 else 256, 256, 3, padding=1),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        *dense(256 * 36, 4096, 4096, 1000),
    )


class DenseBlock(nn.Module):
    """Layers of a 1 x 1 and a 3 x 3 convolution, each of which adds ``growth`` channels."""

    def __init__(self, inputs: int, count: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(inputs + k * growth),
                nn.Conv2d(inputs + k * growth, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth),
                nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for k in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input and all that was added."""
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return x


def densenet161() -> nn.Module:
    """Growth 48, blocks of 6, 12, 36 and 24 layers."""
    growth, inputs = 48, 96
    parts = [nn.Conv2d(3, inputs, 7, 2, 3, bias=False), nn.BatchNorm2d(inputs)]
    parts.append(nn.MaxPool2d(3, 2, 1))
    for count in (6, 12, 36, 24):
        parts.append(DenseBlock(inputs, count, growth))
        inputs += count * growth
        parts.append(nn.BatchNorm2d(inputs))
        if count != 24:
            parts += [nn.Conv2d(inputs, inputs // 2, 1, bias=False), nn.AvgPool2d(2)]
            inputs //= 2
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def cosmoflow() -> nn.Module:
    """Five convolutions of 2 x 2 x 2 and three linear layers, for 128^3 voxels of 4 channels."""
    parts: list[nn.Module] = []
    for inputs, outputs in pairwise((4, 32, 64, 128, 256, 512)):
        parts += [nn.Conv3d(inputs, outputs, 2, padding="same"), nn.MaxPool3d(2)]
    return nn.Sequential(*parts, nn.Flatten(), *dense(512 * 4**3, 128, 64, 4))


IMAGE = (3, 224, 224)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet50": (lambda: resnet((3, 4, 6, 3)), IMAGE),
    "resnet101": (lambda: resnet((3, 4, 23, 3)), IMAGE),
    "resnext50": (lambda: resnet((3, 4, 6, 3), groups=32, width=4), IMAGE),
    "densenet161": (densenet161, IMAGE),
    "wrn_28_10": (lambda: WideResNet(kind="wide_resnet").build((3, 32, 32), 100), (3, 32, 32)),
    "vgg16": (vgg16, IMAGE),
    "vgg16_chainer": (lambda: vgg16(8), (3, 226, 226)),
    "alexnet": (alexnet, IMAGE),
    "alexnet_chainer": (lambda: alexnet(96, 256), (3, 227, 227)),
    "cosmoflow": (cosmoflow, (4, 128, 128, 128)),
}
"""Each network with the shape of an input."""


def main(names: list[str]) -> None:
    """Print the layers of each."""
    for name in names or list(MODELS):
        build, shape = MODELS[name]
        with torch.device("meta"):
            found = layers(build(), torch.empty(1, *shape))
        counts = found["parameters"]
        print(f"# {sum(counts)} parameters in {len(counts)} layers")
        text = yaml.safe_dump({"layers": found}, default_flow_style=None, width=96, sort_keys=False)
        print(f"{name}:\n{indent(text, '  ')}")


if __name__ == "__main__":
    parser = ArgumentParser(description="Print the layers of models of the catalog.")
    parser.add_argument("names", nargs="*", help="all if there are none")
    main(parser.parse_args().names)
