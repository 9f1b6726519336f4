"""Allreduce over a grid of hosts and columns: reduce inside hosts, allreduce along each column of
hosts, broadcast inside hosts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simshuffle.allreduce.steps import Ints, Sends, Steps, place_in_host


class Grid:
    """Each column carries an equal share of the buffer. In every host one rank stands in it, the
    one at place column * ranks / columns, rounded down; so in a host of fewer ranks than columns
    some stand in several.

    Inside a host the share of a column goes from rank to rank, around a ring that all columns have
    in common, until it ends where its column is, and back from there. With as many columns as ranks
    that is the ring's reduce-scatter and all-gather; with one it is a chain's reduce and broadcast.

    Args:
        host_of: (M,) hosts.
        columns: how many; 0 for as many as the fullest host has ranks.
    """

    def __init__(self, host_of: Ints, columns: int = 0) -> None:
        _, first, number, size = np.unique(
            host_of, return_index=True, return_inverse=True, return_counts=True
        )
        met = np.argsort(first)  # hosts in the order of their first ranks
        self.size = size[met]
        self.hosts, self.columns = len(size), columns or int(size.max())
        self._rank = np.full((self.hosts, int(size.max())), -1, np.int32)
        self._rank[np.argsort(met)[number], place_in_host(host_of)] = np.arange(len(host_of))
        self._place = np.arange(self.columns) * self.size[:, None] // self.columns
        self.leader: Ints = np.take_along_axis(self._rank, self._place, axis=1)
        """(hosts, columns) the rank in each column."""

    def _chains(self, first: int) -> tuple[NDArray[np.integer], ...]:
        """Host, column, hop, and ranks that send and receive on the chains inside hosts, whose
        first sends are ``first`` places after their column's."""
        hops = np.arange(self._rank.shape[1] - 1)
        host, column, hop = np.nonzero(
            np.broadcast_to(
                hops < self.size[:, None, None] - 1, (self.hosts, self.columns, len(hops))
            )
        )
        place = self._place[host, column] + first + hop
        src, dst = (self._rank[host, each % self.size[host]] for each in (place, place + 1))
        return host, column, hop, src, dst

    def steps(self, among: Steps) -> Steps:
        """All steps, where ``among`` are those of the hosts of a column."""
        parts, hops = among.parts, self._rank.shape[1] - 1
        stages: list[tuple[ArrayLike, ...]] = []
        for first, begin, adds in ((1, 0, True), (0, hops + among.count, False)):
            _, column, hop, src, dst = self._chains(first)
            stages.append((begin + hop, src, dst, column * parts, column * parts + parts, adds))
        for number, leader in enumerate(self.leader.T):
            before = number * parts
            ends = leader[among.src], leader[among.dst]
            cut = among.first + before, among.end + before
            stages.append((hops + among.step, *ends, *cut, among.adds))
        return Steps.joined(self.columns * parts, stages)

    def sends(self, among: Sends, rail: Ints, rails: int = 1) -> Sends:
        """All sends: the chains inside hosts as pipelines, and between them ``among``, those of the
        hosts of a column.

        Args:
            rail: (hosts, columns) what a host sends on, in each column.
            rails: over how many the columns are spread where a chain leaves a host, if what is
                called a host here is a row of them.
        """
        stages: list[tuple[ArrayLike, ...]] = []
        for first, step in ((1, 0), (0, int(among.step.max(initial=-1)) + 2)):
            host, column, _, src, dst = self._chains(first)
            hops, head = self.size[host] - 1, self.leader[host, column]
            on = column * rails // self.columns
            stages.append((step, src, dst, 1 / self.columns, on, hops, head))
        share = among.share / self.columns
        for leader, on in zip(self.leader.T, rail.T, strict=True):
            src, dst, head = (leader[each] for each in (among.src, among.dst, among.origin))
            stages.append((among.step + 1, src, dst, share, on[among.src], among.hops, head))
        return Sends.joined(stages)
