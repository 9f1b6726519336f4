"""How samples travel between ranks: by isend and irecv, or all of an iteration by all_to_all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from simshuffle.errors import SimshuffleError, refuse
from simshuffle.spec.arrays import Ints
from simshuffle.train.distributed.group import RankGroup, named
from simshuffle.workload.exchange import ExchangePlan, MessageSchedule

TransportName = Literal["isend", "all_to_all"]
TRANSPORTS: tuple[TransportName, ...] = ("isend", "all_to_all")
TAGS = 1 << 15
"""Tags in use; the MPI standard promises 32,768 of them."""
_FAULTS = (RuntimeError, ValueError, NotImplementedError)


@dataclass(frozen=True)
class RankTransfer:
    """What one rank sends and receives together; its own destination keeps its samples."""

    number: int  # as in the plan
    # destination, source: ranks
    destination: int
    source: int
    # sent, received: sample numbers, in the order of the plan's steps
    sent: Ints
    received: Ints


@dataclass
class Transfer:
    """Something under way."""

    peer: int  # the rank at the other end; -1 for all
    samples: Ints  # that travel, in the order of the buffer
    buffer: torch.Tensor  # their bytes, one after the other; kept until the request is done
    work: Any  # what torch.distributed waits for


Requests = list[Transfer]
Pair = tuple[Requests, Requests]
"""Requests of what is sent and of what is received."""
Operation = tuple[Callable[..., Any], torch.Tensor, int, int]
"""isend or irecv, with buffer, peer and tag."""
Payloads = Callable[[int], bytes]
"""What is sent of a sample."""


def messages_of(plan: ExchangePlan, iteration: int, rank: int) -> list[RankTransfer]:
    """The messages of ``rank`` after an iteration, in order; those that it keeps included."""
    first, last = np.searchsorted(plan.iteration, [iteration, iteration + 1])
    numbers = plan.message[first:last]
    begins = [*np.flatnonzero(np.diff(numbers, prepend=-1)), len(numbers)]
    out = []
    for begin, end in pairwise(first + np.asarray(begins)):
        targets = plan.target[begin]
        source = int(np.flatnonzero(targets == rank)[0])
        samples = plan.sample[begin:end]
        number, destination = int(plan.message[begin]), int(targets[rank])
        out.append(RankTransfer(number, destination, source, samples[:, rank], samples[:, source]))
    return out


class Transport:
    """Carries the messages of an iteration out, of samples of so many bytes (N,): a message of the
    plan is a message on the network; receives are posted before sends."""

    def __init__(self, ranks: RankGroup, sizes: Ints, barriers: str) -> None:
        self.ranks, self.sizes, self.barriers = ranks, sizes, barriers

    def begin(self, messages: list[RankTransfer], payload_of: Payloads) -> Pair:
        """Send and receive, without waiting; with barriers, all ranks meet before the messages."""
        out: Requests = []
        coming: Requests = []
        if self.barriers == "message":
            for message in messages:
                self.ranks.barrier()
                self._post([message], payload_of, out, coming)
        else:
            if messages and self.barriers == "iteration":
                self.ranks.barrier()
            self._post(messages, payload_of, out, coming)
        return out, coming

    def _post(
        self,
        messages: list[RankTransfer],
        payload_of: Payloads,
        out: list[Transfer],
        coming: list[Transfer],
    ) -> None:
        rank = self.ranks.rank
        receives = [(m, self._empty(m.received)) for m in messages if m.source != rank]
        sends = [(m, self._filled(m.sent, payload_of)) for m in messages if m.destination != rank]
        operations: list[Operation] = [
            (dist.irecv, buffer, m.source, m.number % TAGS) for m, buffer in receives
        ]
        operations += [(dist.isend, buffer, m.destination, m.number % TAGS) for m, buffer in sends]
        with self.ranks.communicating("sending samples"):
            works = _started(operations, together=self.ranks.backend == "nccl")
        coming += [Transfer(m.source, m.received, buffer, next(works)) for m, buffer in receives]
        out += [Transfer(m.destination, m.sent, buffer, next(works)) for m, buffer in sends]

    def _empty(self, samples: Ints) -> torch.Tensor:
        return torch.empty(
            int(self.sizes[samples].sum()), dtype=torch.uint8, device=self.ranks.device
        )

    def _filled(self, samples: Ints, payload_of: Payloads) -> torch.Tensor:
        return joined([payload_of(int(sample)) for sample in samples]).to(self.ranks.device)


class AllToAll(Transport):
    """All messages of an iteration as one all_to_all_single; with barriers all meet before it."""

    def begin(self, messages: list[RankTransfer], payload_of: Payloads) -> Pair:
        """As `Transport.begin`."""
        if not messages:  # on no rank
            return [], []
        if self.barriers != "none":
            self.ranks.barrier()
        rank, world_size = self.ranks.rank, self.ranks.world_size
        peers = range(world_size)
        sent = [_of([m.sent for m in messages if m.destination == p != rank]) for p in peers]
        received = [_of([m.received for m in messages if m.source == p != rank]) for p in peers]
        payloads = [payload_of(int(sample)) for part in sent for sample in part]
        out = joined(payloads).to(self.ranks.device)
        into = [int(self.sizes[part].sum()) for part in received]
        room = torch.empty(sum(into), dtype=torch.uint8, device=self.ranks.device)
        with self.ranks.communicating("sending samples"):
            work = dist.all_to_all_single(
                room, out, into, [int(self.sizes[part].sum()) for part in sent], async_op=True
            )
        return [Transfer(-1, _of(sent), out, work)], [Transfer(-1, _of(received), room, work)]


def transport_named(
    name: str, ranks: RankGroup, sizes: Ints, schedule: MessageSchedule
) -> Transport:
    """The transport of that name, tried out on all ranks; or raise InputError if the backend lacks
    it."""
    if name == "all_to_all":
        nothing = torch.zeros(ranks.world_size, dtype=torch.uint8, device=ranks.device)
        try:
            dist.all_to_all_single(torch.empty_like(nothing), nothing)
        except _FAULTS as error:
            reason = str(error).splitlines()[0]
            rule = f"the backend {ranks.backend} has no all_to_all_single: {reason}"
            refuse("transport", rule, name, "Use transport='isend'.", "scheduler")
        return AllToAll(ranks, sizes, schedule.barriers)
    return Transport(ranks, sizes, schedule.barriers)


def wait(requests: list[Transfer], ranks: RankGroup) -> None:
    """Wait until all of ``requests`` are done, or raise ExchangeError with the peer and the
    samples."""
    for request in requests:
        if request.work is None:
            continue
        try:
            request.work.wait()
        except SimshuffleError:
            raise
        except _FAULTS as error:
            peer = "all ranks" if request.peer < 0 else f"rank {request.peer}"
            ranks.lost(f"the exchange of samples {named(request.samples)} with {peer}", error)


def split(request: Transfer, sizes: Ints) -> Iterator[tuple[int, bytes]]:
    """The samples of a received request, each with its bytes."""
    content = request.buffer.cpu().numpy().tobytes()
    begin = 0
    for sample in request.samples:
        end = begin + int(sizes[sample])
        yield int(sample), content[begin:end]
        begin = end


def joined(parts: list[bytes]) -> torch.Tensor:
    """``parts`` one after the other: (bytes,) uint8."""
    content = bytearray().join(parts)
    kind = torch.uint8
    return torch.frombuffer(content, dtype=kind) if content else torch.empty(0, dtype=kind)


def _of(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _started(operations: list[Operation], *, together: bool) -> Iterator[Any]:
    """The work of each operation. NCCL needs them together: one that is posted alone could wait for
    its peer's other one."""
    if not operations:
        return iter(())
    if not together:
        return iter([call(tensor, peer, tag=tag) for call, tensor, peer, tag in operations])
    works = dist.batch_isend_irecv(
        [dist.P2POp(call, tensor, peer, tag=tag) for call, tensor, peer, tag in operations]
    )
    return iter(works if len(works) == len(operations) else works * len(operations))
