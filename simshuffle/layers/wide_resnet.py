"""Wide ResNets of pre-activation blocks (Zagoruyko and Komodakis, arXiv 1605.07146)."""

from __future__ import annotations

from simshuffle.layers.build import Builder
from simshuffle.layers.layer import LayerList


def wide_resnet(name: str, depth: int, widen: int, classes: int) -> LayerList:
    """For 32 x 32 pixels; 6 n + 4 = ``depth`` layers, ``widen`` times as wide as a ResNet."""
    net = Builder(name, (3, 32, 32))
    net.conv(16)
    for stage in range(3):
        for block in range((depth - 4) // 6):
            net.prefix = f"stage{stage + 1}.block{block}."
            _block(net, 16 * widen * 2**stage, 2 if stage and not block else 1)
    net.prefix = ""
    net.norm_relu()
    net.mean()
    net.linear(classes)
    return net.done()


def _block(net: Builder, outputs: int, stride: int) -> None:
    """Norm, ReLU, convolution, twice; a convolution as shortcut where the channels change."""
    before = net.last
    active = net.norm_relu()
    net.conv(outputs, 3, stride, 1)
    net.norm_relu()
    body = net.conv(outputs)
    if net.shape(before) != net.shape(body):
        before = net.conv(outputs, 1, stride, 0, name="shortcut", after=active)
    net.add(body, before)


NETWORKS = {"wrn_28_10": lambda: wide_resnet("wrn_28_10", 28, 10, 100)}
