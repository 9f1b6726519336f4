"""A cache that hosts share, worked out by hand; and what it evicts, against libCacheSim.

8 hosts with one GPU read 800 samples of 100 kB, 80 MB, in 10 iterations, without randomness. The
file system has 5 MB/s and the cache 10 MB/s, so reading takes 16 s in a cold epoch and 8 s in one
that finds everything in the cache. After the last read come three steps of 0.05 s, since the two
workers of a rank end at once: `AFTER`.
Law: docs/jobs.md.
"""

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.errors import ScenarioError
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.cache_tier import tier_share
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.job.plan.eviction import cache_of
from simshuffle.job.plan.reading_bounds import ReadingBounds
from simshuffle.job.plan.recovery import divide_among, drop_iterations, stop_after
from simshuffle.job.plan.resources import Resources
from simshuffle.job.plan.thinning import thin_scenario
from simshuffle.job.plan.tier_gain import tier_gain, tier_sentence, tier_warnings
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from tests.shared import needs_peers
from tests.small import small

RECORDED = Path(__file__).parents[1] / "data" / "cache_tier" / "libcachesim-0.3.5.json"
JUDGED = ("lru", "fifo", "clock", "s3fifo")
CASES = list(product(JUDGED, (0.2, 0.5, 0.835, 0.97), ("alike", "drawn")))
ALL, SET = 80e6, 800
AFTER = 0.1455
TIER = {"capacity": "80 MB", "bandwidth": "10 MB/s"}
PFS = {"read_bandwidth": "5 MB/s", "open_rate": "1000 k/s", "latency": "0 s"}


def scenario(tier: dict[str, Any], exchange: Any = "global_shuffle:source=pfs", **values: Any):
    """Three epochs with `TIER` and `PFS`, with other values of the tier."""
    pfs = {f"cluster__parallel_file_system__{key}": value for key, value in PFS.items()}
    return small(
        cluster__cache_tier=TIER | tier,
        **({"workload__exchange": exchange, "epochs": 3} | pfs | values),
    )


def epochs(made: Any) -> list[float]:
    return report.epochs(simulate(made))["epoch_s"].tolist()


def reading(made: Any) -> list[float]:
    """Seconds of each epoch until its last byte is read."""
    return [seconds - AFTER for seconds in epochs(made)]


def plans(made: Any) -> list[Any]:
    return list(plan_epochs(made, sample_nbytes(made)))


def hits(made: Any) -> list[int]:
    """Samples that the tier answers in each epoch."""
    return [int(plan.training.tier.hit_samples.sum()) for plan in plans(made)]


def crossed(timeline: Any, epoch: int) -> dict[str, float]:
    """Bytes over each kind of link in an epoch."""
    links = timeline.links[timeline.links["epoch"] == epoch]
    return links.groupby(links["tier"].astype(str))["nbytes"].sum().to_dict()


# ---------------------------------------------------------------------------------- time, by hand


@pytest.mark.parametrize("eviction", ["none", *JUDGED, "random"])
def test_where_everything_fits_the_second_epoch_has_the_bandwidth_of_the_tier(eviction):
    """80 MB at 5 MB/s, then at 10 MB/s; s3fifo stores no sample as large as its small queue."""
    assert reading(scenario({"eviction": eviction})) == pytest.approx([16.0, 8.0, 8.0], rel=0.01)


def test_what_is_stored_takes_the_bandwidth_of_the_tier_too():
    """A tier of 4 MB/s: the cold epoch, read at 5 MB/s, is written at 4 MB/s, all later ones are
    read at 4 MB/s. A tier that is slower than what is behind it makes an epoch longer."""
    slow = scenario({"bandwidth": "4 MB/s"})
    assert reading(slow) == pytest.approx([20.0, 20.0, 20.0], rel=0.01)


def test_a_tier_without_room_is_none():
    """Not one sample fits: nothing is stored, no byte crosses the tier, and every epoch takes what
    it takes without one, to the last bit."""
    without = scenario({}).model_copy(update={"cluster": small().cluster})
    pfs = scenario({}).cluster.parallel_file_system
    plain = without.cluster.model_copy(update={"parallel_file_system": pfs})
    timeline = simulate(scenario({"capacity": "99 kB"}))
    assert not any("cache_tier" in name for name in crossed(timeline, 2))
    expected = epochs(without.model_copy(update={"cluster": plain}))
    assert report.epochs(timeline)["epoch_s"].tolist() == expected
    assert expected == pytest.approx([16.0] * 3, rel=0.01)


def test_half_of_the_data_kept_for_good_halves_what_the_file_system_reads():
    """40 MB at 5 MB/s beside 40 MB at 10 MB/s: at least 8 s, and less than one after the other, 12
    s. The first half of the cold epoch fills the tier."""
    timeline = simulate(scenario({"capacity": "40 MB", "eviction": "none"}))
    bytes_of = [crossed(timeline, epoch) for epoch in (1, 2, 3)]
    assert [of["pfs.bandwidth"] for of in bytes_of] == pytest.approx([80e6, 40e6, 40e6])
    assert [of["cache_tier.bandwidth"] for of in bytes_of] == pytest.approx([40e6] * 3)
    seconds = report.epochs(timeline)["epoch_s"].tolist()
    assert seconds[0] == pytest.approx(16.0, rel=0.01)
    assert all(8.0 < each < 10.0 for each in seconds[1:])


def test_a_warm_tier_serves_the_first_epoch():
    assert reading(scenario({"warm": True})) == pytest.approx([8.0] * 3, rel=0.01)
    half = {"warm": True, "eviction": "none", "capacity": "40 MB"}
    assert hits(scenario(half)) == [400, 400, 400]


def test_what_one_host_gets_binds():
    """Each of 8 hosts reads 10 MB: at 0.5 MB/s 20 s. The file system does not feel it."""
    limited = scenario({"host_bandwidth": "0.5 MB/s"})
    assert reading(limited) == pytest.approx([16.0, 20.0, 20.0], rel=0.01)


def test_opening_binds_by_rate_and_by_latency():
    """800 samples at 50 a second: 16 s, and 80 MB at 10 MB/s 8 s. All workers open at once, and
    then read at once, so both count. A lone rank with one worker opens its 800 one after the other:
    20 ms each are 16 s too."""
    assert reading(scenario({"open_rate": "50 /s"}))[1:] == pytest.approx([24.0] * 2, rel=0.01)
    alone = {"world_size": 1, "workload__loader": {"workers": 1, "prefetch": 1}, "epochs": 2}
    none = {"workload__dataset__decode": "0 s"}
    last = epochs(scenario({"latency": "20 ms"}, **alone, **none))[1]
    assert last == pytest.approx(24.0, rel=0.01)


def test_hits_cross_the_cables_of_the_file_system():
    """Cables of 100 kB/s to each of 8 hosts carry 10 MB each in 100 s, whoever sends them."""
    topology = {"kind": "star", "hosts": 16, "link_bandwidth": "100 kB/s"}
    topology |= {"cable_latency": "0 s", "switch_latency": "0 s"}
    wide = scenario({}, cluster__topology=topology, epochs=2, workload__model__gradient_size="1 B")
    assert epochs(wide) == pytest.approx([100.0, 100.0], rel=0.02)


def test_in_front_of_an_object_store_hits_cross_no_cable():
    """A store of 5 MB/s, and requests that take no time: 16 s, then 8 s; of the cables only the
    gradients are left, as without reads."""
    store = {"bandwidth": "5 MB/s", "latency": "0 s", "connection_bandwidth": "1 GB/s"}
    store["request_rate"] = "1000 k/s"
    made = scenario({}, "global_shuffle:source=object_store", cluster__object_store=store)
    timeline = simulate(made)
    seconds = report.epochs(timeline)
    expected = pytest.approx([16.0, 8.0, 8.0], rel=0.01)
    assert (seconds["epoch_s"] - AFTER).tolist() == expected
    assert seconds["nbytes_object_store"].tolist() == pytest.approx([ALL, 0, 0])
    assert crossed(timeline, 2)["cache_tier.host"] == pytest.approx(ALL)
    from_store = crossed(timeline, 1)
    assert from_store["object_store.bandwidth"] == from_store["cache_tier.bandwidth"]


# ------------------------------------------------------------------------------------- who shares


def test_hosts_share_what_any_of_them_has_read():
    """Under global shuffle a host reads another eighth each epoch: its own page cache, large enough
    for everything, has seen 1/8 of it, the tier all."""
    made = scenario({}, cluster__memory__page_cache="80 MB")
    _, second, _ = plans(made)
    of_host = int(second.training.hit_samples.sum())
    assert of_host == pytest.approx(SET / 8, rel=0.3)
    assert int(second.training.tier.hit_samples.sum()) == SET - of_host


def test_under_local_shuffle_each_rank_reads_its_shard_again():
    """The tier shares nothing then, and is as good: what is in it is read again by the same rank.
    A page cache that holds the shards leaves it nothing to do after the cold epoch."""
    local = "local_shuffle:source=pfs"
    assert hits(scenario({}, local)) == [0, SET, SET]
    half = {"capacity": "40 MB", "eviction": "none"}
    assert hits(scenario(half, local)) == [0, SET // 2, SET // 2]
    cached = scenario({}, local, cluster__memory__page_cache="80 MB")
    assert hits(cached) == [0, 0, 0]
    assert "cache_tier.host" not in crossed(simulate(cached), 2)


def test_reads_come_batch_by_batch_from_all_ranks():
    """With nothing evicted and room for one iteration, 80 samples, those of the first batches of
    all 8 ranks stay."""
    made = scenario({"capacity": "8 MB", "eviction": "none"})
    first = plans(made)[0].training.tier.stored_samples
    assert (first[0] == 10).all()
    assert not first[1:].any()


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["none", *JUDGED, "random"]),
    st.floats(0.002, 1.1),
    st.floats(0.0, 0.5),
    st.sampled_from(["global_shuffle:source=pfs", "local_shuffle:source=pfs"]),
    st.booleans(),
    st.floats(0, 60),
)
def test_every_read_is_answered_once(eviction, share, page_cache, exchange, warm, std):
    """Page cache, tier and file system together have read the set once in each epoch; and of what
    is stored and held there is never more than the tier has room for."""
    made = scenario(
        {"capacity": f"{share * ALL} B", "eviction": eviction, "warm": warm, "bandwidth": "1 GB/s"},
        exchange,
        cluster__memory__page_cache=f"{page_cache * ALL} B",
        workload__dataset__sample_size={"mean": "100 kB", "std": f"{std} kB"},
    )
    total = float(sample_nbytes(made).sum())
    found = plans(made)
    for plan in found:
        reads, tier = plan.training, plan.training.tier
        assert (tier.hit_samples + tier.stored_samples <= reads.samples - reads.hit_samples).all()
        left = reads.nbytes - reads.hit_nbytes - tier.hit_nbytes - tier.stored_nbytes
        assert (left >= -1e-6 * total).all()
    timeline = simulate(made)
    for row in report.epochs(timeline).itertuples():
        links = crossed(timeline, row.epoch)
        from_tier = links.get("cache_tier.host", 0.0)
        assert row.nbytes_pfs + row.nbytes_memory + from_tier == pytest.approx(total)
        stored = float(found[row.epoch - 1].training.tier.stored_nbytes.sum())
        assert links.get("cache_tier.bandwidth", 0.0) == pytest.approx(from_tier + stored)


# ----------------------------------------------------------------------------------- what evicts


def trace(kind: str, count: int = 400) -> tuple[Any, list[Any]]:
    """Sizes, and the reads of three epochs in a new random order each and of one with repeats."""
    rng = np.random.default_rng(5)
    sizes = rng.integers(500, 1500, count) if kind == "drawn" else np.full(count, 1000)
    return sizes, [*(rng.permutation(count) for _ in range(3)), rng.integers(0, count, count)]


def counted(eviction: str, share: float, kind: str) -> list[int]:
    sizes, passes = trace(kind)
    capacity = int(share * sizes.sum())
    cache = cache_of(eviction, capacity, sizes, np.random.default_rng(0))  # type: ignore[arg-type]
    return [int(cache.read(samples)[0].sum()) for samples in passes]


@pytest.mark.parametrize(
    ("eviction", "hits"),
    [
        ("none", "0001011101"),
        ("fifo", "0001000000"),
        ("lru", "0001010000"),
        ("clock", "0001010001"),
    ],
)
def test_which_of_samples_of_one_size_goes_by_hand(eviction, hits):
    """Room is for three. D, the fifth read, lets A go (fifo), or B as A was read again (lru,
    clock); the ninth, D again, lets A go (lru), or B as A went round (clock)."""
    cache = cache_of(eviction, 3, np.ones(4, np.int64), np.random.default_rng(0))
    reads = [cache.read(np.array(["ABCD".index(name)]))[0] for name in "ABCADABCDA"]
    assert "".join(map(str, np.concatenate(reads).astype(int))) == hits


@pytest.mark.parametrize("eviction", ["none", *JUDGED, "random"])
@pytest.mark.parametrize("size", [1, 9, 10, 100, 101])
def test_what_fills_a_cache_to_the_last_byte_is_stored(eviction, size):
    """Of 100 bytes; s3fifo stores what is smaller than its small queue of 10."""
    cache = cache_of(eviction, 100, np.array([size, 100]), np.random.default_rng(0))
    (hit,), (stored,) = cache.read(np.zeros(1, np.int64))
    (again,), _ = cache.read(np.zeros(1, np.int64))
    fits = size < 10 if eviction == "s3fifo" else size <= 100
    assert (hit, stored, again) == (False, fits, fits)


@pytest.mark.parametrize(("eviction", "share", "kind"), CASES)
def test_hits_are_those_of_libcachesim(eviction, share, kind):
    recorded = json.loads(RECORDED.read_text())["hits"]
    assert counted(eviction, share, kind) == recorded[f"{eviction}, {share}, {kind}"]


@needs_peers
def test_libcachesim_still_counts_what_was_recorded():
    """To renew the table: ``RENEW=1 SIMSHUFFLE_PEERS=1``, where libcachesim is installed."""
    import os

    cachesim = pytest.importorskip("libcachesim", reason="libcachesim is not installed")
    kinds = {
        "lru": cachesim.LRU,
        "fifo": cachesim.FIFO,
        "clock": cachesim.Clock,
        "s3fifo": cachesim.S3FIFO,
    }
    found = {}
    for eviction, share, kind in CASES:
        sizes, passes = trace(kind)
        cache = kinds[eviction](cache_size=int(share * sizes.sum()), hashpower=12)
        asked = [
            [cachesim.Request(obj_id=int(one) + 1, obj_size=int(sizes[one])) for one in samples]
            for samples in passes
        ]
        found[f"{eviction}, {share}, {kind}"] = [sum(map(cache.get, one)) for one in asked]
    if os.environ.get("RENEW"):
        rows = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(of)}" for key, of in found.items())
        head = '{\n "library": "libCacheSim",\n "version": "0.3.5",\n "hits": {\n  '
        RECORDED.write_text(f"{head}{rows}\n }}\n}}\n")
    assert found == json.loads(RECORDED.read_text())["hits"]


def shares(eviction: str, share: float, passes: int = 4, count: int = 20_000) -> float:
    """Share of hits in the last of so many epochs of samples of one size."""
    rng = np.random.default_rng(2)
    cache = cache_of(eviction, share * count, np.ones(count, np.int64), rng)  # type: ignore[arg-type]
    *_, last = (cache.read(rng.permutation(count))[0].mean() for _ in range(passes))
    return float(last)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 120 / 143.67, 0.95])
def test_hits_in_random_order_by_hand(share):
    """Of a set of which the share c fits, read in a new random order each epoch, hits are

    - c where nothing is evicted: what is in stays;
    - c + (1 - c) ln(1 - c) with lru (`Memory.repeat_hits`);
    - 1 - c ln(c + (1 - c) e^(1/c)) where any goes. When the share v of an epoch is read, let h be
      that of the others which are in the cache: h(0) = c, since every order is as likely. A read
      finds its sample with h, else one goes, which is of the others with h (1 - v) / c; so h' = -h
      (1 - h) / c, which is logistic: h = 1 / (1 + (1 - c)/c e^(v/c)), whose mean over v that is.
    """
    expected = {
        "none": share,
        "lru": share + (1 - share) * math.log(1 - share),
        "random": 1 - share * math.log(share + (1 - share) * math.exp(1 / share)),
    }
    assert {kind: shares(kind, share) for kind in expected} == pytest.approx(expected, abs=0.01)
    # a second chance for what was read is next to what was read last
    assert shares("clock", share) == pytest.approx(expected["lru"], abs=0.01)
    assert expected["lru"] < shares("fifo", share) < expected["random"] < share


def test_120_gb_for_143_67_gb_by_hand():
    """What github.com/Alluxio/alluxio, issues 10322 and 10401, have: 120 GB on four hosts for
    143.67 GB. Shared, 54 % of the reads hit with lru; where each host keeps copies for itself, 30
    GB, 2.4 %, which is no gain."""
    assert shares("lru", 120 / 143.67) == pytest.approx(0.5372, abs=0.01)
    assert shares("lru", 30 / 143.67) == pytest.approx(0.0236, abs=0.005)


@pytest.mark.parametrize("warm", [False, True])
def test_what_the_first_epoch_reads_stays_however_much_page_caches_answer_later(warm):
    """Half of the reads of later epochs come to a tier with room for 72 %, which keeps what came
    first: all came in the first epoch, when page caches were empty."""
    tier = {"capacity": "57.6 MB", "eviction": "none", "warm": warm}
    found = [tier_share(scenario(tier), epoch, 0.5) for epoch in (1, 2, 3, 99)]
    assert found == pytest.approx([0.72 * warm, *[0.72] * 3], abs=0.02)


def test_the_other_shares_of_the_page():
    """No closed form; libCacheSim counts the same (above, on fewer samples)."""
    found = [shares(kind, of, 8) for kind in ("fifo", "s3fifo") for of in (0.5, 0.835)]
    assert found == pytest.approx([0.193, 0.717, 0.188, 0.610], abs=0.01)


# ----------------------------------------------------------------------- before a run, and the rest


@pytest.mark.parametrize("eviction", ["none", *JUDGED, "random"])
@pytest.mark.parametrize("page_cache", ["0 B", "30 MB"])
def test_the_estimate_is_what_the_plan_counts(eviction, page_cache):
    """Within 5 % of an epoch's 800 reads, of which chance is 2 %; within 8 % behind page caches,
    which answer what was read lately and not any read."""
    made = scenario(
        {"capacity": "48 MB", "eviction": eviction}, cluster__memory__page_cache=page_cache
    )
    for plan in plans(made):
        missed = SET - int(plan.training.hit_samples.sum())
        found = int(plan.training.tier.hit_samples.sum()) / missed
        cached = 0.0 if plan.epoch == 1 else 1.0 - missed / SET
        within = 0.05 if page_cache == "0 B" else 0.08
        assert tier_share(made, plan.epoch, cached) == pytest.approx(found, abs=within)


@pytest.mark.parametrize("tier", [{}, {"capacity": "40 MB", "eviction": "none"}, {"warm": True}])
@pytest.mark.parametrize("source", ["pfs", "object_store"])
def test_no_bound_is_above_the_simulation(tier, source):
    store = {"bandwidth": "5 MB/s", "latency": "1 ms", "connection_bandwidth": "1 GB/s"}
    made = scenario(tier, f"global_shuffle:source={source}", cluster__object_store=store)
    bound, simulated = bounds(made).epoch, epochs(made)[-1]
    assert 0.75 * simulated < bound <= simulated * (1 + 1e-9)


@pytest.mark.parametrize(("cached", "tiered"), [(0.25, 0.5), (0.8, 0.1), (0.0, 0.7), (0.6, 0.0)])
def test_a_batch_is_read_from_where_each_share_of_it_is(cached, tiered):
    """A worker reads one after the other what memory, the tier and the file system have."""
    reading = ReadingBounds(scenario({"latency": "3 ms"})).read_seconds
    memory, tier, pfs = reading(10, 1.0), reading(10, 0.0, 1.0), reading(10, 0.0)
    assert 0 < memory < tier < pfs
    expected = cached * memory + (1 - cached) * (tiered * tier + (1 - tiered) * pfs)
    assert reading(10, cached, tiered) == pytest.approx(expected)


def test_check_says_what_a_tier_is_good_for():
    """Half the data with lru: 15 % of the reads hit, an epoch takes 85 % of 16 s, and 8 s with a
    tier that holds everything. With a fifth of it: 2 % hit, which is warned of."""
    facts = tier_gain(scenario({"capacity": "40 MB"}))["cache_tier"]
    assert facts["hits"] == pytest.approx(0.153, abs=0.02)
    assert facts["without_s"] == pytest.approx(16.0, rel=0.01)
    assert facts["epoch_s"] == pytest.approx(16.0 * (1 - facts["hits"]), rel=0.01)
    assert facts["with_all_s"] == pytest.approx(8.0, rel=0.01)
    assert "room for 50 % of the data, evicting as lru does" in tier_sentence(facts)
    assert not tier_warnings(scenario({"capacity": "40 MB"}))
    (warning,) = tier_warnings(scenario({"capacity": "16 MB"}))
    assert "eviction: none" in warning.remedy
    assert "warm" in tier_warnings(scenario({}, epochs=1))[0].remedy
    (slow,) = tier_warnings(scenario({"bandwidth": "5 MB/s"}))
    assert "no faster" in slow.remedy
    (unused,) = tier_warnings(scenario({}, "local_shuffle"))
    assert "is not used" in unused.rule


def test_the_tier_is_numbered_after_all_other_links():
    def table(made: Any) -> list[str]:
        return Resources(made.cluster, 8, np.random.default_rng(0)).links.names

    names, plain = table(scenario({})), table(small())
    assert names[: len(plain)] == plain
    added = names[len(plain) :]
    assert added[:2] == ["cache_tier.bandwidth", "cache_tier.open"]
    assert len(added) == 2 + 8
    assert all(name.endswith(".cache_tier.host") for name in added[2:])


def test_a_part_of_an_epoch_has_a_part_of_the_tier():
    made = scenario({"capacity": "40 MB"})
    part = thin_scenario(made, 5).scenario.cluster.cache_tier
    assert part is not None
    assert part.capacity == pytest.approx(20e6)


def test_orders_of_loaders_are_refused():
    with pytest.raises(ScenarioError, match=r"cluster\.cache_tier: cannot be used with"):
        scenario({}, {"kind": "loader_shuffle", "order": "webdataset", "samples_per_shard": 10})


LOSS = {"what": "h0000", "at": "13 s", "rate": 0}
BACK = {"detect": "1 s", "restart": "1 s", "spares": 1, "reread": False}
SAVING = {"every": 2, "layout": "deduplicated", "state": "1 kB"}


@pytest.mark.parametrize("policy", ["spare", "elastic"])
def test_a_tier_that_has_all_serves_what_is_read_again_after_a_host_is_lost(policy):
    """Its servers are no hosts of the job: whoever reads after the restart finds all 80 MB."""
    lossy = {"faults": [LOSS], "recovery": BACK | {"policy": policy}}
    made = scenario({"warm": True}, epochs=2, workload__checkpoint=SAVING, **lossy)
    timeline = simulate(made)
    assert [loss["epoch"] for loss in timeline.facts["losses"]] == [2]
    links = crossed(timeline, 2)
    assert links["cache_tier.bandwidth"] >= ALL
    assert links["pfs.bandwidth"] < ALL / SET  # checkpoints alone: less than one sample


def test_ranks_that_take_over_samples_find_as_much_of_them_in_the_tier():
    """With 40 MB of 80 in the tier; by hand from the plan: what 2 of 8 ranks would have hit is hit
    by those that read their samples, in whole samples a batch."""
    *_, plan = plans(scenario({"capacity": "40 MB", "eviction": "none"}))
    staying = np.arange(8) >= 2
    before, after = plan.training.tier, divide_among(plan, staying, 10, dealt=True).training.tier
    num_own = len(before.hit_samples)
    for name in ("hit_samples", "hit_nbytes", "stored_samples", "stored_nbytes"):
        own = getattr(before, name)[:, staying]
        np.testing.assert_array_equal(getattr(after, name)[:num_own], own)
    lost_nbytes = before.hit_nbytes[:, ~staying].sum()
    assert lost_nbytes > 0
    assert after.hit_nbytes[num_own:].sum() == pytest.approx(lost_nbytes)
    dropped = before.hit_samples[:, ~staying].sum() - after.hit_samples[num_own:].sum()
    assert 0 <= dropped < after.hit_samples[num_own:].size
    rest = drop_iterations(plan, 3).training.tier
    np.testing.assert_array_equal(rest.hit_nbytes, before.hit_nbytes[3:])
    done = stop_after(plan, 3, np.full(8, 4)).training.tier
    np.testing.assert_array_equal(done.hit_nbytes[:4], before.hit_nbytes[:4])
    assert done.hit_nbytes[4:].sum() == 0


def test_a_single_cold_epoch_gains_nothing_and_later_ones_what_a_longer_run_gains():
    cold, warm, long = (
        tier_gain(scenario({}, epochs=epochs))["cache_tier"]["hits"] for epochs in (1, 2, 50)
    )
    assert (cold, warm) == (0.0, pytest.approx(1.0))
    assert long == pytest.approx(warm)
