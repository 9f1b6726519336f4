"""What the ranks send in one epoch, the network between them as the patterns see it, and the flows
of a variant: messages over routes, in steps, with barriers or without. What messages cost the hosts
is added in `simshuffle.studies.congestion.messages`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import Problem, ScenarioError
from simshuffle.fabric.network import Flows, Links
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.host_work import payload_nbytes
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Flags
from simshuffle.studies.congestion.patterns import Batching, Floats, Ints, Variant, partners
from simshuffle.workload.exchange.schedule import epoch_quota, spread_over_iterations

FEWEST = 4
"""Samples of a rank that a shortened set keeps before it cuts them."""


@dataclass(frozen=True)
class SentSamples:
    """What each rank sends."""

    scenario: Scenario  # without sweep
    count: int  # samples of each rank
    iteration: NDArray[np.integer]  # (count,) iteration after which each is sent; not decreasing
    share: float = 1.0  # of the bytes of each sample
    # by which share of its size each is larger or smaller at most; see `jittered`
    jitter: float = 0.0
    bytes_set: str = "full"  # 'full' for an epoch's exchange, 'short' for a part of it

    @property
    def key(self) -> tuple[int, float, float]:
        """What distinguishes them from others of the same scenario."""
        return self.count, self.share, self.jitter

    @property
    def mean(self) -> float:
        """Mean bytes of a sample as it is sent, decoded or as stored."""
        workload = self.scenario.workload
        schedule = workload.exchange.exchange_schedule
        assert schedule is not None  # noqa: S101 - see `samples`
        return payload_nbytes(schedule, workload.dataset) * self.share

    @property
    def alike(self) -> bool:
        """Whether all samples have one size."""
        return self.scenario.workload.dataset.stored.spread == 0 and self.jitter == 0

    def nbytes(self, seed: int) -> NDArray[np.float64]:
        """(count, M) bytes of the samples of each rank, drawn from the data set's law; those of a
        shortened set are the first of the full one, or parts of them."""
        ranks, stored = self.scenario.world_size, self.scenario.workload.dataset.stored
        drawn = stored.draw(self.scenario.rng("congestion.sizes", seed), self.count * ranks)
        nbytes = drawn.reshape(self.count, ranks) * (self.mean / stored.mean)
        if self.jitter:
            rng = self.scenario.rng("congestion.jitter", seed)
            nbytes *= rng.uniform(1.0 - self.jitter, 1.0 + self.jitter, nbytes.shape)
        return nbytes

    def jittered(self, jitter: float) -> SentSamples:
        """These samples, each larger or smaller by up to a share ``jitter`` of its size, drawn by
        the seed, where the data set's law has them differ less (standard deviation over mean):
        packets of equal messages that begin together go in step and never meet in a queue, as on no
        real machine."""
        if self.scenario.workload.dataset.stored.spread >= jitter:
            return self
        return replace(self, jitter=jitter)

    def shortened(self, packets: int, mtu: float) -> SentSamples:
        """These samples, or so many of the first ones that about ``packets`` packets of ``mtu``
        bytes carry them, at least `FEWEST` of a rank and those of two iterations; if they are too
        many packets still, all are cut alike."""
        each = self.mean * self.scenario.world_size / mtu
        if self.count * each <= packets:
            return self
        two_iterations = int(np.sum(self.iteration <= np.unique(self.iteration)[:2].max()))
        count = min(self.count, max(int(packets / each), two_iterations, FEWEST))
        share = min(1.0, packets / (count * each))
        return replace(
            self, count=count, iteration=self.iteration[:count], share=share, bytes_set="short"
        )


def samples(scenario: Scenario) -> SentSamples:
    """What one epoch exchanges: Q N / M samples of each rank, made whole, in the pace of the
    scenario's exchange; a ScenarioError if there is nothing, or nobody to exchange with."""
    workload, ranks = scenario.workload, scenario.world_size
    fraction = workload.exchange.fraction or 0.0
    quota = epoch_quota(fraction, workload.dataset.num_samples, ranks, 1)
    if ranks < 2:
        rule = "must be at least 2 for an exchange"
        raise ScenarioError(Problem("world_size", rule, str(ranks), "Use more."), scenario.name)
    each = fraction * workload.dataset.num_samples / ranks
    if quota == 0:
        rule = f"must exchange samples between the {ranks} ranks"
        given = f"{workload.exchange.kind}, {each:.2g} samples of each"
        remedy = "Set it to partial_local_shuffle:exchange_fraction=0.1, for example."
        raise ScenarioError(Problem("workload.exchange", rule, given, remedy), scenario.name)
    rate = fraction * workload.local_batch_size
    iteration = spread_over_iterations(quota, rate, workload.iterations(ranks))
    return SentSamples(scenario, quota, iteration)


class UsedFabric:
    """The links that messages between the ranks can use, and no others: models are faster without
    those of idle hosts. A routing that looks at what it sent before begins anew with every
    exchange. ``links`` and ``tiers`` (kinds) are in the order of ``resources.links``."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        count, table, domain_of = resources.world_size, resources.links, resources.domain_of
        used = self._used_links()
        if not resources.forwarding.constant:
            used[: len(resources.cables)] |= resources.reachable()
        kept = np.flatnonzero(used)
        # the last one is for the padding, -1
        self._number = np.full(len(table.names) + 1, -1, np.int32)
        self._number[kept] = np.arange(len(kept))
        self.links = Links(
            table.capacity[kept], table.latency[kept], [table.names[link] for link in kept.tolist()]
        )
        self.tiers = [table.tiers[link] for link in kept.tolist()]
        # (M,) the cable of ``resources`` on which each rank's messages leave its host
        self._first = np.full(count, -1, np.int32)
        if resources.num_domains > 1:
            elsewhere = np.where(domain_of == 0, np.argmax(domain_of != 0), 0)
            self._first = resources.message(np.arange(count), elsewhere)[0][:, 0].copy()

    def _used_links(self) -> Flags:
        """(links,) Return which links of ``resources`` messages between the ranks cross.

        Ranks of one host that share an HCA take the same cables, so one of them stands for all;
        inside a scale-up domain, and a host, every pair is looked at.
        """
        resources = self.resources
        hca = resources.host_of.astype(np.int64) * (resources.rail_of.max() + 1) + resources.rail_of
        ranks = np.unique(hca, return_index=True)[1]
        src, dst = np.repeat(ranks, len(ranks)), np.tile(ranks, len(ranks))
        order = np.argsort(resources.domain_of, kind="stable")
        members = np.split(order, np.cumsum(np.bincount(resources.domain_of))[:-1])
        inside = [np.array(np.meshgrid(domain, domain)).reshape(2, -1) for domain in members]
        pairs = np.concatenate([[src, dst], *inside], axis=1)
        src, dst = pairs[:, pairs[0] != pairs[1]]
        used = np.zeros(len(resources.links.names) + 1, bool)
        for hop in resources.afresh().message(src, dst)[0].T:
            used[hop] = True
        return used[:-1]

    @cached_property
    def all_pairs(self) -> tuple[Ints, Ints, Ints]:
        """Return senders and receivers (M (M - 1),) and the routes (M (M - 1), hops) of every rank
        to every other, by sender, the next rank first."""
        count = self.world_size
        src = np.repeat(np.arange(count, dtype=np.int32), count - 1)
        dst = (src + np.tile(np.arange(1, count, dtype=np.int32), count)) % np.int32(count)
        return src, dst, self.routes(src, dst)

    def _renumbered(self, routes: Ints) -> Ints:
        """Routes over `links`, without columns that only pad."""
        width = int((routes >= 0).any(axis=0).sum())
        out = np.empty((len(routes), max(width, 1)), np.int32)
        for column in range(out.shape[1]):
            out[:, column] = self._number[routes[:, column]]
        return out

    @property
    def world_size(self) -> int:
        """M."""
        return self.resources.world_size

    def routes(self, src: NDArray[np.integer], dst: NDArray[np.integer]) -> Ints:
        """Links of messages, the first that are sent: (n, longest) int32, padded with -1."""
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
        enters, nodes = links.dst_node[self.resources.cables], links.cabling.names
        names = [nodes[enters[port]] if port >= 0 else "" for port in self._first.tolist()]
        return np.unique(names, return_inverse=True)[1].astype(np.int32)


@dataclass(frozen=True)
class ExchangeTraffic:
    """One exchange, ready for a network model."""

    # the messages, step by step and by sender, and behind them the barriers: without links and
    # without bytes
    flows: Flows
    messages: int  # how many of the flows are messages
    senders: int  # how many messages a step has
    at_once: bool = (
        False  # whether a rank posts all of them one after the other, and waits for none
    )

    @property
    def barriers(self) -> int:
        """How many of the flows are barriers."""
        return len(self.flows) - self.messages

    @property
    def steps(self) -> int:
        """Return how many messages a sender sends one after the other."""
        return self.messages // self.senders

    def of_steps(self, steps: NDArray[np.integer]) -> ExchangeTraffic:
        """Return the messages of these ``steps`` (ascending) alone, over the same routes."""
        rows = (steps[:, None] * self.senders + np.arange(self.senders)).ravel()
        sizes = self.flows.nbytes[rows].reshape(len(steps), self.senders)
        return _in_steps(self.flows.routes[rows], sizes, self.barriers > 0)


def exchange(
    variant: Variant,
    fabric: UsedFabric,
    nbytes: Floats,
    iteration: NDArray[np.integer],
    rng: np.random.Generator,
    importance: Floats,
) -> ExchangeTraffic:
    """The flows of a variant on a network: (samples, M) bytes of the samples that each rank sends,
    in this order, and the iteration (samples,) of each, not decreasing; ``rng`` draws permutations
    and pairings; (M,) importance of each rank. A ValueError as of `partners`."""
    if variant.pattern == "all_to_all":
        src, _, routes = fabric.all_pairs
        share = (nbytes.sum(axis=0) / (fabric.world_size - 1))[src]
        flows = Flows(routes, share, np.zeros(len(src)))
        return ExchangeTraffic(flows, len(src), len(src), at_once=True)
    first = first_samples(variant.batching, iteration)
    partner = partners(variant.pattern, len(first), fabric, rng, importance)
    ranks = np.flatnonzero(partner[0] != np.arange(fabric.world_size)).astype(np.int32)
    sizes = np.add.reduceat(nbytes, first, axis=0)[:, ranks]
    routes = fabric.routes(np.tile(ranks, len(first)), partner[:, ranks].ravel())
    return _in_steps(routes, sizes, variant.barrier)


def first_samples(batching: Batching, iteration: NDArray[np.integer]) -> NDArray[np.int64]:
    """(messages,) the first sample of each, given the iteration (samples,) of every sample."""
    if batching == "sample":
        return np.arange(len(iteration))
    if batching == "iteration":
        return np.flatnonzero(np.diff(iteration, prepend=-1))
    return np.zeros(1, np.int64)


def _in_steps(routes: Ints, sizes: Floats, barrier: bool) -> ExchangeTraffic:
    """(steps, senders) bytes, one after the other on each sender; with barriers on all of them."""
    steps, senders = sizes.shape
    messages = steps * senders
    number = np.arange(messages, dtype=np.int32)
    begins = np.zeros(messages)
    if not barrier or steps == 1:
        flows = Flows(routes, sizes.ravel(), begins, number[:-senders], number[senders:])
        return ExchangeTraffic(flows, messages, senders)
    gates = np.arange(messages, messages + steps - 1, dtype=np.int32)
    gate, nothing = np.repeat(gates, senders), np.zeros(len(gates))
    flows = Flows(
        np.concatenate([routes, np.full((len(gates), routes.shape[1]), -1, np.int32)]),
        np.concatenate([sizes.ravel(), nothing]),
        np.concatenate([begins, nothing]),
        np.concatenate([number[:-senders], gate]),
        np.concatenate([gate, number[senders:]]),
    )
    return ExchangeTraffic(flows, messages, senders)
