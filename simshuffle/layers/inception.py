"""Inception-v4 (Szegedy et al., arXiv 1602.07261), figures 3 to 9 there.

For ImageNet as github.com/huggingface/pytorch-image-models has it, for 299 x 299 pixels. For CIFAR
as github.com/weiaicunzai/pytorch-cifar100 has it, for 32 x 32 pixels: its stem keeps the extents.
"""

from __future__ import annotations

from collections.abc import Sequence

from simshuffle.layers.build import Builder, Extents
from simshuffle.layers.layer import LayerList

Branch = Sequence[tuple[int, Extents]]
"""Convolutions one after the other: channels and kernel of each. Extents stay."""
_ROW, _COLUMN = (1, 7), (7, 1)


def inception_v4(name: str, pixels: int, classes: int, cifar: bool = False) -> LayerList:
    """A stem, 4 blocks A, 7 blocks B and 3 blocks C with reductions between, a linear layer."""
    net = Builder(name, (3, pixels, pixels))
    _stem(net, cifar)
    for number in range(4):
        net.prefix = f"a{number}."
        _block(net, ((64, 1), (96, 3), (96, 3)), ((64, 1), (96, 3)), ((96, 1),), mean=96)
    net.prefix = "reduction_a."
    _reduction(net, ((192, 1), (224, 3), (256, 3)), ((384, 3),), padding=0)
    for number in range(7):
        net.prefix = f"b{number}."
        narrow = ((192, 1), (224, _ROW), (256, _COLUMN))
        deep = ((192, 1), (192, _ROW), (224, _COLUMN), (224, _ROW), (256, _COLUMN))
        _block(net, ((384, 1),), narrow, deep, mean=128)
    net.prefix = "reduction_b."
    padding = 1 if cifar else 0
    wide = ((256, 1), (256, _ROW), (320, _COLUMN), (320, 3))
    _reduction(net, ((192, 1), (192, 3)), wide, padding=padding)
    for number in range(3):
        net.prefix = f"c{number}."
        _block_c(net)
    net.prefix = ""
    net.mean()
    net.linear(classes)
    return net.done()


def _stem(net: Builder, cifar: bool) -> None:
    net.prefix = "stem."
    stride = 1 if cifar else 2
    edge = 1 if cifar else 0
    net.conv_norm_relu(32, 3, stride, 0)
    net.conv_norm_relu(32, 3, 1, edge)
    start = net.conv_norm_relu(64, 3, 1, 1)
    pooled = net.pool(3, stride, edge)
    start = net.concat(pooled, net.conv_norm_relu(96, 3, stride, edge, after=start))
    _branch(net, start, ((64, 1),))
    one = net.conv_norm_relu(96, 3, 1, edge)
    _branch(net, start, ((64, 1), (64, _ROW), (64, _COLUMN)))
    start = net.concat(one, net.conv_norm_relu(96, 3, 1, edge))
    one = net.conv_norm_relu(192, 3, stride, edge)
    net.concat(one, net.pool(3, stride, edge, after=start))


def _branch(net: Builder, start: str, branch: Branch) -> str:
    net.last = start
    for outputs, kernel in branch:
        net.conv_norm_relu(outputs, kernel)
    return net.last


def _block(net: Builder, *branches: Branch, mean: int) -> None:
    """Branches side by side, and one of a mean and a convolution with ``mean`` channels."""
    start = net.last
    ends = [_branch(net, start, branch) for branch in branches]
    net.pool(3, 1, 1, mean=True, after=start)
    net.concat(*ends, net.conv_norm_relu(mean, 1))


def _reduction(net: Builder, *branches: Branch, padding: int) -> None:
    """Branches whose last convolution halves the extents, and a pooling."""
    start = net.last
    ends = []
    for *begin, (outputs, kernel) in branches:
        _branch(net, start, begin)
        ends.append(net.conv_norm_relu(outputs, kernel, 2, padding))
    net.concat(*ends, net.pool(3, 2, padding, after=start))


def _block_c(net: Builder) -> None:
    """As `_block`, but two of the branches end in two convolutions side by side."""
    start = net.last
    ends = [_branch(net, start, ((256, 1),))]
    forks: tuple[Branch, ...] = (((384, 1),), ((384, 1), (448, (1, 3)), (512, (3, 1))))
    for fork in forks:
        at = _branch(net, start, fork)
        ends += [_branch(net, at, ((256, kernel),)) for kernel in ((1, 3), (3, 1))]
    net.pool(3, 1, 1, mean=True, after=start)
    net.concat(*ends, net.conv_norm_relu(256, 1))


NETWORKS = {
    "inception_v4": lambda: inception_v4("inception_v4", 32, 100, cifar=True),
    "inception_v4_imagenet": lambda: inception_v4("inception_v4_imagenet", 299, 1000),
}
