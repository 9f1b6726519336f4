"""The exchange of samples on the cluster: host work, barriers and messages of an iteration as one
batch of dependent transfers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import simpy
from numpy.typing import NDArray

from simshuffle.exchange import ExchangeSchedule
from simshuffle.network.batch import NO_PAIR, NONE, TransferBatch, chain, pad_routes, tasks
from simshuffle.plan.epochs import EpochPlan
from simshuffle.plan.host_work import host_work
from simshuffle.plan.resources import Resources
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.barrier import Meeting, succeed_after
from simshuffle.sim.clock import NetworkClock

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class Message:
    """One message of every rank: (M,) arrays.

    Attributes:
        target: rank it goes to; its own rank keeps the samples.
        read: s of SSD device time to read those that are not in memory, ``missed`` their bytes,
            ``files`` their number.
        cached: bytes of those that are.
        work: s of the sender's main thread.
        nbytes: bytes on the wire.
    """

    target: Ints
    read: Floats
    missed: Floats
    files: Ints
    cached: Floats
    work: Floats
    nbytes: Floats

    @property
    def mixed(self) -> NDArray[np.bool_]:
        """Which ranks read a part of their samples from the SSD and a part from memory."""
        return np.asarray((self.files > 0) & (self.cached > 0))


class Exchange:
    """The exchange of one epoch.

    Args:
        scenario, resources, clock: what is simulated, on what.
        plan: the epoch's plan.
        nbytes: (N,) bytes of every sample in storage.

    Attributes:
        sent: (iterations, M) bytes that leave each rank.
        received: (iterations, M) bytes that each rank stores, and ``received_work`` s of its main
            thread.
        read_ssd, read_memory: bytes read from each source by the senders; ``written`` bytes stored
            on SSDs.
    """

    def __init__(
        self,
        scenario: Scenario,
        resources: Resources,
        clock: NetworkClock,
        plan: EpochPlan,
        nbytes: Floats,
    ) -> None:
        schedule = scenario.workload.exchange.carried_out
        if schedule is None:
            raise TypeError(f"{scenario.workload.exchange.kind} exchanges nothing")
        self._scenario, self._resources, self._clock = scenario, resources, clock
        self._schedule: ExchangeSchedule = schedule
        self._plan = plan
        self._lives = schedule.lives(plan.exchange.iteration)
        self._in_memory = scenario.workload.source == "memory"
        self.world_size = scenario.world_size
        depth = math.ceil(math.log2(self.world_size))
        self.barrier_latency = depth * scenario.cluster.message_passing.latency
        self._sending = frozenset(plan.exchange.iteration.tolist())
        self._price(nbytes)
        self._host_groups: list[int] = []
        self._delivery_groups: list[int] = []
        self._prepared = -1
        self._parts: list[TransferBatch] = []
        self.opening = Meeting(clock.env, self.world_size, self._open)
        self._closing = -1
        self._closed = clock.env.event()
        self._store = self._store_batches()
        self._iteration = 0

    def _price(self, nbytes: Floats) -> None:
        """Bytes and seconds of every step, (steps, M)."""
        plan, dataset, schedule = (
            self._plan.exchange,
            self._scenario.workload.dataset,
            self._schedule,
        )
        stored = nbytes[plan.sample] * plan.moving
        ratio = stored / dataset.sample_size.mean
        decoded = schedule.payload == "decoded"
        work = host_work(schedule, dataset)
        self._stored = stored
        self._wire = ratio * dataset.decoded_size.mean if decoded else stored
        self._work = plan.moving * (work.read + work.zero_buffer) + ratio * (
            work.decode + work.pickle
        )
        self._hit = self._plan.hit_sent & plan.moving
        self.read_memory = float((stored * self._hit).sum())
        self.read_ssd = float(stored.sum()) - self.read_memory
        iterations = self._plan.iterations
        self.sent = np.zeros((iterations, self.world_size))
        np.add.at(self.sent, plan.iteration, self._wire)
        arriving = np.zeros_like(stored)
        np.put_along_axis(arriving, plan.target, stored, axis=1)
        arrived = np.zeros((iterations, self.world_size))
        np.add.at(arrived, plan.iteration, arriving)
        self.received = arrived
        self.received_work = arrived / dataset.sample_size.mean * work.write
        self.written = 0.0 if self._in_memory else float(arrived.sum())
        self.remove_seconds = work.remove * plan.moving.sum(axis=0)

    @property
    def overlap(self) -> bool:
        """Whether messages are waited for only after the next backward pass."""
        return self._schedule.overlap

    @property
    def _meets(self) -> bool:
        """Whether all ranks meet after the receipt."""
        return self._schedule.barriers != "none"

    def sends(self, iteration: int) -> bool:
        """Whether anything is exchanged after ``iteration`` (from 0)."""
        return iteration in self._sending

    def start(self, rank: int, iteration: int) -> int:
        """Rank ``rank`` begins to exchange after ``iteration``; the group is complete when its main
        thread is free again."""
        self._prepare(iteration)
        self._iteration = iteration
        if self._schedule.barriers == "none":
            self._clock.post(self._parts[rank])
        else:
            self.opening.arrive()
        return self._host_groups[rank]

    def delivery(self, rank: int) -> int:
        """The group of the messages that the rank sent and receives in the iteration started last;
        NONE if there are none."""
        return self._delivery_groups[rank]

    def store(self, rank: int, iteration: int) -> tuple[int, simpy.Event | None]:
        """Re-encode what the rank received and write it to where its shard is, then meet the other
        ranks if barriers are scheduled.

        Returns the group that is complete when the rank has written, and the event that lets all
        ranks go on, if they meet.
        """
        group = self._clock.open(1)
        batch = self._store[rank]
        received = self.received[iteration, rank]
        batch.tasks["delay"][0] = self.received_work[iteration, rank]
        batch.tasks["work"][1] = (
            received if self._in_memory else self._scenario.cluster.ssd.write_seconds(received)
        )
        batch.tasks["nbytes"][1] = received
        batch.tasks["group"][1] = group
        if not self._meets:
            self._clock.post(batch)
            return group, None
        if self._closing < 0:
            self._open_closing()
        batch.tasks["group2"][1] = self._closing
        closed = self._closed
        self._closing_missing -= 1
        if self._closing_missing == 0:
            self._closing = -1
        self._clock.post(batch)
        return group, closed

    def _open_closing(self) -> None:
        """The barrier after the receipt: a group of all ranks' writes, then the latency of the
        barrier."""
        group = self._closing = self._clock.open(self.world_size)
        closed = self._closed = self._clock.env.event()
        self._closing_missing = self.world_size
        complete = self._clock.completion(group)
        if complete is None:
            raise AssertionError("a new group is not complete")

        def release(_: simpy.Event) -> None:
            self._clock.close(group)
            succeed_after(self._clock.env, self.barrier_latency, closed)

        complete.callbacks.append(release)

    def _store_batches(self) -> list[TransferBatch]:
        """For every rank the chain 're-encode, write to the SSD or to memory'."""
        edge_from, edge_to = chain(2)
        device = self._resources.memory if self._in_memory else self._resources.ssd
        links = device[self._resources.host_of].tolist()
        return [
            TransferBatch(tasks(2), pad_routes([[], [link]]), edge_from, edge_to) for link in links
        ]

    def _open(self, event: simpy.Event) -> None:
        event.succeed()
        self._clock.post(self._batch()[0])

    def _prepare(self, iteration: int) -> None:
        """Open the groups of an iteration when its first rank arrives."""
        if self._prepared == iteration:
            return
        self._prepared = iteration
        self._messages = self._messages_of(iteration)
        self._host_groups = [self._clock.open(1) for _ in range(self.world_size)]
        count = np.zeros(self.world_size, np.int64)
        for message in self._messages:
            away = np.flatnonzero(message.target != np.arange(self.world_size))
            np.add.at(count, away, 1)
            np.add.at(count, message.target[away], 1)
        self._delivery_groups = [self._clock.open(n) if n else NONE for n in count.tolist()]
        if self._schedule.barriers == "none":
            self._parts = _parts(*self._batch(), self.world_size)

    def _messages_of(self, iteration: int) -> list[Message]:
        plan = self._plan.exchange
        low, high = np.searchsorted(plan.iteration, [iteration, iteration + 1])
        ssd = self._scenario.cluster.ssd
        in_flight = self._resources.ranks_per_host * self._scenario.workload.loader.reads_in_flight
        out = []
        steps = np.arange(low, high)
        for number in np.unique(plan.message[low:high]):
            part = steps[plan.message[low:high] == number]
            missed = (self._stored[part] * ~self._hit[part]).sum(axis=0)
            files = (plan.moving[part] & ~self._hit[part]).sum(axis=0)
            requests = files.astype(float)
            drawn = self._schedule.draw * self.world_size * (1 if self._new_partner(part[0]) else 0)
            out.append(
                Message(
                    target=plan.target[part[0]],
                    read=ssd.read_seconds(missed, requests, in_flight),
                    missed=missed,
                    files=files,
                    cached=(self._stored[part] * self._hit[part]).sum(axis=0),
                    work=self._work[part].sum(axis=0) + drawn,
                    nbytes=self._wire[part].sum(axis=0),
                )
            )
        return out

    def _new_partner(self, step: int) -> bool:
        return step == 0 or bool(self._lives[step] != self._lives[step - 1])

    def _batch(self) -> tuple[TransferBatch, Ints]:
        """The messages of an iteration: for each a read, the host's work, and the wire; barriers
        between as scheduled.

        Returns them with the rank of each transfer: NONE for a barrier.
        """
        n, count = self.world_size, len(self._messages)
        barriers = self._schedule.barriers
        gates = 0 if barriers == "none" else (count if barriers == "message" else 1)
        # layout: gates | reads (count x n) | works (count x n) | wires (count x n) | second reads
        # (n for each message that has any)
        mixed = [k for k, message in enumerate(self._messages) if message.mixed.any()]
        blocks = 3 * count + len(mixed)
        total = gates + blocks * n
        batch_tasks = tasks(total)
        routes = np.full((total, self._resources.width), NONE, np.int32)
        batch_tasks["delay"][:gates] = self.barrier_latency
        edges_from: list[Ints] = []
        edges_to: list[Ints] = []
        for k, message in enumerate(self._messages):
            reads = gates + k * n + np.arange(n)
            works = gates + (count + k) * n + np.arange(n)
            wires = gates + (2 * count + k) * n + np.arange(n)
            self._fill_message(batch_tasks, routes, message, reads, works, wires)
            last = works - n if k else None
            if k < gates:
                if last is not None:
                    edges_from.append(last)
                    edges_to.append(np.full(n, k))
                edges_from.append(np.full(n, k))
                edges_to.append(reads)
            elif last is not None:
                edges_from.append(last)
                edges_to.append(reads)
            if k in mixed:
                also = gates + (3 * count + mixed.index(k)) * n + np.arange(n)
                self._fill_second_read(batch_tasks, routes, message, also)
                edges_from += [reads, also, works]
                edges_to += [also, works, wires]
            else:
                edges_from += [reads, works]
                edges_to += [works, wires]
        batch_tasks["group"][gates + (2 * count - 1) * n : gates + 2 * count * n] = (
            self._host_groups
        )
        away = np.ones(total, bool)
        for k, message in enumerate(self._messages):
            away[gates + (2 * count + k) * n + np.arange(n)] = message.target != np.arange(n)
        rank = np.concatenate([np.full(gates, NONE), np.tile(np.arange(n), blocks)])
        return _compact(
            batch_tasks, routes, np.concatenate(edges_from), np.concatenate(edges_to), away
        ), rank[away]

    def _fill_message(
        self,
        batch: NDArray[np.void],
        routes: NDArray[np.int32],
        message: Message,
        reads: Ints,
        works: Ints,
        wires: Ints,
    ) -> None:
        resources, cluster = self._resources, self._scenario.cluster
        ranks = np.arange(self.world_size)
        hosts = resources.host_of
        from_ssd = message.files > 0
        batch["work"][reads] = np.where(from_ssd, message.read, message.cached)
        batch["nbytes"][reads] = np.where(from_ssd, message.missed, message.cached)
        batch["delay"][reads] = message.files * cluster.ssd.latency
        routes[reads, 0] = np.where(from_ssd, resources.ssd[hosts], resources.memory[hosts])
        batch["delay"][works] = message.work
        batch["account"][reads] = batch["account"][works] = ranks
        routes[wires], latency = resources.message(ranks, message.target)
        batch["work"][wires] = batch["nbytes"][wires] = message.nbytes
        batch["delay"][wires] = latency + cluster.message_passing.latency
        batch["cap"][wires] = cluster.message_passing.stream_bandwidth or np.inf
        per_pair = self._scenario.network.serial_pairs
        batch["pair"][wires] = ranks * self.world_size + message.target if per_pair else NO_PAIR
        groups = np.asarray(self._delivery_groups)
        batch["group"][wires] = groups
        batch["group2"][wires] = groups[message.target]

    def _fill_second_read(
        self, batch: NDArray[np.void], routes: NDArray[np.int32], message: Message, reads: Ints
    ) -> None:
        """The part of a message that is in memory, where another part is not; nothing for messages
        of one kind."""
        batch["work"][reads] = batch["nbytes"][reads] = np.where(message.mixed, message.cached, 0.0)
        batch["account"][reads] = np.arange(self.world_size)
        routes[reads, 0] = np.where(
            message.mixed, self._resources.memory[self._resources.host_of], NONE
        )


def _parts(batch: TransferBatch, rank: Ints, world_size: int) -> list[TransferBatch]:
    """A batch for every rank, of a batch whose transfers are those of ``rank`` and wait only for
    transfers of the same rank."""
    order = np.argsort(rank, kind="stable")
    start = np.searchsorted(rank[order], np.arange(world_size + 1))
    within = np.empty(len(rank), np.int32)
    within[order] = np.arange(len(rank)) - start[rank[order]]
    edge_rank = rank[batch.edge_from]
    edges = np.argsort(edge_rank, kind="stable")
    edge_start = np.searchsorted(edge_rank[edges], np.arange(world_size + 1)).tolist()
    edge_from, edge_to = within[batch.edge_from[edges]], within[batch.edge_to[edges]]
    records, routes = batch.tasks[order], batch.routes[order]
    return [
        TransferBatch(
            records[low:high], routes[low:high], edge_from[first:last], edge_to[first:last]
        )
        for (low, high), (first, last) in zip(
            pairwise(start.tolist()), pairwise(edge_start), strict=True
        )
    ]


def _compact(
    batch: NDArray[np.void],
    routes: NDArray[np.int32],
    edges_from: Ints,
    edges_to: Ints,
    keep: NDArray[np.bool_],
) -> TransferBatch:
    """The batch without the transfers that are not kept, and without their edges."""
    number = np.cumsum(keep) - 1
    alive = keep[edges_from] & keep[edges_to]
    return TransferBatch(
        np.ascontiguousarray(batch[keep]),
        np.ascontiguousarray(routes[keep]),
        number[edges_from[alive]].astype(np.int32),
        number[edges_to[alive]].astype(np.int32),
    )
