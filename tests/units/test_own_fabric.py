"""From what tools say of a fabric to a number: the import's last line, names, older adapters."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from simshuffle.cli import main
from simshuffle.scenario.scenario import load_scenario

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "fabrics"
RACK = DATA / "rack.ibnet"
DUMP = DATA / "rack-lfts.dump"


def rack_text():
    return RACK.read_text(encoding="utf-8")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def one_hca(text):
    """The rack with one adapter of each host that names it."""
    return re.sub(r'"node(\d) mlx5_1"', r'"MT4123 number \1"', text)


# --------------------------------------------------------------------- a first run, and its rings


@pytest.mark.parametrize("hcas", [1, 2])
@pytest.mark.parametrize("words", [[], ["--accelerator", "h900"]])
def test_the_last_line_of_an_import_is_a_command_that_works(hcas, words, here, capsys):
    text = rack_text() if hcas == 2 else one_hca(rack_text())
    (here / "net.txt").write_text(text, encoding="utf-8")
    (here / "my machines").mkdir()
    out = "my machines/mine.yaml"
    assert main(["machine", "import", "net.txt", "--out", out, *words]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Next: simshuffle run quickstart --set 'cluster=my machines/mine.yaml'")
    _, *command = shlex.split(last.removeprefix("Next: "))
    assert main(command) == 0


def test_after_the_network_alone_it_is_shown(here, capsys):
    assert main(["machine", "import", str(RACK), "--out", "net.json"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Next: simshuffle machine show net.json"
    assert main(shlex.split(last)[2:]) == 0


def test_rings_that_are_left_out_are_those_of_the_hcas_whatever_the_machine():
    """ABCI has 2 HCAs a host, small-fat-tree 1; as a sweep over machines asks."""
    scenario = load_scenario("quickstart", {"world_size": 8, "workload.exchange": "local_shuffle"})
    assert "rings" not in (ROOT / "scenarios/quickstart.yaml").read_text(encoding="utf-8")
    runs = scenario.combinations({"cluster.host.hcas": [1, 2]})
    found = [run.workload.allreduce_on(run.cluster).rings for run in runs.values()]
    assert found == [1, 2]
    small = scenario.with_values({"cluster": "small-fat-tree"})
    assert small.workload.allreduce_on(small.cluster).rings == 1
    given = scenario.with_values({"workload.allreduce.rings": 1})
    assert given.workload.allreduce_on(given.cluster).rings == 1
