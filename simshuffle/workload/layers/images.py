"""Networks for images.

ResNets of bottlenecks (He et al., arXiv 1512.03385) and ResNeXt (Xie et al., arXiv 1611.05431).
As torchvision has them, the stride of a bottleneck is in its 3 x 3 convolution (v1.5). Chainer's,
of github.com/ankahira/paraDL, has it in the first 1 x 1 convolution, and a bias in the first layer.

VGG-16 (Simonyan and Zisserman, arXiv 1409.1556), as torchvision has it. Chainer's takes 226 x 226
pixels and pools what is left over, so its first linear layer is larger.

AlexNet (Krizhevsky, arXiv 1404.5997), as torchvision has it. Chainer's is wider and takes 227 x 227
pixels; its two norms of local responses have no parameters and are left out.

Wide ResNets of pre-activation blocks (Zagoruyko and Komodakis, arXiv 1605.07146).

Inception-v4 (Szegedy et al., arXiv 1602.07261), figures 3 to 9 there. For ImageNet as
github.com/huggingface/pytorch-image-models has it, for 299 x 299 pixels. For CIFAR as
github.com/weiaicunzai/pytorch-cifar100 has it, for 32 x 32 pixels: its stem keeps the extents.

DenseNet-161 (Huang et al., arXiv 1608.06993), as torchvision has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from simshuffle.workload.layers.build import Builder, Extents
from simshuffle.workload.layers.layer import LayerList


def resnet(
    name: str, blocks: tuple[int, ...], groups: int = 1, width: int = 64, chainer: bool = False
) -> LayerList:
    """For 224 x 224 pixels; ``width`` channels in each of the ``groups`` of the first stage."""
    net = Builder(name, (3, 224, 224))
    net.conv(64, 7, 2, 3, bias=chainer)
    net.norm_relu()
    net.pool(3, 2, 0 if chainer else 1, up=chainer)
    for stage, count in enumerate(blocks):
        for block in range(count):
            net.prefix = f"stage{stage + 1}.block{block}."
            inner, outputs = groups * width * 2**stage, 256 * 2**stage
            stride = 2 if stage and block == 0 else 1
            _bottleneck(net, inner, outputs, stride, groups, chainer)
    net.prefix = ""
    net.mean()
    net.linear(1000)
    return net.done()


def _bottleneck(
    net: Builder, inner: int, outputs: int, stride: int, groups: int, stride_first: bool
) -> None:
    """Three convolutions and a shortcut; ``stride_first`` puts the stride in the first of them."""
    before = net.last
    net.conv_norm_relu(inner, 1, stride if stride_first else 1, 0)
    net.conv_norm_relu(inner, 3, 1 if stride_first else stride, 1, groups=groups)
    net.conv(outputs, 1)
    net.norm()
    net.shortcut(before, stride)
    net.relu()


def vgg16(name: str, pixels: int, up: bool = False) -> LayerList:
    """Thirteen convolutions and three linear layers."""
    net = Builder(name, (3, pixels, pixels))
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            net.conv(width, 3, 1, 1, bias=True)
            net.relu()
        net.pool(2, 2, up=up)
    net.perceptron(4096, 4096, 1000)
    return net.done()


def alexnet(name: str, pixels: int, padding: int, widths: tuple[int, ...]) -> LayerList:
    """Five convolutions and three linear layers."""
    net = Builder(name, (3, pixels, pixels))
    for number, (width, kernel) in enumerate(zip(widths, (11, 5, 3, 3, 3), strict=True)):
        if number:
            net.conv(width, kernel, 1, kernel // 2, bias=True)
        else:
            net.conv(width, kernel, 4, padding, bias=True)
        net.relu()
        if number in (0, 1, 4):
            net.pool(3, 2)
    net.perceptron(4096, 4096, 1000)
    return net.done()


def wide_resnet(name: str, depth: int, widen: int, classes: int) -> LayerList:
    """For 32 x 32 pixels; 6 n + 4 = ``depth`` layers, ``widen`` times as wide as a ResNet."""
    net = Builder(name, (3, 32, 32))
    net.conv(16)
    for stage in range(3):
        for block in range((depth - 4) // 6):
            net.prefix = f"stage{stage + 1}.block{block}."
            _pre_activated(net, 16 * widen * 2**stage, 2 if stage and not block else 1)
    net.prefix = ""
    net.norm_relu()
    net.mean()
    net.linear(classes)
    return net.done()


def _pre_activated(net: Builder, outputs: int, stride: int) -> None:
    """Norm, ReLU, convolution, twice; a convolution as shortcut where the channels change."""
    before = net.last
    active = net.norm_relu()
    net.conv(outputs, 3, stride, 1)
    net.norm_relu()
    body = net.conv(outputs)
    if net.shape(before) != net.shape(body):
        before = net.conv(outputs, 1, stride, 0, name="shortcut", after=active)
    net.add(body, before)


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


def densenet(name: str, blocks: tuple[int, ...], growth: int) -> LayerList:
    """For 224 x 224 pixels. Every layer takes a copy of all before it in its block, side by side,
    and adds ``growth`` channels."""
    net = Builder(name, (3, 224, 224))
    net.conv(2 * growth, 7, 2, 3)
    net.norm_relu()
    net.pool(3, 2, 1)
    for number, count in enumerate(blocks):
        for layer in range(count):
            net.prefix = f"block{number + 1}.layer{layer}."
            before = net.last
            net.norm_relu()
            net.conv(4 * growth, 1)
            net.norm_relu()
            net.concat(before, net.conv(growth))
        net.prefix = f"transition{number + 1}." if number < len(blocks) - 1 else ""
        net.norm_relu()
        if net.prefix:
            net.conv(net.shape()[0] // 2, 1)
            net.pool(2, 2, mean=True)
    net.mean()
    net.linear(1000)
    return net.done()


NETWORKS = {
    "resnet50": lambda: resnet("resnet50", (3, 4, 6, 3)),
    "resnet101": lambda: resnet("resnet101", (3, 4, 23, 3)),
    "resnet152": lambda: resnet("resnet152", (3, 8, 36, 3)),
    "resnext50": lambda: resnet("resnext50", (3, 4, 6, 3), groups=32, width=4),
    "resnet50_chainer": lambda: resnet("resnet50_chainer", (3, 4, 6, 3), chainer=True),
    "vgg16": lambda: vgg16("vgg16", 224),
    "vgg16_chainer": lambda: vgg16("vgg16_chainer", 226, up=True),
    "alexnet": lambda: alexnet("alexnet", 224, 2, (64, 192, 384, 256, 256)),
    "alexnet_chainer": lambda: alexnet("alexnet_chainer", 227, 0, (96, 256, 384, 384, 256)),
    "wrn_28_10": lambda: wide_resnet("wrn_28_10", 28, 10, 100),
    "inception_v4": lambda: inception_v4("inception_v4", 32, 100, cifar=True),
    "inception_v4_imagenet": lambda: inception_v4("inception_v4_imagenet", 299, 1000),
    "densenet161": lambda: densenet("densenet161", (6, 12, 36, 24), 48),
}
