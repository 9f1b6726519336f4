"""Allreduce over double binary trees."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.allreduce.base import AllreduceFlows, Paced
from simshuffle.spec.arrays import Floats, Ints32, Ints64
from simshuffle.spec.record import OneEach


class Tree(Paced):
    """Reduce and broadcast over two binary trees at once (Sanders, Speck & Traeff, Parallel
    Computing 35, 2009), as NCCL since 2.4.

    The trees connect hosts. Each carries half of the bytes, up to its root and down again, and the
    hosts that have children in one are leaves of the other; so every host sends and receives at
    most twice the bytes. Inside a host the ranks form a chain, whose first stands in the trees
    (NCCL v2.7, src/graph/connect.cc). ``channels``, as NCCL calls them, share the bytes; each has
    its own two trees and its own HCA. All bytes move as in a pipeline, at once.

    A level of the trees costs ``inter_host_latency`` up and once more down, a hop of the chain
    ``intra_host_latency``.

    Attributes:
        channels: pairs of trees that share the bytes, each on an HCA; at most, and by default,
            ``cluster.host.hcas``.
    """

    one_for_each_hca: ClassVar[str] = "channels"
    kind: Literal["tree"]
    channels: OneEach

    def flows_of_several(self, host_of: Ints32, nbytes: float) -> AllreduceFlows:
        """All ranks together send 2 (M-1) n bytes, as on a ring. The latency is 2 ((M/H - 1) intra
        + log2(H) inter) on H hosts, both whole by rounding down, as NCCL's tuning model counts it
        (v2.7, src/graph/tuning.cc); the trees are ceil(log2(H)) deep."""
        world_size = len(host_of)
        child, parent, share, rail = self._edges(host_of)
        hosts = len(np.unique(host_of))
        bus = self.inter_host_bus_bandwidth if hosts > 1 else self.intra_host_bus_bandwidth
        each = np.tile(share * nbytes, 2)
        levels = hosts.bit_length() - 1
        return AllreduceFlows(
            src=np.concatenate([child, parent]),
            dst=np.concatenate([parent, child]),
            nbytes=each,
            rail=np.tile(rail, 2),
            # all end together, when bus bandwidth says
            cap=each / (2 * (world_size - 1) / world_size * nbytes / bus(nbytes)),
            latency=2
            * (
                (world_size // hosts - 1) * self.intra_host_latency
                + levels * self.inter_host_latency
            ),
        )

    def _edges(self, host_of: Ints32) -> tuple[Ints32, Ints32, Floats, Ints32]:
        """Child, parent, share of the bytes, and rail of every edge of all trees.

        An edge inside a host is that of all trees of all channels, for these take the same NVLink
        one after the other.
        """
        order = np.argsort(host_of, kind="stable").astype(np.int32)
        inside = np.diff(host_of[order]) == 0
        heads = order[np.concatenate([[True], ~inside])]
        up = double_tree(len(heads))
        tree, low = np.nonzero(up >= 0)
        channels = np.arange(self.channels, dtype=np.int32)
        chain = np.count_nonzero(inside)
        return (
            np.concatenate([order[1:][inside], np.tile(heads[low], self.channels)]),
            np.concatenate([order[:-1][inside], np.tile(heads[up[tree, low]], self.channels)]),
            np.concatenate(
                [np.ones(chain), np.full(len(low) * self.channels, 0.5 / self.channels)]
            ),
            np.concatenate([np.zeros(chain, np.int32), np.repeat(channels, len(low))]),
        )


def double_tree(count: int) -> Ints64:
    """The parents in two binary trees over ``count`` hosts, (2, count); -1 for the root of each.

    In the first, host 0 is the root, and a host whose number is an odd multiple of 2^k stands k
    levels above the leaves: its parent is the neighbouring odd multiple of 2^(k+1), or the one
    below if there is none above. So odd hosts are leaves. The second is the first mirrored if
    ``count`` is even, or else shifted by one host, so that its leaves are the even ones: no host
    but, if ``count`` is odd, host 0 has children in both. These are the trees of NCCL
    (src/graph/trees.cc), after Sanders, Speck & Traeff (2009).
    """
    host = np.arange(1, count)
    step = host & -host
    above = np.where(host // step % 4 == 1, host + step, host - step)
    first = np.concatenate([[-1], np.where(above < count, above, host - step)])
    if count % 2 == 0:
        mirrored = first[::-1]
        return np.stack([first, np.where(mirrored < 0, -1, count - 1 - mirrored)])
    shifted = np.roll(first, 1)
    return np.stack([first, np.where(shifted < 0, -1, (shifted + 1) % count)])
