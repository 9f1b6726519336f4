"""Flows solved through their symmetry: the same ends as one by one, or no answer."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simshuffle.fabric.network.batch import TransferBatch, tasks
from simshuffle.fabric.network.case import read_case
from simshuffle.fabric.network.flows import Flows, Links
from simshuffle.fabric.network.fluid import FluidNetwork
from simshuffle.fabric.network.fluid_symmetry import (
    MAX_ROUNDS,
    Partition,
    finish_times,
    quotient,
    refine,
)
from tests import reference

CASES = sorted((Path(__file__).parent.parent / "golden" / "simgrid").glob("*.json.gz"))
COPIES = 9


def all_to_all(hosts, per_leaf, spines, nbytes=1e6):
    """Every host sends to every other at once, on a fat tree of two levels where the destination
    picks the spine."""
    leaves = hosts // per_leaf
    count = 2 * hosts + 2 * leaves * spines
    src, dst = np.divmod(np.arange(hosts * hosts), hosts)
    src, dst = src[src != dst], dst[src != dst]
    spine, up = dst % spines, 2 * hosts + leaves * spines
    routes = np.stack(
        [
            src,
            2 * hosts + src // per_leaf * spines + spine,
            up + dst // per_leaf * spines + spine,
            hosts + dst,
        ],
        axis=1,
    )
    inside = src // per_leaf == dst // per_leaf
    routes[inside] = np.stack([src, hosts + dst, -np.ones_like(src), -np.ones_like(src)], axis=1)[
        inside
    ]
    return Links(np.full(count, 12.5e9), np.full(count, 1e-6)), Flows.from_lists(
        routes.astype(np.int32), np.full(len(src), nbytes)
    )


def plain(links, flows):
    """The ends by the independent solver, which sees every flow (s), but for those that move
    nothing and end after their latency."""
    routes = [[link for link in route if link >= 0] for route in flows.routes.tolist()]
    ends = flows.start + [links.latency[route].sum() for route in routes]
    busy = [i for i, route in enumerate(routes) if route and flows.nbytes[i]]
    ends[busy] = reference.finish_times(
        links.capacity,
        links.latency,
        [routes[i] for i in busy],
        flows.nbytes[busy],
        flows.start[busy],
    )
    return ends


def one_by_one(links, flows):
    """The ends by the general engine, which sees every flow (s)."""
    columns = {
        "nbytes": flows.nbytes,
        "delay": flows.latencies(links),
        "start": flows.earliest_post,
    }
    batch = TransferBatch(
        tasks(len(flows), work=flows.nbytes, tag=np.arange(len(flows)), **columns), flows.routes
    )
    network = FluidNetwork(
        links.capacity, width=flows.routes.shape[1], tags=len(flows), capped=False
    )
    network.post(0.0, batch)
    network.advance(np.inf)
    assert network.alive == 0
    return network.finish[: len(flows)]


def n_classes(links, flows):
    partition = refine(links, flows)
    assert partition is not None
    return len(partition.example), len(partition.first)


# --------------------------------------------------------------------------------------- all-to-all


def test_full_bisection_all_to_all_takes_what_the_host_links_take():
    # 64 hosts, 63 MB through each host link of 12.5 GB/s, which is busy from 2 us on: inside a leaf
    # there are 2 links of 1 us
    links, flows = all_to_all(64, 8, 8)
    ends = finish_times(links, flows)
    between = flows.routes[:, 3] >= 0
    np.testing.assert_allclose(ends[between], 63e6 / 12.5e9 + 2e-6, rtol=1e-12)
    # inside a leaf and between leaves; host links and leaf links
    assert n_classes(links, flows) == (2, 2)


@pytest.mark.parametrize(
    ("hosts", "per_leaf", "spines"), [(16, 4, 4), (16, 4, 1), (24, 6, 4), (24, 8, 5)]
)
def test_all_to_all_ends_as_flow_by_flow(hosts, per_leaf, spines):
    links, flows = all_to_all(hosts, per_leaf, spines)
    np.testing.assert_allclose(finish_times(links, flows), plain(links, flows), rtol=1e-9)


@pytest.mark.parametrize(("hosts", "per_leaf", "spines"), [(32, 8, 3), (64, 16, 5), (64, 32, 11)])
def test_all_to_all_ends_as_with_the_general_engine(hosts, per_leaf, spines):
    links, flows = all_to_all(hosts, per_leaf, spines)
    np.testing.assert_allclose(finish_times(links, flows), one_by_one(links, flows), rtol=1e-9)


def test_sizes_and_starts_that_differ_from_class_to_class():
    links, flows = all_to_all(64, 16, 8)
    src, dst = (
        flows.routes[:, 0],
        flows.routes.max(axis=1, initial=0, where=flows.routes < 128) - 64,
    )
    far = (src // 16 - dst // 16) % 4
    mixed = Flows(
        flows.routes, np.array([1e6, 3e6, 2e6, 0.0])[far], np.array([0.0, 1e-3, 2e-3, 5e-4])[far]
    )
    ends = finish_times(links, mixed)
    np.testing.assert_allclose(ends, one_by_one(links, mixed), rtol=1e-9)
    np.testing.assert_allclose(ends[far == 3], 5e-4 + 4e-6, rtol=1e-15)  # no bytes


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_simgrid_agrees_where_there_is_an_answer(path):
    case = read_case(path)
    ends = finish_times(case.links, case.flows)
    assert (ends is not None) == (
        path.name in {"p1_w1_32.json.gz", "p2_w1_64.json.gz", "fanin_p1_64.json.gz"}
    )
    if ends is not None:
        np.testing.assert_allclose(ends, case.expected, rtol=1e-9)


# ------------------------------------------------------------------------------------------- copies


@st.composite
def networks(draw):
    """Random links and flows; few distinct sizes and capacities, so that ties happen and classes
    are shared."""
    n_links = draw(st.integers(1, 5))
    count = draw(st.integers(1, 12))
    capacity = draw(
        st.lists(st.sampled_from([1.0, 2.0, 3.5, 10.0]), min_size=n_links, max_size=n_links)
    )
    latency = draw(st.lists(st.sampled_from([0.0, 0.1, 0.25]), min_size=n_links, max_size=n_links))
    routes = [
        draw(st.lists(st.integers(0, n_links - 1), unique=True, max_size=n_links))
        for _ in range(count)
    ]
    size = [
        draw(st.one_of(st.sampled_from([0.0, 1.0, 2.0]), st.floats(0.01, 20))) for _ in range(count)
    ]
    start = [draw(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 10))) for _ in range(count)]
    return Links(np.array(capacity), np.array(latency)), Flows.from_lists(routes, size, start)


def copies(links, flows, rng):
    """`COPIES` of a network side by side, its links renumbered, its flows shuffled and each route
    in any order; and whose copy each is."""
    count = len(links)
    place = rng.permutation(COPIES * count)
    origin = np.argsort(place) % count
    routes = np.concatenate(
        [np.where(flows.routes >= 0, place[flows.routes + k * count], -1) for k in range(COPIES)]
    )
    of = rng.permutation(COPIES * len(flows))
    width = np.array(
        [[np.inf if link < 0 else rng.random() for link in route] for route in routes[of]]
    )
    mixed = np.take_along_axis(routes[of], np.argsort(width, axis=1), axis=1)
    of %= len(flows)
    return (
        Links(links.capacity[origin], links.latency[origin]),
        Flows(mixed, flows.nbytes[of], flows.start[of]),
        of,
    )


@settings(max_examples=150)
@given(networks(), st.integers(0, 2**32 - 1))
def test_copies_of_a_network_end_as_the_network(network, seed):
    many_links, many_flows, of = copies(*network, np.random.default_rng(seed))
    ends = finish_times(many_links, many_flows)
    assert ends is not None
    n_flows, n_links = n_classes(many_links, many_flows)
    assert n_flows <= len(network[1])
    assert n_links <= len(network[0])
    np.testing.assert_allclose(ends, plain(*network)[of], rtol=1e-9)


def equitable(links, flows, partition):
    """Whether a partition has what the docstring of the module asks for, by plain counting."""
    facts: dict[tuple[str, int], set[object]] = {}
    carried = [[] for _ in range(len(links))]
    for flow, route in enumerate(flows.routes):
        used = [link for link in route if link >= 0]
        fact = (flows.nbytes[flow], flows.start[flow], tuple(sorted(partition.link[used])))
        facts.setdefault(("flow", partition.flow[flow]), set()).add(fact)
        for link in used if flows.nbytes[flow] else ():
            carried[link].append(partition.flow[flow])
    for link, kinds in enumerate(carried):
        fact = (links.capacity[link], links.latency[link], tuple(sorted(kinds)))
        facts.setdefault(("link", partition.link[link]), set()).add(fact)
    return all(len(fact) == 1 for fact in facts.values())


def merged(partition, one, other, *, of_links):
    """A partition with two classes put together, of flows or of links."""
    values, examples = (
        (partition.link, partition.first) if of_links else (partition.flow, partition.example)
    )
    values = np.where(values == other, one, values)
    values = (values - (values > other)).astype(values.dtype)
    examples = np.delete(examples, other)
    if of_links:
        return Partition(partition.flow, partition.example, values, examples)
    return Partition(values, examples, partition.link, partition.first)


@settings(max_examples=150)
@given(networks(), st.booleans(), st.integers(0, 2**32 - 1))
def test_a_wrong_partition_is_noticed(network, of_links, seed):
    rng = np.random.default_rng(seed)
    links, flows, _ = copies(*network, rng)
    partition = refine(links, flows)
    assert equitable(links, flows, partition)
    count = len(partition.first if of_links else partition.example)
    assume(count > 1)
    other, one = sorted(rng.choice(count, 2, replace=False))[::-1]
    wrong = merged(partition, one, other, of_links=of_links)
    # links without load may be put together; whatever else refinement told apart may not
    assert (quotient(links, flows, wrong) is not None) == equitable(links, flows, wrong)


def test_a_flow_and_a_link_in_the_wrong_class_are_noticed():
    links, flows = all_to_all(24, 6, 4)
    partition = refine(links, flows)
    assert quotient(links, flows, partition) is not None
    for values in (partition.flow, partition.link):
        for at in (0, len(values) // 2, len(values) - 1):
            right = values[at]
            values[at] = (right + 1) % (values.max() + 1)
            assert quotient(links, flows, partition) is None
            values[at] = right


def test_the_order_of_the_flows_changes_nothing():
    links, flows = all_to_all(32, 8, 3)
    order = np.random.default_rng(5).permutation(len(flows))
    again = finish_times(links, Flows(flows.routes[order], flows.nbytes[order], flows.start[order]))
    np.testing.assert_allclose(again, finish_times(links, flows)[order], rtol=1e-13)


# ---------------------------------------------------------------------------------------- no answer


def chain(length):
    """Copies of a chain of links, each flow over two neighbours: its ends become known one link a
    round."""
    first = np.arange(COPIES * length).reshape(COPIES, length)[:, :-1].ravel()
    routes = np.stack([first, first + 1], axis=1).astype(np.int32)
    return Links(np.ones(COPIES * length), np.zeros(COPIES * length)), Flows.from_lists(
        routes, np.ones(len(first))
    )


def test_refinement_gives_up_on_a_long_chain():
    short = chain(20)
    np.testing.assert_allclose(finish_times(*short), one_by_one(*short), rtol=1e-9)
    assert finish_times(*chain(2 * MAX_ROUNDS + 10)) is None


def test_many_classes_that_all_end_at_different_times_are_too_much_effort():
    rng = np.random.default_rng(4)
    links = Links(np.ones(20), np.zeros(20))
    once = Flows.from_lists(
        np.stack([rng.integers(0, 10, 1400), rng.integers(10, 20, 1400)], axis=1).astype(np.int32),
        rng.exponential(1, 1400),
    )
    many_links, many_flows, _ = copies(links, once, rng)
    assert quotient(many_links, many_flows, refine(many_links, many_flows)) is not None
    assert finish_times(many_links, many_flows) is None


def test_no_answer_without_symmetry():
    links, flows = all_to_all(16, 4, 3)
    size = np.random.default_rng(2).exponential(1e6, len(flows))
    assert finish_times(links, Flows(flows.routes, size, flows.start)) is None
    assert finish_times(links, Flows(flows.routes, flows.nbytes, size)) is None
    capacity = np.random.default_rng(2).uniform(1e9, 2e9, len(links))
    assert finish_times(Links(capacity, links.latency), flows) is None


def test_no_answer_for_what_is_not_a_plain_problem():
    links, flows = all_to_all(16, 4, 3)
    assert (
        finish_times(
            links, Flows(flows.routes, flows.nbytes, flows.start, np.array([0]), np.array([1]))
        )
        is None
    )
    # a link twice
    assert finish_times(links, Flows.from_lists(np.zeros((20, 2), np.int32), np.ones(20))) is None
    # no such link
    assert (
        finish_times(links, Flows.from_lists(np.full((20, 2), len(links), np.int32), np.ones(20)))
        is None
    )
    assert (
        finish_times(links, Flows.from_lists(np.full((20, 2), -2, np.int32), np.ones(20))) is None
    )
    assert finish_times(links, Flows.from_lists([], [])) is None


def test_flows_without_links_end_when_they_start():
    links = Links(np.ones(1), np.ones(1))
    ends = finish_times(
        links, Flows.from_lists(np.full((20, 1), -1, np.int32), np.ones(20), np.full(20, 3.0))
    )
    np.testing.assert_array_equal(ends, 3.0)
