"""Examples of every kind of record, which all contract tests share: a new topology, strategy,
algorithm or tier needs one here, and meets every test there is.

`test_examples` sees that no member of a union is missing.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import networkx as nx
import numpy as np
from pydantic import ValidationError

from simshuffle.errors import InputError
from simshuffle.fabric.allreduce import (
    HalvingDoubling,
    Hierarchical,
    Nccl,
    Nvls,
    RecursiveDoubling,
    Ring,
    Sharp,
    Sparse,
    Torus,
    Tree,
)
from simshuffle.fabric.routing import (
    Adaptive,
    DimensionOrder,
    DModK,
    Ecmp,
    MinHop,
    Minimal,
    RandomStatic,
    SModK,
    UpDown,
    Valiant,
)
from simshuffle.fabric.topology import Custom
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.job.scenario.storage import LocalSsd, Memory, ObjectStore
from simshuffle.spec.units import Dimension, format_quantity
from simshuffle.workload.exchange import (
    EpochContext,
    ExchangeSchedule,
    GlobalShuffle,
    ImportanceExchange,
    ImportancePair,
    LoaderShuffle,
    LocalShuffle,
    PairSchedule,
    PartialLocalShuffle,
    Shards,
    Strategy,
    TrainedExchange,
)
from simshuffle.workload.exchange.recording import RecordedPlans
from tests.strategies import (
    abci,
    dln,
    dragonfly,
    dragonfly_plus,
    fat_tree,
    hyperx,
    members,
    rail_optimised,
    star,
    switch_tree,
    torus_of,
)

# -------------------------------------------------------------------------------------- topologies


def as_text(graph: Any, *, multi: bool) -> Any:
    """The graph as a user would write it: quantities as text, parallel links as parallel edges or
    as ``links``."""
    out = nx.MultiGraph() if multi else nx.Graph()
    for node, data in graph.nodes(data=True):
        out.add_node(
            node, **{**data, "latency": format_quantity(data["latency"], Dimension.SECONDS)}
        )
    for a, b, data in graph.edges(data=True):
        texts = {
            "bandwidth": format_quantity(data["bandwidth"], Dimension.BANDWIDTH),
            "latency": format_quantity(data["latency"], Dimension.SECONDS),
        }
        if multi:
            out.add_edge(a, b, **texts)
        else:
            out.add_edge(a, b, **texts, links=graph.number_of_edges(a, b))
    return out


def written(graph: Any, path: Path, *, multi: bool, edges: str = "edges") -> Custom:
    """The custom topology of a graph that networkx wrote."""
    text = as_text(graph, multi=multi)
    if path.suffix == ".json":
        path.write_text(json.dumps(nx.node_link_data(text, edges=edges)))
    else:
        nx.write_graphml(text, path)
    return Custom(kind="custom", path=str(path))


SMALL_ABCI: dict[str, int] = {
    "racks": 2,
    "hosts_per_rack": 6,
    "leaf_fbb_links": 2,
    "fbb_spine_links": 2,
}
TOPOLOGIES: dict[str, Callable[[Path], Any]] = {
    "abci": lambda _: abci(),
    "abci of 2 racks": lambda _: abci(**SMALL_ABCI),
    "abci of 2 racks, opened directors": lambda _: abci(
        **SMALL_ABCI, directors={"line_ports": 4, "fabric_modules": 4}
    ),
    "fat tree of 1 level": lambda _: fat_tree(1, 5),
    "fat tree of 2 levels": lambda _: fat_tree(2, 3),
    "fat tree of 3 levels": lambda _: fat_tree(3, 3),
    "fat tree of 4 levels": lambda _: fat_tree(4, 2),
    "tapered fat tree": lambda _: fat_tree(2, 4, taper=2),
    "cut fat tree": lambda _: fat_tree(2, 4, hosts=10),
    "tapered fat tree of 3 levels": lambda _: fat_tree(3, 3, taper=3),
    "cut fat tree of 3 levels": lambda _: fat_tree(3, 3, hosts=17),
    "fat tree with rails": lambda _: fat_tree(2, 3, rails=2, hosts=8),
    "one switch for two rails": lambda _: switch_tree(12, 5, rails=2),
    "switches, tapered, two rails": lambda _: switch_tree(7, 10, taper=2, rails=2),
    "switches, parallel links": lambda _: switch_tree(8, 8, rails=2),
    "switches, 3 levels, two rails": lambda _: switch_tree(8, 20, rails=2),
    "fat tree, opened directors": lambda _: fat_tree(
        2, 4, hosts=32, directors={"line_ports": 3, "fabric_modules": 3}
    ),
    "switches, opened directors": lambda _: switch_tree(
        8, 24, taper=2, directors={"line_ports": 4, "fabric_modules": 4}
    ),
    "switches, 3 levels, rails, opened directors": lambda _: switch_tree(
        4, 7, rails=2, levels=3, directors={"line_ports": 4, "fabric_modules": 2}
    ),
    "rails, shared spines": lambda _: rail_optimised(),
    "rails, tapered, cut": lambda _: rail_optimised(taper=3, hosts=13, spines=4),
    "rails with spines of their own": lambda _: rail_optimised(spine_layout="rail"),
    "pods with spines of their own": lambda _: rail_optimised(
        spine_layout="pod", pods=3, ports=8, hosts_per_pod=4, spines=2, core_taper=2
    ),
    "rails, scale-up domains": lambda _: rail_optimised(
        hosts=14, scale_up={"hosts": 3, "bandwidth": "40 GB/s", "latency": "1 us"}
    ),
    "dragonfly": lambda _: dragonfly(),
    "dragonfly, 2 links between groups": lambda _: dragonfly(
        hosts_per_switch=1, groups=5, local_links=2, hcas_per_host=2, global_bandwidth="50 GB/s"
    ),
    "dragonfly of grids, cut": lambda _: dragonfly(
        hosts_per_switch=2,
        switches_per_group=None,
        group_shape=[3, 2],
        local_links=[1, 3],
        groups=4,
        hosts=31,
    ),
    "dragonfly of 1 group": lambda _: dragonfly(groups=1),
    "Dragonfly+": lambda _: dragonfly_plus(),
    "Dragonfly+, 2 links between groups": lambda _: dragonfly_plus(
        groups=3, leaf_switches=3, leaf_spine_links=2, hosts=10, local_bandwidth="50 GB/s"
    ),
    "Dragonfly+, not spread": lambda _: dragonfly_plus(hosts=13, spread=False),
    "Dragonfly+ of 1 group": lambda _: dragonfly_plus(groups=1),
    "torus of 2 dimensions": lambda _: torus_of([5, 4]),
    "torus of 3 dimensions": lambda _: torus_of([4, 3, 2], links=[1, 2, 1], hcas_per_host=2),
    "mesh": lambda _: torus_of([4, 3], wrap=[False, False], hosts_per_switch=2, hosts=20),
    "Tofu-D": lambda _: torus_of([2, 2, 2, 3, 2], wrap=[True, True, False, True, False]),
    "full mesh": lambda _: hyperx([6], links=2),
    "HyperX": lambda _: hyperx([4, 3], links=[1, 2], hcas_per_host=2),
    "HyperX of 3 dimensions": lambda _: hyperx([3, 2, 3], hosts=30),
    "DLN": lambda _: dln(16),
    "DLN of 12 switches": lambda _: dln(12, shortcuts=[4, 6], hosts_per_switch=2, hosts=20),
    "star": lambda _: star(5, hcas_per_host=2),
    "custom json": lambda folder: written(fat_tree(2, 2).graph(), folder / "net.json", multi=True),
    "custom graphml": lambda folder: written(
        fat_tree(2, 2).graph(), folder / "net.graphml", multi=False
    ),
}
"""Makes a topology, of files in a folder if it needs any."""


SMALL = [name for name in TOPOLOGIES if name != "abci"]
"""Those that are small enough to ask for all routes."""


def small_topologies(folder: Path) -> dict[str, Any]:
    """The topologies of `SMALL` by name."""
    return {name: TOPOLOGIES[name](folder) for name in SMALL}


# ---------------------------------------------------------------------------------------- routings

ROUTINGS: dict[str, Any] = {
    "d_mod_k": DModK(),
    "s_mod_k": SModK(),
    "random_static": RandomStatic(),
    "min_hop": MinHop(),
    "ecmp": Ecmp(),
    "ecmp without salt, 3 queue pairs": Ecmp(queue_pairs=3, ports=16, salt="none"),
    "up_down": UpDown(),
    "dimension_order": DimensionOrder(),
    "minimal": Minimal(),
    "valiant": Valiant(),
    "adaptive": Adaptive(),
    "adaptive with detours": Adaptive(detours=True),
}


# ---------------------------------------------------------------------------------------- clusters

ABCI = load_scenario("quickstart").cluster


def cluster(
    topology: Any, *, gpus: int = 1, hcas: int = 1, slots: int = 1, **changes: Any
) -> Cluster:
    """ABCI with another network and other hosts."""
    host = ABCI.host.model_copy(update={"gpus": gpus, "hcas": hcas, "pcie_slots": slots})
    return Cluster.model_validate(
        ABCI.model_copy(update={"topology": topology, "host": host, **changes}).model_dump(
            mode="json"
        )
    )


MACHINES = {
    "abci": (ABCI, 144),
    "abci of 2 racks": (cluster(abci(racks=2, hosts_per_rack=6), gpus=4, hcas=2, slots=2), 45),
    "fat tree": (cluster(fat_tree(2, 3)), 9),
    "fat tree, shared HCA": (cluster(fat_tree(3, 2), gpus=4, slots=2), 30),
    "fat tree of 1 level": (cluster(fat_tree(1, 5), gpus=2), 10),
    "fat tree with rails": (cluster(switch_tree(6, 7, taper=2, rails=2), gpus=4, hcas=2), 26),
    "star": (cluster(star(6, hcas_per_host=2), gpus=2, hcas=2), 11),
    "star with a slot a GPU": (cluster(star(4, hcas_per_host=2), gpus=4, hcas=2, slots=4), 16),
    "scattered": (cluster(fat_tree(2, 4), gpus=2, placement="scattered"), 13),
}
"""Clusters, and how many ranks they are given."""


def clusters(folder: Path) -> dict[str, tuple[Cluster, int]]:
    """`MACHINES`, and a machine for every small topology, the last host not full."""
    made = {}
    for name, topology in small_topologies(folder).items():
        hcas = topology.links_per_host
        machine = cluster(topology, gpus=2 * hcas, hcas=hcas, slots=hcas)
        made[f"on {name}"] = (machine, machine.num_gpus - 1)
    return {**MACHINES, **made}


# -------------------------------------------------------------------------------------- strategies


def partial(fraction: float, **schedule: Any) -> PartialLocalShuffle:
    return PartialLocalShuffle(
        kind="partial_local_shuffle",
        exchange_fraction=fraction,
        schedule=ExchangeSchedule(**schedule),
    )


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def planned_epoch(
    strategy: Any,
    shards: Shards,
    random: np.random.Generator,
    *,
    batch: int = 5,
    iterations: int = 4,
    epoch: int = 1,
    **more: Any,
) -> Any:
    """The plan of a strategy for an epoch."""
    return strategy.plan(EpochContext(shards, batch, iterations, epoch, random, **more))


def recorded_plans(
    strategy: Any, owner: Any, ranks: int, random: Any, *, importance: bool = True, **how: Any
) -> RecordedPlans:
    """What a training of that strategy would leave, with a generator for each epoch."""
    first, plans = owner, []
    for epoch, stream in enumerate(random, 1):
        shards = strategy.shards(owner, ranks, stream)
        drawn = stream.random(len(owner)) if importance else None
        plan = planned_epoch(strategy, shards, stream, epoch=epoch, importance=drawn, **how)
        plans.append(plan)
        owner = plan.apply(owner)
    return RecordedPlans(first, plans)


def importance_exchange(
    fraction: float, schedule: dict[str, Any] | None = None, **more: Any
) -> ImportanceExchange:
    return ImportanceExchange(
        kind="importance_exchange",
        exchange_fraction=fraction,
        schedule=ExchangeSchedule(**schedule or {}),
        **more,
    )


def importance_pair(
    fraction: float, schedule: dict[str, Any] | None = None, **more: Any
) -> ImportancePair:
    return ImportancePair(
        kind="importance_pair",
        exchange_fraction=fraction,
        schedule=PairSchedule(**schedule or {}),
        **more,
    )


def loader_shuffle(order: str, **values: Any) -> LoaderShuffle:
    return LoaderShuffle.model_validate(
        {"kind": "loader_shuffle", "order": {"kind": order}, **values}
    )


STRATEGIES: dict[str, Any] = {
    "global, pfs": GlobalShuffle(kind="global_shuffle"),
    "global, ssd": GlobalShuffle(kind="global_shuffle", source="ssd"),
    "local, ssd": LocalShuffle(kind="local_shuffle"),
    "local, pfs": LocalShuffle(kind="local_shuffle", source="pfs"),
    "partial 0": partial(0),
    "partial 0.3": partial(0.3),
    "partial 1": partial(1),
    "partial 0.3, iteration": partial(
        0.3, partner_lifetime="iteration", samples_per_message="iteration"
    ),
    "partial 0.3, epoch": partial(0.3, partner_lifetime="epoch", samples_per_message=2),
    "partial 0.3, pairs": partial(0.3, partner_rule="random_pairs"),
    "partial 0.3, sorted": partial(0.3, partner_rule="importance_sorted", partner_lifetime="epoch"),
    "oldest 0.3": PartialLocalShuffle(
        kind="partial_local_shuffle", exchange_fraction=0.3, selection="oldest"
    ),
    "IS 0": importance_exchange(0),
    "IS 0.3": importance_exchange(0.3),
    "IS 1": importance_exchange(1),
    "ILag 0.3": importance_exchange(0.3, lagging=True),
    "IS 0.3, highest": importance_exchange(0.3, selection="highest"),
    "IS 0.3, sorted": importance_exchange(
        0.3, {"partner_rule": "importance_sorted", "rank_importance": "sum"}
    ),
    "IS-Pair 0": importance_pair(0),
    "IS-Pair 0.3": importance_pair(0.3),
    "IS-Pair 1": importance_pair(1),
    "ILag-Pair 0.3": importance_pair(0.3, lagging=True),
    "IS-Pair 0.3, random pairs": importance_pair(
        0.3, {"partner_rule": "random_pairs"}, selection="sqrt_importance"
    ),
    "IS-Pair 0.3, by iteration": importance_pair(
        0.3, {"partner_lifetime": "iteration", "rank_importance": "mean"}
    ),
    "mosaicml": loader_shuffle("mosaicml_streaming", samples_per_shard=4),
    "sampler": loader_shuffle("distributed_sampler", cache_limit="0 B"),
}


def add_own_examples(strategies: dict[str, Any]) -> dict[str, str]:
    """Add the `Strategy.example` of each strategy of the package that is not among ``strategies``.

    Returns what is wrong with the examples that cannot be used, by name of the class.
    """
    types = {type(strategy) for strategy in strategies.values()}
    problems = {}
    for member in members(TrainedExchange):
        assert issubclass(member, Strategy)
        if member in types:
            continue
        (kind,) = get_args(member.model_fields["kind"].annotation)
        try:
            strategies[kind] = member.model_validate({"kind": kind, **member.example})
        except (ValidationError, InputError) as error:
            problems[member.__name__] = f"{member.__name__}.example = {member.example}: {error}"
    return problems


STRATEGIES_WITHOUT_EXAMPLE = add_own_examples(STRATEGIES)


# --------------------------------------------------------------------------------------- allreduce

ALPHA_INTRA, ALPHA_INTER = 3.4e-6, 9.6e-6


PACE = {
    "intra_host_latency": "3.4 us",
    "inter_host_latency": "9.6 us",
    "intra_host_bus_bandwidth": "21 GB/s",
    "inter_host_bus_bandwidth": "6 GB/s",
}


def ring(rings: int = 1, **changes: Any) -> Ring:
    return Ring.model_validate({"kind": "ring", "rings": rings, **PACE, **changes})


def halving_doubling(rails: int = 1, **changes: Any) -> HalvingDoubling:
    values = {"kind": "halving_doubling", "rails": rails, **PACE, **changes}
    return HalvingDoubling.model_validate(values)


def recursive_doubling(rails: int = 1, **changes: Any) -> RecursiveDoubling:
    values = {"kind": "recursive_doubling", "rails": rails, **PACE, **changes}
    return RecursiveDoubling.model_validate(values)


def torus(rails: int = 1, **changes: Any) -> Torus:
    return Torus.model_validate({"kind": "torus", "rails": rails, **PACE, **changes})


def hierarchical(leaders: int = 1, among_hosts: str = "ring", **changes: Any) -> Hierarchical:
    values = {"kind": "hierarchical", "leaders": leaders, "among_hosts": among_hosts}
    return Hierarchical.model_validate({**values, **PACE, **changes})


def sharp(rails: int = 1, **changes: Any) -> Sharp:
    return Sharp.model_validate({"kind": "sharp", "rails": rails, **PACE, **changes})


def nvls(channels: int = 1, **changes: Any) -> Nvls:
    return Nvls.model_validate({"kind": "nvls", "channels": channels, **PACE, **changes})


def sparse(rails: int = 1, **changes: Any) -> Sparse:
    values = {"kind": "sparse", "rails": rails, "selection_bandwidth": "20 GB/s", **PACE}
    return Sparse.model_validate({**values, **changes})


def tree(channels: int = 1, **changes: Any) -> Tree:
    slower = {"intra_host_latency": "28 us", "inter_host_latency": "50 us"}
    values = {"kind": "tree", "channels": channels, **PACE, **slower}
    return Tree.model_validate({**values, **changes})


def nccl(channels: int = 1, **changes: Any) -> Nccl:
    rings = {f"ring_{key}": PACE[key] for key in PACE if "latency" in key}
    trees = {"tree_intra_host_latency": "28 us", "tree_inter_host_latency": "50 us"}
    bandwidths = {key: PACE[key] for key in PACE if "bandwidth" in key}
    values = {"kind": "nccl", "channels": channels, **rings, **trees, **bandwidths}
    return Nccl.model_validate({**values, **changes})


ALGORITHMS: dict[str, Any] = {
    "one ring": ring(),
    "two rings": ring(2),
    "four rings": ring(4),
    "trees": tree(),
    "trees on two HCAs": tree(2),
    "trees on four HCAs": tree(4),
    "nccl": nccl(2),
    "nccl that takes trees": nccl(
        2, tree_intra_host_latency="1 us", tree_inter_host_latency="1 us"
    ),
    "halving and doubling": halving_doubling(),
    "halving and doubling on two HCAs": halving_doubling(2),
    "recursive doubling": recursive_doubling(),
    "recursive doubling on two HCAs": recursive_doubling(2),
    "torus": torus(),
    "torus on two HCAs": torus(2),
    "torus on four HCAs": torus(4),
    "torus of rows of two hosts": torus(2, hosts_per_row=2),
    "torus of rows of eight hosts": torus(2, hosts_per_row=8),
    "one leader": hierarchical(),
    "two leaders": hierarchical(2),
    "four leaders": hierarchical(4),
    "one leader, halving": hierarchical(1, "halving_doubling"),
    "three leaders, halving": hierarchical(3, "halving_doubling"),
    "sharp": sharp(),
    "sharp on two HCAs": sharp(2),
    "nvls": nvls(),
    "nvls on two HCAs": nvls(2),
    "sparse": sparse(),
    "sparse, dense soon": sparse(2, density=0.2),
}


# ----------------------------------------------------------------------------------------- storage


def ssd(read: str = "2 GB/s", write: str = "1 GB/s") -> LocalSsd:
    values = {
        "capacity": "1 TB",
        "read_bandwidth": read,
        "write_bandwidth": write,
        "latency": "80 us",
    }
    return LocalSsd.model_validate(values)


def memory(page_cache: float) -> Memory:
    return Memory.model_validate(
        {"capacity": "1 TB", "bandwidth": "100 GB/s", "page_cache": f"{page_cache!r} B"}
    )


TIERS: dict[str, Any] = {
    "object_store": ObjectStore(bandwidth="100 GB/s", host_bandwidth="12.5 GB/s"),
    "ssd": ssd(),
    "memory": memory(5e11),
    "parallel_file_system": ABCI.parallel_file_system,
}
"""By the field of a cluster."""
