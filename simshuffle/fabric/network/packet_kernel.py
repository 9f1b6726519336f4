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

import numpy as np

from simshuffle.fabric.network.packet_records import (
    AWAKE,
    DONE,
    ENDED,
    FULL,
    IDLE,
    NEVER,
    PAUSED,
    RUNNING,
    STARVED,
    PacketState,
    ask,
    enqueue,
    free_slot,
    new_packet,
    new_slot,
    no_messages,
    pop,
    schedule,
    source_asks,
    take_packet,
)
from simshuffle.spec.compiling import at_address, compiled, entry

# of the address at which a packet network is held
state_at = at_address(no_messages)


@compiled
def _release(s: PacketState, message: int, ended: bool) -> None:
    """Post a message now, or note its end if ``ended``; and post those for which this was the last
    to wait for."""
    s.messages[message].next = -1
    head, tail = message, message
    while head >= 0:
        message = head
        head = s.messages[message].next
        if not ended and s.routes[message, 0] >= 0:
            if s.nbytes[message] > 0.0:
                enqueue(s, message, s.routes[message, 0])
                continue
            at = s.clock[0].now
            for hop in range(s.routes.shape[1]):
                if s.routes[message, hop] >= 0:
                    at += s.links[s.routes[message, hop]].latency
            schedule(s, at, 3 * s.links.shape[0] + message)  # see `EVENT` for the keys
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
def _await_credit(s: PacketState, link: int, need: int) -> None:
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
            schedule(s, s.slots[slot].header_at, 2 * s.links.shape[0] + link)
            return
        slot = s.slots[slot].next
    this.state = STARVED


@compiled
def _reserve(s: PacketState, link: int, nbytes: float) -> bool:
    """Spend credits of ``link`` on a packet; False if they do not suffice, and it waits for
    more."""
    this = s.links[link]
    now = s.clock[0].now
    slot = this.credit_head
    while slot >= 0 and s.slots[slot].header_at <= now:  # these are back by now
        this.room += int(np.ceil(s.slots[slot].nbytes))
        this.credit_head = s.slots[slot].next
        free_slot(s, slot)
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
def _leave(s: PacketState, link: int, until: int) -> None:
    """Take the packet at the head out of the buffer of ``link``, from where its tail is gone at
    tick ``until``."""
    this = s.links[link]
    slot = this.head
    this.head = s.slots[slot].next
    this.read_at = until
    if this.head >= 0:
        schedule(s, max(until, s.slots[this.head].header_at), s.links.shape[0] + link)
    credit = new_slot(s)
    s.slots[credit].header_at = until + this.latency
    s.slots[credit].nbytes = s.slots[slot].nbytes
    if this.credit_head < 0:
        this.credit_head = credit
    else:
        s.slots[this.credit_tail].next = credit
    this.credit_tail = credit
    if this.state == STARVED:
        this.state = AWAKE
        schedule(s, until + this.latency, 2 * s.links.shape[0] + link)


@compiled
def _arrive(s: PacketState, link: int, slot: int, to: int, hop: int) -> None:
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
        schedule(s, max(this.read_at, packet.header_at), s.links.shape[0] + link)
    else:
        s.slots[this.tail].next = slot
    this.tail = slot


@compiled
def _deliver(s: PacketState, link: int, message: int) -> None:
    """The last packet of a message has just started on its last ``link``: it ends when its tail is
    over."""
    this = s.links[link]
    s.messages[message].end_at = this.free_at + this.latency
    s.messages[message].next = -1
    if this.end_head < 0:
        this.end_head = message
        schedule(s, s.messages[message].end_at, link)
    else:
        s.messages[this.end_tail].next = message
    this.end_tail = message


@compiled
def _hold(s: PacketState, link: int, nbytes: float, tail_at: int) -> None:
    """Have ``link`` held by a packet from now on, whose tail can leave at ``tail_at`` at the
    earliest."""
    this = s.links[link]
    now = s.clock[0].now
    this.free_at = max(now + int(np.ceil(nbytes * this.ticks_per_byte)), tail_at)
    this.nbytes += nbytes
    this.packets += 1
    this.busy += this.free_at - now


@compiled
def _serve(s: PacketState, link: int) -> None:
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
            free_slot(s, slot)
    else:
        this.ask_head = this.source_next
        this.source_asks = 0
        final = take_packet(s, link, nbytes)
        if not last:
            slot = new_packet(s, message, nbytes, final)
    this.state = IDLE
    if this.ask_head >= 0 or this.pair_head >= 0:
        this.state = AWAKE
        schedule(s, this.free_at, 2 * count + link)
    if not last:
        _arrive(s, link, slot, to, hop)
    elif final:
        _deliver(s, link, message)


# ------------------------------------------------------------------------------------------- events


@compiled
def _on_end(s: PacketState, link: int) -> int:
    """The message that has just ended over ``link``."""
    message = s.links[link].end_head
    following = s.messages[message].next
    s.links[link].end_head = following
    if following >= 0:
        schedule(s, s.messages[following].end_at, link)
    return int(message)


@compiled
def _on_header(s: PacketState, buffer: int) -> int:
    """The packet at the head of the buffer of a link asks for its next link, which is returned if
    it can serve now; else -1."""
    link = s.slots[s.links[buffer].head].to
    ask(s, link, buffer)
    if s.links[link].state != IDLE:
        return -1
    if s.links[link].free_at <= s.clock[0].now:
        return int(link)
    s.links[link].state = AWAKE
    schedule(s, s.links[link].free_at, 2 * s.links.shape[0] + link)
    return -1


@compiled
def _on_wake(s: PacketState, link: int) -> int:
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
        source_asks(s, link)
    return link


@compiled
def _post_at(s: PacketState) -> int:
    """Tick of the next post, NEVER if there is none."""
    if s.clock[0].n_posted == s.posts.shape[0]:
        return NEVER
    return max(
        int(np.ceil(s.start[s.posts[s.clock[0].n_posted]] / s.clock[0].tick)), int(s.clock[0].now)
    )


@compiled
def _why_stop(s: PacketState, at: int, horizon: int, limit: int) -> int:
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
def advance(state: int, horizon: int, limit: int) -> int:
    """Run events up to tick ``horizon``, ``limit`` of them at most.

    With a list ``done`` (as long as there are messages; empty for none) it stops after the first
    tick at which some message ends, and lists those. Returns the tick of the next event;
    ``clock.status`` says why it stopped: DONE (no event up to the horizon), ENDED, PAUSED (the
    limit) or FULL (the caller must make ``slots`` longer).
    """
    s = state_at(state)
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
