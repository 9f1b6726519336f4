"""Loaders that hand out batches in order, worked out by hand, and against the simulation."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.job.plan.prefetching import (
    LoaderDemand,
    loader_demand,
    play_loops,
    wait_seconds,
)
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from simshuffle.studies.loader.tuning import make_row
from tests.small import small

exactly = pytest.approx


def alike(seconds: float, batches: int = 64) -> np.ndarray:
    """Batches that all take as long, of one rank."""
    return np.full((batches, 1), seconds)


# ----------------------------------------------------------------------------------------- by hand


def test_workers_that_are_fast_enough_are_waited_for_once():
    # 3 workers bring a batch each in 3 steps: just in time
    assert wait_seconds(alike(3.0), 1.0, workers=3, prefetch=6).tolist() == [3.0, *63 * [0.0]]


def test_workers_that_are_too_slow_deliver_together_and_are_waited_for_in_turns():
    # 4 workers, 6 s a batch, 1 s a step: four are there every 6 s, and the loop waits 2 s for them
    found = wait_seconds(alike(6.0), 1.0, workers=4, prefetch=8)
    assert found.tolist() == [6.0, 0.0, 0.0, 0.0, *15 * [2.0, 0.0, 0.0, 0.0]]


def test_a_window_smaller_than_the_workers_leaves_some_idle():
    # only two are asked for at a time: as with two workers
    few, enough = (wait_seconds(alike(6.0), 1.0, workers=n, prefetch=2) for n in (4, 2))
    assert few.tolist() == enough.tolist()
    assert few[2:6].tolist() == [4.0, 0.0, 4.0, 0.0]


def shards_of_8() -> np.ndarray:
    """Four workers open a shard, 12 s, for every eighth batch of theirs; all others take 2 s."""
    return np.where(np.arange(128)[:, None] // 4 % 8 == 0, 14.0, 2.0)


def test_four_workers_and_a_window_of_8_stall_every_32_steps():
    """A worker's eight batches take 8 x 2 + 12 = 28 s of the 32 steps that they last, so four could
    do. But a batch is asked for 8 steps ahead and takes 14: it is 6 s late. The other three open
    theirs meanwhile: they come 1, 2, 3 steps after it, and have been asked for as much later."""
    found = wait_seconds(shards_of_8(), 1.0, workers=4, prefetch=8)
    assert np.flatnonzero(found).tolist() == [0, 32, 64, 96]
    assert found[32:].sum() == exactly(3 * 6.0)


def test_a_window_as_long_as_the_longest_batch_hides_it():
    # by 14 steps the batch is asked for in time, and its worker is free
    assert not wait_seconds(shards_of_8(), 1.0, workers=4, prefetch=14)[1:].any()
    assert wait_seconds(shards_of_8(), 1.0, workers=4, prefetch=13)[32] == exactly(1.0)


def test_one_slow_worker_is_waited_for_by_all():
    # batches of worker 0 take 12 s, of the three others 2 s: in order, all come at its rate, 4 in
    # 12 s; together they could bring 1/12 + 3/2 a second
    slow = np.where(np.arange(64)[:, None] % 4 == 0, 12.0, 2.0)
    found = wait_seconds(slow, 1.0, workers=4, prefetch=8)
    assert found[4:].reshape(-1, 4).tolist() == 15 * [[8.0, 0.0, 0.0, 0.0]]


def test_ranks_meet_at_every_step_and_wait_for_the_slowest():
    found = wait_seconds(np.hstack([alike(1.0), alike(3.0)]), 1.0, workers=2, prefetch=4)
    assert found.tolist() == wait_seconds(alike(3.0), 1.0, workers=2, prefetch=4).tolist()


# ---------------------------------------------------------------------------------- in general

settings_of = st.tuples(st.integers(1, 7), st.integers(1, 16), st.integers(1, 40))


@given(settings_of)
def test_throughput_is_that_of_the_loop_or_of_the_workers(of):
    """In the mean a step takes max(step, t / min(workers, prefetch))."""
    workers, prefetch, quarters = of
    seconds, at_once = quarters / 4, min(workers, prefetch)
    found = wait_seconds(alike(seconds, at_once * 40), 1.0, workers, prefetch)[at_once * 20 :]
    assert 1.0 + found.mean() == exactly(max(1.0, seconds / at_once))


loads = st.lists(st.floats(0.0, 20.0), min_size=8, max_size=60)


@given(loads, st.integers(1, 6), st.integers(1, 12))
@settings(max_examples=60)
def test_more_is_never_slower(load, workers, prefetch):
    """A longer window or a faster batch, and more workers where all batches are alike."""
    table = np.array(load)[:, None]
    mean = np.full_like(table, table.mean())

    def total(of: np.ndarray, workers: int, prefetch: int) -> float:
        return float(wait_seconds(of, 1.0, workers, prefetch).sum())

    base = total(table, workers, prefetch)
    assert total(table, workers, prefetch + 1) <= base + 1e-9
    assert total(table * 0.9, workers, prefetch) <= base + 1e-9
    assert total(mean, workers + 1, prefetch) <= total(mean, workers, prefetch) + 1e-9
    # no law lets the epoch end before its work is done
    assert base + len(load) >= table.sum() / min(workers, prefetch) - 1e-9


@given(loads, st.integers(1, 6), st.integers(1, 12))
@settings(max_examples=60)
def test_waits_are_those_of_a_queue_that_is_played_through(load, workers, prefetch):
    """Events one by one: each worker has a queue of its own, and the loop asks for one batch
    whenever it takes one."""
    queues: list[list[int]] = [[] for _ in range(workers)]
    free, ready, asked = [0.0] * workers, {}, 0

    def ask(now: float) -> None:
        nonlocal asked
        if asked < len(load):
            queues[asked % workers].append(asked)
            worker = asked % workers
            free[worker] = max(free[worker], now) + load[asked]
            ready[asked] = free[worker]
            asked += 1

    for _ in range(prefetch):
        ask(0.0)
    now, waited = 0.0, []
    for batch in range(len(load)):
        taken = max(now, ready[batch])
        waited.append(taken - now)
        ask(taken)
        now = taken + 1.0
    found = wait_seconds(np.array(load)[:, None], 1.0, workers, prefetch)
    assert found.tolist() == exactly(waited, abs=1e-9)


# -------------------------------------------------------------------------- against the simulation

# one rank whose SSD nothing shares; a batch: 10 requests of 80 us, 1 MB at 3 GB/s, decoding, and a
# copy of 10 x 602112 B at 16 GB/s
ONE = {"world_size": 1, "workload__dataset__num_samples": 800}
COPY = 10 * 602112 / 16e9


def test_what_a_scenario_asks_of_its_loader():
    found = loader_demand(small(**ONE))
    assert found.step == exactly(10 * (0.9083e-3 + 1.817e-3) + 0.5679e-3)
    assert found.read.item() == exactly(10 * 80e-6 + 1e6 / 3e9)
    assert (found.decode, found.copy) == (exactly(10e-3), exactly(COPY))
    assert found.shared["SSD"] == exactly(1e6 / 3e9)
    assert found.shared["decode"] == exactly(10e-3 / 8)
    assert found.binding == ("decode", exactly(10e-3 / 8))


def test_what_eight_ranks_ask_of_their_loaders():
    """A step takes the allreduce of an iteration, too. Where all fits into memory the second epoch
    is read from there; a shard of 4 samples is a batch."""
    allreduce = 14 * 9.6e-6 + 2 * 7 / 8 * 102228128 / 10e9
    loader = {"workers": 3, "prefetch": 2, "threads": 2}
    found = loader_demand(
        small(epochs=2, cluster__memory__page_cache="1 GB", workload__loader=loader)
    )
    assert found.step == exactly(10 * (0.9083e-3 + 1.817e-3) + 0.5679e-3 + allreduce)
    assert (found.read.item(), found.decode) == (exactly(1e6 / 100e9), exactly(10e-3 / 2))
    assert found.shared["memory"] == exactly(1e6 / 100e9)
    assert (found.shared["SSD"], found.at_once, found.threads) == (0.0, 2, 2)
    assert "loader workers" not in found.shared
    cold = loader_demand(small(cluster__memory__page_cache="1 GB", workload__loader=loader))
    assert (cold.shared["memory"], cold.shared["SSD"]) == (0.0, exactly(1e6 / 3e9))
    few = loader_demand(small(workload__dataset__num_samples=32))
    assert few.read.item() == exactly(4 * 80e-6 + 4e5 / 3e9)
    assert (few.decode, few.copy) == (exactly(4e-3), exactly(COPY * 4 / 10))
    assert few.shared["PCIe"] == exactly(COPY * 4 / 10)


def test_what_an_order_of_a_loader_asks_of_it():
    """Each sample is a piece: a request of 1 ms, and its bytes over a cable. Of 10 batches each
    resource serves a tenth."""
    order = {"kind": "loader_shuffle", "order": "distributed_sampler", "cache_limit": "0 B"}
    found = loader_demand(small(workload__exchange=order))
    assert found.read == exactly(np.full((10, 8), 10 * (1e-3 + 1e5 / 10e9)))
    assert found.shared["file opens"] == exactly(80 / 20e3)
    assert found.shared["decode"] == exactly(10e-3 / 8)
    # of an order with a cache the second epoch counts, in which some pieces are there
    cached = order | {"cache_limit": "1 GB"}
    second, later = (
        loader_demand(small(workload__exchange=cached, epochs=epochs)) for epochs in (2, 3)
    )
    assert later.read.tolist() == second.read.tolist()
    assert second.read.sum() < found.read.sum()


def test_a_loader_is_waited_for_where_what_all_share_takes_longest():
    """Two of 10 ms alone, 4 at once: nobody waits below 2.5 ms or a step; above, 4 batches take as
    long as the resource needs for 4."""

    def load(slowest: float, step: float = 1e-3) -> float:
        shared = {"SSD": slowest, "decode": slowest / 2}
        read = np.array([[2e-3, 6e-3]])
        return LoaderDemand(step, read, 5e-3, 1e-3, shared, 4, 1).load().mean().item()

    assert load(2.4e-3) == load(9e-3, step=9e-3) == exactly(10e-3)
    assert load(2.6e-3) == exactly(4 * 2.6e-3)
    assert load(9e-3, step=8.9e-3) == exactly(4 * 9e-3)


def test_a_load_has_factors_on_reading_and_decoding():
    """And with two threads the longer of both counts, before the copy."""
    demand = LoaderDemand(1.0, np.array([[4.0]]), 3.0, 0.5, {"SSD": 0.1}, 2, 1)
    assert demand.load(2.0, 3.0).item() == 4.0 * 2 + 3.0 * 3 + 0.5
    assert replace(demand, threads=2).load(2.0, 3.0).item() == 9.5
    assert replace(demand, threads=2).isolated_seconds == 4.5


def test_a_batch_that_is_sent_and_handed_over_comes_later():
    """Two workers of a rank make batches in 4, 1, 3 and 2 s, are there at 1 and 2 s, and send all
    but the last in 2, beside the next one; a rank needs 0.5 s for each but the third, and 1 for a
    step. Three are asked for ahead."""
    load = np.array([[4.0], [1.0], [3.0], [2.0]])
    found = play_loops(
        load,
        np.full_like(load, 1.0),
        2,
        3,
        begin=np.array([[1.0], [2.0]]),
        sending=np.array([[2.0], [2.0], [2.0], [0.0]]),
        handover=np.array([[0.5], [0.5], [0.0], [0.5]]),
    )
    # worker 0: 1 to 5, 5 to 8; worker 1: 2 to 3, and from 7.5, when the first was taken
    assert found.batch_made.ravel().tolist() == [5.0, 3.0, 8.0, 9.5]
    # sent at 7, 5, 10 and 9.5, and taken 0.5 later, or after the step before
    assert found.batch_taken.ravel().tolist() == [7.5, 9.0, 10.0, 11.5]
    assert found.step_ended.tolist() == [8.5, 10.0, 11.0, 12.5]


def test_several_settings_are_played_side_by_side():
    """One worker, one batch ahead: 4 s and 1 s in the first setting, 1 s and 3 s in the other."""
    load = np.array([[[4.0], [1.0]], [[1.0], [3.0]]])
    found = play_loops(load, np.full_like(load, 1.0), 1, 1)
    assert found.step_ended.tolist() == [[5.0, 2.0], [6.0, 5.0]]


def test_a_rank_without_workers_loads_in_turns():
    load = np.array([[4.0, 2.0], [1.0, 3.0]])
    found = play_loops(load, np.full_like(load, 1.0), 0, 1, sending=0.5)
    assert found.step_ended.tolist() == [5.5, 5.5 + 3.0 + 0.5 + 1.0]


@pytest.mark.parametrize(
    ("workers", "prefetch", "decode"),
    [(1, 1, "1 ms"), (1, 2, "10 ms"), (3, 6, "10 ms"), (4, 8, "10 ms"), (4, 2, "10 ms")],
)
def test_the_simulated_epoch_is_that_of_the_law(workers, prefetch, decode):
    scenario = small(
        **ONE,
        cluster__ssd__read_bandwidth="3 TB/s",
        cluster__ssd__iops="4 G/s",
        workload__model__input_size="1 B",
        workload__loader={"workers": workers, "prefetch": prefetch},
        workload__dataset__decode=decode,
    )
    of = loader_demand(scenario)
    load = np.full((80, 1), of.load().item())
    by_law = 80 * of.step + wait_seconds(load, of.step, workers, prefetch).sum()
    simulated = report.epochs(simulate(scenario))["epoch_s"].item()
    assert simulated == exactly(by_law, rel=1e-4)


def test_workers_that_begin_together_share_a_device_which_the_law_leaves_out():
    # three 1 MB reads and three copies at once, in each turn of three: below 2 % here
    scenario = small(
        **ONE, workload__loader={"workers": 3, "prefetch": 6}, workload__dataset__decode="10 ms"
    )
    of = loader_demand(scenario)
    by_law = 80 * of.step + wait_seconds(np.full((80, 1), of.load().item()), of.step, 3, 6).sum()
    each = 2 * (1e6 / 3e9 + COPY)
    simulated = report.epochs(simulate(scenario))["epoch_s"].item()
    assert simulated == exactly(by_law + 27 * each, rel=2e-3)


def test_where_a_shared_resource_binds_workers_bring_what_it_gives():
    # 8 ranks, 100 opens/s: a batch of all takes 80 / 100 s
    pfs = {
        "workload__exchange": "global_shuffle",
        "cluster__parallel_file_system__open_rate": "100 /s",
        "workload__loader": {"workers": 4, "prefetch": 8},
    }
    of = loader_demand(small(**pfs))
    assert of.binding == ("file opens", exactly(0.8))
    found = wait_seconds(np.full((80, 1), of.load().max()), of.step, 4, 8)[40:]
    assert of.step + found.mean() == exactly(0.8)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_simulated_epochs_lie_near_the_settings(workers):
    """Ranks that share SSDs, slots and cores, with jitter: the first batch, then a step each."""
    values = {
        "workload.dataset.decode": "8 ms",
        "workload.exchange": "local_shuffle",
        "workload.loader": {"workers": workers, "prefetch": 2 * workers},
        "sweep": {},
    }
    scenario = load_scenario("quickstart", values)
    found = make_row(scenario, scenario.workload.loader)
    iterations = scenario.workload.iterations(scenario.world_size)
    batch = scenario.world_size * scenario.workload.local_batch_size
    by_law = found["first_s"] + (iterations - 1) * batch / found["samples_per_s"] + found["step_s"]
    simulated = report.epochs(simulate(scenario))["epoch_s"].iloc[-1]
    assert simulated == exactly(by_law, rel=0.015)
