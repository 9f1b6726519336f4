"""The model of data-loading policies, worked out by hand; and the orders that the NoPFS study
prints (SC'21, Sec. 6)."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from simshuffle.studies.loader.policy_cases import load
from simshuffle.studies.loader.policy_reads import (
    Accesses,
    PolicyCase,
    System,
    draw,
    fetch_seconds,
    pfs_seconds,
)
from simshuffle.studies.loader.policy_sources import (
    POLICIES,
    kept_shares,
    placed_by_frequency,
    unbalanced_share,
)
from simshuffle.studies.loader.policy_times import compare, overlapped, running_max_plus
from simshuffle.studies.loader.tables import PFS, REMOTE_MEMORY

MB = 1e6
KEEPING = (
    "deepio_ordered",
    "deepio_opportunistic",
    "parallel_staging",
    "lbann_dynamic",
    "lbann_preloading",
    "locality_aware",
    "nopfs",
)
COMPLETE = (
    "naive",
    "staging_buffer",
    "deepio_ordered",
    "lbann_dynamic",
    "lbann_preloading",
    "locality_aware",
    "nopfs",
)
SAME = 1 + 1e-6


def system(
    workers=4,
    c=64,
    beta=200,
    network=24000,
    pfs=1540,
    memory=1000,
    ssd=1000,
    ssd_rate=4000,
    buffer=100,
    **servers,
):
    def room(megabytes, rate):
        return {
            "capacity": f"{megabytes} MB",
            "read_bandwidth": f"{rate} MB/s",
            "write_bandwidth": f"{rate} MB/s",
            "threads": 1,
        }

    return System.model_validate(
        {
            "workers": workers,
            "compute_bandwidth": f"{c} MB/s",
            "preprocess_bandwidth": f"{beta} MB/s",
            "network_bandwidth": f"{network} MB/s",
            "staging_buffer": room(buffer, 100_000),
            "memory": room(memory, 85_000),
            "ssd": room(ssd, ssd_rate),
            "parallel_file_system": {"read_bandwidth": f"{pfs} MB/s", **servers},
        }
    )


def case(samples=4000, size=1.0, std=0.0, epochs=3, batch=8):
    sizes = {"mean": f"{size} MB", "std": f"{std} MB"}
    return PolicyCase.model_validate(
        {"num_samples": samples, "sample_size": sizes, "local_batch_size": batch, "epochs": epochs}
    )


def outcomes(system_, case_, seed=0, policies=()):
    return {outcome.policy: outcome for outcome in compare(system_, case_, seed, policies)}


# ------------------------------------------------------------------------------------------ by hand


def test_perfect_takes_the_data_set_over_the_compute_of_all():
    perfect = outcomes(system(workers=4, c=64), case(samples=4000))["perfect"]
    assert [epoch.seconds for epoch in perfect.epochs] == pytest.approx(
        [4000 / 4 / 64] * 3, rel=1e-12
    )


def test_naive_reads_prepares_and_trains_one_after_another():
    naive = outcomes(system(workers=4, c=64, beta=200, pfs=1540), case(samples=4000))["naive"]
    assert naive.seconds == pytest.approx(3 * 1000 * (4 / 1540 + 1 / 200 + 1 / 64), rel=1e-9)


def test_a_prefetching_policy_is_bound_by_reading_where_that_is_slower_than_training():
    slow = outcomes(system(workers=4, c=1000, beta=500, pfs=400), case(samples=4000))[
        "staging_buffer"
    ]
    expected = 3 * 1000 * (4 / 400 + 1 / 500) + 1 / 1000  # and the last sample's training
    assert slow.seconds == pytest.approx(expected, rel=1e-9)


def test_a_prefetching_policy_is_bound_by_training_where_that_is_slower():
    fast = outcomes(system(workers=4, c=64, beta=200, pfs=1540), case(samples=4000))[
        "staging_buffer"
    ]
    # and the first sample's read
    assert fast.seconds == pytest.approx(3 * 1000 / 64 + 4 / 1540 + 1 / 200, rel=1e-9)


def test_opening_files_binds_where_samples_are_small():
    """N workers open R files/s in all: an epoch of F files takes F / R, whatever N."""
    small = case(samples=64_000, size=0.001, epochs=1)
    for workers in (4, 16):
        opened = outcomes(
            system(workers=workers, c=10_000, beta=10_000, open_rate="400 1/s"), small
        )["staging_buffer"]
        assert opened.seconds == pytest.approx(64_000 / 400, rel=1e-4)


def test_staging_takes_as_long_as_the_slower_of_reading_and_writing():
    read_bound = outcomes(system(workers=4, pfs=400, memory=2000), case(samples=4000))[
        "parallel_staging"
    ]
    assert read_bound.staging == pytest.approx(4000 / 400)
    write_bound = outcomes(
        system(workers=4, pfs=400_000, memory=0, ssd=2000, ssd_rate=50), case(samples=4000)
    )["parallel_staging"]
    assert write_bound.staging == pytest.approx(1000 / 50)
    opening = outcomes(
        system(workers=4, pfs=400_000, memory=2000, open_rate="100 1/s"), case(samples=4000)
    )["parallel_staging"]
    assert opening.staging == pytest.approx(4000 / 100)


def test_latency_counts_in_full_without_prefetching_and_shared_by_the_threads_with_it():
    slow = system(workers=1, c=1000, beta=100_000, pfs=1_000_000, latency="10 ms")
    found = outcomes(slow, case(samples=1000, epochs=1))
    assert found["naive"].seconds == pytest.approx(1000 * (0.010 + 0.001), rel=0.01)
    assert found["staging_buffer"].seconds == pytest.approx(1000 * 0.010, rel=0.01)  # of one thread


@pytest.mark.parametrize("policy", KEEPING)
def test_what_fits_in_memory_is_bound_by_training_from_the_second_epoch_on(policy):
    found = outcomes(system(c=300, beta=1000, pfs=400, memory=4000), case(samples=4000))
    first, *later = (epoch.seconds for epoch in found[policy].epochs)
    assert first > 1.5 * 1000 / 300
    assert later == pytest.approx([1000 / 300] * 2, rel=1e-3)
    assert found["staging_buffer"].epochs[-1].seconds == pytest.approx(
        1000 * (4 / 400 + 1 / 1000), rel=1e-3
    )


def test_shares_of_the_sources_where_memory_holds_a_quarter():
    """Memory of a worker: 250 of the 1000 samples that are its part, and 4000 in all."""
    found = outcomes(system(memory=250, ssd=0), case(samples=4000, epochs=2))
    shares = {
        name: np.array(found[name].epochs[-1].nbytes) / 1000e6
        for name in ("deepio_ordered", "deepio_opportunistic")
    }
    assert shares["deepio_ordered"][:4] == pytest.approx([0.75, 0.0625, 0, 0.1875], abs=0.03)
    assert shares["deepio_opportunistic"][:4] == pytest.approx([0, 0.25, 0, 0.75], abs=0.05)
    assert found["deepio_opportunistic"].plan.coverage == pytest.approx(0.25)
    assert found["parallel_staging"].plan.coverage == pytest.approx(0.25)
    local = np.array(found["locality_aware"].epochs[-1].nbytes) / 1000e6
    assert local[PFS] == pytest.approx(0.75, abs=0.05)
    assert local[REMOTE_MEMORY] == pytest.approx(0.25 * unbalanced_share(8, 4), abs=0.02)


def test_lbann_needs_all_memory_to_hold_the_set():
    fits = outcomes(system(memory=900, buffer=100), case(samples=4000))
    assert not fits["lbann_dynamic"].plan.problem
    over = outcomes(system(memory=899, buffer=100), case(samples=4000))
    assert "memory of all workers" in over["lbann_dynamic"].plan.problem
    assert over["lbann_preloading"].epochs == ()


def test_readers_of_the_file_system_are_as_many_as_spend_their_time_there():
    """Half of the bytes from a file system of 100 MB/s, half from memory at 1000 MB/s; N = 8,
    worked out by hand.

    gamma = 1 + 7 a gamma / (a gamma + b) with a = 1/100, b = 1/1000: 10 gamma^2 - 79 gamma - 1 = 0
    after multiplying out.
    """
    codes = np.array([PFS, REMOTE_MEMORY] * 50, np.int8)
    seconds, readers = fetch_seconds(
        system(workers=8, pfs=100, network=1000), codes, np.full(100, MB), 1.0
    )
    assert readers == pytest.approx((79 + np.sqrt(79**2 + 40)) / 20, rel=1e-6)
    assert seconds[0] == pytest.approx(readers / 100, rel=1e-6)
    assert 8 * 50 / seconds.sum() <= 100 * SAME  # all together never get more than there is


def test_a_client_gets_no_more_than_its_own_bandwidth():
    one = system(workers=2, pfs=1000, client_bandwidth="100 MB/s")
    assert pfs_seconds(one, np.array([MB]), 1.0, 2.0)[0] == pytest.approx(1 / 100)


# -------------------------------------------------------------------------------------- recurrences


def test_running_max_plus_is_the_loop():
    rng = np.random.default_rng(1)
    steps, earliest = rng.random(500), rng.random(500) * 200
    expected, x = [], 3.0
    for step, begin in zip(steps, earliest, strict=True):
        x = max(x, begin) + step
        expected.append(x)
    assert running_max_plus(steps, earliest, 3.0) == pytest.approx(expected, rel=1e-12)


def by_loop(read, compute, nbytes, room, begin):
    done, available = [], begin
    for f in range(len(read)):
        first = f
        while first > 0 and nbytes[first - 1 : f + 1].sum() <= room:
            first -= 1
        available = max(available, done[first - 1] if first else begin) + read[f]
        done.append(max(available, done[-1] if done else begin) + compute[f])
    return done


@given(
    st.integers(0, 2**32),
    st.integers(1, 300),
    st.integers(1, 400),
    st.sampled_from([0.1, 1.0, 3.0]),
)
@settings(max_examples=40, deadline=None)
def test_a_bounded_buffer_is_the_loop(seed, count, room, slowness):
    rng = np.random.default_rng(seed)
    read, compute = slowness * rng.random(count), rng.random(count)
    nbytes = rng.integers(1, 7, count).astype(float)
    expected = by_loop(read, compute, nbytes, room, 2.0)
    assert overlapped(read, compute, nbytes, float(room), 2.0) == pytest.approx(expected, rel=1e-12)


def test_a_buffer_of_one_sample_does_not_overlap():
    read, compute = np.full(10, 2.0), np.full(10, 3.0)
    assert overlapped(read, compute, np.ones(10), 1.0, 0.0)[-1] == pytest.approx(50.0)
    assert overlapped(read, compute, np.ones(10), 2.0, 0.0)[-1] == pytest.approx(32.0)


# -------------------------------------------------------------------------------------- frequencies


def test_frequencies_are_those_that_the_study_counts():
    """Sec. 3.1: N = 16, E = 90, F = 1,281,167: about 31,635 samples are read more than 10 times by
    a worker; their count: 31,863."""
    counts = (draw(case(samples=1_281_167, epochs=90), 16, 0).reader == 0).sum(axis=0)
    assert (counts > 10).mean() * 1_281_167 == pytest.approx(31_635, rel=0.05)


def test_a_cut_keeps_what_is_read_most():
    counts = np.array([0, 0, 1, 1, 1, 1, 2, 2, 3])
    assert kept_shares(counts, 3, 9)[counts] == pytest.approx([0, 0, 0, 0, 0, 0, 1, 1, 1])
    assert kept_shares(counts, 5, 9)[counts] == pytest.approx([0, 0, 0.5, 0.5, 0.5, 0.5, 1, 1, 1])
    assert kept_shares(counts, 100, 9)[counts].sum() == 7
    assert kept_shares(counts, 0, 9)[counts].sum() == 0


@pytest.mark.parametrize(
    ("workers", "epochs", "memory", "ssd"),
    [(4, 5, 100, 400), (4, 10, 300, 300), (8, 3, 50, 250), (2, 4, 200, 0)],
)
def test_placement_is_that_of_every_worker_ranking_all_samples(workers, epochs, memory, ssd):
    """Every worker explicitly: its most frequent samples, ties at random. The sources of worker 0
    must have the same shares."""
    accesses = draw(case(samples=4000, epochs=epochs), workers, 3)
    given_ = system(workers=workers, memory=memory, ssd=ssd, pfs=100)
    rng = np.random.default_rng(5)
    sources, kept_memory, kept_ssd = placed_by_frequency(accesses, given_, rng)
    assert (kept_memory, kept_ssd) == (memory, ssd)
    level = np.zeros((workers, 4000), int)
    for worker in range(workers):
        counts = (accesses.reader == worker).sum(axis=0)
        order = np.lexsort((rng.random(4000), -counts))
        order = order[counts[order] > 0]
        level[worker, order[: memory + ssd]] = 2
        level[worker, order[:memory]] = 1
    own, others = level[0], level[1:]
    best = np.zeros(4000, int)  # the file system; then from slow to fast
    best[(others == 2).any(axis=0)] = 4
    best[own == 2] = 2
    best[(others == 1).any(axis=0)] = 3
    best[own == 1] = 1
    blocks = [accesses.stream(epoch) for epoch in range(1, epochs)]
    expected = np.bincount(best[np.concatenate(blocks)], minlength=5) / sum(map(len, blocks))
    found = np.bincount(np.concatenate(sources[1:]), minlength=5) / sum(map(len, blocks))
    assert found == pytest.approx(expected, abs=0.035)


def test_every_sample_is_read_once_an_epoch_by_equally_busy_workers():
    accesses = draw(case(samples=1003, epochs=4), 7, 0)
    assert isinstance(accesses, Accesses)
    assert all(
        (np.bincount(reader, minlength=7) == accesses.own).all() for reader in accesses.reader
    )
    assert accesses.nbytes.sum() == pytest.approx(1003e6)


@pytest.mark.parametrize(("batch", "workers"), [(8, 4), (32, 4), (32, 64)])
def test_the_share_that_locality_moves_is_the_excess_over_a_batch(batch, workers):
    rng = np.random.default_rng(2)
    held = rng.multinomial(batch * workers, [1 / workers] * workers, size=20_000)
    assert unbalanced_share(batch, workers) == pytest.approx(
        np.maximum(held - batch, 0).mean() / batch, rel=0.03
    )


# --------------------------------------------------------------------------------------- properties

systems = st.fixed_dictionaries(
    {
        "workers": st.integers(1, 9),
        "c": st.integers(10, 2000),
        "beta": st.integers(50, 5000),
        "network": st.integers(50, 20_000),
        "pfs": st.integers(50, 5000),
        "memory": st.integers(0, 500),
        "ssd": st.integers(0, 500),
        "ssd_rate": st.integers(50, 5000),
        "buffer": st.integers(1, 200),
    }
)


@given(systems, st.integers(0, 100), st.sampled_from([0.0, 0.5]))
@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate], derandomize=True)
def test_no_policy_beats_perfect_and_every_byte_has_one_source(parts, seed, std):
    found = outcomes(system(**parts), case(samples=900, std=std), seed)
    for outcome in found.values():
        for epoch, bound in zip(outcome.epochs, found["perfect"].epochs, strict=False):
            assert sum(epoch.nbytes) == pytest.approx(sum(bound.nbytes), rel=1e-12)
        assert not outcome.epochs or outcome.seconds >= found["perfect"].seconds / SAME
        assert 0 <= outcome.plan.coverage <= 1
        in_buffer = parts["buffer"] if outcome.policy.startswith("lbann") else 0
        assert outcome.plan.memory <= (parts["memory"] + in_buffer) * MB * 1.01
        assert outcome.plan.ssd <= parts["ssd"] * MB * 1.01


@given(systems, st.integers(0, 100), st.sampled_from(["c", "beta", "network", "pfs", "ssd_rate"]))
@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate], derandomize=True)
def test_more_bandwidth_is_never_slower(parts, seed, faster):
    """But for what the order of fast and slow reads within an epoch does to a small buffer."""
    before = outcomes(system(**parts), case(samples=900), seed)
    after = outcomes(system(**parts | {faster: 2 * parts[faster]}), case(samples=900), seed)
    for name, outcome in before.items():
        assert after[name].seconds <= outcome.seconds * 1.02


# ------------------------------------------------------------------------------- the study's orders


@pytest.fixture(scope="module")
def printed():
    study = load("nopfs", {})
    return {name: outcomes(study.system, of, study.seed) for name, of in study.cases.items()}


@pytest.fixture(scope="module")
def fivefold():
    """With the study's faster accelerators (Sec. 6.2): at c = 64 MB/s every prefetching policy
    hides 385 MB/s of the file system."""
    study = load(
        "nopfs", {"system.compute_bandwidth": "320 MB/s", "system.preprocess_bandwidth": "1 GB/s"}
    )
    return {name: outcomes(study.system, of, study.seed) for name, of in study.cases.items()}


def ratio(found, policy):
    return found[policy].seconds / found["perfect"].seconds


def test_mnist_all_are_close_to_the_bound_but_naive(printed):
    """Sec. 6.1, scenario 1: little difference but for naive, 1.7 times as slow as the best. The
    model as printed gives 1.49."""
    found = printed["mnist"]
    assert all(ratio(found, policy) < 1.05 for policy in POLICIES if policy != "naive")
    assert ratio(found, "naive") == pytest.approx(1.7, rel=0.25)


@pytest.mark.parametrize(
    "name", ["imagenet1k", "openimages", "imagenet22k", "cosmoflow", "cosmoflow512"]
)
def test_nopfs_approaches_the_bound(printed, name):
    """Sec. 6.1: very close to the bound in scenario 2, approaches it in 3 and 4; the best (here:
    with others) in 2."""
    found = printed[name]
    assert ratio(found, "nopfs") < 1.02
    assert all(
        ratio(found, "nopfs") <= ratio(found, policy) * SAME
        for policy in COMPLETE
        if found[policy].epochs
    )


@pytest.mark.parametrize("name", ["imagenet1k", "openimages"])
def test_data_staging_pays_for_its_beginning_and_the_staging_buffer_for_the_file_system(
    printed, fivefold, name
):
    """Sec. 6.1, scenario 2: NoPFS is ahead of staging by the initialisation, and of the staging
    buffer by fewer reads of the PFS."""
    assert ratio(printed[name], "parallel_staging") > ratio(printed[name], "nopfs") + 0.01
    found = fivefold[name]
    assert (
        ratio(found, "nopfs")
        < ratio(found, "parallel_staging")
        < ratio(found, "staging_buffer")
        < ratio(found, "naive")
    )
    assert all(ratio(found, "nopfs") <= ratio(found, policy) * SAME for policy in COMPLETE)


@pytest.mark.parametrize("name", ["imagenet22k", "cosmoflow", "cosmoflow512"])
def test_large_sets(printed, fivefold, name):
    """Sec. 6.1, scenarios 3 and 4: LBANN cannot; DeepIO ordered is poor; its other mode and staging
    leave the PFS, and samples out."""
    found = fivefold[name]
    assert printed[name]["lbann_dynamic"].plan.problem
    assert printed[name]["lbann_preloading"].plan.problem
    assert all(
        ratio(found, "nopfs") <= ratio(found, policy) * SAME
        for policy in COMPLETE
        if found[policy].epochs
    )
    assert ratio(found, "deepio_ordered") - 1 > 2 * (ratio(found, "nopfs") - 1)
    for policy in ("deepio_opportunistic", "parallel_staging"):
        assert found[policy].epochs[-1].nbytes[PFS] == 0
        assert found[policy].epochs[-1].seconds == pytest.approx(
            found["perfect"].epochs[-1].seconds, rel=0.01
        )
    assert found["deepio_opportunistic"].plan.coverage < 0.4
    assert (found["parallel_staging"].plan.coverage < 1) == (name != "imagenet22k")


def test_openimages_fits_lbann_as_in_the_study(printed):
    """Sec. 6.1: LBANN 'no longer' takes the set in scenario 3, so it did in 2."""
    assert printed["openimages"]["lbann_dynamic"].epochs


def test_the_cases_are_in_their_scenarios():
    """Sec. 6: S < d_1; d_1 < S < D; D < S < N D; N D < S."""
    study = load("nopfs", {})
    memory, storage = study.system.memory.capacity, study.system.storage
    size = {name: of.nbytes for name, of in study.cases.items()}
    all_of = {name: storage * of.on(study.system).workers for name, of in study.cases.items()}
    assert (
        size["mnist"]
        < memory
        < size["imagenet1k"]
        < size["openimages"]
        < storage
        < size["imagenet22k"]
        < all_of["imagenet22k"]
    )
    assert size["cosmoflow"] > all_of["cosmoflow"]
    assert size["cosmoflow512"] > all_of["cosmoflow512"]
