"""Files of custom topologies that are hostile or odd: each is refused, in time, and nothing beside
them is read."""

import json
import math

import networkx as nx
import pytest

from simshuffle.errors import TopologyError
from simshuffle.extensions.interop.fabrics.reading import read_fabric
from simshuffle.fabric.topology import Custom, custom
from simshuffle.fabric.topology.graph import graph_problems

HEAD = (
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
    '<key id="k" for="node" attr.name="kind" attr.type="string"/>'
    '<key id="t" for="node" attr.name="tier" attr.type="string"/>'
    '<key id="b" for="edge" attr.name="bandwidth" attr.type="string"/>'
    '<key id="l" for="edge" attr.name="latency" attr.type="string"/>'
    '<key id="n" for="edge" attr.name="links" attr.type="long"/>'
)
NET = (
    '<graph edgedefault="{directed}">'
    '<node id="s"><data key="k">switch</data><data key="t">{tier}</data></node>'
    '<node id="h"><data key="k">host</data></node>'
    '<edge source="h" target="s"><data key="b">1 GB/s</data><data key="l">1 us</data>'
    '<data key="n">{links}</data></edge></graph></graphml>'
)


def graphml(before="", keys="", tier="leaf", links=1, directed="undirected"):
    return before + HEAD + keys + NET.format(tier=tier, links=links, directed=directed)


def nodelink(node=None, link=None, **more):
    return json.dumps(
        {
            "nodes": [{"id": "s", "kind": "switch"}, {"id": "h", "kind": "host", **(node or {})}],
            "links": [
                {"source": "h", "target": "s", "bandwidth": "1 GB/s", "latency": "1 us"}
                | (link or {})
            ],
            "multigraph": True,
            **more,
        }
    )


def graph_of(folder, content, name="net.json"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Custom(kind="custom", path=str(path)).graph()


def refusal(folder, content, name="net.graphml"):
    with pytest.raises(TopologyError) as caught:
        graph_of(folder, content, name)
    message = str(caught.value)
    assert name in message
    return message


def test_the_files_that_the_others_are_made_from_are_valid(tmp_path):
    for content, name in ((nodelink(), "net.json"), (graphml(), "net.graphml")):
        graph = graph_of(tmp_path, content, name)
        assert list(graph) == ["s", "h"] and graph.size() == 1
        assert graph_problems(graph, "") == []


@pytest.mark.parametrize("name", ["net.GRAPHML", "net.GraphML", "NET.XML", "net.JSON"])
def test_capitals_in_a_suffix_name_the_same_format(name, tmp_path):
    content = nodelink() if name.endswith("JSON") else graphml()
    assert list(graph_of(tmp_path, content, name)) == ["s", "h"]
    assert [node.name for node in read_fabric(tmp_path / name).nodes] == ["s", "h"]


def test_entities_are_not_read_from_other_files(tmp_path):
    (tmp_path / "secret.txt").write_text("a secret")
    entity = '<!DOCTYPE graphml [<!ENTITY a SYSTEM "secret.txt">]>'
    message = refusal(tmp_path, graphml(entity, tier="&a;"))
    assert "secret" not in message and "DOCTYPE" in message
    parameter = '<!DOCTYPE graphml [<!ENTITY % a SYSTEM "secret.txt"> %a;]>'
    assert "DOCTYPE" in refusal(tmp_path, graphml(parameter))
    assert "DOCTYPE" in refusal(tmp_path, graphml('<!DOCTYPE graphml SYSTEM "secret.txt">'))


def test_entities_that_grow_are_refused_before_they_do(tmp_path, monkeypatch):
    grown = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 10))
    laughs = f'<!DOCTYPE g [<!ENTITY a0 "ha">{grown}]>'
    # not by the XML library, whose own bound is hundreds of megabytes
    monkeypatch.setattr(nx, "read_graphml", lambda *_: pytest.fail("it was parsed"))
    assert "DOCTYPE" in refusal(tmp_path, graphml(laughs, tier="&a9;"))


def declared(encoding):
    return graphml(f'<?xml version="1.0" encoding="{encoding}"?>')


@pytest.mark.parametrize(
    "content",
    [
        *map(declared, ["klingon", "utf-7", "base64", "idna", "gbk"]),
        *("", "<a/>", "<graphml/>", HEAD, "\0", b"\xff\xfe<", "<?xml?>"),
    ],
)
def test_what_is_no_graphml_is_refused(content, tmp_path):
    assert "GraphML" in refusal(tmp_path, content)


def test_links_in_one_direction_are_refused_in_both_formats(tmp_path):
    assert "undirected" in refusal(tmp_path, graphml(directed="directed"))
    assert "undirected" in refusal(tmp_path, nodelink(directed=True), "net.json")


def test_there_are_not_more_links_than_memory_holds(tmp_path, monkeypatch):
    for links in (10**12, custom.MAX_LINKS + 1):
        assert "at most 1000000" in refusal(tmp_path, nodelink(link={"links": links}), "net.json")
        assert "at most 1000000" in refusal(tmp_path, graphml(links=links))
    monkeypatch.setattr(custom, "MAX_LINKS", 7)
    assert graph_of(tmp_path, nodelink(link={"links": 7})).size() == 7
    two = json.loads(nodelink(link={"links": 4}))
    two["links"] *= 2
    two["links"][1] = two["links"][1] | {"key": 1}
    assert "at most 7" in refusal(tmp_path, json.dumps(two), "net.json")  # 4 and 4
    two["links"][1]["links"] = 3
    assert graph_of(tmp_path, json.dumps(two)).size() == 7


def test_a_file_is_at_most_so_large(tmp_path, monkeypatch):
    monkeypatch.setattr(custom, "MAX_BYTES", 1 << 20)
    room = custom.MAX_BYTES - len(nodelink())
    assert len(graph_of(tmp_path, nodelink() + " " * room)) == 2
    assert "at most 1 MiB" in refusal(tmp_path, nodelink() + " " * (room + 1), "net.json")


def test_graphml_declares_at_most_so_many_attributes(tmp_path):
    more = "".join(
        f'<key id="x{i}" for="node" attr.name="x{i}" attr.type="string"><default>1</default></key>'
        for i in range(custom.MAX_KEYS - 5)
    )
    assert len(graph_of(tmp_path, graphml(keys=more), "net.graphml")) == 2
    one = '<key id="y" for="node" attr.name="y" attr.type="string"/>'
    assert "more than 100 attributes" in refusal(tmp_path, graphml(keys=more + one))


def test_what_is_no_file_is_not_opened(tmp_path):
    for path in ("/dev/zero", str(tmp_path)):
        with pytest.raises(TopologyError, match=r"is not a file|cannot be read"):
            Custom(kind="custom", path=path).graph()


@pytest.mark.parametrize("value", [[], {}, ["host"], {"a": 1}, 1, True, None, math.nan])
def test_a_node_of_an_odd_kind_is_refused(value, tmp_path):
    graph = graph_of(tmp_path, nodelink(node={"kind": value}))
    assert [p.path for p in graph_problems(graph, "net")] == ["net"]  # there is no host
    graph.nodes["s"]["kind"] = "host"
    (problem,) = graph_problems(graph, "net")
    assert problem.path == "net.nodes.h.kind" and "'host'" in problem.rule


@pytest.mark.parametrize(
    "content",
    [
        nodelink(node={"id": {}}),
        nodelink(link={"key": []}),
        nodelink(link={"key": {}}),
        nodelink(link={"source": {}}),
        nodelink(link={"latency": {}}),
        nodelink(link={"bandwidth": ["1 GB/s"]}),
        nodelink(link={"links": []}),
        nodelink(link={"links": True}),
        nodelink(link={"links": 1.0}),
        nodelink(nodes=[[]]),
        nodelink(nodes=["ab"]),
        nodelink(links=[1]),
        '{"nodes": [], "edges": 1}',
        "1" * 10_000,
        "[" * 100_000,
        b"\xff\xfe\x00",
        '"nodes"',
    ],
)
def test_odd_json_is_refused(content, tmp_path):
    refusal(tmp_path, content, "net.json")


def test_two_nodes_are_not_one(tmp_path):
    both = json.loads(nodelink())
    both["nodes"] += [{"id": 1, "kind": "host"}, {"id": "1", "kind": "host"}]
    assert "name of its own" in refusal(tmp_path, json.dumps(both), "net.json")


def test_switches_that_a_storage_system_alone_joins_are_refused(tmp_path):
    """No route leads through a switch of tier 'storage', so the hosts do not reach each other."""
    end = {"bandwidth": "1 GB/s", "latency": "1 us"}
    nodes = [{"id": name, "kind": "switch"} for name in "ab"]
    nodes += [{"id": name, "kind": "host"} for name in ("h", "g")]
    ends = [("h", "a"), ("g", "b"), ("a", "s"), ("b", "s")]
    links = [{"source": source, "target": target, **end} for source, target in ends]
    for tier, num_problems in (("spine", 0), ("storage", 1)):
        joining = {"id": "s", "kind": "switch", "tier": tier}
        graph = graph_of(tmp_path, nodelink(nodes=[*nodes, joining], links=links))
        problems = graph_problems(graph, "net")
        assert len(problems) == num_problems, tier
    assert "switch of tier 'storage'" in problems[0].rule


@pytest.mark.parametrize(
    ("key", "text", "numbers"),
    [
        ("coordinates", "0.3.12", (0, 3, 12)),
        ("coordinates", "999999999", (999999999,)),
        ("coordinates", "9999999999", None),  # more than 32 bits
        ("coordinates", "1.-2", None),
        ("coordinates", "1..2", None),
        ("ports", "12-5", (12, 5)),
        ("ports", "12", None),
        ("ports", "1-2-1", None),
    ],
)
def test_numbers_of_switches_and_links_are_read(key, text, numbers, tmp_path):
    content = json.loads(nodelink())
    (content["nodes"][0] if key == "coordinates" else content["links"][0])[key] = text
    if numbers is None:
        message = refusal(tmp_path, json.dumps(content), "net.json")
        assert "must be whole numbers with" in message and repr(text) in message
        return
    graph = graph_of(tmp_path, json.dumps(content))
    found = graph.nodes["s"][key] if key == "coordinates" else graph.edges["s", "h", 0][key]
    # in the file the host is the source; the switch comes first
    assert found == (numbers[::-1] if key == "ports" else numbers)


def test_a_file_of_just_as_many_bytes_is_read(tmp_path):
    path = tmp_path / "tables.json"
    path.write_bytes(b"12345")
    assert custom.read_limited_file(str(path), 5, "Write less.") == b"12345"
    with pytest.raises(TopologyError, match=r"must have at most 0 MiB\. Write less"):
        custom.read_limited_file(str(path), 4, "Write less.")
