"""Faults at times in a run: what is refused, and what is said of them."""

import json
from pathlib import Path
from typing import Any

from simshuffle.cli import main
from simshuffle.job.scenario.scenario import from_dict
from simshuffle.job.sim.simulate import FAULTS, why_whole
from tests.small import small

SLOW: dict[str, Any] = {"what": "h0003", "at": "0 s", "rate": 0.5}


def written(folder: Path, **values: Any) -> str:
    """A file of the small scenario with other values."""
    path = folder / "small.yaml"
    path.write_text(small(**values).to_yaml())
    return str(path)


def test_a_scenario_with_faults_reads_back_and_knows_its_lost_hosts():
    scenario = small(faults=[SLOW, {**SLOW, "rate": 0, "for": "2 s"}])
    assert from_dict(scenario.to_dict(), "here") == scenario
    assert [(of.what, of.lasts) for of in scenario.lost_hosts] == [("h0003", 2.0)]
    assert "faults" not in small().to_dict()
    assert scenario.with_values({"faults.0.rate": 0.25}).faults[0].rate == 0.25  # type: ignore[index]


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
    assert why_whole(small(faults=[SLOW], time_tolerance=0.05)) == FAULTS
