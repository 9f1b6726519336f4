"""The life of a transfer around its draining, by hand: turns of a pair, delays, groups, waits, rate
limits; and arrays that are exactly full, or too short."""

import math

import numpy as np
import pytest

from simshuffle.fabric.network.batch import TransferBatch, chain_edges, pad_routes, tasks
from simshuffle.fabric.network.fluid import FluidNetwork
from simshuffle.fabric.network.fluid_ahead import LARGE
from simshuffle.fabric.network.fluid_records import FAN, PAIR_BUCKETS
from tests import fluid_check as check


def batch(routes, **columns):
    return TransferBatch(tasks(len(routes), **columns), pad_routes(routes))


def run_to_end(network):
    """Run all events; the invariants hold at the end, and nothing is left anywhere."""
    network.advance(math.inf)
    assert network.alive == 0
    assert check.violations(network._state) == []
    assert (network._graph.buckets == -1).all()
    assert network.clock["n_edges"][0] == 0


# -------------------------------------------------------------------------------- pairs and delays


def test_pairs_whose_keys_share_a_bucket_keep_their_turns_apart():
    """Pairs a, b and c have one bucket of the hash table and a link of 1 unit/s each. The list of
    the bucket loses its last, its first and its middle entry: b at 2 s, c at 3 s, b at 4 s."""
    network = FluidNetwork([1.0, 1.0, 1.0], tags=10)
    a, b, c = 0, PAIR_BUCKETS, 2 * PAIR_BUCKETS
    pairs = [a, b, c, a, b, b, c]
    work = [1.0, 2.0, 3.0, 4.0, 1.0, 1.0, 1.0]
    routes = [[(a, b, c).index(pair)] for pair in pairs]
    network.post(0.0, batch(routes, work=work, pair=pairs, tag=np.arange(7)))
    network.advance(2.5)
    # behind the second message of a, which ends at 1 + 4 s, and the third of b, which ends at 4 s
    later = {"work": [2.0, 0.5, 1.0], "pair": [a, b, a], "tag": [7, 8, 9]}
    network.post(2.5, batch([[0], [1], [0]], **later))
    run_to_end(network)
    assert network.finish.tolist() == [1, 2, 3, 5, 3, 4, 4, 7, 4.5, 8]


def test_transfers_of_a_pair_go_in_the_order_in_which_they_are_ready_then_posted():
    """The first holds its pair until 100 s. 150 more get ready before, many at one moment, in
    three batches; then they go one after the other over 1 unit/s."""
    rng = np.random.default_rng(4)
    network = FluidNetwork([1.0], tags=151)
    network.post(0.0, batch([[0]], work=100.0, pair=3, tag=0))
    work = rng.choice([1.0, 2.0, 5.0], 150)
    ready = np.empty(150)
    for number, now in enumerate((1.0, 2.0, 7.0)):
        posted = np.arange(50 * number, 50 * number + 50)
        start, delay = rng.choice([0.0, 4.0, 8.0, 9.0], 50), rng.choice([0.0, 1.0, 5.0, 6.0], 50)
        ready[posted] = np.maximum(start, now) + delay
        columns = {"work": work[posted], "start": start, "delay": delay, "tag": posted + 1}
        network.advance(now)
        network.post(now, batch([[0]] * 50, pair=3, **columns))
    run_to_end(network)
    order = sorted(range(150), key=lambda transfer: (ready[transfer], transfer))
    np.testing.assert_array_equal(network.finish[1:][order], 100.0 + np.cumsum(work[order]))


def test_accounts_count_from_when_a_transfer_is_ready():
    # the first may start at 2 s, spends 1 s and drains 4 units: 5 s. The second waits for it until
    # 7 s, and takes 0.5 + 3 s. The third, without work, takes its delay.
    network = FluidNetwork([1.0], accounts=3, tags=3)
    columns = {"start": [2.0, 0.0, 9.0], "delay": [1.0, 0.5, 0.25], "account": [0, 2, 0]}
    records = tasks(3, work=[4.0, 3.0, 0.0], tag=np.arange(3), **columns)
    edges = np.array([0], np.int32), np.array([1], np.int32)
    network.post(0.0, TransferBatch(records, pad_routes([[0]] * 3), *edges))
    run_to_end(network)
    assert network.finish.tolist() == [7.0, 10.5, 9.25]
    assert len(FluidNetwork([1.0], accounts=1).accounts) == 1
    assert network.accounts.tolist() == [5.25, 0.0, 3.5]


def test_slices_end_before_the_horizon_and_all_events_up_to_it_are_run(monkeypatch):
    monkeypatch.setattr("simshuffle.fabric.network.fluid.SLICE", 1)
    network = FluidNetwork([1.0], tags=4)
    assert network.posted_slots.tolist() == []
    network.post(0.0, batch([[]] * 4, delay=[1.0, 2.0, 3.0, 4.0], tag=np.arange(4)))
    assert network.advance(3.0) == (4.0, [])
    assert (network.alive, network.now) == (1, 3.0)
    assert network.advance(math.inf) == (math.inf, [])


def test_a_batch_loses_the_transfers_left_out_and_their_edges():
    # 0 -> 2 -> 3 -> 1 of which 3 is left out: 2 still waits for 0, and 1 for nobody
    edges = np.array([0, 2, 3], np.int32), np.array([2, 3, 1], np.int32)
    routes = pad_routes([[0], [1], [2], [3]])
    part = TransferBatch(tasks(4, work=[1.0, 2.0, 3.0, 4.0]), routes, *edges).select(
        np.array([2, 1, 0])
    )
    assert part.tasks["work"].tolist() == [3.0, 2.0, 1.0]
    assert part.routes.ravel().tolist() == [2, 1, 0]
    assert (part.edge_from.tolist(), part.edge_to.tolist()) == ([2], [0])


# -------------------------------------------------------------------------------------- outside


def test_the_outbox_has_transfers_in_the_order_of_posting_and_they_end_when_they_are_completed():
    network = FluidNetwork([1.0], tags=5)
    network.post(0.0, batch([[]] * 3, delay=[0.1, 0.2, 0.3]))
    network.advance(1.0)  # their slots are free again, the last one first
    routes = [[], [], [], [], [0]]
    columns = {"outside": [1, 1, 1, 1, 0], "delay": [1.0, 0, 0, 0, 0], "tag": [0, 1, 2, 3, 4]}
    after = np.array([1], np.int32), np.array([4], np.int32)
    records = tasks(5, work=1.0, **columns)
    network.post(1.0, TransferBatch(records, pad_routes(routes), *after))
    slots = network.posted_slots.tolist()
    assert slots[1:4] != sorted(slots[1:4])
    upcoming, groups = network.advance(math.inf)
    assert (upcoming, groups, network.now) == (2.0, [], 1.0)
    assert network.advance(math.inf)[0] == 2.0  # nothing goes on while somebody waits there
    assert network.now == 1.0
    assert network.take_outbox() == slots[1:4]
    assert network.take_outbox() == []
    # completed at 1.5 s; what waits for it drains for 1 s
    assert network.complete(slots[1], 1.5) == 1.5
    assert network.complete(slots[3], 4.0) == 1.5
    assert network.advance(math.inf)[0] == 2.5
    assert network.take_outbox() == slots[:1]
    network.complete(slots[0], 2.25)
    network.complete(slots[2], 3.0)
    run_to_end(network)
    assert network.finish.tolist() == [2.25, 1.5, 3.0, 4.0, 2.5]


# --------------------------------------------------------------------------------------- groups


def test_many_groups_are_told_once_and_only_those_that_are_watched():
    """80 groups of two transfers: pure delays that end at k + 1 and k + 1.5 s. Every third group is
    watched from the beginning, group 3 from 3.75 s on, which is between its ends."""
    count = 80
    network = FluidNetwork([1.0])
    groups = [network.open_group(2) for _ in range(count)]
    assert sorted(groups) == list(range(count))
    number = np.repeat(np.arange(count), 2)
    delay = number + np.tile([1.5, 1.0], count)
    columns = {"group": np.array(groups)[number], "mark": np.tile([0, 1], count), "delay": delay}
    network.post(0.0, batch([[]] * (2 * count), **columns))
    watched = range(1, count, 3)
    for k in watched:
        assert network.watch(groups[k])
    told = []
    upcoming = 0.0
    while upcoming <= 3.75:
        upcoming, done = network.advance(3.75)
        told += done
    assert not network.is_complete(groups[3])
    assert network.watch(groups[3])
    while upcoming < math.inf:
        upcoming, done = network.advance(math.inf)
        told += done
    assert told == [groups[k] for k in (1, 3, *watched[1:])]
    assert not network.watch(groups[2])
    for k in range(count):
        assert network.is_complete(groups[k])
        assert network.close_group(groups[k]) == (k + 1.0, k + 1.5)
    # a group that is opened again is neither complete nor watched
    again = network.open_group(1)
    assert again in groups
    assert not network.is_complete(again)
    network.post(network.now, batch([[]], delay=2.0, group=again))
    assert network.advance(math.inf) == (math.inf, [])
    assert network.is_complete(again)


def test_a_transfer_counts_for_two_groups_which_can_complete_together():
    network = FluidNetwork([1.0])
    both, first, other = network.open_group(2), network.open_group(1), network.open_group(1)
    columns = {"group": [both, both], "group2": [first, other], "mark": [1, 0]}
    network.post(0.0, batch([[0], [0]], work=[1.0, 2.0], **columns))
    for group in (both, first, other):
        network.watch(group)
    # half the link each: 1 unit at 2 s; the other one then has 1 left
    assert network.advance(math.inf) == (3.0, [first])
    assert sorted(network.advance(math.inf)[1]) == sorted([both, other])
    assert network.close_group(both) == (2.0, 3.0)
    assert network.close_group(first) == (2.0, 2.0)
    assert network.close_group(other)[1] == 3.0


# ---------------------------------------------------------------------- arrays full and too short


@pytest.mark.parametrize("count", [255, 256, 257, 1000])
def test_as_many_transfers_as_there_is_room_for_and_one_more(count):
    network = FluidNetwork([1.0], tags=count + 1)
    delay = np.arange(count, 0, -1.0)
    network.post(0.0, batch([[]] * count, delay=delay, tag=np.arange(count)))
    assert network.alive == count
    assert len(np.unique(network.posted_slots)) == count
    network.post(0.0, batch([[0]], work=0.5, tag=count))
    run_to_end(network)
    assert network.finish.tolist() == [*delay.tolist(), 0.5]


@pytest.mark.parametrize("count", [128, 129, 400])
def test_as_many_waits_as_there_is_room_for_and_one_more(count):
    """Each transfer counts as one wait beside those in the batch: 127 and 129 are 256."""
    network = FluidNetwork([1.0], tags=2 * count)
    for half in range(2):
        columns = {"delay": 1.0, "tag": np.arange(count) + half * count}
        chain = TransferBatch(tasks(count, **columns), pad_routes([[]] * count))
        chain.edge_from, chain.edge_to = chain_edges(count)
        network.post(0.0, chain)
    assert network.clock["n_edges"][0] == 2 * (count - 1)
    run_to_end(network)
    assert network.finish.tolist() == [*range(1, count + 1)] * 2


def test_each_distinct_rate_limit_has_one_link_however_many_there_are():
    """40 limits of 1, 2, ... units/s on a link that never binds, twice."""
    count = 40
    network = FluidNetwork([1e6, 1e6], tags=count, width=2)
    cap = np.arange(1.0, count + 1)
    for begin in (0.0, 1000.0):
        work = cap * np.arange(count, 0, -1.0)
        columns = {"work": work, "cap": cap, "tag": np.arange(count)}
        network.post(begin, batch([[0, 1]] * count, **columns))
        run_to_end(network)
        expected = begin + np.arange(count, 0, -1.0)
        np.testing.assert_allclose(network.finish, expected, rtol=1e-12)
    assert network.clock["n_fixed"][0] == count
    assert np.flatnonzero(network._state.links["fixed"]).tolist() == [*range(3, count + 3)]
    assert not network._state.links["n_alive"].any()


@pytest.mark.parametrize("crowd", [0, 40])
def test_ends_on_links_far_apart_come_in_order(crowd):
    """Of 2 * 64 * 64 + 500 links some of the first, of one block of 64, of one group of 64 blocks,
    and of others have a flow each. One link falls to half its capacity, another rises to twice. A
    crowd on one more link begins with them, so that all rates are made at once, and ends at 12 s.
    """
    network = FluidNetwork(np.full(2 * FAN * FAN + 500, 2.0), tags=9)
    links = [2 * FAN * FAN + 499, 0, FAN * FAN + 70, FAN * FAN, 63, 64, 2 * FAN * FAN, 3, 65]
    work = np.array([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 3.0, 40.0])
    routes = [[link] for link in [*links, *[FAN * FAN + 200] * crowd]]
    tag = np.append(np.arange(9), np.full(crowd, -1))
    network.post(0.0, batch(routes, work=np.append(work, np.full(crowd, 0.6)), tag=tag))
    instants = []
    upcoming = 0.0
    while upcoming < math.inf:
        upcoming, _ = network.advance(upcoming)
        if network.now == 2.0:
            # link 63 has 1 unit left, at 1 unit/s from now on; link 65 has 36, at 4 units/s
            upcoming = network.set_capacity(np.array([63, 65]), [1.0, 4.0], 2.0)
            assert upcoming == 3.0
        instants.append(network.now)
    last = [12.0] if crowd else []  # 40 * 0.6 units at 2 units/s
    assert instants == pytest.approx([0.0, 1.5, 2.0, 3.0, 3.5, 4.0, 4.5, 11.0, *last])
    assert network.finish.tolist() == [4.5, 4.0, 3.5, 3.0, 3.0, 2.0, 1.5, 1.5, 11.0]
    assert len(network.links) >= LARGE


# --------------------------------------------------------------------- tolerance, and few visits


def test_a_flow_ends_with_another_if_exactly_the_tolerance_is_left():
    """Half a unit/s each: 3 of 3 units and 3 of 4 at 6 s. A quarter of the second is left, and of
    the third, on a link of its own, more, also at 7 s."""
    for tolerance, finish, skipped in ((0.25, [6, 6, 10], 0.25), (0.2, [6, 7, 10], 0.0)):
        network = FluidNetwork([1.0, 1.0], tags=3, capped=False, tolerance=tolerance)
        network.post(0.0, batch([[0], [0], [1]], work=[3.0, 4.0, 10.0], tag=np.arange(3)))
        run_to_end(network)
        assert network.finish.tolist() == finish
        assert network.clock["skipped"][0] == skipped
        network.settle()
        assert network.links["work"].tolist() == pytest.approx([7.0, 10.0])


def test_links_that_change_together_are_visited_once_each_the_lowest_first():
    """Link k has 3 k + 2 units/s. Two flows end there alone, the second of which goes on over link
    k + 1: 1, 2, 3, ... units/s each. Then one more comes on each link, in some order: each level
    falls, and raises the next one by less than lies between them."""
    count = 8
    network = FluidNetwork(3.0 * np.arange(count + 1) + 2.0, capped=False, width=2)
    routes = [route for k in range(count) for route in ([k], [k, k + 1])]
    network.post(0.0, batch(routes, work=1e6))
    network.advance(1.0)
    assert network._state.links["level"][:count].tolist() == pytest.approx(range(1, count + 1))
    before = int(network.clock["n_visits"][0])
    order = np.random.default_rng(1).permutation(count)
    network.post(1.0, batch([[link] for link in order], work=1e6))
    network.advance(1.0)
    assert check.violations(network._state) == []
    level = 0.0
    for link in range(count):
        level = (3 * link + 2 - level) / 3
        assert network._state.links["level"][link] == pytest.approx(level)
    # the last link has room for all that crosses it, and is looked at as well
    assert network.clock["n_visits"][0] - before == count + 1


def test_a_link_is_busy_from_its_first_flow_to_its_last_and_not_between():
    """One unit alone from 1 s to 2 s, then half a unit/s each for two flows until 4 s; and 1 unit
    from 10 s on. The other link has the second flow, from 2 s to 4 s."""
    network = FluidNetwork([1.0, 5.0], tags=3)
    columns = {"work": [2.0, 1.0, 1.0], "start": [1.0, 2.0, 10.0], "tag": np.arange(3)}
    network.post(0.0, batch([[0], [0, 1], [0]], **columns))
    network.advance(3.0)
    network.settle(3.0)
    assert network.links["busy"].tolist() == pytest.approx([2.0, 1.0])
    run_to_end(network)
    network.settle()
    assert network.finish.tolist() == pytest.approx([4.0, 4.0, 11.0])
    assert network.links["busy"].tolist() == pytest.approx([4.0, 2.0])
    assert network.links["peak"].tolist() == pytest.approx([1.0, 0.1])


def test_what_has_no_work_uses_no_link():
    network = FluidNetwork([1.0], tags=2)
    network.post(0.0, batch([[0], [0]], work=[0.0, 0.0], nbytes=[0.0, 3.0], tag=[0, 1], delay=1.0))
    run_to_end(network)
    network.settle()
    assert network.finish.tolist() == [1.0, 1.0]
    assert network.links["peak"].tolist() == network.links["busy"].tolist() == [0.0]


# ----------------------------------------------------------------------------------- statistics


def test_peaks_start_anew_from_the_present_loads():
    # 3 units/s over link 0 until 1 s; then only 1 unit/s over links 1 and 2, which is all of link 1
    network = FluidNetwork([3.0, 1.0, 2.0, 4.0])
    network.post(0.0, batch([[0], [1, 2]], work=[3.0, 9.0]))
    network.advance(1.0)
    network.settle()
    assert network.links["peak"].tolist() == [1.0, 1.0, 0.5, 0.0]
    network.restart_peaks()
    network.settle(2.0)
    assert network.links["peak"].tolist() == [0.0, 1.0, 0.5, 0.0]
    network.raise_peaks(np.array([3]))
    network.settle(3.0)
    assert network.links["peak"].tolist() == [0.0, 1.0, 0.5, 1.0]
    assert network.links["work"].tolist() == pytest.approx([3.0, 3.0, 3.0, 0.0])
    assert network.links["busy"].tolist() == pytest.approx([1.0, 3.0, 3.0, 0.0])
    network.settle(9.0)
    assert network.links["work"].tolist() == pytest.approx([3.0, 9.0, 9.0, 0.0])
    assert network.now == 1.0


# ----------------------------------------------------------------- what groups post, and queues


def test_complete_groups_post_their_items_and_count_in_their_parent():
    """The first transfers end at 1 s, and with 4 units at 2 units/s at 2 s. The item of the first
    group is delayed by 0.5 s and drains for 3 s; that of the second is two of 1 s, in a row."""
    network = FluidNetwork([1.0, 2.0], tags=4)
    groups = network.open_groups(2, 2)
    parent = network.open_group(2)
    network.set_parents(groups, parent)
    network.watch(parent)
    items = batch(
        [[0], [], [1], [1]],
        work=[3.0, 0.0, 2.0, 2.0],
        delay=[0.5, 0.0, 0.0, 0.0],
        tag=np.arange(4),
    )
    items.edge_from, items.edge_to = chain_edges(2)
    network.set_sequels(groups, network.park(items, 2))
    network.post(0.0, batch([[0], [1]], work=[1.0, 4.0], group=groups))
    assert network.count_down(groups, 0.0)[1] == []
    assert network.are_complete(groups).tolist() == [False, False]
    assert network.advance(math.inf) == (2.0, [parent])
    assert network.ends(groups).tolist() == [1.0, 2.0]
    assert network.order(groups[::-1]).tolist() == [1, 0]
    run_to_end(network)
    assert network.finish.tolist() == [4.5, 4.5, 3.0, 4.0]


def test_groups_are_opened_anew():
    """A group that was complete, with parent and sequel, has none of that when it comes again."""
    network = FluidNetwork([1.0])
    groups = network.open_groups([1, 1, 2], 3)
    network.set_parents(groups[:1], groups[2])
    network.set_sequels(groups[:1], network.park(batch([[0]], work=1.0), 1))
    network.count_down(groups, 3.0)
    assert network.ends(groups).tolist() == [3.0, 3.0, 3.0]
    assert network.order(groups[::-1]).tolist() == [2, 1, 0]
    run_to_end(network)
    network.close_groups(groups)
    again = [network.open_group(1) for _ in groups]
    assert sorted(again) == sorted(groups.tolist())
    network.count_down(np.array(again[:1], np.int32), 5.0)
    assert [network.is_complete(group) for group in again] == [True, False, False]
    assert network.alive == 0
    for group in again:
        network.close_group(group)
    assert not network.are_complete(network.open_groups(1, 3)).any()


def test_items_that_find_no_room_are_posted_all_the_same():
    """300 items of three transfers, with more rate limits than there are links for: as the same
    transfers posted at once. An item that is too wide is refused."""
    rng = np.random.default_rng(8)
    count = 900
    columns = {
        "work": rng.uniform(1.0, 2.0, count),
        "cap": rng.choice(np.linspace(0.1, 1.0, 40), count),
        "tag": np.arange(count),
    }
    routes = [rng.choice(5, 2, replace=False).tolist() for _ in range(count)]
    first = 3 * np.arange(300)
    edges = np.concatenate([first, first + 1]), np.concatenate([first + 1, first + 2])
    ends = []
    for parked in (False, True):
        network = FluidNetwork(np.ones(5), width=2, tags=count)
        transfers = batch(routes, **columns)
        if parked:
            transfers.edge_from, transfers.edge_to = chain_edges(3)
            groups = network.open_groups(1, 300)
            network.set_sequels(groups, network.park(transfers, 300))
            network.count_down(groups, 0.0)
        else:
            transfers.edge_from, transfers.edge_to = (end.astype(np.int32) for end in edges)
            network.post(0.0, transfers)
        run_to_end(network)
        ends.append(network.finish.tolist())
    assert ends[0] == ends[1]
    wide = network.open_groups(1, 1)
    network.set_sequels(wide, network.park(batch([[0, 1, 2, 3]], work=1.0), 1))
    with pytest.raises(ValueError, match="a route of 4 links does not fit"):
        network.count_down(wide, network.now)


def test_a_transfer_waits_for_the_last_of_its_queue():
    """Of 2 s, in the same batch and in another. What has ended already is not waited for."""
    network = FluidNetwork([1.0, 1.0, 1.0], tags=4)
    queue = network.open_queues(2) + 1
    of_queue = {"after": queue, "last_of": queue}
    network.post(0.0, batch([[0], [1]], work=2.0, tag=[0, 1], **of_queue))
    network.advance(1.0)
    network.post(1.0, batch([[2]], work=2.0, tag=2, **of_queue))
    network.advance(8.0)
    network.post(8.0, batch([[2]], work=2.0, tag=3, after=queue))
    run_to_end(network)
    assert network.finish.tolist() == [2.0, 4.0, 6.0, 10.0]
