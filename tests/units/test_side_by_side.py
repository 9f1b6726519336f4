"""Scenarios with jobs and with background traffic: how they are read, named, checked and shown."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from simshuffle.cli import main
from simshuffle.job.plan.jobs import isolate_job, place_jobs, separate_jobs
from simshuffle.job.scenario.scenario import Scenario, from_dict, load_scenario
from simshuffle.studies.simulation import mishaps
from simshuffle.studies.simulation import study as simulation
from simshuffle.studies.simulation.jobs import jobs_table
from simshuffle.studies.simulation.verb import RunOptions
from simshuffle.study import engine
from simshuffle.study.study import Result
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
    said = study.verdict(result)
    assert said.answer[0].startswith("few loses most")
    assert "file opens of the file system" in said.why
    assert table.loc["far", "slowdown"] == pytest.approx(1.0, abs=1e-9)


def jobs_result(seconds, links=()):
    """Return a result of jobs from {run: s of each epoch} and rows of (run, link, share)."""
    rows = [
        (run, epoch, each)
        for run, of_epochs in seconds.items()
        for epoch, each in enumerate(of_epochs, 1)
    ]
    tables = {
        "epochs": pd.DataFrame(rows, columns=["run", "epoch", "epoch_s"]),
        "links": pd.DataFrame(links, columns=["run", "link", "mean_utilisation"]),
    }
    meta = {"runs": {run: {"routing": "d_mod_k"} for run in seconds}}
    return Result(simulation.OF_JOBS, tables, meta, {})


def test_the_job_that_loses_most_and_the_link_that_it_shares_by_hand():
    """a takes 3 + 5 s for 2 + 2 s, b 3 s for 2 s, and c no longer. Both a and b use the file system
    and the SSD when they are alone; c alone uses the NVLink of a."""
    seconds = {"a alone": [2.0, 2.0], "a": [3.0, 5.0], "b alone": [2.0, 9.0], "b": [3.0]}
    seconds |= {"c alone": [4.0], "c": [4.001]}
    links = [
        *(("a alone", "pfs.open", 0.4), ("a alone", "ssd", 0.9), ("a alone", "h0>s", 0.1)),
        *(("b alone", "pfs.open", 0.3), ("b alone", "ssd", 0.2), ("b alone", "nvlink", 0.9)),
        *(("a", "pfs.open", 0.5), ("a", "pfs.open", 0.8), ("a", "pfs.open", 0.6)),
        *(("a", "ssd", 0.7), ("a", "h0>s", 0.99), ("a", "nvlink", 0.95)),
    ]
    table = jobs_table(jobs_result(seconds, links))
    assert table[["job", "epoch"]].to_numpy().tolist() == [["a", 1], ["a", 2], ["b", 1], ["c", 1]]
    assert table["slowdown"].tolist() == pytest.approx([1.5, 2.5, 1.5, 1.00025])
    said = simulation.OF_JOBS.verdict(jobs_result(seconds, links))
    assert said.lines()[:3] == [
        "a loses most: beside the others its epochs take 2 times as long.",
        "Of the other jobs, b takes 1.5 times as long.",
        "Why: the busiest resource that a shares with another job is file opens of the file system"
        " (80 % in use).",
    ]
    unhurt = simulation.OF_JOBS.verdict(jobs_result({"c alone": [4.0], "c": [4.001]}))
    assert unhurt.answer[0] == "No job is slower beside the others than alone."
    alone = simulation.OF_JOBS.verdict(
        jobs_result({"a alone": [2.0], "a": [3.0]}, [*links[:3], *links[6:]])
    )
    assert not alone.why  # there is no other job with which it may share


LOSS = {"host": "h7", "at_s": 9.0, "epoch": 2, "ranks": 7, "policy": "shrink", "redone_s": 2.0}
LOSS |= {"detect_s": 3.0, "restart_s": 4.0, "restore_s": 0.0, "reread_s": 5.0, "waited_s": 0.0}


def completeness(*shares):
    return [
        {"epoch": n, "seen": seen, "planned": 1.0, "twice": 0.125}
        for n, seen in enumerate(shares, 1)
    ]


def mishaps_of(**runs):
    return SimpleNamespace(meta={"runs": runs})


def test_what_a_loss_cost_is_summed_over_its_phases_and_hosts():
    """2 s of work, 3 + 4 + 5 s of absence, twice; the least of an epoch was 75 %."""
    twice = {"losses": [LOSS, LOSS | {"host": "h9"}], "completeness": completeness(1.0, 0.75)}
    (said,) = mishaps.list_sentences(mishaps_of(a=twice))
    assert said == (
        "a lost h7, h9; this cost 28 s; an epoch saw 75 % of the data set instead of 100 %."
    )
    ended = {"losses": [LOSS | {"ranks": 0}], "completeness": completeness(0.9995)}
    (said,) = mishaps.list_sentences(mishaps_of(a=ended))
    assert said == (
        "a lost h7 and ended there; this cost 14 s;"
        " all epochs saw as much of the data set as without the loss."
    )
    many = {f"r{n}": ended for n in range(6)}
    said = mishaps.list_sentences(mishaps_of(**many))
    assert len(said) == 5
    assert said[-1] == "2 more runs lost hosts; the table has them."
    assert len(mishaps.list_sentences(mishaps_of(**dict([*many.items()][:4])))) == 4


def test_notes_on_a_lost_host_name_the_phases_that_took_time():
    (note,) = mishaps.list_notes({"losses": [LOSS]})
    assert note == (
        "Lost h7 at 9 s, in epoch 2: 2 s of work is done again, 3 s until the loss was noticed,"
        " 4 s to start again, 5 s to read its samples again; 7 ranks went on (shrink)."
    )
    refused = LOSS | {"ranks": 0, "loader": "litdata", "refused": "it says so"}
    (note,) = mishaps.list_notes({"losses": [refused]})
    assert note.endswith("where the job ended: litdata cannot go on, it says so.")
    (note,) = mishaps.list_notes({"losses": [LOSS | {"loader": "litdata"}]})
    assert note.endswith("went on (shrink); litdata decides what they read.")
    kill = {"at_s": 9.0, "epoch": 2, "iteration": 3, "waited_s": 4.0, "rank": 5}
    for writing, peers in ((1, ""), (3, " and 2 more")):
        (note,) = mishaps.list_notes({"killed": kill | {"writing": writing, "what": "a save"}})
        assert note == (
            "killed by the watchdog 9 s after it began, in epoch 2 after iteration 3: ranks had"
            f" waited 4 s for rank 5{peers}, a save."
        )


def test_mishaps_are_listed_by_kind_and_their_epochs_in_a_table():
    runs = {"a": {"losses": [LOSS], "completeness": completeness(1.0, 0.755)}, "b": {"killed": {}}}
    assert mishaps.mishaps_by_kind(mishaps_of(**runs)) == {
        "killed": {"b": {}},
        "losses": {"a": [LOSS]},
        "completeness": {"a": runs["a"]["completeness"]},
    }
    (table,) = mishaps.list_tables(mishaps_of(**runs))
    assert [[*column.cells] for column in table.columns] == [
        ["a", "a"],
        ["1", "2"],
        ["100.0 %", "75.5 %"],
        ["12.5 %", "12.5 %"],
    ]
    assert mishaps.list_tables(mishaps_of(b={})) == []


@pytest.mark.parametrize(("most", "kept"), [(3 * 8 * 8 * 2 * 10, None), (3 * 1280 - 1, "ranks")])
def test_a_timeline_has_all_ranks_while_it_has_not_too_many_rows(most, kept, monkeypatch):
    """Of three seeds, 8 rows for each of 8 ranks in 10 iterations of two epochs."""
    monkeypatch.setattr(simulation, "MAX_FULL_ROWS", most)
    study, request = simulation.request(RunOptions(scenario=small(epochs=2), seeds=3))
    assert study is simulation.OVER_SEEDS
    assert request.asked.get("timeline") == kept and request.asked["seeds"] == 3
    assert request.values.timeline == (kept or "full")
    both = RunOptions(scenario=small(epochs=2), seeds=3, timeline="full")
    assert "timeline" not in simulation.request(both)[1].asked


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
