"""What a diagnosis says of records that were made with one cause in them."""

import pytest

from simshuffle.doctor.diagnosis import diagnose
from tests.records_made import Training

HEALTHY_ONES = {
    "as it is": {},
    "noisy": {"noise": 0.3, "batches": 300},
    "three ranks": {"ranks": 3},
    "as batches come": {"in_order": False},
    "no lack of workers": {"workers": 8, "cores": 16},
}
CAUSES = {
    "opens": ({"open": 15e-3}, {"open": 0.0}),
    "bandwidth": ({"per_byte": 160e-9}, {"per_byte": 0.0}),
    "latency": ({"request": 15e-3}, {"request": 0.0}),
    "latency ": ({"open": 15e-3, "files": 0}, {"open": 0.0, "request": 0.0}),
    "decode": ({"decode": 25e-3}, {"decode": 0.0}),
    "transform": ({"transform": 25e-3}, {"transform": 0.0}),
    "collate": ({"collate": 0.15}, {"collate": 0.0}),
    "send": ({"send": 0.2}, {"send": 0.0}),
    "lock": ({"lock": 15e-3}, {"lock": 0.0}),
    "slow worker": ({"slow_worker": (2, 4.0)}, {"slow_worker": (0, 1.0)}),
    "slow sample": ({"slow_samples": (0.005, 0.8)}, {"slow_samples": (0.0, 0.0)}),
    "page cache": ({"disk": (1.0, 1.0), "per_disk_byte": 160e-9}, {"disk": (1.0, 0.0)}),
    "page cache ": (
        {"disk": (1.0, 0.7), "counted": False, "per_disk_byte": 500e-9, "epochs": 4},
        {"disk": (1.0, 0.0)},
    ),
    "loader dips": ({"shard": (16, 1.0)}, {"shard": (0, 0.0)}),
    "loop dips": ({"checkpoint": (32, 1.0)}, {"checkpoint": (0, 0.0)}),
    "copy": ({"copy": 15e-3}, {"copy": 0.0}),
    "allreduce": ({"ranks": 2, "allreduce": 15e-3}, {"allreduce": 0.0}),
    "gil": ({"gil": 15e-3}, {"gil": 0.0}),
    "straggler rank": ({"ranks": 4, "slow_rank": (2, 2.0)}, {"slow_rank": (0, 1.0)}),
}
WORKERS = {
    "none": ({"workers": 0}, {"workers": 3}),
    "too few": ({"workers": 1}, {"workers": 3}),
}


@pytest.mark.parametrize("of", HEALTHY_ONES.values(), ids=HEALTHY_ONES)
def test_what_is_healthy_has_no_cause(of):
    found = diagnose(Training(**of).record())
    assert (found.causes, found.remedies) == ([], [])
    assert found.verdict().startswith("Healthy: ")


@pytest.mark.parametrize(("name", "put_in", "without"), [(k, *v) for k, v in CAUSES.items()])
def test_the_cause_that_was_put_in_comes_first_with_its_seconds(name, put_in, without):
    training = Training(**put_in)
    found = diagnose(training.record())
    assert found.loop.replay_error == pytest.approx(0.0, abs=1e-9)
    assert found.causes[0].name == name.strip()
    assert found.causes[0].confidence > 0.8
    assert found.causes[0].seconds == pytest.approx(training.without(**without), rel=0.05)


@pytest.mark.parametrize(("put_in", "without"), WORKERS.values(), ids=WORKERS)
def test_workers_that_are_too_few(put_in, without):
    training = Training(**put_in)
    found = diagnose(training.record())
    assert found.causes[0].name == "workers"
    assert found.remedies[0].change == {"loader": {"num_workers": without["workers"]}}
    gain = training.without(**without)
    assert found.remedies[0].gain_s * found.loop.batches == pytest.approx(gain, rel=0.05)


def test_workers_that_begin_at_each_epoch():
    training = Training(persistent=False, begin=2.0, epochs=3)
    found = diagnose(training.record())
    assert found.causes[0].name == "workers anew"
    remedy = found.remedies[0]
    assert remedy.change == {"loader": {"persistent_workers": True}}
    # two epochs after the first, 2 s for the begin of each and 0.2 s for the end of the one before
    assert remedy.gain_s * found.loop.batches == pytest.approx(4.4, rel=0.05)


def test_threads_that_are_more_than_the_cores_wait_for_one_another():
    found = diagnose(Training(queued=0.2, cores=1).record())
    assert found.causes[0].name == "cores"
    assert found.causes[0].share > 0.3


def test_what_other_programs_take_is_said_and_is_no_cause():
    """On 16 cores five threads need not wait: others had the cores. Without these the loop is
    healthy, or waits for its files as it would alone."""
    found = diagnose(Training(queued=0.1, cores=16).record())
    assert found.causes == []
    assert any(note.startswith("Other programs had the cores") for note in found.notes)
    alone, beside = (
        diagnose(Training(queued=late, cores=16, open=15e-3).record()) for late in (0.0, 0.1)
    )
    assert [of.causes[0].name for of in (alone, beside)] == ["opens", "opens"]
    assert beside.causes[0].share == pytest.approx(alone.causes[0].share, rel=0.02)
