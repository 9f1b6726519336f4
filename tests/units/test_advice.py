"""Inputs that change nothing, and inputs that decide and that nobody gave: named in a line."""

import json
import shlex

import pytest

from simshuffle.cli import main
from simshuffle.job.plan.idle_inputs import LINK, PFS, SSD, TAPER, idle_inputs
from simshuffle.job.sim.simulate import simulate
from simshuffle.job.uncertainty.decisive import (
    DECODE,
    PAGE_CACHE,
    WORKERS,
    _multiply_input,
    _representatives,
    decisive_inputs,
)
from tests.small import small

# a leaf switch of 24 ports has 8 up and 16 down with a taper of 2; 36 hosts are on three
TREE = {
    "kind": "fat_tree",
    "hosts": 36,
    "ports": 24,
    "rails": 1,
    "taper": 2,
    "link_bandwidth": "10 GB/s",
}
GLOBAL = "global_shuffle:source=pfs"


def keys(**runs):
    return {idle.key for idle in idle_inputs(runs)}


def tree(taper=2, **values):
    return small(cluster__topology={**TREE, "taper": taper}, **values)


@pytest.mark.parametrize("exchange", [GLOBAL, "local_shuffle"])
def test_a_taper_above_one_leaf_switch_is_idle_and_the_simulation_agrees(exchange):
    values = {"world_size": 8, "workload__exchange": exchange}
    slow = {"cluster__parallel_file_system__read_bandwidth": "10 GB/s"}
    base = tree(**values, **slow)
    assert TAPER in keys(it=base)
    seconds = {
        taper: float(simulate(tree(taper, **values, **slow)).phases["end_s"].max())
        for taper in (1, 2, 3)
    }
    # the 8 hosts are on one leaf switch, of 12, 16 and 18 links down
    assert len(set(seconds.values())) == 1


def test_a_taper_that_binds_or_divides_hosts_is_not_idle():
    # 8 links up carry 80 GB/s, and the file system gives 1 TB/s
    fast = {"cluster__parallel_file_system__read_bandwidth": "1 TB/s"}
    assert TAPER not in keys(it=tree(workload__exchange=GLOBAL, **fast))
    assert TAPER in keys(it=tree(workload__exchange=GLOBAL))
    # 16 hosts are on one leaf switch, and 20 on two
    assert TAPER not in keys(it=tree(world_size=20))
    assert TAPER in keys(it=tree(world_size=16))


def test_what_no_run_uses_is_idle():
    pfs = small(workload__exchange=GLOBAL)
    local = small(workload__exchange="local_shuffle")
    assert {f"{SSD}.read_bandwidth", f"{SSD}.write_bandwidth"} <= keys(it=pfs)
    assert f"{PFS}.open_rate" not in keys(it=pfs)
    # staged as an archive: no file is opened, and its bytes come from the file system
    assert f"{PFS}.open_rate" in keys(it=local)
    assert f"{PFS}.read_bandwidth" not in keys(it=local)
    assert f"{SSD}.read_bandwidth" not in keys(it=local)
    # what one of two runs uses is not idle
    assert not {f"{SSD}.read_bandwidth", f"{PFS}.open_rate"} & keys(a=pfs, b=local)
    files = small(workload__exchange="local_shuffle", workload__staging={"format": "files"})
    assert f"{PFS}.open_rate" not in keys(it=files)
    memory = small(workload__exchange="local_shuffle", workload__staging={"target": "memory"})
    assert f"{SSD}.read_bandwidth" in keys(it=memory)
    saved = small(workload__exchange=GLOBAL, workload__checkpoint={"every": 5, "to": "ssd"})
    assert f"{SSD}.write_bandwidth" not in keys(it=saved)


def test_the_page_cache_of_one_epoch_one_rank_and_one_host():
    cache = "cluster.memory.page_cache"
    assert cache in keys(it=small(epochs=1, workload__exchange=GLOBAL))
    assert cache not in keys(it=small(epochs=2, workload__exchange=GLOBAL))
    alone = small(world_size=1, workload__exchange=GLOBAL)
    assert "workload.model.gradient_size" in keys(it=alone)
    assert LINK not in keys(it=alone)  # samples come over it
    assert "cluster.host.nvlink_bandwidth" in keys(it=alone)


def test_the_inputs_that_decide_are_those_of_the_binding_resource():
    # opening 800 files at 10 a second binds: 80 s; computing takes a fraction
    slow = {"cluster__parallel_file_system__open_rate": "10.02/s"}
    found = decisive_inputs({"it": small(workload__exchange=GLOBAL, **slow)})
    assert (found[0].key, found[0].value) == (f"{PFS}.open_rate", "10 1/s")
    # opens at 0.43 to 2.8 of the rate take 2.3 and 0.36 times as long
    assert found[0].longer == pytest.approx(1 / found[0].low - 1, rel=0.02)
    assert found[0].shorter == pytest.approx(1 / found[0].high - 1, rel=0.02)
    assert len(found) <= 3


def test_decoding_that_nobody_timed_and_workers_are_among_them():
    values = {
        "workload__exchange": "local_shuffle",
        "workload__dataset": {
            "name": "plain",
            "num_samples": 800,
            "sample_size": {"mean": "4 MB", "std": "0 B"},
        },
    }
    found = {each.key: each for each in decisive_inputs({"it": small(**values)})}
    # 4 MB of JPEG are 36 ms of decoding, beside a step of some 2.7 ms a sample: loaders bind
    # reading from the SSD is 2 to 5 % of it
    assert [*found] == [DECODE, WORKERS, "cluster.ssd.read_bandwidth"]
    decode = found[DECODE]
    assert (decode.value, decode.low, decode.high) == ("36.4 ms a sample", 0.5, 10.0)
    assert found[WORKERS].shorter == pytest.approx(-0.5, abs=0.05)
    assert 0.0 <= found["cluster.ssd.read_bandwidth"].longer < 0.1
    assert DECODE not in {each.key for each in decisive_inputs({"it": small(**values)}, {DECODE})}


def test_the_page_cache_that_nobody_gave_is_among_them():
    """Of 80 MB the cache of a host takes 60, so that late epochs read a part; all memory, 80 MB,
    takes them whole. Half of it makes them longer. Epoch 2 says nothing of it."""

    def found(**cache):
        memory = {"capacity": "80.04 MB", "bandwidth": "100 GB/s", **cache}
        slow = {"cluster__parallel_file_system__read_bandwidth": "8 MB/s"}
        scenario = small(epochs=2, workload__exchange=GLOBAL, cluster__memory=memory, **slow)
        return {each.key: each for each in decisive_inputs({"it": scenario})}

    cache = found()[PAGE_CACHE]
    assert cache.shorter < -0.5 and cache.longer > 0.1
    assert "taken: 60 MB a host; once caches are full; " in cache.describe()
    assert PAGE_CACHE not in found(page_cache="60 MB")


def test_the_fastest_and_the_slowest_of_both_ends_of_the_sizes_stand_for_all():
    """Of 2, 4 and 8 ranks: samples that take longer make the slower runs."""
    values = {"x": "1 ms", "y": "9 ms", "z": "3 ms"}
    runs = {
        f"{name}{ranks}": small(world_size=ranks, workload__dataset__decode=decode)
        for ranks in (4, 8, 2)
        for name, decode in values.items()
    }
    order = "loader_shuffle:order=webdataset,order.buffer_size=4,samples_per_shard=10"
    runs["order"] = small(world_size=1, workload__exchange=order)
    assert set(_representatives(runs)) == {"x2", "y2", "x8", "y8"}
    assert set(_representatives({"x4": runs["x4"]})) == {"x4"}
    assert _representatives({"order": runs["order"]}) == {}


def test_an_input_is_multiplied_with_what_goes_with_it():
    memory = {"capacity": "80 MB", "bandwidth": "100 GB/s"}
    scenario = small(
        epochs=2, cluster__memory=memory, workload__loader={"workers": 3, "prefetch": 5}
    )
    loader = _multiply_input(scenario, WORKERS, 0.5).workload.loader
    assert (loader.workers, loader.prefetch) == (2, 2)  # 1.5 and 2.5, rounded to even
    loader = _multiply_input(scenario, WORKERS, 0.1).workload.loader
    assert (loader.workers, loader.prefetch) == (1, 1)
    # of 80 MB a cache takes three quarters, which end after 100 epochs; no more than all
    for factor, nbytes in ((0.5, 30e6), (2.0, 80e6)):
        late = _multiply_input(scenario, PAGE_CACHE, factor)
        assert (late.cluster.memory.page_cache, late.epochs) == (nbytes, 100)
    # decoding that nobody timed follows from the bytes; else it is what is given
    assert _multiply_input(scenario, DECODE, 2.0).workload.dataset.decode_seconds == 2e-3
    estimated = small(workload__dataset__decode=None)
    seconds = estimated.workload.dataset.decode_seconds
    assert seconds > 0
    assert _multiply_input(estimated, DECODE, 3.0).workload.dataset.decode == 3 * seconds
    rate = f"{PFS}.open_rate"
    before = scenario.cluster.parallel_file_system.open_rate
    assert _multiply_input(scenario, rate, 3.0).cluster.parallel_file_system.open_rate == 3 * before


def test_an_input_stands_once_as_of_the_run_that_it_moves_most():
    """Opens take 80 s and bind one run; in the other two workers decode 100 samples for 90 s."""
    slow = {"cluster__parallel_file_system__open_rate": "10 /s"}
    runs = {
        "steps": small(workload__exchange=GLOBAL, workload__dataset__decode="1.8 s", **slow),
        "opens": small(workload__exchange=GLOBAL, **slow),
    }
    found = decisive_inputs(runs)
    assert (found[0].key, found[0].run) == (f"{PFS}.open_rate", "opens")
    widths = [each.longer - each.shorter for each in found]
    assert widths == sorted(widths, reverse=True) and min(widths) > 0.02
    assert len({each.key for each in found}) == len(found) <= 3
    assert all(each.shorter <= 0.0 <= each.longer for each in found)
    said = found[0].describe("opens")
    assert said.startswith("opens (taken: 10 1/s; -") and said.endswith(" % on opens)")


def test_check_says_both_in_a_line_and_in_json(capsys):
    # loaders bind: a batch of 32 takes 4 workers 160 ms
    values = (
        "sweep={}",
        f"workload.exchange={GLOBAL}",
        "epochs=1",
        "workload.dataset.decode=20 ms",
    )
    words = [word for value in values for word in ("--set", value)]
    assert main(["check", "quickstart", *words]) == 0
    said = capsys.readouterr().out
    assert "Inputs without effect here: " in said
    assert "ssd.read_bandwidth" in said
    assert "neither measured nor from a data sheet" in said
    assert main(["check", "quickstart", *words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert "cluster.ssd.read_bandwidth" in {idle["key"] for idle in row["idle_inputs"]}
    assert len(row["decisive_inputs"]) <= 3


NEW = (
    "--hosts 20 --gpus 4 --accelerator h100 --hcas 2 --ports 64 --taper 2 --samples 900000"
    " --sample-size '300 kB' --batch-size 32 --batch-time '60 ms' --gradients '400 MB'"
    " --ways local,partial-0.2 --pfs-opens 9k/s --ssd-read '5 GB/s'"
)


def test_new_says_which_answers_change_nothing_and_what_decides(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "mine", *shlex.split(NEW)]) == 0
    idle, decisive = [
        line
        for line in capsys.readouterr().err.splitlines()
        if " here: " in line or "depend most" in line
    ]
    assert "--taper 2" in idle
    assert "--pfs-opens 9k/s" in idle
    assert "--ssd-read" not in idle
    assert "--decode" in decisive
    assert "--batch-time" not in decisive


@pytest.mark.parametrize(
    ("values", "idle"),
    [
        # 8 links up of 10 GB/s; the servers of the file system are to have half of that
        ({"cluster__parallel_file_system__read_bandwidth": "40 GB/s"}, True),
        ({"cluster__parallel_file_system__read_bandwidth": "40.1 GB/s"}, False),
        ({"cluster__parallel_file_system__write_bandwidth": "40.1 GB/s"}, False),
        ({"cluster__parallel_file_system__write_bandwidth": "39 GB/s"}, True),
        # hosts anywhere are on several leaves; faults may be of any cable
        ({"cluster__placement": "scattered"}, False),
        ({"faults": [{"what": "h0001.ssd", "at": "1 s", "rate": 0.5}]}, False),
        ({"world_size": 17}, False),
        ({"world_size": 16}, True),
        ({"world_size": 1}, True),
    ],
)
def test_a_taper_is_idle_where_what_goes_up_has_twice_the_room(values, idle):
    assert (TAPER in keys(it=tree(workload__exchange=GLOBAL, **values))) == idle


def test_a_network_without_a_taper_has_no_idle_one():
    assert TAPER not in keys(it=small())


@pytest.mark.parametrize(
    ("values", "idle"),
    [
        ({}, True),
        ({"cluster__host__gpus": 2}, False),
        ({"workload__exchange": GLOBAL}, True),
        ({"world_size": 1, "cluster__host__gpus": 2}, True),
    ],
)
def test_links_of_gpus_are_idle_where_each_host_has_one_rank(values, idle):
    assert ("cluster.host.nvlink_bandwidth" in keys(it=small(**values))) == idle


@pytest.mark.parametrize(
    ("values", "idle"),
    [
        # what is staged comes over the network
        ({}, False),
        ({"workload__staging": {"source": "object_store"}}, True),
        ({"workload__exchange": "global_shuffle:source=object_store"}, False),
        ({"workload__staging": {"source": "object_store"}, "world_size": 2}, False),
        (
            {
                "workload__staging": {"source": "object_store"},
                "workload__checkpoint": {"every": 5},
            },
            False,
        ),
        (
            {
                "workload__staging": {"source": "object_store"},
                "workload__checkpoint": {"every": 5, "to": "ssd"},
            },
            True,
        ),
    ],
)
def test_links_are_idle_where_one_host_reads_nothing_over_them(values, idle):
    store = {"latency": "1 ms"}
    alone = {"world_size": 1, "cluster__object_store": store}
    assert (LINK in keys(it=small(**alone | values))) == idle


@pytest.mark.parametrize(
    ("values", "idle"),
    [
        ({"epochs": 1}, True),
        ({"epochs": 2}, False),
        ({"epochs": 2, "workload__exchange": GLOBAL}, False),
        ({"epochs": 2, "workload__exchange": "global_shuffle:source=object_store"}, True),
        # from a memory nobody asks
        ({"epochs": 2, "workload__staging": {"target": "memory"}}, False),
        ({"epochs": 1, "workload__staging": {"target": "memory"}}, False),
    ],
)
def test_page_caches_are_idle_where_no_file_is_read_twice(values, idle):
    scenario = small(cluster__object_store={"latency": "1 ms"}, **values)
    assert ("cluster.memory.page_cache" in keys(it=scenario)) == idle


def test_checkpoints_that_are_drained_use_the_ssd_and_the_file_system():
    """A taper is not idle where they go up, beside a file system of 80 GB/s."""
    local = {"workload__exchange": "local_shuffle", "workload__staging": {"source": "object_store"}}
    local |= {"cluster__object_store": {"latency": "1 ms"}}
    local |= {"cluster__parallel_file_system__read_bandwidth": "80 GB/s"}
    saved = {"workload__checkpoint": {"every": 5, "to": "ssd", "drain": "pfs"}}
    assert TAPER in keys(it=tree(**local))
    assert TAPER not in keys(it=tree(**local, **saved))
    of_memory = saved["workload__checkpoint"] | {"to": "memory", "drain": "object_store"}
    drained = small(
        workload__exchange=GLOBAL,
        workload__checkpoint=of_memory,
        **{"cluster__object_store": {"latency": "1 ms"}},
    )
    assert f"{SSD}.write_bandwidth" in keys(it=drained)


def test_nothing_is_said_beside_jobs_and_traffic_of_others():
    assert keys(it=small(background=[{"kind": "uniform", "load": 0.1}])) == set()
    assert keys() == set()
    # reasons are those of the run on the most ranks
    few, many = small(world_size=1), small(world_size=8)
    assert {idle.key for idle in idle_inputs({"a": few, "b": many})} == keys(a=few) & keys(b=many)
