"""What crosses the border of two epochs: batches that are ahead, and the remainder of a shard."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.errors import ScenarioError
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from tests.small import small

# one rank, 100 samples, batches of 10: a batch is read in 10 x 100 kB / 100 MB/s = 10 ms, which
# nothing else comes near
READING = {
    "world_size": 1,
    "epochs": 3,
    "workload__dataset__num_samples": 100,
    "workload__dataset__decode": "0 s",
    "cluster__ssd__read_bandwidth": "100 MB/s",
    "cluster__ssd__latency": "0 s",
    "workload__model__input_size": "1 B",
}
LAST = 10 * (0.9083e-3 + 1.817e-3) + 0.5679e-3  # s of compute on the last batch, after all reading


def epochs(**values: object) -> list[float]:
    return report.epochs(simulate(small(**READING | values)))["epoch_s"].tolist()


def test_loading_begins_anew_at_every_epoch():
    # 10 batches one after the other, 27.8 ms of compute each: compute binds, after the first batch
    # was waited for
    assert epochs(workload__loader={"workers": 1, "prefetch": 1}) == pytest.approx(
        [10e-3 + 10 * LAST] * 3, rel=1e-6
    )


def test_loading_goes_on_into_the_next_epoch():
    # only the very first batch is waited for
    ahead = {"workers": 1, "prefetch": 1, "across_epochs": True}
    assert epochs(workload__loader=ahead) == pytest.approx(
        [10e-3 + 10 * LAST, 10 * LAST, 10 * LAST], rel=1e-6
    )


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (2, 3), (3, 2), (4, 16)])
def test_where_reading_binds_epochs_take_as_long_as_their_reads(workers, prefetch):
    # 50 ms a batch against 27.8 ms of compute; more is ahead than an epoch has in the last case
    values = {
        "cluster__ssd__read_bandwidth": "20 MB/s",
        "workload__loader": {"workers": workers, "prefetch": prefetch, "across_epochs": True},
    }
    lasted = report.epochs(simulate(small(**READING | values)))["epoch_s"].tolist()
    # the SSD never rests until everything is read; batches that were read side by side are there at
    # once, and computed after that
    assert sum(lasted) >= (30 * 50e-3 + LAST) * (1 - 1e-6)
    assert sum(lasted) <= 30 * 50e-3 + min(workers, prefetch) * LAST + 1e-6


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (2, 3), (3, 2)])
def test_no_more_is_ahead_after_a_border_than_within_an_epoch(workers, prefetch):
    # computing binds, but for 0.15 s in the second epoch, of which what is ahead hides a part
    values = {
        "workload__loader": {"workers": workers, "prefetch": prefetch, "across_epochs": True},
        "faults": [{"what": "h0000.ssd", "at": "0.35 s", "rate": 0.01, "for": "0.15 s"}],
    }
    one = epochs(**values | {"epochs": 1, "workload__dataset__num_samples": 300})
    assert sum(one) > 0.05 + epochs(epochs=1, workload__dataset__num_samples=300)[0]
    assert sum(epochs(**values)) == pytest.approx(sum(one), rel=1e-9)


def test_samples_that_move_cannot_be_read_before_their_epoch():
    with pytest.raises(ScenarioError, match="across_epochs: cannot be used where samples move"):
        load_scenario(
            "quickstart",
            {
                "workload.loader.across_epochs": True,
                "workload.exchange": "partial_local_shuffle:exchange_fraction=0.1",
            },
        )


def test_a_log_of_chainer_has_these_iterations():
    # github.com/ankahira/paraDL, AlexNet on 1 GPU with 512 images an iteration, January 2020
    scenario = load_scenario(
        "validation/abci-chainer-2020",
        {"workload.model": "alexnet", "workload.local_batch_size": 512, "world_size": 1},
    )
    workload = scenario.workload.model_copy(update={"last_batch": "carry"})
    assert [workload.iterations(1, epoch) for epoch in (1, 2, 3, 4)] == [2503, 2502, 2502, 2503]


def test_what_is_carried_over_stays_in_the_page_cache():
    # 2.4 batches an epoch, and all of it fits: after the first epoch nothing is read from the file
    # system
    values = {
        "workload__local_batch_size": 10,
        "workload__dataset__num_samples": 24,
        "workload__last_batch": "carry",
    }
    scenario = small(world_size=1, epochs=6, cluster__memory__page_cache="1 GB", **values)
    plans = list(plan_epochs(scenario, sample_nbytes(scenario)))
    assert [plan.iterations for plan in plans] == [3, 2, 3, 2, 2, 3]
    assert not plans[0].training.hit_samples.any()
    for plan in plans[1:]:
        assert (plan.training.hit_samples == plan.training.samples).all()
        assert plan.training.hit_nbytes == pytest.approx(plan.training.nbytes)


@given(st.integers(1, 64), st.integers(65, 900), st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_carried_remainders_add_up(batch, samples, count):
    values = {
        "workload__local_batch_size": batch,
        "workload__dataset__num_samples": samples,
        "workload__last_batch": "carry",
    }
    scenario = small(world_size=1, epochs=count, **values)
    plans = list(plan_epochs(scenario, sample_nbytes(scenario)))
    # the ceiling of all samples over a batch
    assert sum(plan.iterations for plan in plans) == -(-count * samples // batch)
    for plan in plans:
        assert (plan.training.samples == batch).all()
        assert plan.training.nbytes.sum() == pytest.approx(
            plan.iterations * batch * 100e3, rel=1e-9
        )
        assert (plan.training.hit_samples <= plan.training.samples).all()


# decoding binds: 10 samples of 1 ms; all else takes next to nothing
DECODING = READING | {
    "cluster__ssd__read_bandwidth": "1 TB/s",
    "workload__dataset__decode": "1 ms",
    "workload__model__accelerators": {
        "v100-sxm2-16gb": {"forward": "1 ns", "backward": "1 ns", "update": "0 s"}
    },
}


def test_a_worker_of_several_threads_loads_one_batch_at_a_time():
    # 2 threads decode a batch in 5 ms, 10 batches in 50 ms, however many may be ahead; the host has
    # 8 cores
    loader = {"workers": 1, "prefetch": 4, "threads": 2}
    (lasted,) = report.epochs(
        simulate(small(**DECODING | {"epochs": 1, "workload__loader": loader}))
    )["epoch_s"]
    assert lasted == pytest.approx(50e-3, rel=1e-3)


def test_the_workers_go_on_in_turn_in_the_next_epoch():
    # 2 workers, 10 ms a batch, 5 batches an epoch: 10 batches in 50 ms if the second worker has the
    # first batch of the second epoch
    loader = {"workers": 2, "prefetch": 2, "across_epochs": True}
    values = DECODING | {
        "epochs": 2,
        "workload__dataset__num_samples": 50,
        "workload__loader": loader,
    }
    assert report.epochs(simulate(small(**values)))["epoch_s"].sum() == pytest.approx(
        50e-3, rel=1e-2
    )


def test_a_batch_that_is_all_of_the_next_epoch_has_the_bytes_of_a_mean_batch():
    """17 samples of 100 kB on 2 ranks in batches of 8: one rank has 9, the other 8. The second
    batch of the other comes whole from the next epoch: 8 samples are 800 kB, as in every batch."""
    values = {
        "workload__local_batch_size": 8,
        "workload__dataset__num_samples": 17,
        "workload__last_batch": "carry",
    }
    scenario = small(world_size=2, epochs=1, **values)
    (plan,) = plan_epochs(scenario, sample_nbytes(scenario))
    assert plan.training.samples.tolist() == [[8, 8], [8, 8]]
    assert plan.training.nbytes == pytest.approx(np.full((2, 2), 8 * 100e3))
