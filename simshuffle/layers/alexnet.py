"""AlexNet (Krizhevsky, arXiv 1404.5997), as torchvision has it.

Chainer's, of github.com/ankahira/paraDL, is wider and takes 227 x 227 pixels; its two norms of
local responses have no parameters and are left out.
"""

from __future__ import annotations

from simshuffle.layers.build import Builder
from simshuffle.layers.layer import LayerList


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


NETWORKS = {
    "alexnet": lambda: alexnet("alexnet", 224, 2, (64, 192, 384, 256, 256)),
    "alexnet_chainer": lambda: alexnet("alexnet_chainer", 227, 0, (96, 256, 384, 384, 256)),
}
