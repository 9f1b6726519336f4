"""Jobs of a log that ran at the same time, against what follows by hand."""

from dataclasses import replace

import pytest

from simshuffle.errors import InputError
from simshuffle.extensions.calibration.validation import concurrent
from simshuffle.extensions.calibration.validation.answers import load_with_values
from simshuffle.extensions.calibration.validation.concurrent import (
    LoggedJob,
    concurrent_scenario,
    epoch_quantity,
)
from simshuffle.job.plan.jobs import place_jobs
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.jobs import simulate_jobs
from simshuffle.report import report

LOG = "abci_dataparallel_2020.csv"
RATE = 20_000.0
"""Files/s of the servers, so that they bind: 64 GPUs compute at 64 images in 184 ms."""


def base() -> Scenario:
    """The scenario of the logs, on servers that bind, without chance."""
    rate, none = "cluster.parallel_file_system.open_rate", "cluster.parallel_file_system."
    values = {rate: f"{RATE} /s", f"{none}background_load": "0", f"{none}latency": "0 s"}
    values |= {"workload.jitter.compute": "0", "workload.jitter.read": "0"}
    return load_with_values(
        "validation/abci-chainer-2020", {**values, "workload.dataset.num_samples": "1280000"}
    )


def job(gpus: int, epochs: int = 1, start: float = 0.0, batch: int = 64) -> LoggedJob:
    return LoggedJob("resnet50", gpus, batch, start, (1.0,) * epochs)


def lasted(running: list[LoggedJob], thinned: int = 16) -> list[list[float]]:
    """Seconds of every epoch of each job."""
    scenario = place_jobs(concurrent_scenario(base(), running, thinned))
    names = {name: name for name in scenario.jobs or {}}
    out: dict[str, list[float]] = {name: [] for name in names}
    for of, timeline in simulate_jobs(scenario, names):
        out[of].append(thinned * float(report.epochs(timeline)["epoch_s"].iloc[0]))
    return list(out.values())


def test_the_servers_bound_a_job():
    """1.28 M files at 20 k/s: 64 s. A thinned epoch has 19 or 20 iterations, and the first one
    takes two more: a batch is read before anything is computed, and one is computed at the end."""
    ((first, *others),) = lasted([job(64, 3)])
    assert 64.0 <= first <= 64.0 * 1.11
    assert others == pytest.approx([64.0, 64.0], rel=1 / 19)


def test_two_equal_jobs_halve_the_rate():
    """1.28 M files at 10 k/s each, whatever they are for."""
    first, second = lasted([job(64, 2), replace(job(64, 2), model="alexnet")])
    assert second == pytest.approx([128.0, 128.0], rel=0.1)
    assert first == pytest.approx([128.0, 128.0], rel=0.1)


def test_a_job_that_begins_later_disturbs_for_as_long_as_it_runs():
    """From 96 s on 128 workers beside 64 get two thirds of the servers: 1.28 M files at 13.3 k/s in
    96 s, of which the first job loses two thirds, 64 s."""
    first, second = lasted([job(64, 4), replace(job(128), start=96.0)])
    total = sum(first)
    assert 64.0 <= first[0] <= 64.0 * 1.11
    assert second == pytest.approx([96.0], rel=0.1)
    assert total == pytest.approx(4 * 64.0 + 64.0, rel=1 / 19)


def test_a_cached_job_reads_the_servers_in_its_first_epoch_only():
    """512 GPUs on 128 hosts, whose shards fit: later epochs take what they compute, 10,000 files a
    host at 128 x 4 GPUs: 1.28 M in 40 iterations of 0.184 s and gradients, under 20 s."""
    ((first, *others),) = lasted([replace(job(512, 3), cached=True)])
    assert first >= 64.0
    assert max(others) < 20.0
    ((_, *again),) = lasted([job(512, 3)])
    assert again == pytest.approx([64.0, 64.0], rel=0.1)


def test_a_thinned_evening_is_as_long_as_a_whole_one():
    """Where a thinned epoch has few iterations, these are smaller in place of fewer."""
    running = [job(64, 2, batch=512), job(32, 2, start=20.0)]
    for thinned, whole in zip(lasted(running, 8), lasted(running, 1), strict=True):
        assert thinned == pytest.approx(whole, rel=0.03)


def test_a_cached_job_that_is_not_there_is_refused():
    evening = {"log": LOG, "from": "2020-01-22-19-00-00", "to": "2020-01-22-19-30-00"}
    with pytest.raises(InputError, match="resnet50 64"):
        concurrent.simulate_log("validation/abci-chainer-2020", evening | {"cached": "alexnet 3"})


def test_quantities_of_the_epochs_of_a_job():
    lasted = [9.0, 1.02, 1.0, 4.0, 1.01]
    wanted = {"mean epoch": 3.206, "steady epoch": 1.01, "first epoch": 9.0, "epoch 4": 4.0}
    assert {name: epoch_quantity(name, lasted) for name in wanted} == pytest.approx(wanted)


@pytest.mark.parametrize("name", ["epoch 3", "epoch 0", "epoch", "speed", "epoch -1"])
def test_an_epoch_that_is_not_there_is_refused(name):
    with pytest.raises(InputError, match="epoch 1 to 2"):
        epoch_quantity(name, [1.0, 2.0])
    with pytest.raises(InputError, match="needs two epochs"):
        epoch_quantity("steady epoch", [1.0])
