"""The record arrays of the packet network, the reasons why its loop of events stops,
and the range of its clock; and its queues: of events, of packets, of those who ask
for a link, of queue pairs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simshuffle.spec.arrays import Floats, Ints32, Ints64
from simshuffle.spec.compiling import compiled

Records = Any  # a record array; its fields are those of the dtypes below

# nobody asks; a wake event is pending; the next in turn lacks credits, and none are on their way
IDLE, AWAKE, STARVED = 0, 1, 2
DONE, ENDED, PAUSED, FULL, RUNNING = (
    0,
    1,
    2,
    3,
    4,
)  # why `advance` returned, or that it goes on
NEVER = int(np.iinfo(np.int64).max)

LINK = np.dtype(
    [
        ("free_at", "i8"),  # tick at which the packet on it has left its tail
        (
            "read_at",
            "i8",
        ),  # tick at which the packet being read from its buffer has left it
        ("room", "i8"),  # bytes for which its tail has credits
        ("latency", "i8"),  # ticks
        ("ticks_per_byte", "f8"),
        ("head", "i4"),  # FIFO of the packets in its buffer, -1 if empty
        ("tail", "i4"),  # last packet of that FIFO
        # who asks for it, in turn: number of the input link, or number of links + its own for the
        # source
        ("ask_head", "i4"),
        ("ask_tail", "i4"),
        ("ask_next", "i4"),  # behind its buffer in the list of another link
        ("state", "i4"),  # IDLE, AWAKE or STARVED
        ("pair_head", "i4"),  # queue pairs of its source that have data, in turn
        ("pair_tail", "i4"),
        ("credit_head", "i4"),  # credits on their way back to its tail, earliest first
        ("credit_tail", "i4"),
        (
            "end_head",
            "i4",
        ),  # messages whose last packet is on its way over it, earliest first
        ("end_tail", "i4"),
        ("source_next", "i4"),  # behind its source in its own list
        ("source_asks", "i2"),  # 1: its source is among those that ask for it
        ("served", "i2"),  # 1: the queue pair in turn has had its packet
        (
            "starved_at",
            "i8",
        ),  # tick since when the next in turn lacks credits; -1 if it does not
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
        ("message", "i4"),  # index of the message that the packet is of
        ("to", "i4"),  # the link that it is to take next
        # behind it in the buffer, among the credits or the unused slots; -1 at the end
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
        ("end_at", "i8"),  # tick at which its last packet is over, once that is known
        ("waiting", "i4"),  # messages that must end before it is posted
        # next in its queue pair, or of those that are to end over one link; -1 at the end
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


class PacketState(NamedTuple):
    """The arrays that the kernel of the packet network works on."""

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
    # offsets, following: messages that wait for others: see
    # `simshuffle.fabric.network.flows.successors`; both empty if none do
    offsets: Ints64
    following: Ints32
    finish: Floats  # (messages,) s, filled as messages end, without meaning before
    # (messages,) filled with the messages that ended since the caller last looked; empty if the
    # caller does not
    ended_messages: Ints32
    clock: Records  # (1,) `CLOCK`


def empty_packet_state() -> PacketState:
    """Return the arrays without any link or message."""
    count = 0  # of links, messages and packets
    no_indices = np.empty(count, np.int32)
    return PacketState(
        links=np.zeros(count, LINK),
        slots=np.empty(count, SLOT),
        pairs=np.empty(count, PAIR),
        buckets=no_indices,
        queue=np.empty(count, EVENT),
        messages=np.empty(count, MESSAGE),
        nbytes=np.empty(count),
        routes=np.empty((count, 1), np.int32),
        start=np.empty(count),
        posts=no_indices,
        offsets=np.empty(count, np.int64),
        following=no_indices,
        finish=np.empty(count),
        ended_messages=no_indices,
        clock=np.zeros(1, CLOCK),
    )


TICK = 2.0**-44
"""Resolution of simulated time (s): 57 fs, 2e-7 of a packet of 4 KiB at 12.5 GB/s.
Times are rounded up to it.
"""
MAX_TICKS = 2**61
"""Ticks that a clock can count."""


# ------------------------------------------------------------------------------------------ queues


@compiled
def push_event(queue: Records, n: int, tick: int, key: int) -> None:
    """Add an event to a queue of ``n`` events, a binary heap by tick and key with room
    for one more; the caller counts it.
    """
    place = n  # below place k are 2k + 1 and 2k + 2
    while place > 0:
        parent = (place - 1) >> 1
        parent_event = queue[parent]
        if parent_event.at < tick or (
            parent_event.at == tick and parent_event.key < key
        ):
            break
        queue[place].at = parent_event.at
        queue[place].key = parent_event.key
        place = parent
    queue[place].at = tick
    queue[place].key = key


@compiled
def pop_event(queue: Records, n: int) -> None:
    """Take the first event out of a queue of ``n`` + 1; the caller counts the ``n``."""
    tick = queue[n].at
    key = queue[n].key
    place = 0
    while True:
        child = 2 * place + 1
        if child >= n:
            break
        child_tick = queue[child].at
        if child + 1 < n:
            sibling_tick = queue[child + 1].at
            if sibling_tick < child_tick or (
                sibling_tick == child_tick and queue[child + 1].key < queue[child].key
            ):
                child += 1
                child_tick = sibling_tick
        if child_tick > tick or (child_tick == tick and queue[child].key > key):
            break
        queue[place].at = child_tick
        queue[place].key = queue[child].key
        place = child
    queue[place].at = tick
    queue[place].key = key


@compiled
def schedule_event(s: PacketState, tick: int, key: int) -> None:
    """Add an event at ``tick`` to the queue; for ``key`` see `EVENT`."""
    push_event(s.queue, s.clock[0].n_queue, tick, key)
    s.clock[0].n_queue += 1


@compiled
def new_slot(s: PacketState) -> int:
    """Take an unused slot, of which only ``next`` is set; there must be one."""
    slot = s.clock[0].free_slot
    if slot >= 0:
        s.clock[0].free_slot = s.slots[slot].next
    else:
        slot = s.clock[0].slots
        s.clock[0].slots = slot + 1
    s.slots[slot].next = -1
    return int(slot)


@compiled
def free_slot(s: PacketState, slot: int) -> None:
    """Give a slot back; its ``next`` then leads to another unused slot."""
    s.slots[slot].next = s.clock[0].free_slot
    s.clock[0].free_slot = slot


@compiled
def new_packet(s: PacketState, message: int, nbytes: float, final: bool) -> int:
    """Return the slot of a new packet; ``final`` is True for the last packet of its
    message.

    Its times are left to `packet_kernel._enter_buffer`, and so is its next link, with
    the ``hop`` of the link: all of them are not set.
    """
    slot = new_slot(s)
    s.slots[slot].nbytes = nbytes
    s.slots[slot].message = message
    s.slots[slot].final = 1 if final else 0
    return slot


@compiled
def _bucket_of_pair(s: PacketState, link: int, key: int) -> int:
    """Return the hash bucket of the queue pair ``key`` at ``link``."""
    # odd multipliers spread neighbouring numbers; buckets are a power of two
    return int((link * 0x9E3779B1 + key * 0x85EBCA6B) & (s.buckets.shape[0] - 1))


@compiled
def ask_for_link(s: PacketState, link: int, asker: int) -> None:
    """Put ``asker`` behind those that ask for ``link``: an input link, or number of links
    + ``link`` for the source.
    """
    count = s.links.shape[0]
    if s.links[link].ask_head < 0:
        s.links[link].ask_head = asker
    elif s.links[link].ask_tail < count:
        s.links[s.links[link].ask_tail].ask_next = asker
    else:
        s.links[link].source_next = asker
    s.links[link].ask_tail = asker
    if asker < count:
        s.links[asker].ask_next = -1
    else:
        s.links[link].source_next = -1


@compiled
def source_asks(s: PacketState, link: int) -> None:
    """Note that the source of ``link`` has data and asks for the link, if it does not
    already.
    """
    if s.links[link].source_asks == 0:
        s.links[link].source_asks = 1
        ask_for_link(s, link, s.links.shape[0] + link)


@compiled
def enqueue_message(s: PacketState, message: int, first: int) -> None:
    """Put a message at the end of its queue pair, which is made if it has no data.

    With a new pair, the source asks for the first link if the link is free now. If the
    link is `IDLE`, its wake is scheduled for the tick at which it is free.

    Args:
        s: the arrays of the network.
        message: its index.
        first: its first link.
    """
    key = s.messages[message].pair
    s.messages[message].next = -1
    bucket = _bucket_of_pair(s, first, key)
    pair = s.buckets[bucket]
    while pair >= 0 and (s.pairs[pair].key != key or s.pairs[pair].link != first):
        pair = s.pairs[pair].chain
    if pair >= 0:
        s.messages[s.pairs[pair].tail].next = message
        s.pairs[pair].tail = message
        return
    pair = s.clock[0].free_pair
    if pair >= 0:
        s.clock[0].free_pair = s.pairs[pair].next
    else:
        pair = s.clock[0].pairs
        s.clock[0].pairs = pair + 1
    new = s.pairs[pair]
    new.key = key
    new.link = first
    new.head = message
    new.tail = message
    new.next = -1
    new.chain = s.buckets[bucket]
    s.buckets[bucket] = pair
    link = s.links[first]
    if link.pair_head < 0:
        link.pair_head = pair
    else:
        s.pairs[link.pair_tail].next = pair
    link.pair_tail = pair
    if link.free_at <= s.clock[0].now:
        source_asks(s, first)
    if link.state == IDLE:
        link.state = AWAKE
        schedule_event(
            s, max(s.clock[0].now, link.free_at), 2 * s.links.shape[0] + first
        )


@compiled
def take_packet(s: PacketState, first: int, nbytes: float) -> bool:
    """Take a packet of ``nbytes`` bytes from the queue pair in turn at the source;
    return True if it is the last one of its message.

    A queue pair without further messages is taken out of the turn and freed; for
    another one `LINK.served` is set, so that the next wake goes on to the next pair.
    """
    link = s.links[first]
    pair = link.pair_head
    message = s.pairs[pair].head
    s.messages[message].left -= nbytes
    final = s.messages[message].left <= 0.0
    if final and s.messages[message].next < 0:
        link.pair_head = s.pairs[pair].next
        bucket = _bucket_of_pair(s, first, s.pairs[pair].key)
        if s.buckets[bucket] == pair:
            s.buckets[bucket] = s.pairs[pair].chain
        else:
            previous = s.buckets[bucket]
            while s.pairs[previous].chain != pair:
                previous = s.pairs[previous].chain
            s.pairs[previous].chain = s.pairs[pair].chain
        s.pairs[pair].next = s.clock[0].free_pair
        s.clock[0].free_pair = pair
        return True
    if final:
        s.pairs[pair].head = s.messages[message].next
    link.served = 1
    return bool(final)
