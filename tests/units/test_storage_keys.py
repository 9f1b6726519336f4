"""The keys of storage: how they are read, refused and written back."""

import pytest
import yaml

from simshuffle import run
from simshuffle.job.derived_values import derive_values
from simshuffle.job.scenario.scenario import Scenario, load_scenario
from simshuffle.report.report import EPOCH_COLUMNS
from tests.small import small

PFS = "cluster.parallel_file_system"


def test_defaults_change_nothing():
    scenario = load_scenario("quickstart")
    pfs, loader, dataset = (
        scenario.cluster.parallel_file_system,
        scenario.workload.loader,
        scenario.workload.dataset,
    )
    assert (pfs.client_bandwidth, pfs.background_load, pfs.latency_spread) == (None, 0.0, 0.0)
    assert (pfs.free_bandwidth, pfs.free_open_rate) == (pfs.read_bandwidth, pfs.open_rate)
    assert (loader.threads, dataset.samples_per_file, dataset.samples_per_request) == (1, 1, 1)
    assert scenario.workload.staging.model_dump() == {
        "source": "pfs",
        "format": "archive",
        "target": "ssd",
        "copies": 1,
        "broadcast": False,
    }


@pytest.mark.parametrize(
    ("exchange", "target", "source"),
    [
        ("local_shuffle", "ssd", "ssd"),
        ("local_shuffle", "memory", "memory"),
        ("partial_local_shuffle:exchange_fraction=0.1", "memory", "memory"),
        ("global_shuffle:source=pfs", "memory", "pfs"),
    ],
)
def test_only_what_is_staged_can_be_in_memory(exchange, target, source):
    scenario = load_scenario(
        "quickstart", {"workload.exchange": exchange, "workload.staging.target": target}
    )
    assert scenario.workload.source == source


def test_every_key_survives_being_written_and_read():
    values = {
        f"{PFS}.client_bandwidth": {
            "points": {1: "2 GB/s", 64: "300 MB/s"},
            "interpolation": "linear",
        },
        f"{PFS}.background_load": 0.25,
        f"{PFS}.latency_spread": 0.5,
        "cluster.ssd.iops": {"points": {1: "12 k/s", 32: "300 k/s"}},
        "workload.loader.threads": 20,
        "workload.dataset.samples_per_file": 1024,
        "workload.dataset.samples_per_request": 64,
        "workload.staging": {"format": "files", "copies": 8, "target": "memory", "broadcast": True},
    }
    scenario = load_scenario("quickstart", values)
    again = Scenario.model_validate(yaml.safe_load(scenario.to_yaml()))
    assert again == scenario
    curve = again.cluster.parallel_file_system.client_bandwidth
    assert curve is not None
    assert curve(64) == 300e6


def test_what_does_not_fit_the_ssd_can_be_staged_to_memory():
    values = {
        "workload.exchange": "global_shuffle:source=ssd",
        "workload.staging.target": "memory",
        "cluster.ssd.capacity": "1 GB",
        "cluster.memory": {"capacity": "3 GB", "bandwidth": "100 GB/s", "page_cache": "0 B"},
    }
    assert load_scenario("quickstart", values).workload.source == "memory"


def test_check_tells_the_bound_and_where_the_shards_are_kept():
    for target, room in (("ssd", "1 TB"), ("memory", "137.4 GB of memory")):
        out = derive_values(small(workload__staging={"target": target}))
        assert out["storage per host"] == f"10 MB of {room}"
        assert out["staging before the first epoch"] == ("10 ms" if target == "ssd" else "8 ms")


def test_a_result_says_where_samples_were_staged_and_for_how_long():
    result = run(small(workload__exchange="local_shuffle", epochs=2))
    meta = result.meta["runs"]["local @8"]
    assert meta["staged_to"] == "ssd"
    assert meta["staging_s"] == result.epochs["staging_s"][0] > 0
    assert list(result.epochs.columns) == list(EPOCH_COLUMNS)
    assert (
        run(small(workload__exchange="global_shuffle")).meta["runs"]["global-pfs @8"]["staged_to"]
        is None
    )
