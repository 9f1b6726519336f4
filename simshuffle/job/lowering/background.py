"""The traffic of others as transfers: flows that never end, bursts one after the other, writes."""

from __future__ import annotations

import numpy as np

from simshuffle.fabric.network.batch import TransferBatch, tasks
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.background import OnOff, PeriodicWrites, Permutation, Uniform
from simshuffle.spec.arrays import Floats, Ints, Ints32

ENDLESS = 1e18
"""Bytes of a flow that never ends: three years of a link of 10 GB/s."""
BURSTS = 64
"""Bursts of a host that are posted at once."""


def steady(
    record: Uniform | Permutation, resources: Resources, rng: np.random.Generator
) -> TransferBatch:
    """Flows of hosts that send all the time, one from each HCA to each partner, no faster than the
    record says; ``rng`` draws the partners."""
    count = len(record.named or ())
    if isinstance(record, Permutation):
        order = rng.permutation(count)  # each sends to the next one, so nobody to itself
        partners = np.empty((count, 1), np.int64)
        partners[order, 0] = np.roll(order, -1)
    else:
        each = min(record.partners, count - 1)
        drawn = [rng.choice(count - 1, each, replace=False) for _ in range(count)]
        partners = np.array(drawn).reshape(count, each)
        partners += partners >= np.arange(count)[:, None]  # all but itself
    src = np.repeat(np.arange(count), partners.shape[1])
    routes, latency, rate = _flows(record, resources, src, partners.ravel())
    columns = tasks(len(routes), work=ENDLESS, nbytes=ENDLESS, delay=latency)
    columns["cap"] = rate / partners.shape[1]
    return TransferBatch(columns, routes)


def bursts(
    record: OnOff, resources: Resources, host: int, rng: np.random.Generator
) -> TransferBatch:
    """The next `BURSTS` of the host of that number, each to another that is drawn, after a silence.
    A burst has the bytes that it sends in its time if nobody slows it down."""
    count, hcas = len(record.named or ()), resources.cluster.host.hcas
    partners = rng.integers(count - 1, size=BURSTS)
    partners += partners >= host
    routes, latency, rate = _flows(record, resources, np.full(BURSTS, host), partners)
    on = np.repeat(rng.exponential(record.on, BURSTS), hcas)
    off = np.repeat(rng.exponential(record.off, BURSTS), hcas)
    columns = tasks(len(routes), work=rate * on, nbytes=rate * on, cap=rate, delay=off + latency)
    # every flow of a burst after every one of the burst before
    number = np.arange(len(routes), dtype=np.int32).reshape(BURSTS, hcas)
    before = np.repeat(number[:-1], hcas, axis=1).ravel()
    after = np.tile(number[1:], (1, hcas)).ravel()
    return TransferBatch(columns, routes, before, after)


def writes(record: PeriodicWrites, resources: Resources) -> TransferBatch:
    """What all hosts write at one time, an equal part through each HCA."""
    routes, latency, most = resources.writes(record.named or ())
    nbytes = record.nbytes / resources.cluster.host.hcas
    return TransferBatch(
        tasks(len(routes), work=nbytes, nbytes=nbytes, cap=most, delay=latency), routes
    )


def _flows(
    record: Uniform | Permutation | OnOff, resources: Resources, src: Ints, dst: Ints
) -> tuple[Ints32, Floats, Floats]:
    """Flows between hosts by number, one from each HCA to the same one there: routes, latencies
    (n,) s, and the share of the first link's bandwidth that they ask for, (n,) bytes/s."""
    ports = resources.ports_of(record.named or ())
    routes, latency = resources.between(ports[src].ravel(), ports[dst].ravel())
    return routes, latency, record.load * resources.links.capacity[routes[:, 0]]
