"""Exchange patterns against hand calculation: same bytes, who sends to whom, contention where there
must be some and none where not."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simshuffle.fabric.network import Analytic, Fluid
from simshuffle.fabric.network.flows import Flows
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.studies.congestion.measure import bound_seconds
from simshuffle.studies.congestion.patterns import (
    PATTERNS,
    Variant,
    choose_partners,
    distances,
    variants,
)
from simshuffle.studies.congestion.traffic import (
    UsedFabric,
    build_exchange,
    first_sample_of_messages,
)
from tests.strategies import abci, fat_tree, star

ABCI = load_scenario("quickstart").cluster
SILENT: dict[str, Any] = {"cable_latency": "0 s", "switch_latency": "0 s"}
LINE_RATE = 12.5e9
ITERATION = np.array([0, 0, 0, 1, 1, 3, 3, 3])
STEPWISE = [name for name in PATTERNS if name != "all_to_all"]
PAIRINGS = [name for name in PATTERNS if name.startswith("pairing")]


def fabric(
    topology: Any, world_size: int, *, gpus: int = 1, hcas: int = 1, routing: str = "d_mod_k"
) -> UsedFabric:
    """ABCI's hosts, with other counts, on another network."""
    host = ABCI.host.model_copy(update={"gpus": gpus, "hcas": hcas, "pcie_slots": 1})
    cluster = Cluster.model_validate(
        {
            **ABCI.model_copy(update={"topology": topology, "host": host}).model_dump(mode="json"),
            "routing": {"kind": routing},
        }
    )
    return UsedFabric(Resources(cluster, world_size, np.random.default_rng(0)))


def silent_tree(
    levels: int, arity: int, world_size: int, *, routing: str = "d_mod_k", **more: Any
) -> UsedFabric:
    """A fat tree without latencies, a rank on each host."""
    return fabric(fat_tree(levels, arity, **{**SILENT, **more}), world_size, routing=routing)


def traffic_of(
    variant: Variant, on: UsedFabric, nbytes: Any, iteration: Any = ITERATION, seed: int = 1
) -> Any:
    importance = np.random.default_rng(100 + seed).random(on.world_size)
    return build_exchange(
        variant, on, nbytes, iteration, rng=np.random.default_rng(seed), importance=importance
    )


def sizes(world_size: int, samples: int = len(ITERATION), seed: int = 5) -> Any:
    return np.random.default_rng(seed).lognormal(12.0, 0.8, (samples, world_size))


def partners_of(pattern: str, on: UsedFabric, steps: int = 5, seed: int = 3) -> Any:
    return choose_partners(
        pattern,
        steps,
        on,
        np.random.default_rng(seed),
        np.random.default_rng(seed).random(on.world_size),
    )


TREE = silent_tree(2, 4, 16)


# ----------------------------------------------------------------------------------- the same bytes


@pytest.mark.parametrize("variant", variants(PATTERNS), ids=str)
def test_every_variant_moves_the_same_bytes_from_every_rank(variant):
    nbytes = sizes(16)
    traffic = traffic_of(variant, TREE, nbytes)
    # one rank a host: the first link of a route is the sender's own
    sent = traffic.flows.link_bytes(TREE.links)[TREE.ports]
    assert sent == pytest.approx(nbytes.sum(axis=0), rel=1e-12)
    assert traffic.flows.nbytes.sum() == pytest.approx(nbytes.sum(), rel=1e-12)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_permutations_deliver_as_much_as_is_sent(pattern):
    traffic = traffic_of(
        Variant(pattern, "all" if pattern == "all_to_all" else "sample"),
        TREE,
        np.full((8, 16), 1e5),
    )
    back = [">".join(reversed(TREE.links.name(port).split(">"))) for port in TREE.ports]
    received = [list(TREE.links.names).index(name) for name in back]
    assert traffic.flows.link_bytes(TREE.links)[received] == pytest.approx(8e5, rel=1e-12)


def test_all_to_all_sends_every_rank_the_same_share():
    nbytes = sizes(16)
    traffic = traffic_of(Variant("all_to_all"), TREE, nbytes)
    assert traffic.messages == 16 * 15
    assert traffic.barriers == 0
    assert len(traffic.flows.after_to) == 0
    assert traffic.flows.nbytes.reshape(16, 15) == pytest.approx(
        np.tile(nbytes.sum(axis=0)[:, None] / 15, 15), rel=1e-12
    )
    src, dst, routes = TREE.all_pairs
    assert sorted(zip(src.tolist(), dst.tolist(), strict=True)) == [
        (a, b) for a in range(16) for b in range(16) if a != b
    ]
    assert np.array_equal(routes[:, 0], TREE.ports[src])


@pytest.mark.parametrize(
    ("batching", "expected"), [("sample", [1] * 8), ("iteration", [3, 2, 3]), ("all", [8])]
)
def test_a_message_carries_what_its_batching_says(batching, expected):
    assert (
        np.diff([*first_sample_of_messages(batching, ITERATION), len(ITERATION)]).tolist()
        == expected
    )
    traffic = traffic_of(Variant("linear_shift", batching), TREE, np.ones((8, 16)))
    assert traffic.flows.nbytes.reshape(-1, 16).tolist() == [[count] * 16 for count in expected]


# -------------------------------------------------------------------------------- who sends to whom


@pytest.mark.parametrize("pattern", STEPWISE)
def test_every_step_is_a_permutation_in_which_nobody_is_alone(pattern):
    to = partners_of(pattern, TREE)
    assert to.shape == (5, 16)
    assert all(sorted(row) == list(range(16)) for row in to.tolist())
    assert not np.any(to == np.arange(16))


@pytest.mark.parametrize("pattern", PAIRINGS)
@pytest.mark.parametrize("count", [2, 7, 15, 16])
def test_pairings_last_and_are_mutual(pattern, count):
    to = partners_of(pattern, silent_tree(2, 4, count))
    assert np.all(to == to[0])
    assert np.array_equal(to[0][to[0]], np.arange(count))
    assert np.count_nonzero(to[0] == np.arange(count)) == count % 2


def test_the_rank_without_a_partner_sends_nothing():
    on = silent_tree(2, 4, 15)
    nbytes = sizes(15)
    importance_alone = partners_of("pairing_importance", on, seed=101)[0]
    traffic = traffic_of(Variant("pairing_importance", "iteration", barrier=True), on, nbytes)
    alone = int(np.flatnonzero(importance_alone == np.arange(15))[0])
    assert traffic.messages == 14 * 3
    sent = traffic.flows.link_bytes(on.links)[on.ports]
    assert sent == pytest.approx(
        np.where(np.arange(15) == alone, 0.0, nbytes.sum(axis=0)), rel=1e-12
    )


def test_importance_pairs_the_lowest_with_the_highest():
    importance = np.array([0.3, 0.9, 0.1, 0.5, 0.7, 0.2])
    to = choose_partners(
        "pairing_importance", 1, silent_tree(2, 4, 6), np.random.default_rng(0), importance
    )
    assert to[0].tolist() == [3, 2, 1, 0, 5, 4]  # in rising order 2, 5, 0, 3, 4, 1


def test_random_permutations_are_fresh_and_the_same_for_every_batching():
    to = partners_of("random_permutations", TREE)
    assert len({tuple(row) for row in to.tolist()}) == 5
    assert np.array_equal(partners_of("random_permutations", TREE, steps=2), to[:2])
    assert not np.array_equal(partners_of("random_permutations", TREE, seed=4), to)


def test_permutations_without_fixed_points_are_all_alike():
    # of 3 ranks there are two: the cycles of either direction
    to = partners_of("random_permutations", silent_tree(2, 4, 3), steps=4000)
    forward = np.all(to == [1, 2, 0], axis=1).mean()
    assert forward == pytest.approx(0.5, abs=0.04)


@given(steps=st.integers(1, 70), most=st.integers(1, 40))
def test_distances_are_spread_evenly(steps, most):
    found = distances(steps, most)
    assert len(found) == steps
    whole, rest = divmod(steps, most)
    assert found[: whole * most].tolist() == list(range(1, most + 1)) * whole
    tail = found[whole * most :]
    assert np.all((tail >= 1) & (tail <= most))
    if rest > 1:
        assert np.ptp(np.diff(tail)) <= 1
        assert np.diff(tail).min() >= 1
        assert abs((tail[0] - 1) - (most - tail[-1])) <= 1  # as far from one end as from the other


def test_no_schedule_empties_a_rack_faster_than_its_cables_do():
    """Three leaf switches of four hosts, each with two cables up. Ranks send 11 MB, 1 MB to each
    other: 8 MB leave a rack for each of four ranks, over two of 12.5 GB/s. A rank of twice the
    bytes adds its 8 MB to its own rack alone. The all-to-all itself uses its cables as evenly."""
    on = silent_tree(2, 4, 12, taper=2)
    capacity = 2 * LINE_RATE
    nbytes = np.full(12, 11e6)
    assert on.rack_seconds(nbytes) == pytest.approx(4 * 8e6 / capacity)
    every = traffic_of(Variant("all_to_all"), on, nbytes[None])
    assert bound_seconds(on.links, every.flows) == pytest.approx(4 * 8e6 / capacity)
    nbytes[5] = 22e6
    assert on.rack_seconds(nbytes) == pytest.approx(5 * 8e6 / capacity)
    assert silent_tree(2, 4, 4).rack_seconds(np.full(4, 3e6)) == 0.0
    # of five ranks the fifth is alone in its rack: all of its bytes leave, and 1/4 of the others'
    alone = silent_tree(2, 4, 5, taper=2)
    assert alone.rack_seconds(np.full(5, 4e6)) == pytest.approx(4e6 / capacity)


@pytest.mark.parametrize("is_scattered", [False, True])
@pytest.mark.parametrize("count", [20, 32, 52, 67])
def test_a_balanced_shift_loads_all_racks_alike_in_every_step(count, is_scattered):
    """Of the S ranks of a rack S T / M send to a rack of T, in every step: whole messages, and
    one more or less where a rank would have kept its own. A shift sends all of a rack away in
    one step, and one of them in another."""
    racks = silent_tree(2, 16, count, taper=2).rack
    if is_scattered:
        racks = np.random.default_rng(count).permutation(racks)
    on: Any = SimpleNamespace(rack=racks, world_size=count)
    sizes = np.bincount(racks)
    for receiver in partners_of("balanced_shift", on, count):
        sent = np.zeros((len(sizes), len(sizes)))
        np.add.at(sent, (racks, racks[receiver]), 1)
        assert np.abs(sent - np.outer(sizes, sizes) / count).max() < 2.0
    if not is_scattered:
        leaving = [
            np.count_nonzero(racks != racks[receiver])
            for receiver in partners_of("linear_shift", on, count)
        ]
        assert max(leaving) - min(leaving) >= 6
    # in M steps a rank sends to all others, but for the swaps in place of itself and a neighbour
    for receivers in partners_of("balanced_shift", on, count).T:
        assert len(set(receivers.tolist())) >= count - 3


def test_a_balanced_shift_needs_half_the_bisection_by_hand():
    """Two racks of four, each with two cables up: in every step two ranks of each send to the
    other rack, so every step takes a message's time. A shift by d sends min(d, 8 - d) away: four
    take two, and so do three, as one of the cables carries two."""
    on = silent_tree(2, 4, 8, taper=2, routing="adaptive")
    times = {
        pattern: [
            bound_seconds(
                on.links,
                Flows(on.routes(np.arange(8), receiver), np.full(8, 1e6), np.zeros(8)),
            )
            * LINE_RATE
            / 1e6
            for receiver in partners_of(pattern, on, 7)
        ]
        for pattern in ("balanced_shift", "linear_shift")
    }
    assert times["balanced_shift"] == pytest.approx([1.0] * 7)
    assert times["linear_shift"] == pytest.approx([1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0])


def test_shift_and_xor_by_hand():
    assert distances(3, 7).tolist() == [2, 4, 6]
    on = silent_tree(2, 4, 8)
    assert partners_of("linear_shift", on, 3).tolist() == [
        [(r + s) % 8 for r in range(8)] for s in (2, 4, 6)
    ]
    assert partners_of("xor", on, 3).tolist() == [[r ^ s for r in range(8)] for s in (2, 4, 6)]


def test_xor_needs_a_power_of_two():
    with pytest.raises(ValueError, match="power of two of ranks; got 12"):
        partners_of("xor", silent_tree(2, 4, 12))


# ------------------------------------------------------------------------------------- the topology


def test_topology_pairing_crosses_no_spine_where_ranks_are_even():
    on = silent_tree(2, 4, 16)
    for seed in range(10):
        to = partners_of("pairing_topology", on, seed=seed)[0]
        assert np.array_equal(np.arange(16) // 4, to // 4)
    traffic = traffic_of(Variant("pairing_topology"), on, sizes(16))
    assert traffic.flows.routes.shape == (16, 2)


def test_topology_pairing_is_drawn_anew_for_each_seed():
    assert (
        len(
            {
                tuple(partners_of("pairing_topology", TREE, seed=seed)[0].tolist())
                for seed in range(10)
            }
        )
        > 5
    )


def test_what_is_left_over_pairs_with_the_nearest():
    # three levels, 3 hosts a leaf switch, 3 leaf switches a subtree: 9 odd leaf switches, an odd
    # one in each subtree
    on = silent_tree(3, 3, 27)
    for seed in range(5):
        to = partners_of("pairing_topology", on, seed=seed)[0]
        ranks = np.arange(27)
        paired = to != ranks
        assert np.count_nonzero(paired & (to // 3 == ranks // 3)) == 18
        assert np.count_nonzero(paired & (to // 3 != ranks // 3) & (to // 9 == ranks // 9)) == 6
        assert np.count_nonzero(paired & (to // 9 != ranks // 9)) == 2


def test_leaf_switches_of_abci_follow_the_ports():
    # two HCAs a host on two leaf switches; the even host of a pair is on switches 0 and 1, the odd
    # one on 2 and 3
    on = fabric(abci(racks=1, hosts_per_rack=4), 16, gpus=4, hcas=2)
    assert on.leaf.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] * 2
    to = partners_of("pairing_topology", on)[0]
    assert np.array_equal(on.leaf[to], on.leaf)


def test_ranks_of_one_host_share_everything():
    on = fabric(star(2), 4, gpus=4)
    assert on.leaf.tolist() == [0, 0, 0, 0]
    assert on.ports.tolist() == [-1] * 4
    traffic = traffic_of(Variant("pairing_topology", "sample"), on, sizes(4))
    assert [on.links.name(link) for link in np.unique(traffic.flows.routes)] == ["h0000.memory"]


def test_the_fabric_has_the_links_that_ranks_use_and_no_others():
    on = fabric(abci(racks=2, hosts_per_rack=4), 24, gpus=4, hcas=2)
    resources = on.resources
    src, dst, routes = on.all_pairs
    full, latency = resources.message(src, dst)
    assert np.array_equal(np.unique(routes), np.arange(-1, len(on.links)))
    assert len(on.links) == len(on.tiers) < len(resources.links.names)
    for row, whole in zip(routes[::7], full[::7], strict=True):
        used = [link for link in row.tolist() if link >= 0]
        assert [on.links.name(link) for link in used] == [
            resources.links.names[link] for link in whole if link >= 0
        ]
        assert [on.tiers[link] for link in used] == [
            resources.links.tiers[link] for link in whole if link >= 0
        ]
        assert np.array_equal(on.links.capacity[used], resources.links.capacity[whole[whole >= 0]])
    assert traffic_of(Variant("all_to_all"), on, sizes(24)).flows.latencies(
        on.links
    ) == pytest.approx(latency, rel=1e-12)


# --------------------------------------------------------------------------------------- contention


@pytest.mark.parametrize(("levels", "arity"), [(2, 4), (3, 2), (3, 3)])
@pytest.mark.parametrize("barrier", [True, False])
def test_shifts_on_a_full_tree_are_free_of_contention(levels, arity, barrier):
    count = arity**levels
    on = silent_tree(levels, arity, count)
    traffic = traffic_of(Variant("linear_shift", "sample", barrier), on, np.full((8, count), 1e6))
    assert Fluid().finish_times(on.links, traffic.flows).makespan == pytest.approx(
        8e6 / LINE_RATE, rel=1e-9
    )


def test_random_permutations_on_the_same_tree_are_not():
    traffic = traffic_of(
        Variant("random_permutations", "sample", barrier=True), TREE, np.full((8, 16), 1e6)
    )
    assert Fluid().finish_times(TREE.links, traffic.flows).makespan > 1.3 * 8e6 / LINE_RATE


def test_all_to_all_on_a_full_tree_runs_at_line_rate():
    traffic = traffic_of(Variant("all_to_all"), TREE, np.full((8, 16), 1e6))
    assert Fluid().finish_times(TREE.links, traffic.flows).makespan == pytest.approx(
        8e6 / LINE_RATE, rel=1e-9
    )


def test_all_to_all_on_a_tapered_tree_waits_for_the_uplinks():
    # 4 hosts a leaf switch send 12 of 15 shares up, over 2 links instead of 4
    on = silent_tree(2, 4, 16, taper=2)
    traffic = traffic_of(Variant("all_to_all"), on, np.full((8, 16), 1e6))
    assert Fluid().finish_times(on.links, traffic.flows).makespan == pytest.approx(
        4 * 8e6 * 12 / 15 / (2 * LINE_RATE), rel=1e-9
    )


# ----------------------------------------------------------------------------------------- barriers


def test_barriers_by_hand():
    """A fixed partner on a star shares no link with anybody: message k of rank r takes d(k, r)
    whatever the others do.

    So without barriers the end is that of the slowest rank, max over r of the sum over k of d(k,
    r), and with barriers the sum over k of the slowest message, the sum over k of max over r of
    d(k, r); the latter is never less.
    """
    on = fabric(star(8), 8)
    nbytes = sizes(8)
    latency = 26e-9 + 90e-9 + 26e-9
    alone = nbytes / LINE_RATE + latency
    free, gated = (
        Fluid()
        .finish_times(
            on.links, traffic_of(Variant("pairing_random", "sample", barrier), on, nbytes).flows
        )
        .makespan
        for barrier in (False, True)
    )
    assert free == pytest.approx(alone.sum(axis=0).max(), rel=1e-9)
    assert gated == pytest.approx(alone.max(axis=1).sum(), rel=1e-9)
    assert gated > 1.2 * free


def test_equal_samples_on_a_star_keep_step_without_barriers():
    on = fabric(star(8), 8)
    times = [
        Fluid().finish_times(
            on.links,
            traffic_of(
                Variant("random_permutations", "sample", barrier), on, np.full((8, 8), 1e6)
            ).flows,
        )
        for barrier in (False, True)
    ]
    assert times[0].makespan == pytest.approx(times[1].makespan, rel=1e-9)
    assert times[0].makespan == pytest.approx(8 * (1e6 / LINE_RATE + 142e-9), rel=1e-9)


@pytest.mark.parametrize("pattern", STEPWISE)
def test_a_barrier_holds_everybody_back(pattern):
    nbytes = sizes(16)
    traffic = traffic_of(Variant(pattern, "iteration", barrier=True), TREE, nbytes)
    flows = traffic.flows
    assert (traffic.messages, traffic.barriers) == (48, 2)
    assert np.all(flows.routes[48:] == -1)
    assert np.all(flows.nbytes[48:] == 0)
    finish = Analytic().finish_times(TREE.links, flows).finish
    of_step = finish[:48].reshape(3, 16)
    took = (
        np.array([nbytes[:3].sum(axis=0), nbytes[3:5].sum(axis=0), nbytes[5:].sum(axis=0)])
        / LINE_RATE
    )
    start = np.array([0.0, took[0].max(), took[0].max() + took[1].max()])
    assert of_step == pytest.approx(start[:, None] + took, rel=1e-12)


@pytest.mark.parametrize("pattern", STEPWISE)
def test_without_barriers_a_rank_waits_for_itself_only(pattern):
    nbytes = sizes(16)
    flows = traffic_of(Variant(pattern, "sample"), TREE, nbytes).flows
    finish = Analytic().finish_times(TREE.links, flows).finish
    assert finish.reshape(8, 16) == pytest.approx(np.cumsum(nbytes, axis=0) / LINE_RATE, rel=1e-12)


@pytest.mark.parametrize("pattern", STEPWISE)
def test_a_single_message_needs_no_barrier(pattern):
    traffic = traffic_of(Variant(pattern, "all", barrier=True), TREE, sizes(16))
    assert (traffic.messages, traffic.barriers, len(traffic.flows.after_to)) == (16, 0, 0)
    assert [v for v in variants([pattern]) if v.batching == "all"] == [Variant(pattern)]
