"""CosmoFlow: of MLPerf HPC (github.com/mlcommons/hpc), and of ParaDL (github.com/ankahira/paraDL).

ParaDL's, for 256^3 and 512^3 voxels, is sequential_cosmoflow.py there. Its first two convolutions
have no padding; here they keep their extents, as they do along the axis that it divides.
"""

from __future__ import annotations

from simshuffle.layers.build import Builder
from simshuffle.layers.layer import LayerList


def mlperf(name: str, voxels: int) -> LayerList:
    """Five convolutions of 2 x 2 x 2 and three linear layers."""
    net = Builder(name, (4, voxels, voxels, voxels))
    for width in (32, 64, 128, 256, 512):
        net.conv(width, 2, bias=True)
        net.relu()
        net.pool(2, 2)
    net.perceptron(128, 64, 4)
    return net.done()


def paradl(name: str, voxels: int) -> LayerList:
    """Seven convolutions and three linear layers."""
    net = Builder(name, (4, voxels, voxels, voxels))
    for width, kernel, stride in (
        (16, 3, 1),
        (32, 3, 1),
        (64, 3, 1),
        (128, 3, 2),
        (256, 2, 1),
        (256, 2, 1),
    ):
        net.conv(width, kernel, stride, 1)
        net.relu()
        net.pool(2, 2, mean=True)
    net.conv(128, 2, 1, 1)
    net.relu()
    net.perceptron(2048, 256, 4)
    return net.done()


NETWORKS = {
    "cosmoflow": lambda: mlperf("cosmoflow", 128),
    "cosmoflow_256": lambda: paradl("cosmoflow_256", 256),
    "cosmoflow_512": lambda: paradl("cosmoflow_512", 512),
}
