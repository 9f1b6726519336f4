"""The command line: what it prints, what it writes, and when it simulates."""

import csv
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.image import imread

import simshuffle
from simshuffle.cli import main
from simshuffle.job.plan.jobs import separate_jobs
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.spec.library import shipped_names
from simshuffle.spec.units import Dimension, parse_quantity
from tests.contents import contents as content

FILES = {
    "scenario.yaml",
    "meta.json",
    "columns.json",
    "timeline.parquet",
    "iterations.parquet",
    "links.parquet",
    "sources.csv",
    "epochs.csv",
    "breakdown.csv",
    "breakdown.png",
    "breakdown.pdf",
}
EPOCH_COLUMNS = (
    "run,strategy,world_size,exchange_fraction,epoch,iterations,iterations_simulated,"
    "epoch_s,epoch_low_s,epoch_high_s,staging_s,samples_per_s,"
    "accelerator_utilisation,exchange_total_s,exchange_exposed_s,"
    "allreduce_exposed_s,allreduce_hidden_s,slowdown_s,"
    "samples_moved,nbytes_peer,nbytes_pfs,nbytes_ssd,nbytes_memory,"
    "nbytes_object_store,read_requests,read_requests_ssd,read_requests_object_store,"
    "file_opens,object_store_usd"
)
SMALL = ["--set", "world_size=8", "--set", "epochs=1"]
LOCAL = [*SMALL, "--set", "workload.exchange=local_shuffle"]
RUNS = ["global-pfs @8", "local @8", "partial-0.1 streamlined @8"]


def python(*words, cwd, **environment):
    """What a process of its own printed and its status; its stderr is not a terminal."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
        text=True,
        timeout=900,
    )


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, preloaded):
    """A result folder of three runs, made by the command line: (folder, stdout, stderr)."""
    cwd = tmp_path_factory.mktemp("finished")
    done = preloaded.simshuffle(["run", "quickstart", *SMALL, "--out", "out", "--json"], cwd)
    assert done.status == 0, done.stderr.decode()
    return cwd / "out", done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def result(finished, tmp_path, monkeypatch):
    """A copy of that result folder, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished[0], tmp_path / "out"))


@pytest.fixture
def simulating_is_a_failure(monkeypatch):
    # by the name of the module: the package has a function of that name
    module = importlib.import_module("simshuffle.study.engine")
    monkeypatch.setattr(module, "run", lambda *_: pytest.fail("it was simulated"))


# -------------------------------------------------------------------------------------------- check


def derived_values(output):
    """Of the comment lines: run -> name -> text."""
    runs = {}
    run = ""
    for line in output.splitlines():
        if match := re.fullmatch(r"#   ([^:]+): (.*)", line):
            runs[run][match[1]] = match[2]
        elif line.startswith("# "):
            run = line[2:]
            runs[run] = {}
    return runs


def test_check_prints_yaml_that_is_the_same_scenario(here, capsys):
    assert main(["check", "--full", "quickstart", "--set", "seed=5"]) == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["seed"] == 5
    (here / "printed.yaml").write_text(printed)
    assert load_scenario("printed.yaml") == load_scenario("quickstart", {"seed": 5})
    assert list(derived_values(printed)) == [
        "global-pfs @64",
        "local @64",
        "partial-0.1 streamlined @64",
    ]
    assert [path.name for path in here.iterdir()] == ["printed.yaml"]


def test_check_of_several_scenarios_prints_a_document_each(capsys):
    names = ["quickstart", "abci-imagenet1k"]
    assert main(["check", "--full", *names]) == 0
    printed = capsys.readouterr().out
    assert [document["name"] for document in yaml.safe_load_all(printed)] == names
    runs = [run for name in names for run in separate_jobs(load_scenario(name).runs())]
    assert list(derived_values(printed)) == runs


@pytest.mark.parametrize("name", shipped_names("scenarios"))
def test_check_accepts_every_shipped_scenario(name, capsys):
    assert main(["check", "--full", name]) == 0
    printed = capsys.readouterr().out
    assert list(derived_values(printed)) == list(separate_jobs(load_scenario(name).runs()))


def half_digit(text):
    """Half of the last digit of a printed number."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2])


# ResNet-50 on ImageNet-1K, Q = 0.1, b = 32 (Nguyen et al., IPDPS 2022):
# iterations, samples of a rank, samples exchanged, MB exchanged decoded, MB exchanged encoded
PUBLISHED = {
    128: ("313", "10009", "1001", "563", "110"),
    512: ("78", "2502", "250", "141", "27.5"),
    1024: ("39", "1251", "125", "70", "13.8"),
    2048: ("20", "626", "62.6", "35", "6.9"),
}


@pytest.mark.parametrize("payload", ["decoded", "encoded"])
@pytest.mark.parametrize("world_size", PUBLISHED)
def test_check_derives_the_published_values(world_size, payload, capsys):
    words = ["check", "--full", "abci-imagenet1k", "--set", f"world_size={world_size}"]
    assert main([*words, "--set", f"workload.exchange.schedule.payload={payload}"]) == 0
    (values,) = derived_values(capsys.readouterr().out).values()
    iterations, samples, exchanged, decoded, encoded = PUBLISHED[world_size]
    assert values["iterations per epoch"] == iterations
    assert values["global batch size"] == str(32 * world_size)
    assert values["hosts"] == str(world_size // 4)
    for key, printed in (
        ("samples per rank", samples),
        ("samples exchanged per rank and epoch", exchanged),
    ):
        assert float(values[key]) == pytest.approx(float(printed), abs=half_digit(printed)), key
    megabytes = decoded if payload == "decoded" else encoded
    nbytes = parse_quantity(values["bytes exchanged per rank and epoch"], Dimension.NBYTES)
    assert nbytes / 1e6 == pytest.approx(float(megabytes), abs=half_digit(megabytes))


# ---------------------------------------------------------------------------------------------- run


def visible(folder):
    """What lies in a folder, but for what simshuffle keeps for itself."""
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")]


def test_run_writes_the_documented_files_and_no_others(finished):
    folder, _, _ = finished
    assert {path.name for path in folder.iterdir()} == FILES
    assert all(path.stat().st_size > 0 for path in folder.iterdir())
    assert visible(folder.parent) == ["out"]
    # and others can read them
    umask = os.umask(0)
    os.umask(umask)
    assert folder.stat().st_mode & 0o777 == 0o777 & ~umask
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o666 & ~umask}


def test_the_epochs_table_has_the_documented_columns_and_a_row_for_each_run(finished):
    folder, _, _ = finished
    lines = (folder / "epochs.csv").read_text().splitlines()
    assert lines[0] == EPOCH_COLUMNS
    epochs = pd.read_csv(folder / "epochs.csv")
    assert epochs["run"].tolist() == RUNS
    kinds = ["global_shuffle", "local_shuffle", "partial_local_shuffle"]
    assert epochs["strategy"].tolist() == kinds
    assert epochs["world_size"].tolist() == [8, 8, 8]
    assert epochs["exchange_fraction"].isna().tolist() == [True, False, False]
    assert epochs["exchange_fraction"].tolist()[1:] == [0.0, 0.1]
    assert epochs["epoch"].tolist() == [1, 1, 1]


def test_the_samples_that_move_are_those_that_check_announces(finished, capsys):
    folder, _, _ = finished
    assert main(["check", "--full", "quickstart", *SMALL]) == 0
    announced = float(
        derived_values(capsys.readouterr().out)["partial-0.1 streamlined @8"][
            "samples exchanged per rank and epoch"
        ]
    )
    moved = pd.read_csv(folder / "epochs.csv").set_index("run")["samples_moved"]
    # partners are drawn from all ranks, so an eighth of the samples on average stays where it was
    assert 0.5 * 8 * announced < moved["partial-0.1 streamlined @8"] <= 8 * (announced + 1)
    assert moved["local @8"] == moved["global-pfs @8"] == 0


def test_json_has_the_rows_of_the_epochs_table_to_the_last_bit(finished):
    folder, stdout, stderr = finished
    assert stderr == ""
    text = json.loads(stdout, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    rows = text["epochs"]
    assert [row["run"] for row in rows] == RUNS
    table = rows_of(folder / "epochs.csv")
    assert len(rows) == len(table)
    for row, expected in zip(rows, table, strict=True):
        parts = row.pop("breakdown")
        assert sum(part["seconds"] for part in parts) == pytest.approx(row["epoch_s"], rel=1e-9)
        shown = [part["label"] for part in parts if not part["cause"]]
        assert shown == ["I/O", "FW+BW", "GE+WU", "EXCHANGE"]
        assert list(row) == EPOCH_COLUMNS.split(",")
        for column, text in expected.items():
            value = row[column]
            if isinstance(value, str):
                assert value == text
            elif value is None:
                assert text == ""
            else:
                assert value == float(text), column


def test_run_prints_tables_that_name_the_runs_and_the_files(here, capsys):
    assert main(["run", "quickstart", *LOCAL, "--out", "a/b", "-v"]) == 0
    printed = capsys.readouterr().out
    assert "a/b/breakdown.png" in printed
    assert "GE+WU: gradient exchange (allreduce) and weight update" in " ".join(printed.split())
    assert "IMPT" not in printed
    assert max(len(line) for line in printed.splitlines() if "a/b" not in line) <= 100
    assert {path.name for path in (here / "a" / "b").iterdir()} == FILES


def test_the_stored_scenario_can_be_run_again_and_gives_the_same_tables(
    result, finished, tmp_path, preloaded
):
    words = ["run", "out/scenario.yaml", "--out", "again", "--json"]
    done = preloaded.simshuffle(words, tmp_path)
    assert done.status == 0, done.stderr.decode()
    assert done.stdout.decode() == finished[1]
    assert content(tmp_path / "again") == content(result)


def test_a_second_run_reuses_the_result(result, capsys, simulating_is_a_failure):
    before = content(result)
    assert main(["run", "quickstart", *SMALL, "--out", "out"]) == 0
    captured = capsys.readouterr()
    assert "already holds this result; nothing was simulated" in captured.err
    assert "partial-0.1 @8" in captured.out
    assert content(result) == before


def test_a_result_of_other_code_is_not_reused(result, capsys, monkeypatch, simulating_is_a_failure):
    monkeypatch.setattr("simshuffle.study.study.code_digest", lambda *_: "other code")
    assert main(["run", "quickstart", *SMALL, "--out", "out"]) == 2
    assert "holds another result" in capsys.readouterr().err


def test_other_settings_do_not_replace_a_result(result, capsys, simulating_is_a_failure):
    before = content(result)
    assert main(["run", "quickstart", *SMALL, "--set", "seed=2", "--out", "out"]) == 2
    message = capsys.readouterr().err
    assert "--out: holds another result; got out" in message
    assert "--force" in message
    assert content(result) == before


def test_force_replaces_a_result_whole(result, tmp_path):
    before = content(result)
    (result / "stray.txt").write_text("years of work")
    assert main(["run", "quickstart", *LOCAL, "--out", "out", "--force"]) == 2
    (result / "stray.txt").unlink()  # a foreign file is never thrown away
    assert main(["run", "quickstart", *LOCAL, "--out", "out", "--force"]) == 0
    after = content(result)
    assert set(after) == FILES
    assert pd.read_csv(result / "epochs.csv")["run"].tolist() == ["local @8"]
    assert after["epochs.csv"] != before["epochs.csv"]
    assert visible(tmp_path) == ["out"]


def test_the_default_folder_is_named_after_the_scenario_and_its_fingerprint(here, capsys):
    assert main(["run", "quickstart", *LOCAL]) == 0
    assert main(["run", "quickstart", *LOCAL, "--set", "seed=2", "--set", "name=a/b"]) == 0
    folders = sorted(path.name for path in (here / "results").iterdir())
    assert len(folders) == 2
    first, second = folders
    for folder, name in ((first, "a-b"), (second, "quickstart")):
        assert re.fullmatch(rf"{name}-[0-9a-f]{{12}}", folder)
        meta = json.loads((here / "results" / folder / "meta.json").read_text())
        assert folder == f"{name}-{meta['fingerprint']}"
    assert f"Tables: results/{second}" in capsys.readouterr().out


def test_several_scenarios_in_one_call_make_one_result(here):
    assert main(["check", "quickstart", *LOCAL]) == 0
    small = load_scenario(
        "quickstart", {"world_size": 8, "epochs": 1, "workload.exchange": "local_shuffle"}
    )
    (here / "a.yaml").write_text(small.to_yaml())
    (here / "b.yaml").write_text(small.with_values({"name": "b", "seed": 9}).to_yaml())
    assert main(["run", "a.yaml", "b.yaml", "--out", "both"]) == 0
    epochs = pd.read_csv(here / "both" / "epochs.csv")
    assert epochs["run"].tolist() == ["quickstart local @8", "b local @8"]
    stored = (here / "both" / "scenario.yaml").read_text()
    assert [document["name"] for document in yaml.safe_load_all(stored)] == ["quickstart", "b"]
    meta = json.loads((here / "both" / "meta.json").read_text())
    assert {name: run["seed"] for name, run in meta["runs"].items()} == {
        "quickstart local @8": 1,
        "b local @8": 9,
    }
    assert main(["run", "both/scenario.yaml", "--out", "both"]) == 0
    assert main(["run", "a.yaml", "a.yaml", "--out", "twice"]) == 2
    assert not (here / "twice").exists()


def test_the_meta_file_says_what_was_simulated_with_what(finished):
    folder, _, _ = finished
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["versions"]["simshuffle"] == simshuffle.__version__
    assert set(meta["versions"]) >= {"python", "numpy", "numba", "simpy", "networkx", "pandas"}
    assert list(meta["runs"]) == RUNS or set(meta["runs"]) == set(RUNS)
    local = meta["runs"]["local @8"]
    # 65,000 / (8 x 32) = 253.9
    assert (local["seed"], local["hosts"], local["iterations"]) == (1, 2, 254)
    assert local["storage_per_host_nbytes"] == pytest.approx(65_000 * 30_769 / 2)


def test_a_result_is_written_and_read_whatever_the_encoding_of_the_locale(tmp_path):
    small = {
        "world_size": 8,
        "epochs": 1,
        "workload.exchange": "local_shuffle",
        "description": "Größe 5 µs",
    }
    scenario = load_scenario("quickstart", small)
    (tmp_path / "s.yaml").write_text(scenario.to_yaml())
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    code = """
from simshuffle.cli import main
assert main("run s.yaml --out out".split()) == 0
assert main("results plot out".split()) == 0
"""
    done = python("-c", code, cwd=tmp_path, **ascii_only)
    assert done.returncode == 0, done.stderr
    assert load_scenario(tmp_path / "out" / "scenario.yaml") == scenario


def test_the_public_names_are_the_same_whatever_was_imported_first(tmp_path):
    first = ["simshuffle", "simshuffle.cli", "simshuffle.studies.simulation.study"]
    first += ["simshuffle.api", "simshuffle.report.style"]
    code = """
import importlib, sys
for first in sys.argv[1:]:
    for name in [name for name in sys.modules if name.startswith("simshuffle")]:  # and of plugins
        del sys.modules[name]
    importlib.import_module(first)
    from simshuffle import Scenario, load_scenario, run
    print(first, type(run).__name__, type(load_scenario).__name__)
"""
    done = python("-c", code, *first, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines == [f"{name} function function" for name in first], done.stderr


# --------------------------------------------------------------------------------------------- plot


def test_plot_keeps_all_of_the_name_it_is_given(result, tmp_path):
    assert main(["results", "plot", "out", "--out", "Q0.1"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"out", "Q0.1.png", "Q0.1.pdf"}


# ------------------------------------------------------------------------------------------- others


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"simshuffle {simshuffle.__version__}\n"


def listed(capsys, *words):
    """The names that are listed, by kind."""
    assert main(["list", *words]) == 0
    names = {}
    for line in capsys.readouterr().out.splitlines():
        if not re.match(r"\d+ of \d+: ", line):
            names.setdefault(line[:10].strip(), []).append(line[10:].split()[0])
    return names


def test_list_names_ten_to_begin_with_and_says_how_to_see_the_rest(capsys):
    names = listed(capsys)
    assert sum(map(len, names.values())) == 10
    assert names["scenario"][0] == "quickstart"
    assert main(["list"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"{len(shipped_names('topologies'))} machines" in last
    assert "list WORD searches" in last
    assert "--all" in last


def test_list_all_names_everything_that_is_shipped_with_a_line_on_each(capsys):
    names = listed(capsys, "--all")
    assert names["scenario"] == shipped_names("scenarios")
    assert names["study"] == shipped_names("studies")
    assert names["machine"] == shipped_names("topologies")
    assert {"resnet50", "vgg16"} <= set(names["model"])
    assert {"imagenet1k", "cifar100"} <= set(names["data set"])
    assert set(names["failures"]) == {"infinitehbd", "infinitehbd-175d", "llama3"}
    assert main(["list", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) < 45] == []


def test_list_searches_names_kinds_and_descriptions(capsys):
    assert listed(capsys, "Leonardo") == {
        "scenario": ["validation/alltoall-leonardo"],
        "machine": ["leonardo"],
    }
    assert "leonardo" in listed(capsys, "machine", "dragonfly+")["machine"]
    assert set(listed(capsys, "machine", "dragonfly+")) == {"machine"}
    assert "abci" in listed(capsys, "AI bridging")["machine"]


def test_list_refuses_words_that_nothing_has(capsys):
    assert main(["list", "no-such-thing"]) == 2
    message = capsys.readouterr().err
    assert "got no-such-thing" in message
    assert "--all" in message


HEAVY = ["numba", "simpy", "pandas", "pyarrow", "scipy", "matplotlib", "networkx", "loky"]


def imported_by(arguments, folder):
    """The status of a command, and which of the packages that compute it imported."""
    code = (
        "import sys; from simshuffle.cli import main; status = main(sys.argv[1:]);"
        f" print(status, *(name for name in {[*HEAVY, 'numpy']} if name in sys.modules))"
    )
    done = python("-c", code, *arguments, cwd=folder)
    status, *names = done.stdout.splitlines()[-1].split()
    return int(status), names


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["run", "--help"], ["results", "plot", "--help"], ["--version"], ["list"]],
    ids=" ".join,
)
def test_help_and_lists_answer_without_the_packages_that_compute(arguments, tmp_path):
    assert imported_by(arguments, tmp_path) == (0, [])


def test_check_imports_of_the_packages_that_compute_numpy_alone(tmp_path):
    assert imported_by(["check", "quickstart"], tmp_path) == (0, ["numpy"])


def test_a_run_on_a_shipped_machine_does_not_import_networkx(tmp_path):
    words = ["run", "quickstart", "--set", "sweep={}", "--set", "workload.exchange=local_shuffle"]
    small = ["--set", "world_size=4", "--set", "workload.dataset.num_samples=64"]
    status, names = imported_by([*words, *small, "--out", "out"], tmp_path)
    assert (status, "matplotlib" in names) == (0, True)  # a figure was drawn
    assert "networkx" not in names


def test_the_command_and_the_module_are_the_same(tmp_path):
    script = Path(sys.executable).with_name("simshuffle")
    done = subprocess.run([script, "--version"], capture_output=True, check=True, text=True)
    assert done.stdout == python("-m", "simshuffle", "--version", cwd=tmp_path).stdout


def test_without_a_folder_for_compiled_kernels_commands_work_and_say_so(tmp_path):
    case = tmp_path / "case.json"
    flows = {"size": [1e9], "route": [[0]]}
    case.write_text(json.dumps({"links": {"capacity": [1e9], "latency": [0]}, "flows": flows}))
    code = (
        "import numba.core.caching as caching, sys; caching.CacheImpl._locator_classes = []; from"
        " simshuffle.cli import main; sys.exit(main(['study', 'replay', sys.argv[1], '--network',"
        " 'packet']))"
    )
    done = python("-c", code, str(case), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "NUMBA_CACHE_DIR" in done.stderr
    assert done.stdout.splitlines()[1].startswith("0,")


def test_waiting_can_be_booked_as_in_the_papers_in_table_json_and_figure(tmp_path, capsys):
    """The labels of the papers, and no cause, from the same tables."""
    made = ["run", "quickstart", *LOCAL]
    assert main([*made, "--out", str(tmp_path / "a"), "--json"]) == 0
    [ours] = json.loads(capsys.readouterr().out)["epochs"]
    paper = [*made, "--out", str(tmp_path / "b"), "--labels", "paper"]
    assert main([*paper, "--json"]) == 0
    [theirs] = json.loads(capsys.readouterr().out)["epochs"]
    sums: dict[str, float] = {}
    for part in ours["breakdown"]:
        sums[part["label"]] = sums.get(part["label"], 0.0) + part["seconds"]
    assert {part["label"]: part["seconds"] for part in theirs["breakdown"]} == pytest.approx(sums)
    assert main(paper) == 0
    printed = capsys.readouterr().out
    assert "as in the authors' timers" in printed
    assert "wait for" not in printed
    figures = [imread(tmp_path / name / "breakdown.png") for name in "ab"]
    assert not np.array_equal(*figures)
    assert main(["results", "plot", str(tmp_path / "a"), "--labels", "paper"]) == 0
    assert np.array_equal(imread(tmp_path / "a" / "breakdown.png"), figures[1])


def test_numbers_are_never_cut(capsys, monkeypatch):
    """A table that is too wide for the terminal is printed whole."""
    from rich.console import Console

    from simshuffle.report.console import new_table, print_whole

    table = new_table(None, ["run"], ["seconds", "bytes"])
    table.add_row("a long name of a run", "1234.5678", "987654321")
    print_whole(Console(width=20), table)
    printed = capsys.readouterr().out
    assert "1234.5678" in printed
    assert "987654321" in printed
