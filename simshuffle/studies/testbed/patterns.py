"""The exchange patterns that are both measured and simulated: who sends how much to whom, and what
each flow waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from simshuffle.exchange import EpochContext, ExchangePlan, PartialLocalShuffle, initial_owner
from simshuffle.studies.testbed.network import LeafSpine

Pair = tuple[int, int]
MESSAGES = 8
"""Samples that every host sends by torch.distributed."""
EXCHANGE_FRACTION = 0.1
"""Q of that exchange."""


@dataclass(frozen=True)
class Pattern:
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


def of_steps(steps: list[list[Pair]], nbytes: int, *, barrier: bool = True) -> Pattern:
    """Flows of ``nbytes`` each; with ``barrier`` a step waits for all of the one before."""
    flat = [(src, dst, number) for number, pairs in enumerate(steps) for src, dst in pairs]
    src, dst, step = ([entry[k] for entry in flat] for k in range(3))
    return Pattern(src, dst, [nbytes] * len(flat), step, [[] for _ in flat], barrier)


def _both_ways(pairs: list[Pair]) -> list[Pair]:
    return [way for a, b in pairs for way in ((a, b), (b, a))]


def _single(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    return of_steps([[(0, testbed.shape.hosts_per_leaf)]], nbytes)


def _single_short(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    return _single(testbed, nbytes // 4, seed)


def _opposite(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    return of_steps([_both_ways([(0, testbed.shape.hosts_per_leaf)])], nbytes)


def _incast(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    senders = range(1, testbed.shape.hosts)
    return of_steps([[(host, 0) for host in senders]], 2 * nbytes // len(senders))


def _incast_victim(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    """The last host also sends to host 1, where nobody else does."""
    incast = _incast(testbed, nbytes, seed)
    pairs = [*zip(incast.src, incast.dst, strict=True), (testbed.shape.hosts - 1, 1)]
    return replace(of_steps([pairs], nbytes), nbytes=[*incast.nbytes, nbytes])


def _pairs_inside(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    hosts, per_leaf = testbed.shape.hosts, testbed.shape.hosts_per_leaf
    starts = [leaf + k for leaf in range(0, hosts, per_leaf) for k in range(0, per_leaf - 1, 2)]
    return of_steps([_both_ways([(host, host + 1) for host in starts])], nbytes)


def _pairs_across(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    per_leaf = testbed.shape.hosts_per_leaf
    hosts = range(testbed.shape.leaves // 2 * 2 * per_leaf)
    pairs = [(host, host + per_leaf) for host in hosts if not testbed.leaf(host) % 2]
    return of_steps([_both_ways(pairs)], nbytes)


def _pairs_random(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    order = np.random.default_rng((seed, 1)).permutation(testbed.shape.hosts).tolist()
    return of_steps([_both_ways(list(zip(order[0::2], order[1::2], strict=False)))], nbytes)


def _all_to_all(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    hosts = testbed.shape.hosts
    pairs = [(src, (src + k) % hosts) for src in range(hosts) for k in range(1, hosts)]
    return of_steps([pairs], nbytes // (hosts - 1))


def _random_permutations(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    """As many steps as there are other hosts; in each a random permutation in which none keeps its
    own."""
    rng, hosts = np.random.default_rng((seed, 2)), testbed.shape.hosts
    steps: list[list[Pair]] = []
    while len(steps) < hosts - 1:
        drawn = rng.permutation(hosts).tolist()
        if all(src != dst for src, dst in enumerate(drawn)):
            steps.append(list(enumerate(drawn)))
    return of_steps(steps, nbytes // (hosts - 1))


def ring(order: list[int], nbytes: int) -> Pattern:
    """Ring allreduce over ``order``: 2 (M - 1) steps in which every host sends to the next what it
    has got in the step before.

    ``nbytes`` is what each host sends in all (Patarasuk & Yuan, JPDC 2009: 2 (M - 1)/M of the size
    of the gradient).
    """
    hosts = len(order)
    steps = [list(zip(order, [*order[1:], order[0]], strict=True))] * (2 * (hosts - 1))
    flows = of_steps(steps, nbytes // len(steps), barrier=False)
    for k in range(hosts, len(flows)):
        flows.after[k].append((k // hosts - 1) * hosts + (k - 1) % hosts)
    return flows


def _ring_allreduce(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    return ring(list(range(testbed.shape.hosts)), nbytes)


def _ring_scattered(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    """A ring that leaves its leaf at every hop."""
    hosts, per_leaf = testbed.shape.hosts, testbed.shape.hosts_per_leaf
    return ring([host for k in range(per_leaf) for host in range(k, hosts, per_leaf)], nbytes)


# -------------------------------------------------------------------------------- torch.distributed


def partial_plan(testbed: LeafSpine, seed: int) -> ExchangePlan:
    """`MESSAGES` samples a host of a partial local shuffle, a random permutation each."""
    rng, hosts = np.random.default_rng((seed, 3)), testbed.shape.hosts
    q = EXCHANGE_FRACTION
    strategy = PartialLocalShuffle(kind="partial_local_shuffle", exchange_fraction=q)
    owner = initial_owner(round(MESSAGES / q) * hosts, hosts, rng)
    shards = strategy.shards(owner, hosts, rng)
    return strategy.plan(EpochContext(shards, batch_size=10, iterations=MESSAGES, epoch=1, rng=rng))


def pairs_plan(testbed: LeafSpine, seed: int) -> ExchangePlan:
    """The same samples, exchanged with one partner: that of ``pairs_random``."""
    drawn, pairs = partial_plan(testbed, seed), _pairs_random(testbed, 1, seed)
    partner = np.arange(testbed.shape.hosts)
    partner[pairs.src] = pairs.dst
    return replace(drawn, target=np.broadcast_to(partner, drawn.target.shape))


def of_plan(plan: ExchangePlan, nbytes: int, *, barrier: bool) -> Pattern:
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


def _gloo_partial(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    return of_plan(partial_plan(testbed, seed), nbytes // MESSAGES, barrier=True)


def _gloo_pairs(testbed: LeafSpine, nbytes: int, seed: int) -> Pattern:
    return of_plan(pairs_plan(testbed, seed), nbytes // MESSAGES, barrier=False)


PATTERNS: dict[str, Callable[[LeafSpine, int, int], Pattern]] = {
    "single_short": _single_short,
    "single": _single,
    "opposite": _opposite,
    "incast": _incast,
    "incast_victim": _incast_victim,
    "pairs_inside": _pairs_inside,
    "pairs_across": _pairs_across,
    "pairs_random": _pairs_random,
    "all_to_all": _all_to_all,
    "random_permutations": _random_permutations,
    "ring_allreduce": _ring_allreduce,
    "ring_scattered": _ring_scattered,
    "gloo_partial": _gloo_partial,
    "gloo_pairs": _gloo_pairs,
}
"""Every pattern: (testbed, bytes that a host sends, seed) -> flows."""

FIT = ("single_short", "single")
"""The patterns that the protocol's overhead is fitted on; all others are predicted."""

GLOO: dict[str, Callable[[LeafSpine, int], ExchangePlan]] = {
    "gloo_partial": partial_plan,
    "gloo_pairs": pairs_plan,
}
"""Patterns that torch.distributed carries out, with the plan that they follow: (testbed, seed) ->
plan."""

QUICK = (*FIT, "opposite", "incast", "pairs_inside", "pairs_across", "all_to_all")
"""The patterns of a quick run."""

QUESTIONS = (
    ("all_to_all", "pairs_random"),
    ("all_to_all", "random_permutations"),
    ("all_to_all", "pairs_across"),
    ("pairs_inside", "pairs_across"),
    ("pairs_inside", "all_to_all"),
    ("ring_allreduce", "ring_scattered"),
    ("gloo_partial", "gloo_pairs"),
)
"""Pairs of patterns in which every host sends the same bytes: which of the two is faster?"""
