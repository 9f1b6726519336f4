"""Fabrics from files of other tools: what is read, what is refused and where, what is written."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from simshuffle.cli import main
from simshuffle.errors import TopologyError
from simshuffle.extensions.interop.fabrics import ibsim, infragraph
from simshuffle.extensions.interop.fabrics.ibnetdiscover import fabric_of
from simshuffle.extensions.interop.fabrics.imported import (
    FabricSupplement,
    natural_key,
    opensm_order,
    unique_names,
)
from simshuffle.extensions.interop.fabrics.infiniband import (
    LANE_GBIT,
    bandwidth_of_rate,
    rate_of_bandwidth,
)
from simshuffle.extensions.interop.fabrics.lfts import parse_tables, read_tables
from simshuffle.extensions.interop.fabrics.network_fabric import fabric_of_network, format_graphml
from simshuffle.extensions.interop.fabrics.reading import read_fabric
from simshuffle.fabric.topology.cabling import Cabling
from simshuffle.fabric.topology.custom import Custom
from simshuffle.job.scenario.scenario import load_scenario, machine_of
from tests.strategies import fat_tree

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "fabrics"
RACK = DATA / "rack.ibnet"
DUMP = DATA / "rack-lfts.dump"
SHARED = ROOT.parent / "shared" / "fabrics"
GB = 1e9


def rack_text():
    return RACK.read_text()


def refusal(text, tmp_path, name="net.txt", missing=None):
    """The one problem of a file with that text, as (path, rule, value, remedy)."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TopologyError) as caught:
        read_fabric(path, missing)
    assert caught.value.source == str(path)
    problem = caught.value.problems[0]
    assert problem.remedy
    return problem


def cabled(fabric):
    """The cables of a fabric as a count of (ends, ports, bandwidth), each from its lesser end."""
    out = Counter()
    for cable in fabric.cables:
        both = sorted(zip(cable.ends, cable.ports, strict=True))
        out[*both, cable.bandwidth] += 1
    return out


# ---------------------------------------------------------------------------------------- rates


@pytest.mark.parametrize(
    ("rate", "gigabytes"),
    [
        ("4xSDR", 1), ("4xDDR", 2), ("4xQDR", 4), ("4xFDR10", 5), ("4xFDR", 6.8182),
        ("4xEDR", 12.5), ("4xHDR", 25), ("2xHDR", 12.5), ("4xNDR", 50), ("2xNDR", 25),
        ("4xXDR", 100), ("12xQDR", 12), ("1xSDR", 0.25),
    ],
)  # fmt: skip
def test_a_width_and_speed_carry_what_is_left_after_the_line_code(rate, gigabytes):
    assert bandwidth_of_rate(rate) == pytest.approx(gigabytes * GB, rel=1e-5)


@pytest.mark.parametrize("rate", ["", "4x", "xNDR", "3xNDR", "4xZDR", "4xndr", "NDR", "4xNDR "])
def test_what_is_no_rate_has_no_bandwidth(rate):
    assert bandwidth_of_rate(rate) is None


@pytest.mark.parametrize("speed", LANE_GBIT)
def test_a_rate_is_found_from_what_it_carries(speed):
    assert bandwidth_of_rate(
        rate_of_bandwidth(bandwidth_of_rate(f"4x{speed}"))
    ) == bandwidth_of_rate(f"4x{speed}")
    assert rate_of_bandwidth(12345.0) == ""


# -------------------------------------------------------------------------------- ibnetdiscover


def test_hosts_switches_cables_ports_and_rates_of_a_small_fabric():
    fabric = read_fabric(RACK)
    assert [node.name for node in fabric.nodes_of_kind("host")] == [
        "node1",
        "node2",
        "node3",
        "node4",
    ]
    assert sorted(node.name for node in fabric.nodes_of_kind("switch")) == [
        "leaf1", "leaf2", "spine1", "spine2",
    ]  # fmt: skip
    assert len(fabric.nodes_of_kind("other")) == 4  # login, a nameless one, two aggregation nodes
    assert (fabric.adapters, len(fabric.cables), fabric.hcas) == (12, 20, 2)
    both = cabled(fabric)
    assert both[("leaf1", 3), ("node3", 1), 25 * GB] == 1
    assert both[("leaf2", 3), ("node3", 2), 25 * GB] == 1
    assert both[("leaf2", 9), ("spine2", 4), 12.5 * GB] == 1
    assert fabric.tiers["leaf1"] == "leaf"
    assert fabric.tiers["spine2"] == "level2"
    adapters = {cable.adapter for cable in fabric.cables if "node3" in cable.ends}
    assert adapters == {"mlx5_0", "mlx5_1"}
    assert fabric.lids[9] == ("node3", 1)
    assert fabric.ports["e09d730300000051"] == ("node3", 1)


def test_what_is_left_out_is_said():
    fabric = read_fabric(RACK)
    told = "\n".join(fabric.left_out)
    assert "aggregation nodes of switches: 2" in told
    assert "names no host: 1, such as 'MT4123 ConnectX6 Mellanox Technologies'" in told
    assert "hosts that do not have 2 adapter ports: 1 (login)" in told


def test_a_slow_cable_is_named_with_what_it_costs():
    (slow,) = read_fabric(RACK).slow_cables
    assert slow.factor == 2
    assert str(slow) == (
        "leaf2 port 9 to spine2 port 4: 2xHDR instead of 4xHDR; uniform traffic over this cable"
        " takes 2 times as long"
    )


def test_a_mended_fabric_has_the_same_cables_none_of_them_slow():
    fabric = read_fabric(RACK)
    mended = fabric.with_usual_bandwidths()
    assert mended.slow_cables == []
    changed = [(a, b) for a, b in zip(fabric.cables, mended.cables, strict=True) if a != b]
    ((slow, whole),) = changed
    assert (slow.ends, slow.ports) == (whole.ends, whole.ports)
    assert whole.bandwidth == 2 * slow.bandwidth


def test_slow_is_what_is_slower_than_others_between_the_same_levels():
    """Cables of adapters may all be slower than those between switches."""
    text = rack_text().replace("2xHDR", "4xHDR")
    lines = [
        line.replace("4xHDR", "4xEDR") if '"H-' in line or " lmc 0 " in line else line
        for line in text.splitlines()
    ]
    fabric = fabric_of("\n".join(lines), "x", FabricSupplement())
    assert Counter(cable.rate for cable in fabric.cables) == {"4xEDR": 12, "4xHDR": 8}
    assert fabric.slow_cables == []


def test_switches_stand_in_the_order_in_which_opensm_takes_them():
    fabric = read_fabric(RACK)
    guids = [node.guid for node in fabric.nodes_of_kind("switch")]
    assert guids == sorted(guids, key=opensm_order)
    assert opensm_order("100000000000000") == 1
    assert opensm_order("1") == 1 << 56


def depth_of(fabric):
    cabling = Cabling.from_graph(fabric.sketch())
    return dict(zip(cabling.names, cabling.depth.tolist(), strict=True))


def test_an_adapter_at_a_spine_does_not_make_it_a_leaf():
    guid = "e09d7303000000c0"  # the aggregation node of spine1
    text = re.sub(rf'({guid}.*)"Mellanox[^"]*"', r'\1"watch mlx5_0"', rack_text())
    fabric = fabric_of(text, "x", FabricSupplement())
    assert {node.name for node in fabric.nodes_of_kind("host")} == {f"node{n}" for n in range(1, 5)}
    depth = depth_of(fabric)
    assert [depth[name] for name in ("leaf1", "leaf2", "spine1", "spine2")] == [0, 0, 1, 1]


def test_a_leaf_whose_hosts_take_no_part_is_no_top_switch():
    """The file system would be attached to it alone."""
    text = re.sub(r'"node(\d) mlx5_1"', r'"MT4123 number \1"', rack_text())
    fabric = fabric_of(text, "x", FabricSupplement())
    hosts = {node.name for node in fabric.nodes_of_kind("host")}
    assert hosts == {"login", *(f"node{n}" for n in range(1, 5))}
    assert not any("leaf2" in cable.ends and hosts & set(cable.ends) for cable in fabric.cables)
    depth = depth_of(fabric)
    assert [depth[name] for name in ("leaf1", "leaf2", "spine1", "spine2")] == [0, 0, 1, 1]


def test_an_adapter_alone_is_a_host_and_numbers_sort_as_numbers():
    text = re.sub(r'"node(\d) mlx5_(\d)"', r'"Hca\1\2"', rack_text()).replace(
        '"login mlx5_0"', '"Hca9"'
    )
    fabric = fabric_of(text, "x", FabricSupplement())
    assert [node.name for node in fabric.nodes_of_kind("host")] == [
        "Hca9", "Hca10", "Hca11", "Hca20", "Hca21", "Hca30", "Hca31", "Hca40", "Hca41",
    ]  # fmt: skip
    assert sorted(["n10", "n9", "n1a"], key=natural_key) == ["n1a", "n9", "n10"]


def test_without_any_name_each_adapter_is_a_host():
    text = re.sub(
        r'"(node\d|login) mlx5_\d"', '"MT4123 ConnectX6 Mellanox Technologies"', rack_text()
    )
    fabric = fabric_of(text, "x", FabricSupplement())
    assert len(fabric.nodes_of_kind("host")) == 10
    assert fabric.warnings == [
        "no adapter's description names a host, so each adapter counts as a host"
    ]


def test_a_switch_that_is_called_as_a_host_gets_another_name():
    fabric = fabric_of(rack_text().replace("MF0;leaf1:", "MF0;node1:"), "x", FabricSupplement())
    names = [node.name for node in fabric.nodes]
    assert len(set(names)) == len(names)
    assert "node1.2c5eab0300000a00" in names


def test_names_are_unique_and_fit_those_of_links():
    assert unique_names([("a", "1"), ("b c", "2"), ("a", "3"), ("", "4"), ("x>y#z", "5")]) == [
        "a.1", "b_c", "a.3", "4", "x_y_z",
    ]  # fmt: skip


def test_no_part_of_a_file_is_taken_for_the_whole(tmp_path):
    """Switches stand first. Once they are whole, they name every cable of an adapter too."""
    lines = rack_text().splitlines()
    first_adapter = next(number for number, line in enumerate(lines) if line.startswith("Ca"))
    last = max(number for number, line in enumerate(lines) if line.startswith("["))
    whole = cabled(read_fabric(RACK))
    for end in range(6, last, 3):
        text = "\n".join(lines[:end])
        if end <= first_adapter:
            problem = refusal(text, tmp_path)
            begun = any(line.startswith("[") for line in lines[:end])
            assert bool(re.fullmatch(r"line \d+", problem.path)) == begun, end
            assert "cut off" in problem.remedy or "again" in problem.remedy or not begun
            continue
        fabric = fabric_of(text, "x", FabricSupplement())
        assert cabled(fabric) == whole
        assert "adapters without a record, read from" in "\n".join(fabric.warnings)


@pytest.mark.parametrize("rate", ["4x12", "4xZDR", "0xHDR", ""])
def test_a_cable_without_a_known_rate_takes_what_is_given(rate, tmp_path):
    problem = refusal(rack_text().replace("2xHDR", rate), tmp_path)
    assert "such as 4xNDR" in problem.rule or not rate
    assert "--link-bandwidth" in problem.remedy
    fabric = read_fabric(tmp_path / "net.txt", FabricSupplement(bandwidth=10 * GB))
    rates = {cable.bandwidth for cable in fabric.cables}
    assert (min(rates), max(rates)) == (10 * GB, 25 * GB)


def test_routers_are_left_out(tmp_path):
    text = rack_text().replace('Ca\t1 "H-e09d7303000000a0"', 'Rt\t1 "H-e09d7303000000a0"')
    path = tmp_path / "net.txt"
    path.write_text(text)
    fabric = read_fabric(path)
    assert fabric.left_out[0] == "routers: 1"
    assert len(fabric.cables) == 19


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path):
    with pytest.raises(TopologyError, match="cannot be read"):
        read_fabric(tmp_path / "none")
    with pytest.raises(TopologyError, match="is not a file"):
        read_fabric(tmp_path)
    path = tmp_path / "bytes"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TopologyError, match="UTF-8"):
        read_fabric(path)


# --------------------------------------------------------------------------- the samples of others


def pod(tmp_path):
    """The DGX H100 pod of github.com/NVIDIA/topograph."""
    path = tmp_path / "pod.out"
    packed = (ROOT / "tests" / "data" / "opensm" / "dgx-pod.net.gz").read_bytes()
    path.write_bytes(gzip.decompress(packed))
    return path


def test_the_dgx_pod_is_read_whole(tmp_path):
    fabric = read_fabric(pod(tmp_path))
    assert (fabric.adapters, len(fabric.nodes_of_kind("switch"))) == (582, 40)
    assert len(fabric.cables) == 1114
    assert (len(fabric.nodes_of_kind("host")), fabric.hcas) == (109, 4)
    assert {cable.bandwidth for cable in fabric.cables} == {50 * GB}
    assert Counter(fabric.tiers[node.name] for node in fabric.nodes_of_kind("switch")) == {
        "leaf": 31, "level2": 9,
    }  # fmt: skip
    assert len(fabric.nodes_of_kind("other")) == 40 + 69 + 13


@pytest.mark.parametrize(
    ("name", "adapters", "switches", "hosts"),
    [("cyberang3l-k4n3.topo", 128, 80, 128), ("loginoff.topo", 144, 8, 143)],
)
def test_samples_of_unknown_licence(name, adapters, switches, hosts):
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    fabric = read_fabric(path)
    assert fabric.adapters == adapters
    assert len(fabric.nodes_of_kind("switch")) == switches
    assert len(fabric.nodes_of_kind("host")) == hosts


# -------------------------------------------------------------------------------------- tables


def test_tables_of_opensm_are_read_by_guid_and_by_lid():
    fabric = read_fabric(RACK)
    tables = read_tables(DUMP, fabric)
    assert tables.destinations[tables.destinations.index(("node3", 1))] == ("node3", 1)
    column = tables.destinations.index(("node3", 1))
    assert tables.switches["leaf1"][column] == 3
    by_lid = re.sub(r" # .*", "", DUMP.read_text())
    assert parse_tables(by_lid, DUMP.name, fabric) == tables
    as_ibroute = DUMP.read_text().replace(" # Channel", " : (Channel")
    assert parse_tables(as_ibroute, DUMP.name, fabric) == tables


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (lambda text: text[: text.index("'MF0;spine1")], "must have"),
        (lambda text: text.replace("00a00 ('MF0", "00aff ('MF0"), "of the fabric"),
        (lambda text: text.replace("0x0005 ", "nonsense "), "line of a forwarding table"),
        (lambda text: "\n", "must hold forwarding tables"),
        (lambda text: re.sub(r"0x0005 \d+.*\n", "", text), "host ports"),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit_are_refused(damage, rule):
    fabric = read_fabric(RACK)
    text = DUMP.read_text()
    assert damage(text) != text
    with pytest.raises(TopologyError) as caught:
        parse_tables(damage(text), "dump", fabric)
    assert rule in caught.value.problems[0].rule


# --------------------------------------------------------------------------------------- Slurm


CONF = (DATA / "topology.conf").read_text()
GIVEN = FabricSupplement(bandwidth=25 * GB)


def written(text, tmp_path, name):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["topology.conf", "topology.yaml"])
def test_a_tree_of_slurm(name):
    fabric = read_fabric(DATA / name, GIVEN)
    hosts = [node.name for node in fabric.nodes_of_kind("host")]
    assert sorted(hosts) == ["a1", "b2x", "b3x", "dev00", "dev01", "dev02", "dev03", "dev9"]
    links = Counter(frozenset(cable.ends) for cable in fabric.cables)
    assert links[frozenset(("s0", "top"))] == 5
    assert links[frozenset(("s1", "top"))] == 3
    assert links[frozenset(("b3x", "s1"))] == 1
    assert any("estimate" in text for text in fabric.warnings)
    few = read_fabric(DATA / name, FabricSupplement(25 * GB, links_up=2))
    links = Counter(frozenset(cable.ends) for cable in few.cables)
    assert links[frozenset(("s0", "top"))] == 2


def test_blocks_of_slurm_are_joined_by_one_switch(tmp_path):
    fabric = read_fabric(DATA / "blocks.yaml", GIVEN)
    assert len(fabric.nodes_of_kind("host")) == 8
    assert len(fabric.nodes_of_kind("switch")) == 3
    text = "BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockSizes=4\n"
    again = read_fabric(written(text, tmp_path, "topology.conf"), GIVEN)
    assert [c.ends for c in again.cables] == [c.ends for c in fabric.cables]


def test_switches_of_slurm_without_hosts_are_left_out_by_name(tmp_path):
    text = (
        "- topology: t\n  cluster_default: true\n  tree:\n    switches:\n"
        "      - {switch: top, children: 'leaf,spare'}\n"
        "      - {switch: leaf, nodes: 'n[1-2]'}\n"
        "      - {switch: spare, children: bare}\n"
        "      - {switch: bare}\n"
    )
    fabric = read_fabric(written(text, tmp_path, "topology.yaml"), GIVEN)
    assert [node.name for node in fabric.nodes_of_kind("switch")] == ["top", "leaf"]
    assert fabric.left_out == ["switches without hosts below them: 'spare', 'bare'"]
    assert read_fabric(DATA / "topology.yaml", GIVEN).left_out == []


@pytest.mark.parametrize("name", ["net.json", "net.graphml", "rack.ibnet", "infragraph.yaml"])
def test_links_up_of_what_is_not_of_slurm_are_refused(name, tmp_path):
    fabric = read_fabric(RACK)
    texts = {"net.json": fabric.to_json(), "net.graphml": format_graphml(fabric)}
    text = texts.get(name) or (DATA / name).read_text()
    path = written(text, tmp_path, name)
    assert read_fabric(path).nodes
    with pytest.raises(TopologyError, match="--links-up: is only for a topology of Slurm; got"):
        read_fabric(path, FabricSupplement(links_up=2))


# ---------------------------------------------------------------------------------- InfraGraph


def test_an_infragraph_is_read():
    fabric = read_fabric(DATA / "infragraph.yaml")
    assert [node.name for node in fabric.nodes_of_kind("host")] == ["host.0", "host.1"]
    assert [node.name for node in fabric.nodes_of_kind("switch")] == ["leaf.0", "leaf.1"]
    assert Counter(cable.ends for cable in fabric.cables) == {
        ("host.0", "leaf.0"): 1, ("host.1", "leaf.0"): 1,
        ("host.0", "leaf.1"): 1, ("host.1", "leaf.1"): 1, ("leaf.0", "leaf.1"): 2,
    }  # fmt: skip
    assert {cable.bandwidth for cable in fabric.cables} == {50 * GB}
    assert {cable.latency for cable in fabric.cables} == {30e-9}
    assert fabric.left_out == ["spare without an edge: 1"]


def test_an_edge_of_all_with_all(tmp_path):
    text = (DATA / "infragraph.yaml").read_text().replace("one2one", "many2many", 1)
    fabric = read_fabric(written(text, tmp_path, "infra.yaml"))
    assert Counter(cable.ends for cable in fabric.cables)["host.0", "leaf.0"] == 2


@pytest.mark.parametrize("suffix", ["json", "graphml"])
def test_a_bandwidth_beside_links_that_must_say_theirs_is_refused(suffix, tmp_path):
    fabric = read_fabric(RACK)
    text = fabric.to_json() if suffix == "json" else format_graphml(fabric)
    with pytest.raises(TopologyError) as caught:
        read_fabric(written(text, tmp_path, f"net.{suffix}"), GIVEN)
    (problem,) = caught.value.problems
    assert (problem.path, caught.value.source) == ("--link-bandwidth", "command line")
    assert "each link" in problem.remedy


# -------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("kind", ["ibsim", "infragraph", "graphml", "json"])
def test_what_is_written_is_read_again_alike(kind, tmp_path):
    fabric = fabric_of_network(fat_tree(2, 4, taper=2).sketch(), "tree")
    texts = {
        "ibsim": ibsim.format_net_file, "infragraph": infragraph.format_infrastructure,
        "graphml": format_graphml,
        "json": lambda of: of.to_json(),
    }  # fmt: skip
    ends = {"ibsim": "net", "infragraph": "json", "graphml": "graphml", "json": "json"}
    again = read_fabric(written(texts[kind](fabric), tmp_path, f"net.{ends[kind]}"))
    assert len(again.nodes_of_kind("host")) == len(fabric.nodes_of_kind("host"))
    assert sorted(Counter(again.tiers.values()).values()) == [2, 4, 16]
    if kind == "infragraph":  # where nodes are called otherwise
        ports = [Counter(cable.ports for cable in each.cables) for each in (again, fabric)]
        assert ports[0].total() == ports[1].total()
        return
    assert cabled(again) == cabled(fabric)


@pytest.mark.parametrize("suffix", ["json", "graphml"])
def test_ports_stay_with_their_ends_whatever_the_order_of_nodes(suffix, tmp_path):
    """networkx turns undirected links around."""
    fabric = read_fabric(RACK)
    text = fabric.to_json()
    if suffix == "json":  # switches first: then every link of a host is turned
        data = json.loads(text)
        data["nodes"].reverse()
        text = json.dumps(data)
    else:
        text = format_graphml(fabric)
    path = written(text, tmp_path, f"net.{suffix}")
    cabling = Cabling.from_graph(Custom(kind="custom", path=str(path)).sketch())
    found = Counter()
    for (a, b), (p, q), bandwidth in zip(
        cabling.ends.tolist(), cabling.ports.tolist(), cabling.bandwidth.tolist(), strict=True
    ):
        found[*sorted([(cabling.names[a], p), (cabling.names[b], q)]), bandwidth] += 1
    assert found == cabled(fabric)


# ----------------------------------------------------------------------------- the command line


def files(folder):
    return sorted(path.name for path in folder.rglob("*"))


def test_a_machine_in_one_command(here, capsys):
    assert main(["machine", "import", str(RACK), "--routes", str(DUMP), "--out", "mine.yaml"]) == 0
    told = capsys.readouterr()
    assert "--mended" in told.err
    for text in (
        "adapters   12",
        "hosts      4, with 2",
        "2 leaf, 2 level2",
        "slow cable leaf2 port 9",
    ):
        assert text in told.err
    assert files(here) == ["mine-fabric.json", "mine-tables.json", "mine.yaml"]
    machine = yaml.safe_load((here / "mine.yaml").read_text())
    assert machine["host"]["hcas"] == machine["host"]["gpus"] == 2
    comments = (here / "mine.yaml").read_text()
    assert comments.count("estimate") >= 15
    found = machine_of("mine.yaml")
    assert (found.topology.num_hosts, found.topology.links_per_host) == (4, 2)
    assert main(["check", "quickstart", "--set", "cluster=mine.yaml", "--set", "world_size=8"]) == 0


def test_a_machine_is_found_from_another_folder(here, monkeypatch):
    (here / "machines").mkdir()
    command = ["machine", "import", str(RACK), "--routes", str(DUMP)]
    assert main([*command, "--out", "machines/mine.yaml"]) == 0
    scenario = load_scenario("quickstart", {"cluster": "machines/mine.yaml", "world_size": 8})
    assert Path(scenario.cluster.topology.path) == here / "machines" / "mine-fabric.json"
    assert Path(scenario.cluster.routing.path) == here / "machines" / "mine-tables.json"
    assert scenario.cluster.topology.sha256
    assert scenario.cluster.routing.sha256


def test_without_tables_infiniband_is_routed_as_opensm_does_by_default(here):
    assert main(["machine", "import", str(RACK), "--out", "mine.yaml"]) == 0
    assert machine_of("mine.yaml").routing.kind == "min_hop"
    (here / "topology.conf").write_text(CONF)
    words = ["topology.conf", "--link-bandwidth", "25 GB/s", "--out", "slurm.yaml"]
    assert main(["machine", "import", *words]) == 0
    assert machine_of("slurm.yaml").routing is None


def test_the_network_alone(here):
    assert main(["machine", "import", str(RACK), "--out", "net.json"]) == 0
    assert files(here) == ["net.json"]
    assert Custom(kind="custom", path="net.json").num_hosts == 4


@pytest.mark.parametrize(
    ("port", "told"), [(3, "a circle"), (255, "no port for it"), (9, "must have a cable")]
)
def test_tables_with_a_circle_or_a_hole_write_nothing(port, told, here, capsys):
    """What both spines do with what is for node1, which is below leaf1: ports 3 lead to leaf2."""
    tables = re.split(r"(?=Unicast)", DUMP.read_text())
    damaged = [
        re.sub(r"0x0005 \d+", f"0x0005 {port:03d}", table) if "'MF0;spine" in table[:90] else table
        for table in tables
    ]
    assert sum(old != new for old, new in zip(tables, damaged, strict=True)) == 2
    (here / "dump").write_text("".join(damaged))
    assert main(["machine", "import", str(RACK), "--routes", "dump", "--out", "mine.yaml"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "node1 port 1" in error
    line, spine = re.search(r"line (\d+), switches\.(spine\d|leaf2): ", error).groups()
    assert f"MF0;{spine}" in "".join(damaged).splitlines()[int(line) - 1]
    assert files(here) == ["dump"]


def test_what_is_there_is_replaced_only_if_asked(here, capsys):
    command = ["machine", "import", str(RACK), "--out", "mine.yaml"]
    (here / "mine-fabric.json").write_text("mine")
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    assert (here / "mine-fabric.json").read_text() == "mine"
    assert main([*command, "--force"]) == 0
    assert main(["machine", "export", "mine.yaml", "--to", "json", "--out", "mine.yaml"]) == 2


@pytest.mark.parametrize("to", ["ibsim", "infragraph", "graphml", "json"])
def test_export_of_a_shipped_machine_and_of_files(to, here):
    out = {"graphml": "a.graphml", "ibsim": "a.net"}.get(to, "a.json")
    assert main(["machine", "export", "small-fat-tree", "--to", to, "--out", out]) == 0
    assert main(["machine", "export", str(RACK), "--to", to, "--out", f"b{out}"]) == 0
    for name in (out, f"b{out}"):
        assert main(["machine", "import", name, "--out", f"{name}.c.json"]) == 0


def test_a_bandwidth_that_infiniband_does_not_have_is_missed_with_a_note(here, capsys):
    text = (
        read_fabric(RACK)
        .to_json()
        .replace("25 GB/s", "26 GB/s", 2)
        .replace("25 GB/s", "27 GB/s", 1)
    )
    (here / "net.json").write_text(text)
    assert main(["machine", "export", "net.json", "--to", "ibsim", "--out", "a.net"]) == 0
    note = "cables whose rate is not in the file, as no rate of InfiniBand has it: 3 (26 GB/s, 27"
    assert note in capsys.readouterr().err
    assert main(["machine", "export", "net.json", "--to", "json", "--out", "a.json"]) == 0
    assert main(["machine", "export", str(RACK), "--to", "ibsim", "--out", "b.net"]) == 0
    assert "not in the file" not in capsys.readouterr().err


def test_the_sample_files_are_described():
    told = (DATA / "README.md").read_text()
    for path in DATA.iterdir():
        assert path.name in told
