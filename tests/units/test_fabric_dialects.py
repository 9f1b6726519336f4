"""Files of fabrics as tools of several versions write them and people keep them: one table a
reader, each row a change of a whole file and what must come of it."""

import re
from collections import Counter

import pytest

from simshuffle.extensions.interop.fabrics.ibnetdiscover import fabric_of
from simshuffle.extensions.interop.fabrics.imported import FabricSupplement
from simshuffle.extensions.interop.fabrics.lfts import parse_tables
from simshuffle.extensions.interop.fabrics.reading import read_fabric, read_host
from tests.units.test_fabrics_import import CONF, DATA, DUMP, GB, RACK, cabled, rack_text
from tests.units.test_host_inside import dump, matrix

TAGS = {
    "mpirun --tag-output": lambda line: f"[1,0]<stdout>:{line}",
    "mpirun of Open MPI 5": lambda line: f"[prterun-node1-17@1,0]<stdout>: {line}",
    "srun --label": lambda line: f"0: {line}",
    "pdsh": lambda line: f"node1: {line}",
    "kubectl --timestamps": lambda line: f"2026-01-05T10:00:00.123456789Z {line}",
    "docker compose": lambda line: f"fabric-1  | {line}",
    "quoted mail": lambda line: f"> {line}",
    "indented Markdown": lambda line: f"    {line}",
    "colours": lambda line: f"\x1b[32m{line}\x1b[0m",
    "CRLF": lambda line: f"{line}\r",
}
FRAMES = {
    "Markdown": ("```text\n", "\n```\n"),
    "prompt of root": ("[root@node1 ~]# ibnetdiscover > f\n", "\n[root@node1 ~]# exit\n"),
    "prompt": ("$ sudo ibnetdiscover\n", ""),
    "stderr first": ("ibwarn: [4711] mad_rpc: _do_madrpc failed; dport (Lid 17)\n", ""),
    "query_smp": ("src/query_smp.c:195; umad (DR path slid 0; dlid 0; 0,1,1,31)\n", ""),
    "stderr last": ("", "\nibdebug: [7] discover: done\n"),
}


def same_network(fabric, other):
    """Whether two fabrics have the same hosts and cables."""
    hosts = [sorted(node.name for node in each.nodes_of_kind("host")) for each in (fabric, other)]
    return hosts[0] == hosts[1] and cabled(fabric) == cabled(other)


@pytest.mark.parametrize("name", TAGS)
def test_labels_of_lines_do_not_matter(name, tmp_path):
    path = tmp_path / "net"
    lines = [TAGS[name](line) for line in rack_text().split("\n")]
    path.write_bytes("\n".join(lines).encode())
    assert same_network(read_fabric(path), read_fabric(RACK))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_encodings_of_other_systems_do_not_matter(encoding, tmp_path):
    path = tmp_path / "net"
    path.write_bytes(rack_text().replace("generated", "généré").encode(encoding))
    assert same_network(read_fabric(path), read_fabric(RACK))


@pytest.mark.parametrize("name", FRAMES)
def test_what_stands_around_the_output_does_not_matter(name, tmp_path):
    before, after = FRAMES[name]
    path = tmp_path / "net"
    path.write_text(before + rack_text() + after)
    fabric = read_fabric(path)
    assert same_network(fabric, read_fabric(RACK))
    foreign = [note for note in fabric.left_out if "lines of other programs: 1" in note]
    assert bool(foreign) == ("stderr" in name or "query" in name)


def test_warnings_between_the_lines_of_a_record_are_left_out_and_counted():
    lines = rack_text().split("\n")
    places = [number for number, line in enumerate(lines) if line.startswith("[")][::5]
    for place in reversed(places):
        lines.insert(place, "ibwarn: [123] _do_madrpc: recv failed: Connection timed out")
    fabric = fabric_of("\n".join(lines), "x", FabricSupplement())
    assert same_network(fabric, read_fabric(RACK))
    assert fabric.left_out[0].startswith(f"lines of other programs: {len(places)}, such as 'ibwarn")


# --------------------------------------------------------------------- cables that are not alike

LEAF, SPINE = "2c5eab0300000a00", "2c5eab0300000c00"
CABLE = f'[6]\t"S-{SPINE}"[1]'
"""From leaf1 to spine1, in the record of leaf1."""


def without_lines(text, *beginnings):
    return "\n".join(line for line in text.split("\n") if not line.startswith(beginnings))


def with_port(text, node, line):
    """The text with another port in the record of a node."""
    return re.sub(rf'(\n(?:Switch|Ca)\t\d+ "{node}".*\n)', rf"\1{line}\n", text)


def test_a_cable_that_one_end_names_is_read():
    text = "\n".join(line for line in rack_text().split("\n") if not line.startswith(CABLE))
    fabric = fabric_of(text, "x", FabricSupplement())
    assert same_network(fabric, read_fabric(RACK))
    assert fabric.warnings == ["cables that only one end names: 1, such as spine1 port 1"]


@pytest.mark.parametrize("ports", [(10, 10), (10, 11)], ids=["a plug", "a cable"])
def test_a_cable_from_a_switch_to_itself_is_left_out(ports):
    text = rack_text()
    text = re.sub(rf'Switch\t\d+ "S-{LEAF}"', f'Switch\t20 "S-{LEAF}"', text)
    free = [port + 5 for port in ports]
    for port, peer in {(free[0], free[1]), (free[1], free[0])}:
        text = with_port(text, f"S-{LEAF}", f'[{port}]\t"S-{LEAF}"[{peer}]\t\t# "x" lid 1 4xHDR')
    fabric = fabric_of(text, "x", FabricSupplement())
    assert same_network(fabric, read_fabric(RACK))
    assert fabric.left_out[0].startswith("cables from a node to itself: 1, such as leaf1 port 1")


@pytest.mark.parametrize(
    ("near", "far", "gigabytes"),
    [("4xHDR", "1xHDR", 6.25), ("1xHDR", "4xHDR", 6.25), ("4xHDR", "4xEDR", 12.5),
     ("4xHDR", "", 25), ("4xHDR", "4xUndefined", 25)],
)  # fmt: skip
def test_of_unequal_ends_the_slower_counts(near, far, gigabytes):
    """A link trains to what both ends can do; a rate that one end does not say is the other's."""
    lines = rack_text().split("\n")
    ends = [n for n, line in enumerate(lines) if line.startswith((CABLE, f'[1]\t"S-{LEAF}"[6]'))]
    assert len(ends) == 2
    for end, rate in zip(ends, (near, far), strict=True):
        lines[end] = re.sub(r"4xHDR\s*$", rate, lines[end])
    fabric = fabric_of("\n".join(lines), "x", FabricSupplement())
    key = (("leaf1", 6), ("spine1", 1), gigabytes * GB)
    assert cabled(fabric)[key] == 1
    both_known = far not in {"", "4xUndefined"}
    assert bool(fabric.warnings) == both_known
    slow = [str(cable) for cable in fabric.slow_cables if "leaf1" in cable.cable.ends]
    assert len(slow) == (gigabytes < 25)


def test_an_adapter_without_a_switch_is_left_out_by_name():
    text = rack_text() + (
        '\ncaguid=0xe09d7303000000e0\nCa\t1 "H-e09d7303000000e0"\t\t# "pair1 mlx5_0"\n'
        '[1](e09d7303000000e0) \t"H-e09d7303000000f0"[1] (e09d7303000000f0) \t# "pair2 mlx5_0"\n'
        '\ncaguid=0xe09d7303000000f0\nCa\t1 "H-e09d7303000000f0"\t\t# "pair2 mlx5_0"\n'
        '[1](e09d7303000000f0) \t"H-e09d7303000000e0"[1] (e09d7303000000e0) \t# "pair1 mlx5_0"\n'
    )
    fabric = fabric_of(text, "x", FabricSupplement())
    assert same_network(fabric, read_fabric(RACK))
    assert "adapters without a cable to a switch: 2, such as 'pair1 mlx5_0'" in fabric.left_out[0]


def test_the_own_port_of_a_switch_and_twelve_lanes():
    text = with_port(rack_text(), f"S-{LEAF}", f'[0]\t"S-{LEAF}"[0]\t\t# "x" lid 1')
    fabric = fabric_of(text.replace("4xHDR", "12xQDR"), "x", FabricSupplement())
    assert Counter(cable.bandwidth for cable in fabric.cables)[12 * GB] == 19


# ------------------------------------------------------------------------------ reports of cables


def as_report(text):
    """The cables of a fabric as `ibnetdiscover -p` prints them (dump_ports_report of
    infiniband-diags), and a port without a cable."""
    guid = r'"([SH])-([0-9a-f]+)"'
    cable = rf'\[(\d+)\]\S*\s+{guid}\[(\d+)\].*"([^"]*)" lid (\d+) (\d+x)(\S+)'
    lines, node, label = [], ("", ""), ""
    for line in text.split("\n"):
        if match := re.match(rf'(?:Switch|Ca)\t\d+ {guid}\s+# "([^"]*)"', line):
            node, label = match.group(1, 2), match[3]
        elif match := re.match(cable, line):
            port, kind, peer, peer_port, peer_label, lid, width, speed = match.groups()
            kinds = ["SW" if each == "S" else "CA" for each in (node[0], kind)]
            lines.append(
                f"{kinds[0]} {1:5} {int(port):2} 0x{node[1]} {width} {speed} - {kinds[1]}"
                f" {int(lid):5} {int(peer_port):2} 0x{peer} ( '{label}' - '{peer_label}' )"
            )
    unused = f"SW     1 30 0x{LEAF} ??? ???{'':36}'MF0;leaf1:MQM8700/U1'"
    return "\n".join([*lines, unused])


@pytest.mark.parametrize("half", [False, True], ids=["both ends", "one end"])
def test_a_report_of_cables_is_read(half, tmp_path):
    report = as_report(rack_text()).split("\n")
    lines = [line for line in report if line.startswith("SW")] if half else report
    path = tmp_path / "ports.txt"
    path.write_text("\n".join(lines))
    assert same_network(read_fabric(path), read_fabric(RACK))


# ------------------------------------------------------------------------------ net files of ibsim

IBSIM = (DATA / "example.ibsim").read_text()
CHANGES_OF_IBSIM = {
    "as in its examples": lambda text: text,
    "Ca": lambda text: text.replace("Hca", "Ca"),
    "blank before a port": lambda text: text.replace('"[', '" ['),
    "first port not said": lambda text: text.replace('"Node1"[1]', '"Node1"'),
    "one end alone": lambda text: text.replace('[1]\t"Core"[1]\n', ""),
    "GUIDs to count from": lambda text: f"switchguid=0x200000\nhcaguids=0x1000\n{text}",
    "width and speed of ports": lambda text: text.replace('"Node1"[1]', '"Node1"[1] w=4 s=2'),
    "settings": lambda text: f"width=2\nspeed=1\n{text}\ndo dump\n",
}


@pytest.mark.parametrize("name", CHANGES_OF_IBSIM)
def test_net_files_of_ibsim(name, tmp_path):
    path = tmp_path / "net"
    path.write_text(CHANGES_OF_IBSIM[name](IBSIM))
    fabric = read_fabric(path, FabricSupplement(bandwidth=25 * GB))
    assert [node.name for node in fabric.nodes_of_kind("host")] == ["Node1", "Node2"]
    assert cabled(fabric) == {
        (("Core", 1), ("Node1", 1), 25 * GB): 1,
        (("Core", 2), ("Node2", 1), 25 * GB): 1,
    }


# ------------------------------------------------- forwarding tables, Slurm, the inside of hosts


def test_warnings_among_forwarding_tables_are_no_entries():
    fabric, text = read_fabric(RACK), DUMP.read_text()
    lines = text.split("\n")
    lines[9:9] = ["ibwarn: [3] mad_rpc_open_port: can't open UMAD port", "src/ibroute.c:90: retry"]
    assert parse_tables("\n".join(lines), DUMP.name, fabric) == parse_tables(
        text, DUMP.name, fabric
    )


CHANGES_OF_SLURM = {
    "blanks around =": lambda text: text.replace("SwitchName=", "SwitchName = "),
    "quotes": lambda text: text.replace("Switches=s[0-1]", 'Switches="s[0-1]"'),
    "scontrol show topology": lambda text: text.replace(" Nodes=", " Level=0 LinkSpeed=1 Nodes="),
    "prompt": lambda text: f"[root@head ~]# cat topology.conf\n{text}",
    "Markdown": lambda text: f"```ini\n{text}\n```\n",
}


@pytest.mark.parametrize("name", CHANGES_OF_SLURM)
def test_topologies_of_slurm(name, tmp_path):
    given = FabricSupplement(bandwidth=25 * GB)
    fabrics = []
    for number, text in enumerate((CONF, CHANGES_OF_SLURM[name](CONF))):
        path = tmp_path / f"{number}.conf"
        path.write_text(text)
        fabrics.append(read_fabric(path, given))
    assert [cable.ends for cable in fabrics[0].cables] == [
        cable.ends for cable in fabrics[1].cables
    ]


CHANGES_OF_HOSTS = {
    "as it is": lambda text: text,
    "mpirun": lambda text: "\n".join(f"[1,0]<stdout>:{line}" for line in text.split("\n")),
    "Markdown": lambda text: f"```\n{text}\n```",
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "after a log": lambda text: f"node1:17:17 [0] NCCL INFO Bootstrap: Using eth0\n{text}",
    "before a log": lambda text: f"{text}\nnode1:17:17 [0] NCCL INFO Init COMPLETE\n",
}


@pytest.mark.parametrize("kind", ["matrix", "XML"])
@pytest.mark.parametrize("name", CHANGES_OF_HOSTS)
def test_what_stands_around_a_host_does_not_matter(kind, name, tmp_path):
    text = matrix() if kind == "matrix" else dump()
    path = tmp_path / "host"
    path.write_bytes(CHANGES_OF_HOSTS[name](text).encode())
    host = read_host(path)
    assert host is not None
    assert len(host.gpus) == (8 if kind == "matrix" else 2)


def test_a_matrix_may_be_cut_right_of_its_devices(tmp_path):
    """As where a terminal was too narrow for the columns of affinities."""
    lines = [re.sub(r"\s*CPU Affinity.*", "", line) for line in matrix().split("\n")]
    path = tmp_path / "matrix"
    path.write_text("\n".join(lines))
    host = read_host(path)
    assert host is not None
    assert len(host.gpus) == 8
