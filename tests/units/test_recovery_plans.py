"""Plans that are followed further after a host is lost, by hand: three ranks, batches of two.

Rank 0 trains on samples 0 and 1, then 2 and 3; rank 1 on 4 and 5; rank 2 on 6 and 7, then 8. After
the first batch 0 goes to rank 1, 4 to 2 and 6 to 0; then 1 to 2, 5 to 0 and 7 to 1; after the
second batch 2 goes to 1, 4 to 0, and 8 stays.
"""

from dataclasses import replace

import numpy as np
import pytest

from simshuffle.errors import InputError
from simshuffle.job.plan.cache_tier import TierReads
from simshuffle.job.plan.epochs import EpochPlan, Fetches, Reads
from simshuffle.job.plan.lost_hosts import check_losses, spare_hosts
from simshuffle.job.plan.recovery import (
    append_batches,
    clear_caches,
    divide_among,
    drop_iterations,
    even_batches,
    stop_after,
    trained_samples,
)
from simshuffle.workload.exchange import ExchangePlan, Shards
from tests.small import small

SAMPLES = np.array([[2, 2, 2], [2, 0, 1]])
NBYTES = np.array([[20.0, 30.0, 40.0], [50.0, 0.0, 60.0]])
HITS = np.array([[1, 2, 0], [2, 0, 1]])
EXCHANGE = ExchangePlan(
    sample=np.array([[0, 4, 6], [1, 5, 7], [2, 4, 8]]),
    target=np.array([[1, 2, 0], [2, 0, 1], [1, 0, 2]]),
    iteration=np.array([0, 0, 1]),
    message=np.array([0, 0, 1]),
    draws=np.array([1, 0, 2]),
)
READS = Reads(SAMPLES, NBYTES, HITS, 5.0 * HITS, work=0.1 * NBYTES)
PLAN = EpochPlan(
    epoch=2,
    shards=Shards(np.arange(9, dtype=np.int32), np.array([0, 4, 6, 9])),
    exchange=EXCHANGE,
    training=READS,
    inference=READS,
    sent_from_cache=np.array([[True, False, True], [True, True, True], [False, True, False]]),
    nbytes=np.full(9, 10.0),
)
OWNER = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])


def test_what_is_left_of_an_epoch_after_its_first_iteration():
    left = drop_iterations(PLAN, 1)
    assert left.shards.order.tolist() == [2, 3, 8]
    assert left.shards.start.tolist() == [0, 2, 2, 3]
    assert left.exchange.sample.tolist() == [[2, 4, 8]]
    assert left.exchange.iteration.tolist() == [0]
    assert left.exchange.message.tolist() == [1]
    assert left.exchange.draws is not None
    assert left.exchange.draws.tolist() == [2]
    assert left.training.samples.tolist() == [[2, 0, 1]]
    assert left.training.hit_nbytes.tolist() == [[10.0, 0.0, 5.0]]
    assert left.training.work is not None
    assert left.training.work.tolist() == [[5.0, 0.0, 6.0]]
    assert left.sent_from_cache.tolist() == [[False, True, False]]
    assert left.inference is None
    assert drop_iterations(PLAN, 0) is PLAN
    workers = replace(PLAN.shards, worker=np.arange(9))
    divided = drop_iterations(replace(PLAN, shards=workers), 1).shards.worker
    assert divided is not None
    assert divided.tolist() == [2, 3, 8]


def test_what_was_done_of_an_epoch():
    assert trained_samples(PLAN, 1).tolist() == [0, 1, 4, 5, 6, 7]
    assert trained_samples(PLAN, 2).tolist() == list(range(9))
    # rank 0 had asked for both of its batches, the others for one
    done = stop_after(PLAN, 1, np.array([2, 1, 1]))
    assert done.exchange.sample.tolist() == [[0, 4, 6], [1, 5, 7]]
    assert done.exchange.iteration.tolist() == [0, 0]
    assert done.training.samples.tolist() == [[2, 2, 2], [2, 0, 0]]
    assert done.training.nbytes.tolist() == [[20.0, 30.0, 40.0], [50.0, 0.0, 0.0]]
    assert done.training.work is READS.work
    assert done.sent_from_cache.tolist() == PLAN.sent_from_cache[:2].tolist()
    assert (done.iterations, done.inference) == (2, READS)


def test_a_new_host_has_no_warm_cache():
    cold = clear_caches(PLAN, np.array([True, False, False]))
    for reads in (cold.training, cold.inference):
        assert reads is not None
        assert reads.hit_samples.tolist() == [[0, 2, 0], [0, 0, 1]]
        assert reads.hit_nbytes.tolist() == [[0.0, 10.0, 0.0], [0.0, 0.0, 5.0]]
        assert reads.samples.tolist() == SAMPLES.tolist()
    assert cold.sent_from_cache.tolist() == [
        [False, False, True],
        [False, True, True],
        [False, True, False],
    ]
    unmeasured = replace(PLAN, inference=None)
    assert clear_caches(unmeasured, np.array([True, False, False])).inference is None


def test_ranks_that_go_on_take_over_even_parts():
    """Ranks 0 and 2 get one each of the two samples of 15 B of rank 1, or nothing."""
    staying = np.array([True, False, True])
    divided = divide_among(PLAN, staying, 2, dealt=True)
    assert divided.training.samples.tolist() == [[2, 2], [2, 1], [1, 1]]
    assert divided.training.nbytes.tolist() == [[20.0, 40.0], [50.0, 60.0], [15.0, 15.0]]
    assert divided.training.hit_samples.tolist() == [[1, 0], [2, 1], [0, 0]]
    assert divided.training.hit_nbytes.tolist() == [[5.0, 0.0], [10.0, 5.0], [0.0, 0.0]]
    assert divided.training.work is not None
    assert divided.training.work.tolist() == [[2.0, 4.0], [5.0, 6.0], [1.0, 1.0]]
    assert divided.inference is not None
    assert divided.inference.samples.tolist() == [[2, 2], [2, 1]]
    assert divided.exchange.sample.shape == divided.sent_from_cache.shape == (0, 2)
    assert divided.shards.start.tolist() == [0, 0, 0]
    assert divided.training.tier is None
    alone = divide_among(PLAN, staying, 2, dealt=False)
    assert alone.training.nbytes.tolist() == [[20.0, 40.0], [50.0, 60.0]]


def test_a_tier_keeps_its_part_of_samples_that_are_dealt_out():
    """Of the two of rank 1 one was there, and the other was stored."""
    counts = np.array([[0, 1, 0], [0, 0, 0]])
    tier = TierReads(counts, 8.0 * counts, counts, 9.0 * counts)
    plan = replace(PLAN, training=replace(READS, tier=tier))
    divided = divide_among(plan, np.array([True, False, True]), 2, dealt=True).training.tier
    assert divided is not None
    # half of one sample is none in whole samples, and half of its 15 B
    assert divided.hit_samples.tolist() == [[0, 0]] * 3
    assert divided.hit_nbytes.tolist() == [[0.0, 0.0], [0.0, 0.0], [7.5, 7.5]]
    assert divided.stored_nbytes.tolist() == divided.hit_nbytes.tolist()
    fetches = Fetches(SAMPLES, SAMPLES, 3, "ssd")
    fetching = replace(PLAN, training=replace(READS, fetches=fetches))
    assert divide_among(fetching, np.array([True] * 3), 2, dealt=True).training.fetches is None
    rest = drop_iterations(fetching, 1).training.fetches
    assert rest is not None
    assert (rest.requests.tolist(), rest.nbytes.tolist()) == ([[2, 0, 1]], [[2, 0, 1]])
    assert (rest.held_nbytes, rest.cached_in) == (3, "ssd")


@pytest.mark.parametrize(
    ("lost", "iterations", "owner", "nobodys"),
    [
        # what came to rank 2, 4 and 1, is with its senders; 8 was its own
        ([False, False, True], 2, [1, 0, 0, 0, 1, 0, 0, 1, 2], [8]),
        # both lost 4 and 7, each was sent from one to the other
        ([False, True, True], 2, [0, 0, 0, 0, 2, 0, 0, 1, 2], [4, 7, 8]),
        # 7 and 5 had not been sent
        ([False, False, True], 1, [1, 0, 0, 0, 1, 1, 0, 2, 2], [7, 8]),
        ([False, False, True], 0, OWNER.tolist(), [6, 7, 8]),
    ],
)
def test_whose_samples_are_once_hosts_are_lost(lost, iterations, owner, nobodys):
    """Of the first two steps, one after each batch."""
    steps = np.array([0, 1])
    exchange = ExchangePlan(EXCHANGE.sample[:2], EXCHANGE.target[:2], steps, steps)
    is_gone = np.array(lost)
    owners = exchange.owners_at(OWNER, iterations, is_gone)
    assert owners.tolist() == owner
    assert np.flatnonzero(is_gone[owners]).tolist() == nobodys
    assert OWNER.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("samples", "ranks", "batches"),
    [
        (7, 3, [[2, 2, 2], [1, 0, 0]]),
        (8, 3, [[2, 2, 2], [1, 1, 0]]),
        (12, 2, [[2, 2]] * 3),
        (1, 2, [[1, 0]]),
    ],
)
def test_even_batches(samples, ranks, batches):
    assert even_batches(samples, ranks, 2).tolist() == batches
    assert even_batches(0, ranks, 2).shape == (0, ranks)


def test_batches_that_are_appended_are_in_no_cache():
    more = append_batches(READS, np.array([[1, 0, 2]]), 7.0, None)
    assert more.samples[2].tolist() == [1, 0, 2]
    assert more.nbytes[2].tolist() == [7.0, 0.0, 14.0]
    assert not more.hit_samples[2].any()
    assert not more.hit_nbytes[2].any()
    plain = append_batches(replace(READS, work=None), np.array([[1, 0, 2]]), 7.0, None)
    assert plain.work is None


# ------------------------------------------------------------------------------- who may be lost

LASTING = {"what": "h0000", "at": "5 s", "rate": 0}
PASSING = {"what": "h0001", "at": "1 s", "rate": 0, "for": "1 s"}
HOSTS = [f"h{host:04d}" for host in range(8)]


def losing(*faults, exchange="local_shuffle", **recovery):
    base = {"detect": "1 s", "restart": "1 s", "spares": 1}
    return small(faults=list(faults), recovery=base | recovery, workload__exchange=exchange)


def test_spare_hosts_are_the_first_without_ranks():
    assert spare_hosts(losing(LASTING, spares=2), HOSTS) == ["h0008", "h0009"]
    assert spare_hosts(losing(LASTING, spares=2), ["h0001", "h0008"]) == ["h0000", "h0002"]
    assert spare_hosts(small(), HOSTS) == []


def test_spares_are_enough_for_hosts_that_do_not_return():
    """h0000 does not return; h0001 does, before or after, and is then a spare itself. The first
    spare host is h0008."""
    for passing in (PASSING, PASSING | {"at": "9 s"}):
        check_losses(losing(passing, LASTING), HOSTS)
        with pytest.raises(InputError, match="0, and h0000 is lost for ever"):
            check_losses(losing(passing, LASTING, spares=0), HOSTS)
    check_losses(losing(PASSING, spares=0), HOSTS)
    check_losses(losing(LASTING, spares=0), HOSTS[1:])  # it is no host of the job, and no spare
    # of two the later one has none, whichever is written first, and the spare itself counts
    for host, at, named in (("h0002", "4 s", "h0000"), ("h0002", "6 s", "h0002")):
        other = LASTING | {"what": host, "at": at}
        with pytest.raises(InputError, match=f"1, and {named} is lost for ever"):
            check_losses(losing(LASTING, other), HOSTS)
        check_losses(losing(LASTING, other, spares=2), HOSTS)
    spare = LASTING | {"what": "h0008", "at": "1 s"}
    with pytest.raises(InputError, match="1, and h0000 is lost for ever"):
        check_losses(losing(LASTING, spare), HOSTS)
    check_losses(losing(spare), HOSTS)
    check_losses(losing(LASTING, LASTING | {"at": "8 s"}), HOSTS)  # one host, whose place is taken


def test_a_spare_reads_what_was_staged():
    with pytest.raises(InputError, match="reread"):
        check_losses(losing(LASTING, reread=False), HOSTS)
    check_losses(losing(LASTING, reread=False), HOSTS[1:])
    check_losses(losing(LASTING, reread=False, exchange="global_shuffle"), HOSTS)
    check_losses(losing(LASTING, reread=False, policy="elastic"), HOSTS)
