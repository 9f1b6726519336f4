"""What is fetched ahead of its turn changes no end, however few flows a large network has."""

import numpy as np

from simshuffle.fabric.network.batch import TransferBatch, chain_edges, pad_routes, tasks
from simshuffle.fabric.network.fluid import FluidNetwork
from simshuffle.fabric.network.fluid_ahead import LARGE


def test_it_looks_no_farther_ahead_than_it_has_come():
    """900 transfers one after the other, on one of very many links: 900 times few ends are found,
    and each time it looks twice as far, which would be beyond all times after some more."""
    count = 900
    network = FluidNetwork(np.full(LARGE, 2.0), width=1, tags=count)
    what = tasks(count, work=6.0, tag=np.arange(count))
    network.post(0.0, TransferBatch(what, pad_routes([[5]] * count), *chain_edges(count)))
    network.advance(np.inf)
    np.testing.assert_allclose(network.finish[:count], 3.0 * np.arange(1, count + 1), rtol=1e-12)
    assert 0.0 < network.clock["ahead"][0] <= network.now
