"""Hypothesis strategies for small valid inputs, and the members of a union of records."""

from typing import Any, get_args

from hypothesis import strategies as st

from simshuffle.fabric.topology import (
    Abci,
    Dln,
    Dragonfly,
    DragonflyPlus,
    FatTree,
    HyperX,
    RailOptimised,
    Star,
    Torus,
)
from simshuffle.workload.exchange import (
    ExchangeSchedule,
    GlobalShuffle,
    ImportanceExchange,
    ImportancePair,
    LocalShuffle,
    PairSchedule,
    PartialLocalShuffle,
)

LINKS: dict[str, Any] = {"link_bandwidth": "12.5 GB/s", "cable_latency": "26 ns"}
ABCI_LATENCIES: dict[str, Any] = {
    "leaf_latency": "90 ns",
    "fbb_latency": "90 ns",
    "spine_latency": "400 ns",
}


def members(union: Any) -> tuple[type, ...]:
    """The records of an annotated union such as ``Topology``, or the single one."""
    inner = get_args(union)[0]
    return get_args(inner) or (inner,)


def fat_tree(levels: int, arity: int, **more: Any) -> FatTree:
    """A fat tree with EDR links."""
    return FatTree.model_validate(
        {
            "kind": "fat_tree",
            "levels": levels,
            "arity": arity,
            "switch_latency": "90 ns",
            **LINKS,
            **more,
        }
    )


def switch_tree(ports: int, hosts: int, **more: Any) -> FatTree:
    """A fat tree with EDR links, described by the ports of its switches."""
    values = {"kind": "fat_tree", "ports": ports, "hosts": hosts, **LINKS, **more}
    return FatTree.model_validate(values)


def star(hosts: int, **more: Any) -> Star:
    """A star with EDR links."""
    return Star.model_validate(
        {"kind": "star", "hosts": hosts, "switch_latency": "90 ns", **LINKS, **more}
    )


def abci(**changes: Any) -> Abci:
    """ABCI, with other counts where given."""
    counts = {
        "racks": 32,
        "hosts_per_rack": 34,
        "hcas_per_host": 2,
        "leaf_switches_per_rack": 4,
        "fbb_switches_per_rack": 3,
        "spine_switches": 2,
        "leaf_fbb_links": 6,
        "fbb_spine_links": 4,
    }
    return Abci.model_validate({"kind": "abci", **counts, **LINKS, **ABCI_LATENCIES, **changes})


def rail_optimised(**changes: Any) -> RailOptimised:
    """Two pods of 8 hosts with two rails on 16-port switches, with EDR links."""
    values = {"pods": 2, "hosts_per_pod": 8, "rails": 2, "ports": 16}
    return RailOptimised.model_validate({"kind": "rail_optimised", **values, **LINKS, **changes})


def dragonfly(**changes: Any) -> Dragonfly:
    """A dragonfly of 9 groups of 4 switches with a host each, with EDR links."""
    values = {"hosts_per_switch": 1, "switches_per_group": 4, "global_links_per_switch": 2}
    given = {k: v for k, v in {**values, **changes}.items() if v is not None}
    return Dragonfly.model_validate({"kind": "dragonfly", **LINKS, **given})


def dragonfly_plus(**changes: Any) -> DragonflyPlus:
    """A Dragonfly+ of 5 groups of 2 leaf and 2 spine switches, with EDR links."""
    values = {"hosts_per_switch": 2, "leaf_switches": 2, "spine_switches": 2}
    values |= {"global_links_per_switch": 2}
    return DragonflyPlus.model_validate({"kind": "dragonfly_plus", **values, **LINKS, **changes})


def torus_of(shape: list[int], **changes: Any) -> Torus:
    """A torus with a host on each switch, with EDR links."""
    return Torus.model_validate({"kind": "torus", "shape": shape, **LINKS, **changes})


def hyperx(shape: list[int], **changes: Any) -> HyperX:
    """A HyperX with two hosts on each switch, with EDR links."""
    values = {"kind": "hyperx", "shape": shape, "hosts_per_switch": 2}
    return HyperX.model_validate({**values, **LINKS, **changes})


def dln(switches: int, **changes: Any) -> Dln:
    """A distributed loop network with a host on each switch, with EDR links."""
    values = {"kind": "dln", "switches": switches, "hosts_per_switch": 1}
    return Dln.model_validate({**values, **LINKS, **changes})


def fat_trees(
    min_levels: int = 1, max_levels: int = 3, cut: bool = True
) -> st.SearchStrategy[FatTree]:
    """Fat trees of 2 to 64 hosts, of any taper and, with ``cut``, of any number of hosts that
    leaves no leaf switch empty."""

    @st.composite
    def draw_tree(draw: Any) -> FatTree:
        levels = draw(st.integers(min_levels, max_levels))
        arity = draw(st.integers(2, 4))
        uplinks = draw(st.integers(1, arity))
        more: dict[str, Any] = {"taper": arity / uplinks}
        if cut and draw(st.booleans()):
            below = arity ** (levels - 1)
            subtrees = draw(st.integers(1, arity))
            # from the last leaf switch only
            missing = draw(st.integers(0, arity - 1)) if levels > 1 else 0
            more["hosts"] = max(below * subtrees - missing, 1)
        return fat_tree(levels, arity, **more)

    return draw_tree()


def switch_trees() -> st.SearchStrategy[FatTree]:
    """Fat trees of 1 to 40 hosts with 1 to 3 rails on switches of 4 to 12 ports, of any taper that
    leaves a link up and of as many levels as they need, or one more."""

    @st.composite
    def draw_tree(draw: Any) -> FatTree:
        ports = draw(st.integers(4, 12))
        up = draw(st.integers(1, ports // 2))
        down = draw(st.integers(up, ports - up))
        rails = draw(st.integers(1, min(3, ports // 2)))
        more: dict[str, Any] = {"taper": down / up, "rails": rails}
        room = switch_tree(ports, 1, **more)._capacity(ports, 3)
        tree = switch_tree(ports, draw(st.integers(1, min(40, room))), **more)
        if tree.num_levels < 3 and draw(st.booleans()):
            tree = switch_tree(ports, tree.num_hosts, levels=tree.num_levels + 1, **more)
        return tree

    return draw_tree()


def stars() -> st.SearchStrategy[Star]:
    """Stars of 1 to 8 hosts with 1 or 2 HCAs."""
    return st.builds(
        lambda hosts, hcas: star(hosts, hcas_per_host=hcas), st.integers(1, 8), st.integers(1, 2)
    )


def abcis() -> st.SearchStrategy[Abci]:
    """Machines built like ABCI with at most 3 racks; every leaf switch has hosts."""
    return st.builds(
        abci,
        racks=st.integers(1, 3),
        hosts_per_rack=st.integers(4, 8),
        hcas_per_host=st.integers(1, 2),
        leaf_switches_per_rack=st.sampled_from([2, 4]),
        fbb_switches_per_rack=st.integers(1, 3),
        spine_switches=st.integers(1, 2),
        leaf_fbb_links=st.integers(1, 4),
        fbb_spine_links=st.integers(1, 4),
    )


def trees() -> st.SearchStrategy[Any]:
    """Any topology that is a tree of switches."""
    return st.one_of(fat_trees(), switch_trees(), stars(), abcis())


def fractions() -> st.SearchStrategy[float]:
    """Q in whole percent, with 0 and 1."""
    return st.integers(0, 100).map(lambda percent: percent / 100)


RULES: tuple[dict[str, str], ...] = (
    {"partner_rule": "random"},
    {"partner_rule": "random_pairs"},
    *(
        {"partner_rule": "importance_sorted", "rank_importance": of}
        for of in ("max", "mean", "sum")
    ),
)


def schedules(record: Any = ExchangeSchedule, sorted_too: bool = False) -> st.SearchStrategy[Any]:
    """Schedules that differ in partners and messages; with ``sorted_too`` also those that pair
    ranks by importance."""
    rules = st.sampled_from(RULES if sorted_too else RULES[:2])

    def schedule(rule: dict[str, str], lifetime: str, size: int | str) -> Any:
        return record(**rule, partner_lifetime=lifetime, samples_per_message=size)

    single = st.builds(
        schedule, rules, st.sampled_from(["sample", "iteration", "epoch"]), st.just(1)
    )
    several = st.builds(
        schedule,
        rules,
        st.sampled_from(["iteration", "epoch"]),
        st.one_of(st.integers(1, 5), st.just("iteration")),
    )
    return st.one_of(single, several)


def partial_local_shuffles(sorted_too: bool = False) -> st.SearchStrategy[PartialLocalShuffle]:
    """Partial local shuffles with any Q and schedule."""
    schedule = schedules(sorted_too=sorted_too)
    return st.builds(
        PartialLocalShuffle,
        kind=st.just("partial_local_shuffle"),
        exchange_fraction=fractions(),
        schedule=schedule,
    )


def importance_strategies() -> st.SearchStrategy[Any]:
    """Importance exchanges and pairs with any Q, selection and schedule."""
    selection = st.sampled_from(["importance", "sqrt_importance", "highest", "lowest", "random"])
    more = {"exchange_fraction": fractions(), "selection": selection, "lagging": st.booleans()}
    return st.one_of(
        st.builds(
            ImportanceExchange,
            kind=st.just("importance_exchange"),
            schedule=schedules(sorted_too=True),
            **more,
        ),
        st.builds(
            ImportancePair,
            kind=st.just("importance_pair"),
            schedule=schedules(PairSchedule, sorted_too=True),
            **more,
        ),
    )


def exchanges() -> st.SearchStrategy[Any]:
    """Any exchange strategy."""
    source = st.sampled_from(["pfs", "ssd"])
    return st.one_of(
        st.builds(GlobalShuffle, kind=st.just("global_shuffle"), source=source),
        st.builds(LocalShuffle, kind=st.just("local_shuffle"), source=source),
        partial_local_shuffles(sorted_too=True),
        importance_strategies(),
    )


def world_sizes(largest: int = 12) -> st.SearchStrategy[int]:
    """M."""
    return st.integers(1, largest)


def batch_sizes(largest: int = 9) -> st.SearchStrategy[int]:
    """b."""
    return st.integers(1, largest)
