"""ResNets of bottlenecks (He et al., arXiv 1512.03385) and ResNeXt (Xie et al., arXiv 1611.05431).

As torchvision has them, the stride of a bottleneck is in its 3 x 3 convolution (v1.5). Chainer's,
of github.com/ankahira/paraDL, has it in the first 1 x 1 convolution, and a bias in the first layer.
"""

from __future__ import annotations

from simshuffle.layers.build import Builder
from simshuffle.layers.layer import LayerList


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
    body = shortcut = net.norm()
    if net.shape(before) == net.shape(body):
        shortcut = before
    else:
        net.conv(outputs, 1, stride, 0, name="shortcut.conv", after=before)
        shortcut = net.norm("shortcut.norm")
    net.add(body, shortcut)
    net.relu()


NETWORKS = {
    "resnet50": lambda: resnet("resnet50", (3, 4, 6, 3)),
    "resnet101": lambda: resnet("resnet101", (3, 4, 23, 3)),
    "resnet152": lambda: resnet("resnet152", (3, 8, 36, 3)),
    "resnext50": lambda: resnet("resnext50", (3, 4, 6, 3), groups=32, width=4),
    "resnet50_chainer": lambda: resnet("resnet50_chainer", (3, 4, 6, 3), chainer=True),
}
