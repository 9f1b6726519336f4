"""The exchange patterns of a testbed of network namespaces: who sends how much to whom, and what
each flow waits for. `plugins/testbed` measures them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from simshuffle.workload.exchange import (
    EpochContext,
    ExchangePlan,
    PartialLocalShuffle,
    initial_owner,
)

Pair = tuple[int, int]
MESSAGES = 8
"""Samples that every host sends by torch.distributed."""
EXCHANGE_FRACTION = 0.1
"""Q of that exchange."""


@dataclass(frozen=True)
class NamespaceShape:
    """What a testbed is made of."""

    leaves: int = 2  # leaf switches
    hosts_per_leaf: int = 4  # hosts below each, at least 2
    spines: int = 2  # switches above, each with one link to every leaf; at most ``hosts_per_leaf``
    rate: float = 5e6  # bytes/s that every link is shaped to, headers included, in each direction

    @property
    def hosts(self) -> int:
        """Hosts in all."""
        return self.leaves * self.hosts_per_leaf


@dataclass(frozen=True)
class NamespacePattern:
    """Flows in steps."""

    # src, dst: (flows,) hosts
    src: list[int]
    dst: list[int]
    nbytes: list[int]  # (flows,) whole bytes
    step: list[int]  # (flows,) int, not decreasing
    # (flows,) the flows that must have ended before it starts; its sender or receiver knows all of
    # them
    after: list[list[int]]
    # whether no flow of a step starts before all of the step before have arrived
    barrier: bool = False

    def __len__(self) -> int:
        return len(self.src)


def of_steps(steps: list[list[Pair]], nbytes: int, *, barrier: bool = True) -> NamespacePattern:
    """Flows of ``nbytes`` each; with ``barrier`` a step waits for all of the one before."""
    flat = [(src, dst, number) for number, pairs in enumerate(steps) for src, dst in pairs]
    src, dst, step = ([entry[k] for entry in flat] for k in range(3))
    return NamespacePattern(src, dst, [nbytes] * len(flat), step, [[] for _ in flat], barrier)


def _both_ways(pairs: list[Pair], nbytes: int) -> NamespacePattern:
    return of_steps([[way for a, b in pairs for way in ((a, b), (b, a))]], nbytes)


def _incast(of: NamespaceShape, nbytes: int, seed: int) -> NamespacePattern:
    senders = range(1, of.hosts)
    return of_steps([[(host, 0) for host in senders]], 2 * nbytes // len(senders))


def _incast_victim(of: NamespaceShape, nbytes: int, seed: int) -> NamespacePattern:
    """The last host also sends to host 1, where nobody else does."""
    incast = _incast(of, nbytes, seed)
    pairs = [*zip(incast.src, incast.dst, strict=True), (of.hosts - 1, 1)]
    return replace(of_steps([pairs], nbytes), nbytes=[*incast.nbytes, nbytes])


def _pairs_inside(of: NamespaceShape, nbytes: int, seed: int) -> NamespacePattern:
    per_leaf = of.hosts_per_leaf
    starts = [leaf + k for leaf in range(0, of.hosts, per_leaf) for k in range(0, per_leaf - 1, 2)]
    return _both_ways([(host, host + 1) for host in starts], nbytes)


def _pairs_across(of: NamespaceShape, nbytes: int, seed: int) -> NamespacePattern:
    per_leaf = of.hosts_per_leaf
    hosts = range(of.leaves // 2 * 2 * per_leaf)
    return _both_ways([(h, h + per_leaf) for h in hosts if not h // per_leaf % 2], nbytes)


def _pairs_random(of: NamespaceShape, nbytes: int, seed: int) -> NamespacePattern:
    order = np.random.default_rng((seed, 1)).permutation(of.hosts).tolist()
    return _both_ways(list(zip(order[0::2], order[1::2], strict=False)), nbytes)


def _all_to_all(of: NamespaceShape, nbytes: int, seed: int) -> NamespacePattern:
    hosts = of.hosts
    pairs = [(src, (src + k) % hosts) for src in range(hosts) for k in range(1, hosts)]
    return of_steps([pairs], nbytes // (hosts - 1))


def _random_permutations(of: NamespaceShape, nbytes: int, seed: int) -> NamespacePattern:
    """As many steps as there are other hosts; in each a random permutation in which none keeps its
    own."""
    rng, hosts = np.random.default_rng((seed, 2)), of.hosts
    steps: list[list[Pair]] = []
    while len(steps) < hosts - 1:
        drawn = rng.permutation(hosts).tolist()
        if all(src != dst for src, dst in enumerate(drawn)):
            steps.append(list(enumerate(drawn)))
    return of_steps(steps, nbytes // (hosts - 1))


def ring(order: list[int], nbytes: int) -> NamespacePattern:
    """Ring allreduce over ``order``: 2 (M - 1) steps in which every host sends to the next what it
    has got in the step before.

    ``nbytes`` is what each host sends in all (Patarasuk & Yuan, JPDC 2009: 2 (M - 1)/M of the size
    of the gradient).
    """
    hosts = len(order)
    steps = [list(zip(order, [*order[1:], order[0]], strict=True))] * (2 * (hosts - 1))
    flows = of_steps(steps, nbytes // len(steps), barrier=False)
    for k in range(hosts, len(flows)):
        # what the host before it in the ring sent in the step before
        flows.after[k].append((k // hosts - 1) * hosts + (k - 1) % hosts)
    return flows


def _ring_scattered(of: NamespaceShape, nbytes: int, seed: int) -> NamespacePattern:
    """A ring that leaves its leaf at every hop."""
    per_leaf = of.hosts_per_leaf
    return ring([host for k in range(per_leaf) for host in range(k, of.hosts, per_leaf)], nbytes)


# -------------------------------------------------------------------------------- torch.distributed


def partial_plan(of: NamespaceShape, seed: int) -> ExchangePlan:
    """`MESSAGES` samples a host of a partial local shuffle, a random permutation each."""
    rng, hosts, q = np.random.default_rng((seed, 3)), of.hosts, EXCHANGE_FRACTION
    strategy = PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=q)
    owner = initial_owner(round(MESSAGES / q) * hosts, hosts, rng)
    shards = strategy.shards(owner, hosts, rng)
    return strategy.plan(EpochContext(shards, batch_size=10, iterations=MESSAGES, epoch=1, rng=rng))


def pairs_plan(of: NamespaceShape, seed: int) -> ExchangePlan:
    """The same samples, exchanged with one partner: that of ``pairs_random``."""
    drawn, pairs = partial_plan(of, seed), _pairs_random(of, 1, seed)
    partner = np.arange(of.hosts)
    partner[pairs.src] = pairs.dst
    return replace(drawn, target=np.broadcast_to(partner, drawn.target.shape))


def of_plan(plan: ExchangePlan, nbytes: int, *, barrier: bool) -> NamespacePattern:
    """The flows of a plan, a message for each sample of ``nbytes``.

    A host goes on when its own message has been sent and the one for it has come; with ``barrier``
    when all have.
    """
    rows = plan.target.tolist()
    steps = [[(src, dst) for src, dst in enumerate(row) if src != dst] for row in rows]
    flows = of_steps(steps, nbytes, barrier=barrier)
    if barrier:
        return flows
    last: dict[int, list[int]] = {}  # the flows of each host in the last step that it was part of
    for step in range(len(steps)):
        now: dict[int, list[int]] = {}
        for flow in (flow for flow in range(len(flows)) if flows.step[flow] == step):
            ends = (flows.src[flow], flows.dst[flow])
            flows.after[flow].extend(dict.fromkeys(f for end in ends for f in last.get(end, [])))
            for end in ends:
                now.setdefault(end, []).append(flow)
        last |= now
    return flows


PATTERNS: dict[str, Callable[[NamespaceShape, int, int], NamespacePattern]] = {
    "single_short": lambda of, n, seed: of_steps([[(0, of.hosts_per_leaf)]], n // 4),
    "single": lambda of, n, seed: of_steps([[(0, of.hosts_per_leaf)]], n),
    "opposite": lambda of, n, seed: _both_ways([(0, of.hosts_per_leaf)], n),
    "incast": _incast,
    "incast_victim": _incast_victim,
    "pairs_inside": _pairs_inside,
    "pairs_across": _pairs_across,
    "pairs_random": _pairs_random,
    "all_to_all": _all_to_all,
    "random_permutations": _random_permutations,
    "ring_allreduce": lambda of, n, seed: ring(list(range(of.hosts)), n),
    "ring_scattered": _ring_scattered,
    "gloo_partial": lambda of, n, seed: of_plan(
        partial_plan(of, seed), n // MESSAGES, barrier=True
    ),
    "gloo_pairs": lambda of, n, seed: of_plan(pairs_plan(of, seed), n // MESSAGES, barrier=False),
}
"""Every pattern: (shape, bytes that a host sends, seed) -> flows."""
