"""Scenarios with jobs and with background traffic: how they are read, named, checked and shown."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from simshuffle.cli import main
from simshuffle.job.plan.jobs import isolate_job, place_jobs, separate_jobs
from simshuffle.job.scenario.scenario import Scenario, from_dict, load_scenario
from simshuffle.studies.simulation import study as simulation
from simshuffle.studies.simulation.verb import RunOptions
from simshuffle.study import engine
from tests.small import small

TWO = {"a": {"world_size": 4}, "b": {"world_size": 2, "start": "1 s"}}


def hosts(scenario: Scenario) -> dict[str, Any]:
    return {name: job.placement for name, job in (place_jobs(scenario).jobs or {}).items()}


def test_a_job_says_what_differs_from_the_scenario():
    changes = {
        "model": "densenet161",
        "loader": {"workers": 3},
        "exchange": {"kind": "global_shuffle", "source": "pfs"},
    }
    scenario = small(jobs={"a": {}, "b": {"workload": changes, "seed": 7, "epochs": 3}}, seed=5)
    a, b = scenario.of_jobs().values()
    assert (a.seed, a.epochs, a.world_size) == (5, 1, 8)
    assert (b.seed, b.epochs, b.world_size) == (7, 3, 8)
    assert a.workload == scenario.workload
    assert b.workload.model.name == "densenet161"
    assert (b.workload.loader.workers, b.workload.loader.prefetch) == (3, 4)
    assert b.workload.exchange.kind == "global_shuffle"
    assert b.jobs is None


def test_jobs_fill_the_next_free_hosts():
    assert hosts(small(jobs=TWO)) == {
        "a": ["h0000", "h0001", "h0002", "h0003"],
        "b": ["h0004", "h0005"],
    }
    named = {"a": {"world_size": 2}, "b": {"world_size": 3, "placement": "h[0001-0003]"}}
    assert hosts(small(jobs=named)) == {"a": ["h0000", "h0004"], "b": ["h0001", "h0002", "h0003"]}
    drawn = hosts(small(jobs=TWO, cluster__placement="scattered"))
    assert len({*drawn["a"], *drawn["b"]}) == 6
    assert drawn["a"] == sorted(drawn["a"])
    assert drawn["a"] != hosts(small(jobs=TWO))["a"]


def test_a_scenario_with_jobs_reads_back_as_it_was_written():
    scenario = place_jobs(small(jobs=TWO, background=[{"kind": "uniform", "load": 0.2}]))
    again = from_dict(yaml.safe_load(scenario.to_yaml()), "again")
    assert again == scenario
    assert place_jobs(again) == scenario
    assert list(isolate_job(scenario, "b").jobs or {}) == ["b"]
    assert "jobs" not in small().to_dict()
    assert "background" not in small().to_dict()


def test_background_is_sent_by_hosts_without_a_job():
    found = place_jobs(small(jobs=TWO, background=[{"kind": "permutation", "load": 1}])).background
    assert found is not None
    assert found[0].hosts == [f"h{number:04d}" for number in range(6, 16)]


def written(place: Path, **values: Any) -> str:
    path = place / "jobs.yaml"
    path.write_text(small(**values).to_yaml())
    return str(path)


def test_a_job_that_begins_when_the_others_have_ended_is_refused(tmp_path, capsys):
    late = {"a": {"world_size": 2}, "b": {"world_size": 2, "start": "1000 s"}}
    path = written(tmp_path, jobs=late)
    assert main(["run", path, "--out", str(tmp_path / "out"), "--processes", "1"]) == 2
    told = capsys.readouterr().err
    assert "jobs.b.start" in told
    assert "Traceback" not in told


def test_check_says_the_bounds_of_each_job(tmp_path, capsys):
    path = written(tmp_path, jobs=TWO)
    assert main(["check", path]) == 0
    assert "hold for the job alone" in " ".join(capsys.readouterr().out.split())
    assert main(["check", path, "--json"]) == 0
    assert [row["run"] for row in json.loads(capsys.readouterr().out)] == ["a", "b"]
    assert main(["check", path, "--full"]) == 0
    assert list(yaml.safe_load(capsys.readouterr().out)["jobs"]) == ["a", "b"]


def test_runs_are_swept_over_keys_of_jobs():
    sweep = {"jobs.b.world_size": [1, 3]}
    scenario = small(jobs=TWO).model_copy(update={"sweep": sweep})
    runs = separate_jobs(scenario.runs())
    assert [one.world_size for one in runs.values()] == [4, 1, 4, 3]
    assert len(runs) == 4


def test_the_table_of_jobs_has_each_alone_and_beside_the_others():
    values = {"workload__exchange": "global_shuffle:source=pfs"}
    values["cluster__parallel_file_system__open_rate"] = "400 /s"
    jobs = {"few": {"world_size": 2}, "many": {"world_size": 6}, "far": {"world_size": 1}}
    jobs["far"]["workload"] = {"exchange": "local_shuffle"}
    scenario = small(**values, jobs=jobs)
    study, request = simulation.request(RunOptions(scenario=scenario))
    result = engine.run(study, request)
    table = result.derived["jobs"].set_index("job")
    assert list(table.index) == ["few", "many", "far"]
    epochs = result.tables["epochs"].set_index("run")["epoch_s"]
    assert (table["together_s"] == epochs[table.index]).all()
    assert (table["alone_s"] == [epochs[f"{name} alone"] for name in table.index]).all()
    assert table["slowdown"].to_numpy() == pytest.approx(table["together_s"] / table["alone_s"])
    first, second, *_ = study.verdict(result)
    assert first.startswith("few loses most")
    assert "file opens of the file system" in second
    assert table.loc["far", "slowdown"] == pytest.approx(1.0, abs=1e-9)


def test_a_swept_scenario_with_jobs_names_each_combination():
    scenario = small(jobs={"a": {"world_size": 2}}).model_copy(update={"sweep": {"seed": [1, 2]}})
    _, request = simulation.request(RunOptions(scenario=scenario))
    names = [run for _, run, _ in request.values.cells()]
    assert names == [
        "a local @8 seed=1",
        "a local @8 seed=1 alone",
        "a local @8 seed=2",
        "a local @8 seed=2 alone",
    ]


def test_a_shipped_scenario_takes_jobs_by_set():
    scenario = load_scenario("quickstart", {"jobs": {"a": {}, "b": {}}, "sweep": {}})
    assert [one.hosts for one in scenario.of_jobs().values()] == [16, 16]
