"""The exchange patterns of a testbed of network namespaces: who sends how much to whom,
and what each flow waits for. `plugins/testbed` measures them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from simshuffle.workload.exchange import (
    EpochContext,
    ExchangePlan,
    PartialLocalShuffle,
    initial_owner,
)

Pair = tuple[int, int]
"""Hosts (sender, receiver)."""
MESSAGES = 8
"""Samples that every host sends by torch.distributed."""
EXCHANGE_FRACTION = 0.1
"""Q of that exchange."""


@dataclass(frozen=True)
class NamespaceShape:
    """The size of a testbed of network namespaces: leaves, hosts, spines, and the rate
    of its links.
    """

    leaves: int = 2  # leaf switches
    hosts_per_leaf: int = 4  # hosts below each, at least 2
    spines: int = 2  # switches above, each with one link to every leaf; at most ``hosts_per_leaf``
    rate: float = (
        5e6  # bytes/s that every link is shaped to, headers included, in each direction
    )

    @property
    def hosts(self) -> int:
        """Hosts in all."""
        return self.leaves * self.hosts_per_leaf


@dataclass(frozen=True)
class NamespacePattern:
    """The flows of an exchange between hosts, in steps."""

    # src, dst: (flows,) hosts
    src: list[int]
    dst: list[int]
    nbytes: list[int]  # (flows,) whole bytes
    step: list[int]  # (flows,) int, not decreasing
    # (flows,) the flows that must have ended before it starts; its sender or receiver knows all of
    # them
    predecessors: list[list[int]]
    # whether no flow of a step starts before all of the step before have arrived
    barrier: bool = False

    def __len__(self) -> int:
        return len(self.src)


def flows_of_steps(
    steps: list[list[Pair]], nbytes: int, *, barrier: bool = True
) -> NamespacePattern:
    """Return the flows of some steps, of ``nbytes`` each, in the order of ``steps``.

    With ``barrier`` a step waits for all flows of the step before.
    """
    pairs = [pair for step_pairs in steps for pair in step_pairs]
    return NamespacePattern(
        src=[src for src, _ in pairs],
        dst=[dst for _, dst in pairs],
        nbytes=[nbytes] * len(pairs),
        step=[step for step, step_pairs in enumerate(steps) for _ in step_pairs],
        predecessors=[[] for _ in pairs],
        barrier=barrier,
    )


def flows_in_both_directions(pairs: list[Pair], nbytes: int) -> NamespacePattern:
    """Return one step in which both hosts of each pair send ``nbytes`` to the other."""
    directed_pairs = [pair for a, b in pairs for pair in ((a, b), (b, a))]
    return flows_of_steps([directed_pairs], nbytes)


def incast(shape: NamespaceShape, nbytes: int, seed: int) -> NamespacePattern:
    """Return one step in which all other hosts send to host 0, together twice
    ``nbytes``, less what does not divide equally.
    """
    senders = range(1, shape.hosts)
    return flows_of_steps([[(host, 0) for host in senders]], 2 * nbytes // len(senders))


def incast_with_victim(
    shape: NamespaceShape, nbytes: int, seed: int
) -> NamespacePattern:
    """Return an incast in which the last host also sends ``nbytes`` to host 1, where
    nobody else does; the flow is the last.
    """
    incast_flows = incast(shape, nbytes, seed)
    incast_pairs = zip(incast_flows.src, incast_flows.dst, strict=True)
    flows = flows_of_steps([[*incast_pairs, (shape.hosts - 1, 1)]], nbytes)
    return replace(flows, nbytes=[*incast_flows.nbytes, nbytes])


def pairs_inside_leaf(
    shape: NamespaceShape, nbytes: int, seed: int
) -> NamespacePattern:
    """Return one step in which neighbours below a leaf send ``nbytes`` to each other; a
    last odd host does nothing.
    """
    per_leaf = shape.hosts_per_leaf
    starts = [
        leaf + k
        for leaf in range(0, shape.hosts, per_leaf)
        for k in range(0, per_leaf - 1, 2)
    ]
    return flows_in_both_directions([(host, host + 1) for host in starts], nbytes)


def pairs_across_leaves(
    shape: NamespaceShape, nbytes: int, seed: int
) -> NamespacePattern:
    """Return one step in which hosts of two neighbouring leaves exchange, place by
    place; a last odd leaf does nothing.
    """
    per_leaf = shape.hosts_per_leaf
    hosts = range(shape.leaves // 2 * 2 * per_leaf)
    pairs = [(host, host + per_leaf) for host in hosts if not host // per_leaf % 2]
    return flows_in_both_directions(pairs, nbytes)


def random_pairs(shape: NamespaceShape, nbytes: int, seed: int) -> NamespacePattern:
    """Return one step in which random pairs of hosts send ``nbytes`` to each other; no
    host is in two pairs, and of an odd number one does nothing.
    """
    order = np.random.default_rng((seed, 1)).permutation(shape.hosts).tolist()
    return flows_in_both_directions(
        list(zip(order[0::2], order[1::2], strict=False)), nbytes
    )


def all_to_all(shape: NamespaceShape, nbytes: int, seed: int) -> NamespacePattern:
    """Return one step in which each host sends to every other host, ``nbytes`` in all,
    less what does not divide equally.
    """
    hosts = shape.hosts
    pairs = [(src, (src + k) % hosts) for src in range(hosts) for k in range(1, hosts)]
    return flows_of_steps([pairs], nbytes // (hosts - 1))


def random_permutations(
    shape: NamespaceShape, nbytes: int, seed: int
) -> NamespacePattern:
    """Return M - 1 steps for M hosts, each a random permutation in which no host sends
    to itself, with a barrier; a host sends ``nbytes`` in all.
    """
    rng = np.random.default_rng((seed, 2))
    hosts = shape.hosts
    steps: list[list[Pair]] = []
    while len(steps) < hosts - 1:
        permutation = rng.permutation(hosts).tolist()
        if all(src != dst for src, dst in enumerate(permutation)):
            steps.append(list(enumerate(permutation)))
    return flows_of_steps(steps, nbytes // (hosts - 1))


def ring_flows(order: list[int], nbytes: int) -> NamespacePattern:
    """Return an allreduce over the ring ``order``: 2 (M - 1) steps, each to the next
    host.

    There is no barrier: a host sends what it has got in the step before. ``nbytes`` is
    what each host sends in all (Patarasuk & Yuan, JPDC 2009: 2 (M - 1)/M of the size of
    the gradient).
    """
    hosts = len(order)
    steps = [list(zip(order, [*order[1:], order[0]], strict=True))] * (2 * (hosts - 1))
    flows = flows_of_steps(steps, nbytes // len(steps), barrier=False)
    # flow step * M + position: the host at a position of the ring sends in a step what the host at
    # the position before sent to it in the step before
    for flow in range(hosts, len(flows)):
        step, position = divmod(flow, hosts)
        flows.predecessors[flow].append((step - 1) * hosts + (position - 1) % hosts)
    return flows


def scattered_ring_flows(
    shape: NamespaceShape, nbytes: int, seed: int
) -> NamespacePattern:
    """Return an allreduce on a ring that leaves its leaf at every hop."""
    per_leaf = shape.hosts_per_leaf
    order = [
        host
        for position in range(per_leaf)
        for host in range(position, shape.hosts, per_leaf)
    ]
    return ring_flows(order, nbytes)


# -------------------------------------------------------------------------------- torch.distributed


def plan_partial_shuffle(shape: NamespaceShape, seed: int) -> ExchangePlan:
    """Plan a partial local shuffle of `MESSAGES` samples a host, a random permutation
    each.
    """
    rng = np.random.default_rng((seed, 3))
    hosts = shape.hosts
    strategy = PartialLocalShuffle(
        kind="partial_local_shuffle", exchange_fraction=EXCHANGE_FRACTION
    )
    owner = initial_owner(round(MESSAGES / EXCHANGE_FRACTION) * hosts, hosts, rng)
    shards = strategy.shards(owner, hosts, rng)
    return strategy.plan(
        EpochContext(shards, batch_size=10, iterations=MESSAGES, epoch=1, rng=rng)
    )


def plan_with_one_partner(shape: NamespaceShape, seed: int) -> ExchangePlan:
    """Plan the exchange of `MESSAGES` samples a host with one partner, drawn by
    `random_pairs` with ``seed``. A host without a partner keeps its samples.
    """
    plan = plan_partial_shuffle(shape, seed)
    pairs = random_pairs(shape, 1, seed)
    partner = np.arange(shape.hosts)
    partner[pairs.src] = pairs.dst
    return replace(plan, target=np.broadcast_to(partner, plan.target.shape))


def flows_of_plan(
    plan: ExchangePlan, nbytes: int, *, barrier: bool
) -> NamespacePattern:
    """Return the flows of a plan, a message for each sample of ``nbytes``; a sample
    that its host keeps is no flow.

    A host goes on when its own message has been sent and the one for it has come; with
    ``barrier`` when all have.
    """
    # row: a step; column: the sending host; value: the receiving host
    rows = plan.target.tolist()
    steps = [[(src, dst) for src, dst in enumerate(row) if src != dst] for row in rows]
    flows = flows_of_steps(steps, nbytes, barrier=barrier)
    if barrier:
        return flows
    # the flows of each host in the last step that it was part of
    last_flows_of_host: dict[int, list[int]] = {}
    for step in range(len(steps)):
        flows_of_host: dict[int, list[int]] = {}
        for flow in (flow for flow in range(len(flows)) if flows.step[flow] == step):
            hosts = (flows.src[flow], flows.dst[flow])
            last_flows = (last_flows_of_host.get(host, []) for host in hosts)
            flows.predecessors[flow].extend(
                dict.fromkeys(chain.from_iterable(last_flows))
            )
            for host in hosts:
                flows_of_host.setdefault(host, []).append(flow)
        last_flows_of_host |= flows_of_host
    return flows


PATTERNS: dict[str, Callable[[NamespaceShape, int, int], NamespacePattern]] = {
    "single_short": lambda shape, n, seed: flows_of_steps(
        [[(0, shape.hosts_per_leaf)]], n // 4
    ),
    "single": lambda shape, n, seed: flows_of_steps([[(0, shape.hosts_per_leaf)]], n),
    "opposite": lambda shape, n, seed: flows_in_both_directions(
        [(0, shape.hosts_per_leaf)], n
    ),
    "incast": incast,
    "incast_victim": incast_with_victim,
    "pairs_inside": pairs_inside_leaf,
    "pairs_across": pairs_across_leaves,
    "pairs_random": random_pairs,
    "all_to_all": all_to_all,
    "random_permutations": random_permutations,
    "ring_allreduce": lambda shape, n, seed: ring_flows(list(range(shape.hosts)), n),
    "ring_scattered": scattered_ring_flows,
    "gloo_partial": lambda shape, n, seed: flows_of_plan(
        plan_partial_shuffle(shape, seed), n // MESSAGES, barrier=True
    ),
    "gloo_pairs": lambda shape, n, seed: flows_of_plan(
        plan_with_one_partner(shape, seed), n // MESSAGES, barrier=False
    ),
}
"""Every pattern: (shape, bytes that a host sends, seed) -> flows. Patterns that draw
nothing ignore the seed.
"""
