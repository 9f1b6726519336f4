"""Epochs that later ones are shorter than, as page caches still fill: by hand, and simulated."""

import json

import pytest

import simshuffle
from simshuffle.cli import main
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.warming import find_warming
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from tests.shared import needs_extensions
from tests.small import small


def reading(ranks=2, page_cache="1 GB", epochs=2, **values):
    """80 MB, which the file system reads in 10 s; a host for each rank."""
    pfs = {"read_bandwidth": "8 MB/s", "open_rate": "1M/s"}
    memory = {"capacity": "2 GB", "bandwidth": "100 GB/s", "page_cache": page_cache}
    values = {"workload__exchange": "global_shuffle", **values}
    machine = {"cluster__parallel_file_system": pfs, "cluster__memory": memory}
    return small(world_size=ranks, epochs=epochs, **machine, **values)


def test_two_hosts_read_half_as_much_in_each_epoch_by_hand():
    """A host has read all but 2^-(e - 1) of the samples before epoch e, so that epoch 2 is 5 s of
    reading. From epoch 4 on computing binds; the first batch is read before, in 125 ms 2^-(e - 1):
    0.51 % of a late epoch in epoch 5, 0.25 % in epoch 6."""
    bound, change = bounds(reading()), find_warming(reading())
    late = bound.steps + 10 * 1e-3  # with a first batch that is decoded only
    assert late == pytest.approx(1.533, abs=2e-3)
    assert change.saved_share == pytest.approx(1 - late / (5 + bound.last_batch), abs=1e-3)
    assert change.steady_from == 6
    assert find_warming(reading(epochs=6)) is None
    assert find_warming(reading(page_cache="0 B")) is None


def test_epochs_of_more_iterations_are_alike_by_their_iterations():
    """820 samples by 2 x 4: epochs have 103 and 102 iterations in turn, which is 1 % more time.
    Computing, 22 ms of each, binds from epoch 4 on, when 10.25 / 2^3 s are left to be read."""
    batches = {"workload__last_batch": "carry", "workload__local_batch_size": 4}
    alike = [
        find_warming(reading(epochs=epochs, workload__dataset__num_samples=820, **batches))
        for epochs in (2, 3, 4, 5)
    ]
    assert [change and change.steady_from for change in alike] == [4, 4, None, None]


@pytest.mark.parametrize(("ranks", "page_cache"), [(2, "1 GB"), (8, "40 MB"), (8, "8 MB")])
def test_the_simulated_epoch_is_that_of_the_closed_form(ranks, page_cache):
    """Within 6 %, as draws of 100 of 800 samples vary: where all of them fit a host, half of them,
    and a tenth, which one epoch fills."""
    change = find_warming(reading(ranks, page_cache))
    steady_from = 2 if change is None else change.steady_from
    assert steady_from == {"1 GB": 6, "40 MB": 6, "8 MB": 2}[page_cache]
    simulated = report.epochs(simulate(reading(ranks, page_cache, steady_from + 2)))["epoch_s"]
    by_form = bounds(reading(ranks, page_cache, steady_from)).epoch
    assert simulated[steady_from - 1 :].tolist() == pytest.approx([by_form] * 3, rel=0.06)


@needs_extensions
def test_check_run_and_plan_say_from_which_epoch_on_it_is_steady(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sweep = {"workload.exchange": ["global_shuffle", "local_shuffle"]}
    (tmp_path / "it.yaml").write_text(reading().model_copy(update={"sweep": sweep}).to_yaml())
    said = (
        "Not steady yet: global-pfs @2 still fills its page cache; an epoch takes about 70 % less"
        " from epoch 6 on, and the ranking changes: set epochs: 6."
    )
    assert main(["check", "it.yaml"]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    assert main(["check", "it.yaml", "--json"]) == 0
    assert {row["not_steady"] for row in json.loads(capsys.readouterr().out)} == {said}
    verdict = simshuffle.run("it.yaml", progress=False).structured_verdict()
    assert f"; n{said[1:].partition(': set')[0]}" in verdict.rests_on
    assert verdict.measure_next.startswith("later epochs (epochs: 6)")
    asked = {"set": {"sweep": {}}, "strategy": ["local_shuffle", "global_shuffle"]}
    planned = simshuffle.plan_training("it.yaml", progress=False, **asked).verdict()
    assert any("; not steady yet: global-pfs" in line for line in planned)
    assert main(["check", "it.yaml", "--set", "epochs=6"]) == 0
    assert "Not steady" not in capsys.readouterr().out
