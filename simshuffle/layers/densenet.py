"""DenseNet-161 (Huang et al., arXiv 1608.06993), as torchvision has it."""

from __future__ import annotations

from simshuffle.layers.build import Builder
from simshuffle.layers.layer import LayerList


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


NETWORKS = {"densenet161": lambda: densenet("densenet161", (6, 12, 36, 24), 48)}
