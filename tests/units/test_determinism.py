"""The same scenario and seed give the same bytes, in any process; another seed gives others."""

import os
import subprocess
import sys

import pandas as pd
import pytest
import yaml

from simshuffle.job.scenario.scenario import load_scenario
from tests.contents import contents

VALUES = {
    "cluster": "small-fat-tree",
    "workload.allreduce.rings": 1,
    "world_size": 16,
    "epochs": 2,
    "workload.dataset.num_samples": 16_000,
    "workload.exchange": "partial_local_shuffle:exchange_fraction=0.3",
    "workload.jitter.compute": 0.05,
    "workload.jitter.read": 0.2,
}
SETTINGS = [part for key, value in VALUES.items() for part in ("--set", f"{key}={value}")]


def simulated(folder, *more, hash_seed):
    words = ["run", "quickstart", *SETTINGS, *more, "--out", "out", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "simshuffle", *words],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr.decode()
    return {"stdout": done.stdout, **contents(folder / "out")}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return simulated(tmp_path_factory.mktemp("first"), hash_seed="0")


def test_two_processes_write_the_same_bytes(first, tmp_path):
    second = simulated(tmp_path, hash_seed="12345")
    assert len(first) == 12
    assert sorted(second) == sorted(first)
    assert [name for name in first if second[name] != first[name]] == []


def test_another_seed_gives_other_tables(first, tmp_path):
    other = simulated(tmp_path, "--set", "seed=2", hash_seed="0")
    tables = {name for name in first if name.endswith((".csv", ".parquet", ".png"))}
    assert [name for name in tables if other[name] == first[name]] == []
    assert len(tables) >= 6


def test_the_scenario_is_one_where_chance_plays_a_part(first, tmp_path):
    scenario = load_scenario("quickstart", VALUES)
    assert yaml.safe_load(first["scenario.yaml"]) == scenario.to_dict()
    assert scenario.workload.jitter.compute > 0
    (tmp_path / "timeline.parquet").write_bytes(first["timeline.parquet"])
    phases = pd.read_parquet(tmp_path / "timeline.parquet")
    forward = phases[phases["phase"] == "forward"]
    assert forward["rank"].nunique() == 16
    assert (forward["end_s"] - forward["start_s"]).round(12).nunique() > 100
