"""The exchange of an iteration under SMPI (SimGrid 3.32): an MPI program on the same links, whose
answers benchmarks/smpi.py recorded."""

import importlib
import json
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from simshuffle.cli import main
from simshuffle.extensions.interop.exports.program import make_program
from simshuffle.job.sim.simulate import simulate

ROOT = Path(__file__).parent.parent.parent
SAME = 5e-5  # share of the time; SMPI adds 16 bytes to every message
LATENCY = 1.3e-6  # s of a message
CABLES = 0.4e-6  # s at most of those on a route

needs_smpi = pytest.mark.skipif(
    shutil.which("smpirun") is None or shutil.which("smpicc") is None,
    reason="smpirun and smpicc of SimGrid are not installed",
)


@pytest.fixture(scope="module")
def smpi():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("smpi")


def case_of(smpi, name):
    return next(case for case in smpi.CASES if case.name == name)


def assert_same(smpi, case, ours, theirs):
    """Where barriers are, SMPI lets ranks go before the last round of all, by a latency for each
    other round at most, and its senders come to the next one later by the latency of cables.
    Messages that begin sooner meet others, so that these may end later."""
    barriers, steps = len(ours["barriers"]), len(make_program(case.scenario(), 1, 1).steps)
    assert barriers == len(theirs["barriers"])
    early = barriers * (math.ceil(math.log2(len(ours["done"]))) - 1) * LATENCY
    late = steps * CABLES * (barriers > 0)
    for key, values in ours.items():
        if "fair to pairs" in case.name and key != "sent":
            continue  # see the page: SMPI is fair to messages
        sooner, same = values - theirs[key], SAME * values + CABLES * (key == "sent")
        either = early if key in ("arrived", "done") else 0.0
        assert (sooner <= same + early + late).all(), key
        assert (sooner >= -same - late - either).all(), key


def test_recorded_answers_are_those_of_the_simulator(smpi):
    for case in smpi.CASES:
        assert_same(smpi, case, smpi.simulated(case.scenario()), smpi.recorded(case))


def test_serial_messages_of_a_pair_end_later_than_under_smpi(smpi):
    """The last of all to be done; most ranks have no two messages to one other at a time."""
    case = case_of(smpi, "busy, 4:1, fair to pairs")
    ours, theirs = smpi.simulated(case.scenario()), smpi.recorded(case)
    assert 1.0 < ours["done"].max() / theirs["done"].max() < 1.04
    assert np.median(smpi.error(ours, theirs, "done")) < 0.02


def test_a_wrong_link_or_a_missing_message_would_be_seen(smpi):
    """The recorded times of the full tree are not those of the tapered one."""
    full, tapered = (case_of(smpi, f"busy, {taper}") for taper in ("1:1", "4:1"))
    with pytest.raises(AssertionError):
        assert_same(smpi, full, smpi.simulated(full.scenario()), smpi.recorded(tapered))


@pytest.mark.parametrize("name", ["busy, 16 ranks", "authors, 16 ranks"])
def test_a_whole_run_takes_as_long_as_its_messages_alone(smpi, name):
    """Of what `simulated` posts itself: the first iteration's exchange in a run."""
    case = case_of(smpi, name)
    phases = simulate(case.scenario()).phases
    phases = phases[phases["iteration"] == 1]
    begun = phases.loc[phases["phase"] == "update", "end_s"].max()
    done = phases.groupby("rank")["end_s"].max() - begun
    assert done.to_numpy() == pytest.approx(smpi.simulated(case.scenario())["done"], rel=2e-3)


@needs_smpi
@pytest.mark.parametrize("name", ["busy, 16 ranks", "authors, 16 ranks"])
def test_smpi_answers_as_recorded(smpi, name):
    case = case_of(smpi, name)
    theirs, recorded = smpi.run_smpi(case.scenario(), case.options), smpi.recorded(case)
    for key, values in recorded.items():
        np.testing.assert_allclose(theirs[key], values, rtol=1e-6, atol=1e-9)


def test_the_page_has_a_row_for_every_case(smpi):
    page = smpi.PAGE.read_text()
    table = page.partition("<!-- smpi -->\n")[2].partition("<!-- end -->")[0]
    head, _, rows = table.partition(smpi.HEAD)
    assert head == ""
    names = [line.split(" | ")[0].removeprefix("| ") for line in rows.strip().splitlines()]
    assert names == [case.name for case in smpi.CASES]
    for case, line in zip(smpi.CASES, rows.strip().splitlines(), strict=True):
        assert line == smpi.row(case, smpi.simulated(case.scenario()), smpi.recorded(case))


@needs_smpi
def test_what_the_readme_says_runs(tmp_path, capsys):
    folder = tmp_path / "smpi"
    values = ["cluster=small-fat-tree", "world_size=8", "workload.allreduce.rings=1"]
    values.append("workload.exchange=partial_local_shuffle:exchange_fraction=0.1")
    given = [part for value in values for part in ("--set", value)]
    assert (
        main(["results", "export", "quickstart", *given, "--to", "simgrid", "--out", str(folder)])
        == 0
    )
    assert "README.txt" in capsys.readouterr().err
    text = (folder / "README.txt").read_text().replace("\\\n", " ")
    commands = [line for line in text.splitlines() if line.startswith("    smpi")]
    assert len(commands) == 2
    for command in commands:
        words = command.split()
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    ranks = [line.split()[0] for line in done.stdout.splitlines()]
    assert sorted(map(int, ranks)) == list(range(8))


def test_recorded_files_are_those_of_the_cases(smpi):
    assert {path.name for path in smpi.DATA.iterdir()} == {case.file.name for case in smpi.CASES}
    for case in smpi.CASES:
        assert json.loads(case.file.read_text())["case"] == case.name
