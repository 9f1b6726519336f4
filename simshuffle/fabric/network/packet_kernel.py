"""Compiled kernel of the packet network: lossless links with credits, FIFO input
buffers, round-robin outputs, virtual cut-through.

The kernel sees *links* (the output port of the tail, the input buffer of the head),
*messages* (bytes over a route of links), and the *packets* between them. Time is a
whole number of ticks, so that events which coincide by construction (a header that
arrives when the packet before it has just left) coincide exactly, whatever the order in
which their times were added up.

A packet costs few events, because nearly all that follows from its start on a link is
known at that moment: when the link is free again, when the header and the tail are at
the other end, when its credit is back at the tail of the link it came over. Only these
are events:

- *ask*: the packet at the head of an input buffer asks for its next link; one for every packet and
  link that enters a switch;
- *wake*: a link that was busy, or short of credits, can serve those who ask for it; only if
  somebody does;
- *end*: the last packet of a message has arrived; *timer*: a message without bytes has;
- *post*: a message joins the queue of its pair; these come in order from a list and never enter the
  queue of events.

Every link has at most one pending event of each of the first three kinds. Events of one
tick are handled in the order posts, ends, asks, wakes, timers; within a kind by link
number (timers: by message number). So an outcome depends on no address and on no order
of insertion.
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
    ask_for_link,
    empty_packet_state,
    enqueue_message,
    free_slot,
    new_packet,
    new_slot,
    pop_event,
    schedule_event,
    source_asks,
    take_packet,
)
from simshuffle.spec.compiling import at_address, compiled, entry

# of the address at which a packet network is held
state_at = at_address(empty_packet_state)


@compiled
def _release_message(s: PacketState, message: int, ended: bool) -> None:
    """Post a message now, or note its end if ``ended``; and post the messages for which
    this was the last to wait for.

    A message without links ends at once, one without bytes after its latencies. Ended
    messages are added to ``ended_messages`` unless that is empty.
    """
    s.messages[message].next = -1
    head = message
    tail = message
    while head >= 0:
        message = head
        head = s.messages[message].next
        if not ended and s.routes[message, 0] >= 0:
            if s.nbytes[message] > 0.0:
                enqueue_message(s, message, s.routes[message, 0])
                continue
            end_tick = s.clock[0].now
            for hop in range(s.routes.shape[1]):
                if s.routes[message, hop] >= 0:
                    end_tick += s.links[s.routes[message, hop]].latency
            schedule_event(
                s, end_tick, 3 * s.links.shape[0] + message
            )  # see `EVENT` for the keys
            continue
        ended = False
        s.finish[message] = s.clock[0].now * s.clock[0].tick
        s.clock[0].delivered += s.nbytes[message]
        s.clock[0].n_ended += 1
        if s.ended_messages.shape[0] > 0:
            s.ended_messages[s.clock[0].n_done] = message
            s.clock[0].n_done += 1
        if s.offsets.shape[0] > 0:
            for k in range(s.offsets[message], s.offsets[message + 1]):
                successor = s.following[k]
                s.messages[successor].waiting -= 1
                if s.messages[successor].waiting == 0:
                    s.messages[successor].next = -1
                    if head < 0:
                        head = successor
                    else:
                        s.messages[tail].next = successor
                    tail = successor


# -------------------------------------------------------------------------------------------- links


@compiled
def _await_credit(s: PacketState, link: int, needed: int) -> None:
    """Schedule ``link`` to wake when it has ``needed`` bytes of credit, if that moment
    is known; else the next credit sent back wakes it. Its wait is timed from now on, if
    it does not wait already.
    """
    record = s.links[link]
    if record.starved_at < 0:
        record.starved_at = s.clock[0].now
    credit = record.room
    slot = record.credit_head
    while slot >= 0:
        credit += int(np.ceil(s.slots[slot].nbytes))
        if credit >= needed:
            record.state = AWAKE
            schedule_event(s, s.slots[slot].header_at, 2 * s.links.shape[0] + link)
            return
        slot = s.slots[slot].next
    record.state = STARVED


@compiled
def _spend_credits(s: PacketState, link: int, nbytes: float) -> bool:
    """Spend credits of ``link``, in whole bytes, on a packet of ``nbytes`` bytes;
    return False if they do not suffice, and it waits for more.

    Credits that are back by now are added first. The most bytes reserved, and the ticks
    of a wait that is over, are noted.
    """
    record = s.links[link]
    now = s.clock[0].now
    slot = record.credit_head
    while slot >= 0 and s.slots[slot].header_at <= now:  # these are back by now
        record.room += int(np.ceil(s.slots[slot].nbytes))
        record.credit_head = s.slots[slot].next
        free_slot(s, slot)
        slot = record.credit_head
    needed = int(np.ceil(nbytes))
    if record.room < needed:
        _await_credit(s, link, needed)
        return False
    record.room -= needed
    record.peak = max(record.peak, s.clock[0].buffer - record.room)
    if record.starved_at >= 0:
        record.starved += now - record.starved_at
        record.starved_at = -1
    return True


@compiled
def _leave_buffer(s: PacketState, link: int, gone_tick: int) -> None:
    """Take the packet at the head out of the buffer of ``link``, which its tail leaves
    at tick ``gone_tick``: send its credit back, and let the next packet ask.
    """
    record = s.links[link]
    slot = record.head
    record.head = s.slots[slot].next
    record.read_at = gone_tick
    if record.head >= 0:
        schedule_event(
            s, max(gone_tick, s.slots[record.head].header_at), s.links.shape[0] + link
        )
    credit = new_slot(s)
    s.slots[credit].header_at = gone_tick + record.latency
    s.slots[credit].nbytes = s.slots[slot].nbytes
    if record.credit_head < 0:
        record.credit_head = credit
    else:
        s.slots[record.credit_tail].next = credit
    record.credit_tail = credit
    if record.state == STARVED:
        record.state = AWAKE
        schedule_event(s, gone_tick + record.latency, 2 * s.links.shape[0] + link)


@compiled
def _enter_buffer(
    s: PacketState, link: int, slot: int, next_link: int, hop: int
) -> None:
    """Put the packet that has just started on ``link`` into the buffer at its head; it
    goes to ``next_link``, at place ``hop`` of its route.
    """
    record = s.links[link]
    packet = s.slots[slot]
    packet.header_at = s.clock[0].now + record.latency
    packet.tail_at = record.free_at + record.latency
    packet.to = next_link
    packet.hop = hop
    packet.next = -1
    if record.head < 0:
        record.head = slot
        schedule_event(
            s, max(record.read_at, packet.header_at), s.links.shape[0] + link
        )
    else:
        s.slots[record.tail].next = slot
    record.tail = slot


@compiled
def _schedule_end(s: PacketState, link: int, message: int) -> None:
    """Schedule the end of a message whose last packet has just started on its last
    ``link``: when its tail is over.
    """
    record = s.links[link]
    s.messages[message].end_at = record.free_at + record.latency
    s.messages[message].next = -1
    if record.end_head < 0:
        record.end_head = message
        schedule_event(s, s.messages[message].end_at, link)
    else:
        s.messages[record.end_tail].next = message
    record.end_tail = message


@compiled
def _occupy_link(s: PacketState, link: int, nbytes: float, tail_at: int) -> None:
    """Occupy ``link`` from now on with a packet of ``nbytes`` bytes, whose tail can
    leave at tick ``tail_at`` at the earliest; count the packet, in full, for its
    statistics.
    """
    record = s.links[link]
    now = s.clock[0].now
    record.free_at = max(now + int(np.ceil(nbytes * record.ticks_per_byte)), tail_at)
    record.nbytes += nbytes
    record.packets += 1
    record.busy += record.free_at - now


@compiled
def _serve_link(s: PacketState, link: int) -> None:
    """Start the packet whose turn it is on the idle ``link``, for which somebody asks;
    or wait for credits. The last link of a route needs none.
    """
    record = s.links[link]
    num_links = s.links.shape[0]
    asker = record.ask_head
    slot = -1
    hop = 1  # place of the link after this one in the route
    tail_at = s.clock[0].now
    if asker < num_links:
        slot = s.links[asker].head
        nbytes = s.slots[slot].nbytes
        message = s.slots[slot].message
        hop = s.slots[slot].hop + 1
        tail_at = s.slots[slot].tail_at
    else:
        message = s.pairs[record.pair_head].head
        nbytes = min(s.clock[0].mtu, s.messages[message].left)
    next_link = s.routes[message, hop] if hop < s.routes.shape[1] else -1
    is_last_hop = next_link < 0
    if not is_last_hop and not _spend_credits(s, link, nbytes):
        return
    _occupy_link(s, link, nbytes, tail_at)
    if asker < num_links:
        record.ask_head = s.links[asker].ask_next
        _leave_buffer(s, asker, record.free_at)
        final = s.slots[slot].final == 1
        if is_last_hop:
            free_slot(s, slot)
    else:
        record.ask_head = record.source_next
        record.source_asks = 0
        final = take_packet(s, link, nbytes)
        if not is_last_hop:
            slot = new_packet(s, message, nbytes, final)
    record.state = IDLE
    if record.ask_head >= 0 or record.pair_head >= 0:
        record.state = AWAKE
        schedule_event(s, record.free_at, 2 * num_links + link)
    if not is_last_hop:
        _enter_buffer(s, link, slot, next_link, hop)
    elif final:
        _schedule_end(s, link, message)


# ------------------------------------------------------------------------------------------- events


@compiled
def _handle_end(s: PacketState, link: int) -> int:
    """Return the message that has just ended over ``link``, and schedule the next end."""
    message = s.links[link].end_head
    next_message = s.messages[message].next
    s.links[link].end_head = next_message
    if next_message >= 0:
        schedule_event(s, s.messages[next_message].end_at, link)
    return int(message)


@compiled
def _handle_header(s: PacketState, buffer: int) -> int:
    """Ask for the next link of the packet at the head of the buffer of link ``buffer``;
    return that link if it can serve now, else -1.
    """
    link = s.slots[s.links[buffer].head].to
    ask_for_link(s, link, buffer)
    if s.links[link].state != IDLE:
        return -1
    if s.links[link].free_at <= s.clock[0].now:
        return int(link)
    s.links[link].state = AWAKE
    schedule_event(s, s.links[link].free_at, 2 * s.links.shape[0] + link)
    return -1


@compiled
def _handle_wake(s: PacketState, link: int) -> int:
    """Wake ``link``, which can serve; its source asks if it has data, for the queue
    pair after the one whose packet has just left. Returns the link.
    """
    record = s.links[link]
    pair = record.pair_head
    if record.served == 1:
        record.served = 0
        if pair != record.pair_tail:
            record.pair_head = s.pairs[pair].next
            s.pairs[record.pair_tail].next = pair
            s.pairs[pair].next = -1
            record.pair_tail = pair
    if pair >= 0:
        source_asks(s, link)
    return link


@compiled
def _next_post_tick(s: PacketState) -> int:
    """Tick of the next post, rounded up and not before now; NEVER if there is none."""
    if s.clock[0].n_posted == s.posts.shape[0]:
        return NEVER
    return max(
        int(np.ceil(s.start[s.posts[s.clock[0].n_posted]] / s.clock[0].tick)),
        int(s.clock[0].now),
    )


@compiled
def _stop_reason(s: PacketState, tick: int, horizon: int, limit: int) -> int:
    """Return the reason why the event at ``tick`` is not to be run now; RUNNING if it
    is.
    """
    clock = s.clock[0]
    if tick > horizon or tick == NEVER:
        return DONE
    if clock.n_done > 0 and tick > clock.now:
        return ENDED
    if clock.n_events >= limit:
        return PAUSED
    if (
        clock.free_slot < 0 and clock.slots == s.slots.shape[0]
    ):  # an event takes one at most
        return FULL
    return RUNNING


@entry
def advance(state: int, horizon: int, limit: int) -> int:
    """Run at most ``limit`` events, up to tick ``horizon``; return the tick of the next
    event, NEVER if there is none.

    With a list ``ended_messages`` (as long as there are messages; empty for none) it
    stops after the first tick at which some message ends, and lists those.
    ``clock.status`` says why it stopped: DONE (no event up to the horizon), ENDED,
    PAUSED (the limit) or FULL (the caller must make ``slots`` longer).
    """
    s = state_at(state)
    num_links = s.links.shape[0]
    clock = s.clock[0]
    limit += clock.n_events
    post_at = _next_post_tick(s)
    while True:
        tick = post_at
        key = -1
        if clock.n_queue > 0 and s.queue[0].at < post_at:
            tick = s.queue[0].at
            key = s.queue[0].key
        clock.status = _stop_reason(s, tick, horizon, limit)
        if clock.status != RUNNING:
            return tick
        clock.now = tick
        clock.n_events += 1
        serving_link = -1
        message = -1
        if key < 0:
            message = s.posts[clock.n_posted]
            clock.n_posted += 1
            post_at = _next_post_tick(s)
        else:
            clock.n_queue -= 1
            pop_event(s.queue, clock.n_queue)
            if key < num_links:
                message = _handle_end(s, key)
            elif key < 2 * num_links:
                serving_link = _handle_header(s, key - num_links)
            elif key < 3 * num_links:
                serving_link = _handle_wake(s, key - 2 * num_links)
            else:
                message = key - 3 * num_links
        if serving_link >= 0:
            _serve_link(s, serving_link)
        if message >= 0:
            ended = key >= 0
            _release_message(s, message, ended)
