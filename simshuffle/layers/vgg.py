"""VGG-16 (Simonyan and Zisserman, arXiv 1409.1556), as torchvision has it.

Chainer's, of github.com/ankahira/paraDL, takes 226 x 226 pixels and pools what is left over, so its
first linear layer is larger.
"""

from __future__ import annotations

from simshuffle.layers.build import Builder
from simshuffle.layers.layer import LayerList


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


NETWORKS = {
    "vgg16": lambda: vgg16("vgg16", 224),
    "vgg16_chainer": lambda: vgg16("vgg16_chainer", 226, up=True),
}
