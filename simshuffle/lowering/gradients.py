"""The allreduce of the gradients: its flows as transfers, and the gathering of small values."""

from __future__ import annotations

import math

import numpy as np

from simshuffle.allreduce import Allreduce
from simshuffle.network.batch import TransferBatch, tasks
from simshuffle.plan.resources import Resources

IMPORTANCE_NBYTES = 8.0
"""Bytes of an importance on the wire: one double (github.com/TruongThaoNguyen/kakurenbo, 15eb317,
ImportancePairScheduler)."""


def gradient_batch(
    allreduce: Allreduce, gradient_size: float, resources: Resources
) -> TransferBatch | None:
    """The flows of one allreduce of ``gradient_size`` bytes, which start together; None for one
    rank."""
    flows = allreduce.flows(resources.host_of, gradient_size)
    if flows is None:
        return None
    records = tasks(
        len(flows.src), work=flows.nbytes, nbytes=flows.nbytes, cap=flows.cap, delay=flows.latency
    )
    return TransferBatch(records, resources.gradient(flows.src, flows.dst, flows.rail))


def gather_seconds(importances: float, resources: Resources) -> float | None:
    """Seconds of the all-gather of so many ``importances`` of each rank, once all ranks are there;
    None if there is nothing to gather.

    Recursive doubling takes ceil(log2 M) messages, and every rank receives (M - 1) times what one
    contributes (Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19, 2005,
    section 4.1).
    """
    world_size = resources.world_size
    if importances == 0.0 or world_size == 1:
        return None
    received = (world_size - 1) * importances * IMPORTANCE_NBYTES
    latency = resources.cluster.message_passing.latency
    return math.ceil(math.log2(world_size)) * latency + received / _share_of_a_rank(resources)


def _share_of_a_rank(resources: Resources) -> float:
    """Bytes a second that a rank gets when all of its host send: of the HCA that they share, or of
    the memory if there is one host."""
    route, _ = resources.message(np.array([0]), np.array([resources.world_size - 1]))
    shared_by = resources.ranks_per_host / (
        resources.cluster.host.hcas if resources.num_hosts > 1 else 1
    )
    return float(resources.links.capacity[route[0, 0]]) / shared_by
