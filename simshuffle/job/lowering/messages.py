"""Cost the exchange of samples step by step, and turn an iteration into one batch of
transfers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simshuffle.fabric.network.batch import (
    NO_PAIR,
    NONE,
    TransferBatch,
    chain_edges,
    tasks,
)
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.host_work import barrier_seconds, host_work, payload_nbytes
from simshuffle.job.scenario.workload import Dataset
from simshuffle.spec.arrays import Flags, Floats, Ints32, Ints64
from simshuffle.workload.exchange import ExchangePlan, MessageSchedule


@dataclass(frozen=True)
class ExchangeCosts:
    """Bytes and seconds of each step and each iteration of an epoch's exchange."""

    plan: ExchangePlan
    schedule: MessageSchedule
    # (steps, M) bytes of the sample that a rank sends, in storage and on the wire; 0 where it keeps
    # it
    stored: Floats
    wire: Floats
    cached: Flags  # (steps, M) whether it is sent and read from memory; else from SSD
    work: Floats  # (steps, M) s of the sender's main thread, without drawing partners
    draw: Floats  # (steps,) s of every rank to draw partners before the step
    sent: Floats  # (iterations, M) bytes that leave each rank
    received: Floats  # (iterations, M) bytes that each rank stores
    received_work: Floats  # (iterations, M) s of its main thread for that
    remove: Floats  # (M,) s at the end of the epoch, to remove what was sent

    def truncate(self, iterations: int) -> ExchangeCosts:
        """Return the costs of what is sent in the first ``iterations`` iterations.

        Only ``plan``, ``stored``, ``cached``, ``sent`` and ``received`` are cut; the
        other arrays stay whole. ``remove`` is 0, and ``plan.draws`` None.
        """
        num_steps = int(np.searchsorted(self.plan.iteration, iterations))
        plan = self.plan
        truncated_plan = ExchangePlan(
            plan.sample[:num_steps],
            plan.target[:num_steps],
            plan.iteration[:num_steps],
            plan.message[:num_steps],
        )
        return replace(
            self,
            plan=truncated_plan,
            stored=self.stored[:num_steps],
            cached=self.cached[:num_steps],
            sent=self.sent[:iterations],
            received=self.received[:iterations],
            remove=np.zeros_like(self.remove),
        )

    @property
    def read_memory(self) -> float:
        """Bytes that all senders read from memory."""
        return float((self.stored * self.cached).sum())

    @property
    def read_ssd(self) -> float:
        """Bytes that all senders read from SSDs."""
        return float(self.stored.sum()) - self.read_memory

    @property
    def read_requests(self) -> int:
        """Samples that senders read from SSDs, one request each."""
        return int(np.count_nonzero(self.plan.moving & ~self.cached))


def exchange_costs(
    plan: ExchangePlan,
    schedule: MessageSchedule,
    dataset: Dataset,
    *,
    nbytes: Floats,
    cached: Flags,
    iterations: int,
) -> ExchangeCosts:
    """Compute the bytes and seconds of an exchange of ``iterations`` iterations.

    Decoding, pickling and writing take time in proportion to a sample's size. Reading,
    zeroing the buffer and removing take as long for each sample. Samples that stay with
    their rank have no bytes, no work and are not cached.

    Args:
        nbytes: (N,) bytes of every sample in storage.
        cached: (steps, M) whether the sample of a step is in memory when it is sent.
        iterations: rows of the sums by iteration; a later step raises an IndexError.
    """
    moving = plan.moving
    work = host_work(schedule, dataset)
    stored = nbytes[plan.sample] * moving
    size_ratio = stored / dataset.stored.mean
    decoded = schedule.payload == "decoded"
    wire = size_ratio * payload_nbytes(schedule, dataset) if decoded else stored
    # (steps, M) again, in the column of who receives it
    arriving = np.zeros_like(stored)
    np.put_along_axis(arriving, plan.target, stored, axis=1)
    received = _by_iteration(plan, arriving, iterations)
    drawn_partners: Any = 0 if plan.draws is None else plan.draws
    return ExchangeCosts(
        plan=plan,
        schedule=schedule,
        stored=stored,
        wire=wire,
        cached=cached & moving,
        work=moving * (work.read + work.zero_buffer)
        + size_ratio * (work.decode + work.pickle),
        draw=np.broadcast_to(
            work.draw * plan.world_size * drawn_partners, len(plan.iteration)
        ),
        sent=_by_iteration(plan, wire, iterations),
        received=received,
        received_work=received / dataset.stored.mean * work.write,
        remove=work.remove * moving.sum(axis=0),
    )


def _by_iteration(plan: ExchangePlan, step_values: Floats, iterations: int) -> Floats:
    """Add (steps, M) values up by the iteration of each step: (iterations, M)."""
    out = np.zeros((iterations, plan.world_size))
    np.add.at(out, plan.iteration, step_values)
    return out


@dataclass
class RankMessages:
    """A message of every rank; all arrays are (M,).

    A rank that keeps its samples has no bytes, files or reads; its work may be to draw
    partners.
    """

    target: Ints64  # rank it goes to; the sender itself if it keeps its samples
    read: Floats  # s of SSD device time to read those that are not in memory
    missed_nbytes: Floats  # bytes of these
    missed_files: Ints64  # their number
    cached_nbytes: Floats  # bytes of those in memory
    work: Floats  # s of the sender's main thread
    nbytes: Floats  # on the wire

    @property
    def mixed(self) -> Flags:
        """Ranks that read some of their samples from the SSD and some from memory,
        (M,).
        """
        return (self.missed_files > 0) & (self.cached_nbytes > 0)


def messages_of(
    costs: ExchangeCosts, iteration: int, resources: Resources, reads_in_flight: int
) -> list[RankMessages]:
    """Return the messages after ``iteration`` (from 0), one after the other.

    An item has a message of every rank; the list is empty if nothing is sent then.
    Drawing partners is part of every rank's work. ``reads_in_flight`` is the reads that
    each rank has in flight; with those of all ranks of a host they set its SSD's IOPS.
    """
    plan = costs.plan
    ssd = resources.cluster.ssd
    # the steps of the iteration are [low, high)
    low, high = np.searchsorted(plan.iteration, [iteration, iteration + 1])
    steps = np.arange(low, high)
    out = []
    for message in np.unique(plan.message[low:high]):
        message_steps = steps[plan.message[low:high] == message]
        missed = (costs.stored[message_steps] * ~costs.cached[message_steps]).sum(
            axis=0
        )
        files = (plan.moving[message_steps] & ~costs.cached[message_steps]).sum(axis=0)
        depth = resources.ranks_per_host * reads_in_flight
        out.append(
            RankMessages(
                target=plan.target[message_steps[0]],
                read=ssd.read_seconds(missed, files.astype(float), depth),
                missed_nbytes=missed,
                missed_files=files,
                cached_nbytes=(
                    costs.stored[message_steps] * costs.cached[message_steps]
                ).sum(axis=0),
                work=costs.work[message_steps].sum(axis=0)
                + costs.draw[message_steps].sum(),
                nbytes=costs.wire[message_steps].sum(axis=0),
            )
        )
    return out


def delivery_counts(messages: list[RankMessages], world_size: int) -> Ints64:
    """Count the messages that each rank sends to or receives from another, (M,).

    A sent and a received message count one each. What a rank keeps is no message.
    """
    ranks = np.arange(world_size)
    count = np.zeros(world_size, np.int64)
    for message in messages:
        senders = np.flatnonzero(message.target != ranks)
        np.add.at(count, senders, 1)
        np.add.at(count, message.target[senders], 1)
    return count


@dataclass(frozen=True)
class MessageGraph:
    """The messages of an iteration, as transfers: barriers, reads, host work and wires,
    with their order.
    """

    transfers: TransferBatch  # with a wire of every message, also of a rank to itself
    rank: Ints64  # (n,) whose each transfer is; NONE for a barrier
    is_sent: Flags  # (n,) false for wires of ranks to themselves, which do nothing

    @property
    def batch(self) -> TransferBatch:
        """The transfers of all ranks, without those that do nothing."""
        return self.transfers.select(np.flatnonzero(self.is_sent))

    def by_rank(self) -> TransferBatch:
        """Return the transfers of messages without barriers, rank after rank, with the
        edges of each rank by its transfers.
        """
        transfers = self.transfers
        count = int(self.rank.max()) + 1
        # a row has the transfers of all ranks, a column those of one rank
        order = np.arange(len(transfers)).reshape(-1, count).T.ravel()
        is_first = self.rank[transfers.edge_from] == 0
        edges = transfers.edge_from[is_first], transfers.edge_to[is_first]
        return TransferBatch(
            transfers.tasks.take(order),
            transfers.routes.take(order, axis=0),
            *((ends // count).astype(np.int32) for ends in edges),
        )


class MessageLowering:
    """Turn messages into transfers.

    With ``serial_pairs``, the network carries the messages of a pair one after the
    other.
    """

    def __init__(
        self, resources: Resources, schedule: MessageSchedule, *, serial_pairs: bool
    ) -> None:
        self._resources = resources
        self._barriers = schedule.barriers
        self._serial_pairs = serial_pairs
        self._ranks = np.arange(resources.world_size)
        self._accounts = resources.first_rank + self._ranks

    def graph(
        self,
        messages: list[RankMessages],
        work_done: ArrayLike,
        delivered: ArrayLike,
        first_tag: int = NONE,
    ) -> MessageGraph:
        """Return the messages of an iteration, at least one, as transfers.

        Each has a read, the host's work, the wire, and a barrier before it as
        scheduled; the barrier after the receipt is not among them. A rank goes on to
        its next message when its work is done; no wire leads from a rank to itself.
        Reads and works count in the account of their rank, wires in none.

        Args:
            messages: of every rank, in order.
            work_done: (M,) group, or one for all, that counts each rank's last work.
            delivered: (M,) group of each rank, which counts every message that the rank
                sends or receives.
            first_tag: from it on the ends of works and wires are noted (`TASK.tag`), as
                (messages, 2, M); NONE for nowhere.
        """
        n = len(self._ranks)
        count = len(messages)
        delivered = np.asarray(delivered)
        barriers = {"none": 0, "message": count, "iteration": 1}[self._barriers]
        # The transfers are laid out in blocks: barriers (1 each), then, n each, the reads of every
        # message, their works, their wires, and second reads of those messages that have any.
        mixed = [k for k, message in enumerate(messages) if message.mixed.any()]
        blocks = 3 * count + len(mixed)
        total = barriers + blocks * n

        def block(number: int) -> Ints64:
            return barriers + number * n + self._ranks

        records = tasks(total)
        routes = np.full((total, self._resources.width), NONE, np.int32)
        records["delay"][:barriers] = barrier_seconds(self._resources.cluster, n)
        first_wire = barriers + 2 * count * n
        wires = slice(first_wire, first_wire + count * n)
        self._write_messages(records[barriers:], routes[barriers:], messages)
        target = np.concatenate([message.target for message in messages])
        if first_tag != NONE:
            tags = first_tag + np.arange(2 * count * n).reshape(count, 2, n)
            records["tag"][first_wire - count * n : first_wire] = tags[:, 0].ravel()
            records["tag"][wires] = tags[:, 1].ravel()
        records["group"][wires] = np.tile(delivered, count)
        records["group2"][wires] = delivered[target]
        records["group"][block(2 * count - 1)] = work_done  # of the last message
        idle = first_wire + np.flatnonzero(target == np.tile(self._ranks, count))
        records[idle] = tasks(len(idle))
        routes[idle] = NONE
        is_sent = np.ones(total, bool)
        is_sent[idle] = False
        edges: list[tuple[Ints64, Ints64]] = []
        for k, message in enumerate(messages):
            # message k follows the works of message k - 1; barrier k lies between
            stages = [block(count + k - 1)] if k else []
            if k < barriers:
                stages.append(np.full(n, k))
            stages.append(block(k))
            if k in mixed:
                second = block(3 * count + mixed.index(k))
                self._fill_second_read(records, routes, message, second)
                stages.append(second)
            edges += pairwise([*stages, block(count + k), block(2 * count + k)])
        rank = np.concatenate([np.full(barriers, NONE), np.tile(self._ranks, blocks)])
        edge_from, edge_to = (np.concatenate(ends) for ends in zip(*edges, strict=True))
        return MessageGraph(
            TransferBatch(records, routes, edge_from, edge_to), rank, is_sent
        )

    def _write_messages(
        self, records: NDArray[np.void], routes: Ints32, messages: list[RankMessages]
    ) -> None:
        """Write messages into the first rows: the reads of all messages, one for each
        rank, then their works, then their wires.

        A rank with any sample on the SSD reads those; else it reads from memory. Work
        on an SSD is in s, in memory in bytes.
        """
        resources = self._resources
        cluster = self._resources.cluster
        count = len(messages)
        columns = zip(*(vars(message).values() for message in messages), strict=True)
        message = RankMessages(*map(np.concatenate, columns))
        ranks = np.tile(self._ranks, count)
        accounts = resources.first_rank + ranks
        hosts = resources.host_of[ranks]
        rows = len(ranks)
        reads = records[:rows]
        works = records[rows : 2 * rows]
        wires = records[2 * rows : 3 * rows]
        from_ssd = message.missed_files > 0
        reads["work"] = np.where(from_ssd, message.read, message.cached_nbytes)
        reads["nbytes"] = np.where(
            from_ssd, message.missed_nbytes, message.cached_nbytes
        )
        reads["delay"] = message.missed_files * cluster.ssd.latency
        routes[:rows, 0] = np.where(
            from_ssd, resources.ssd[hosts], resources.memory[hosts]
        )
        works["delay"] = message.work
        reads["account"] = works["account"] = accounts
        routes[2 * rows : 3 * rows], latency = resources.message(ranks, message.target)
        wires["work"] = wires["nbytes"] = message.nbytes
        wires["delay"] = latency + cluster.message_passing.latency
        wires["cap"] = cluster.message_passing.stream_bandwidth or np.inf
        # a number for each ordered pair of ranks
        pair = accounts * resources.all_ranks + resources.first_rank + message.target
        wires["pair"] = pair if self._serial_pairs else NO_PAIR

    def _fill_second_read(
        self,
        records: NDArray[np.void],
        routes: Ints32,
        message: RankMessages,
        reads: Ints64,
    ) -> None:
        """Write the reads from memory of messages that also read from the SSD.

        Rows of other ranks have no bytes and no link.
        """
        hosts = self._resources.host_of
        nbytes = np.where(message.mixed, message.cached_nbytes, 0.0)
        records["work"][reads] = records["nbytes"][reads] = nbytes
        records["account"][reads] = self._accounts
        routes[reads, 0] = np.where(message.mixed, self._resources.memory[hosts], NONE)


class StoreLowering:
    """Store what a rank received: its main thread re-encodes it, then it goes to
    memory if ``in_memory``, else to the SSD.
    """

    def __init__(
        self, resources: Resources, costs: ExchangeCosts, *, in_memory: bool
    ) -> None:
        self._costs = costs
        device = resources.memory
        self._work = costs.received
        if not in_memory:
            device = resources.ssd
            self._work = resources.cluster.ssd.write_seconds(costs.received)
        # (2 M, 1) links of the transfers: re-encoding has none
        self._routes = np.full((2 * resources.world_size, 1), NONE, np.int32)
        self._routes[1::2, 0] = device[resources.host_of]

    def batch(
        self, iteration: int, groups: ArrayLike, group2: int = NONE
    ) -> TransferBatch:
        """Return the two transfers of every rank after an iteration (from 0), rank after
        rank: re-encoding, then the write; with the edge between the two.

        Args:
            iteration: from 0.
            groups: (M,) group, or one for all, that counts a rank's write.
            group2: that counts all writes; NONE for none.
        """
        records = tasks(len(self._routes))
        records["delay"][::2] = self._costs.received_work[iteration]
        records["work"][1::2] = self._work[iteration]
        records["nbytes"][1::2] = self._costs.received[iteration]
        records["group"][1::2] = groups
        records["group2"][1::2] = group2
        return TransferBatch(records, self._routes, *chain_edges(2))
