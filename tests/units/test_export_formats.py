"""What is exported for ASTRA-sim, htsim and readers of InfraGraph: read back by the grammar of each
tool, it says what the program of the exchange says."""

import re
from collections import Counter
from dataclasses import replace
from graphlib import TopologicalSorter
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest

from simshuffle.api import run as simulated
from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.extensions.interop.exports import chakra, htsim
from simshuffle.extensions.interop.exports.program import make_program
from simshuffle.extensions.interop.fabrics.htsim import format_fat_tree as htsim_network
from simshuffle.extensions.interop.fabrics.imported import FabricSupplement
from simshuffle.extensions.interop.fabrics.reading import read_fabric
from simshuffle.fabric.network import Fluid
from simshuffle.fabric.network.flows import Flows, Links
from simshuffle.fabric.topology.fat_tree import FatTree
from tests.small import small

SCHEMA = Path(__file__).parents[1] / "data" / "chakra" / "et.textproto"
TREE = {
    "kind": "fat_tree",
    "levels": 2,
    "arity": 4,
    "taper": 2,
    "link_bandwidth": "100 Gbit/s",
    "cable_latency": "26 ns",
    "switch_latency": "90 ns",
}
AT_ONCE = {"kind": "streamlined", "barriers": "iteration", "overlap": False}
COMMAND = ["results", "export", "abci-imagenet1k", "--set", "cluster=small-fat-tree"]
COMMAND += ["--set", "world_size=8", "--set", "workload.allreduce.rings=1"]


def exchanging(schedule="streamlined", tree=TREE, **values):
    """Eight ranks that send three messages after the first iteration."""
    exchange = {"kind": "partial_local_shuffle", "exchange_fraction": 0.3, "schedule": schedule}
    sizes = {"mean": "100 kB", "std": "30 kB"}
    given = {"cluster__topology": tree, "workload__exchange": exchange}
    return small(**given, workload__dataset__sample_size=sizes, **values)


@pytest.fixture(scope="module", params=["streamlined", "authors", AT_ONCE], ids=str)
def made(request):
    return make_program(exchanging(request.param), 1, 1)


def messages(made):
    """Of all messages source, target, number of the step and bytes."""
    return Counter(
        (rank, int(step.target[rank]), number, round(step.nbytes[rank]))
        for number, step in enumerate(made.steps)
        for rank in np.flatnonzero(step.sends).tolist()
    )


# ----------------------------------------------------------------------------------------- chakra


@pytest.fixture(scope="module")
def schema():
    """The messages of Chakra's traces, by their names."""
    reason = "protobuf, the independent decoder of traces, is not installed"
    pb = pytest.importorskip("google.protobuf.descriptor_pb2", reason=reason)
    text_format = pytest.importorskip("google.protobuf.text_format")
    pool = pytest.importorskip("google.protobuf.descriptor_pool").DescriptorPool()
    factory = pytest.importorskip("google.protobuf.message_factory")
    pool.Add(text_format.Parse(SCHEMA.read_text(), pb.FileDescriptorProto()))
    found = factory.GetMessageClassesForFiles(["et.proto"], pool)
    return SimpleNamespace(**{name.rpartition(".")[2]: kind for name, kind in found.items()})


def decoded(schema, content):
    """The nodes of a trace; every byte of it belongs to one."""
    out, kind = [], schema.GlobalMetadata
    while content:
        place = next(number for number, byte in enumerate(content) if byte < 0x80) + 1
        size = sum((byte & 0x7F) << 7 * number for number, byte in enumerate(content[:place]))
        part, content = content[place : place + size], content[place + size :]
        message = kind.FromString(part)
        assert message.SerializeToString() == part
        out.append(message)
        kind = schema.Node
    assert out[0].version == "0.0.4"
    return out[1:]


def value(node, name):
    """An attribute, of the type that the older feeder of Chakra asks for."""
    types = {"is_cpu_op": "bool_val", "comm_type": "int64_val", "comm_size": "int64_val"}
    (attribute,) = (each for each in node.attr if each.name == name)
    assert attribute.WhichOneof("value") == types.get(name, "int32_val")
    return getattr(attribute, attribute.WhichOneof("value"))


@pytest.fixture(scope="module")
def traces(made, schema):
    """Of each rank the nodes, by their ids."""
    out = []
    for rank in range(made.world_size):
        nodes = decoded(schema, chakra.encode_trace(chakra.nodes_of_rank(made, rank)))
        by_id = {node.id: node for node in nodes}
        assert len(by_id) == len(nodes)
        out.append(by_id)
    return out


def test_every_send_of_a_trace_has_its_receipt_and_the_bytes_of_the_program(made, traces):
    found = {chakra.SEND: Counter(), chakra.RECV: Counter()}
    for rank, nodes in enumerate(traces):
        for node in nodes.values():
            if node.type in found:
                keys = ("comm_src", "comm_dst", "comm_tag", "comm_size")
                message = tuple(value(node, key) for key in keys)
                assert message[node.type == chakra.RECV] == rank
                found[node.type][message] += 1
    assert found[chakra.SEND] == found[chakra.RECV] == messages(made)


def before(nodes, node):
    """Ids of all that must be done before a node."""
    out, todo = set(), list(node.data_deps)
    while todo:
        one = todo.pop()
        if one not in out:
            out.add(one)
            todo += nodes[one].data_deps
    return out


def test_a_trace_waits_as_the_schedule_does(made, traces):
    for nodes in traces:
        tuple(TopologicalSorter({i: set(n.data_deps) for i, n in nodes.items()}).static_order())
        assert all(set(node.data_deps) <= set(nodes) for node in nodes.values())
        (store,) = (node for node in nodes.values() if node.name == "store")
        done = before(nodes, store)
        for node in nodes.values():
            names = {nodes[one].name for one in before(nodes, node)}
            if node.type in {chakra.SEND, chakra.RECV}:
                assert node.id in done
                number = value(node, "comm_tag")
                assert {"forward", "backward", "gradients", "update"} <= names
                barriers = sum(nodes[one].name == "barrier" for one in before(nodes, node))
                assert barriers == sum(made.barrier_before[: number + 1])
                works = {f"work {k}" for k in range(number + 1)}
                assert works <= names or node.type == chakra.RECV
        assert {f"work {k}" for k in range(len(made.steps))} <= {nodes[i].name for i in done}
        assert ("next backward" in {nodes[i].name for i in done}) == made.overlap
        after = [node for node in nodes.values() if store.id in before(nodes, node)]
        assert [node.name for node in after] == ["barrier"] * made.barrier_after


def test_durations_of_a_trace_are_those_of_the_program_and_barriers_are_tiny_allreduces(
    made, traces
):
    of = made.gradients
    for rank, nodes in enumerate(traces):
        wanted = {
            "forward": of.forward_s[rank],
            "backward": of.backward_s[rank],
            "update": of.update_s,
            "store": made.store_s[rank],
        } | {f"work {k}": step.before_s[rank] for k, step in enumerate(made.steps)}
        if made.overlap:
            wanted |= {f"next {name}": wanted[name] for name in ("forward", "backward")}
        computed = {n.name: n for n in nodes.values() if n.type == chakra.COMP}
        assert computed.keys() == wanted.keys()
        for name, node in computed.items():
            assert node.duration_micros == pytest.approx(wanted[name] * 1e6, abs=0.5)
            assert value(node, "is_cpu_op") == (name == "store" or name.startswith("work"))
        summed = [n for n in nodes.values() if n.type == chakra.COLL]
        assert not any(value(node, "comm_type") for node in summed)  # ALL_REDUCE is 0
        barriers = sum(made.barrier_before) + made.barrier_after
        sizes = [round(of.nbytes)] + [1] * barriers
        assert [value(node, "comm_size") for node in summed] == sizes


def test_traces_come_to_their_end_under_the_rules_of_astra_sim(made):
    """A rank has one node on its CPU, one on its accelerator and one send or collective at a time,
    that with the lowest id first; a collective ends when all ranks are at the same one."""
    ranks = range(made.world_size)
    todo = [{node.id: node for node in chakra.nodes_of_rank(made, rank)} for rank in ranks]
    sent, summed = set(), [0 for _ in ranks]
    moved = True
    while moved:
        moved, summing = False, {}
        for rank in ranks:
            occupied = set()
            for node in list(todo[rank].values()):
                place = node.kind == chakra.COMP, node.attributes["is_cpu_op"]
                ready = not any(one in todo[rank] for one in node.dependencies)
                if not ready or (node.kind != chakra.RECV and place in occupied):
                    continue
                message = tuple(node.attributes.get(f"comm_{key}") for key in ("src", "dst", "tag"))
                if node.kind == chakra.COLL:
                    occupied.add(place)
                    key = (summed[rank], node.name, node.attributes["comm_size"])
                    summing.setdefault(key, []).append((rank, node.id))
                    continue
                if node.kind == chakra.RECV and message not in sent:
                    continue
                if node.kind == chakra.SEND:
                    sent.add(message)
                del todo[rank][node.id]
                moved = True
        for arrived in summing.values():
            if len(arrived) == made.world_size:
                for rank, number in arrived:
                    del todo[rank][number]
                    summed[rank] += 1
                moved = True
    assert not any(todo)


def test_with_storage_reading_and_writing_are_nodes_with_their_bytes(made, traces, schema):
    """By what the program says: a rank reads, works and sends, and in the end unpacks and writes;
    together that takes as long as where reading is work, and all else is the same."""
    for rank, plain in enumerate(traces):
        nodes = decoded(schema, chakra.encode_trace(chakra.nodes_of_rank(made, rank, storage=True)))
        found = [node for node in nodes if node.HasField("storage")]
        assert [node.type for node in found] == [8] * len(found)
        assert {node.storage.level for node in found} == {1}
        told = [(n.name, n.storage.fs.op, n.storage.fs.size_bytes) for n in found]
        reads = [(f"read {k}", 3, s.read_nbytes[rank]) for k, s in enumerate(made.steps)]
        wanted = [*reads, ("write", 4, made.write_nbytes[rank])]
        assert told == [(name, op, round(nbytes)) for name, op, nbytes in wanted if nbytes]
        took = [node.duration_micros for node in found]
        seconds = [*(step.read_s[rank] for step in made.steps), made.write_s[rank]]
        assert took == [
            round(1e6 * s) for s, (_, _, size) in zip(seconds, wanted, strict=True) if size
        ]
        total = sum(node.duration_micros for node in plain.values())
        assert sum(node.duration_micros for node in nodes) == pytest.approx(total, abs=len(nodes))
        names = [node.name for node in nodes if not node.HasField("storage")]
        assert names == [node.name for node in plain.values()]
        work = next(node for node in nodes if node.name == "work 0")
        if reads[0][2]:
            assert [n.name for n in nodes if n.id in work.data_deps] == ["read 0"]
    assert any(step.read_nbytes.any() for step in made.steps)


def test_large_numbers_are_encoded_whole(schema):
    node = chakra.ChakraNode(
        2**40, "x" * 300, chakra.SEND, (1, 128, 2**35), 9e9, {"comm_size": 2**62}
    )
    (found,) = decoded(schema, chakra.encode_trace([node]))
    assert (found.id, found.name, value(found, "comm_size")) == (2**40, "x" * 300, 2**62)
    assert (list(found.data_deps), found.duration_micros) == ([1, 128, 2**35], 9 * 10**15)


# ------------------------------------------------------------------------------------------ htsim


def read_matrix(text):
    """Connections and triggers by the grammar of htsim, which ends at a word that it does not
    know."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    head = dict(line.split(" ") for line in lines[:3])
    connections, triggers = {}, {}
    for line in lines[3:]:
        first, *words = line.split(" ")
        if first == "trigger":
            key, number, kind = words
            assert (key, kind) == ("id", "oneshot")
            assert int(number) not in triggers
            triggers[int(number)] = kind
            continue
        found = dict(zip(words[::2], words[1::2], strict=True))
        assert found.keys() <= {"id", "start", "trigger", "size", "send_done_trigger"}
        assert ("start" in found) != ("trigger" in found)
        assert words[0] == "id"  # before the trigger
        ends = re.fullmatch(r"(\d+)->(\d+)", first)
        numbers = {key: int(text) for key, text in found.items()}
        assert 0 < numbers["size"] < 2**31
        assert numbers["id"] not in connections
        connections[numbers["id"]] = numbers | {"from": int(ends[1]), "to": int(ends[2])}
    assert {key: int(text) for key, text in head.items()} == {
        "Nodes": int(head["Nodes"]),
        "Connections": len(connections),
        "Triggers": len(triggers),
    }
    assert all(max(c["from"], c["to"]) < int(head["Nodes"]) for c in connections.values())
    return connections, triggers


def test_a_matrix_has_the_messages_of_the_program_and_starts_when_their_work_is_done(made):
    found, inside = htsim.connections(made, made.resources.host_of)
    connections, triggers = read_matrix(htsim.matrix(made, 16, found))
    assert not triggers
    assert not inside
    wanted = Counter((a, b, size) for a, b, _, size in messages(made).elements())
    assert Counter((c["from"], c["to"], c["size"]) for c in connections.values()) == wanted
    ready = htsim.ready_seconds(made)
    starts = Counter(
        round(ready[number][rank] * 1e12) for rank, _, number, _ in messages(made).elements()
    )
    assert Counter(c["start"] for c in connections.values()) == starts


def test_starts_have_the_work_before_and_the_barriers_in_them():
    made = make_program(exchanging("authors"), 1, 1)
    work = np.arange(8.0)
    steps = [replace(step, read_s=0 * work, work_s=work) for step in made.steps[:2]]
    gradients = replace(made.gradients, update_s=100.0)
    made = replace(made, steps=steps, gradients=gradients, barrier_s=1.0, latency_s=0.5)
    first, second = htsim.ready_seconds(made)
    np.testing.assert_allclose(first, 100 + 1 + work + 0.5)
    np.testing.assert_allclose(second, 100 + 1 + 7 + 1 + work + 0.5)
    _, second = htsim.ready_seconds(replace(made, barriers="iteration"))
    np.testing.assert_allclose(second, 100 + 1 + 2 * work + 0.5)


def test_messages_of_two_ranks_wait_for_each_other_where_they_would_overlap():
    """On slow links all of them; a message that is ready when the one before has arrived does
    not."""
    lasting = {"kind": "streamlined", "partner_lifetime": "epoch"}
    made = make_program(exchanging(lasting, TREE | {"link_bandwidth": "1 MB/s"}), 1, 1)
    assert made.serial_pairs
    found, _ = htsim.connections(made, made.resources.host_of)
    connections, triggers = read_matrix(htsim.matrix(made, 16, found))
    steps = len(made.steps)
    assert len(triggers) == len(connections) * (steps - 1) // steps > 0
    ended = {c["send_done_trigger"]: c for c in connections.values() if "send_done_trigger" in c}
    begun = {c["trigger"]: c for c in connections.values() if "trigger" in c}
    assert ended.keys() == begun.keys() == triggers.keys()
    for number, waiting in begun.items():
        earlier = ended[number]
        assert (earlier["from"], earlier["to"]) == (waiting["from"], waiting["to"])
        assert earlier["id"] < waiting["id"]
    relaxed = [replace(step, work_s=step.work_s + 10) for step in made.steps]
    for other in (replace(made, serial_pairs=False), replace(made, steps=relaxed)):
        assert not any(
            message.waits_for for message in htsim.connections(other, made.resources.host_of)[0]
        )


def test_a_message_waits_for_one_that_has_itself_waited():
    """Each is 0.2 s on its way: the second until 0.4 s, when the third, of 0.35 s, is ready."""
    lasting = {"kind": "streamlined", "partner_lifetime": "epoch"}
    made = make_program(exchanging(lasting, TREE | {"link_bandwidth": "1 MB/s"}), 1, 1)
    nbytes = np.where(made.steps[0].sends, 2e5, 0)
    steps = [
        replace(made.steps[0], read_s=np.zeros(8), work_s=np.full(8, before), nbytes=nbytes)
        for before in (0.0, 0.1, 0.25, 1.0)
    ]
    made = replace(made, steps=steps, latency_s=0.0, gradients=replace(made.gradients, update_s=0))
    found, _ = htsim.connections(made, made.resources.host_of)
    ranks = len(found) // 4
    waits = [message.waits_for > 0 for message in found]
    assert waits == [False] * ranks + [True] * 2 * ranks + [False] * ranks


@pytest.mark.parametrize("schedule", [{"partner_lifetime": "epoch"}, {"kind": "authors"}], ids=str)
def test_a_matrix_played_in_the_fluid_network_ends_as_the_simulation_does(schedule):
    scenario = exchanging(schedule | {"overlap": False}, TREE | {"link_bandwidth": "1 Gbit/s"})
    phases = simulated(scenario).timeline.phases
    phases = phases[phases["iteration"] == 1]
    summed = phases[phases["phase"] == "allreduce"]["end_s"].max()
    exchanged = phases[phases["phase"].isin(["exchange", "wait_exchange"])]
    wanted = exchanged.groupby("rank")["end_s"].max().to_numpy() - summed
    made = make_program(scenario, 1, 1)
    messages, _ = htsim.connections(made, made.resources.host_of)
    connections = [*read_matrix(htsim.matrix(made, 16, messages))[0].values()]
    route = {
        (rank, int(step.target[rank])): step.route[rank][step.route[rank] >= 0]
        for step in made.steps
        for rank in range(made.world_size)
    }
    released = {c.get("send_done_trigger"): place for place, c in enumerate(connections)}
    flows = Flows.from_lists(
        [route[c["from"], c["to"]] for c in connections],
        [c["size"] for c in connections],
        [c.get("start", 0) / 1e12 for c in connections],
        [[released[c["trigger"]]] if "trigger" in c else [] for c in connections],
    )
    ended = (
        Fluid()
        .finish_times(Links(made.resources.links.capacity, made.resources.links.latency), flows)
        .finish
    )
    arrived = htsim.ready_seconds(made)[-1] - made.latency_s
    for connection, end in zip(connections, ended, strict=True):
        for rank in (connection["from"], connection["to"]):
            arrived[rank] = max(arrived[rank], end)
    found = arrived + made.store_s
    if made.barrier_after:
        found = np.full(8, found.max() + made.barrier_s)
    np.testing.assert_allclose(found, wanted, rtol=5e-4)


def test_messages_inside_of_a_host_are_left_out_and_hosts_have_the_numbers_of_the_network():
    scenario = exchanging(cluster__host__gpus=2, cluster__placement="scattered", seed=3)
    made = make_program(scenario, 1, 1)
    numbers = htsim.host_numbers(made)
    assert len(set(numbers.tolist())) == 4
    assert (numbers[::2] == numbers[1::2]).all()
    found, inside = htsim.connections(made, numbers)
    ends = [(numbers[a], numbers[b]) for a, b, _, _ in messages(made).elements()]
    assert inside == sum(a == b for a, b in ends) > 0
    assert Counter((c.source, c.target) for c in found) == Counter(
        (a, b) for a, b in ends if a != b
    )


def test_a_message_too_large_for_htsim_is_refused():
    made = make_program(exchanging(), 1, 1)
    steps = [replace(made.steps[0], nbytes=made.steps[0].nbytes * 2e5)]
    with pytest.raises(InputError, match=r"at most 2\.147 GB for htsim"):
        htsim.connections(replace(made, steps=steps), made.resources.host_of)


def built(text):
    """The network that htsim makes of a file, with its checks: see FatTreeTopology::load,
    set_custom_params and init_network."""
    blocks = [
        {line.split(" ")[0]: int(line.split(" ")[1]) for line in block.splitlines()}
        for block in text.split("\n\n")
    ]
    (head, *tiers), graph = blocks, nx.Graph()
    nodes, pod = head["Nodes"], head["Podsize"]
    assert [tier["Tier"] for tier in tiers] == list(range(head["Tiers"]))
    assert head["Tiers"] in {2, 3}
    assert all(tier["Downlink_speed_Gbps"] and tier["Downlink_Latency_ns"] for tier in tiers)
    pods, bundles = nodes // pod, [tier.get("Bundle", 1) for tier in tiers]
    down = [tier["Radix_Down"] for tier in tiers]
    up = [tier.get("Radix_Up", 0) for tier in tiers]
    over = [tier.get("Oversubscribed", 1) for tier in tiers]
    assert not nodes % pod
    assert not pod % down[0]
    uplinks = nodes // over[0]
    assert down[0] == up[0] * over[0]
    aggs = uplinks // (pods * down[1])
    assert aggs * bundles[1] == up[0]
    tors = pod // down[0]
    for host in range(nodes):
        graph.add_edge(host, f"tor{host // down[0]}", links=1)
    for p, tor, agg in product(range(pods), range(tors), range(aggs)):
        graph.add_edge(f"tor{p * tors + tor}", f"agg{p * aggs + agg}", links=bundles[1])
    if head["Tiers"] == 3:
        cores = uplinks // over[1] // down[2]
        assert cores * bundles[2] == up[1] * aggs
        for agg, n in product(range(pods * aggs), range(up[1] // bundles[2])):
            assert agg % aggs + aggs * n < cores
            graph.add_edge(f"agg{agg}", f"core{agg % aggs + aggs * n}", links=bundles[2])
    return graph, tiers


@pytest.mark.parametrize(
    "keys",
    [
        {"arity": 4, "levels": 2, "taper": 2},
        {"arity": 2, "levels": 3},
        {"ports": 4, "hosts": 16},
        {"ports": 8, "hosts": 16, "levels": 2},
        {"ports": 8, "hosts": 24, "taper": 3, "levels": 2},
        {"ports": 8, "hosts": 32, "levels": 3},
    ],
    ids=str,
)
def test_htsim_makes_the_same_tree_of_its_file(keys):
    tree = FatTree.model_validate(
        {key: value for key, value in TREE.items() if key not in {"levels", "arity", "taper"}}
        | keys
    )
    text, why = htsim_network(tree)
    assert not why
    found, tiers = built(text)
    wanted = nx.Graph()
    for a, b in tree.graph().edges():
        ends = [int(end[1:]) if re.fullmatch(r"h\d+", end) else end for end in (a, b)]
        links = wanted.get_edge_data(*ends, {"links": 0})["links"]
        wanted.add_edge(*ends, links=links + 1)
    for graph in (found, wanted):
        nx.set_node_attributes(
            graph, {node: node if isinstance(node, int) else -1 for node in graph}, "host"
        )
    assert nx.is_isomorphic(
        found,
        wanted,
        node_match=lambda a, b: a["host"] == b["host"],
        edge_match=lambda a, b: a["links"] == b["links"],
    )
    assert {tier["Downlink_speed_Gbps"] for tier in tiers} == {100}
    assert {(t["Downlink_Latency_ns"], t["Switch_Latency_ns"]) for t in tiers} == {(26, 90)}


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"levels": 1, "taper": 1}, "has 1 levels"),
        ({"hosts": 14}, "14 hosts, but room for 16"),
        ({"rails": 2}, "hosts have 2 links"),
        ({"arity": 6, "taper": 1.5}, "taper is 6:4"),
        ({"link_bandwidth": "12.55 GB/s"}, "not a whole number of Gbit/s"),
        ({"arity": 68, "taper": 2, "hosts": 136}, "switches of 102 ports"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_tree_that_htsim_cannot_have_is_said_to_be_one(keys, why):
    text, obstacle = htsim_network(FatTree.model_validate(TREE | keys))
    assert not text
    assert why in obstacle


# ------------------------------------------------------------------------------------ of the verb


def test_the_verb_writes_a_trace_for_each_rank(here, capsys):
    assert main([*COMMAND, "--to", "chakra", "--iteration", "2", "--out", "traces"]) == 0
    printed = capsys.readouterr()
    assert "--workload-configuration=traces/exchange" in printed.err
    assert printed.out == "Written: traces\n"
    names = {path.name for path in (here / "traces").iterdir()}
    assert names == {f"exchange.{rank}.et" for rank in range(8)} | {"simshuffle-export.json"}


def test_the_verb_writes_matrix_and_tree(here, capsys):
    assert main([*COMMAND, "--to", "htsim", "--out", "h"]) == 0
    assert "-tm h/exchange.cm -topo h/network.topo" in capsys.readouterr().err
    connections, _ = read_matrix((here / "h/exchange.cm").read_text())
    graph, _ = built((here / "h/network.topo").read_text())
    assert {c["from"] for c in connections.values()} <= set(graph)
    again = [*COMMAND, "--to", "htsim", "--out", "h"]
    again[4] = "cluster=abci"
    assert main(again) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*again, "--force"]) == 0
    assert "of kind abci, and no fat tree" in capsys.readouterr().err
    assert {path.name for path in (here / "h").iterdir()} == {
        "exchange.cm",
        "simshuffle-export.json",
    }
    assert main([*again[:6], "world_size=4", *again[7:], "--force"]) == 2
    assert "must have messages that cross a cable" in capsys.readouterr().err
    assert (here / "h/exchange.cm").is_file()


def test_the_verb_writes_what_topology_export_writes_and_import_reads(here):
    assert main([*COMMAND, "--to", "infragraph", "--out", "a.json"]) == 0
    assert (
        main(["machine", "export", "small-fat-tree", "--to", "infragraph", "--out", "b.json"]) == 0
    )
    assert (here / "a.json").read_bytes() == (here / "b.json").read_bytes()
    assert main(["machine", "import", "a.json", "--out", "c.json"]) == 0
    found = read_fabric(here / "a.json", FabricSupplement())
    assert (len(found.nodes_of_kind("host")), len(found.cables)) == (16, 24)
    assert {cable.bandwidth for cable in found.cables} == {12.5e9}


def test_a_trace_with_storage_is_said_not_to_be_for_astra_sim(here, capsys):
    assert main([*COMMAND, "--to", "chakra-storage", "--out", "traces"]) == 0
    assert "for ASTRA-sim, use --to chakra" in capsys.readouterr().err
    assert len(list((here / "traces").glob("*.et"))) == 8
