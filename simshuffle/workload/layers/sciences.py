"""Networks of the sciences.

DeepCAM: DeepLabv3+ on Xception (Chen et al., arXiv 1802.02611) for 16 channels of 768 x
1152 pixels and 3 classes. As the reference of MLPerf HPC has it
(github.com/azrael417/mlperf-deepcam): output stride 16, a decoder of transposed
convolutions. A ReLU that works in place before a block changes the block's shortcut
too, as there.

CosmoFlow: of MLPerf HPC (github.com/mlcommons/hpc), and of ParaDL
(github.com/ankahira/paraDL). ParaDL's, for 256^3 and 512^3 voxels, is
sequential_cosmoflow.py there. Its first two convolutions have no padding; here they
keep their extents, as they do along the axis that it divides.
"""

from __future__ import annotations

from simshuffle.workload.layers.build import Builder
from simshuffle.workload.layers.layer import LayerList

_MIDDLE_BLOCKS = 16
"""Blocks of Xception's middle flow."""


def deepcam() -> LayerList:
    """Build DeepCAM for 16 x 768 x 1152 values and 3 classes of each pixel: Xception,
    pooling at four rates, a decoder.
    """
    net = Builder("deepcam", (16, 768, 1152))
    net.conv_norm_relu(32, 3, 2, 1)
    net.conv_norm_relu(64, 3, 1, 1)
    entries = []
    for number, width in enumerate((128, 256, 728), 1):
        net.prefix = f"entry{number}."
        entries.append(_xception_block(net, (width, width), 2, relu=number > 1))
    for index in range(_MIDDLE_BLOCKS):
        net.prefix = f"middle{index}."
        _xception_block(net, (728, 728, 728), 1)
    net.prefix = "exit."
    _xception_block(net, (728, 1024), 1, last=True)
    for index, outputs in enumerate((1536, 1536, 2048)):
        net.prefix = f"exit.separable{index}."
        _separable(net, outputs, dilation=2)
        net.norm_relu()
    _pyramid(net)
    _decoder(net, entries[0])
    return net.finish()


def _separable(net: Builder, outputs: int, stride: int = 1, dilation: int = 1) -> str:
    """Add a separable convolution: one of 3 x 3 of each channel by itself, and one of
    1 x 1, without norm or ReLU; return the name of the last.
    """
    channels = net.shape()[0]
    net.conv(channels, 3, stride, dilation, groups=channels, dilation=dilation)
    return net.conv(outputs, 1)


def _xception_block(
    net: Builder,
    widths: tuple[int, ...],
    stride: int,
    relu: bool = True,
    last: bool = False,
) -> str:
    """Add separable convolutions and a shortcut; with a stride, or as the last block,
    one more.

    The first convolution comes after a ReLU, unless ``relu`` is False. The additional
    one has no norm. The shortcut takes what comes out of that ReLU, and is a
    convolution where the shape changes.

    Args:
        net: to which layers are added; each block needs a `prefix` of its own.
        widths: channels of each convolution but the additional one.
        stride: of the additional convolution, and of the shortcut.
        relu: whether a ReLU comes first.
        last: whether there is an additional convolution without a stride too.

    Returns:
        The name of the sum.
    """
    start = net.relu() if relu else net.last
    for index, width in enumerate(widths):
        if index:
            net.relu()
        _separable(net, width)
        net.norm()
    if stride > 1 or last:
        _separable(net, widths[-1], stride)
    return net.shortcut(start, stride)


def _pyramid(net: Builder) -> None:
    """Add atrous spatial pyramid pooling of 2048 channels, side by side with the mean
    over all pixels; then a convolution of 1 x 1 to 256 channels.

    The `prefix` of ``net`` becomes 'decoder.'.
    """
    # four rates, and a mean that is tiled to the extents again
    start = net.last
    ends = []
    _, *extents = net.shape()
    net.prefix = "pyramid."
    for rate in (1, 6, 12, 18):
        net.last = start
        if rate == 1:
            net.conv(256, 1)
        else:
            net.conv(256, 3, 1, rate, dilation=rate)
        net.norm()
        ends.append(net.relu())
    net.layer("pool", (2048, 1, 1), name="mean", predecessors=start)
    net.conv_norm_relu(256, 1)
    ends.append(net.layer("other", (256, *extents), name="tiled"))
    net.concat(*ends)
    net.prefix = "decoder."
    net.conv_norm_relu(256, 1)


def _decoder(net: Builder, low_level: str) -> None:
    """Add four transposed convolutions, each of which doubles the extents; the last one
    gives 3 channels.

    After two of them the output of layer ``low_level`` is joined, cut to 48 channels by
    a convolution.
    """
    high_level = net.last
    net.conv(48, 1, predecessor=low_level)
    net.norm()
    low_level = net.relu()
    net.last = high_level
    for _ in range(2):
        net.upconv(256)
        net.norm_relu()
    net.concat(net.last, low_level)
    for _ in range(2):
        net.conv_norm_relu(256, 3, 1, 1)
    net.conv(256, 1, bias=True)
    net.upconv(256)
    net.norm_relu()
    net.upconv(3)


def cosmoflow(name: str, voxels: int) -> LayerList:
    """Build CosmoFlow: five convolutions of 2 x 2 x 2 and three linear layers, from 4
    channels to 4 numbers.

    Args:
        name: of the network.
        voxels: along an edge of a sample.
    """
    net = Builder(name, (4, voxels, voxels, voxels))
    for width in (32, 64, 128, 256, 512):
        net.conv(width, 2, bias=True)
        net.relu()
        net.pool(2, 2)
    net.perceptron(128, 64, 4)
    return net.finish()


def cosmoflow_of_paradl(name: str, voxels: int) -> LayerList:
    """Build ParaDL's CosmoFlow: seven convolutions and three linear layers, from 4
    channels to 4 numbers.

    Args:
        name: of the network.
        voxels: along an edge of a sample.
    """
    net = Builder(name, (4, voxels, voxels, voxels))
    for width, kernel in ((16, 3), (32, 3), (64, 3), (128, 3), (256, 2), (256, 2)):
        net.conv(width, kernel, 2 if width == 128 else 1, 1)
        net.relu()
        net.pool(2, 2, mean=True)
    net.conv(128, 2, 1, 1)
    net.relu()
    net.perceptron(2048, 256, 4)
    return net.finish()


NETWORKS = {
    "deepcam": deepcam,
    "cosmoflow": lambda: cosmoflow("cosmoflow", 128),
    "cosmoflow_256": lambda: cosmoflow_of_paradl("cosmoflow_256", 256),
    "cosmoflow_512": lambda: cosmoflow_of_paradl("cosmoflow_512", 512),
}
