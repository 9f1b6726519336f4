"""Data sets that fill no batch on every rank: refused where all is dropped, said elsewhere."""

import warnings

import pytest

from simshuffle.cli import main
from simshuffle.errors import ScenarioError, SimshuffleWarning
from simshuffle.job.plan.findings import partial_batch
from simshuffle.job.verdict import verdict
from simshuffle.studies.simulation import study, sweep
from simshuffle.studies.simulation.verb import RunOptions, SweepOptions
from tests.small import small

# 8 ranks with batches of 10 need 80 samples
FEW = {"workload__dataset__num_samples": 79}


def partial(rule, **values):
    return small(workload__last_batch=rule, **{**FEW, **values})


def test_dropping_every_batch_is_refused_with_what_makes_one_step():
    with pytest.raises(ScenarioError) as caught:
        partial("drop")
    (problem,) = caught.value.problems
    assert problem.path == "workload.last_batch"
    assert "no step is made" in problem.rule
    # 80 samples; 79 / 10 = 7 ranks; 79 / 8 = 9 samples a batch
    for number in ("80 samples", "7 ranks", "at most 9"):
        assert number in problem.remedy
    remedies = (
        {"workload__dataset__num_samples": 80},
        {"world_size": 7},
        {"workload__local_batch_size": 9},
    )
    for remedy in remedies:
        scenario = partial("drop", **remedy)
        assert scenario.workload.iterations(scenario.world_size) == 1


def test_a_sweep_that_drops_every_batch_somewhere_is_refused():
    scenario = partial("drop", workload__dataset__num_samples=80)
    with pytest.raises(ScenarioError, match="at most 8 ranks"):
        scenario.combinations({"world_size": [8, 16]})


@pytest.mark.parametrize("rule", ["keep", "nearest", "carry"])
def test_run_and_check_say_that_no_batch_is_full(rule):
    scenario = partial(rule)
    with pytest.warns(SimshuffleWarning, match=r"no batch is full.*80 samples, at most 7 ranks"):
        study.request(RunOptions(scenario=[scenario]))
    (warning,) = [w for w in verdict(scenario, "it")["warnings"] if "no batch" in w["rule"]]
    assert warning["remedy"] == partial_batch(79, 8, 10).remedy


def test_a_full_batch_is_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study.request(RunOptions(scenario=[partial("keep", workload__dataset__num_samples=80)]))
    assert partial_batch(80, 8, 10) is None


def test_a_sweep_says_it_of_the_runs_that_fill_none():
    request = sweep.request(
        SweepOptions(scenario=partial("keep", world_size=7), over={"world_size": [4, 7, 8, 16]})
    )
    with pytest.warns(SimshuffleWarning, match=r"world_size=8 seed=1 and 1 more"):
        sweep.STUDY.stages[0](request.values, {})


def test_new_says_that_no_batch_is_full(here, capsys):
    words = "--hosts 2 --gpus 4 --samples 100 --sample-size 9kB --batch-size 16 --batch-time 9ms"
    assert main(["new", "mine", *words.split(), "--gradients", "40 MB"]) == 0
    # 8 ranks with batches of 16 need 128 samples; 100 / 16 = 6 ranks
    said = capsys.readouterr().err
    assert "no batch is full" in said
    assert "128 samples, at most 6 ranks" in said
