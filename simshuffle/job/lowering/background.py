"""Turn the traffic of other jobs into transfers: endless flows, bursts, and periodic
writes.
"""

from __future__ import annotations

import numpy as np

from simshuffle.fabric.network.batch import TransferBatch, tasks
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.background import (
    OnOff,
    PeriodicWrites,
    Permutation,
    Uniform,
)
from simshuffle.spec.arrays import Floats, Ints, Ints32

ENDLESS = 1e18
"""Bytes of a flow that never ends: three years of a link of 10 GB/s."""
BURSTS = 64
"""Bursts of a host that are posted at once."""


def steady(
    record: Uniform | Permutation, resources: Resources, rng: np.random.Generator
) -> TransferBatch:
    """Return endless flows of hosts, one from each HCA to the partner's HCA.

    Each flow has `ENDLESS` bytes. The flows of an HCA share the record's load of its
    first link: they may use no more of its bandwidth together. ``rng`` draws the
    partners. A host has as many partners as the record says, at most all others; in a
    permutation one, and no host is the partner of two.
    """
    count = len(record.named_hosts or ())
    if isinstance(record, Permutation):
        order = rng.permutation(
            count
        )  # each sends to the next one, so nobody to itself
        partners = np.empty((count, 1), np.int64)
        partners[order, 0] = np.roll(order, -1)
    else:
        partners_per_host = min(record.partners, count - 1)
        partner_draws = [
            rng.choice(count - 1, partners_per_host, replace=False)
            for _ in range(count)
        ]
        partners = np.array(partner_draws).reshape(count, partners_per_host)
        partners += partners >= np.arange(count)[:, None]  # all but itself
    src = np.repeat(np.arange(count), partners.shape[1])
    routes, latency, rate = _flows(record, resources, src, partners.ravel())
    columns = tasks(len(routes), work=ENDLESS, nbytes=ENDLESS, delay=latency)
    columns["cap"] = rate / partners.shape[1]
    return TransferBatch(columns, routes)


def bursts(
    record: OnOff, resources: Resources, host: int, rng: np.random.Generator
) -> TransferBatch:
    """Return the next `BURSTS` bursts of host number ``host``.

    ``rng`` draws the receiver, the length and the silence before each burst. A burst
    has the bytes that it would send in its time alone, one flow for each HCA. It begins,
    after its silence, when all flows of the burst before have ended.

    Args:
        record: says load, hosts (at least two), and the mean seconds of a burst and of
            the silence, both exponential.
        resources: the machine.
        host: index of the sender in ``record.named_hosts``.
        rng: draws `BURSTS` values each.
    """
    count = len(record.named_hosts or ())
    hcas = resources.cluster.host.hcas
    partners = rng.integers(count - 1, size=BURSTS)
    partners += partners >= host
    routes, latency, rate = _flows(record, resources, np.full(BURSTS, host), partners)
    burst_seconds = np.repeat(rng.exponential(record.on, BURSTS), hcas)
    silent_seconds = np.repeat(rng.exponential(record.off, BURSTS), hcas)
    columns = tasks(
        len(routes),
        work=rate * burst_seconds,
        nbytes=rate * burst_seconds,
        cap=rate,
        delay=silent_seconds + latency,
    )
    # every flow of a burst after every one of the burst before
    flow_index = np.arange(len(routes), dtype=np.int32).reshape(BURSTS, hcas)
    earlier_flow = np.repeat(flow_index[:-1], hcas, axis=1).ravel()
    later_flow = np.tile(flow_index[1:], (1, hcas)).ravel()
    return TransferBatch(columns, routes, earlier_flow, later_flow)


def writes(record: PeriodicWrites, resources: Resources) -> TransferBatch:
    """Return the writes to the PFS of all hosts of the record at one time:
    ``record.nbytes`` of each host, an equal part through each HCA.
    """
    routes, latency, cap = resources.write_routes(record.named_hosts or ())
    nbytes = record.nbytes / resources.cluster.host.hcas
    return TransferBatch(
        tasks(len(routes), work=nbytes, nbytes=nbytes, cap=cap, delay=latency), routes
    )


def _flows(
    record: Uniform | Permutation | OnOff, resources: Resources, src: Ints, dst: Ints
) -> tuple[Ints32, Floats, Floats]:
    """Route flows between hosts, from each HCA of host ``src`` to the corresponding one
    of ``dst``.

    Args:
        record: names the hosts and the load.
        resources: the machine.
        src: (pairs,) index of each sender in ``record.named_hosts``.
        dst: (pairs,) index of each receiver there.

    Returns:
        For n = pairs x HCAs flows, pair by pair: (n, width) routes padded with -1; the
        latencies, (n,) s; and the share of the first link's bandwidth that each flow
        may use, (n,) bytes/s.
    """
    ports = resources.ports_of(record.named_hosts or ())
    routes, latency = resources.port_routes(ports[src].ravel(), ports[dst].ravel())
    return routes, latency, record.load * resources.links.capacity[routes[:, 0]]
