"""Transports of samples between ranks: by isend and irecv, or all of an iteration by
all_to_all.
"""

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
from simshuffle.train.distributed.group import RankGroup, list_samples
from simshuffle.workload.exchange import ExchangePlan, MessageSchedule

TransportName = Literal["isend", "all_to_all"]
TRANSPORTS: tuple[TransportName, ...] = ("isend", "all_to_all")
TAGS = 1 << 15
"""Tags in use; the MPI standard promises 32,768 of them."""
_FAULTS = (RuntimeError, ValueError, NotImplementedError)


@dataclass(frozen=True)
class RankTransfer:
    """The samples that one rank sends and receives in one message of a plan.

    A rank that is its own destination keeps its samples.
    """

    number: int  # of the message in the plan
    destination: int  # rank that gets `sent`
    source: int  # rank that `received` come from
    sent: Ints  # sample numbers, in the order of the plan's steps
    received: Ints  # sample numbers, in the order of the plan's steps


@dataclass
class Transfer:
    """A request under way: what is sent to a rank or received from it."""

    peer: int  # the rank at the other end; -1 for all
    samples: Ints  # that travel, in the order of the buffer
    # their bytes, one after the other; kept until the request is done
    buffer: torch.Tensor
    work: Any  # object of torch.distributed to wait for; None for none


Requests = list[Transfer]
Pair = tuple[Requests, Requests]
"""Requests of the sends and of the receives of an iteration."""
Operation = tuple[Callable[..., Any], torch.Tensor, int, int]
"""dist.isend or dist.irecv, with buffer, peer and tag."""
Payloads = Callable[[int], bytes]
"""Returns the bytes that are sent of a sample: as many as the transport's ``sizes``
says, since the receiver makes room for, and splits by, those.
"""


def messages_of(plan: ExchangePlan, iteration: int, rank: int) -> list[RankTransfer]:
    """Return the messages of ``rank`` after an iteration, in order, with those to
    itself; equally many for all ranks, none where the plan has none.
    """
    first, last = np.searchsorted(plan.iteration, [iteration, iteration + 1])
    numbers = plan.message[first:last]  # of each step of the iteration
    message_begins = [*np.flatnonzero(np.diff(numbers, prepend=-1)), len(numbers)]
    messages = []
    for begin, end in pairwise(first + np.asarray(message_begins)):
        targets = plan.target[begin]
        source = int(np.flatnonzero(targets == rank)[0])
        samples = plan.sample[begin:end]  # (steps, M)
        messages.append(
            RankTransfer(
                number=int(plan.message[begin]),
                destination=int(targets[rank]),
                source=source,
                sent=samples[:, rank],
                received=samples[:, source],
            )
        )
    return messages


class Transport:
    """Carries each message of a plan as a message on the network; receives are posted
    before sends.

    Args:
        ranks: the process group.
        sizes: (N,) bytes of each sample on the network; payloads must have as many.
        barriers: 'none', or where all ranks wait for each other: before each
            'iteration' or each 'message'.
    """

    def __init__(self, ranks: RankGroup, sizes: Ints, barriers: str) -> None:
        self.ranks = ranks
        self.sizes = sizes
        self.barriers = barriers

    def begin(self, messages: list[RankTransfer], payload_of: Payloads) -> Pair:
        """Begin to send and receive the messages of an iteration, without waiting for
        them; return their requests.

        Where there are barriers, all ranks wait for each other here. Samples that a
        rank keeps are not sent.

        Raises:
            ExchangeError: the backend failed, as where a peer is gone.
        """
        sends: Requests = []
        receives: Requests = []
        if self.barriers == "message":
            for message in messages:
                self.ranks.barrier()
                self._post([message], payload_of, sends, receives)
        else:
            if messages and self.barriers == "iteration":
                self.ranks.barrier()
            self._post(messages, payload_of, sends, receives)
        return sends, receives

    def _post(
        self,
        messages: list[RankTransfer],
        payload_of: Payloads,
        sends: Requests,
        receives: Requests,
    ) -> None:
        """Start the operations of ``messages``; append their requests to ``sends`` and
        ``receives``.
        """
        rank = self.ranks.rank
        incoming = [
            (message, self._empty_buffer(message.received))
            for message in messages
            if message.source != rank
        ]
        outgoing = [
            (message, self._payload_buffer(message.sent, payload_of))
            for message in messages
            if message.destination != rank
        ]
        operations: list[Operation] = [
            (dist.irecv, buffer, message.source, message.number % TAGS)
            for message, buffer in incoming
        ]
        operations += [
            (dist.isend, buffer, message.destination, message.number % TAGS)
            for message, buffer in outgoing
        ]
        with self.ranks.report_failures("sending samples"):
            works = _start_operations(operations, together=self.ranks.backend == "nccl")
        for message, buffer in incoming:
            receives.append(
                Transfer(message.source, message.received, buffer, next(works))
            )
        for message, buffer in outgoing:
            sends.append(
                Transfer(message.destination, message.sent, buffer, next(works))
            )

    def _empty_buffer(self, samples: Ints) -> torch.Tensor:
        """Return a buffer on the backend's device for the bytes of ``samples``."""
        return torch.empty(
            int(self.sizes[samples].sum()), dtype=torch.uint8, device=self.ranks.device
        )

    def _payload_buffer(self, samples: Ints, payload_of: Payloads) -> torch.Tensor:
        """Return the bytes of ``samples``, one after the other, on the backend's
        device.
        """
        return join_bytes([payload_of(int(sample)) for sample in samples]).to(
            self.ranks.device
        )


class AllToAll(Transport):
    """Carries all messages of an iteration as one all_to_all_single; with barriers, all
    ranks wait for each other before it.
    """

    def begin(self, messages: list[RankTransfer], payload_of: Payloads) -> Pair:
        """Begin the exchange of an iteration; return one request of all sends and one
        of all receives, with peer -1, or none without ``messages``.

        Raises:
            ExchangeError: the backend failed, as where a peer is gone.
        """
        if not messages:  # on no rank
            return [], []
        if self.barriers != "none":
            self.ranks.barrier()
        rank = self.ranks.rank
        peers = range(self.ranks.world_size)
        # samples to and from each peer; none for this rank itself
        sent = [
            _concatenate(
                [
                    message.sent
                    for message in messages
                    if message.destination == peer != rank
                ]
            )
            for peer in peers
        ]
        received = [
            _concatenate(
                [
                    message.received
                    for message in messages
                    if message.source == peer != rank
                ]
            )
            for peer in peers
        ]
        sent_nbytes = [int(self.sizes[samples].sum()) for samples in sent]
        received_nbytes = [int(self.sizes[samples].sum()) for samples in received]
        send_buffer = self._payload_buffer(_concatenate(sent), payload_of)
        receive_buffer = self._empty_buffer(_concatenate(received))
        with self.ranks.report_failures("sending samples"):
            work = dist.all_to_all_single(
                receive_buffer, send_buffer, received_nbytes, sent_nbytes, async_op=True
            )
        return [Transfer(-1, _concatenate(sent), send_buffer, work)], [
            Transfer(-1, _concatenate(received), receive_buffer, work)
        ]


def make_transport(
    name: str, ranks: RankGroup, sizes: Ints, schedule: MessageSchedule
) -> Transport:
    """Return the transport of that ``name``; all ranks try out 'all_to_all', which
    makes this collective.

    Args:
        name: of `TRANSPORTS`; any but 'all_to_all' is taken for 'isend'.
        ranks: the process group.
        sizes: (N,) bytes of each sample on the network.
        schedule: says where there are barriers.

    Raises:
        InputError: the backend lacks all_to_all_single.
    """
    if name == "all_to_all":
        one_byte_each = torch.zeros(
            ranks.world_size, dtype=torch.uint8, device=ranks.device
        )
        try:
            dist.all_to_all_single(torch.empty_like(one_byte_each), one_byte_each)
        except _FAULTS as error:
            reason = str(error).splitlines()[0]
            rule = f"the backend {ranks.backend} has no all_to_all_single: {reason}"
            refuse("transport", rule, name, "Use transport='isend'.", "scheduler")
        return AllToAll(ranks, sizes, schedule.barriers)
    return Transport(ranks, sizes, schedule.barriers)


def wait(requests: list[Transfer], ranks: RankGroup) -> None:
    """Wait until all ``requests`` are done; raise ExchangeError with the peer and the
    samples if one fails.
    """
    for request in requests:
        if request.work is None:
            continue
        try:
            request.work.wait()
        except SimshuffleError:
            raise
        except _FAULTS as error:
            peer = "all ranks" if request.peer < 0 else f"rank {request.peer}"
            ranks.fail(
                f"the exchange of samples {list_samples(request.samples)} with {peer}",
                error,
            )


def split(request: Transfer, sizes: Ints) -> Iterator[tuple[int, bytes]]:
    """Yield each sample of a received request with its bytes.

    Args:
        request: its buffer has the samples, one after the other.
        sizes: (N,) bytes of each sample on the network.
    """
    content = request.buffer.cpu().numpy().tobytes()
    begin = 0
    for sample in request.samples:
        end = begin + int(sizes[sample])
        yield int(sample), content[begin:end]
        begin = end


def join_bytes(parts: list[bytes]) -> torch.Tensor:
    """Return ``parts``, one after the other, as a tensor (bytes,) uint8."""
    content = bytearray().join(parts)
    dtype = torch.uint8
    return (
        torch.frombuffer(content, dtype=dtype)
        if content
        else torch.empty(0, dtype=dtype)
    )


def _concatenate(parts: list[Ints]) -> Ints:
    """Concatenate ``parts``; without any, return an empty int64 array."""
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _start_operations(operations: list[Operation], *, together: bool) -> Iterator[Any]:
    """Start the operations; return an iterator over the work of each, in order.

    NCCL needs them ``together``: an operation that is posted alone could wait for
    another one of its peer.
    """
    if not operations:
        return iter(())
    if not together:
        return iter(
            [call(tensor, peer, tag=tag) for call, tensor, peer, tag in operations]
        )
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(call, tensor, peer, tag=tag)
            for call, tensor, peer, tag in operations
        ]
    )
    return iter(works if len(works) == len(operations) else works * len(operations))
