"""simshuffle new for data in shards and in an object store: 1,281 shards on 40 hosts."""

import shlex

import pytest
import yaml

from simshuffle import run
from simshuffle.cli import main
from simshuffle.cli.new_scenario import draft_texts
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.scenario.scenario import load_scenario

ANSWERS = {
    "hosts": "40",
    "samples": "1281167",
    "sample_size": "110 kB",
    "batch_size": "64",
    "batch_time": "23.1 ms",
    "gradients": "102 MB",
}
WORDS = shlex.join(
    word for name, answer in ANSWERS.items() for word in (f"--{name.replace('_', '-')}", answer)
)
STORE = "--store '20 GB/s' --samples-per-shard 1000"


def draft(**answers):
    """Return the scenario and the machine that are written, as mappings."""
    texts, _ = draft_texts("mine", {**ANSWERS, **answers})
    return tuple(map(yaml.safe_load, texts.values()))


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    """The scenario of shards in a store, written and read again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main(["new", "mine", *shlex.split(f"{WORDS} {STORE}")]) == 0
    return load_scenario("mine.yaml")


def test_an_epoch_streams_the_shards_from_the_store(scenario):
    """1,280,000 samples of 110 kB at 20 GB/s take 7.04 s; hosts stage by 10 connections."""
    assert scenario.cluster.store.bandwidth == 20e9
    runs = scenario.runs()
    assert list(runs) == [
        "global-object_store @160",
        "global-ssd @160",
        "local @160",
        "partial-0.1 streamlined @160",
    ]
    streamed = bounds(runs["global-object_store @160"])
    assert streamed.resources["store bandwidth"] == pytest.approx(7.04, rel=1e-3)
    assert streamed.resources["store requests"] < 0.3
    staging = scenario.workload.staging
    assert (staging.source, staging.copies, staging.target) == ("object_store", 10, "ssd")


def test_what_is_written_is_simulated_and_every_epoch_reads_the_store(scenario):
    values = {"world_size": 8, "workload.dataset.num_samples": 8 * 64 * 4}
    rows = run(load_scenario("mine.yaml", values)).tables["sources"]
    rows = rows[rows["run"] == "global-object_store @8"]
    assert (rows["nbytes_object_store"] > 0.9 * 8 * 64 * 4 * 110e3).all()
    assert (rows["nbytes_pfs"] == 0).all()


def test_shards_are_opened_and_asked_for_once():
    dataset = draft(samples_per_shard="1000")[0]["workload"]["dataset"]
    assert (dataset["samples_per_file"], dataset["samples_per_request"]) == (1000, 1000)
    plain, machine = draft()
    assert plain["workload"]["dataset"]["samples_per_file"] == 1
    assert "samples_per_request" not in plain["workload"]["dataset"]
    assert "object_store" not in machine
    assert "staging" not in plain["workload"]


@pytest.mark.parametrize(("store", "tier"), [("20 GB/s", "object_store"), ("none", "pfs")])
def test_the_comment_on_loaders_is_a_run_once_it_is_no_comment(tmp_path, store, tier):
    texts, _ = draft_texts("mine", {**ANSWERS, "samples_per_shard": "1000", "store": store})
    for name, text in texts.items():
        (tmp_path / name).write_text(text.replace("# - loader_shuffle", "- loader_shuffle"))
    runs = load_scenario(tmp_path / "mine.yaml").runs()
    (loader,) = [made for name, made in runs.items() if "mosaicml" in name]
    assert loader.workload.exchange.tier == tier
    assert loader.workload.exchange.samples_per_shard == 1000


def test_hosts_without_ssd_stage_from_the_store_to_memory():
    plain, _ = draft(store="20 GB/s", ssd="none")
    expected = {"source": "object_store", "copies": 10, "target": "memory"}
    assert plain["workload"]["staging"] == expected


def test_a_machine_without_a_store_says_what_to_add(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = WORDS.replace("--hosts 40", "--topology juwels-booster")
    assert main(["new", "mine", *shlex.split(words), "--ways", "global-object_store"]) == 2
    assert "Add cluster.object_store" in " ".join(capsys.readouterr().err.split())
