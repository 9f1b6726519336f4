"""Build the traffic of an exchange: what the ranks send in one epoch, the network
between them as the patterns see it, and the flows of a variant (messages over routes,
in steps, with barriers or without). `simshuffle.studies.congestion.messages` adds what
messages cost the hosts.
"""

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
from simshuffle.studies.congestion.patterns import (
    Batching,
    Floats,
    Ints,
    Variant,
    choose_partners,
)
from simshuffle.workload.exchange.schedule import epoch_quota, spread_over_iterations

FEWEST = 4
"""Samples of a rank that a shortened set keeps before it cuts them."""


@dataclass(frozen=True)
class SentSamples:
    """The samples that each rank sends in an epoch."""

    scenario: Scenario  # without sweep
    count: int  # samples of each rank
    # (count,) iteration after which each is sent; not decreasing
    iteration: NDArray[np.integer]
    share: float = 1.0  # of the bytes of each sample
    # by which share of its size each is larger or smaller at most; see `with_jitter`
    jitter: float = 0.0
    bytes_set: str = "full"  # 'full' for an epoch's exchange, 'short' for a part of it

    @property
    def key(self) -> tuple[int, float, float]:
        """Return count, share and jitter, which distinguish these samples within a
        scenario.
        """
        return self.count, self.share, self.jitter

    @property
    def mean_nbytes(self) -> float:
        """Return the mean bytes of a sample as it is sent, decoded or as stored, times
        ``share``.
        """
        workload = self.scenario.workload
        schedule = workload.exchange.exchange_schedule
        assert schedule is not None  # noqa: S101 - see `samples_to_send`
        return payload_nbytes(schedule, workload.dataset) * self.share

    @property
    def has_equal_sizes(self) -> bool:
        """Return whether all samples have one size."""
        return self.scenario.workload.dataset.stored.spread == 0 and self.jitter == 0

    def nbytes(self, seed: int) -> NDArray[np.float64]:
        """Draw the bytes of the samples of each rank from the data set's law, (count,
        M).

        Equal seeds give equal bytes. The samples of a shortened set are the first ones
        of the full set, or parts of them. Sizes are scaled to the mean `mean_nbytes`.
        """
        num_ranks = self.scenario.world_size
        stored = self.scenario.workload.dataset.stored
        drawn = stored.draw(
            self.scenario.rng("congestion.sizes", seed), self.count * num_ranks
        )
        nbytes = drawn.reshape(self.count, num_ranks) * (self.mean_nbytes / stored.mean)
        if self.jitter:
            rng = self.scenario.rng("congestion.jitter", seed)
            nbytes *= rng.uniform(1.0 - self.jitter, 1.0 + self.jitter, nbytes.shape)
        return nbytes

    def with_jitter(self, jitter: float) -> SentSamples:
        """Return these samples, each larger or smaller by up to a share ``jitter`` of
        its size.

        Shares are drawn by the seed. Unchanged where the sizes in the data set's law
        already differ as much (standard deviation over mean). Packets of equal messages
        that begin together go in step and never meet in a queue, as on no real machine.
        """
        if self.scenario.workload.dataset.stored.spread >= jitter:
            return self
        return replace(self, jitter=jitter)

    def shorten(self, packets: int, mtu: float) -> SentSamples:
        """Return the first samples, as many as about ``packets`` packets of ``mtu``
        bytes, over all ranks, can carry.

        At least `FEWEST` samples of a rank, and those of two iterations, are kept. If
        they still need more packets, every sample is shortened by an equal share. The
        result has ``bytes_set`` 'short'; this object is returned if nothing is cut.
        """
        packets_per_sample = self.mean_nbytes * self.scenario.world_size / mtu
        if self.count * packets_per_sample <= packets:
            return self
        two_iterations = int(
            np.sum(self.iteration <= np.unique(self.iteration)[:2].max())
        )
        count = min(
            self.count, max(int(packets / packets_per_sample), two_iterations, FEWEST)
        )
        share = min(1.0, packets / (count * packets_per_sample))
        return replace(
            self,
            count=count,
            iteration=self.iteration[:count],
            share=share,
            bytes_set="short",
        )


def samples_to_send(scenario: Scenario) -> SentSamples:
    """Return the samples that one epoch exchanges, in the pace of the scenario's
    exchange.

    They are Q N / M of each rank, rounded to whole samples, and at most the smallest
    shard.

    Raises:
        ScenarioError: there is nothing to exchange, or nobody to exchange with.
    """
    workload = scenario.workload
    num_ranks = scenario.world_size
    fraction = workload.exchange.fraction or 0.0
    quota = epoch_quota(fraction, workload.dataset.num_samples, num_ranks, 1)
    if num_ranks < 2:
        rule = "must be at least 2 for an exchange"
        raise ScenarioError(
            Problem("world_size", rule, str(num_ranks), "Use more."), scenario.name
        )
    samples_per_rank = fraction * workload.dataset.num_samples / num_ranks
    if quota == 0:
        rule = f"must exchange samples between the {num_ranks} ranks"
        exchange_text = (
            f"{workload.exchange.kind}, {samples_per_rank:.2g} samples of each"
        )
        remedy = "Set it to partial_local_shuffle:exchange_fraction=0.1, for example."
        raise ScenarioError(
            Problem("workload.exchange", rule, exchange_text, remedy), scenario.name
        )
    rate = fraction * workload.local_batch_size
    iteration = spread_over_iterations(quota, rate, workload.iterations(num_ranks))
    return SentSamples(scenario, quota, iteration)


class UsedFabric:
    """The links that messages between the ranks can use, and no others: models are
    faster without the links of idle hosts. A routing that depends on earlier messages
    begins anew with every exchange. ``links`` and ``tiers`` (kinds) are in the order of
    ``resources.links``. Under a routing that depends on earlier messages, all cables
    that it may take are among them.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        num_ranks = resources.world_size
        table = resources.links
        domain_of = resources.domain_of
        is_used = self._used_links()
        if not resources.forwarding.constant:
            is_used[: len(resources.cables)] |= resources.reachable()
        used_links = np.flatnonzero(is_used)
        # the last one is for the padding, -1
        self._link_index = np.full(len(table.names) + 1, -1, np.int32)
        self._link_index[used_links] = np.arange(len(used_links))
        self.links = Links(
            table.capacity[used_links],
            table.latency[used_links],
            [table.names[link] for link in used_links.tolist()],
        )
        self.tiers = [table.tiers[link] for link in used_links.tolist()]
        # (M,) the cable of ``resources`` on which each rank's messages leave its host
        self._first_cable = np.full(num_ranks, -1, np.int32)
        if resources.num_domains > 1:
            remote_rank = np.where(domain_of == 0, np.argmax(domain_of != 0), 0)
            self._first_cable = resources.message(np.arange(num_ranks), remote_rank)[0][
                :, 0
            ].copy()

    def _used_links(self) -> Flags:
        """Return which links of ``resources`` the first messages between the ranks
        cross, (links,).

        Ranks of one host that share an HCA take the same cables, so one of these ranks
        stands for all; inside a scale-up domain, and a host, every pair is looked at.
        """
        resources = self.resources
        hca_of_rank = (
            resources.host_of.astype(np.int64) * (resources.rail_of.max() + 1)
            + resources.rail_of
        )
        ranks = np.unique(hca_of_rank, return_index=True)[1]
        src = np.repeat(ranks, len(ranks))
        dst = np.tile(ranks, len(ranks))
        order = np.argsort(resources.domain_of, kind="stable")
        domain_members = np.split(
            order, np.cumsum(np.bincount(resources.domain_of))[:-1]
        )
        domain_pairs = [
            np.array(np.meshgrid(domain, domain)).reshape(2, -1)
            for domain in domain_members
        ]
        pairs = np.concatenate([[src, dst], *domain_pairs], axis=1)
        src, dst = pairs[:, pairs[0] != pairs[1]]
        is_used = np.zeros(len(resources.links.names) + 1, bool)
        for hop in resources.with_fresh_routes().message(src, dst)[0].T:
            is_used[hop] = True
        return is_used[:-1]

    @cached_property
    def all_pairs(self) -> tuple[Ints, Ints, Ints]:
        """Return senders and receivers (M (M - 1),) and the routes (M (M - 1), hops) of
        every rank to every other rank, by sender, the next rank first.
        """
        count = self.world_size
        src = np.repeat(np.arange(count, dtype=np.int32), count - 1)
        dst = (src + np.tile(np.arange(1, count, dtype=np.int32), count)) % np.int32(
            count
        )
        return src, dst, self.routes(src, dst)

    def _renumber_routes(self, routes: Ints) -> Ints:
        """Return routes over `links`, (n, longest), from routes over
        ``resources.links``, without columns that only pad.

        At least one column is kept. -1 pads, and stands for links outside `links`.
        """
        width = int((routes >= 0).any(axis=0).sum())
        renumbered = np.empty((len(routes), max(width, 1)), np.int32)
        for column in range(renumbered.shape[1]):
            renumbered[:, column] = self._link_index[routes[:, column]]
        return renumbered

    @property
    def world_size(self) -> int:
        """Return the number of ranks, M."""
        return self.resources.world_size

    def routes(self, src: NDArray[np.integer], dst: NDArray[np.integer]) -> Ints:
        """Return the links of the first messages from ``src`` to ``dst``: (n, longest)
        int32, padded with -1.
        """
        return self._renumber_routes(
            self.resources.with_fresh_routes().message(src, dst)[0]
        )

    @property
    def ports(self) -> Ints:
        """Return the index in ``links`` of the cable on which each rank's messages
        leave its host, (M,); -1 if there is no other host, or all hosts are of one
        scale-up domain.
        """
        return self._link_index[self._first_cable]

    def rack_seconds(self, nbytes: Floats) -> float:
        """Return the s that the fullest rack needs for what its ranks send to others, 0
        with one rack.

        Every rank sends equal parts of its ``nbytes`` (M,) to all others, and the cables
        that lead out of a rack are all used to their whole capacity: no routing and no
        order of the messages is faster. (Half the bisection of common schedules may do
        for that: Prisacari, Rodriguez, Minkenberg and Hoefler, ICS 2013.)
        """
        rack = self._rack_number
        used_racks = np.unique(rack)
        if len(used_racks) < 2:
            return 0.0
        num_outside = self.world_size - np.bincount(rack)
        sent = np.bincount(rack, nbytes) * num_outside / (self.world_size - 1)
        return float((sent[used_racks] / self._rack_capacity[used_racks]).max())

    @cached_property
    def _rack_capacity(self) -> Floats:
        """(racks,) bytes/s of the cables that lead out of each rack, to the switches
        above and to other racks, by the rack's number; 0 for those without cables.
        """
        links = self.resources.forwarding.links
        cabling = links.cabling
        rack_of_switch = self.resources.rack_of_switch
        rack_of_node = np.array(
            [rack_of_switch.get(name, -1) for name in cabling.names]
        )
        source = rack_of_node[links.src_node]
        is_switch = cabling.depth[links.dst_node] >= 0
        leads_out = (source >= 0) & is_switch & (rack_of_node[links.dst_node] != source)
        capacity: Floats = np.bincount(
            source[leads_out],
            links.capacity[leads_out],
            minlength=rack_of_node.max() + 1,
        ).astype(float)
        return capacity

    @cached_property
    def _rack_number(self) -> NDArray[np.int64]:
        """(M,) the number of the rack that each rank's HCA is attached to, as the
        machine counts racks; 0 where it names none.
        """
        rack_of_switch = self.resources.rack_of_switch
        return np.array([rack_of_switch.get(name, 0) for name in self._leaf_names])

    @property
    def rack(self) -> Ints:
        """Return the index of each rank's rack, (M,), from 0 on; of its leaf switch
        where all ranks are of one rack.
        """
        racks, index = np.unique(self._rack_number, return_inverse=True)
        return index.astype(np.int32) if len(racks) > 1 else self.leaf

    @cached_property
    def _leaf_names(self) -> list[str]:
        """(M,) the leaf switch that each rank's HCA is attached to; '' where no message
        leaves by an HCA.
        """
        links = self.resources.forwarding.links
        enters = links.dst_node[self.resources.cables]
        names = links.cabling.names
        return [
            names[enters[port]] if port >= 0 else ""
            for port in self._first_cable.tolist()
        ]

    @property
    def leaf(self) -> Ints:
        """Return the index of the leaf switch that each rank's HCA is attached to,
        (M,): equal numbers, same switch. All numbers are equal where no message leaves
        by an HCA.
        """
        return np.unique(self._leaf_names, return_inverse=True)[1].astype(np.int32)


@dataclass(frozen=True)
class ExchangeTraffic:
    """The flows of one exchange, ready for a network model."""

    # the messages, step by step and by sender, and behind them the barriers: without links and
    # without bytes
    flows: Flows
    messages: int  # how many of the flows are messages
    senders: int  # how many messages a step has; all messages of an all-to-all
    # whether a rank posts all of them one after the other, and waits for none
    at_once: bool = False

    @property
    def barriers(self) -> int:
        """Return how many of the flows are barriers."""
        return len(self.flows) - self.messages

    @property
    def steps(self) -> int:
        """Return how many messages a sender sends one after the other; 1 of an
        all-to-all.
        """
        return self.messages // self.senders

    def select_steps(self, steps: NDArray[np.integer]) -> ExchangeTraffic:
        """Return the messages of the ``steps`` (ascending), with their routes.

        They are sent as if no other steps were between, with barriers if the exchange
        has any.
        """
        # message of step s and sender k: s * senders + k
        rows = (steps[:, None] * self.senders + np.arange(self.senders)).ravel()
        sizes = self.flows.nbytes[rows].reshape(len(steps), self.senders)
        return _build_steps(self.flows.routes[rows], sizes, self.barriers > 0)


def build_exchange(
    variant: Variant,
    fabric: UsedFabric,
    nbytes: Floats,
    iteration: NDArray[np.integer],
    *,
    rng: np.random.Generator,
    importance: Floats,
) -> ExchangeTraffic:
    """Return the flows of a variant on a network.

    Ranks without a partner send nothing. In an all-to-all each rank sends an equal part
    of its bytes to every other rank; ``iteration``, ``rng`` and ``importance`` are not
    used.

    Args:
        variant: pattern, batching and barrier.
        fabric: the network between the ranks.
        nbytes: (samples, M) bytes of the samples that each rank sends, in this order.
        iteration: (samples,) iteration of each sample, not decreasing.
        rng: draws permutations and pairings.
        importance: (M,) importance of each rank.

    Raises:
        ValueError: xor is given no power of two of ranks.
    """
    if variant.pattern == "all_to_all":
        src, _, routes = fabric.all_pairs
        share = (nbytes.sum(axis=0) / (fabric.world_size - 1))[src]
        flows = Flows(routes, share, np.zeros(len(src)))
        return ExchangeTraffic(flows, len(src), len(src), at_once=True)
    first_sample = first_sample_of_messages(variant.batching, iteration)
    partner = choose_partners(
        variant.pattern, len(first_sample), fabric, rng, importance
    )
    ranks = np.flatnonzero(partner[0] != np.arange(fabric.world_size)).astype(np.int32)
    sizes = np.add.reduceat(nbytes, first_sample, axis=0)[:, ranks]
    routes = fabric.routes(np.tile(ranks, len(first_sample)), partner[:, ranks].ravel())
    return _build_steps(routes, sizes, variant.barrier)


def first_sample_of_messages(
    batching: Batching, iteration: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Return the index of the first sample of each message of a rank, (messages,), from
    the ``iteration`` (samples,), from 0, of every sample.
    """
    if batching == "sample":
        return np.arange(len(iteration))
    if batching == "iteration":
        return np.flatnonzero(np.diff(iteration, prepend=-1))
    return np.zeros(1, np.int64)


def _build_steps(routes: Ints, sizes: Floats, barrier: bool) -> ExchangeTraffic:
    """Return the traffic of messages of ``sizes`` bytes, (steps, senders), that each
    sender sends one after the other; with ``barrier``, a step also waits for all
    messages of the step before.

    ``routes`` are (steps * senders, hops), step by step. The last step has no barrier.
    """
    steps, senders = sizes.shape
    messages = steps * senders
    message_index = np.arange(messages, dtype=np.int32)
    starts = np.zeros(messages)
    if not barrier or steps == 1:
        flows = Flows(
            routes,
            sizes.ravel(),
            starts,
            message_index[:-senders],
            message_index[senders:],
        )
        return ExchangeTraffic(flows, messages, senders)
    barrier_index = np.arange(messages, messages + steps - 1, dtype=np.int32)
    barrier_of_message = np.repeat(barrier_index, senders)
    zeros = np.zeros(len(barrier_index))
    flows = Flows(
        np.concatenate(
            [routes, np.full((len(barrier_index), routes.shape[1]), -1, np.int32)]
        ),
        np.concatenate([sizes.ravel(), zeros]),
        np.concatenate([starts, zeros]),
        np.concatenate([message_index[:-senders], barrier_of_message]),
        np.concatenate([barrier_of_message, message_index[senders:]]),
    )
    return ExchangeTraffic(flows, messages, senders)
