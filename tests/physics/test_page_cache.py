"""The page cache against a true LRU cache, simulated sample by sample: what every host reads,
sends, stores and removes, in its order; and this cache against libCacheSim, a simulator of others.

The law and its derivation: docs/model-storage.md.
"""

import json
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.job.plan.epochs import EpochPlan, plan_epochs, sample_nbytes
from simshuffle.job.plan.page_cache import PageCaches
from simshuffle.job.scenario.scenario import Scenario
from tests.shared import needs_peers
from tests.small import small

LOCAL, GLOBAL, PARTIAL = (
    "local_shuffle",
    "global_shuffle:source=pfs",
    "partial_local_shuffle:exchange_fraction=0.3",
)
ALL = "partial_local_shuffle:exchange_fraction=1"
JUDGED = [
    *(
        (exchange, share, 10)
        for exchange in (LOCAL, GLOBAL, PARTIAL, ALL)
        for share in (0.2, 0.4, 0.6, 0.8, 0.95, 1.0, 1.2)
    ),
    *((exchange, share, 100) for exchange in (PARTIAL, ALL) for share in (0.6, 1.0)),
]
"""Strategy, share and batch size of what libCacheSim has counted as well."""
RECORDED = Path(__file__).parents[1] / "data" / "page_cache" / "libcachesim-0.3.5.json"


class Lru:
    """A cache of one host: files by name, the one touched longest ago goes first."""

    def __init__(self, capacity: float) -> None:
        self.capacity, self.used = capacity, 0.0
        self.files: OrderedDict[Any, float] = OrderedDict()

    def touch(self, name: Any, nbytes: float) -> bool:
        """Read or write a file; whether it was there."""
        there = name in self.files
        if there:
            self.files.move_to_end(name)
        else:
            self.files[name] = nbytes
            self.used += nbytes
            while self.used > self.capacity:
                self.used -= self.files.popitem(last=False)[1]
        return there

    def remove(self, name: Any) -> None:
        self.used -= self.files.pop(name, 0.0)


class Independent:
    """The same by libCacheSim, which numbers its files from 1."""

    def __init__(self, cachesim: Any, capacity: float) -> None:
        self.cache = cachesim.LRU(cache_size=int(capacity), hashpower=14)
        self.request, self.numbers = cachesim.Request(), dict[Any, int]()

    def number(self, name: Any) -> int:
        return self.numbers.setdefault(name, len(self.numbers) + 1)

    def touch(self, name: Any, nbytes: float) -> bool:
        self.request.obj_id, self.request.obj_size = self.number(name), int(nbytes)
        return bool(self.cache.get(self.request))

    def remove(self, name: Any) -> None:
        self.cache.remove(self.number(name))


def true_hits(
    scenario: Scenario, plans: list[EpochPlan], nbytes: Any, cache_of: Any = Lru
) -> list[tuple[Any, Any]]:
    """For each epoch the hits of every batch, (iterations, M), and of what is sent, (steps, M), of
    caches of one copy of each file."""
    gpus, world_size, size = (
        scenario.cluster.host.gpus,
        scenario.world_size,
        scenario.workload.local_batch_size,
    )
    caches = [cache_of(scenario.cluster.memory.page_cache) for _ in range(scenario.hosts)]
    version = np.zeros(len(nbytes), int)  # a received sample is a new file
    out = []
    for plan in plans:
        if plan.inference is not None:
            _read_through(plan, caches, version, nbytes, gpus, size)
        hits, sent = (
            np.zeros((plan.iterations, world_size), int),
            np.zeros(plan.exchange.sample.shape, bool),
        )
        # what a rank trains on and sends is its own file, wherever the copy has gone
        removed, own = [], version.copy()
        for iteration in range(plan.iterations):
            for k in range(size):
                for rank in range(world_size):
                    place = plan.shards.start[rank] + iteration * size + k
                    if place < plan.shards.start[rank + 1]:
                        sample = plan.shards.order[place]
                        hits[iteration, rank] += caches[rank // gpus].touch(
                            (sample, own[sample]), nbytes[sample]
                        )
            steps = np.flatnonzero(plan.exchange.iteration == iteration)
            for step in steps:
                for rank in np.flatnonzero(plan.exchange.moving[step]):
                    sample = plan.exchange.sample[step, rank]
                    sent[step, rank] = caches[rank // gpus].touch(
                        (sample, own[sample]), nbytes[sample]
                    )
                    removed.append((rank // gpus, (sample, own[sample])))
                    version[sample] += 1
            for step in steps:
                for rank in np.flatnonzero(plan.exchange.moving[step]):
                    sample = plan.exchange.sample[step, rank]
                    caches[plan.exchange.target[step, rank] // gpus].touch(
                        (sample, version[sample]), nbytes[sample]
                    )
        for host, name in removed:
            caches[host].remove(name)
        out.append((hits, sent))
    return out


def _read_through(
    plan: EpochPlan, caches: list[Any], version: Any, nbytes: Any, gpus: int, size: int
) -> None:
    """The pass that measures importance: every rank reads its shard in the order of sample numbers,
    all of them batch by batch."""
    held = [sorted(plan.shards.order[a:b].tolist()) for a, b in pairwise(plan.shards.start)]
    for first in range(0, max(map(len, held)), size):
        for k in range(first, first + size):
            for rank, samples in enumerate(held):
                if k < len(samples):
                    caches[rank // gpus].touch(
                        (samples[k], version[samples[k]]), nbytes[samples[k]]
                    )


def run(
    exchange: str, share: float, num_samples: int = 8000, epochs: int = 4, **values: Any
) -> tuple[Scenario, list[EpochPlan], Any]:
    """8 ranks on two hosts; a cache holds ``share`` of a host's part of the set."""
    part = num_samples * 100e3 / 2
    given = {
        "cluster__host__gpus": 4,
        "cluster__memory__page_cache": f"{share * part!r} B",
        "workload__dataset__num_samples": num_samples,
    }
    sizes = {
        "workload__dataset__sample_size": {"mean": "100 kB", "std": "60 kB"},
        "workload__last_batch": "keep",
    }
    scenario = small(workload__exchange=exchange, epochs=epochs, **(given | sizes | values))
    nbytes = np.round(sample_nbytes(scenario))  # whole ones, as libCacheSim counts them
    return scenario, list(plan_epochs(scenario, nbytes)), nbytes


def tenths(batches: Any) -> Any:
    """Sums over ten equal parts of the iterations, or over each where they are fewer."""
    return np.array([part.sum() for part in np.array_split(batches, min(10, len(batches)))])


def check(
    scenario: Scenario,
    plans: list[EpochPlan],
    nbytes: Any,
    epoch_within: float = 0.01,
    tenth_within: float = 0.03,
) -> list[list[int]]:
    """Hits of warm epochs, as a share of an epoch's reads and of those of a tenth of it; none in
    the first. Returns what the true cache counted."""
    truth = true_hits(scenario, plans, nbytes)
    for plan, (hits, sent) in zip(plans, truth, strict=True):
        if plan.epoch == 1:
            assert not plan.training.hit_samples.any()
            assert not plan.training.hit_nbytes.any()
            assert not plan.sent_from_cache.any()
            continue
        reads = int(plan.training.samples.sum())
        assert plan.training.hit_samples.sum() == pytest.approx(
            hits.sum(), abs=epoch_within * reads
        )
        parts = tenths(hits)
        assert tenths(plan.training.hit_samples) == pytest.approx(
            parts, abs=tenth_within * reads / len(parts)
        )
        if sent.size:
            assert plan.sent_from_cache.sum() == pytest.approx(
                sent.sum(), abs=2 * epoch_within * sent.size
            )
        assert (plan.training.hit_nbytes <= plan.training.nbytes).all()
        assert (
            plan.training.hit_nbytes[plan.training.hit_samples == plan.training.samples]
            == plan.training.nbytes[plan.training.hit_samples == plan.training.samples]
        ).all()
    return counts(truth)


def counts(hits: list[tuple[Any, Any]]) -> list[list[int]]:
    """Hits of training and of sending in every epoch."""
    return [[int(trained.sum()), int(sent.sum())] for trained, sent in hits]


@pytest.mark.parametrize(("exchange", "share", "batch"), JUDGED)
def test_hits_are_those_of_a_true_lru_cache(exchange, share, batch):
    """8000 samples on two hosts: within 1 % of an epoch's reads, and 3 % of those of any tenth of
    it, also with 10 iterations. libCacheSim 0.3.5 counted the same of the true cache, sample by
    sample.

    Under partial local shuffle received samples enter the cache when they are written, and sent
    ones leave it at the end of the epoch.
    """
    found = check(*run(exchange, share, workload__local_batch_size=batch))
    recorded = json.loads(RECORDED.read_text())["hits"]
    assert found == recorded[f"{exchange}, {share}, {batch}"]


@needs_peers
def test_libcachesim_still_counts_what_was_recorded():
    cachesim = pytest.importorskip("libcachesim", reason="libcachesim is not installed")
    recorded = json.loads(RECORDED.read_text())["hits"]
    assert len(recorded) == len(JUDGED)
    for exchange, share, batch in JUDGED:
        hits = true_hits(
            *run(exchange, share, workload__local_batch_size=batch),
            lambda capacity: Independent(cachesim, capacity),
        )
        assert counts(hits) == recorded[f"{exchange}, {share}, {batch}"]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.95, 1.1])
@pytest.mark.parametrize("lagging", ["true", "false"])
@pytest.mark.parametrize("kind", ["importance_exchange", "importance_pair"])
def test_hits_of_selected_samples_are_those_of_a_true_lru_cache(kind, lagging, share):
    """Samples are sent in an order of their own, many before they are trained on: within 1.5 % of
    an epoch's reads, 3 % of what is sent.

    The pass that measures importance goes through all shards before; after it nothing is cold.
    """
    scenario, plans, nbytes = run(f"{kind}:exchange_fraction=0.3,lagging={lagging}", share)
    truth = true_hits(scenario, plans, nbytes)
    for plan, (hits, sent) in zip(plans, truth, strict=True):
        if plan.epoch == 1 and lagging == "true":
            assert not plan.training.hit_samples.any()
            continue
        reads = int(plan.training.samples.sum())
        assert plan.training.hit_samples.sum() == pytest.approx(hits.sum(), abs=0.015 * reads)
        assert tenths(plan.training.hit_samples) == pytest.approx(
            tenths(hits), abs=0.05 * reads / 10
        )
        assert plan.sent_from_cache.sum() == pytest.approx(sent.sum(), abs=0.03 * sent.size)


@pytest.mark.parametrize("share", [1.5, 1.9, 2.5])
def test_a_large_cache_remembers_several_epochs_of_global_shuffle(share):
    """Each of two hosts reads a random half in every epoch; with room for the whole set (share 2
    and more) nothing is read twice."""
    scenario, plans, nbytes = run(GLOBAL, share, epochs=6)
    check(scenario, plans, nbytes)
    if share > 2:
        for plan, (hits, _) in zip(plans[1:], true_hits(scenario, plans, nbytes)[1:], strict=True):
            assert plan.training.hit_samples.tolist() == hits.tolist()


@pytest.mark.parametrize("share", [0.5, 0.9, 1.1])
@pytest.mark.parametrize("exchange", [LOCAL, GLOBAL, PARTIAL])
def test_samples_that_no_batch_has_are_not_read(exchange, share):
    """8440 samples are 1055 a rank, of which 17 batches of 60 take 1020."""
    check(
        *run(exchange, share, 8440, workload__last_batch="drop", workload__local_batch_size=60),
        tenth_within=0.04,
    )


@pytest.mark.parametrize("exchange", [LOCAL, PARTIAL])
def test_small_shards_stray_by_chance_only(exchange):
    """The overlap of two orders is an expected value. With 50 samples a host, epochs stray by a
    tenth at most, their mean by less."""
    scenario, plans, nbytes = run(
        exchange, 0.7, num_samples=100, epochs=40, workload__local_batch_size=2
    )
    truth = true_hits(scenario, plans, nbytes)[1:]
    strays = (
        np.array(
            [
                plan.training.hit_samples.sum() - hits.sum()
                for plan, (hits, _) in zip(plans[1:], truth, strict=True)
            ]
        )
        / 100
    )
    assert np.abs(strays).max() < 0.1
    assert abs(strays.mean()) < 0.015


def test_repeated_reads_hit_as_often_as_the_closed_form_says():
    """c + (1 - c) ln(1 - c) of the reads, c being the share that fits: the integral of the law over
    both positions."""
    for share in (0.3, 0.6, 0.9):
        scenario, plans, _ = run(
            LOCAL, share, num_samples=80_000, epochs=2, workload__dataset__sample_size__std="0 B"
        )
        expected = scenario.cluster.memory.repeat_hits(80_000 * 100e3 / 2)
        assert plans[1].training.hit_samples.sum() / 80_000 == pytest.approx(expected, abs=0.004)


def test_late_reads_hit_more_rarely_than_early_ones():
    """What is read first in an epoch was touched last in the one before, if at all: with half a
    cache, v > 1/2 never hits."""
    _, plans, _ = run(LOCAL, 0.5, num_samples=80_000, epochs=2)
    hits = tenths(plans[1].training.hit_samples)
    assert (np.diff(hits) <= 0).all()
    assert hits[0] / 8000 == pytest.approx(
        1 - 0.5 * np.mean(1 / (1 - np.linspace(0, 0.1, 1001))), abs=0.02
    )
    assert (hits[5:] == 0).all()


def test_everything_hits_where_everything_fits():
    for exchange in (LOCAL, PARTIAL):
        for plan in run(exchange, 1.4)[1][1:]:
            assert (plan.training.hit_samples == plan.training.samples).all()
            assert (plan.training.hit_nbytes == plan.training.nbytes).all()
            assert (plan.sent_from_cache == plan.exchange.moving).all()


def test_what_was_read_last_is_there_after_an_epoch_without_it():
    """Batches of 2 of the 3 samples of a rank; caches hold all that was read once."""
    scenario, plans, nbytes = run(
        LOCAL, 1.4, 24, epochs=12, workload__last_batch="drop", workload__local_batch_size=2
    )
    truth = true_hits(scenario, plans, nbytes)
    assert truth[1][0].sum() < 16  # some are read for the first time
    for plan, (hits, _) in zip(plans, truth, strict=True):
        assert plan.training.hit_samples.tolist() == hits.tolist()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([LOCAL, GLOBAL, PARTIAL]),
    st.floats(0, 2.5),
    st.floats(0, 2.5),
    st.integers(1, 30),
    st.sampled_from(["keep", "drop"]),
)
def test_more_cache_never_reads_more_from_storage(exchange, a, b, batch, rule):
    """Sample by sample, whatever fits into a small cache fits into a large one."""
    values = {
        "num_samples": 700,
        "epochs": 3,
        "workload__local_batch_size": batch,
        "workload__last_batch": rule,
    }
    less, more = (run(exchange, share, **values)[1] for share in sorted((a, b)))
    for x, y in zip(less, more, strict=True):
        assert (x.training.hit_samples <= y.training.hit_samples).all()
        assert (x.sent_from_cache <= y.sent_from_cache).all()
        assert (y.training.hit_samples <= y.training.samples).all()
        assert (x.training.hit_nbytes >= 0).all()
        assert (x.training.hit_nbytes <= x.training.nbytes).all()


def test_more_hosts_than_16_bits_count_keep_their_numbers():
    """One small number is kept for each sample: hosts above 32,767 need a larger one."""
    for last in (2**15 - 1, 2**15, 2**16):
        caches = PageCaches(1e6, np.ones(4), np.array([0, last]), False)
        assert caches._host_of.tolist() == [0, last]
