"""What an exchange moves and takes: bytes and seconds of every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simshuffle.exchange import ExchangePlan, MessageSchedule
from simshuffle.plan.host_work import host_work, payload_nbytes
from simshuffle.scenario.workload import Dataset
from simshuffle.spec.arrays import Flags, Floats


@dataclass(frozen=True)
class ExchangeCosts:
    """What each step and each iteration of an epoch's exchange moves and takes."""

    plan: ExchangePlan
    # (steps, M) bytes of the sample that a rank sends, in storage and on the wire; 0 where it keeps
    # it
    stored: Floats
    wire: Floats
    cached: Flags  # (steps, M) whether it is read from memory
    work: Floats  # (steps, M) s of the sender's main thread, without drawing partners
    draw: Floats  # (steps,) s of every rank to draw partners before the step
    sent: Floats  # (iterations, M) bytes that leave each rank
    received: Floats  # (iterations, M) bytes that each rank stores
    received_work: Floats  # (iterations, M) s of its main thread for that
    remove: Floats  # (M,) s at the end of the epoch, to remove what was sent

    @property
    def read_memory(self) -> float:
        """Bytes that all senders read from memory."""
        return float((self.stored * self.cached).sum())

    @property
    def read_ssd(self) -> float:
        """Bytes that they read from SSDs."""
        return float(self.stored.sum()) - self.read_memory

    @property
    def read_requests(self) -> int:
        """Samples that they read from SSDs, one request each."""
        return int(np.count_nonzero(self.plan.moving & ~self.cached))


def exchange_costs(
    plan: ExchangePlan,
    schedule: MessageSchedule,
    dataset: Dataset,
    nbytes: Floats,
    cached: Flags,
    iterations: int,
) -> ExchangeCosts:
    """Bytes and seconds of an exchange of ``iterations`` iterations. Work on a sample is in
    proportion to its size: ``nbytes`` are (N,) bytes of every sample in storage. ``cached`` is
    (steps, M) whether the sample of a step is in memory when it is sent."""
    moving, work = plan.moving, host_work(schedule, dataset)
    stored = nbytes[plan.sample] * moving
    ratio = stored / dataset.stored.mean
    decoded = schedule.payload == "decoded"
    wire = ratio * payload_nbytes(schedule, dataset) if decoded else stored
    # (steps, M) again, in the column of who receives it
    arriving = np.zeros_like(stored)
    np.put_along_axis(arriving, plan.target, stored, axis=1)
    received = _by_iteration(plan, arriving, iterations)
    draws: Any = 0 if plan.draws is None else plan.draws
    return ExchangeCosts(
        plan=plan,
        stored=stored,
        wire=wire,
        cached=cached & moving,
        work=moving * (work.read + work.zero_buffer) + ratio * (work.decode + work.pickle),
        draw=np.broadcast_to(work.draw * plan.world_size * draws, len(plan.iteration)),
        sent=_by_iteration(plan, wire, iterations),
        received=received,
        received_work=received / dataset.stored.mean * work.write,
        remove=work.remove * moving.sum(axis=0),
    )


def _by_iteration(plan: ExchangePlan, of_steps: Floats, iterations: int) -> Floats:
    """(steps, M) values added up by iteration: (iterations, M)."""
    out = np.zeros((iterations, plan.world_size))
    np.add.at(out, plan.iteration, of_steps)
    return out
