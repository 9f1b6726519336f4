"""Values that a file may leave out, and limits of what is read: those that their sources name."""

from typing import Any

import pytest
from pydantic import ValidationError

from simshuffle.errors import TopologyError
from simshuffle.fabric.allreduce import nccl
from simshuffle.fabric.allreduce.base import Ddp, Horovod, NoOverlap, SlowHosts
from simshuffle.fabric.allreduce.dependent import Sharp, Sparse, Torus
from simshuffle.fabric.routing import Ecmp, forwarding_tables
from simshuffle.fabric.routing.forwarding_tables import ForwardingTableFile, TableRouter
from simshuffle.fabric.topology import custom
from simshuffle.workload.exchange import ExchangeSchedule, loader_shuffle, recording
from simshuffle.workload.orders.litdata import LitdataFull, LitdataWindow
from simshuffle.workload.orders.mosaicml_streams import MosaicmlStreams
from simshuffle.workload.orders.torchdata_nodes import TorchdataNodes
from tests.contracts.test_forwarding_tables import line_of_switches, tables_of_line
from tests.strategies import (
    dragonfly,
    dragonfly_plus,
    fat_tree,
    rail_optimised,
    star,
    switch_tree,
    torus_of,
)

MIB = 2**20
PACED = {
    "intra_host_latency": "1 us",
    "inter_host_latency": "1 us",
    "intra_host_bus_bandwidth": "1 GB/s",
    "inter_host_bus_bandwidth": "1 GB/s",
}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    # torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.hpp
    "DDP": (
        Ddp(kind="ddp"),
        {"bucket": 25 * MIB, "first_bucket": MIB, "hooks": 3e-3, "slowdown": 0.25, "cycle": 0},
    ),
    # docs/tensor-fusion.rst of Horovod 0.16
    "Horovod": (
        Horovod(kind="horovod"),
        {"fusion": 64 * MIB, "cycle": 5e-3, "negotiation": 50e-6, "negotiation_per_rank": 3e-6}
        | {"hooks": 0, "slowdown": 0.25},
    ),
    "no overlap": (NoOverlap(kind="none"), {"slowdown": 0, "hooks": 0, "cycle": 0}),
    "slow hosts": (SlowHosts(spread=0.1), {"quantile": 0.5}),
    "sparse": (
        Sparse(kind="sparse", selection_bandwidth="1 GB/s", **PACED),
        {"density": 0.001, "value_size": 4, "index_size": 4},
    ),
    "torus": (Torus(kind="torus", **PACED), {"hosts_per_row": 1}),
    "SHArP": (Sharp(kind="sharp", **PACED), {"radix": 18}),
    # src/graph/tuning.cc of NCCL 2.7
    "NCCL": (nccl, {"TREE_BANDWIDTH": 0.9, "PLATEAU": 1.9, "PLATEAU_NBYTES": 4096}),
    "a choice of NCCL": (
        nccl.Choice,
        {"bandwidth": 1, "base_latency": 0, "latency_factor": 1},
    ),
    "fat tree of arity": (fat_tree(2, 4), {"taper": 1, "rails": 1}),
    # 5 m and 20 m of cable at 5.2 ns/m; an SB7890 takes 90 ns
    "fat tree of ports": (switch_tree(8, 4), {"switch_latency": 90e-9, "rails": 1}),
    "rails": (
        rail_optimised(),
        {"taper": 1, "core_taper": 1, "switch_latency": 90e-9, "cable_latency": 26e-9},
    ),
    "dragonfly": (
        dragonfly(),
        {"global_cable_latency": 104e-9, "switch_latency": 90e-9, "hcas_per_host": 1},
    ),
    "Dragonfly+": (dragonfly_plus(), {"leaf_spine_links": 1, "cable_latency": 26e-9}),
    "mesh": (torus_of([4]), {"hosts_per_switch": 1}),
    "star": (star(3), {"hcas_per_host": 1}),
    # RoCE v2: source ports 49152 to 65535
    "ECMP": (Ecmp(), {"queue_pairs": 1, "ports": 16384}),
    "files of networks": (
        custom,
        {"MAX_BYTES": 32 * MIB, "MAX_LINKS": 1_000_000, "MAX_KEYS": 100},
    ),
    "files of tables": (forwarding_tables, {"MAX_BYTES": 256 * MIB}),
    "files of plans": (
        recording,
        {"FORMAT": 1, "MAX_NUMBERS": 100_000_000, "MAX_EPOCHS": 100_000},
    ),
    "loaders": (loader_shuffle, {"MAX_CHECKED_SAMPLES": 10_000_000}),
    # measured, as the schedule says
    "schedule": (
        ExchangeSchedule(),
        {"samples_per_message": 1, "read": 19e-6, "draw": 15e-9, "remove": 17e-6}
        | {"zero_buffer": 0, "partners_per_epoch": 1, "least_difference": 0},
    ),
    "LitData in whole": (LitdataFull(kind="litdata_full"), {"item_shuffle_window": 256}),
    "LitData in windows": (LitdataWindow(kind="litdata_window"), {"window": 16}),
    "streams of MosaicML": (MosaicmlStreams(kind="mosaicml_streams"), {"sampling_granularity": 1}),
    "nodes of torchdata": (TorchdataNodes(kind="torchdata_nodes"), {"steps": 100}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_left_out_has_the_value_of_its_source(name):
    made, values = CASES[name]
    for key, value in values.items():
        assert getattr(made, key) == pytest.approx(value, rel=1e-12), key


def test_protocols_of_nccl_have_the_shares_of_its_tuning_model():
    protocols = nccl.SETS["nccl_2.7"]
    assert [protocols["ll"][f"{of}_bandwidth"] for of in ("ring", "tree")] == pytest.approx(
        [0.25, 0.26316], abs=1e-5
    )
    assert [protocols["ll128"][f"{of}_bandwidth"] for of in ("ring", "tree")] == [0.92, 0.915]
    made = {name: nccl.Protocol.model_validate(values) for name, values in protocols.items()}
    assert (made["ll"].intra_host_factor, made["ll128"].intra_host_factor) == (1.8, 1.0)
    latencies = nccl.Latencies(
        **{key: "1 us" for key in nccl.Latencies.model_fields if "base" not in key}
    )
    assert (latencies.ring_base_latency, latencies.tree_base_latency) == (0, 0)


def test_switches_have_4096_ports_at_most():
    assert switch_tree(4096, 4).ports == 4096
    for make in (lambda: switch_tree(4097, 4), lambda: rail_optimised(ports=4097)):
        with pytest.raises(ValidationError):
            make()


def test_an_error_names_twenty_problems_of_tables_at_most():
    """25 destinations that leave s0 by ports without cables."""
    tables = tables_of_line()
    tables["destinations"] += [("h1", 1)] * 23
    for name, row in tables["switches"].items():
        first, second = (1, 1) if name == "s0" else row
        tables["switches"][name] = [first, second, *[first] * 23]
    with pytest.raises(TopologyError) as caught:
        TableRouter(line_of_switches(), ForwardingTableFile(**tables), "x")
    assert len(caught.value.problems) == 20
