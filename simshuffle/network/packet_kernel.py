"""Compiled kernel of the packet network: lossless links with credits, FIFO input buffers,
round-robin outputs, virtual cut-through.

The kernel sees *links* (the output port of the tail, the input buffer of the head), *messages*
(bytes over a route of links), and the *packets* between them. Time is a whole number of ticks, so
that events which coincide by construction (a header that arrives when the packet before it has just
left) coincide exactly, whatever the order in which their times were added up.

A packet costs few events, because nearly all that follows from its start on a link is known at that
moment: when the link is free again, when the header and the tail are at the other end, when its
credit is back at the tail of the link it came over. Only these are events:

- *ask*: the packet at the head of an input buffer asks for its next link; one for every packet and
  link that enters a switch;
- *wake*: a link that was busy, or short of credits, can serve those who ask for it; only if
  somebody does;
- *end*: the last packet of a message has arrived; *timer*: a message without bytes has;
- *post*: a message joins the queue of its pair; these come in order from a list and never enter the
  queue of events.

Every link has at most one pending event of each of the first three kinds. Events of one tick are
handled in the order posts, ends, asks, wakes, timers; within a kind by link number (timers: by
message number). So an outcome depends on no address and on no order of insertion.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simshuffle.network.compiling import compiled, entry

Records = Any  # a record array; its fields are those of the dtypes below
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]

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
    """All that the kernel works on.

    Attributes:
        links: (links,) `LINK`.
        slots: (any,) `SLOT`, packets and credits.
        pairs: (messages,) `PAIR`.
        buckets: (a power of two,) hash table of the queue pairs.
        queue: (3 * links + messages,) `EVENT`, a heap.
        messages: (messages,) `MESSAGE`.
        nbytes: (messages,) bytes.
        routes: (messages, hops) links, padded with -1 at the end.
        start: (messages,) s, not posted before.
        posts: (any,) messages to post, in order of ``start``.
        offsets, following: messages that wait for others: see
            `simshuffle.network.order.successors`; both empty if none do.
        finish: (messages,) s, filled as messages end.
        done: (messages,) filled with the messages that ended since the caller last looked; empty if
            the caller does not.
        clock: (1,) `CLOCK`.
    """

    links: Records
    slots: Records
    pairs: Records
    buckets: Ints
    queue: Records
    messages: Records
    nbytes: Floats
    routes: Ints
    start: Floats
    posts: Ints
    offsets: Longs
    following: Ints
    finish: Floats
    done: Ints
    clock: Records


# ---------------------------------------------------------------------------------- queue of events


@compiled
def push(queue: Records, n: int, at: int, key: int) -> None:
    """Put an event into the queue of ``n`` events, a binary heap by time and key."""
    pos = n
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
def _schedule(s: State, at: int, key: int) -> None:
    push(s.queue, s.clock[0].n_queue, at, key)
    s.clock[0].n_queue += 1


# -------------------------------------------------------------------------------------------- pools


@compiled
def _new_slot(s: State) -> int:
    slot = s.clock[0].free_slot
    if slot >= 0:
        s.clock[0].free_slot = s.slots[slot].next
    else:
        slot = s.clock[0].slots
        s.clock[0].slots = slot + 1
    s.slots[slot].next = -1
    return int(slot)


@compiled
def _free_slot(s: State, slot: int) -> None:
    s.slots[slot].next = s.clock[0].free_slot
    s.clock[0].free_slot = slot


@compiled
def _new_packet(s: State, message: int, nbytes: float, final: bool) -> int:
    slot = _new_slot(s)
    s.slots[slot].nbytes = nbytes
    s.slots[slot].message = message
    s.slots[slot].final = 1 if final else 0
    return slot


@compiled
def _bucket(s: State, link: int, key: int) -> int:
    return int((link * 0x9E3779B1 + key * 0x85EBCA6B) & (s.buckets.shape[0] - 1))


@compiled
def _ask(s: State, link: int, who: int) -> None:
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
def _source_asks(s: State, link: int) -> None:
    """The source of ``link`` has data and asks for it, if it does not already."""
    if s.links[link].source_asks == 0:
        s.links[link].source_asks = 1
        _ask(s, link, s.links.shape[0] + link)


# ----------------------------------------------------------------------------------------- messages


@compiled
def _enqueue(s: State, message: int, first: int) -> None:
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
        _source_asks(s, first)
    if link.state == IDLE:
        link.state = AWAKE
        _schedule(s, max(s.clock[0].now, link.free_at), 2 * s.links.shape[0] + first)


@compiled
def _take(s: State, first: int, nbytes: float) -> bool:
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


@compiled
def _release(s: State, message: int, ended: bool) -> None:
    """Post a message now, or note its end if ``ended``; and post those for which this was the last
    to wait for."""
    s.messages[message].next = -1
    head, tail = message, message
    while head >= 0:
        message = head
        head = s.messages[message].next
        if not ended and s.routes[message, 0] >= 0:
            if s.nbytes[message] > 0.0:
                _enqueue(s, message, s.routes[message, 0])
                continue
            at = s.clock[0].now
            for hop in range(s.routes.shape[1]):
                if s.routes[message, hop] >= 0:
                    at += s.links[s.routes[message, hop]].latency
            _schedule(s, at, 3 * s.links.shape[0] + message)
            continue
        ended = False
        s.finish[message] = s.clock[0].now * s.clock[0].tick
        s.clock[0].delivered += s.nbytes[message]
        s.clock[0].n_ended += 1
        if s.done.shape[0] > 0:
            s.done[s.clock[0].n_done] = message
            s.clock[0].n_done += 1
        if s.offsets.shape[0] > 0:
            for k in range(s.offsets[message], s.offsets[message + 1]):
                other = s.following[k]
                s.messages[other].waiting -= 1
                if s.messages[other].waiting == 0:
                    s.messages[other].next = -1
                    if head < 0:
                        head = other
                    else:
                        s.messages[tail].next = other
                    tail = other


# -------------------------------------------------------------------------------------------- links


@compiled
def _await_credit(s: State, link: int, need: int) -> None:
    """Have ``link`` wake when it has ``need`` bytes of credit, if that moment is known; else the
    next credit sent back wakes it."""
    this = s.links[link]
    if this.starved_at < 0:
        this.starved_at = s.clock[0].now
    have = this.room
    slot = this.credit_head
    while slot >= 0:
        have += int(np.ceil(s.slots[slot].nbytes))
        if have >= need:
            this.state = AWAKE
            _schedule(s, s.slots[slot].header_at, 2 * s.links.shape[0] + link)
            return
        slot = s.slots[slot].next
    this.state = STARVED


@compiled
def _reserve(s: State, link: int, nbytes: float) -> bool:
    """Spend credits of ``link`` on a packet; False if they do not suffice, and it waits for
    more."""
    this = s.links[link]
    now = s.clock[0].now
    slot = this.credit_head
    while slot >= 0 and s.slots[slot].header_at <= now:  # these are back by now
        this.room += int(np.ceil(s.slots[slot].nbytes))
        this.credit_head = s.slots[slot].next
        _free_slot(s, slot)
        slot = this.credit_head
    need = int(np.ceil(nbytes))
    if this.room < need:
        _await_credit(s, link, need)
        return False
    this.room -= need
    this.peak = max(this.peak, s.clock[0].buffer - this.room)
    if this.starved_at >= 0:
        this.starved += now - this.starved_at
        this.starved_at = -1
    return True


@compiled
def _leave(s: State, link: int, until: int) -> None:
    """Take the packet at the head out of the buffer of ``link``, from where its tail is gone at
    tick ``until``."""
    this = s.links[link]
    slot = this.head
    this.head = s.slots[slot].next
    this.read_at = until
    if this.head >= 0:
        _schedule(s, max(until, s.slots[this.head].header_at), s.links.shape[0] + link)
    credit = _new_slot(s)
    s.slots[credit].header_at = until + this.latency
    s.slots[credit].nbytes = s.slots[slot].nbytes
    if this.credit_head < 0:
        this.credit_head = credit
    else:
        s.slots[this.credit_tail].next = credit
    this.credit_tail = credit
    if this.state == STARVED:
        this.state = AWAKE
        _schedule(s, until + this.latency, 2 * s.links.shape[0] + link)


@compiled
def _arrive(s: State, link: int, slot: int, to: int, hop: int) -> None:
    """Put the packet that has just started on ``link`` into the buffer at its head; it goes ``to``
    the link at place ``hop`` next."""
    this = s.links[link]
    packet = s.slots[slot]
    packet.header_at = s.clock[0].now + this.latency
    packet.tail_at = this.free_at + this.latency
    packet.to = to
    packet.hop = hop
    packet.next = -1
    if this.head < 0:
        this.head = slot
        _schedule(s, max(this.read_at, packet.header_at), s.links.shape[0] + link)
    else:
        s.slots[this.tail].next = slot
    this.tail = slot


@compiled
def _deliver(s: State, link: int, message: int) -> None:
    """The last packet of a message has just started on its last ``link``: it ends when its tail is
    over."""
    this = s.links[link]
    s.messages[message].end_at = this.free_at + this.latency
    s.messages[message].next = -1
    if this.end_head < 0:
        this.end_head = message
        _schedule(s, s.messages[message].end_at, link)
    else:
        s.messages[this.end_tail].next = message
    this.end_tail = message


@compiled
def _hold(s: State, link: int, nbytes: float, tail_at: int) -> None:
    """Have ``link`` held by a packet from now on, whose tail can leave at ``tail_at`` at the
    earliest."""
    this = s.links[link]
    now = s.clock[0].now
    this.free_at = max(now + int(np.ceil(nbytes * this.ticks_per_byte)), tail_at)
    this.nbytes += nbytes
    this.packets += 1
    this.busy += this.free_at - now


@compiled
def _serve(s: State, link: int) -> None:
    """Start the packet whose turn it is on the idle ``link``, for which somebody asks; or wait for
    credits."""
    this = s.links[link]
    count = s.links.shape[0]
    who = this.ask_head
    slot = -1
    hop = 1  # place of the link after this one in the route
    tail_at = s.clock[0].now
    if who < count:
        slot = s.links[who].head
        nbytes = s.slots[slot].nbytes
        message = s.slots[slot].message
        hop = s.slots[slot].hop + 1
        tail_at = s.slots[slot].tail_at
    else:
        message = s.pairs[this.pair_head].head
        nbytes = min(s.clock[0].mtu, s.messages[message].left)
    to = s.routes[message, hop] if hop < s.routes.shape[1] else -1
    last = to < 0
    if not last and not _reserve(s, link, nbytes):
        return
    _hold(s, link, nbytes, tail_at)
    if who < count:
        this.ask_head = s.links[who].ask_next
        _leave(s, who, this.free_at)
        final = s.slots[slot].final == 1
        if last:
            _free_slot(s, slot)
    else:
        this.ask_head = this.source_next
        this.source_asks = 0
        final = _take(s, link, nbytes)
        if not last:
            slot = _new_packet(s, message, nbytes, final)
    this.state = IDLE
    if this.ask_head >= 0 or this.pair_head >= 0:
        this.state = AWAKE
        _schedule(s, this.free_at, 2 * count + link)
    if not last:
        _arrive(s, link, slot, to, hop)
    elif final:
        _deliver(s, link, message)


# ------------------------------------------------------------------------------------------- events


@compiled
def _on_end(s: State, link: int) -> int:
    """The message that has just ended over ``link``."""
    message = s.links[link].end_head
    following = s.messages[message].next
    s.links[link].end_head = following
    if following >= 0:
        _schedule(s, s.messages[following].end_at, link)
    return int(message)


@compiled
def _on_header(s: State, buffer: int) -> int:
    """The packet at the head of the buffer of a link asks for its next link, which is returned if
    it can serve now; else -1."""
    link = s.slots[s.links[buffer].head].to
    _ask(s, link, buffer)
    if s.links[link].state != IDLE:
        return -1
    if s.links[link].free_at <= s.clock[0].now:
        return int(link)
    s.links[link].state = AWAKE
    _schedule(s, s.links[link].free_at, 2 * s.links.shape[0] + link)
    return -1


@compiled
def _on_wake(s: State, link: int) -> int:
    """The ``link`` can serve; its source asks if it has data, for the queue pair after that whose
    packet has just left."""
    this = s.links[link]
    pair = this.pair_head
    if this.served == 1:
        this.served = 0
        if pair != this.pair_tail:
            this.pair_head = s.pairs[pair].next
            s.pairs[this.pair_tail].next = pair
            s.pairs[pair].next = -1
            this.pair_tail = pair
    if pair >= 0:
        _source_asks(s, link)
    return link


@compiled
def _post_at(s: State) -> int:
    """Tick of the next post, NEVER if there is none."""
    if s.clock[0].n_posted == s.posts.shape[0]:
        return NEVER
    return max(
        int(np.ceil(s.start[s.posts[s.clock[0].n_posted]] / s.clock[0].tick)), int(s.clock[0].now)
    )


@compiled
def _why_stop(s: State, at: int, horizon: int, limit: int) -> int:
    """Why the event at tick ``at`` is not to be run now; RUNNING if it is."""
    this = s.clock[0]
    if at > horizon or at == NEVER:
        return DONE
    if this.n_done > 0 and at > this.now:
        return ENDED
    if this.n_events >= limit:
        return PAUSED
    if this.free_slot < 0 and this.slots == s.slots.shape[0]:  # an event takes one at most
        return FULL
    return RUNNING


@entry
def advance(s: State, horizon: int, limit: int) -> int:
    """Run events up to tick ``horizon``, ``limit`` of them at most.

    With a list ``done`` (as long as there are messages; empty for none) it stops after the first
    tick at which some message ends, and lists those. Returns the tick of the next event;
    ``clock.status`` says why it stopped: DONE (no event up to the horizon), ENDED, PAUSED (the
    limit) or FULL (the caller must make ``slots`` longer).
    """
    count = s.links.shape[0]
    this = s.clock[0]
    limit += this.n_events
    post_at = _post_at(s)
    while True:
        at = post_at
        key = -1
        if this.n_queue > 0 and s.queue[0].at < post_at:
            at = s.queue[0].at
            key = s.queue[0].key
        this.status = _why_stop(s, at, horizon, limit)
        if this.status != RUNNING:
            return at
        this.now = at
        this.n_events += 1
        serve = -1
        message = -1
        if key < 0:
            message = s.posts[this.n_posted]
            this.n_posted += 1
            post_at = _post_at(s)
        else:
            this.n_queue -= 1
            pop(s.queue, this.n_queue)
            if key < count:
                message = _on_end(s, key)
            elif key < 2 * count:
                serve = _on_header(s, key - count)
            elif key < 3 * count:
                serve = _on_wake(s, key - 2 * count)
            else:
                message = key - 3 * count
        if serve >= 0:
            _serve(s, serve)
        if message >= 0:
            ended = key >= 0
            _release(s, message, ended)
