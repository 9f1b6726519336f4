"""Measuring importance: an inference pass over the shard, and the all-gather of what the ranks are
paired by."""

from __future__ import annotations

import math

import numpy as np

from simshuffle.plan.epochs import EpochPlan
from simshuffle.plan.resources import Resources
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.clock import NetworkClock
from simshuffle.sim.loader import Loaders, lognormal_factor

GATHERED = 8.0
"""Bytes of an importance on the wire: one double (github.com/TruongThaoNguyen/kakurenbo, 15eb317,
ImportancePairScheduler)."""


def inference_loaders(
    scenario: Scenario, resources: Resources, clock: NetworkClock, plan: EpochPlan
) -> Loaders | None:
    """The loaders of the pass; None if importance is not measured."""
    if plan.inference is None:
        return None
    return Loaders(
        scenario,
        resources,
        clock,
        plan.inference,
        scenario.rng("inference_read_jitter", plan.epoch),
    )


def inference_seconds(scenario: Scenario, plan: EpochPlan) -> list[list[float]]:
    """Seconds of the accelerator for each batch of the pass: a list for every rank."""
    if plan.inference is None:
        return [[] for _ in range(scenario.world_size)]
    workload, samples = scenario.workload, plan.inference.samples
    times = workload.model.accelerators[scenario.cluster.host.accelerator]
    jitter = lognormal_factor(
        scenario.rng("inference_compute_jitter", plan.epoch), workload.jitter.compute, samples.shape
    )
    per_sample = times.forward if times.inference is None else times.inference
    seconds: list[list[float]] = (samples * per_sample * jitter).T.tolist()
    return seconds


def gather_seconds(scenario: Scenario, resources: Resources) -> float | None:
    """Seconds of the all-gather of importances once all ranks are there; None where partners do not
    depend on them.

    Recursive doubling takes ceil(log2 M) messages, and every rank receives (M - 1) times what one
    contributes (Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19, 2005,
    section 4.1). A rank contributes one importance if partners stay for the epoch, else those of
    all its samples, from which the others can tell what is left of them later.
    """
    schedule = scenario.workload.exchange.carried_out
    if schedule is None or schedule.partner_rule != "importance_sorted" or scenario.world_size == 1:
        return None
    world_size = scenario.world_size
    once = schedule.partner_lifetime == "epoch" and schedule.partners_per_epoch == 1
    each = 1.0 if once else scenario.workload.dataset.num_samples / world_size
    received = (world_size - 1) * each * GATHERED
    return math.ceil(
        math.log2(world_size)
    ) * scenario.cluster.message_passing.latency + received / _share_of_a_rank(resources)


def _share_of_a_rank(resources: Resources) -> float:
    """Bytes a second that a rank gets when all of its host send: of the HCA that they share, or of
    the memory if there is one host."""
    route, _ = resources.message(np.array([0]), np.array([resources.world_size - 1]))
    shared_by = resources.ranks_per_host / (
        resources.cluster.host.hcas if resources.num_hosts > 1 else 1
    )
    return float(resources.links.capacity[route[0, 0]]) / shared_by
