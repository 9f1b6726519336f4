"""An epoch on the clock of bytes, by hand: three ranks on two hosts, samples of 1, 2, 4, ... bytes.

Rank 0 trains on samples 5 and 2, then 7; rank 1 on 0 and 3; rank 2 on 1 and 4, then 6 and 8, and 9
is in none of its two batches. After the first batch ranks 0 to 2 send 2, 3 and 6, each to the next;
after the second 7 goes from rank 0 to rank 2, 9 back, and rank 1 keeps 0.
"""

import numpy as np
import pytest

from simshuffle.job.plan.cache_epoch import BatchSizes, CacheEpoch, batch_edges, batch_sums
from simshuffle.job.plan.page_cache import PageCaches
from simshuffle.workload.exchange import ExchangePlan, Shards, empty_plan

NBYTES = 2.0 ** np.arange(10)
SHARDS = Shards(np.array([5, 2, 7, 0, 3, 1, 4, 6, 8, 9], np.int32), np.array([0, 3, 5, 10]))
EXCHANGE = ExchangePlan(
    sample=np.array([[2, 3, 6], [7, 0, 9]]),
    target=np.array([[1, 2, 0], [2, 1, 0]]),
    iteration=np.array([0, 1]),
    message=np.array([0, 1]),
)
BATCHES = BatchSizes(
    samples=np.array([[2, 2, 2], [1, 0, 2]]),
    nbytes=np.array([[36.0, 9.0, 18.0], [128.0, 0.0, 320.0]]),
    size=2,
)


def made() -> CacheEpoch:
    return CacheEpoch(SHARDS, EXCHANGE, BATCHES, NBYTES, np.array([0, 0, 1]))


@pytest.mark.parametrize("at_once", [4, 100])
def test_batches_begin_and_end_where_shards_do(at_once, monkeypatch):
    """Summed rank by rank, and all at once."""
    monkeypatch.setattr("simshuffle.workload.exchange.plan.SAMPLES_AT_ONCE", at_once)
    edges = batch_edges(SHARDS, 2, 2)
    assert edges.tolist() == [[0, 3, 5], [2, 5, 7], [3, 5, 9]]
    sums = batch_sums(SHARDS, edges, lambda slots: NBYTES[SHARDS.order[slots]])
    assert sums.tolist() == BATCHES.nbytes.tolist()


def test_bytes_that_each_host_has_read_sent_and_received():
    """Cumulative, at the beginning of each iteration and at the end, by host."""
    epoch = made()
    assert (epoch.hosts, epoch.iterations, epoch.longest) == (2, 2, 5)
    assert epoch.shard_nbytes.tolist() == [36 + 128 + 9, 18 + 320 + 512]
    assert epoch.read.tolist() == [[0, 0], [45, 18], [173, 338]]
    assert epoch.sent.tolist() == epoch.sent_steps.tolist() == [[0, 0], [12, 64], [140, 576]]
    received = [[0, 0], [64 + 4, 8], [68 + 512, 8 + 128]]
    assert epoch.arrived.tolist() == epoch.arrived_steps.tolist() == received


def test_samples_that_are_sent_before_they_are_used():
    """6 is trained on in the next iteration, and 9 never; what is trained on before is not."""
    epoch = made()
    assert epoch.places.tolist() == [[1, 1, 2], [2, 0, 4]]
    assert epoch.read_in.tolist() == [[0, 0, 1], [1, 0, 2]]
    assert epoch.sent_before_use.tolist() == [[False, False, True], [False, False, True]]
    assert epoch.ahead.tolist() == [[0, 0], [0, 64], [0, 512]]
    # from the later of both on; what no batch has when it is sent
    assert epoch.removed.tolist() == [[0, 0], [12, 0], [140, 64 + 512]]
    # and of what is read 9 is not: it is taken off with the last
    assert epoch.read_and_kept.tolist() == [[0, 0], [33, 18], [33, 338 - 576]]


def test_what_no_batch_has():
    slots, hosts = made().left_over
    assert (slots.tolist(), hosts.tolist()) == ([9], [1])


def test_values_when_a_sample_is_read():
    """A quarter and three quarters of a batch of two in, and at the end for what no batch has."""
    epoch = made()
    of_host_0 = [0.25 * 45, 0.75 * 45, 45 + 0.25 * 128, 45 + 0.75 * 128, 173]
    of_host_1 = [4.5, 13.5, 18 + 80, 18 + 240, 338]
    values = epoch.value_at_read(epoch.read)
    assert values.tolist() == [of_host_0, of_host_0, of_host_1]
    assert epoch.value_at_read(epoch.read, count=2).tolist() == [row[:2] for row in values.tolist()]
    stepwise = epoch.value_at_read(epoch.read, epoch.arrived, ranks=slice(2, 3))
    assert stepwise.tolist() == [[4.5, 13.5, 98 + 8, 258 + 8, 338 + 136]]
    (part,) = epoch.parts()
    before = of_host_0[:3] + of_host_0[:2] + [4.5, 13.5, 98 + 64, 258 + 64, 338 + 512]
    assert part.read_before.tolist() == before
    assert part.hosts.tolist() == [0] * 5 + [1] * 5
    assert part.sizes.tolist() == NBYTES[SHARDS.order].tolist()


def test_a_last_batch_that_is_not_full_is_read_in_its_length():
    """Three samples of one rank in batches of two: the third is half of the last batch in."""
    shards = Shards(np.arange(3, dtype=np.int32), np.array([0, 3]))
    batches = BatchSizes(np.array([[2], [1]]), np.array([[3.0], [4.0]]), 2)
    epoch = CacheEpoch(shards, empty_plan(1), batches, NBYTES[:3], np.array([0]))
    assert epoch.value_at_read(epoch.read).tolist() == [[0.75, 2.25, 5.0]]
    assert not epoch.sent_before_use.any()
    assert epoch.ahead.tolist() == [[0.0]] * 3


# ------------------------------------------------------------------------------------- their caches


def hits_of(orders: list[list[int]], capacity: float, read: int = 4, size: int = 2) -> list[int]:
    """Samples of the last of some epochs that one host's cache answers: of 10 samples of 10 bytes
    the first ``read`` of each order are read."""
    caches = PageCaches(capacity, np.full(10, 10.0), np.array([0]), redrawn=False)
    samples = np.full((read // size, 1), size)
    for order in orders:
        shards = Shards(np.array(order, np.int32), np.array([0, 10]))
        hits = caches.epoch(shards, empty_plan(1), BatchSizes(samples, 10.0 * samples, size))
    return [order[k] for k in range(read) if np.broadcast_to(hits.is_hit, (10,))[k]]


FIRST, SECOND = [*range(10)], [4, 5, 6, 7, 8, 9, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("capacity", "found"),
    [
        # 40 bytes of 100 are read an epoch. After sample 3 half of itself was, 5; then 40, of which
        # two fifths had been touched before: 43. When it is read 5 more are touched, 43 x 0.95 of
        # the others are not among them, and it needs its own 10: 55.85
        (55.8, []),
        (55.9, [3]),
        # sample 2, of 15 in place of 5, is read after 15: 49 x 0.85 + 15 + 10
        (66.6, [3]),
        (66.7, [3, 2]),
        # 1: (40 + 25 x 0.6) x 0.75 + 25 + 10; 0: (40 + 35 x 0.6) x 0.65 + 35 + 10
        (76.3, [3, 2, 1]),
        (84.7, [3, 2, 1, 0]),
        (84.6, [3, 2, 1]),
    ],
)
def test_what_was_left_out_of_an_epoch_grows_older_in_it(capacity, found):
    assert hits_of([FIRST, SECOND, [3, 2, 1, 0, *range(4, 10)]], capacity) == found


@pytest.mark.parametrize(
    ("capacity", "found"),
    [
        # in the epoch after: 5 x 0.95 + 5 + 10 for the last sample of the one before
        (19.7, []),
        (19.8, [3]),
        (37.7, [3]),  # 15 x 0.85 + 15 + 10
        (37.8, [3, 2]),
        (100.0, [3, 2, 1, 0]),
    ],
)
def test_what_was_read_last_is_there_first(capacity, found):
    assert hits_of([FIRST, [3, 2, 1, 0, *range(4, 10)]], capacity) == found


def test_what_was_never_read_is_in_no_cache():
    assert hits_of([FIRST, SECOND], 99.0) == []
    assert hits_of([FIRST, SECOND], 0.0) == []
    assert hits_of([FIRST], 1000.0) == []
    # where all fits only what was read is there
    assert hits_of([FIRST, [3, 4, 0, 9, *(1, 2, 5, 6, 7, 8)]], 1000.0) == [3, 0]


def test_one_host_may_have_room_for_its_shard_and_another_not():
    """Three samples on host 0 and seven on host 1, whose caches hold three: read again in the same
    order, each has left the second one when its turn comes."""
    caches = PageCaches(30.0, np.full(10, 10.0), np.array([0, 1]), redrawn=False)
    shards = Shards(np.arange(10, dtype=np.int32), np.array([0, 3, 10]))
    samples = np.array([[2, 2], [1, 2], [0, 2], [0, 1]])
    batches = BatchSizes(samples, 10.0 * samples, 2)
    assert not np.any(caches.epoch(shards, empty_plan(2), batches).is_hit)
    hits = caches.epoch(shards, empty_plan(2), batches)
    assert np.asarray(hits.is_hit).tolist() == [True] * 3 + [False] * 7
    assert hits.samples.tolist() == [[2, 0], [1, 0], [0, 0], [0, 0]]
    assert hits.nbytes.tolist() == [[20.0, 0.0], [10.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


# -------------------------------------------------------------------------- two hosts that exchange

TWO = BatchSizes(np.full((2, 2), 2), np.full((2, 2), 20.0), 2)
"""Two batches of two samples of 10 bytes on each of two hosts."""


def shards_of(*orders: list[int]) -> Shards:
    return Shards(np.concatenate(orders).astype(np.int32), np.array([0, 4, 8]))


def swaps(samples: list[list[int]]) -> ExchangePlan:
    """After each iteration each of two ranks sends a sample to the other."""
    steps = np.arange(len(samples))
    return ExchangePlan(np.array(samples), np.array([[1, 0]] * len(samples)), steps, steps)


def caches_of(capacity: float, redrawn: bool = False) -> PageCaches:
    return PageCaches(capacity, np.full(8, 10.0), np.array([0, 1]), redrawn)


ORDERS = shards_of([0, 1, 2, 3], [4, 5, 6, 7])


@pytest.mark.parametrize(
    ("capacity", "found"),
    [
        # received last, and then 5 bytes and itself
        (14.9, []),
        (15.0, [7]),
        # 2 was read, then 7.5 bytes of the batch, of which 5 are sent on, and in all 30 are
        # received or removed in the end: it was there if 27.5 and its own 10 had room
        (37.4, [7]),
        (37.5, [7, 2]),
        # after 4 came, 10 were received, and 20 read, half of which was removed in the end
        (39.9, [7, 2]),
        (40.0, [7, 2, 4]),
        # 1 is pushed out by all that is touched, unless shard and what is received have room
        (59.9, [7, 2, 4]),
        (60.0, [7, 2, 4, 1]),
    ],
)
def test_what_an_exchange_leaves_in_a_cache(capacity, found):
    """Host 0 sends 0 and 3, and gets 4 and 7. In the next epoch it reads 7, 2, 4 and 1, and nothing
    is sent: its 40 bytes fit from 40 on."""
    caches = caches_of(capacity)
    caches.epoch(ORDERS, swaps([[0, 4], [3, 7]]), TWO)
    after = shards_of([7, 2, 4, 1], [5, 6, 0, 3])
    hits = np.broadcast_to(caches.epoch(after, empty_plan(2), TWO).is_hit, (8,))
    assert [
        sample for sample, is_hit in zip(after.order[:4], hits, strict=False) if is_hit
    ] == found


@pytest.mark.parametrize(
    ("capacity", "found", "sent"),
    [
        # read in the order of the epoch before: 25 x 0.625 + 25 for sample 1 ...
        (40.6, [], [[True, True], [True, False]]),
        (40.7, [1], [[True, True], [True, False]]),
        (45.7, [0, 1], [[True, True], [True, False]]),
        # ... and 10 bytes have come before the second batch
        (50.6, [0, 1], [[True, True], [True, False]]),
        (50.7, [0, 1, 2], [[True, True], [True, False]]),
        (55.7, [0, 1, 2, 3], [[True, True], [True, True]]),
        # sent 15 bytes after it was read, 10 of its own; in the second step 5 of them
        (24.9, [], [[False, False], [True, False]]),
        (25.0, [], [[True, True], [True, False]]),
        (14.9, [], [[False, False], [False, False]]),
        # 5 is sent 35 bytes after it was read and 10 that came, of which 10 more were sent
        (54.9, [0, 1, 2], [[True, True], [True, False]]),
        (55.0, [0, 1, 2], [[True, True], [True, True]]),
    ],
)
def test_what_is_read_and_sent_while_samples_come(capacity, found, sent):
    caches = caches_of(capacity)
    caches.epoch(ORDERS, empty_plan(2), TWO)
    hits = caches.epoch(ORDERS, swaps([[0, 4], [3, 5]]), TWO)
    assert [k for k in range(4) if np.broadcast_to(hits.is_hit, (8,))[k]] == found
    assert hits.sent.tolist() == sent


@pytest.mark.parametrize(
    ("capacity", "found", "sent"),
    [
        # 2 is read 5 bytes after it was sent, and needs its own 10
        (14.9, [], False),
        (15.0, [2], False),
        # since it was read 15 bytes were, of which a quarter is new, 20 of this epoch and itself
        (43.7, [1, 2], False),
        (43.8, [1, 2], True),
        (45.7, [0, 1, 2], True),
        (49.9, [0, 1, 2], True),
        (50.0, [0, 1, 2, 3], True),
    ],
)
def test_a_sample_that_is_sent_before_it_is_used_is_there_when_it_is(capacity, found, sent):
    """After the first batch host 0 sends 2, which it reads in the second."""
    caches = caches_of(capacity)
    caches.epoch(ORDERS, empty_plan(2), TWO)
    hits = caches.epoch(ORDERS, swaps([[2, 4]]), TWO)
    assert [k for k in range(4) if np.broadcast_to(hits.is_hit, (8,))[k]] == found
    assert hits.sent[0].tolist() == [sent, capacity >= 25]


@pytest.mark.parametrize(
    ("capacity", "found"),
    [
        # host 0 read 7 last in the epoch before: 5 x (1 - 15 / 80) + 15 + 10
        (29.0, []),
        (29.1, [7]),
        # and 3 last in the one before that, since when it read half of the set:
        # 80 (1 - 15/16 / 2) x (1 - 5 / 80) + 5 + 10
        (54.8, [7]),
        (54.9, [3, 7]),
        (80.0, [3, 7]),
    ],
)
def test_under_global_shuffle_a_host_finds_what_it_read_itself(capacity, found):
    """Of 80 bytes each host reads half in an epoch, drawn anew: here the halves change hosts."""
    caches = caches_of(capacity, redrawn=True)
    caches.epoch(ORDERS, empty_plan(2), TWO)
    caches.epoch(shards_of([4, 5, 6, 7], [0, 1, 2, 3]), empty_plan(2), TWO)
    last = shards_of([3, 7], [0, 1, 2, 4, 5, 6])
    last = Shards(last.order, np.array([0, 2, 8]))
    samples = np.array([[2, 2], [0, 2], [0, 2]])
    hits = caches.epoch(last, empty_plan(2), BatchSizes(samples, 10.0 * samples, 2))
    assert [last.order[k] for k in range(2) if np.broadcast_to(hits.is_hit, (8,))[k]] == found


@pytest.mark.parametrize(("capacity", "hit"), [(65.3, False), (65.4, True)])
def test_what_comes_in_an_epoch_makes_older_what_is_left_out_of_it(capacity, hit):
    """As above: sample 3 was read last in the first epoch, and is left out of the second, in which
    a sample of 10 bytes comes: (40 + 10 + 5 x 0.6) x 0.95 + 5 + 10."""
    caches = PageCaches(capacity, np.full(20, 10.0), np.array([0, 1]), redrawn=False)
    others = [*range(10, 20)]
    for order, exchange in (
        ([*range(10)], empty_plan(2)),
        ([4, 1, 2, 0, 3, 5, 6, 7, 8, 9], swaps([[4, 10]])),
        ([3, 1, 2, 0, 10, 5, 6, 7, 8, 9], empty_plan(2)),
    ):
        of_other = [4 if sample == 10 else sample for sample in others] if order[0] == 3 else others
        shards = Shards(np.array([*order, *of_other], np.int32), np.array([0, 10, 20]))
        hits = caches.epoch(shards, exchange, TWO)
    assert bool(np.asarray(hits.is_hit)[0]) == hit


def test_room_for_one_host_in_an_epoch_is_none_for_all():
    """Host 0 reads 40 bytes and gets 10 in the first epoch, for which 45 have no room, and host 1
    20 and 20. In the next both have 30, but what was pushed out on host 0 is gone: sample 1."""
    nbytes = np.array([10.0] * 4 + [5.0] * 4)
    caches = PageCaches(45.0, nbytes, np.array([0, 1]), redrawn=False)
    sizes = BatchSizes(np.full((2, 2), 2), np.array([[20.0, 10.0]] * 2), 2)
    caches.epoch(ORDERS, swaps([[0, 4], [3, 7]]), sizes)
    hits = caches.epoch(shards_of([7, 2, 4, 1], [5, 6, 0, 3]), empty_plan(2), sizes)
    assert not np.asarray(hits.is_hit)[3]
    assert np.asarray(hits.is_hit)[0]
    # 50 bytes each had room, 30 and 70 have not all: 45 x (1 - 45 / 70) + 45 + 10 bytes for 5
    caches = PageCaches(55.0, np.full(10, 10.0), np.array([0, 1]), redrawn=False)
    for order, start in (([*range(10)], 5), ([2, 1, 0, 9, 8, 7, 6, 5, 4, 3], 3)):
        shards = Shards(np.array(order, np.int32), np.array([0, start, 10]))
        samples = np.diff(batch_edges(shards, 2, 4), axis=0)
        hits = caches.epoch(shards, empty_plan(2), BatchSizes(samples, 10.0 * samples, 2))
    assert np.asarray(hits.is_hit)[:4].all()
    assert not np.asarray(hits.is_hit)[7]
