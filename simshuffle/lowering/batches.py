"""Transfers of an allreduce, and some of the transfers of a batch."""

from __future__ import annotations

import numpy as np

from simshuffle.allreduce import AllreduceFlows
from simshuffle.network.batch import NONE, TransferBatch, tasks
from simshuffle.plan.resources import Resources
from simshuffle.spec.arrays import Ints


def transfers_of(flows: AllreduceFlows, resources: Resources, count: int = 1) -> TransferBatch:
    """Flows between ranks as transfers, each as long as ``count`` of it one after the other."""
    work = flows.nbytes * count
    records = tasks(len(flows), work=work, nbytes=work, cap=flows.cap, delay=flows.delays * count)
    routes = resources.gradient(flows.src, flows.dst, flows.rail)
    return TransferBatch(records, routes, flows.edge_from, flows.edge_to)


def selected(batch: TransferBatch, order: Ints) -> TransferBatch:
    """The transfers of these numbers, in this order, which wait for others of them alone."""
    number = np.full(len(batch), NONE, np.int32)
    number[order] = np.arange(len(order))
    ends = number[batch.edge_from], number[batch.edge_to]
    kept = (ends[0] != NONE) & (ends[1] != NONE)
    return TransferBatch(batch.tasks[order], batch.routes[order], ends[0][kept], ends[1][kept])
