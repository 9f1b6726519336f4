"""The laws of the packet network, by hand, and against the fluid network where both must agree.

Units are chosen for the head: capacity 1 GB/s = 1 B/ns and packets of 4000 B, so that one packet
takes 4 us on a link. Times are rounded up to ticks of 57 fs, one for each packet: 2e-8 of 4 us, so
that "exact" means within 1e-7 here.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simshuffle.errors import SimulationError, TopologyError
from simshuffle.fabric.network import Analytic, Flows, Fluid, Links, Packet
from simshuffle.fabric.network.deadlock import ChannelDependencies, find_circle
from simshuffle.fabric.network.packet import PacketNetwork
from simshuffle.fabric.network.packet_records import TICK
from simshuffle.fabric.network.packet_run import _choose_tick, run
from simshuffle.fabric.routing import ForwardingTable
from tests.strategies import fat_tree

MTU = 4000
GB = 1e9
SLOT = MTU / GB  # s
EXACT = 1e-7


def packet(mtu=MTU, buffer=16 * MTU):
    return Packet.model_validate({"mtu": f"{mtu} B", "port_buffer": f"{buffer} B"})


def run_of(model, links, flows, **more):
    return run(links, flows, model.mtu, model.port_buffer, **more)


def links_of(count, capacity=GB, latency=1e-6, names=()):
    return Links(np.full(count, float(capacity)), np.full(count, float(latency)), names)


def star(hosts, **more):
    """Links of a star: host i injects on link i, host j receives on link hosts + j."""
    return links_of(2 * hosts, **more), lambda src, dst: [src, hosts + dst]


def tree(levels=2, arity=4, latency=None):
    """A full-bisection fat tree: its links, routes between all its endpoints by D-mod-K, and their
    number."""
    table = ForwardingTable(fat_tree(levels, arity).graph())
    hosts = arity**levels
    links = Links(
        table.links.capacity,
        table.links.latency if latency is None else np.full(len(table.links.capacity), latency),
    )
    return (
        links,
        lambda src, dst: table.routes(np.asarray(src, np.int32), np.asarray(dst, np.int32)),
        hosts,
    )


def random_traffic(hosts, count, seed, smallest=1.0, largest=20e3):
    rng = np.random.default_rng(seed)
    src = rng.integers(hosts, size=count)
    dst = (src + rng.integers(1, hosts, size=count)) % hosts
    return src, dst, rng.uniform(smallest, largest, count)


# -------------------------------------------------------------------------------------- one message


@pytest.mark.parametrize("nbytes", [1, MTU - 1, MTU, MTU + 1, 50_123.5, 2e6])
def test_one_message_takes_its_latencies_and_its_bytes(nbytes):
    # Cut-through with equal capacities: the tail follows the header without gaps, so every link
    # adds its latency only.
    links = Links(np.full(3, GB), np.array([1e-6, 2e-6, 4e-6]))
    ends = packet().finish_times(links, Flows.from_lists([[0, 1, 2]], [nbytes], [0.25])).finish
    assert ends == pytest.approx(
        [0.25 + 7e-6 + nbytes / GB], rel=1e-12, abs=EXACT * nbytes / GB + 1e-12
    )


@pytest.mark.parametrize(
    "speeds", [(1, 2, 4), (4, 2, 1), (2, 1, 4), (4, 1, 2), (1, 4, 1), (4, 1, 4)]
)
@pytest.mark.parametrize("nbytes", [777, 20 * MTU, 20 * MTU + 777])
def test_one_message_over_links_of_different_speeds(speeds, nbytes):
    """Start + latencies + bytes / slowest, without any term of pipeline filling.

    Slow to fast: the fast link is held until the tail has come in, so it ends one latency after the
    slow one. Fast to slow: the slow link begins with the first header, and the packets behind it
    are there in time. The buffer holds all 21 packets, and so never throttles.
    """
    links = Links(GB * np.array(speeds, float), np.array([1e-6, 3e-6, 2e-6]))
    ends = (
        packet(buffer=21 * MTU).finish_times(links, Flows.from_lists([[0, 1, 2]], [nbytes])).finish
    )
    assert ends == pytest.approx([6e-6 + nbytes / (GB * min(speeds))], rel=EXACT)


def test_a_short_buffer_on_the_way_to_a_slow_link_costs_nothing_more():
    # 2 packets of room in front of a link of half the speed: the slow link always has the next
    # packet waiting while it sends one. The credit of packet k is back 0.1 us after it left, packet
    # k + 2 then needs 4 us + 0.1 us, less than the 8 us of packet k + 1.
    links = Links(np.array([GB, GB / 2]), np.array([1e-7, 1e-7]))
    ends = packet(buffer=2 * MTU).finish_times(links, Flows.from_lists([[0, 1]], [40 * MTU])).finish
    assert ends == pytest.approx([2e-7 + 80 * SLOT], rel=EXACT)


# ------------------------------------------------------------------------------------------ sharing


def test_two_flows_share_a_link():
    # Two hosts send 100 packets each to a third. They take turns on its link, which is busy from
    # the first header (1 us) on: the one served last ends after 200 slots, the other one slot
    # before.
    links, route = star(3)
    ends = (
        packet()
        .finish_times(links, Flows.from_lists([route(0, 2), route(1, 2)], [100 * MTU] * 2))
        .finish
    )
    assert ends == pytest.approx([2e-6 + 199 * SLOT, 2e-6 + 200 * SLOT], rel=EXACT)


@pytest.mark.parametrize("shift", range(1, 16))
def test_a_linear_shift_without_conflicts_runs_as_fluid(shift):
    """D-mod-K gives every destination its own chain of links, so a shift on full bisection has one
    flow on each link.

    Both networks then give latency + bytes / capacity; fluid is asked too, so that a collision in
    the routing would be seen.
    """
    links, routes, hosts = tree()
    src = np.arange(hosts)
    flows = Flows(routes(src, (src + shift) % hosts), np.linspace(1e5, 3e5, hosts), np.zeros(hosts))
    alone = Analytic().finish_times(links, flows).finish
    assert Fluid().finish_times(links, flows).finish == pytest.approx(alone, rel=1e-9)
    assert packet().finish_times(links, flows).finish == pytest.approx(alone, rel=1e-6)


def test_fair_shares_of_one_bottleneck_are_those_of_fluid():
    # Six hosts send 200 to 700 packets to one: turns of one packet are fair shares, up to one round
    # of 6 packets at every end.
    links, route = star(7)
    flows = Flows.from_lists(
        [route(i, 6) for i in range(6)], [(200 + 100 * i) * MTU for i in range(6)]
    )
    ends = packet().finish_times(links, flows).finish
    assert ends == pytest.approx(Fluid().finish_times(links, flows).finish, rel=0.03)


def test_inputs_share_an_output_whatever_is_behind_them():
    """The parking lot: A and B come in together over one link, C over its own; D's link serves the
    two inputs in turn.

    So C has half of D's link and ends its n bytes at 2 n / C; A and B had n / 2 each by then, have
    the link to themselves, and end at 3 n / C. Max-min fairness would give each a third: all end at
    3 n / C.
    """
    # links: 0 A, 1 B, 2 between the switches, 3 C, 4 to D
    links, n = links_of(5), 400 * MTU
    flows = Flows.from_lists([[0, 2, 4], [1, 2, 4], [3, 4]], [n] * 3)
    ends = packet().finish_times(links, flows).finish
    assert ends == pytest.approx(np.array([3, 3, 2]) * n / GB, rel=0.01)
    assert Fluid().finish_times(links, flows).finish == pytest.approx([3 * n / GB] * 3, rel=0.01)


def test_a_sender_takes_its_queue_pairs_in_turn():
    # Ten messages of 50 packets to host 1 are posted before one of 50 packets to host 2: turns of
    # one packet, so the last one needs 100 slots. In one queue pair with the others it is sent
    # after them, and needs 550.
    links, route = star(3)
    flows = Flows.from_lists([route(0, 1)] * 10 + [route(0, 2)], [50 * MTU] * 11)
    assert packet().finish_times(links, flows).finish[10] == pytest.approx(
        2e-6 + 100 * SLOT, rel=0.011
    )
    assert run_of(packet(), links, flows, pair=np.zeros(11, int)).outcome.finish[
        10
    ] == pytest.approx(2e-6 + 550 * SLOT, rel=EXACT)


def test_messages_of_a_queue_pair_go_in_order_of_posting():
    # the later index is posted earlier: 3 packets from 0 s, then 2 packets from 1 us on wait until
    # 12 us
    links, route = star(2)
    ends = (
        packet()
        .finish_times(links, Flows.from_lists([route(0, 1)] * 2, [2 * MTU, 3 * MTU], [1e-6, 0.0]))
        .finish
    )
    assert ends == pytest.approx([2e-6 + 5 * SLOT, 2e-6 + 3 * SLOT], rel=EXACT)


# --------------------------------------------------------------------------------------- congestion


def test_a_hot_spot_slows_down_a_flow_that_does_not_go_there():
    """Head-of-line blocking: A, B and C send to D, V sends to the idle E, all over one link of 4
    times the speed between two switches.

    Fluid: 2 of the 4 GB/s between the switches are used, V has its full 1 GB/s. Packets: the buffer
    behind that link fills with packets for D, so the link waits for credits and takes its four
    inputs in turn. The FIFO behind it holds A B C V A B C V ... and is read at 1 GB/s, one output
    at a time: V gets every fourth slot, the rate of each hot flow, and takes 4 times as long. Only
    the packets that pass before the buffer is full, 16 of 200, are faster.
    """
    # links: 0-3 A B C V, 4 between the switches, 5 D, 6 E
    links = Links(GB * np.array([1, 1, 1, 1, 4, 1, 1.0]), np.full(7, 1e-7))
    flows = Flows.from_lists(
        [[0, 4, 5], [1, 4, 5], [2, 4, 5], [3, 4, 6]], [800 * MTU] * 3 + [200 * MTU]
    )
    alone = 200 * MTU / GB
    done = run_of(packet(), links, flows)
    assert done.outcome.finish[3] / alone == pytest.approx(4, rel=0.05)
    assert Fluid().finish_times(links, flows).finish[3] / alone == pytest.approx(1, rel=0.01)
    # while V is at work every input gets a fourth; then D's link is full: 3 * 800 slots and the 200
    # that V took from it
    assert done.outcome.makespan == pytest.approx(2600 * SLOT, rel=0.02)
    # the link between the switches is busy for a quarter of a slot a packet and else has no credits
    assert done.statistics.busy[4] + done.statistics.blocked[4] == pytest.approx(
        2600 * SLOT, rel=0.02
    )
    assert done.statistics.blocked[4] == pytest.approx(0.75 * 2600 * SLOT, rel=0.02)
    assert done.statistics.peak_buffer[4] == 16 * MTU


@pytest.mark.parametrize(("ports", "share"), [(2, 0.75), (3, 0.6825), (4, 0.6553), (8, 0.6184)])
def test_input_fifos_saturate_as_known(ports, share):
    """Saturation throughput of a switch with FIFO inputs under uniform random traffic: Karol,
    Hluchyj & Morgan (1987), table I.

    Every message is a packet, and all of a source are in one queue pair, so that they leave in
    random order of destinations. Counted until half of the end, so that all sources still have
    packets. Tolerance: 4,000 packets a port, whose shares scatter by about 1 %.
    """
    links, _ = star(ports, latency=0.0)
    rng = np.random.default_rng(ports)
    src = np.repeat(np.arange(ports), 4000)
    dst = rng.integers(ports, size=len(src))
    flows = Flows(
        np.stack([src, ports + dst], axis=1).astype(np.int32),
        np.full(len(src), float(MTU)),
        np.zeros(len(src)),
    )
    ends = run_of(packet(buffer=2 * MTU), links, flows, pair=np.zeros(len(src), int)).outcome.finish
    half = ends.max() / 2
    assert np.count_nonzero(ends <= half) * SLOT / half / ports == pytest.approx(share, rel=0.02)


# ------------------------------------------------------------------------------ buffers and packets


@pytest.mark.parametrize(("window", "share"), [(2, 0.25), (4, 0.5), (8, 1.0), (16, 1.0)])
def test_a_buffer_shorter_than_the_round_trip_throttles(window, share):
    """One flow over a link of latency 14 us = 3.5 slots: a credit is back a slot and two latencies
    after its packet began, 8 slots.

    With a window of W < 8 packets, W are sent every 8 slots: packet N - 1 of N begins in slot 8 (N
    / W - 1) + W - 1. From 8 on the link never waits.
    """
    links = Links(np.array([GB, GB]), np.array([3.5 * SLOT, 1e-6]))
    count = 160
    done = run_of(packet(buffer=window * MTU), links, Flows.from_lists([[0, 1]], [count * MTU]))
    slots = 8 * (count // window - 1) + window if window < 8 else count
    assert done.outcome.finish == pytest.approx([3.5 * SLOT + 1e-6 + slots * SLOT], rel=EXACT)
    assert count / slots == pytest.approx(share, rel=0.05)
    assert done.statistics.blocked[0] == pytest.approx((slots - count) * SLOT, rel=1e-5, abs=1e-12)
    assert done.statistics.peak_buffer[0] == min(window, 8) * MTU


def test_smaller_packets_change_nothing_for_one_message():
    links = Links(GB * np.array([2.0, 1, 4]), np.full(3, 1e-6))
    flows = Flows.from_lists([[0, 1, 2]], [100_001])
    ends = [
        packet(mtu=mtu, buffer=120_000).finish_times(links, flows).finish[0]
        for mtu in (4000, 2000, 500)
    ]
    assert ends == pytest.approx([3e-6 + 100_001 / GB] * 3, rel=1e-6)


@pytest.mark.parametrize("mtu", [4000, 2000, 1000])
def test_a_message_waits_for_the_packet_before_it_at_most(mtu):
    # 100 B are posted to another host 1 ns after a long message began: they wait for the rest of
    # its first packet, mtu / C - 1 ns, and the queue pairs then take turns. Halving the packets
    # halves the wait.
    links, route = star(3)
    ends = (
        packet(mtu=mtu)
        .finish_times(
            links, Flows.from_lists([route(0, 1), route(0, 2)], [1e6, 100.0], [0.0, 1e-9])
        )
        .finish
    )
    assert ends[1] == pytest.approx(2e-6 + (mtu + 100) / GB, rel=1e-6)


# ------------------------------------------------------------------------------------- conservation


@pytest.mark.parametrize("buffer", [1, 2, 16])
def test_what_is_sent_is_delivered_on_every_link(buffer):
    links, routes, hosts = tree()
    src, dst, nbytes = random_traffic(hosts, 500, seed=buffer)
    flows = Flows(routes(src, dst), nbytes, np.zeros(len(src)))
    done = run_of(packet(buffer=buffer * MTU), links, flows)
    packets = Flows(flows.routes, np.ceil(nbytes / MTU), flows.start).link_bytes(links)
    np.testing.assert_array_equal(done.statistics.packets, packets)
    np.testing.assert_allclose(done.statistics.nbytes, flows.link_bytes(links), rtol=1e-12)
    # all links have one speed, so a packet never waits for its tail; rounding up: a tick of 57 fs
    # for packets of 1 to 4000 B (< 320 ns)
    np.testing.assert_allclose(
        done.statistics.busy, done.statistics.nbytes / links.capacity, rtol=1e-5, atol=1e-10
    )
    assert done.statistics.peak_buffer.max() <= buffer * MTU
    assert (
        done.statistics.blocked + done.statistics.busy <= done.outcome.makespan * (1 + 1e-12)
    ).all()


def test_the_network_is_as_new_when_all_has_been_delivered():
    """After heavy traffic, every pair of hosts alone is as fast as on an idle network: no credit,
    buffer or turn was lost."""
    links, routes, hosts = tree(arity=3)
    src, dst, nbytes = random_traffic(hosts, 400, seed=5)
    later = 1e-2 + 1e-3 * np.arange(hosts)  # the heavy traffic is over by 1 ms
    probes = routes(np.arange(hosts), (np.arange(hosts) + 4) % hosts)
    sizes = np.full(hosts, 10.0 * MTU)
    flows = Flows(
        np.concatenate([routes(src, dst), probes]),
        np.append(nbytes, sizes),
        np.append(np.zeros(400), later),
    )
    ends = packet(buffer=2 * MTU).finish_times(links, flows).finish
    assert ends[:400].max() < 1e-2
    alone = (
        packet(buffer=2 * MTU)
        .finish_times(links, Flows(probes[:1], sizes[:1], np.zeros(1)))
        .finish[0]
    )
    assert ends[400:] - later == pytest.approx(np.full(hosts, alone), rel=1e-6)


@st.composite
def cases(draw):
    """A star or a small fat tree with links of mixed speeds and latencies, and flows with starts,
    dependencies, and no bytes or links."""
    links, routes, hosts = tree(arity=draw(st.integers(2, 3)))
    pick = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    capacity = GB * pick.choice([1.0, 2.0, 3.3], len(links))
    links = Links(capacity, pick.choice([0.0, 1e-7, 5e-6], len(links)))
    count = draw(st.integers(1, 40))
    src, dst, nbytes = random_traffic(hosts, count, seed=draw(st.integers(0, 2**32 - 1)))
    table = routes(src, dst)
    table[pick.random(count) < 0.1] = -1
    nbytes[pick.random(count) < 0.1] = 0.0
    start = pick.choice([0.0, 1e-6, 3.3e-6], count)
    after = [
        sorted(set(pick.integers(0, i, 2).tolist())) if i and pick.random() < 0.3 else []
        for i in range(count)
    ]
    return links, Flows.from_lists(table, nbytes, start, after), draw(st.integers(1, 5))


@settings(max_examples=150)
@given(cases())
def test_never_faster_than_alone_nor_than_any_link_can_carry(case):
    links, flows, window = case
    outcome = packet(buffer=window * MTU).finish_times(links, flows)
    bound = Analytic().finish_times(links, flows)
    assert (outcome.finish >= bound.finish * (1 - 1e-12)).all()
    assert outcome.makespan >= bound.makespan * (1 - 1e-12)
    assert np.isfinite(outcome.finish).all()


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_the_order_of_the_input_does_not_matter(seed, window):
    """Exactly, as long as no two messages of one queue pair are posted at once: equal sizes and
    starts, so that ties abound."""
    links, routes, hosts = tree(arity=3)
    rng = np.random.default_rng(seed)
    src, dst = np.divmod(rng.permutation(hosts * hosts)[:60], hosts)
    src, dst = src[src != dst], dst[src != dst]
    nbytes = rng.choice([MTU, 3.0 * MTU, 5.5 * MTU], len(src))
    table = routes(src, dst)
    order = rng.permutation(len(src))
    model = packet(buffer=window * MTU)
    ends = model.finish_times(links, Flows(table, nbytes, np.zeros(len(src)))).finish
    again = model.finish_times(links, Flows(table[order], nbytes[order], np.zeros(len(src)))).finish
    np.testing.assert_array_equal(again, ends[order])


class Plain:
    """The laws once more, as slow and plain as possible: look at everything at every instant. All
    numbers are whole, latencies > 0."""

    def __init__(self, links, routes, sizes, start, mtu, buffer):
        self.count = range(len(links))
        self.source = len(links)  # as an input of a link
        self.slot = (1 / links.capacity).astype(int)
        self.latency = links.latency.astype(int)
        self.routes, self.left, self.start, self.mtu = routes, list(sizes), start, mtu
        self.free, self.read = ([0 for _ in self.count] for _ in range(2))
        self.served, self.asking = ([False for _ in self.count] for _ in range(2))
        self.room = [buffer for _ in self.count]
        self.fifo, self.turn, self.ring = ([[] for _ in self.count] for _ in range(3))
        self.queue = {}  # (first link, last link) -> messages
        self.credits = []  # (time, link, bytes)
        self.ends = [None for _ in routes]
        self.posts = sorted(
            range(len(routes)), key=lambda i: (start[i], routes[i][0], routes[i][-1], i)
        )

    def run(self):
        now = 0
        while None in self.ends:
            self.take_credits(now)
            self.post(now)
            self.ask(now)
            for link in self.count:
                if self.free[link] <= now:
                    self.serve(link, now)
            coming = (
                [credit[0] for credit in self.credits]
                + [self.start[i] for i in self.posts]
                + self.free
            )
            coming += [
                self.asks_at(link)
                for link in self.count
                if self.fifo[link] and not self.asking[link]
            ]
            now = min(time for time in coming if time > now)
        return self.ends

    def take_credits(self, now):
        for credit in [c for c in self.credits if c[0] <= now]:
            self.credits.remove(credit)
            self.room[credit[1]] += credit[2]

    def source_asks(self, link):
        if self.ring[link] and self.source not in self.turn[link]:
            self.turn[link].append(self.source)

    def post(self, now):
        while self.posts and self.start[self.posts[0]] <= now:
            message = self.posts.pop(0)
            link = self.routes[message][0]
            pair = (link, self.routes[message][-1])
            if not self.queue.get(pair):
                self.ring[link].append(pair)
            self.queue.setdefault(pair, []).append(message)
            if self.free[link] <= now:
                self.source_asks(link)

    def asks_at(self, link):
        return max(self.read[link], self.fifo[link][0]["header"])

    def ask(self, now):
        for link in self.count:
            if self.fifo[link] and not self.asking[link] and self.asks_at(link) <= now:
                self.asking[link] = True
                head = self.fifo[link][0]
                self.turn[self.routes[head["message"]][head["hop"] + 1]].append(link)

    def next_of_source(self, link, now):
        message = self.queue[self.ring[link][0]][0]
        nbytes = min(self.mtu, self.left[message])
        return {
            "message": message,
            "hop": -1,
            "nbytes": nbytes,
            "tail": now,
            "final": nbytes == self.left[message],
        }

    def serve(self, link, now):
        if self.served[link]:
            self.ring[link].append(self.ring[link].pop(0))
            self.served[link] = False
        self.source_asks(link)
        if not self.turn[link]:
            return
        who = self.turn[link][0]
        packet = self.next_of_source(link, now) if who == self.source else self.fifo[who][0]
        hop = packet["hop"] + 1
        last = hop == len(self.routes[packet["message"]]) - 1
        if not last and self.room[link] < packet["nbytes"]:
            return
        self.turn[link].pop(0)
        until = max(now + packet["nbytes"] * self.slot[link], packet["tail"])
        self.free[link] = until
        if who == self.source:
            self.leave_source(link, packet)
        else:
            self.fifo[who].pop(0)
            self.asking[who], self.read[who] = False, until
            self.credits.append((until + self.latency[who], who, packet["nbytes"]))
        if not last:
            self.room[link] -= packet["nbytes"]
            header = now + self.latency[link]
            self.fifo[link].append(
                packet | {"hop": hop, "header": header, "tail": until + self.latency[link]}
            )
        elif packet["final"]:
            self.ends[packet["message"]] = until + self.latency[link]

    def leave_source(self, link, packet):
        pair = self.ring[link][0]
        self.left[packet["message"]] -= packet["nbytes"]
        if packet["final"]:
            self.queue[pair].pop(0)
        self.served[link] = bool(self.queue[pair])
        if not self.queue[pair]:
            self.ring[link].pop(0)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.booleans())
def test_agrees_with_a_plain_simulator(seed, window, through):
    """Bit for bit, ties included: 1 B/s and whole seconds. ``through``: routes that begin on links
    in the middle of other routes."""
    rng = np.random.default_rng(seed)
    links, table, hosts = tree(arity=2 + int(rng.integers(2)))
    links = Links(1.0 / rng.integers(1, 3, len(links)), rng.choice([1.0, 3.0, 20.0], len(links)))
    src, dst, _ = random_traffic(hosts, 25, seed)
    routes = [[int(k) for k in row if k >= 0] for row in table(src, dst)]
    if through:
        routes = [route[int(rng.integers(len(route))) :] for route in routes]
    sizes = [int(n) for n in rng.choice([1, 2, 5, 16, 17, 40], len(routes))]
    start = [int(t) for t in rng.choice([0, 0, 7, 30], len(routes))]
    expected = Plain(links, routes, sizes, start, 8, 8 * window).run()
    model = packet(mtu=8, buffer=8 * window)
    np.testing.assert_array_equal(
        model.finish_times(links, Flows.from_lists(routes, sizes, start)).finish, expected
    )


# ------------------------------------------------------------------------------------- dependencies


def test_after_waits_for_the_latest_and_pays_the_latency_again():
    # 10 and 20 packets of two queue pairs take turns on link 0: the first ends after 19 slots (and
    # 1 us), the second after 30; the third is posted then and needs 10 slots and 1 us itself. Its
    # own start is ignored.
    links, route = star(3, latency=5e-7)
    flows = Flows.from_lists(
        [route(0, 1), route(0, 2), route(1, 2)],
        [10 * MTU, 20 * MTU, 10 * MTU],
        [0, 0, 9e9],
        [[], [], [0, 1]],
    )
    ends = packet().finish_times(links, flows).finish
    assert ends == pytest.approx([1e-6 + 19 * SLOT, 1e-6 + 30 * SLOT, 2e-6 + 40 * SLOT], rel=EXACT)


def test_a_barrier_ends_with_the_last_of_its_flows_and_starts_the_next():
    links, route = star(4)
    routes = [route(0, 1), route(2, 3), [], [], route(0, 1), route(2, 3)]
    after = [[], [], [0, 1], [2], [3], [3]]
    ends = (
        packet()
        .finish_times(links, Flows.from_lists(routes, [MTU, 2 * MTU, 0, 0, MTU, MTU], None, after))
        .finish
    )
    last = 2e-6 + 2 * SLOT
    assert ends == pytest.approx(
        [2e-6 + SLOT, last, last, last, last + 2e-6 + SLOT, last + 2e-6 + SLOT], rel=EXACT
    )


def test_no_bytes_take_the_latencies_past_all_queues_and_no_links_take_nothing():
    links, route = star(2)
    flows = Flows.from_lists(
        [route(0, 1), route(0, 1), [], route(0, 1)],
        [1e6, 0, 5e6, 0],
        [0, 1e-5, 2e-5, 0],
        [[], [], [], [2]],
    )
    ends = packet().finish_times(links, flows).finish
    assert ends == pytest.approx([1e-3 + 2e-6, 1.2e-5, 2e-5, 2.2e-5], rel=EXACT)


def test_a_circle_of_waiting_is_refused():
    links, route = star(2)
    with pytest.raises(SimulationError, match="2 flows wait for each other in a circle"):
        packet().finish_times(
            links, Flows.from_lists([route(0, 1)] * 3, [1.0] * 3, None, [[1], [0], []])
        )


def test_no_flows_and_no_links_at_all():
    assert packet().finish_times(links_of(1), Flows.from_lists([], [])).makespan == 0.0
    assert packet().finish_times(
        links_of(0), Flows(np.empty((2, 0), np.int32), [1.0, 2.0], [3.0, 4.0])
    ).finish.tolist() == [3.0, 4.0]


# ----------------------------------------------------------------------------------------- deadlock


@pytest.mark.parametrize("seed", range(4))
def test_up_and_down_in_a_tree_never_deadlocks(seed):
    """Minimal buffers, of one packet, and far more traffic than they hold: every flow ends."""
    links, routes, hosts = tree(levels=3, arity=3)
    src, dst, nbytes = random_traffic(hosts, 2000, seed)
    flows = Flows(routes(src, dst), nbytes, np.zeros(len(src)))
    assert ChannelDependencies(links).add_routes(flows.routes) is None
    assert (packet(buffer=MTU).finish_times(links, flows).finish > 0).all()


@pytest.mark.parametrize("switches", [3, 4])
def test_routes_around_a_ring_are_refused(switches):
    # Links 0 to n - 1 lead around the ring, n to 2n - 1 in from the hosts, 2n to 3n - 1 out: two
    # hops each close the circle.
    names = [f"s{i}>s{(i + 1) % switches}" for i in range(switches)] + [
        f"h{i}>s{i}" for i in range(switches)
    ]
    names += [f"s{i}>h{i}" for i in range(switches)]
    links = links_of(3 * switches, names=names)
    table = [
        [switches + i, i, (i + 1) % switches, 2 * switches + (i + 2) % switches]
        for i in range(switches)
    ]
    circle = ChannelDependencies(links).add_routes(Flows.from_lists(table, [1.0] * switches).routes)
    assert circle == list(range(switches))
    with pytest.raises(TopologyError) as caught:
        packet().finish_times(links, Flows.from_lists(table, [1.0] * switches))
    assert " -> ".join([*names[:switches], names[0]]) in str(caught.value)
    assert "kind: fluid" in str(caught.value)
    # one route less opens the circle
    assert (
        ChannelDependencies(links).add_routes(
            Flows.from_lists(table[1:], [1.0] * (switches - 1)).routes
        )
        is None
    )
    network = PacketNetwork(links, mtu=MTU, port_buffer=MTU)
    network.inject(0.0, np.array(table[1:], np.int32), np.ones(switches - 1))
    with pytest.raises(TopologyError, match="circle"):
        network.inject(0.0, np.array(table[:1], np.int32), [1.0])
    # what was refused is forgotten
    network.inject(0.0, np.array([[2 * switches - 1, 2 * switches]], np.int32), [1.0])


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_a_circle_is_found_where_there_is_one_and_is_one(count, seed):
    """Against powers of the adjacency matrix: there is a circle where one of them has a node that
    leads back to itself."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, count, (int(rng.integers(0, 2 * count)), 2))
    src, dst = edges[np.argsort(edges[:, 0], kind="stable")].T
    offsets = np.searchsorted(src, np.arange(count + 1))
    circle = find_circle(offsets, dst)
    adjacent = np.zeros((count, count), int)
    adjacent[src, dst] = 1
    leads_back = any(np.linalg.matrix_power(adjacent, k).trace() for k in range(1, count + 1))
    assert (circle is not None) == leads_back
    if circle is not None:
        assert circle[0] == min(circle)
        assert len(set(circle)) == len(circle)
        assert all(adjacent[a, b] for a, b in zip(circle, [*circle[1:], circle[0]], strict=True))


def test_all_pairs_of_many_links_are_seen():
    """More pairs than half of the first hash table holds: 3 * 20,000 of links that only go up, and
    one that goes down from the highest to the lowest of a chain."""
    rng = np.random.default_rng(2)
    count = 2000
    routes = np.sort(rng.integers(0, count, (20_000, 4)), axis=1).astype(np.int32)
    routes = routes[(np.diff(routes, axis=1) > 0).all(axis=1)]
    expected = {pair for row in routes.tolist() for pair in pairwise(row)}
    assert len(expected) > 1 << 15
    dependencies = ChannelDependencies(links_of(count))
    assert dependencies.add_routes(routes[:10_000]) is None
    assert dependencies.add_routes(routes) is None
    assert dependencies.add_routes(routes) is None
    found = [divmod(pair, count) for pair in dependencies._pairs.tolist()]
    assert found == sorted(expected)
    first, last = (int(link) for link in routes[17][[0, 3]])
    circle = dependencies.add_routes(np.array([[last, first, -1], [5, -1, -1]], np.int32))
    assert circle[0] == first
    assert last in circle
    steps = {*expected, (last, first)}
    assert steps.issuperset(zip(circle, [*circle[1:], first], strict=True))
    assert len(dependencies._pairs) == len(expected)


def test_a_link_that_follows_itself_is_a_circle():
    assert ChannelDependencies(links_of(3)).add_routes(np.array([[0, 1, 1, 2]], np.int32)) == [1]
    assert ChannelDependencies(links_of(3)).add_routes(np.array([[2, 0, 0, -1]], np.int32)) == [0]


# ----------------------------------------------------------------------------------- beside a clock


def drain(network, until=math.inf):
    """All that ends up to a time, by handle."""
    ended = {}
    while True:
        upcoming, some = network.advance(until)
        ended.update(some)
        if upcoming > until or upcoming == math.inf:
            return ended


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_posting_bit_by_bit_gives_the_same_ends(seed, window):
    links, routes, hosts = tree(arity=3)
    src, dst, nbytes = random_traffic(hosts, 120, seed)
    start = np.sort(np.random.default_rng(seed).choice([0.0, 1e-6, 5e-6, 2e-5], 120))
    nbytes[::17] = 0.0
    table = routes(src, dst)
    expected = run_of(packet(buffer=window * MTU), links, Flows(table, nbytes, start))
    network = PacketNetwork(links, mtu=MTU, port_buffer=window * MTU)
    ends = np.full(120, np.nan)
    flow_of = {}
    for moment in np.unique(start):
        for handle, end in drain(network, np.nextafter(moment, 0.0)).items():
            ends[flow_of.pop(handle)] = end
        now = np.flatnonzero(start == moment)
        flow_of |= dict(
            zip(network.inject(moment, table[now], nbytes[now]).tolist(), now.tolist(), strict=True)
        )
    for handle, end in drain(network).items():
        ends[flow_of.pop(handle)] = end
    assert network.alive == 0 and not flow_of
    np.testing.assert_array_equal(ends, expected.outcome.finish)
    np.testing.assert_array_equal(network.statistics().packets, expected.statistics.packets)


def test_advance_stops_at_the_horizon_and_at_the_first_end():
    links, route = star(2)
    network = PacketNetwork(links, mtu=MTU, port_buffer=MTU * 4)
    first, second = network.inject(
        0.0, np.array([route(0, 1), route(1, 0)], np.int32), [MTU, 2 * MTU]
    ).tolist()
    upcoming, ended = network.advance(1e-6)
    assert ended == [] and upcoming > 1e-6
    upcoming, ended = network.advance(math.inf)
    assert ended == [(first, pytest.approx(2e-6 + SLOT, rel=EXACT))]
    assert network.now == ended[0][1] and network.alive == 1
    assert network.advance(math.inf) == (
        math.inf,
        [(second, pytest.approx(2e-6 + 2 * SLOT, rel=EXACT))],
    )


def test_statistics_stay_what_they_were():
    links, route = star(2)
    network = PacketNetwork(links, mtu=MTU, port_buffer=MTU)
    table = np.array([route(0, 1)], np.int32)
    nothing = network.statistics()
    network.inject(0.0, table, [2.0 * MTU])
    drain(network)
    first = network.statistics()
    network.inject(1.0, table, [3.0 * MTU])
    drain(network)
    later = network.statistics()
    # one packet of room: the second begins when the credit of the first is back, after 1 us on the
    # way there, a slot, and 1 us on the way back; twice for three packets
    for found, count in ((first, 1), (later, 1 + 2)):
        packets = count + (2 if found is later else 1)
        assert found.packets.tolist() == [packets, 0, 0, packets]
        assert found.nbytes.tolist() == [packets * MTU, 0, 0, packets * MTU]
        assert found.busy == pytest.approx([packets * SLOT, 0, 0, packets * SLOT], rel=EXACT)
        assert found.blocked == pytest.approx([count * 2e-6, 0, 0, 0], rel=EXACT)
        assert found.peak_buffer.tolist() == [MTU, 0, 0, 0]
    for values in vars(nothing).values():
        assert values.tolist() == [0, 0, 0, 0]


def test_all_that_ends_at_one_instant_is_told_at_once():
    links, route = star(4)
    network = PacketNetwork(links, mtu=MTU, port_buffer=MTU)
    table = np.array([route(0, 1), route(2, 3), route(1, 0)], np.int32)
    first, second, third = network.inject(0.0, table, [MTU, MTU, 2 * MTU]).tolist()
    _, ended = network.advance(math.inf)
    assert sorted(handle for handle, _ in ended) == sorted([first, second])
    assert [handle for handle, _ in network.advance(math.inf)[1]] == [third]


def test_a_pair_key_puts_messages_into_one_queue():
    links, route = star(3)
    table = np.array([route(0, 1), route(0, 2)], np.int32)
    network = PacketNetwork(links, mtu=MTU, port_buffer=MTU * 4)
    one, two = network.inject(0.0, table, [10 * MTU] * 2, pair=np.array([7, 7])).tolist()
    ends = drain(network)
    assert [ends[one], ends[two]] == pytest.approx([2e-6 + 10 * SLOT, 2e-6 + 20 * SLOT], rel=EXACT)


def test_memory_grows_with_the_messages_alive_not_with_their_total():
    links, route = star(2)
    network = PacketNetwork(links, mtu=MTU, port_buffer=4 * MTU)
    sizes = []
    for _ in range(50):
        network.inject(
            network.now,
            np.array([route(0, 1)] * 300, np.int32),
            np.full(300, 3.0 * MTU),
            pair=np.arange(300),
        )
        assert len(drain(network)) == 300
        clock = network._core.clock[0]
        sizes.append(
            [len(array) for array in network._core.state]
            + [int(clock["slots"]), int(clock["pairs"])]
        )
    assert sizes[1] == sizes[-1]


def test_what_injection_refuses():
    links, route = star(2)
    network = PacketNetwork(links, mtu=MTU, port_buffer=MTU)
    table = np.array([route(0, 1)], np.int32)
    network.inject(1.0, table, [1.0])
    drain(network)
    for now, routes, nbytes in [
        (0.5, table, [1.0]),
        (2.0, table, [-1.0]),
        (2.0, table, [1.0, 2.0]),
        (2.0, table + 9, [1.0]),
        (2.0, table - 2, [1.0]),
        (2.0, table[0], [1.0]),
        (2.0, np.repeat(table, 2, axis=0), [1.0, -1.0]),
        (2.0, np.repeat(table, 2, axis=0), [math.inf, 1.0]),
        (2.0**17, table, [1.0]),
    ]:
        with pytest.raises(ValueError):
            network.inject(now, routes, nbytes)
    # just before the end of the clock is not too late
    network.inject(np.nextafter(2.0**17, 0.0), table, [0.0])
    assert network.alive == 1


def test_routes_may_get_longer_and_messages_more_than_there_was_room_for():
    """256 messages on one link, then 44 more of which one crosses three links."""
    links = links_of(3, latency=0.0)
    network = PacketNetwork(links, mtu=MTU, port_buffer=4 * MTU)
    first = network.inject(0.0, np.zeros((256, 1), np.int32), np.full(256, float(MTU)))
    assert network.alive == 256
    table = np.full((44, 3), -1, np.int32)
    table[:, 0] = 1
    table[43] = [2, 1, 0]
    second = network.inject(0.0, table, np.full(44, 2.0 * MTU), pair=np.arange(44))
    assert len(np.unique([*first, *second])) == network.alive == 300
    ends = drain(network)
    # the packets of the last message and of the source take turns on link 1, from 1 and 3 slots on,
    # and on link 0, from 2 and 4 slots on
    assert [ends[handle] for handle in first[:4]] == pytest.approx(
        np.array([1, 2, 4, 6]) * SLOT, rel=EXACT
    )
    assert ends[first[-1]] == pytest.approx(258 * SLOT, rel=EXACT)
    assert ends[second[43]] == pytest.approx(5 * SLOT, rel=EXACT)
    assert max(ends[handle] for handle in second[:43]) == pytest.approx(88 * SLOT, rel=EXACT)
    assert network.alive == 0
    assert network.statistics().packets.tolist() == [258, 88, 2]


# ------------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize(
    ("mtu", "buffer"), [("4 KiB", "4095 B"), ("0 B", "64 KiB"), ("4.5 B", "4.5 B")]
)
def test_a_buffer_must_hold_a_packet(mtu, buffer):
    with pytest.raises(ValidationError):
        Packet.model_validate({"mtu": mtu, "port_buffer": buffer})


@pytest.mark.parametrize(
    ("capacity", "latency"),
    [
        ([1e-3, 1.0], [0.0, 0.0]),
        ([1.0, 1 / 32], [0.0, 0.0]),  # 4096 B take 2**17 s
        ([1 / 16, 1.0], [2.0**16, 0.0]),  # half of that, and as much latency
    ],
)
def test_a_network_refuses_a_link_that_is_too_slow(capacity, latency):
    with pytest.raises(ValueError, match="on every link"):
        PacketNetwork(Links(capacity, latency), mtu=4096, port_buffer=4096)
    PacketNetwork(Links([1 / 31], [0.0]), mtu=4096, port_buffer=4096)


@pytest.mark.parametrize(
    ("nbytes", "start", "latency", "factor"),
    [
        # The first flow of 0 to 175 kB takes 1.5 s per kB over links of 1 and 2 B/s, the second of
        # 400 B takes 200 s over the second link. Each packet of 1000 B, and two more for each flow,
        # need a round trip of each link: 2 * 2.4 for the second flow, 2 * 2 * 3 for one of 1000 B.
        # That and the latest start are up to 2**17 = 131,072 s with the finest tick.
        (0.0, 2.0**17 - 200, 0.0, 1),
        (0.0, 2.0**17 - 199, 0.0, 2),
        (87_000.0, 0.0, 0.0, 1),  # 130,500 + 200
        (88_000.0, 0.0, 0.0, 2),  # 132,000 + 200
        (175_000.0, 0.0, 0.0, 4),  # 262,500 + 200
        (1000.0, 0.0, 7_700.0, 1),  # 1,500 + 200 + (12 + 4.8) * 7,700 = 131,060
        (1000.0, 0.0, 7_710.0, 2),  # 131,228
        (1000.0, 2.0**17, 7_800.0, 4),  # 131,072 + 132,740, more than 2**18
    ],
)
def test_the_tick_is_as_fine_as_the_longest_possible_run_lets_it_be(nbytes, start, latency, factor):
    links = Links([1.0, 2.0, 1e-9], [latency, latency, 1.0])
    flows = Flows.from_lists([[0, 1], [1]], [nbytes, 400.0], [start, 0.0])
    assert _choose_tick(links, flows, 1000.0) == factor * TICK


def test_the_events_of_a_run_are_counted():
    # a packet over two links: posted, the first link wakes, the header asks for the second, the end
    links = links_of(2)
    assert run_of(packet(), links, Flows.from_lists([[0, 1]], [MTU])).events == 4
    # of one without bytes: posted, and the time of its latencies is over
    assert run_of(packet(), links, Flows.from_lists([[0, 1]], [0.0])).events == 2


def test_routes_that_reach_a_link_are_counted_from_the_first_to_the_last():
    with pytest.raises(ValueError, match=r"links 0 to 1.*got -2 to 0"):
        packet().finish_times(links_of(2), Flows(np.array([[-2], [0]]), [1.0, 1.0], [0.0, 0.0]))
    with pytest.raises(ValueError, match="got 0 to 2"):
        packet().finish_times(links_of(2), Flows.from_lists([[0], [2]], [1.0, 1.0]))


def test_a_link_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="links 0 to 1"):
        packet().finish_times(links_of(2), Flows.from_lists([[0, 2]], [1.0]))


def test_the_clock_holds_slow_networks():
    # 1 B/s and 1e9 B: 32 years, longer than the clock has ticks of 57 fs
    ends = (
        Packet.model_validate({"mtu": "1 MB", "port_buffer": "2 MB"})
        .finish_times(links_of(2, capacity=1.0), Flows.from_lists([[0, 1]], [1e9]))
        .finish
    )
    assert ends == pytest.approx([1e9], rel=1e-6)


def test_a_run_in_slices_is_the_same_and_tells_its_progress(monkeypatch):
    links, routes, hosts = tree(arity=3)
    src, dst, nbytes = random_traffic(hosts, 50, seed=1)
    flows = Flows(routes(src, dst), nbytes, np.zeros(50))
    whole = packet().finish_times(links, flows).finish
    monkeypatch.setattr("simshuffle.fabric.network.packet.EVENTS_PER_SLICE", 100)
    told = []
    np.testing.assert_array_equal(
        packet().finish_times(links, flows, progress=told.append).finish, whole
    )
    assert len(told) > 5 and told == sorted(told) and told[0] < 0.5 and told[-1] == 1.0


@pytest.mark.parametrize(("nbytes", "shares"), [(0.0, {1.0}), (0.25, {0.0, 0.5, 1.0})])
def test_the_progress_of_few_bytes_is_their_share(nbytes, shares, monkeypatch):
    monkeypatch.setattr("simshuffle.fabric.network.packet.EVENTS_PER_SLICE", 1)
    links, route = star(3)
    flows = Flows.from_lists([route(0, 1), route(1, 2)], [nbytes] * 2, [0.0, 1.0])
    told = []
    packet().finish_times(links, flows, progress=told.append)
    assert len(told) > 3
    assert set(told) == shares


def test_a_run_can_be_interrupted_between_slices(monkeypatch):
    def interrupt(share):
        raise KeyboardInterrupt

    monkeypatch.setattr("simshuffle.fabric.network.packet.EVENTS_PER_SLICE", 10)
    links, route = star(2)
    with pytest.raises(KeyboardInterrupt):
        packet().finish_times(links, Flows.from_lists([route(0, 1)], [1e6]), progress=interrupt)
