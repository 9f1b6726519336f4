"""Faults at times in a run: what is refused, and what is said of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from simshuffle.cli import main
from simshuffle.scenario.scenario import Scenario
from tests.small import small

SLOW: dict[str, Any] = {"what": "h0003", "at": "0 s", "rate": 0.5}
REFUSED = {
    "a host that there is not": (
        {**SLOW, "what": "h003"},
        "faults.0.what: must name a host, switch, cable (FROM>TO) or device",
        "There are h0013, h0003",
    ),
    "a device that there is not": ({**SLOW, "what": "h0003.sdd"}, "faults.0.what", "h0003.ssd"),
    "a GPU that there is not": ({**SLOW, "what": "h0003.gpu1"}, "faults.0.what", "none called"),
    "a cable that there is not": (
        {**SLOW, "what": "switch>h0099"},
        "faults.0.what",
        "There are switch>h0009",
    ),
    "a negative time": ({**SLOW, "at": "-1 s"}, "faults.0.at", "greater than or equal to 0"),
    "one that lasts no time": ({**SLOW, "for": "0 s"}, "faults.0.for", "greater than 0"),
    "more than all of a rate": ({**SLOW, "rate": 1.5}, "faults.0.rate", "less than or equal to 1"),
    "no time": ({"what": "h0003", "rate": 0.5}, "faults.0.at", "Give 'at'"),
    "two times": ({**SLOW, "every": "1 s"}, "faults.0.at", "one of them"),
    "one host of many drawn": (
        {"what": "h0003", "every": "1 s", "rate": 0.5},
        "faults.0.what",
        "must be one of cables, hosts, gpus, ssds",
    ),
    "a GPU that has failed": (
        {**SLOW, "what": "h0003.gpus", "rate": 0},
        "faults.0.rate",
        "greater than 0",
    ),
    "hosts that are lost at random": (
        {"what": "hosts", "every": "1 s", "rate": 0, "for": "1 s"},
        "faults.0.rate",
        "failures",
    ),
    "cables that fail for ever at random": (
        {"what": "cables", "every": "1 s", "rate": 0},
        "faults.0.for",
        "must be given",
    ),
    "a wait for ever": (
        {**SLOW, "what": "switch>h0003", "rate": 0, "on_failure": "stall"},
        "faults.0.for",
        "must be given",
    ),
    "a device that has failed for ever": (
        {**SLOW, "what": "h0003.ssd", "rate": 0},
        "faults.0.for",
        "must be given for a device",
    ),
    "a machine in two": (
        {**SLOW, "what": "switch>h0003", "rate": 0},
        "faults: must leave a way between all hosts of the run and their file system",
        "switch>h0003 cut off h0003",
    ),
    "how long twice": (
        {
            "what": "hosts",
            "rate": 0.5,
            "for": "1 s",
            "process": {"kind": "exponential", "mean_between": "1 s", "repair": {"mean": "1 s"}},
        },
        "faults.0.for",
        "must be left out",
    ),
}


def written(folder: Path, **values: Any) -> str:
    """A file of the small scenario with other values."""
    path = folder / "small.yaml"
    path.write_text(small(**values).to_yaml())
    return str(path)


@pytest.mark.parametrize("case", REFUSED)
def test_a_fault_that_cannot_be_is_refused_in_one_message(case, tmp_path, capsys):
    fault, where, says = REFUSED[case]
    path = written(tmp_path)
    text = Path(path).read_text() + "faults:\n- " + json.dumps(fault) + "\n"
    Path(path).write_text(text)
    for words in (["check", path], ["run", path, "--out", str(tmp_path / "out")]):
        assert main(words) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert where in told
        assert says in told
        assert "Traceback" not in told


def test_packets_and_faults_are_refused(tmp_path, capsys):
    path = written(tmp_path, faults=[SLOW], network={"kind": "packet"})
    assert main(["check", path]) == 2
    assert "faults: need a network whose links are shared as fluid" in capsys.readouterr().err


def test_several_jobs_and_a_lost_host_are_refused(tmp_path, capsys):
    path = written(tmp_path, faults=[{**SLOW, "rate": 0}], jobs={"a": {}, "b": {}})
    assert main(["check", path]) == 2
    assert "must not be lost where there are several jobs" in capsys.readouterr().err


def test_a_scenario_with_faults_reads_back_and_knows_its_lost_hosts():
    scenario = small(faults=[SLOW, {**SLOW, "rate": 0, "for": "2 s"}])
    assert load_back(scenario) == scenario
    assert [(of.what, of.lasts) for of in scenario.lost_hosts] == [("h0003", 2.0)]
    assert "faults" not in small().to_dict()
    assert scenario.with_values({"faults.0.rate": 0.25}).faults[0].rate == 0.25  # type: ignore[index]


def load_back(scenario: Scenario) -> Scenario:
    from simshuffle.scenario.scenario import from_dict

    return from_dict(scenario.to_dict(), "here")


def test_check_and_run_name_the_faults(tmp_path, capsys):
    drawn = {"what": "cables", "every": "1 s", "rate": 0.25, "for": "0.1 s"}
    path = written(tmp_path, faults=[{**SLOW, "at": "0.1 s", "for": "0.2 s"}, drawn])
    assert main(["check", path]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "h0003 at 50 % of its rate from 100 ms for 200 ms" in told
    assert "one of the cables every 1 s at 25 % of its rate for 100 ms in the mean" in told
    assert main(["check", path, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["faults"]) == 2
    assert main(["run", path, "--out", str(tmp_path / "out")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "h0003 at 50 % of its rate from 100 ms to 300 ms (8 links, 1 GPU)" in told
    meta = json.loads(next((tmp_path / "out").rglob("meta.json")).read_text())
    (run,) = meta["runs"].values()
    assert {"what", "at_s", "until_s", "rate", "links", "gpus", "rerouted"} == set(run["faults"][0])


def test_with_faults_all_iterations_are_simulated():
    from simshuffle.sim.simulate import FAULTS, why_whole

    assert why_whole(small(faults=[SLOW], time_tolerance=0.05)) == FAULTS
