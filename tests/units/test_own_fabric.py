"""From what tools say of a fabric to a number: the import's last line, names, older adapters."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import simshuffle
from simshuffle.cli import main
from simshuffle.extensions.interop.fabrics.ibnetdiscover import fabric_of
from simshuffle.extensions.interop.fabrics.imported import FabricSupplement
from simshuffle.extensions.interop.fabrics.infiniband import read_names
from simshuffle.fabric.topology.cabling import most_common_bandwidth
from simshuffle.fabric.topology.custom import Custom
from simshuffle.job.scenario.scenario import load_scenario, machine_of

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "fabrics"
RACK = DATA / "rack.ibnet"
DUMP = DATA / "rack-lfts.dump"
SHORT = ["--set", "epochs=1", "--set", "workload.dataset.num_samples=2000"]
RUNS = ["--set", "world_size=8", *SHORT]


def rack_text():
    return RACK.read_text()


def one_hca(text):
    """The rack with one adapter of each host that names it."""
    return re.sub(r'"node(\d) mlx5_1"', r'"MT4123 number \1"', text)


# --------------------------------------------------------------------- a first run, and its rings


@pytest.mark.parametrize("hcas", [1, 2])
@pytest.mark.parametrize("words", [[], ["--accelerator", "h900"]])
def test_the_last_line_of_an_import_is_a_command_that_works(hcas, words, here, capsys):
    text = rack_text() if hcas == 2 else one_hca(rack_text())
    (here / "net.txt").write_text(text)
    (here / "my machines").mkdir()
    out = "my machines/mine.yaml"
    assert main(["machine", "import", "net.txt", "--out", out, *words]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Next: simshuffle run quickstart --set 'cluster=my machines/mine.yaml'")
    _, *command = shlex.split(last.removeprefix("Next: "))
    assert main([*command, *SHORT]) == 0


def test_after_the_network_alone_it_is_shown(here, capsys):
    assert main(["machine", "import", str(RACK), "--out", "net.json"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Next: simshuffle machine show net.json"
    assert main(shlex.split(last)[2:]) == 0


def test_rings_that_are_left_out_are_those_of_the_hcas_whatever_the_machine():
    """ABCI has 2 HCAs a host, small-fat-tree 1; as a sweep over machines asks."""
    scenario = load_scenario("quickstart", {"world_size": 8, "workload.exchange": "local_shuffle"})
    assert "rings" not in (ROOT / "scenarios/quickstart.yaml").read_text()
    runs = scenario.combinations({"cluster.host.hcas": [1, 2]})
    found = [run.workload.allreduce_on(run.cluster).rings for run in runs.values()]
    assert found == [1, 2]
    small = scenario.with_values({"cluster": "small-fat-tree"})
    assert small.workload.allreduce_on(small.cluster).rings == 1
    given = scenario.with_values({"workload.allreduce.rings": 1})
    assert given.workload.allreduce_on(given.cluster).rings == 1


# ------------------------------------------------------------------------- slow cables of a run


def epochs_of(folder):
    """Seconds of each epoch, and what is said of slow cables, by run."""
    result = simshuffle.read(folder)
    seconds = result.tables["epochs"].set_index("run")["epoch_s"].to_dict()
    return seconds, {run: of.get("slow_cables") for run, of in result.meta["runs"].items()}


def test_a_run_says_how_many_slow_cables_it_uses_and_why_a_mended_one_is_the_same(here, capsys):
    """One of the 20 cables of the rack is slow: between a leaf switch and a spine switch. A ring
    over the hosts stays on the rail of each leaf switch; an exchange does not."""
    told = {}
    for name, words in (("as_is", []), ("mended", ["--mended"])):
        assert main(["machine", "import", str(RACK), "--out", f"{name}.yaml", *words]) == 0
        command = ["run", "quickstart", "--set", f"cluster={name}.yaml", *RUNS, "--out", name]
        assert main(command) == 0
        told[name] = " ".join(capsys.readouterr().out.split())
    (before, slow), (after, none) = epochs_of("as_is"), epochs_of("mended")
    assert set(none.values()) == {None}
    assert {(of["cables"], of["slow"]) for of in slow.values()} == {(20, 1)}
    assert "Slow cables" not in told["mended"]
    used = {run: of["used"] for run, of in slow.items()}
    assert set(used.values()) == {0, 1}
    for run, count in used.items():
        assert before[run] == after[run] or count
    unused = "Slow cables: 1 of 20, none in use: if mended, the result would be the same."
    assert unused in told["as_is"]
    assert "Slow cables: 1 of 20, 1 (leaf2>spine2#1) in use, full at times," in told["as_is"]


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        (8, "1 (leaf2>spine2#1) on the routes between ranks and to their files."),
        (
            2,
            "none on a route between ranks or to their files:"
            " if mended, the result would be the same.",
        ),
    ],
)
def test_check_says_how_many_slow_cables_a_run_may_use(ranks, told, here, capsys):
    """Two ranks fill one host, and read what is not on its SSD from spine1."""
    assert main(["machine", "import", str(RACK), "--out", "m.yaml"]) == 0
    command = ["check", "quickstart", "--set", "cluster=m.yaml", "--set", f"world_size={ranks}"]
    assert main(command) == 0
    assert f"Slow cables: 1 of 20, {told}" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    about = json.loads(capsys.readouterr().out)[0]["slow_cables"]
    assert (about["cables"], about["slow"], about["used"]) == (20, 1, int(ranks == 8))


def test_a_network_made_by_rule_has_no_slow_cables(capsys):
    assert main(["check", "quickstart"]) == 0
    assert "Slow" not in capsys.readouterr().out


def test_usual_is_what_most_cables_of_a_group_carry():
    found = most_common_bandwidth(np.array([7, 7, 7, 2, 2]), np.array([5.0, 9.0, 5.0, 3.0, 4.0]))
    assert found.tolist() == [5.0, 5.0, 5.0, 4.0, 4.0]  # of two that are as common the larger


# ------------------------------------------------------------------------------- node-name maps


MAP = """\
# switches, and the hosts by one adapter each or both
0x2c5eab0300000a00 "gpu leaf A"   # a switch
0xe09d730300000010\t"gpu-01"
0xe09d730300000021 "gpu-01"       # by the GUID of a port
e09d7303000000a0 'login mlx5_1'
"node2 mlx5_0" "gpu-02"
"node2 mlx5_1" "gpu-02 mlx5_9"
node3 gpu-03
"""


def hosts_of(fabric):
    return [node.name for node in fabric.nodes_of_kind("host")]


def test_a_node_name_map_names_hosts_switches_and_adapters(here):
    """By GUID of a node or of its port, by an adapter's description, by a host: 10, 20 and 30."""
    (here / "map").write_text(MAP)
    names = read_names(here / "map")
    assert names["2c5eab0300000a00"] == "gpu leaf A"
    fabric = fabric_of(rack_text(), "x", FabricSupplement(names=names))
    assert hosts_of(fabric) == ["gpu-01", "gpu-02", "gpu-03", "login", "node4"]
    adapters = {cable.adapter for cable in fabric.cables if "gpu-02" in cable.ends}
    assert adapters == {"mlx5_0", "mlx5_9"}
    assert "gpu_leaf_A" in {node.name for node in fabric.nodes_of_kind("switch")}
    as_it_is = fabric_of(rack_text(), "x", FabricSupplement())
    assert [cable.ports for cable in fabric.cables] and len(fabric.cables) == len(as_it_is.cables)


def test_names_of_nameless_adapters_make_hosts_and_tables_fit_them(here, capsys):
    """A dump in which no adapter has a name but its model, and the map beside it."""
    nameless = re.sub(r'"(node\d|login) mlx5_\d"', '"MT4123 ConnectX6"', rack_text())
    (here / "net.txt").write_text(nameless)
    guids = re.findall(r'\nCa\s+1 "H-(\w+)"\s+# "(\w+) mlx5_\d"', rack_text())
    lines = [f'0x{guid} "{name}"' for guid, name in guids]
    assert len(lines) == 9
    (here / "map").write_text("\n".join(lines))
    command = ["machine", "import", "net.txt", "--routes", str(DUMP), "--out", "m.yaml"]
    assert main([*command, "--names", "map"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    network = Custom(kind="custom", path="m-fabric.json").graph()
    hosts = [name for name, kind in network.nodes(data="kind") if kind == "host"]
    assert hosts == ["node1", "node2", "node3", "node4"]
    assert main([*shlex.split(last)[2:], *SHORT]) == 0


# -------------------------------------------------------------------------------- older adapters


def older(rate, device, label="node4 mlx5_1"):
    """The rack, whose cables are HDR, with another adapter in node4, on a cable of that rate."""
    text = rack_text().replace("2xHDR", "4xHDR")
    lines = text.replace('"node4 mlx5_1"', f'"{label}"').splitlines()
    ca = next(i for i, line in enumerate(lines) if line.startswith('Ca\t1 "H-e09d730300000080"'))
    assert lines[ca - 3] == "devid=0x101b"
    lines[ca - 3] = device
    at = [i for i, line in enumerate(lines) if "e09d730300000081" in line]
    assert len(at) == 2
    for i in at:
        lines[i] = lines[i].replace("4xHDR", rate)
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("rate", "device", "limited"),
    [
        ("4xEDR", "devid=0x1017", "ConnectX-5, EDR"),  # 12.5 of 12.5 GB/s
        ("4xFDR10", "devid=0x1003", ""),  # 5 of 6.8 GB/s
        ("4xFDR", "devid=0x1003", "ConnectX-3, FDR"),
        ("4xEDR", "devid=0x101b", ""),  # as fast as those beside it, and its cable is not
        ("2xHDR", "devid=0x1017", "ConnectX-5, EDR"),
        ("4xEDR", "devid=0xffff", ""),  # not known
        ("4xEDR", "# no device", ""),
    ],
)
def test_a_cable_is_slow_because_of_its_adapter_where_that_can_do_no_more(rate, device, limited):
    fabric = fabric_of(older(rate, device), "x", FabricSupplement())
    (slow,) = fabric.slow_cables
    assert slow.cable.limiting_adapter == limited
    assert slow.is_of_older_adapter == bool(limited)
    assert (f"since its adapter is older ({limited});" in str(slow)) == bool(limited)
    assert fabric.with_usual_bandwidths().slow_cables == []


def test_the_model_in_a_description_stands_for_the_device():
    label = "MT4119 ConnectX5   Mellanox Technologies"
    fabric = fabric_of(older("4xEDR", "# no device", label), "x", FabricSupplement())
    (slow,) = fabric.slow_cables
    assert slow.is_of_older_adapter


def test_an_import_tells_older_adapters_from_slow_cables(here, capsys):
    (here / "net.txt").write_text(older("4xEDR", "devid=0x1017"))
    assert main(["machine", "import", "net.txt", "--out", "m.yaml"]) == 0
    told = capsys.readouterr().err
    assert "older adapter node4 port 2 to leaf2 port 4: 4xEDR instead of 4xHDR, since its" in told
    assert "slow cable" not in told


# -------------------------------------------------------------------------- all tables in one go


CONF = """\
SwitchName=s0 Nodes=gpu[1-2],gpu9
SwitchName=s1 Nodes=node[3-4]
SwitchName=t Switches=s0,s1
"""


def test_a_folder_of_dumps_is_one_machine(here, capsys):
    """The map calls node1 and node2 otherwise; Slurm leaves out node4 below, and has one more."""
    folder = here / "dumps"
    folder.mkdir()
    (folder / "a").write_text(rack_text())
    (folder / "b").write_bytes(DUMP.read_bytes())
    (folder / "c").write_text("# map\nnode1 gpu1\n0xe09d730300000030 gpu2\nnode2 gpu2\n", "utf-8")
    (folder / "d").write_text(CONF.replace("[3-4]", "3"))
    (folder / "notes").write_text("by hand\n")
    (folder / "core").write_bytes(b"\xff\x00\xff")
    assert main(["machine", "import", "dumps", "--out", "m.yaml"]) == 0
    told = capsys.readouterr()
    assert "not read   core, notes" in told.err
    assert "hosts that Slurm does not list: 2 (login, node4)" in told.err
    assert "hosts of Slurm that are not in the dump: 'gpu9'" in told.err
    machine = machine_of("m.yaml")
    assert machine.routing.kind == "forwarding_tables"
    network = Custom(kind="custom", path="m-fabric.json").graph()
    hosts = [name for name, kind in network.nodes(data="kind") if kind == "host"]
    assert hosts == ["gpu1", "gpu2", "node3"]
    assert main(shlex.split(told.out.splitlines()[-1])[2:]) == 0
    assert main(["machine", "import", "dumps", "--out", "net.json"]) == 0


def test_the_same_by_options(here, capsys):
    (here / "d").write_text(CONF.replace("gpu", "node"))
    words = [str(RACK), "--routes", str(DUMP), "--slurm", "d", "--out", "m.yaml"]
    assert main(["machine", "import", *words]) == 0
    assert "hosts that Slurm does not list: 1 (login)" in capsys.readouterr().err
    assert machine_of("m.yaml").topology.num_hosts == 4


def test_slurm_alone_in_a_folder_is_the_network(here):
    (here / "dumps").mkdir()
    (here / "dumps" / "topology.conf").write_text(CONF)
    words = ["dumps", "--link-bandwidth", "25 GB/s", "--out", "m.yaml"]
    assert main(["machine", "import", *words]) == 0
    assert machine_of("m.yaml").topology.num_hosts == 5


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "must hold the dump of a network"),
        ({"a": "words"}, "must hold the dump of a network"),
        ({"a": RACK, "b": RACK}, "one file of each kind; got a and b"),
        ({"a": RACK, "b": "SwitchName=s Nodes=x[1-3]\n"}, "--slurm: must list some of the 5 hosts"),
    ],
)
def test_folders_that_do_not_fit_are_refused(files, told, here, capsys):
    (here / "dumps").mkdir()
    for name, of in files.items():
        text = of if isinstance(of, str) else of.read_text()
        (here / "dumps" / name).write_text(text)
    assert main(["machine", "import", "dumps", "--out", "m.yaml"]) == 2
    assert told in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["dumps"]
