"""`study blame` of results of ``run``: who is named first on a small fat tree, and how."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from simshuffle.cli import main
from simshuffle.extensions.doctor.blame import runs
from simshuffle.extensions.doctor.blame.runs import UNKNOWN, BlamedEpoch, BlamedRuns, blame_runs
from simshuffle.extensions.doctor.blame.waited_for import WaitedForRow, _rank_work
from simshuffle.report.console import terminal_text
from simshuffle.studies.simulation import study as simulation
from simshuffle.studies.simulation.verb import RunOptions
from simshuffle.study import engine
from tests.small import uneven

FABRIC = (
    *("cluster=small-fat-tree", "world_size=16", "epochs=1", "seed=3", "sweep={}"),
    "workload.dataset={name: small, num_samples: 5120, sample_size: {mean: 110 kB}}",
    "workload.exchange=local_shuffle",
    "workload.allreduce.inter_host_bus_bandwidth=12 GB/s",
)
SLOW = "cluster.faults={leaf.0>spine.0: 0.25}"
MESSAGES = (
    "workload.exchange=partial_local_shuffle:exchange_fraction=1",
    "workload.dataset.sample_size={mean: 2 MB}",
    "workload.model.gradient_size=1 MB",
)


@pytest.fixture
def ran(tmp_path, capsys):
    """Simulates the scenario with other values; returns the folder and the seconds of epochs."""

    def run(*values, options=(), name="r"):
        words = [word for value in (*FABRIC, *values) for word in ("--set", value)]
        out = tmp_path / name
        assert main(["run", "quickstart", *words, *options, "--out", str(out), "--json"]) == 0
        return out, [row["epoch_s"] for row in json.loads(capsys.readouterr().out)["epochs"]]

    return run


@pytest.fixture
def said(capsys):
    def blame(folder, *options):
        assert main(["study", "blame", str(folder), *options]) == 0
        return capsys.readouterr().out

    return blame


@pytest.mark.parametrize("values", [{}, {"seeds": 2}, {"start": "0.2 s"}])
@pytest.mark.parametrize("number", [1, 2])
def test_faults_are_those_of_the_time_of_the_epoch(values, number, monkeypatch):
    """Which begins when staging has ended; of several seeds it is that of the first, and of a job
    it is later by the job's start."""
    seeds, start = values.get("seeds", 1), values.get("start")
    windows = []
    monkeypatch.setattr(runs, "apply_faults", lambda of, _, *at: windows.append(at) or of)
    fault = {"what": "h0001", "at": "0.1 s", "rate": 0.5}
    jobs = {"early": {}, "late": {"start": start}} if start else None
    scenario = uneven(epochs=2, faults=[fault], **({"jobs": jobs} if jobs else {}))
    result = engine.run(*simulation.request(RunOptions(scenario=scenario, seeds=seeds)))
    run = "late" if start else str(result.tables["epochs"]["run"].iloc[0])
    blame_runs(result, "", run, epoch=number)
    rows = result.tables["timeline"]
    rows = rows[(rows["epoch"] == number) & (rows["run"].astype(str) == run)]
    if seeds > 1:
        rows = rows[rows["seed"] == rows["seed"].iloc[0]]
    assert result.tables["epochs"]["staging_s"].iloc[0] > 0.01
    assert windows == [pytest.approx((rows["start_s"].min(), rows["end_s"].max()))]


def test_what_ranks_work_is_without_waits_and_without_what_a_server_explains():
    """Label 1 is explained, -1 is none; of step 1 nothing counts."""
    phases = pd.DataFrame(
        [(0, 0, 1), (1, 0, 2), (0, 1, 5), (1, 2, 7), (1, 7, 8), (0, 8, 9), (1, 8, 9), (1, 9, 9.5)],
        columns=["rank", "start_s", "end_s"],
    )
    waits = SimpleNamespace(
        label=np.array([0, 0, 1, 1, 2, 0, 0, -1]),
        step=np.array([0, 0, 0, 0, 0, 1, 1, 1]),
        idle=np.arange(8) == 5,
        later=np.arange(8) == 6,
        before_allreduce=np.zeros((2, 2, 3)),
    )
    assert _rank_work(phases, waits, [1]).tolist() == [[1.0, 3.0]]


def first(said, folder):
    (run,) = json.loads(said(folder, "--json"))["runs"]
    return run["rows"][0]


def test_a_slow_cable_is_named_with_about_what_mending_it_gains(ran, said):
    slow, (with_fault,) = ran(SLOW)
    text = said(slow)
    assert len(text.splitlines()) < 40
    *_, line, why, basis = text.strip().splitlines()
    assert line.startswith("To blame: link leaf.0>spine.0, ")
    assert why.startswith("Why: ranks wait for link leaf.0>spine.0 in allreduce: ")
    assert basis.startswith("Rests on: one epoch")
    printed = json.loads(said(slow, "--json"))
    assert printed["verdict"] == [line, why, basis]
    (run,) = printed["runs"]
    assert run["verdict"].startswith(line)
    row = run["rows"][0]
    assert (row["what"], row["kind"], row["cause"]) == ("leaf.0>spine.0", "link", "allreduce")
    assert row["share"] == pytest.approx(row["seconds"] / with_fault)
    whole, (healthy,) = ran(name="healthy")
    assert row["seconds"] == pytest.approx(with_fault - healthy, rel=0.15)
    assert "\nNobody is to blame: " in said(whole)
    for form in ("markdown", "latex"):
        exported = said(slow, "--to", form)
        assert f"{row['seconds']:.3g}" in exported
        assert "leaf.0" in exported


def test_messages_of_an_exchange_cross_a_slow_cable_too(ran, said):
    folder, _ = ran(SLOW.replace("0.25", "0.05"), *MESSAGES)
    row = first(said, folder)
    assert set(row["what"].split(">")) == {"leaf.0", "spine.0"}
    assert row["cause"] == "exchange"


def test_a_host_that_decodes_slowly_is_named(ran, said):
    slow = ("workload.jitter.host_decode=1.5", "workload.dataset.decode=8 ms")
    row = first(said, ran(*slow, "workload.loader.workers=2")[0])
    assert (row["kind"], row["cause"]) == ("host", "decode")
    assert row["share"] > 0.5


def test_opening_files_is_named_where_all_wait_for_it(ran, said):
    opens = "cluster.parallel_file_system.open_rate=1500 1/s"
    row = first(said, ran("workload.exchange=global_shuffle:source=pfs", opens)[0])
    assert (row["what"], row["kind"], row["cause"]) == ("pfs.open", "server", "io")


@pytest.mark.parametrize("kept", ["ranks", "none"])
def test_without_all_ranks_links_are_named_and_the_rest_is_said(ran, said, kept):
    folder, _ = ran(SLOW, options=["--timeline", kept])
    assert first(said, folder)["what"] == "leaf.0>spine.0"
    last = said(folder).strip().splitlines()[-1]
    assert last.startswith("Measure next: ranks and hosts, of which ")


def test_many_runs_fit_a_screen():
    row = WaitedForRow("leaf.0>spine.0", "link", "allreduce", "0.25 of its peers' rate", 2.0, 0.2)
    for count in (1, 2, 5, 7, 12, 18, 19, 300):
        runs = [
            BlamedEpoch(f"run number {n}", 1, 10.0, [row] * 30, {"io": 1.0}) for n in range(count)
        ]
        text = terminal_text(BlamedRuns("results/many", runs, "Something is not known.").parts())
        assert len(text.splitlines()) <= 40, count
        assert ("more runs; --run NAME" in text) == (count > 18)


def test_one_run_and_one_epoch_can_be_named(ran, said, capsys):
    folder, _ = ran(SLOW, "sweep={world_size: [8, 16]}", "epochs=2")
    found = json.loads(said(folder, "--json"))["runs"]
    assert [of["epoch"] for of in found] == [2, 2]
    (one,) = json.loads(said(folder, "--json", "--run", found[1]["run"], "--epoch", "1"))["runs"]
    assert (one["run"], one["epoch"]) == (found[1]["run"], 1)
    assert main(["study", "blame", str(folder), "--run", "other"]) == 2
    assert "--run: must be a run of the result" in capsys.readouterr().err
    assert main(["study", "blame", str(folder), "--epoch", "3"]) == 2
    assert "--epoch: must be an epoch" in capsys.readouterr().err


def test_seeds_and_names_below_results(ran, said, here):
    ran(SLOW, options=["--seeds", "2"], name="results/two")
    assert "\nTo blame: link leaf.0>spine.0, " in said("two")


def test_other_results_are_refused(result_of, capsys):
    assert main(["study", "blame", str(result_of("sweep"))]) == 2
    assert "must be a result of simshuffle run" in capsys.readouterr().err


def test_nobody_is_acquitted_of_whom_no_timeline_is_kept():
    """A slow host cannot be seen where the timeline has some ranks alone."""
    nothing = BlamedEpoch("local @8", 2, 10.0, [], {}, ranks_known=False)
    verdict = BlamedRuns("r", [nothing], UNKNOWN["ranks"]).verdict()
    assert "Nobody" not in nothing.answer()
    assert verdict.answer == [nothing.answer()]
    assert "ranks and hosts" in verdict.measure_next and "--timeline full" in verdict.measure_next
    known = dataclasses.replace(nothing, ranks_known=True)
    assert known.answer().startswith("Nobody is to blame")
    assert BlamedRuns("r", [known], "").verdict().measure_next == ""
