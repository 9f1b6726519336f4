"""How long loops wait for loaders that hand out batches in order: the law, and what a scenario asks
of its loader. Laws and sources: docs/model-input.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simshuffle.errors import InputError, Problem
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.holding import counted
from simshuffle.job.plan.reading_bounds import (
    LOADERS,
    MOST_EPOCHS,
    ReadingBounds,
    reads_elsewhere,
    worker_seconds,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Floats
from simshuffle.workload.exchange.loader_shuffle import MAX_CHECKED_SAMPLES


class Played(NamedTuple):
    """When it was, s from when the first batch is asked for; (B, ..., M) where nothing is said."""

    end: Floats  # that a worker was done with a batch
    taken: Floats  # that a rank had it in hand
    over: Floats  # (B, ...) that the steps with it ended


def play(
    load: Floats,
    step: Floats,
    workers: int,
    prefetch: int,
    *,
    begin: Floats | float = 0.0,
    sending: Floats | float = 0.0,
    handover: Floats | float = 0.0,
) -> Played:
    """How ranks and their workers go on. Worker w makes the batches w, w + W, ... of its rank, and
    up to K are asked for ahead:

        start(b) = max(end(b - W), taken(b - K)),   end(b) = start(b) + load(b)
        sent(b)  = max(end(b), sent(b - W)) + sending(b)
        taken(b) = max(sent(b), over(b - 1)) + handover(b)
        over(b)  = taken(b) + step(b), of the rank that is last

    For batches that are all alike a step takes max(step, load / min(W, K)) in the mean. Without
    workers start(b) = over(b - 1), and it takes step + load.

    Args:
        load: (B, ..., M) s that a worker takes for each batch of every rank.
        step: as ``load``: s from a batch that is taken until the next is wanted; ranks meet then.
        workers: W, of a rank; 0 for the rank itself.
        prefetch: K, batches that a rank has asked for ahead.
        begin: (W, ..., M), or one for all: s at which each worker is there.
        sending: as ``load``, or one for all: s in which a batch that is made is sent, beside the
            next one's making.
        handover: as ``load``, or one for all: s that a rank takes to have in hand what was sent.
    """
    sendings, handovers = (np.broadcast_to(of, load.shape) for of in (sending, handover))
    sends, hands = bool(sendings.any()), bool(handovers.any())
    end, sent, found = np.empty((3, *load.shape))
    over, before = np.empty(load.shape[:-1]), np.zeros(load.shape[1:-1])
    there = np.broadcast_to(begin, (max(workers, 1), *load.shape[1:]))
    for batch, own in enumerate(load):
        if not workers:
            start = before[..., None]
        else:
            start = end[batch - workers] if batch >= workers else there[batch]
            if batch >= prefetch:
                start = np.maximum(start, found[batch - prefetch])
        ready = end[batch] = start + own
        if sends:
            if workers and batch >= workers:
                ready = np.maximum(ready, sent[batch - workers])
            ready = sent[batch] = ready + sendings[batch]
        ready = np.maximum(ready, before[..., None])
        found[batch] = ready + handovers[batch] if hands else ready
        before = over[batch] = (found[batch] + step[batch]).max(axis=-1)
    return Played(end, found, over)


def waits(load: Floats, step: float, workers: int, prefetch: int) -> Floats:
    """s that the loops of all ranks wait before each of their batches, (B,): until the last of them
    has its own. Arguments as of `play`, ``load`` of (B, M), one step for all."""
    _, found, over = play(load, np.full(load.shape, step), workers, prefetch)
    out: Floats = found.max(axis=-1) - np.concatenate([[0.0], over[:-1]])
    return out


@dataclass(frozen=True)
class Demand:
    """What the steps of a scenario want, and what its loader and its resources take for a batch."""

    step: float  # s of an iteration that never waits for data
    # s of a worker alone: reading each batch, (B, M) under a loader's order and else (1, 1);
    # decoding and copying a mean one
    read: Floats
    decode: float
    copy: float
    shared: dict[str, float]  # s of each resource for a mean batch of all ranks, by its name
    at_once: int  # batches that a rank loads at once
    threads: int  # of a worker

    @property
    def binding(self) -> tuple[str, float]:
        """The shared resource that takes longest for a batch, and s."""
        name = max(self.shared, key=lambda name: self.shared[name])
        return name, self.shared[name]

    def load(self, reading: Floats | float = 1.0, decoding: Floats | float = 1.0) -> Floats:
        """s of a worker for each batch, as `read`, with factors on its two parts.

        Where a shared resource binds, those that are at work at once take as long as it needs for
        all of them. Below that, nobody waits for it.
        """
        decode = self.decode * np.asarray(decoding)
        load = worker_seconds(self.read * reading, decode, self.copy, self.threads)
        slowest = self.binding[1]
        if slowest <= max(self.step, self.alone / self.at_once):
            return load
        return load * (slowest * self.at_once / self.alone)

    @property
    def alone(self) -> float:
        """s of a worker alone for a mean batch."""
        read = float(self.read.mean())
        return float(worker_seconds(read, self.decode, self.copy, self.threads))


def demand(scenario: Scenario) -> Demand:
    """What a scenario asks of its loader in the last epoch; under a loader's order in the second.

    Raises:
        InputError: a loader's order of too many samples to count.
    """
    workload, reading = scenario.workload, ReadingBounds(scenario)
    found, batch = bounds(scenario), workload.local_batch_size
    samples = min(float(batch), workload.dataset.num_samples / scenario.world_size)
    if workload.exchange.fetches:
        if workload.dataset.num_samples > MAX_CHECKED_SAMPLES:
            rule = f"must be at most {MAX_CHECKED_SAMPLES} to count what the order fetches"
            given = str(workload.dataset.num_samples)
            problem = Problem("workload.dataset.num_samples", rule, given, "Use fewer samples.")
            raise InputError(problem, scenario.name)
        *_, reads = counted(scenario, min(scenario.epochs, 2))
        of, count = reads.fetches, len(reads.fetches.requests)
        read = reading.pieces(of.requests, of.nbytes) + reading.hits(reads)
        whole = reading.fetching(reads, count)
        shared = {name: seconds / count for name, seconds in whole.items()}
    else:
        shares = reads_elsewhere(scenario, min(scenario.epochs, MOST_EPOCHS))
        read = np.full((1, 1), reading.read(samples, *shares))
        shared = reading.seconds(samples, *shares)
    return Demand(
        step=found.steps / found.iterations,
        read=read,
        decode=reading.decode(samples),
        copy=reading.copy(samples),
        shared={name: seconds for name, seconds in shared.items() if name != LOADERS},
        at_once=workload.loader.at_once,
        threads=workload.loader.threads,
    )
