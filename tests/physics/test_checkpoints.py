"""Checkpoints, worked out by hand: how large, how long, what waits for them, what they slow down,
and what a watchdog makes of them.

8 hosts with one GPU on one switch of 10 GB/s, whose file system moves 4 GB/s, without randomness;
a state of 8 GB. Laws and sources: docs/failures.md.
"""

import itertools
from typing import Any

import numpy as np
import pytest

from simshuffle.fabric.network import Fluid
from simshuffle.job.lowering.checkpoints import CheckpointTransfers
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.checkpoint_bounds import (
    copy_seconds,
    drain_seconds,
    held_nbytes,
    put_requests,
    restore_seconds,
    ring_nbytes,
    save_resources,
    save_seconds,
    save_size,
    stall_seconds,
    state_nbytes,
    training_seconds,
    watchdog_waits,
)
from simshuffle.job.plan.checkpoint_findings import checkpoint_facts, checkpoint_warnings
from simshuffle.job.plan.effort import expected_packets
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.simulate import simulate
from simshuffle.job.sim.simulation import Simulation, own_machine
from simshuffle.report import report
from simshuffle.report.timeline import Timeline
from tests.explicit import finish_times
from tests.small import small

OPEN = 1e-3
"""s of opening a file: the latency of the file system, which does 40 k/s."""
MACHINE: dict[str, Any] = {
    "cluster__host__pcie_bandwidth": "16 GB/s",
    "cluster__host__cores": 8,
    "cluster__ssd__read_bandwidth": "4 GB/s",
    "cluster__ssd__write_bandwidth": "2 GB/s",
    "cluster__memory__bandwidth": "100 GB/s",
    "cluster__parallel_file_system__read_bandwidth": "4 GB/s",
    "cluster__parallel_file_system__open_rate": "40 k/s",
    "cluster__parallel_file_system__latency": "1 ms",
    "cluster__parallel_file_system__link_latency": "0 s",
    "workload__local_batch_size": 1,
    "workload__dataset__decode": "0 s",
}


def saving(checkpoint: dict[str, Any], **values: Any) -> Scenario:
    """A scenario with that checkpoint after every 50 of 100 iterations, which no core holds up."""
    of = {"every": 50, "state": "8 GB", "serialise": "1 TB/s", **checkpoint}
    if "period" in of:
        of.pop("every")
    return small(**{**MACHINE, "workload__checkpoint": of, **values})


def stalls(timeline: Timeline) -> list[float]:
    """The longest that a rank waits for each save (s)."""
    rows = timeline.phases[timeline.phases["phase"] == "checkpoint"]
    lasting = (rows["end_s"] - rows["start_s"]).groupby([rows["epoch"], rows["iteration"]])
    return lasting.max().tolist()


def carried(timeline: Timeline, tier: str) -> float:
    """Bytes over all links of a kind."""
    return float(timeline.links.loc[timeline.links["tier"] == tier, "nbytes"].sum())


# ---------------------------------------------------------------------------------------- the size


@pytest.mark.parametrize(
    ("gradient", "parallelism", "each"),
    [
        ("4 GB", {"kind": "data"}, 8),
        ("4 GB", {"kind": "data", "optimiser": "sgd"}, 4),
        ("4 GB", {"kind": "data", "optimiser": "adam"}, 12),
        ("2 GB", {"kind": "data", "optimiser": "adam", "precision": "mixed"}, 14),
    ],
)
def test_a_parameter_takes_its_weight_the_optimiser_and_a_copy(gradient, parallelism, each):
    """1 G parameters: weights of 4 or 2 B, 4 B for each value of the optimiser, and an FP32 copy
    where weights have 2 B (arXiv 1910.02054, 3.1, without gradients)."""
    model = {
        "name": "billion",
        "gradient_size": gradient,
        "num_parameters": 10**9,
        "accelerators": {"V100": {"forward": "1 ms"}},
    }
    scenario = small(
        workload__model=model,
        workload__parallelism=parallelism,
        workload__checkpoint={"every": 1},
        **{"cluster__host__accelerator": "V100"},
    )
    assert state_nbytes(scenario.workload) == pytest.approx(each * 1e9, rel=1e-12)
    given = scenario.with_values({"workload.checkpoint.bytes_per_parameter": 3})
    assert state_nbytes(given.workload) == pytest.approx(3e9, rel=1e-12)


@pytest.mark.parametrize(("stage", "held"), [(1, 4e9 + 4e9 / 8), (2, 4e9 + 4e9 / 8), (3, 1e9)])
def test_zero_holds_a_part_of_the_state(stage, held):
    """4 GB of weights and 4 GB of momentum on 8 ranks: the optimiser's values in 8 parts, at stage
    3 the weights too."""
    scenario = saving(
        {"layout": "sharded"},
        workload__parallelism={"kind": "sharded_data", "stage": stage},
        workload__model="resnet50",
    )
    workload = scenario.workload
    model = workload.model.model_copy(update={"gradient_size": 4e9})
    scenario = scenario.model_copy(
        update={"workload": workload.model_copy(update={"model": model})}
    )
    assert held_nbytes(scenario) == pytest.approx(held, rel=1e-12)
    assert save_size(scenario).total == pytest.approx(8 * held, rel=1e-12)


# -------------------------------------------------------------------------------------- the layouts

TO_PFS = [
    # one rank writes 8 GB: the servers' 4 GB/s, or its client's 1 GB/s, or its cable's 10 GB/s
    ("whole", {}, 2.0, 8e9),
    ("whole", {"client_bandwidth": "1 GB/s"}, 8.0, 8e9),
    ("whole", {"read_bandwidth": "1 TB/s"}, 0.8, 8e9),
    ("whole", {"read_bandwidth": "1 TB/s", "write_bandwidth": "2 GB/s"}, 4.0, 8e9),
    # eight write 8 GB each; or 1 GB each
    ("sharded", {}, 16.0, 64e9),
    ("sharded", {"client_bandwidth": "1 GB/s", "read_bandwidth": "1 TB/s"}, 8.0, 64e9),
    ("deduplicated", {}, 2.0, 8e9),
    ("deduplicated", {"client_bandwidth": "200 MB/s"}, 5.0, 8e9),
    # of 4 GB/s other users take half
    ("deduplicated", {"background_load": 0.5}, 4.0, 8e9),
]


@pytest.mark.parametrize(("layout", "pfs", "save", "total"), TO_PFS)
def test_a_save_takes_as_long_as_its_slowest_resource(layout, pfs, save, total):
    """The file is opened, then its bytes go; all ranks wait until all is written."""
    more = {f"cluster__parallel_file_system__{key}": value for key, value in pfs.items()}
    scenario = saving({"layout": layout}, **more)
    assert save_seconds(scenario) == pytest.approx(OPEN + save, rel=1e-12)
    assert stall_seconds(scenario) == pytest.approx(OPEN + save, rel=1e-12)
    timeline = simulate(scenario)
    assert stalls(timeline) == pytest.approx([OPEN + save] * 2, rel=1e-9)
    rows = timeline.phases[timeline.phases["phase"] == "checkpoint"]
    assert rows["nbytes"].sum() == pytest.approx(2 * total, rel=1e-12)
    tier = "pfs.write" if "write_bandwidth" in pfs else "pfs.bandwidth"
    assert carried(timeline, tier) == pytest.approx(2 * total, rel=1e-12)
    gradients = carried(simulate(small(**MACHINE)), "pcie_out")
    assert carried(timeline, "pcie_out") == pytest.approx(2 * total + gradients, rel=1e-12)


def test_a_core_serialises_and_two_share_a_slot():
    """1 GB/s a core: 8 s. On hosts with two GPUs behind one slot of 16 GB/s two copies of 8 GB take
    1 s; and six of them on two cores three times as long as one."""
    assert save_seconds(saving({"serialise": "1 GB/s"})) == pytest.approx(8.0)
    pair = {
        "cluster__host__gpus": 2,
        "cluster__host__pcie_slots": 1,
        "cluster__host__hcas": 1,
        "cluster__ssd__write_bandwidth": "1 TB/s",
    }
    scenario = saving({"layout": "sharded", "to": "ssd"}, **pair)
    assert save_seconds(scenario) == pytest.approx(1.0)
    assert stalls(simulate(scenario)) == pytest.approx([1.0] * 2, rel=1e-9)
    six = {**pair, "cluster__host__gpus": 6, "cluster__host__cores": 2, "world_size": 6}
    scenario = saving({"layout": "sharded", "to": "ssd", "serialise": "4 GB/s"}, **six)
    assert save_seconds(scenario) == pytest.approx(6.0)
    assert stalls(simulate(scenario)) == pytest.approx([6.0] * 2, rel=1e-9)


# ----------------------------------------------------------------------- resource by resource

UNEVEN: dict[str, Any] = {
    "cluster__topology__hosts": 5,
    "cluster__topology__hcas_per_host": 2,
    "cluster__host__gpus": 4,
    "cluster__host__hcas": 2,
    "cluster__host__pcie_slots": 1,
    "cluster__host__cores": 3,
    "cluster__parallel_file_system__open_rate": "5 k/s",
    "cluster__parallel_file_system__write_bandwidth": "5 GB/s",
    "cluster__parallel_file_system__client_bandwidth": {"points": {1: "9 GB/s", 3: "3 GB/s"}},
    # a request is tried 1.25 times: 12.5 ms, and 2.5 between them
    "cluster__object_store": {
        "latency": "10 ms",
        "retry_share": 0.2,
        "retry_delay": "10 ms",
        "connection_bandwidth": "100 MB/s",
        "bandwidth": "20 GB/s",
        "host_bandwidth": "8 GB/s",
        "request_rate": "1 k/s",
        "prefixes": 3,
    },
    "world_size": 10,
}
"""10 ranks on 3 hosts of 4 GPUs, one slot and two HCAs; three cores serialise for four ranks."""


def uneven(checkpoint: dict[str, Any], **values: Any) -> Scenario:
    return saving({"layout": "sharded", "serialise": "4 GB/s", **checkpoint}, **UNEVEN | values)


# 8 GB each: four over a slot of 16 GB/s, four on three cores
COPY, CORES = 4 * 8 / 16, 4 / 3 * 8 / 4
# 954 parts of 8 MiB, one request before and one after; ten wait at once, or 3 k/s bind
REQUESTS = max(956 / 10 * 15e-3, 10 * 956 * 1.25 / 3e3)


@pytest.mark.parametrize(
    ("to", "seconds"),
    [
        ("memory", {"memory": 32 / 100}),
        ("ssd", {"cores that serialise": CORES, "SSD": 32 / 2}),
        (
            "pfs",
            {
                "cores that serialise": CORES,
                # ten files are opened first, 5 k/s
                "PFS bandwidth": 2e-3 + 80 / 5,
                "PFS client": 2e-3 + 32 / 3,
                "HCAs": 2e-3 + 2 * 8 / 10,
            },
        ),
        (
            "object_store",
            {
                "cores that serialise": CORES,
                "store requests": REQUESTS,
                "store bandwidth": REQUESTS + 80 / 20,
                "store hosts": REQUESTS + 32 / 8,
                "store connections": REQUESTS + 8 / (10 * 0.1),
            },
        ),
    ],
)
def test_each_resource_takes_its_part_of_a_save(to, seconds):
    """A synchronous save takes as long as the slowest; an asynchronous one copies first."""
    scenario = uneven({"to": to})
    assert save_resources(scenario) == pytest.approx({"PCIe": COPY, **seconds})
    assert save_seconds(scenario) == pytest.approx(max(COPY, *seconds.values()))
    assert copy_seconds(scenario) == COPY
    behind = uneven({"to": to, "mode": "asynchronous"})
    assert save_seconds(behind) == pytest.approx(COPY + max(seconds.values()))


def test_of_one_file_one_rank_shares_nothing():
    resources = save_resources(uneven({"layout": "whole", "to": "ssd"}))
    expected = {"PCIe": 0.5, "cores that serialise": 2.0, "SSD": 4.0}
    assert resources == pytest.approx(expected)


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({"to": "ssd", "drain": "pfs"}, 2e-3 + 80 / 5),
        ({"to": "ssd", "drain": "object_store"}, REQUESTS + 8 / 1),
        # what is in memory is serialised while it is drained
        ({"to": "memory", "drain": "pfs", "serialise": "500 MB/s"}, 4 / 3 * 8 / 0.5),
        ({"to": "ssd", "drain": "pfs", "serialise": "500 MB/s"}, 2e-3 + 80 / 5),
        ({"to": "pfs"}, 0.0),
    ],
)
def test_a_drain_takes_as_long_as_its_slowest_resource(values, seconds):
    assert drain_seconds(uneven(values)) == pytest.approx(seconds)
    slow = uneven(values, cluster__ssd__read_bandwidth="1 GB/s")
    assert drain_seconds(slow) == pytest.approx(32.0 if values["to"] == "ssd" else seconds)


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        # servers of 4 GB/s; 32 GB of a host from its SSD of 4 GB/s; cores that read them back
        ({"to": "pfs"}, 2e-3 + 80 / 4),
        ({"to": "object_store"}, REQUESTS + 8 / 1),
        ({"to": "ssd"}, 8.0),
        ({"to": "ssd", "serialise": "1 GB/s"}, 4 / 3 * 8),
        ({"to": "memory", "serialise": "1 GB/s"}, COPY),
        # all of one file of 8 GB for each rank; 2.7 GB each of what others wrote, on a ring
        ({"to": "ssd", "layout": "whole"}, CORES),
        ({"to": "memory", "layout": "whole"}, COPY),
        ({"to": "memory", "layout": "deduplicated"}, COPY),
        ({"to": "pfs", "layout": "whole"}, 2e-3 + 80 / 4),
    ],
)
def test_a_restore_takes_as_long_as_its_slowest_resource(values, seconds):
    assert restore_seconds(uneven(values)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("layout", "nbytes"), [("whole", 8e9), ("deduplicated", 4e9), ("sharded", 0.0)]
)
def test_two_hosts_pass_on_what_the_other_lacks(layout, nbytes):
    assert ring_nbytes(saving({"layout": layout, "to": "ssd"}, world_size=2)) == nbytes
    assert ring_nbytes(saving({"layout": layout, "to": "ssd"}, world_size=1)) == 0.0


TWO_LAYERS = {"parameters": [400_000_000, 100_000_000], "backward": [1, 1]}


def test_a_file_of_several_parts_takes_two_requests_more():
    part = 8 * 2**20
    assert [put_requests(n) for n in (0, part, part + 1, 3 * part)] == [1, 1, 4, 5]


@pytest.mark.parametrize(
    ("model", "parallelism", "nbytes"),
    [
        # gradients of 4 B, or of 2, say how many parameters there are; 4 B of momentum each
        ({}, {"kind": "data"}, 0.5e9 * 8),
        ({}, {"kind": "data", "precision": "mixed"}, 1e9 * (2 + 4 + 4)),
        # or layers do
        ({"layers": TWO_LAYERS}, {"kind": "data", "optimiser": "sgd"}, 0.5e9 * 4),
    ],
)
def test_the_state_of_a_model_without_a_number_of_parameters(model, parallelism, nbytes):
    scenario = small(
        workload__model={
            "name": "unknown",
            "gradient_size": "2 GB",
            "accelerators": {"v100-sxm2-16gb": {"forward": "1 ms"}},
            **model,
        },
        workload__parallelism=parallelism,
        workload__checkpoint={"every": 1},
    )
    assert state_nbytes(scenario.workload) == pytest.approx(nbytes)


def test_iterations_between_saves_take_what_they_are_bound_to():
    scenario = saving({"every": 30})
    assert training_seconds(scenario) == pytest.approx(0.3 * bounds(scenario).epoch)
    assert training_seconds(saving({"period": "7 s"})) == 7.0


def test_a_drain_and_the_rest_of_a_save_go_on_beside_the_training():
    """8 GB of each rank are copied in 2 s, written in 16 and drained in 16; 10 s are trained."""
    values = {"to": "ssd", "drain": "pfs", "period": "10 s"}
    behind = uneven({**values, "mode": "asynchronous"})
    assert stall_seconds(behind) == pytest.approx(COPY + (16 + 2e-3) + 16 - 10)
    assert stall_seconds(uneven(values)) == pytest.approx(16 + (16 + 2e-3) - 10)
    seldom = uneven({**values, "mode": "asynchronous", "period": "60 s"})
    assert stall_seconds(seldom) == COPY


def test_the_facts_of_checkpoints():
    """A restart reads 8 GB for each of 8 ranks from servers of 4 GB/s."""
    values = {"layout": "deduplicated", "to": "ssd", "drain": "pfs", "period": "500 ms"}
    facts = checkpoint_facts(saving(values))
    assert facts.pop("kind")
    assert facts.pop("bound_by") == "SSD"
    assert facts.pop("killed") is False
    assert facts == pytest.approx(
        {
            "state_nbytes": 8e9,
            "written_nbytes": 8e9,
            "files": 8,
            "training_s": 0.5,
            "save_s": 0.5,
            "drain_s": 2.0 + OPEN,
            "stall_s": 2.0 + OPEN,
            "share": (2.0 + OPEN) / (2.5 + OPEN),
            "restore_s": 16.0 + OPEN,
        }
    )


@pytest.mark.parametrize(
    ("values", "paths"),
    [
        # a copy of 2 s, 16 to write and 16.002 to drain; only the last where all wait for a save
        ({"mode": "asynchronous", "period": "34.1 s"}, []),
        ({"mode": "asynchronous", "period": "33.9 s"}, ["period"]),
        ({"period": "16.1 s"}, []),
        ({"period": "15.9 s"}, ["period"]),
        ({"every": 2}, ["every"]),
        # 32 GB of a host
        ({"period": "60 s", "capacity": "31 GB"}, ["to"]),
        ({"period": "60 s", "capacity": "33 GB"}, []),
        ({"period": "60 s", "capacity": "7 GB", "layout": "whole"}, ["to"]),
        ({"period": "60 s", "capacity": "9 GB", "layout": "whole"}, []),
    ],
)
def test_what_is_probably_not_meant(values, paths):
    values = dict(values)
    capacity = values.pop("capacity", "1 TB")
    scenario = uneven({"to": "ssd", "drain": "pfs", **values}, cluster__ssd__capacity=capacity)
    warned = [each.path for each in checkpoint_warnings(scenario)]
    assert warned == [f"workload.checkpoint.{path}" for path in paths]


# ------------------------------------------------------------------------- what goes on beside it


def test_an_ssd_is_drained_in_the_background():
    """1 GB for each host: 0.5 s at 2 GB/s, which the loop waits for. Draining 8 GB takes 2 s of the
    servers, and the next save waits for what is left of it after 0.5 s of training."""
    values = {"layout": "deduplicated", "to": "ssd", "drain": "pfs", "period": "500 ms"}
    scenario = saving(values, workload__dataset__num_samples=8000)
    assert save_seconds(scenario) == pytest.approx(0.5)
    assert drain_seconds(scenario) == pytest.approx(2.0 + OPEN)
    assert stall_seconds(scenario) == pytest.approx(2.0 + OPEN)
    timeline = simulate(scenario)
    first, *others = stalls(timeline)
    assert first == pytest.approx(0.5, rel=1e-9)
    # the save begins after the iteration in which the period is over, which takes 14 ms
    assert all(2.0 + OPEN - 14e-3 < each <= 2.0 + OPEN + 1e-9 for each in others)
    assert len(others) > 2
    assert carried(timeline, "pfs.bandwidth") == pytest.approx(8e9 * len(others), rel=1e-9)


def test_an_asynchronous_save_stops_the_loop_for_its_copy_alone():
    """8 GB over PCIe take 0.5 s, 1 GB each 62.5 ms; writing takes 2 s beside the training, and the
    next copy waits until it is done."""
    whole = saving({"mode": "asynchronous", "period": "10 s"})
    assert save_seconds(whole) == pytest.approx(0.5 + OPEN + 2.0)
    assert stall_seconds(whole) == pytest.approx(0.5)
    often = saving(
        {"mode": "asynchronous", "layout": "deduplicated", "period": "1 s"},
        workload__dataset__num_samples=8000,
    )
    assert stall_seconds(often) == pytest.approx(0.0625 + 1.0 + OPEN)
    first, *others = stalls(simulate(often))
    assert first == pytest.approx(0.0625, rel=1e-9)
    assert all(1.0635 - 14e-3 < each <= 1.0635 + 1e-9 for each in others)
    assert others


def share(write_bandwidth: str | None) -> Any:
    """When 4 GB that host 0 reads and 4 GB that host 1 writes have come, posted at once."""
    values = {"cluster__parallel_file_system__read_bandwidth": "4 GB/s"}
    if write_bandwidth:
        values["cluster__parallel_file_system__write_bandwidth"] = write_bandwidth
    scenario = small(**{**MACHINE, **values, "world_size": 2})
    resources = Resources(scenario.cluster, 2, scenario.rng("placement"), writes=True)
    of = resources.pfs_read()[0][0], resources.pfs_write_routes()[0][1]
    routes = [[int(link) for link in route if link >= 0] for route in of]
    latency = np.zeros(len(resources.links.names))
    nbytes, start = np.full(2, 4e9), np.zeros(2)
    return finish_times(resources.links.capacity, latency, routes, nbytes, start)


@pytest.mark.parametrize(
    ("write_bandwidth", "read", "write"),
    [
        (None, 2.0, 2.0),  # 2 GB/s each
        ("1 GB/s", 4 / 3, 4.0),  # 1 GB/s is written, so 3 are read
        ("8 GB/s", 1.0, 0.5),  # servers that write faster have both at once
    ],
)
def test_reads_and_writes_share_the_servers(write_bandwidth, read, write):
    assert share(write_bandwidth) == pytest.approx([read, write], rel=1e-12)


def test_a_host_reads_and_writes_over_one_cable_at_once():
    """10 GB each over a cable of 10 GB/s each way, to servers that hold nothing up: 1 s."""
    values = {"cluster__parallel_file_system__read_bandwidth": "1 TB/s", "world_size": 1}
    scenario = small(**{**MACHINE, **values})
    resources = Resources(scenario.cluster, 1, scenario.rng("placement"), writes=True)
    of = resources.pfs_read()[0][0], resources.pfs_write_routes()[0][0]
    routes = [[int(link) for link in route if link >= 0] for route in of]
    latency = np.zeros(len(resources.links.names))
    ends = finish_times(resources.links.capacity, latency, routes, np.full(2, 10e9), np.zeros(2))
    assert ends == pytest.approx([1.0, 1.0], rel=1e-12)


def test_writing_takes_of_the_bandwidth_that_loaders_read_with():
    """An epoch is bound by reading 80 GB at 4 GB/s: 20 s. 8 GB that are written beside it after
    half of it take 2 s of the servers. If these write faster than they read, nothing is shared, and
    they take no more than the copy of 62.5 ms."""
    reading: dict[str, Any] = {
        "workload__exchange": "global_shuffle:source=pfs",
        "workload__dataset__sample_size": {"mean": "100 MB", "std": "0 B"},
    }
    save = {"mode": "asynchronous", "layout": "deduplicated", "every": 51}
    faster = {"cluster__parallel_file_system__write_bandwidth": "4.1 GB/s"}
    alone = simulate(small(**{**MACHINE, **reading}))
    both, apart = simulate(saving(save, **reading)), simulate(saving(save, **reading, **faster))

    def epoch(timeline: Timeline) -> float:
        return float(report.epochs(timeline)["epoch_s"].iloc[0])

    assert epoch(alone) == pytest.approx(20.0, rel=0.03)
    assert epoch(alone) <= epoch(apart) <= epoch(alone) + 0.0625 + 1e-9
    assert carried(both, "pfs.bandwidth") == pytest.approx(88e9, rel=1e-12)
    assert carried(apart, "pfs.write") == pytest.approx(8e9, rel=1e-12)
    assert epoch(both) - epoch(alone) == pytest.approx(2.0, abs=0.1)


# -------------------------------------------------------------------------------------- by the laws


LAYOUTS = ("whole", "sharded", "deduplicated")
PLACES = [
    *((to, drain) for to in ("memory", "ssd") for drain in ("none", "pfs", "object_store")),
    ("pfs", "none"),
    ("object_store", "none"),
]


@pytest.mark.parametrize(
    ("layout", "mode", "place"),
    [*itertools.product(LAYOUTS, ("synchronous", "asynchronous"), PLACES)],
)
def test_transfers_take_what_the_closed_forms_say(layout, mode, place):
    """Each save, drain and restore alone on the machine. Ranks fill the hosts, and what they share
    they share fairly. Of opening many files at once the law says the slower of rate and latency."""
    to, drain = place
    store = {"latency": "100 ms", "bandwidth": "3 GB/s", "host_bandwidth": "1 GB/s"}
    scenario = saving(
        {"layout": layout, "mode": mode, "to": to, "drain": drain, "serialise": "1 GB/s"},
        cluster__object_store={**store, "request_rate": "100 k/s"},
        cluster__host__gpus=4,
        cluster__host__pcie_slots=2,
        cluster__host__hcas=1,
        cluster__parallel_file_system__client_bandwidth="3 GB/s",
    )
    simulation = Simulation(scenario, own_machine(scenario))
    resources = simulation.resources
    transfers = CheckpointTransfers(scenario, resources)

    def alone(batches: list[Any]) -> float:
        network = resources.network(Fluid())
        for batch in filter(None, batches):
            batch.tasks["group"] = network.open_group(len(batch))
            network.post(0.0, batch)
        network.advance(np.inf)
        return float(network.now)

    waited = alone([transfers.blocking_transfers(rank) for rank in range(8)])
    behind = alone([transfers.background_transfers(rank) for rank in range(8)])
    expected = save_seconds(scenario) + drain_seconds(scenario)
    assert waited + behind == pytest.approx(expected, rel=0.02)
    if mode == "synchronous":
        assert waited == pytest.approx(max(save_resources(scenario).values()), rel=0.01)
    restored = resources.seconds_alone(transfers.restore(), Fluid())
    assert restored == pytest.approx(restore_seconds(scenario), rel=0.02)


@pytest.mark.parametrize(("layout", "seconds"), [("whole", 0.8), ("deduplicated", 0.7)])
def test_what_lies_elsewhere_goes_round_a_ring(layout, seconds):
    """All hosts but one need 8 GB of the first over a cable of 10 GB/s each; or 7 GB of seven
    others. The copy to the GPU takes 0.5 s beside it."""
    scenario = saving({"layout": layout, "to": "memory"})
    assert restore_seconds(scenario) == pytest.approx(seconds, rel=1e-9)
    resources = Simulation(scenario, own_machine(scenario)).resources
    batch = CheckpointTransfers(scenario, resources).restore()
    assert resources.seconds_alone(batch, Fluid()) == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("layout", "read"), [("whole", [8e9, 0, 0]), ("deduplicated", [3e9, 3e9, 2e9])]
)
def test_ranks_read_from_an_ssd_what_they_wrote_and_no_more(layout, read):
    """3 ranks a host: the first wrote 8 GB, or all of them 1 GB each."""
    scenario = saving({"layout": layout, "to": "ssd"}, cluster__host__gpus=3)
    resources = Simulation(scenario, own_machine(scenario)).resources
    batch = CheckpointTransfers(scenario, resources).restore()
    crossed = [(batch.routes == link).any(axis=1) for link in resources.ssd]
    assert [batch.tasks["nbytes"][rows].sum() for rows in crossed] == pytest.approx(read)


def test_a_restart_reads_the_file_for_every_rank():
    """A whole file of 8 GB leaves servers of 4 GB/s eight times: 16 s; parts of ZeRO-3 once."""
    assert restore_seconds(saving({})) == pytest.approx(16.0 + OPEN)
    parts = saving({"layout": "sharded"}, workload__parallelism={"kind": "sharded_data"})
    assert restore_seconds(parts) == pytest.approx(2.0 + OPEN)
    # each host has 1 GB, and seven more come over its cable of 10 GB/s; an SSD alone is read slower
    assert restore_seconds(saving({"layout": "deduplicated", "to": "ssd"})) == pytest.approx(0.7)
    # the first host reads all from its SSD at 4 GB/s
    assert restore_seconds(saving({"to": "ssd"})) == pytest.approx(2.0)


# ---------------------------------------------------------------------------------- when it is due


def test_iterations_are_counted_over_epochs_and_seconds_from_the_last_save():
    """100 iterations an epoch: saves after 70 and 140, that is after 40 of the second."""
    timeline = simulate(saving({"every": 70}, epochs=2))
    rows = timeline.phases[timeline.phases["phase"] == "checkpoint"]
    assert sorted(set(zip(rows["epoch"], rows["iteration"], strict=True))) == [(1, 70), (2, 40)]
    timeline = simulate(saving({"period": "200 ms"}))
    rows = timeline.phases[
        (timeline.phases["phase"] == "checkpoint") & (timeline.phases["rank"] == 0)
    ]
    apart = rows["start_s"].to_numpy()[1:] - rows["end_s"].to_numpy()[:-1]
    step = (timeline.phases["end_s"].max() - (rows["end_s"] - rows["start_s"]).sum()) / 100
    assert len(rows) > 1
    assert ((apart >= 0.2) & (apart < 0.2 + 2 * step)).all()
    scenario = saving({"period": "200 ms"})
    simulation = Simulation(scenario, own_machine(scenario))
    assert simulation.checkpoints is not None
    for now, is_due in ((0.19, False), (0.2, True)):
        simulation.clock.env.run(now)
        assert simulation.checkpoints.due(1, int(1e3 * now)) == is_due


def test_before_the_first_save_no_iterations_of_any_epoch_are_saved():
    scenario = saving({})
    checkpoints = Simulation(scenario, own_machine(scenario)).checkpoints
    assert [checkpoints.saved_iterations(epoch) for epoch in (1, 2)] == [-1, -1]


def test_an_epoch_adds_up_and_says_who_waits_for_a_checkpoint():
    """Where the first rank alone copies its state, for 0.5 s, the others wait for that at the
    allreduce: 0.5 s x 7/8 in the mean, which belongs to the checkpoint."""
    timeline = simulate(saving({"mode": "asynchronous", "every": 60}))
    table = report.breakdown(timeline)
    assert table["seconds"].sum() == pytest.approx(
        float(report.epochs(timeline)["epoch_s"].iloc[0]), rel=1e-9
    )
    by = table.set_index(["label", "cause"])["seconds"]
    assert by["CHECKPOINT", ""] == pytest.approx(0.5 / 8, rel=1e-9)
    assert by["GE+WU", "CHECKPOINT"] == pytest.approx(0.5 * 7 / 8, rel=0.01)
    assert not len(report.breakdown(simulate(small())).query("label == 'CHECKPOINT'"))


# ------------------------------------------------------------------------------------- the watchdog

SLOW = {"cluster__parallel_file_system__client_bandwidth": "230 MB/s"}


def test_a_watchdog_ends_a_job_that_waits_too_long_for_one_host():
    """302 GiB by one host at 230 MB/s take 1,410 s, and the others wait for 600 s."""
    scenario = saving({"state": "302 GiB"}, **SLOW, epochs=2)
    assert save_seconds(scenario) == pytest.approx(302 * 2**30 / 230e6, rel=1e-5)
    assert watchdog_waits(scenario) > 600
    assert checkpoint_facts(scenario)["killed"]
    assert any("ends the job" in found.rule for found in checkpoint_warnings(scenario))
    timeline = simulate(scenario)
    killed = timeline.facts["killed"][0]
    assert killed is not None
    assert (killed["epoch"], killed["iteration"], killed["rank"]) == (1, 50, 0)
    rows = timeline.phases[timeline.phases["phase"] == "checkpoint"]
    # those that write nothing had waited that long; all rows end there
    assert (rows["end_s"] - rows["start_s"]).max() == pytest.approx(600.0, rel=1e-9)
    assert timeline.phases.groupby("rank")["end_s"].max().tolist() == [killed["at_s"]] * 8
    assert rows["nbytes"].sum() == 0  # no file is whole
    assert timeline.sources["epoch"].tolist() == [1]
    assert timeline.sources["samples"].tolist() == [50 * 8]
    assert report.breakdown(timeline)["seconds"].sum() == pytest.approx(killed["at_s"], rel=1e-9)


def test_the_first_of_those_that_still_write_is_named():
    """1 GB each takes 0.5 s of an SSD of 2 GB/s, and 50 s of the two whose SSD has 1 %: those are
    late when the six others have waited for 2 s, after the 4th iteration of the second epoch."""
    slow = [{"what": f"h{host:04d}.ssd", "rate": 0.01, "at": "0 s"} for host in (2, 5)]
    saving_to_ssd = {"layout": "deduplicated", "to": "ssd", "every": 9, "watchdog": "2 s"}
    scenario = saving(saving_to_ssd, faults=slow, epochs=2, workload__dataset__num_samples=40)
    timeline = simulate(scenario)
    killed = timeline.facts["killed"][0]
    # 5 iterations an epoch
    assert (killed["epoch"], killed["iteration"]) == (2, 4)
    assert (killed["writing"], killed["rank"], killed["waited_s"]) == (2, 2, 2.0)
    rows = timeline.phases[timeline.phases["phase"] == "checkpoint"].set_index("rank")
    begin = rows["start_s"].min()
    assert killed["at_s"] == pytest.approx(begin + 0.5 + 2.0, rel=1e-9)
    assert timeline.sources["iterations"].tolist() == [5, 4]


def test_two_hosts_that_write_302_gib_take_eleven_minutes():
    """VeOmni, issue 1164: 302 GiB at 230 MB/s a host take 11 min; the law says 705 s for two hosts.
    Where both write as much nobody waits, but a watchdog of 600 s is near."""
    scenario = saving({"state": "302 GiB", "layout": "deduplicated"}, **SLOW, world_size=2)
    assert save_seconds(scenario) / 60 == pytest.approx(11.0, rel=0.08)
    assert watchdog_waits(scenario) == 0
    assert not checkpoint_facts(scenario)["killed"]
    assert any("is near" in found.rule for found in checkpoint_warnings(scenario))
    assert "killed" not in simulate(scenario).facts


def test_a_save_within_the_patience_of_the_watchdog_kills_nothing():
    """A save of 2 s; from half of the patience on the watchdog is near."""
    for patience, warned in (("4.1 s", []), ("3.9 s", ["workload.checkpoint.watchdog"])):
        paths = [each.path for each in checkpoint_warnings(saving({"watchdog": patience}))]
        assert [path for path in paths if "watchdog" in path] == warned
    assert "killed" not in simulate(saving({"watchdog": "2.1 s"})).facts
    assert "killed" in simulate(saving({"watchdog": "1.9 s"})).facts


# -------------------------------------------------------------------------------- beside the others


def test_links_are_those_of_a_run_that_saves_nothing():
    """A link for writes is the last one, and there only where writes have a speed of their own."""
    of = {key: value for key, value in MACHINE.items() if key.startswith("cluster")}
    scenario = small(**of)

    def links(writes: bool, **values: Any) -> list[str]:
        cluster = small(**of, **values).cluster
        return Resources(cluster, 8, scenario.rng("placement"), writes=writes).links.names

    other = {"cluster__parallel_file_system__write_bandwidth": "1 GB/s"}
    plain = links(False)
    assert links(True) == links(False, **other) == plain
    assert links(True, **other) == [*plain, "pfs.write"]
    assert "checkpoint" not in scenario.to_dict()["workload"]
    assert "write_bandwidth" not in scenario.to_dict()["cluster"]["parallel_file_system"]


def test_all_iterations_are_simulated_where_some_save():
    whole = small(workload__dataset__num_samples=80_000, time_tolerance=0.05)
    assert int(simulate(whole).sources["iterations_simulated"].iloc[0]) < 1000
    saves = whole.with_values({"workload.checkpoint": {"every": 300, "state": "1 GB"}})
    row = simulate(saves).sources.iloc[0]
    assert row["iterations_simulated"] == row["iterations"]
    assert "checkpoint" in row["whole_because"]


@pytest.mark.parametrize("kind", ["packet", "analytic"])
def test_saves_travel_through_any_network(kind):
    """1 GB over a cable of 10 GB/s and servers of 4 GB/s, whatever shares the cables."""
    scenario = saving({"state": "1 GB", "every": 90}, network={"kind": kind})
    assert stalls(simulate(scenario)) == pytest.approx([0.25 + OPEN], rel=0.01)


def test_packets_of_saves_are_counted_before_they_are_simulated():
    """Two saves of 8 GB in packets of 4 kB, as iterations are at least as long as their bound."""
    plain, saves = (expected_packets(of, 4e3) for of in (small(**MACHINE), saving({})))
    assert saves.pop("checkpoints") == pytest.approx(2 * 8e9 / 4e3, rel=1e-9)
    assert saves == plain
