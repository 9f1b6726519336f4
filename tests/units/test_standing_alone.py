"""A result folder holds what it takes to make it again, wherever it is; how it was made is said,
and decides nothing."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pandas as pd
import pytest

import simshuffle
from simshuffle import load_scenario
from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.job.scenario.reading import by_content, files
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.cell import RunCell
from simshuffle.report.table_io import read_csv
from simshuffle.studies.mechanisms import hiding
from simshuffle.studies.mechanisms.verb import HidingOptions
from simshuffle.studies.simulation import study, sweep
from simshuffle.studies.simulation.verb import RunOptions, SweepOptions
from simshuffle.studies.verify import verify
from simshuffle.study import engine
from simshuffle.study.cell import digest_of
from simshuffle.study.executors import ProcessExecutor
from simshuffle.study.origin import MADE, describe_origin
from simshuffle.study.registry import study_of
from simshuffle.study.study import Request, fingerprint
from simshuffle.workload.exchange.recording import write_plans
from tests import trained
from tests.contents import contents
from tests.small import small

SIZE = {"workload__dataset__num_samples": 40, "workload__local_batch_size": 2, "epochs": 1}


def graph(path: Path, bandwidth: str = "10 GB/s") -> Path:
    """Four hosts at a switch, as a file."""
    net = nx.MultiGraph()
    net.add_node("s", kind="switch")
    for number in range(4):
        net.add_node(f"h{number}", kind="host")
        net.add_edge(f"h{number}", "s", bandwidth=bandwidth, latency="100 ns")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(nx.node_link_data(net, edges="links")), encoding="utf-8")
    return path


def plans(path: Path, seed: int = 0) -> Path:
    """The exchange of a training on four ranks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_plans(path, trained.recorded(4, 40, seed=seed))
    return path


def on_graph(path: Path) -> Scenario:
    topology = {"kind": "custom", "path": str(path)}
    return small(**SIZE, world_size=4, cluster__topology=topology)


def replaying(path: Path) -> Scenario:
    exchange = {"kind": "recorded", "path": str(path), "exchange_fraction": 0.4}
    return small(**SIZE, world_size=4, workload__exchange=exchange)


Make = Callable[..., Path]
Of = Callable[[Path], Scenario]
KINDS = pytest.mark.parametrize(
    ("file", "of", "name"),
    [
        pytest.param(graph, on_graph, "net.json", id="graph"),
        pytest.param(plans, replaying, "plans.npz", id="plans"),
    ],
)


@KINDS
def test_a_moved_folder_makes_the_same_result_without_the_file_it_came_from(
    file, of, name, tmp_path, capsys
):
    path = file(tmp_path / "here" / name)
    simshuffle.run(of(path)).save(tmp_path / "here" / "out", draw=False)
    wanted = contents(tmp_path / "here" / "out")
    (held,) = (tmp_path / "here" / "out" / "inputs").iterdir()
    assert held.read_bytes() == path.read_bytes()
    assert str(tmp_path).encode() not in wanted["scenario.yaml"]
    elsewhere = tmp_path / "other" / "machine"
    elsewhere.parent.mkdir()
    (tmp_path / "here" / "out").rename(elsewhere)
    shutil.rmtree(tmp_path / "here")
    again = str(tmp_path / "again")
    assert main(["run", str(elsewhere / "scenario.yaml"), "--out", again]) == 0
    found = {k: v for k, v in contents(again).items() if not k.startswith("breakdown.p")}
    assert found == wanted
    assert main(["results", "verify", str(elsewhere)]) == 0
    assert "The same to the last bit: fingerprint" in capsys.readouterr().out
    assert main(["run", str(elsewhere / "scenario.yaml"), "--out", str(elsewhere)]) == 0
    assert "nothing was simulated" in capsys.readouterr().err


@KINDS
def test_fingerprint_and_cells_are_of_contents_not_of_paths(file, of, name, tmp_path):
    def marks(scenario: Scenario) -> tuple[str, str]:
        cell = digest_of(RunCell(scenario.to_dict(), "a"))
        return fingerprint(*study.request(RunOptions(scenario=scenario))), cell

    first = marks(of(file(tmp_path / "one" / name)))
    moved = marks(of(file(tmp_path / "two" / f"renamed{Path(name).suffix}")))
    assert moved == first
    other = {"bandwidth": "1 GB/s"} if file is graph else {"seed": 1}
    changed = marks(of(file(tmp_path / "three" / name, **other)))
    assert changed[0] != first[0]
    assert changed[1] != first[1]


def test_every_request_of_a_scenario_is_of_contents(tmp_path):
    marks = []
    for place in ("one", "two"):
        scenario = on_graph(graph(tmp_path / place / "net.json"))
        swept = sweep.request(SweepOptions(scenario=scenario, over={"seed": [1, 2]}))
        options = HidingOptions(scenario=scenario, world_size=(2, 4), variant=("wire",))
        hidden = hiding.request(options)
        of_cells = [
            digest_of(cell)
            for kind, asked in ((sweep.STUDY, swept), (study_of("hiding"), hidden))
            for cell in kind.stages[0](asked.values, {}).values()
        ]
        assert set(swept.inputs) == set(hidden.inputs) != set()
        prints = fingerprint(sweep.STUDY, swept), fingerprint(study_of("hiding"), hidden)
        marks.append((prints, of_cells))
    assert marks[0] == marks[1]


def test_the_file_in_the_folder_is_a_copy_and_no_link(tmp_path):
    path = graph(tmp_path / "net.json")
    folder = simshuffle.run(on_graph(path)).save(tmp_path / "out", draw=False)
    before = contents(folder)
    with path.open("r+b") as file:
        file.write(b"changed")
    assert contents(folder) == before


def test_clusters_and_exchanges_of_a_sweep_are_held_too(tmp_path):
    first, second = (plans(tmp_path / name, seed) for seed, name in enumerate(("a.npz", "b.npz")))
    base = small(**SIZE, world_size=4).to_dict()
    listed = ["local_shuffle", f"recorded:path={first.name},exchange_fraction=0.4"]
    record = {"kind": "recorded", "path": second.name, "exchange_fraction": 0.4}
    cluster = {**base["cluster"], "topology": {"kind": "custom", "path": "net.json"}}
    graph(tmp_path / "net.json")
    for key, values, count in (
        ("workload.exchange", listed, 1),
        ("workload.exchange", ["local_shuffle", record], 1),
        ("cluster", [cluster], 1),
    ):
        file = tmp_path / "s.yaml"
        file.write_text(json.dumps({**base, "sweep": {key: values}}))
        scenario = load_scenario(file)
        assert len(files(scenario.to_dict())) == count
        out = simshuffle.run(scenario).save(tmp_path / "out", replace=True, draw=False)
        assert len(list((out / "inputs").iterdir())) == count
        assert str(tmp_path) not in (out / "scenario.yaml").read_text()
        moved = shutil.copytree(out, tmp_path / "moved", dirs_exist_ok=True)
        again = study.request(RunOptions(scenario=moved / "scenario.yaml"))[1]
        asked = simshuffle.read(out).meta["fingerprint"]
        assert fingerprint(study.STUDY, again) == asked


def swept(exchanges: list[str]) -> Request[Any]:
    scenario = small(**SIZE, world_size=4)
    return sweep.request(SweepOptions(scenario=scenario, over={"workload.exchange": exchanges}))


def test_recorded_exchanges_of_a_sweep_are_told_apart_by_their_contents(tmp_path, monkeypatch):
    marks = []
    for place in ("one", "two"):
        for seed, name in enumerate(("a.npz", "b.npz")):
            plans(tmp_path / place / name, seed)
        monkeypatch.chdir(tmp_path / place)
        texts = [f"recorded:path={name},exchange_fraction=0.4" for name in ("a.npz", "b.npz")]
        asked = swept(texts)
        assert len(asked.inputs) == 2
        table = engine.run(sweep.STUDY, asked).tables["sweep"]
        assert table["exchange"].nunique() == len(table) == 2
        marks.append((fingerprint(sweep.STUDY, asked), list(table["exchange"])))
    assert marks[0] == marks[1]
    plans(tmp_path / "two" / "a.npz", seed=7)
    asked = swept(texts)
    assert fingerprint(sweep.STUDY, asked) != marks[0][0]


def test_values_without_a_file_stay_as_they_are():
    plain = small(**SIZE).to_dict()
    assert by_content(plain) == plain
    assert files(plain) == {}
    only_a_path = {"path": "net.json", "list": [1, {"sha256": "a"}]}
    assert by_content(only_a_path) == only_a_path


def test_a_folder_whose_input_is_gone_is_made_again(tmp_path):
    scenario = on_graph(graph(tmp_path / "net.json"))
    _, asked = study.request(RunOptions(scenario=scenario))
    folder = simshuffle.run(scenario).save(tmp_path / "out", draw=False)
    mark = fingerprint(study.STUDY, asked)
    assert engine.find_complete_result(study.STUDY, folder, mark) is not None
    next((folder / "inputs").iterdir()).unlink()
    assert engine.find_complete_result(study.STUDY, folder, mark) is None


def test_a_file_of_somebody_else_among_the_inputs_is_not_removed(tmp_path):
    result = simshuffle.run(on_graph(graph(tmp_path / "net.json")))
    folder = result.save(tmp_path / "out", draw=False)
    result.save(folder, replace=True, draw=False)
    (folder / "inputs" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="something else than a result: inputs"):
        result.save(folder, replace=True, draw=False)


# ---------------------------------------------------------------------------------- how it was made


def test_a_result_says_how_it_was_made(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/simshuffle", "run", "a b", "--out", "x"])
    result = simshuffle.run(small(**SIZE))
    said = json.loads((result.save(tmp_path / "out", draw=False) / "meta.json").read_text())[MADE]
    assert said["command"] == "simshuffle run 'a b' --out x"
    assert said["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert set(said["machine"]) == {"cores", "platform", "processor"}
    assert pd.Timestamp(said["date"]).utcoffset() == pd.Timedelta(0)
    assert abs((pd.Timestamp(said["date"]) - pd.Timestamp.now("UTC")).total_seconds()) < 300


def test_the_commit_is_that_of_the_working_directory(here, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(here.parent))
    assert "commit" not in describe_origin()

    def git(*words: str) -> str:
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *names, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    assert "commit" not in describe_origin()  # there is none yet
    (here / "file").write_text("a")
    git("add", "file")
    git("commit", "-qm", "First")
    assert describe_origin()["commit"] == git("rev-parse", "HEAD")
    (here / "file").write_text("b")
    assert describe_origin()["commit"] == f"{git('rev-parse', 'HEAD')}-dirty"
    monkeypatch.setenv("PATH", str(here))
    assert "commit" not in describe_origin()  # no git


def test_how_it_was_made_decides_nothing(tmp_path, monkeypatch):
    folders, results = [], []
    for command in ("one", "two"):
        monkeypatch.setattr("sys.argv", [command])
        result = simshuffle.run(small(**SIZE))
        results.append(result)
        folders.append(result.save(tmp_path / command, draw=False))
    assert results[0].meta[MADE] != results[1].meta[MADE]
    assert results[0].meta["fingerprint"] == results[1].meta["fingerprint"]
    assert contents(folders[0]) == contents(folders[1])
    first, second = (folder / "meta.json" for folder in folders)
    assert first.read_bytes() != second.read_bytes()
    first.write_text(json.dumps(json.loads(second.read_text()) | {"kind": "other"}))
    assert contents(folders[0]) != contents(folders[1])


# ------------------------------------------------------------------------------------------- verify


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return simshuffle.run(small(**SIZE)).save(tmp_path / "out", draw=False)


def altered(folder: Path, change: Callable[[pd.DataFrame], Any]) -> None:
    table = read_csv(folder / "epochs.csv")
    change(table)
    table.to_csv(folder / "epochs.csv", index=False)


def test_what_takes_long_is_verified_by_several_processes(folder):
    """They share no memory with this one, so outcomes lie on disk meanwhile."""
    assert verify(folder, ProcessExecutor(2)).is_identical


def test_the_last_bit_of_a_value_is_verified(folder, capsys):
    assert main(["results", "verify", str(folder), "--processes", "1"]) == 0
    said = capsys.readouterr().out
    assert said == (
        "Rule: equal to the last bit; the result was made with the same versions and code.\n"
        "Not compared: figures; date, command and machine.\n"
        "The same to the last bit: fingerprint, timeline.parquet, iterations.parquet,"
        " links.parquet, sources.csv, epochs.csv, breakdown.csv, meta.json, scenario.yaml,"
        " columns.json.\n"
    )

    def change(table: pd.DataFrame) -> None:
        table.loc[0, "epoch_s"] *= 1 + 1e-15

    altered(folder, change)
    assert main(["results", "verify", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "NOT the same: epochs.csv: epoch_s in 1 of 1 rows, largest difference" in said


# --------------------------------------------------------------------------------- as it is printed


def test_a_notebook_shows_tables_in_which_nothing_is_markup(tmp_path):
    scenario = small(**SIZE)
    twice = [scenario.model_copy(update={"name": name}) for name in ("<b>one</b>", "two & three")]
    result = simshuffle.run(twice)
    page = result._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;one&lt;/b&gt; local" in page
    assert "two &amp; three local" in page
    assert page.count("<table>") == page.count("</table>") == 3
    assert page.count('<th style="text-align: left">run</th>') == 3
    assert page.count("<tr>") == page.count("</tr>") == 3 * (1 + 2)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["/x/bin/simshuffle", "run", "a b"], "simshuffle run 'a b'"),
        (["/x/simshuffle/__main__.py", "run"], "simshuffle run"),
        (["mine/script.py"], "script.py"),
    ],
)
def test_the_command_of_a_result_is_that_of_this_process(words, command, monkeypatch):
    monkeypatch.setattr("sys.argv", words)
    assert describe_origin()["command"] == command
