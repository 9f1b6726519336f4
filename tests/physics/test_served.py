"""Epochs in which all ranks wait for one server: what it serves says how long they last, by hand
and against the whole epoch."""

import numpy as np
import pytest

from simshuffle.job.scenario.workload import Loader
from simshuffle.job.sim.served import Served
from simshuffle.job.sim.simulate import simulate
from simshuffle.job.sim.steady import SteadyWindow
from simshuffle.report import report
from tests.small import small

SATURATED = {
    "workload__exchange": "global_shuffle:source=pfs",
    "workload__jitter": {"compute": 0.05, "read": 0.0},
    "workload__dataset__num_samples": 8 * 10 * 400,
    "workload__dataset__sample_size": {"mean": "100 kB", "std": "50 kB"},
    "cluster__parallel_file_system__open_rate": "500 /s",
    "time_tolerance": 0.01,
}


def both(**values):
    """The epochs of a scenario with its tolerance, and whole."""
    scenario = small(**values)
    whole = scenario.model_copy(update={"time_tolerance": 0.0})
    return report.epochs(simulate(scenario)), report.epochs(simulate(whole))


def test_an_epoch_lasts_as_long_as_its_opens_over_their_rate_and_an_edge():
    """32,000 files at 500 a second: 64 s. At the beginning the server is busy at once; after the
    last open a batch is read and decoded, and up to 4 iterations are computed: 0.7 s at most."""
    window, whole = both(**SATURATED)
    low, high = window["epoch_low_s"].item(), window["epoch_high_s"].item()
    assert low == pytest.approx(64.0, abs=0.2)
    assert low <= whole["epoch_s"].item() <= high <= 1.02 * low
    assert 64.0 < whole["epoch_s"].item() < 64.7
    assert window["iterations_simulated"].item() < 100
    assert window["file_opens"].item() == pytest.approx(32_000)


def test_an_epoch_is_no_shorter_than_its_server_needs():
    """25 of 100 iterations lasted 9.9 s, in which the server had 10 s to serve: 40 s in all. Those
    left out take 30.1 s at least, 401 ms each; the first ones, of 380 ms, had loaded ahead."""
    lengths = np.concatenate([np.full(13, 0.38), np.linspace(0.38, 0.46, 12)])
    server = Served(np.full(25, 0.4), np.zeros(25), seconds=9.9, factor=4.0)
    found = server.hold_at_least(
        SteadyWindow(100, 25, first=2, last=12, half_width=0.1), lengths, 100
    )
    epoch_s = 9.9 + 75 * lengths[found.first - 1 : found.last].mean()
    assert found.steady >= 12 and found.half_width >= 0.1
    assert epoch_s == pytest.approx(40.0, abs=found.half_width)
    assert epoch_s == pytest.approx(40.0, abs=0.3)
    longer = SteadyWindow(100, 25, first=15, last=24)
    assert server.hold_at_least(longer, lengths, 100) is longer


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"cluster__parallel_file_system__background_load": 0.5},
        {"workload__jitter": {"compute": 0.05, "read": 0.1}},
        {"workload__exchange": "local_shuffle:source=pfs"},
        {"workload__loader": {"workers": 1, "prefetch": 2}},
        {"workload__loader": {"workers": 4, "prefetch": 8, "threads": 4}},
        {"cluster__parallel_file_system__latency_spread": 1.0},
        {"cluster__memory__page_cache": "200 MB", "epochs": 2},
        {
            "cluster__parallel_file_system__open_rate": "1 M/s",
            "cluster__parallel_file_system__read_bandwidth": "50 MB/s",
            "workload__dataset__sample_size": {"mean": "100 kB", "std": "20 kB"},
        },
        {"workload__dataset__samples_per_file": 10},
        {"workload__jitter": {"compute": 0.5, "read": 0.0}},
    ],
    ids=lambda values: " ".join(f"{key.split('__')[-1]}={value}" for key, value in values.items()),
)
def test_the_whole_epoch_lies_in_the_interval(values):
    window, whole = both(**{**SATURATED, **values})
    assert (window["iterations_simulated"] < 0.75 * window["iterations"]).all()
    assert (window["epoch_low_s"] <= whole["epoch_s"]).all()
    assert (window["epoch_high_s"] >= whole["epoch_s"]).all()
    assert (window["epoch_high_s"] <= 1.03 * window["epoch_low_s"]).all()
    # what is left out counts with compute of its own
    assert window["accelerator_utilisation"].to_numpy() == pytest.approx(
        whole["accelerator_utilisation"].to_numpy(), rel=0.03
    )


# ------------------------------------------------------------------------------- windows by hand


LOADER = Loader(workers=1, prefetch=2)


def served(lengths, asked, factor=10.0, idle=None):
    idle = lengths - asked if idle is None else idle
    return Served(asked, idle, float(lengths.sum()), factor)


def test_what_is_left_out_takes_as_long_as_serving_it():
    """20 iterations of 1 s, with 18.5 s of work for the server, which is idle in the last two; 10
    times as much is asked in 200. So 166.5 s are left out, which 180 iterations of 1 s are not; and
    the 1.5 s of the edge may be half of that more, or less."""
    lengths, idle = np.ones(20), np.r_[np.zeros(18), 0.5, 1.0]
    window = served(lengths, np.full(20, 0.925), idle=idle).window(lengths, 200, LOADER, 0.01)
    assert window.half_width == pytest.approx(0.5 * 1.5 + 180.0 - 166.5)
    assert window.settled and window.simulated == 20 and window.iterations == 200


def test_the_iterations_that_stand_for_others_have_the_mean_of_what_the_server_needs():
    """Long and short ones by turns, as workers deliver together, and 1 s of each asked for: as
    many of both stand for others."""
    lengths = np.tile([1.9, 0.1], 12)
    window = served(lengths, np.ones(24), idle=np.zeros(24)).window(lengths, 240, LOADER, 0.01)
    chosen = lengths[window.first - 1 : window.last]
    assert chosen.mean() == pytest.approx(1.0) and window.steady >= 11
    assert window.half_width == pytest.approx(0.0, abs=1e-9)
    assert window.suffices(0.01)


def test_a_server_with_time_to_spare_says_nothing():
    lengths = np.ones(20)
    assert served(lengths, 0.4 * lengths).window(lengths, 200, LOADER, 0.01) is None


def test_too_few_iterations_between_the_edges_ask_for_six():
    """And for 2 at each end."""
    lengths = np.ones(8)
    window = served(lengths, 0.9 * lengths).window(lengths, 200, LOADER, 0.01)
    assert not window.suffices(0.5) and window.next_size(0.01) == 10


def test_idle_time_between_the_edges_goes_on():
    """A tenth of every iteration."""
    lengths = np.ones(20)
    window = served(lengths, 0.9 * lengths).window(lengths, 200, LOADER, 0.01)
    assert window.half_width == pytest.approx(
        0.2
    )  # half of what 4 iterations at the edges were idle
    assert window.suffices(0.01)


def test_an_idle_time_that_grows_is_not_settled():
    lengths = np.ones(30)
    asked = np.r_[np.full(15, 1.0), np.full(15, 0.5)]
    assert not served(lengths, asked).window(lengths, 300, LOADER, 0.01).suffices(0.1)


# 20 iterations, of which the first and the last three fill and empty the loaders
UNLIKE = np.r_[3.0, 3.0, 2.0, 2.0, 2.0, 2.0, np.ones(10), 2.0, 2.0, 2.0, 5.0]
TWO_WORKERS = Loader(workers=2, prefetch=3)


def unlike_window(tolerance: float) -> SteadyWindow | None:
    """The server has 0.75 s of work for each of 20 iterations, and ten times as much in all 200.
    It is idle for 0.25 s of each of 14 in the middle, and for 1 s of each of the other six."""
    idle = np.r_[np.ones(3), np.full(14, 0.25), np.ones(3)]
    server = Served(np.full(20, 0.75), idle, seconds=15.0 + 3.5 + 6.0, factor=10.0)
    return server.window(UNLIKE, 200, TWO_WORKERS, tolerance)


@pytest.mark.parametrize(
    ("tolerance", "next_size"),
    [
        (0.01, 200),  # 3 s are more than 1 % of 204.5 s, in any window
        (0.02, 40),  # and less than 2 %: a window of twice as many may do
    ],
)
def test_edges_longer_than_the_tolerance_ask_for_the_whole_epoch(tolerance, next_size):
    """180 iterations are left out, in 9 x 15 s of work and 180 x 0.25 s idle: 1 s each. The first
    nine of 1 s, from the 7th on, stand for them. Half of 6 s at the edges may be more or less."""
    window = unlike_window(tolerance)
    assert window is not None
    assert (window.first, window.last) == (7, 15)
    assert window.half_width == pytest.approx(3.0, rel=1e-12)
    assert window.mean_half_width == pytest.approx(3.0 / (24.5 + 180.0), rel=1e-12)
    assert window.next_size(tolerance) == next_size


def test_six_iterations_in_the_middle_are_enough():
    """12 less three at either end; of 11 five are left. Half of the time asked for is enough."""
    for count, enough in ((12, True), (11, False)):
        window = served(np.ones(count), np.full(count, 0.5)).window(
            np.ones(count), 201, TWO_WORKERS, 0.01
        )
        assert window is not None
        assert np.isfinite(window.mean_half_width) == enough
    # 3 + 6 + 3, and one more to end at the worker that loads the last of 201
    assert window.next_size(0.01) == 13


def test_iterations_that_are_as_long_as_the_server_needs_stay():
    """40 iterations need 4 x 12.5 s, and 10 of them took 12.5 s: 1.25 s for each of the other 30,
    which those from the 5th to the 8th have, and neither more nor fewer of them."""
    lengths = np.array([1.0, 1.0, 1.0, 0.0, 2.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    server = Served(np.full(10, 1.25), np.zeros(10), seconds=12.5, factor=4.0)
    window = SteadyWindow(40, 10, first=5, last=8)
    assert server.hold_at_least(window, lengths, 40) is window
    for other in (SteadyWindow(40, 40, first=5, last=8), SteadyWindow(40, 10)):
        assert server.hold_at_least(other, lengths, 40) is other


@pytest.mark.parametrize(
    ("iterations", "min_seconds", "half_width"),
    [(17, 1.0, 0.25), (13, 1.0, 0.25), (17, 0.75, 0.25 + 5 * 0.25)],
)
def test_shorter_iterations_give_way_to_those_that_the_server_needs(
    iterations, min_seconds, half_width
):
    """12 of 13 or 17 iterations, the first two of 0.5 s: the five of 1 s from the 5th on take their
    place, also where 0.75 s would be enough, from which they are 0.25 s away."""
    lengths = np.r_[0.5, 0.5, 3.0, 3.0, np.ones(5), 3.0, 3.0, 9.0]
    # (factor x 12 s - 12 s) / left out = min_seconds
    factor = 1.0 + min_seconds * (iterations - 12) / 12.0
    server = Served(np.ones(12), np.zeros(12), seconds=12.0, factor=factor)
    window = SteadyWindow(iterations, 12, first=1, last=2, half_width=0.25)
    longer = server.hold_at_least(window, lengths, iterations)
    assert (longer.first, longer.last) == (5, 9)
    assert longer.half_width == pytest.approx(half_width, rel=1e-9)
