"""Queues of the packet network: events, packets, those who ask for a link, queue pairs."""

from __future__ import annotations

from simshuffle.network.packet_records import AWAKE, IDLE, Records, State
from simshuffle.spec.compiling import compiled


@compiled
def push(queue: Records, n: int, at: int, key: int) -> None:
    """Put an event into the queue of ``n`` events, a binary heap by time and key."""
    pos = n  # below place k are 2k + 1 and 2k + 2
    while pos > 0:
        parent = (pos - 1) >> 1
        above = queue[parent]
        if above.at < at or (above.at == at and above.key < key):
            break
        queue[pos].at = above.at
        queue[pos].key = above.key
        pos = parent
    queue[pos].at = at
    queue[pos].key = key


@compiled
def pop(queue: Records, n: int) -> None:
    """Take out the first event, so that ``n`` are left."""
    at = queue[n].at
    key = queue[n].key
    pos = 0
    while True:
        child = 2 * pos + 1
        if child >= n:
            break
        a = queue[child].at
        if child + 1 < n:
            b = queue[child + 1].at
            if b < a or (b == a and queue[child + 1].key < queue[child].key):
                child += 1
                a = b
        if a > at or (a == at and queue[child].key > key):
            break
        queue[pos].at = a
        queue[pos].key = queue[child].key
        pos = child
    queue[pos].at = at
    queue[pos].key = key


@compiled
def schedule(s: State, at: int, key: int) -> None:
    """Put an event into the queue."""
    push(s.queue, s.clock[0].n_queue, at, key)
    s.clock[0].n_queue += 1


@compiled
def new_slot(s: State) -> int:
    """An unused slot."""
    slot = s.clock[0].free_slot
    if slot >= 0:
        s.clock[0].free_slot = s.slots[slot].next
    else:
        slot = s.clock[0].slots
        s.clock[0].slots = slot + 1
    s.slots[slot].next = -1
    return int(slot)


@compiled
def free_slot(s: State, slot: int) -> None:
    """Give back a slot."""
    s.slots[slot].next = s.clock[0].free_slot
    s.clock[0].free_slot = slot


@compiled
def new_packet(s: State, message: int, nbytes: float, final: bool) -> int:
    """The slot of a new packet; ``final``: the last one of its message."""
    slot = new_slot(s)
    s.slots[slot].nbytes = nbytes
    s.slots[slot].message = message
    s.slots[slot].final = 1 if final else 0
    return slot


@compiled
def _bucket(s: State, link: int, key: int) -> int:
    # odd multipliers spread neighbouring numbers; buckets are a power of two
    return int((link * 0x9E3779B1 + key * 0x85EBCA6B) & (s.buckets.shape[0] - 1))


@compiled
def ask(s: State, link: int, who: int) -> None:
    """Put ``who`` behind those that ask for ``link``."""
    count = s.links.shape[0]
    if s.links[link].ask_head < 0:
        s.links[link].ask_head = who
    elif s.links[link].ask_tail < count:
        s.links[s.links[link].ask_tail].ask_next = who
    else:
        s.links[link].source_next = who
    s.links[link].ask_tail = who
    if who < count:
        s.links[who].ask_next = -1
    else:
        s.links[link].source_next = -1


@compiled
def source_asks(s: State, link: int) -> None:
    """The source of ``link`` has data and asks for it, if it does not already."""
    if s.links[link].source_asks == 0:
        s.links[link].source_asks = 1
        ask(s, link, s.links.shape[0] + link)


@compiled
def enqueue(s: State, message: int, first: int) -> None:
    """Put a message behind those of its queue pair; ``first`` is its first link."""
    key = s.messages[message].pair
    s.messages[message].next = -1
    bucket = _bucket(s, first, key)
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
        schedule(s, max(s.clock[0].now, link.free_at), 2 * s.links.shape[0] + first)


@compiled
def take_packet(s: State, first: int, nbytes: float) -> bool:
    """The source sends a packet of the queue pair in turn; True if it is the last one of its
    message."""
    link = s.links[first]
    pair = link.pair_head
    message = s.pairs[pair].head
    s.messages[message].left -= nbytes
    final = s.messages[message].left <= 0.0
    if final and s.messages[message].next < 0:
        link.pair_head = s.pairs[pair].next
        bucket = _bucket(s, first, s.pairs[pair].key)
        if s.buckets[bucket] == pair:
            s.buckets[bucket] = s.pairs[pair].chain
        else:
            other = s.buckets[bucket]
            while s.pairs[other].chain != pair:
                other = s.pairs[other].chain
            s.pairs[other].chain = s.pairs[pair].chain
        s.pairs[pair].next = s.clock[0].free_pair
        s.clock[0].free_pair = pair
        return True
    if final:
        s.pairs[pair].head = s.messages[message].next
    link.served = 1
    return bool(final)
