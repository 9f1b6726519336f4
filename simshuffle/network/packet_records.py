"""All arrays of the packet network, why its loop of events stops, what its clock can count, and the
sizes that it takes."""

from __future__ import annotations

from math import ceil, isfinite
from typing import Any, NamedTuple

import numpy as np

from simshuffle.spec.arrays import Floats, Ints32, Ints64

Records = Any  # a record array; its fields are those of the dtypes below

# nobody asks; a wake event is pending; the next in turn lacks credits, and none are on their way
IDLE, AWAKE, STARVED = 0, 1, 2
DONE, ENDED, PAUSED, FULL, RUNNING = 0, 1, 2, 3, 4  # why `advance` returned, or that it goes on
NEVER = int(np.iinfo(np.int64).max)

LINK = np.dtype(
    [
        ("free_at", "i8"),  # tick at which the packet on it has left its tail
        ("read_at", "i8"),  # tick at which the packet being read from its buffer has left it
        ("room", "i8"),  # bytes for which its tail has credits
        ("latency", "i8"),  # ticks
        ("ticks_per_byte", "f8"),
        ("head", "i4"),  # FIFO of the packets in its buffer, -1 if empty
        ("tail", "i4"),
        # who asks for it, in turn: number of the input link, or number of links + its own for the
        # source
        ("ask_head", "i4"),
        ("ask_tail", "i4"),
        ("ask_next", "i4"),  # behind its buffer in the list of another link
        ("state", "i4"),
        ("pair_head", "i4"),  # queue pairs of its source that have data, in turn
        ("pair_tail", "i4"),
        ("credit_head", "i4"),  # credits on their way back to its tail, earliest first
        ("credit_tail", "i4"),
        ("end_head", "i4"),  # messages whose last packet is on its way over it, earliest first
        ("end_tail", "i4"),
        ("source_next", "i4"),  # behind its source in its own list
        ("source_asks", "i2"),
        ("served", "i2"),  # 1: the queue pair in turn has had its packet
        ("starved_at", "i8"),  # tick since when the next in turn lacks credits; -1 if it does not
        ("busy", "i8"),  # ticks that it was held
        ("nbytes", "f8"),  # bytes sent
        ("packets", "i8"),  # packets sent
        ("peak", "i8"),  # most bytes reserved in its buffer
        ("starved", "i8"),  # ticks that it was idle for lack of credits
    ],
    align=True,
)
SLOT = np.dtype(  # a packet in a buffer or on its way there; or a credit on its way back
    [
        # packet: tick at which its header is in the buffer; credit: tick at which it is back
        ("header_at", "i8"),
        ("tail_at", "i8"),  # tick at which its tail is in the buffer
        ("nbytes", "f8"),
        ("message", "i4"),
        ("to", "i4"),  # the link that it is to take next
        ("next", "i4"),
        ("hop", "i2"),  # place of that link in the route
        ("final", "i2"),  # 1 for the last packet of its message
    ],
    align=True,
)
MESSAGE = np.dtype(
    [
        ("left", "f8"),  # bytes that are not yet on the first link
        ("pair", "i8"),  # key of the queue pair among those of the first link
        ("end_at", "i8"),  # tick
        ("waiting", "i4"),  # messages that must end before it is posted
        ("next", "i4"),
    ],
    align=True,
)
PAIR = np.dtype(  # a queue pair that has data
    [
        ("key", "i8"),
        ("link", "i4"),  # first link of its messages
        ("head", "i4"),  # messages in order of posting
        ("tail", "i4"),
        ("next", "i4"),  # next in turn at the source
        ("chain", "i4"),  # next in its hash bucket
    ],
    align=True,
)
# key: kind * number of links + link; timers: 3 * number of links + message
EVENT = np.dtype([("at", "i8"), ("key", "i8")], align=True)
CLOCK = np.dtype(
    [
        ("now", "i8"),  # tick
        ("tick", "f8"),  # s
        ("mtu", "f8"),  # bytes
        ("buffer", "i8"),  # bytes
        ("delivered", "f8"),  # bytes of the messages that ended
        ("n_events", "i8"),
        ("n_queue", "i8"),  # pending events
        ("n_posted", "i8"),  # entries of the list of posts that were handled
        ("n_done", "i8"),  # messages that ended and are listed for the caller
        ("n_ended", "i8"),  # messages that ended since the beginning
        ("status", "i8"),
        ("slots", "i4"),  # slots ever used
        ("free_slot", "i4"),
        ("pairs", "i4"),  # queue pairs ever used
        ("free_pair", "i4"),
    ],
    align=True,
)


class State(NamedTuple):
    """All that the kernel works on."""

    links: Records  # (links,) `LINK`
    slots: Records  # (any,) `SLOT`, packets and credits
    pairs: Records  # (messages,) `PAIR`
    buckets: Ints32  # (a power of two,) hash table of the queue pairs
    queue: Records  # (3 * links + messages,) `EVENT`, a heap
    messages: Records  # (messages,) `MESSAGE`
    nbytes: Floats  # (messages,) bytes
    routes: Ints32  # (messages, hops) links, padded with -1 at the end
    start: Floats  # (messages,) s, not posted before
    posts: Ints32  # (any,) messages to post, in order of ``start``
    # offsets, following: messages that wait for others: see `simshuffle.network.flows.successors`;
    # both empty if none do
    offsets: Ints64
    following: Ints32
    finish: Floats  # (messages,) s, filled as messages end
    # (messages,) filled with the messages that ended since the caller last looked; empty if the
    # caller does not
    done: Ints32
    clock: Records  # (1,) `CLOCK`


def no_messages() -> State:
    """The arrays without any link or message."""
    ints = np.empty(0, np.int32)
    return State(
        links=np.zeros(0, LINK),
        slots=np.empty(0, SLOT),
        pairs=np.empty(0, PAIR),
        buckets=ints,
        queue=np.empty(0, EVENT),
        messages=np.empty(0, MESSAGE),
        nbytes=np.empty(0),
        routes=np.empty((0, 1), np.int32),
        start=np.empty(0),
        posts=ints,
        offsets=np.empty(0, np.int64),
        following=ints,
        finish=np.empty(0),
        done=ints,
        clock=np.zeros(1, CLOCK),
    )


TICK = 2.0**-44
"""Resolution of simulated time (s): 57 fs, 2e-7 of a packet of 4 KiB at 12.5 GB/s. Times are
rounded up to it."""
LONGEST = 2**61
"""Ticks that a clock can count."""


def check_sizes(mtu: float, port_buffer: float) -> None:
    """Raises a ValueError unless both (bytes) are positive and finite, and the buffer holds a
    packet."""
    if not (isfinite(mtu) and mtu > 0 and isfinite(port_buffer)):
        raise ValueError(
            f"mtu and port_buffer must be finite and greater than 0; got {mtu} and {port_buffer} B"
        )
    if int(port_buffer) < ceil(mtu):
        raise ValueError(
            f"port_buffer must hold at least one packet of mtu = {mtu:g} B; got {port_buffer:g} B."
            " Raise port_buffer."
        )
