"""Networks for images.

ResNets of bottlenecks (He et al., arXiv 1512.03385) and ResNeXt (Xie et al., arXiv
1611.05431). As torchvision has them, the stride of a bottleneck is in its 3 x 3
convolution (v1.5). Chainer's, of github.com/ankahira/paraDL, has it in the first 1 x 1
convolution, and a bias in the first layer.

VGG-16 (Simonyan and Zisserman, arXiv 1409.1556), as torchvision has it. Chainer's takes
226 x 226 pixels and pools what is left over, so its first linear layer is larger.

AlexNet (Krizhevsky, arXiv 1404.5997), as torchvision has it. Chainer's is wider and
takes 227 x 227 pixels; its two norms of local responses have no parameters and are left
out.

Wide ResNets of pre-activation blocks (Zagoruyko and Komodakis, arXiv 1605.07146).

Inception-v4 (Szegedy et al., arXiv 1602.07261), figures 3 to 9 there. For ImageNet as
github.com/huggingface/pytorch-image-models has it, for 299 x 299 pixels. For CIFAR as
github.com/weiaicunzai/pytorch-cifar100 has it, for 32 x 32 pixels: its stem keeps the
extents.

DenseNet-161 (Huang et al., arXiv 1608.06993), as torchvision has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from simshuffle.workload.layers.build import Builder, Extents
from simshuffle.workload.layers.layer import LayerList


def resnet(
    name: str,
    blocks: tuple[int, ...],
    groups: int = 1,
    width: int = 64,
    chainer: bool = False,
) -> LayerList:
    """Build a ResNet for 224 x 224 pixels and 1000 classes.

    Args:
        name: of the network.
        blocks: bottlenecks of each stage.
        groups: of the 3 x 3 convolutions.
        width: channels in each of the groups of the first stage; twice as many in each
            later stage.
        chainer: whether strides, bias and pooling are those of Chainer.
    """
    net = Builder(name, (3, 224, 224))
    net.conv(64, 7, 2, 3, bias=chainer)
    net.norm_relu()
    net.pool(3, 2, 0 if chainer else 1, up=chainer)
    for stage, num_blocks in enumerate(blocks):
        for block in range(num_blocks):
            net.prefix = f"stage{stage + 1}.block{block}."
            _bottleneck(
                net,
                inner=groups * width * 2**stage,
                outputs=256 * 2**stage,
                stride=2 if stage and block == 0 else 1,
                groups=groups,
                stride_first=chainer,
            )
    net.prefix = ""
    net.mean()
    net.linear(1000)
    return net.finish()


def _bottleneck(
    net: Builder,
    *,
    inner: int,
    outputs: int,
    stride: int,
    groups: int,
    stride_first: bool,
) -> None:
    """Add three convolutions and a shortcut; ``stride_first`` puts the stride in the
    first.

    The shortcut is a convolution where the shape changes.

    Args:
        net: to which layers are added.
        inner: channels of the first two convolutions.
        outputs: channels of the third one, and of the block.
        stride: of the block.
        groups: of the second convolution.
        stride_first: whether the first convolution has the stride, or the second.
    """
    start = net.last
    net.conv_norm_relu(inner, 1, stride if stride_first else 1, 0)
    net.conv_norm_relu(inner, 3, 1 if stride_first else stride, 1, groups=groups)
    net.conv(outputs, 1)
    net.norm()
    net.shortcut(start, stride)
    net.relu()


def vgg16(name: str, pixels: int, up: bool = False) -> LayerList:
    """Build VGG-16: thirteen convolutions and three linear layers, for 1000 classes.

    Args:
        name: of the network.
        pixels: along a side of an image.
        up: whether incomplete last windows are pooled too.
    """
    net = Builder(name, (3, pixels, pixels))
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            net.conv(width, 3, 1, 1, bias=True)
            net.relu()
        net.pool(2, 2, up=up)
    net.perceptron(4096, 4096, 1000)
    return net.finish()


def alexnet(name: str, pixels: int, padding: int, widths: tuple[int, ...]) -> LayerList:
    """Build AlexNet: five convolutions and three linear layers, for 1000 classes.

    Args:
        name: of the network.
        pixels: along a side of an image.
        padding: of the first convolution.
        widths: channels of the five convolutions.
    """
    net = Builder(name, (3, pixels, pixels))
    for index, (width, kernel) in enumerate(zip(widths, (11, 5, 3, 3, 3), strict=True)):
        if index:
            net.conv(width, kernel, 1, kernel // 2, bias=True)
        else:
            net.conv(width, kernel, 4, padding, bias=True)
        net.relu()
        if index in (0, 1, 4):
            net.pool(3, 2)
    net.perceptron(4096, 4096, 1000)
    return net.finish()


def wide_resnet(name: str, depth: int, widen: int, classes: int) -> LayerList:
    """Build a wide ResNet for 32 x 32 pixels.

    Args:
        name: of the network.
        depth: 6 n + 4 layers, for n blocks in each of three stages; others are rounded
            down to the next such number.
        widen: how many times as wide it is as a ResNet.
        classes: outputs.
    """
    net = Builder(name, (3, 32, 32))
    net.conv(16)
    for stage in range(3):
        for block in range((depth - 4) // 6):
            net.prefix = f"stage{stage + 1}.block{block}."
            stride = 2 if stage and not block else 1
            _preactivation_block(net, 16 * widen * 2**stage, stride)
    net.prefix = ""
    net.norm_relu()
    net.mean()
    net.linear(classes)
    return net.finish()


def _preactivation_block(net: Builder, outputs: int, stride: int) -> None:
    """Add norm, ReLU, convolution, twice; a convolution as shortcut where the channels
    or the extents change.

    Args:
        net: to which layers are added.
        outputs: channels of all its convolutions.
        stride: of the first convolution and of the shortcut.
    """
    start = net.last
    activated = net.norm_relu()
    net.conv(outputs, 3, stride, 1)
    net.norm_relu()
    body = net.conv(outputs)
    if net.shape(start) != net.shape(body):
        start = net.conv(outputs, 1, stride, 0, name="shortcut", predecessor=activated)
    net.add(body, start)


Branch = Sequence[tuple[int, Extents]]
"""Convolutions one after the other: channels and kernel of each. Extents stay."""
_ROW = (1, 7)
_COLUMN = (7, 1)


def inception_v4(
    name: str, pixels: int, classes: int, cifar: bool = False
) -> LayerList:
    """Build Inception-v4: a stem, 4 blocks A, 7 blocks B and 3 blocks C, and a linear
    layer.

    Between A, B and C there are reductions.

    Args:
        name: of the network.
        pixels: along a side of an image.
        classes: outputs.
        cifar: whether the stem and the second reduction are those for 32 x 32 pixels.
    """
    net = Builder(name, (3, pixels, pixels))
    _stem(net, cifar)
    for index in range(4):
        net.prefix = f"a{index}."
        _inception_block(
            net, ((64, 1), (96, 3), (96, 3)), ((64, 1), (96, 3)), ((96, 1),), mean=96
        )
    net.prefix = "reduction_a."
    _reduction(net, ((192, 1), (224, 3), (256, 3)), ((384, 3),), padding=0)
    for index in range(7):
        net.prefix = f"b{index}."
        narrow = ((192, 1), (224, _ROW), (256, _COLUMN))
        deep = ((192, 1), (192, _ROW), (224, _COLUMN), (224, _ROW), (256, _COLUMN))
        _inception_block(net, ((384, 1),), narrow, deep, mean=128)
    net.prefix = "reduction_b."
    padding = 1 if cifar else 0
    wide = ((256, 1), (256, _ROW), (320, _COLUMN), (320, 3))
    _reduction(net, ((192, 1), (192, 3)), wide, padding=padding)
    for index in range(3):
        net.prefix = f"c{index}."
        _block_c(net)
    net.prefix = ""
    net.mean()
    net.linear(classes)
    return net.finish()


def _stem(net: Builder, cifar: bool) -> None:
    """Add the stem of Inception-v4: 384 channels.

    Its strides make extents about an eighth; if ``cifar``, its first convolution takes
    off 2 pixels and nothing else changes them. The `prefix` of ``net`` becomes 'stem.'.
    """
    net.prefix = "stem."
    stride = 1 if cifar else 2
    padding = 1 if cifar else 0
    net.conv_norm_relu(32, 3, stride, 0)
    net.conv_norm_relu(32, 3, 1, padding)
    start = net.conv_norm_relu(64, 3, 1, 1)
    pooled = net.pool(3, stride, padding)
    convolved = net.conv_norm_relu(96, 3, stride, padding, predecessor=start)
    # a short and a long branch, joined again
    start = net.concat(pooled, convolved)
    _branch(net, start, ((64, 1),))
    short_branch = net.conv_norm_relu(96, 3, 1, padding)
    _branch(net, start, ((64, 1), (64, _ROW), (64, _COLUMN)))
    start = net.concat(short_branch, net.conv_norm_relu(96, 3, 1, padding))
    convolved = net.conv_norm_relu(192, 3, stride, padding)
    net.concat(convolved, net.pool(3, stride, padding, predecessor=start))


def _branch(net: Builder, start: str, branch: Branch) -> str:
    """Add the convolutions of a branch after layer ``start``; return the name of its
    last layer, ``start`` if there are none.

    A norm and a ReLU follow each convolution.
    """
    net.last = start
    for outputs, kernel in branch:
        net.conv_norm_relu(outputs, kernel)
    return net.last


def _inception_block(net: Builder, *branches: Branch, mean: int) -> None:
    """Add branches side by side after the last layer, and one of a mean and a
    convolution with ``mean`` channels; all are joined along the channels.
    """
    start = net.last
    ends = [_branch(net, start, branch) for branch in branches]
    net.pool(3, 1, 1, mean=True, predecessor=start)
    net.concat(*ends, net.conv_norm_relu(mean, 1))


def _reduction(net: Builder, *branches: Branch, padding: int) -> None:
    """Add branches whose last convolution halves the extents, and a pooling by maximum,
    joined along the channels.

    ``padding`` is that of these convolutions and of the pooling.
    """
    start = net.last
    ends = []
    for *first_layers, (outputs, kernel) in branches:
        _branch(net, start, first_layers)
        ends.append(net.conv_norm_relu(outputs, kernel, 2, padding))
    net.concat(*ends, net.pool(3, 2, padding, predecessor=start))


def _block_c(net: Builder) -> None:
    """Add an Inception block of which two branches end in two convolutions side by
    side.
    """
    start = net.last
    ends = [_branch(net, start, ((256, 1),))]
    forks: tuple[Branch, ...] = (((384, 1),), ((384, 1), (448, (1, 3)), (512, (3, 1))))
    for fork in forks:
        fork_end = _branch(net, start, fork)
        ends += [
            _branch(net, fork_end, ((256, kernel),)) for kernel in ((1, 3), (3, 1))
        ]
    net.pool(3, 1, 1, mean=True, predecessor=start)
    net.concat(*ends, net.conv_norm_relu(256, 1))


def densenet(name: str, blocks: tuple[int, ...], growth: int) -> LayerList:
    """Build a DenseNet for 224 x 224 pixels.

    Every layer takes a copy of all before it in its block, side by side, and adds
    ``growth`` channels. Between blocks, channels and extents are halved. It has 1000
    classes.

    Args:
        name: of the network.
        blocks: layers of each block.
        growth: channels that a layer adds.
    """
    net = Builder(name, (3, 224, 224))
    net.conv(2 * growth, 7, 2, 3)
    net.norm_relu()
    net.pool(3, 2, 1)
    for block, num_layers in enumerate(blocks):
        for layer in range(num_layers):
            net.prefix = f"block{block + 1}.layer{layer}."
            start = net.last
            net.norm_relu()
            net.conv(4 * growth, 1)
            net.norm_relu()
            net.concat(start, net.conv(growth))
        # the last block has only a norm and a ReLU behind it, without a prefix
        net.prefix = f"transition{block + 1}." if block < len(blocks) - 1 else ""
        net.norm_relu()
        if net.prefix:
            net.conv(net.shape()[0] // 2, 1)
            net.pool(2, 2, mean=True)
    net.mean()
    net.linear(1000)
    return net.finish()


NETWORKS = {
    "resnet50": lambda: resnet("resnet50", (3, 4, 6, 3)),
    "resnet101": lambda: resnet("resnet101", (3, 4, 23, 3)),
    "resnet152": lambda: resnet("resnet152", (3, 8, 36, 3)),
    "resnext50": lambda: resnet("resnext50", (3, 4, 6, 3), groups=32, width=4),
    "resnet50_chainer": lambda: resnet("resnet50_chainer", (3, 4, 6, 3), chainer=True),
    "vgg16": lambda: vgg16("vgg16", 224),
    "vgg16_chainer": lambda: vgg16("vgg16_chainer", 226, up=True),
    "alexnet": lambda: alexnet("alexnet", 224, 2, (64, 192, 384, 256, 256)),
    "alexnet_chainer": lambda: alexnet(
        "alexnet_chainer", 227, 0, (96, 256, 384, 384, 256)
    ),
    "wrn_28_10": lambda: wide_resnet("wrn_28_10", 28, 10, 100),
    "inception_v4": lambda: inception_v4("inception_v4", 32, 100, cifar=True),
    "inception_v4_imagenet": lambda: inception_v4("inception_v4_imagenet", 299, 1000),
    "densenet161": lambda: densenet("densenet161", (6, 12, 36, 24), 48),
}
