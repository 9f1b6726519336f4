"""How many packets a run has, before it is simulated."""

from __future__ import annotations

import math

import numpy as np

from simshuffle.allreduce import Allreduce
from simshuffle.errors import Problem, ScenarioError
from simshuffle.exchange.schedule import epoch_quota
from simshuffle.network import Packet
from simshuffle.plan.epochs import cached_share
from simshuffle.plan.host_work import payload_nbytes
from simshuffle.scenario.scenario import Scenario
from simshuffle.spec.arrays import Ints32
from simshuffle.spec.units import Dimension, readable

MOST_PACKETS = 1e9
"""Packets of a run beyond which it is refused: one core moves 1 to 2 million a second over 4 to 6
cables each."""


def expected_packets(scenario: Scenario, mtu: float) -> dict[str, float]:
    """Packets of ``mtu`` bytes that cross cables in a run, about: of 'gradients', 'exchange' and
    'reads' from the PFS."""
    workload, world_size, cluster = scenario.workload, scenario.world_size, scenario.cluster
    dataset, epochs = workload.dataset, range(1, scenario.epochs + 1)
    out = dict.fromkeys(("gradients", "exchange", "reads"), 0.0)
    domain_of, domains = cluster.domain_of(world_size), cluster.domains_for(world_size)
    allreduce = workload.allreduce_on(cluster)
    of_one = allreduce_packets(allreduce, domain_of, workload.model.gradient_size, mtu)
    out["gradients"] = of_one * workload.iterations(world_size) * scenario.epochs
    schedule, fraction = workload.exchange.exchange_schedule, workload.exchange.fraction
    if schedule is not None and fraction is not None:
        size = payload_nbytes(schedule, dataset)
        samples = world_size * sum(
            epoch_quota(fraction, dataset.num_samples, world_size, epoch) for epoch in epochs
        )
        out["exchange"] = samples * (1 - 1 / domains) * math.ceil(size / mtu)
    if workload.exchange.tier == "pfs":
        missed = sum(1 - cached_share(scenario, epoch) for epoch in epochs)
        out["reads"] = missed * dataset.nbytes / mtu
    return out


def allreduce_packets(allreduce: Allreduce, domain_of: Ints32, nbytes: float, mtu: float) -> float:
    """Packets of ``mtu`` bytes in an allreduce of ``nbytes`` bytes over ranks in scale-up domains,
    or on hosts, ``domain_of``, (M,)."""
    flows = allreduce.flows(domain_of, nbytes)
    if flows is None:
        return 0.0
    far = domain_of[flows.src] != domain_of[flows.dst]
    return float(np.ceil(flows.nbytes[far] / mtu).sum())


def check_size(scenario: Scenario) -> None:
    """See that a run that is to be simulated packet by packet has at most `MOST_PACKETS`.

    Raises:
        ScenarioError: it has more.
    """
    if not isinstance(scenario.network, Packet):
        return
    mtu = scenario.network.mtu
    packets = expected_packets(scenario, mtu)
    total = sum(packets.values())
    if total > MOST_PACKETS:
        parts = ", ".join(f"{count:.1e} of {name}" for name, count in packets.items() if count)
        rule = (
            f"a run packet by packet must have at most {MOST_PACKETS:.0e} packets; this one has"
            f" about {total:.1e} ({parts})"
        )
        remedy = (
            "Use fewer epochs, a larger local_batch_size, larger network.mtu and"
            " network.port_buffer, or network.kind: fluid."
        )
        raise ScenarioError(
            Problem(
                "network.kind",
                rule,
                f"'packet' with network.mtu = {readable(mtu, Dimension.NBYTES)}",
                remedy,
            ),
            scenario.name,
        )
