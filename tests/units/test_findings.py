"""Values that are probably not meant: which are looked at, and from where on one is far."""

from typing import Any

import pandas as pd
import pytest

from simshuffle.job.plan.findings import (
    USUAL,
    SlowCables,
    UsualRange,
    _used_at,
    slow_cable_facts,
    warnings,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.units import Dimension
from tests.small import small

GLOBAL = "global_shuffle"
SENDING = {"kind": "partial_local_shuffle", "exchange_fraction": 0.5}
FOUR = {"kind": "fat_tree", "levels": 2, "arity": 2, "link_bandwidth": "10 GB/s"}
"""h0000 and h0001 on leaf.0, two more on leaf.1, two spines."""
LAYERS = {"parameters": [40_000_000, 30_000_000, 20_000_000, 10_000_000], "backward": [8, 6, 4, 2]}


def paths(scenario: Scenario) -> list[str]:
    return [problem.path for problem in warnings(scenario)]


def remedy(key: str, value: str, **values: Any) -> str:
    """The remedy that a value of a key has, without which nothing is warned of."""
    found = warnings(small(**values, **{key.replace(".", "__"): value}))
    return next(problem.remedy for problem in found if problem.path == key)


def test_a_value_is_far_beyond_the_range_by_its_factor():
    near = UsualRange(10.0, 200.0, Dimension.SECONDS, 4.0).is_near
    assert [near(value) for value in (2.4, 2.5, 800.0, 801.0)] == [False, True, True, False]
    assert UsualRange(10.0, 10.0, Dimension.SECONDS).is_near(100.0)


def test_the_value_that_was_likely_meant_is_named():
    link = "cluster.topology.link_bandwidth"
    # 9.7 to 50 GB/s, three times as much is near: bits, or a prefix
    assert "50 GB/s" in remedy(link, "400 GB/s")
    assert "12.5 GB/s" in remedy(link, "12.5 MB/s")
    assert remedy(link, "1 B/s") == "Check its unit."
    # 1.437 s at most: 5 s of a thousandth is near, and 5 ms of a millionth is within
    forward = "workload.model.accelerators.v100-sxm2-16gb.forward"
    text = remedy(forward, "5000 s")
    assert text.startswith("Write 5 ms if")
    assert text.endswith("It is the time of one sample, not of a batch.")


FAR = {
    # far, and the values beside which it counts or does not
    "cluster.parallel_file_system.read_bandwidth": (
        "1 B/s",
        [{}, {"workload__exchange": GLOBAL}],
        [{"workload__exchange": "global_shuffle:source=object_store"}],
    ),
    "cluster.parallel_file_system.open_rate": (
        "1 /s",
        [{"workload__exchange": GLOBAL}, {"workload__staging": {"format": "files"}}],
        [{}],
    ),
    "cluster.parallel_file_system.latency": (
        "1 s",
        [{"workload__exchange": GLOBAL}, {"workload__staging": {"format": "files"}}],
        [{}, {"workload__staging": {"format": "files", "source": "object_store"}}],
    ),
    "cluster.ssd.latency": (
        "1 s",
        [{}],
        [{"workload__exchange": GLOBAL}, {"workload__staging": {"target": "memory"}}],
    ),
    "cluster.topology.cable_latency": ("1 s", [{}], [{"world_size": 1}]),
    "cluster.host.nvlink_bandwidth": ("1 B/s", [{"cluster__host__gpus": 2}], [{}]),
    "cluster.message_passing.latency": ("1 s", [{"workload__exchange": SENDING}], [{}]),
    "workload.dataset.encode": ("1 s", [{"workload__exchange": SENDING}], [{}]),
    "workload.dataset.decoded_size.mean": ("1 TB", [{"workload__exchange": SENDING}], [{}]),
}


@pytest.mark.parametrize("key", FAR)
def test_a_far_value_is_warned_of_where_a_run_uses_it(key):
    value, used, unused = FAR[key]
    store = {"latency": "10 ms"}
    for beside, count in [(beside, 1) for beside in used] + [(beside, 0) for beside in unused]:
        values = {key.replace(".", "__"): value, **beside}
        assert paths(small(**values, cluster__object_store=store)).count(key) == count, beside


def test_small_scenarios_have_only_what_is_usual():
    assert set(FAR) < {key.replace("NAME", "v100-sxm2-16gb") for key in USUAL}
    assert paths(small(workload__exchange=SENDING)) == []


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        # eight samples of 0.375 s, what is fixed, and shards of 4 samples
        ({"forward": "0.125 s", "backward": "0.25 s"}, False),
        ({"forward": "0.125 s", "backward": "0.25 s", "fixed": "1 ms"}, True),
        ({"forward": "0.125 s", "backward": "0.26 s"}, True),
        ({"forward": "0.125 s", "backward": "0.5 s", "num_samples": 32}, False),
        ({"forward": "0.125 s", "backward": "0.7 s", "num_samples": 32}, True),
    ],
)
def test_long_steps_are_asked_about(values, warned):
    times = dict(values)
    samples = times.pop("num_samples", 800)
    scenario = small(
        workload__local_batch_size=8,
        workload__dataset__num_samples=samples,
        workload__model={
            "name": "slow",
            "gradient_size": "100 MB",
            "accelerators": {"v100-sxm2-16gb": times},
        },
    )
    found = paths(scenario)
    assert ("workload.model.accelerators.v100-sxm2-16gb.forward" in found) == warned
    assert ("workload.local_batch_size" in found) == (samples == 32)


@pytest.mark.parametrize(("gradient", "warned"), [("401 MB", False), ("403 MB", True)])
def test_a_gradient_that_misses_its_layers_is_asked_about(gradient, warned):
    """100 million parameters of 4 B; half a percent is no miss."""
    model = {
        "name": "four layers",
        "gradient_size": gradient,
        "layers": LAYERS,
        "accelerators": {"v100-sxm2-16gb": {"forward": "1 ms"}},
    }
    found = warnings(small(workload__model=model))
    assert [each.path for each in found] == ["workload.model.gradient_size"] * warned
    if warned:
        assert "+0.8%" in found[0].rule or "+0.7%" in found[0].rule


@pytest.mark.parametrize(("std", "warned"), [("1 MB", 0), ("1.01 MB", 1)])
def test_sizes_that_spread_over_ten_times_their_mean_are_asked_about(std, warned):
    scenario = small(workload__dataset__sample_size__std=std)
    assert paths(scenario) == ["workload.dataset.sample_size.std"] * warned


def test_a_key_that_is_far_is_not_odd_as_well():
    """Steps of 20 s a sample are both."""
    forward = "workload.model.accelerators.v100-sxm2-16gb.forward"
    assert paths(small(**{forward.replace(".", "__"): "20 s"})).count(forward) == 1


# ------------------------------------------------------------------- where a measured value is used

ALLREDUCE = {"world_size": 8, "hosts": 4, "message_size": 102228128.0}
FILES = {"clients": 8, "file_size": 1e5}


@pytest.mark.parametrize(
    ("key", "values", "used"),
    [
        ("workload.allreduce.inter_host_bus_bandwidth", {}, ALLREDUCE),
        ("workload.allreduce.intra_host_latency", {}, ALLREDUCE),
        # of several hosts the bandwidth between them binds; of one there is none between hosts
        ("workload.allreduce.intra_host_bus_bandwidth", {}, {}),
        ("workload.allreduce.intra_host_bus_bandwidth", {"world_size": 2}, "one host"),
        ("workload.allreduce.inter_host_latency", {"world_size": 2}, {}),
        ("workload.allreduce.intra_host_latency", {"world_size": 1}, {}),
        ("cluster.parallel_file_system.open_rate", {}, FILES),
        ("cluster.parallel_file_system.latency", {}, {"file_size": 1e5}),
        ("cluster.ssd.read_bandwidth", {}, {"clients": 2, "file_size": 1e5}),
        ("workload.model.accelerators.A100.forward", {}, {}),
        (
            "workload.model.accelerators.v100-sxm2-16gb.forward",
            {},
            {"world_size": 8, "hosts": 4, "local_batch_size": 10},
        ),
        ("cluster.message_passing.latency", {}, {}),
    ],
)
def test_a_measured_value_is_used_at_what_the_run_has(key, values, used):
    """8 ranks on 4 hosts."""
    expected = used if used != "one host" else ALLREDUCE | {"world_size": 2, "hosts": 1}
    assert _used_at(small(cluster__host__gpus=2, **values), key) == expected


@pytest.mark.parametrize(
    ("fraction", "at_once", "samples"),
    [
        (0.5, 1, 1),
        (0.5, 2, 2),
        (0.5, 8, 5),  # half of a batch of ten
        (0.05, 8, 1),  # half a sample an iteration: one in each second
        (0.5, "iteration", 5),
        (0.05, "iteration", 0.5),
    ],
)
def test_a_message_has_the_samples_of_its_schedule(fraction, at_once, samples):
    schedule = {
        "samples_per_message": at_once,
        "partner_lifetime": "iteration",
        "payload": "decoded",
    }
    exchange = {"kind": "partial_local_shuffle", "exchange_fraction": fraction}
    scenario = small(workload__exchange=exchange | {"schedule": schedule})
    used = _used_at(scenario, "cluster.message_passing.stream_bandwidth")
    assert used == pytest.approx({"message_size": samples * 500e3})


# ------------------------------------------------------------------------------------- slow cables


def test_slow_cables_are_counted_by_the_links_that_are_used():
    """Of 8 cables of a tree, and two of the file system that are not counted, two are slow."""
    faults = {"leaf.0>spine.0": 0.5, "leaf.1>h0003": 0.25}
    cluster = small(cluster__topology=FOUR, world_size=4, cluster__faults=faults).cluster
    cables = SlowCables(cluster)
    nothing = {"cables": 8, "slow": 2, "used": 0, "names": [], "peak": 0.0, "mean": 0.0}
    assert cables.facts() == {"slow_cables": nothing}
    columns = ["link", "peak_utilisation", "mean_utilisation"]
    fast = pd.DataFrame([["leaf.0>h0000", 1.0, 0.9]], columns=columns)
    cables.note_carried(fast)
    assert cables.facts() == {"slow_cables": nothing}
    # both directions of a cable are one; the largest of all epochs counts
    for peak, mean in ((0.4, 0.3), (0.2, 0.1)):
        rows = [
            ["h0003>leaf.1", peak, mean / 2],
            ["leaf.1>h0003", peak / 2, mean],
            ["leaf.0>h0000", 1.0, 0.9],
        ]
        cables.note_carried(pd.DataFrame(rows, columns=columns))
    used = {"used": 1, "names": ["h0003>leaf.1"], "peak": 0.4, "mean": 0.3}
    assert cables.facts() == {"slow_cables": nothing | used}
    cables.use(["spine.0>leaf.0", "leaf.0>h0000"])
    names = cables.facts()["slow_cables"]["names"]
    assert names == ["spine.0>leaf.0", "h0003>leaf.1"]  # in the order of cables


@pytest.mark.parametrize(
    ("world_size", "exchange", "used"),
    [
        (4, "local_shuffle", True),  # between hosts of two leaves
        (2, "local_shuffle", False),
        (2, GLOBAL, True),  # from the file system, above the spines
        (1, "local_shuffle", False),
    ],
)
def test_cables_of_routes_are_in_use(world_size, exchange, used):
    scenario = small(
        cluster__topology=FOUR,
        world_size=world_size,
        cluster__faults={"leaf.0>spine.0": 0.5, "leaf.0>spine.1": 0.5},
        workload__exchange=exchange,
        workload__dataset__num_samples=80,
    )
    facts = slow_cable_facts(scenario)["slow_cables"]
    assert (facts["used"] > 0, facts["peak"], facts["mean"]) == (used, 0.0, 0.0)


def test_a_network_without_faults_has_no_slow_cables():
    assert slow_cable_facts(small()) == SlowCables(small().cluster).facts() == {}
