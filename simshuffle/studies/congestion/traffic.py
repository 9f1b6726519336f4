"""The network between the ranks as the patterns see it, and the flows of a variant: messages over
routes, in steps, with barriers or without. No host work, only the network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simshuffle.network import Flows, Links
from simshuffle.plan.resources import Resources
from simshuffle.routing.router import reach
from simshuffle.studies.congestion.patterns import Batching, Floats, Ints, Variant, partners


class Fabric:
    """The links that messages between the ranks can use, and no others: models are faster without
    those of idle hosts. A routing that looks at what it sent before begins anew with every
    exchange.

    Args:
        resources: where routes come from.

    Attributes:
        resources: as given.
        links: with their latencies and names, in the order of ``resources.links``.
        tiers: (links,) kind of each.
        all_pairs: every rank to every other: (M (M - 1),) senders, receivers, and (M (M - 1), hops)
            routes, by sender, the next rank first.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        count, table = resources.world_size, resources.links
        router = resources.forwarding
        src = np.repeat(np.arange(count, dtype=np.int32), count - 1)
        dst = (src + np.tile(np.arange(1, count, dtype=np.int32), count)) % np.int32(count)
        routes = resources.afresh().message(src, dst)[0]
        used = np.zeros(len(table.names) + 1, bool)
        for hop in routes.T:
            used[hop] = True
        if not router.constant:
            used[:-1][: len(resources.cables)] |= reach(router, resources.ports)[resources.cables]
        kept = np.flatnonzero(used[:-1])
        # the last one is for the padding, -1
        self._number = np.full(len(table.names) + 1, -1, np.int32)
        self._number[kept] = np.arange(len(kept))
        self.links = Links(
            table.capacity[kept],
            table.latency[kept],
            [table.names[link] for link in kept.tolist()],
        )
        self.tiers = [table.tiers[link] for link in kept.tolist()]
        self.all_pairs = src, dst, self._renumbered(routes)
        self._first = self._first_links()

    def _renumbered(self, routes: Ints) -> Ints:
        """Routes over `links`, without columns that only pad."""
        width = int((routes >= 0).any(axis=0).sum())
        out = np.empty((len(routes), max(width, 1)), np.int32)
        for column in range(out.shape[1]):
            out[:, column] = self._number[routes[:, column]]
        return out

    def _first_links(self) -> Ints:
        """(M,) the cable of ``resources`` on which each rank's messages leave its host; -1 if there
        is no other host, or all are of one scale-up domain."""
        resources, domain_of = self.resources, self.resources.domain_of
        if resources.num_domains == 1:
            return np.full(self.world_size, -1, np.int32)
        elsewhere = np.where(domain_of == 0, np.argmax(domain_of != 0), 0)
        return resources.message(np.arange(self.world_size), elsewhere)[0][:, 0].copy()

    @property
    def world_size(self) -> int:
        """M."""
        return self.resources.world_size

    def routes(self, src: NDArray[np.integer], dst: NDArray[np.integer]) -> Ints:
        """Links of messages between ranks, the first that are sent: (n, longest) int32, padded
        with -1."""
        return self._renumbered(self.resources.afresh().message(src, dst)[0])

    @property
    def ports(self) -> Ints:
        """(M,) the cable on which each rank's messages leave its host; -1 if there is no other
        host, or all are of one scale-up domain."""
        return self._number[self._first]

    @property
    def leaf(self) -> Ints:
        """(M,) number of the leaf switch that each rank's HCA is attached to; equal numbers, same
        switch. All alike where no message leaves by an HCA."""
        links = self.resources.forwarding.links
        enters, nodes = links.enters[self.resources.cables], links.cabling.names
        names = [nodes[enters[port]] if port >= 0 else "" for port in self._first.tolist()]
        return np.unique(names, return_inverse=True)[1].astype(np.int32)


@dataclass(frozen=True)
class Traffic:
    """One exchange, ready for a network model."""

    # the messages, step by step and by sender, and behind them the barriers: without links and
    # without bytes
    flows: Flows
    messages: int  # how many of the flows are messages

    @property
    def barriers(self) -> int:
        """How many of the flows are barriers."""
        return len(self.flows) - self.messages


def exchange(
    variant: Variant,
    fabric: Fabric,
    nbytes: Floats,
    iteration: NDArray[np.integer],
    rng: np.random.Generator,
    importance: Floats,
) -> Traffic:
    """The flows of a variant.

    Args:
        variant: the pattern and how it is carried out.
        fabric: the network and the ranks on it.
        nbytes: (samples, M) bytes of the samples that each rank sends, in this order.
        iteration: (samples,) iteration of each of them; not decreasing.
        rng: draws permutations and pairings.
        importance: (M,) importance of each rank.

    Raises:
        ValueError: the pattern cannot be made for that many ranks.
    """
    if variant.pattern == "all_to_all":
        src, _, routes = fabric.all_pairs
        share = (nbytes.sum(axis=0) / (fabric.world_size - 1))[src]
        return Traffic(Flows(routes, share, np.zeros(len(src))), len(src))
    first = first_samples(variant.batching, iteration)
    partner = partners(variant.pattern, len(first), fabric, rng, importance)
    ranks = np.flatnonzero(partner[0] != np.arange(fabric.world_size)).astype(np.int32)
    sizes = np.add.reduceat(nbytes, first, axis=0)[:, ranks]
    routes = fabric.routes(np.tile(ranks, len(first)), partner[:, ranks].ravel())
    return _in_steps(routes, sizes, variant.barrier)


def first_samples(batching: Batching, iteration: NDArray[np.integer]) -> NDArray[np.int64]:
    """Number of the first sample of each message, (messages,), given the iteration (samples,) of
    each sample."""
    if batching == "sample":
        return np.arange(len(iteration))
    if batching == "iteration":
        return np.flatnonzero(np.diff(iteration, prepend=-1))
    return np.zeros(1, np.int64)


def _in_steps(routes: Ints, sizes: Floats, barrier: bool) -> Traffic:
    """Messages of ``sizes`` (steps, senders) bytes, one after the other on each sender, and with
    barriers on all of them."""
    steps, senders = sizes.shape
    messages = steps * senders
    number = np.arange(messages, dtype=np.int32)
    begins = np.zeros(messages)
    if not barrier or steps == 1:
        flows = Flows(routes, sizes.ravel(), begins, number[:-senders], number[senders:])
        return Traffic(flows, messages)
    gates = np.arange(messages, messages + steps - 1, dtype=np.int32)
    gate = np.repeat(gates, senders)
    nothing = np.zeros(len(gates))
    flows = Flows(
        np.concatenate([routes, np.full((len(gates), routes.shape[1]), -1, np.int32)]),
        np.concatenate([sizes.ravel(), nothing]),
        np.concatenate([begins, nothing]),
        np.concatenate([number[:-senders], gate]),
        np.concatenate([gate, number[senders:]]),
    )
    return Traffic(flows, messages)
