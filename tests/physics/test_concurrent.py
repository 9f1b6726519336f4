"""Jobs that share one file system, against what follows by hand."""

from dataclasses import replace

import pytest

from simshuffle.errors import InputError
from simshuffle.studies.validation import concurrent
from simshuffle.studies.validation.concurrent import FILES, Job, quantity


def job(gpus: int, epochs: int = 1, start: float = 0.0) -> Job:
    return Job("resnet50", gpus, 64, start, (1.0,) * epochs)


def epochs_together(running: list[Job], alone: list[float], rate: float) -> list[float]:
    """Mean seconds of an epoch of each job."""
    return [quantity("mean epoch", one) for one in concurrent.epochs_together(running, alone, rate)]


def test_alone_a_job_takes_its_own_time() -> None:
    # 100 s for all files is less than the servers could give
    assert epochs_together([job(8, 3)], [100.0], FILES / 10) == pytest.approx([100.0], rel=1e-9)


def test_the_servers_bound_a_job() -> None:
    assert epochs_together([job(8, 2)], [100.0], FILES / 250) == pytest.approx([250.0], rel=1e-9)


def test_two_equal_jobs_halve_the_rate() -> None:
    # each asks for FILES/100; together they get FILES/100 and each half of it
    assert epochs_together([job(8), job(8)], [100.0, 100.0], FILES / 100) == pytest.approx(
        [200.0, 200.0], rel=1e-9
    )


def test_ranks_and_not_jobs_share_fairly() -> None:
    # 12 ranks get 1/12 each of FILES/300 a second: 4 ranks together 1/3, and take 900 s; then 8
    # ranks, which have done 2/3 in 300 s of their epoch every 450 s, are through at 450 s; after
    # that the 4 ranks have all: they have read 450/900, and the rest takes 150 s
    together = epochs_together([job(4), job(8)], [1.0, 1.0], FILES / 300)
    assert together == pytest.approx([450 + 150, 450], rel=1e-9)


def test_a_slow_job_leaves_the_rest_to_the_others() -> None:
    # the first asks for FILES/1000 whatever happens; the second gets FILES/100 - FILES/1000 = FILES
    # 9/1000
    assert epochs_together([job(8), job(8)], [1000.0, 10.0], FILES / 100) == pytest.approx(
        [1000.0, 1000 / 9], rel=1e-9
    )


def test_a_job_that_starts_later_slows_the_first_from_then_on() -> None:
    # alone for 50 s, half is read; then at half the rate, 100 s more
    first, _ = epochs_together([job(8), job(8, 5, start=50.0)], [100.0, 100.0], FILES / 100)
    assert first == pytest.approx(150.0, rel=1e-9)


def test_an_epoch_is_as_long_as_what_runs_beside_it() -> None:
    # 100 s alone; while the other runs, from 150 s on, at half the rate: half of the second epoch
    # takes 100 s, the third is disturbed for 100 s and does half of itself, the fourth is not
    first, second = concurrent.epochs_together(
        [job(8, 4), job(8, 1, start=150.0)], [100.0, 100.0], FILES / 100
    )
    assert first == pytest.approx([100.0, 150.0, 150.0, 100.0], rel=1e-9)
    assert second == pytest.approx([200.0], rel=1e-9)


def test_a_cached_job_disturbs_nobody_after_its_first_epoch() -> None:
    # 200 s each for the first epochs, side by side; then both alone, though they run together
    cached = replace(job(8, 3), cached=True)
    assert (
        concurrent.epochs_together([cached, job(8, 3)], [100.0, 100.0], FILES / 100)
        == [pytest.approx([200.0, 100.0, 100.0], rel=1e-9)] * 2
    )


def test_a_cached_job_that_is_not_there_is_refused() -> None:
    evening = {
        "log": "abci_dataparallel_2020.csv",
        "from": "2020-01-22-19-00-00",
        "to": "2020-01-22-19-30-00",
    }
    with pytest.raises(InputError, match="resnet50 64"):
        concurrent.alone(evening | {"cached": "alexnet 3"})
    alone = concurrent.alone(evening | {"cached": "resnet50 64"})
    assert alone == concurrent.alone(evening)


def test_quantities_of_the_epochs_of_a_job() -> None:
    lasted = [9.0, 1.02, 1.0, 4.0, 1.01]
    wanted = {"mean epoch": 3.206, "steady epoch": 1.01, "first epoch": 9.0, "epoch 4": 4.0}
    assert {name: quantity(name, lasted) for name in wanted} == pytest.approx(wanted)


@pytest.mark.parametrize("name", ["epoch 3", "epoch 0", "epoch", "speed", "epoch -1"])
def test_an_epoch_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="epoch 1 to 2"):
        quantity(name, [1.0, 2.0])
    with pytest.raises(InputError, match="needs a second one"):
        quantity("steady epoch", [1.0])
