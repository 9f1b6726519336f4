"""What NCCL's topology XML and nvidia-smi's matrix show of the inside of a host. The files are made
here, in the form and with the shape of real ones that are named beside them."""

from pathlib import Path

import pytest
import yaml

from simshuffle.cli import main
from simshuffle.errors import TopologyError
from simshuffle.extensions.interop.fabrics.nccl_topology import link_bandwidth
from simshuffle.extensions.interop.fabrics.reading import read_fabric, read_host
from simshuffle.job.scenario.scenario import load_scenario

HOST = "cluster.host."
DATA = Path(__file__).parents[1] / "data" / "fabrics"


def element(tag, inside="", **attributes):
    words = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f"<{tag}{words}>{inside}</{tag}>\n"


def pci(busid, kind, inside="", speed="16 GT/s", width=16):
    names = {"bridge": "0x060400", "gpu": "0x030200", "nic": "0x020700"}
    attributes = {"class": names[kind], "link_speed": speed, "link_width": width}
    return element("pci", inside, busid=busid, **attributes)


def system(*cpus):
    return element("system", "".join(cpus), version="1")


def ndv4():
    """As Azure's NDv4 (github.com/Azure/azhpc-images, topology/ndv4-topo.xml): in each of four NUMA
    domains a switch with two GPUs and two HCAs, PCIe 4 x16; nothing of NVLink."""
    cpus = []
    for numa in range(4):
        below = "".join(
            pci(f"000{2 * numa + i}:00:00.0", "gpu") + pci(f"010{2 * numa + i}:00:00.0", "nic")
            for i in (1, 2)
        )
        cpus.append(element("cpu", pci(f"ffff:ff:0{numa}.0", "bridge", below), numaid=numa))
    return system(*cpus)


def dump():
    """An H200 host as NCCL dumps it, see tests/data/fabrics/README.md."""
    return (DATA / "nccl-topology.xml").read_text()


def matrix(gpus=8, nvlink="NV18", tabs="\t"):
    """As nvidia-smi 570 prints it of a DGX H100: eight GPUs, each behind bridges with one of twelve
    adapters, two of four that serve storage on one card; of its first GPUs, with other NVLinks."""
    lines = []
    for line in (DATA / "nvidia-smi.txt").read_text().replace("NV18", nvlink).split("\n"):
        name, *cells = line.split("\t")
        if cells and name not in {f"GPU{n}" for n in range(gpus, 8)}:
            lines.append(tabs.join([name, *cells[:gpus], *cells[8:]]))
        elif not cells:
            lines.append(line)
    return "\n".join(lines)


def read(text, tmp_path):
    path = tmp_path / "of-a-host"
    path.write_text(text)
    return read_host(path)


def values(text, tmp_path):
    return {
        key.removeprefix(HOST): value
        for key, value in yaml.safe_load(read(text, tmp_path).to_yaml())["values"].items()
    }


@pytest.mark.parametrize(
    ("speed", "width", "gigabytes"),
    [
        ("2.5 GT/s", 16, 4), ("5 GT/s PCIe", 8, 4), ("8 GT/s", 16, 15.754), ("16 GT/s", 16, 31.508),
        ("32.0 GT/s PCIe", 16, 63.015), ("64.0 GT/s PCIe", 16, 121),
    ],
)  # fmt: skip
def test_a_link_carries_what_its_line_code_leaves(speed, width, gigabytes):
    assert link_bandwidth(speed, str(width)) == pytest.approx(gigabytes * 1e9, rel=1e-4)


@pytest.mark.parametrize(("speed", "width"), [("", "0"), ("16 GT/s", "0"), ("fast", "16")])
def test_a_link_that_says_nothing_has_no_bandwidth(speed, width):
    assert link_bandwidth(speed, width) is None


def test_four_switches_with_two_gpus_and_two_hcas_each(tmp_path):
    assert values(ndv4(), tmp_path) == {
        "gpus": 8,
        "hcas": 8,
        "pcie_slots": 4,
        "pcie_bandwidth": "31.51 GB/s",
    }
    host = read(ndv4(), tmp_path)
    assert [gpu.numa for gpu in host.gpus] == [*"00112233"]
    assert host.gpus[2].nearby_ports == ("0103:00:00.0", "0104:00:00.0")


def test_a_dump_says_nvlinks_and_names_adapters(tmp_path):
    assert values(dump(), tmp_path) == {
        "gpus": 2,
        "hcas": 2,
        "pcie_slots": 2,
        "pcie_bandwidth": "63.02 GB/s",
        "nvlink_bandwidth": "450 GB/s",  # 18 of 25 GB/s, data sheet of the H100
    }
    assert [gpu.nearby_ports for gpu in read(dump(), tmp_path).gpus] == [("mlx5_0",), ("mlx5_1",)]


def test_the_narrowest_link_on_the_way_counts(tmp_path):
    """AWS shows its bridges as PCIe 4 x8."""
    text = dump().replace('0x060400" link_speed="32.0 GT/s PCIe" link_width="16"',
                          '0x060400" link_speed="16.0 GT/s PCIe" link_width="8"')  # fmt: skip
    assert values(text, tmp_path)["pcie_bandwidth"] == "15.75 GB/s"


def test_gpus_on_the_root_and_a_port_without_pci(tmp_path):
    """As Azure's NCv4 (the same repository, topology/ncv4-topo.xml)."""
    cpus = [
        element("cpu", pci(f"000{n}:00:00.0", "gpu", "", "", 0), numaid=n) for n in (1, 2, 3, 4)
    ]
    net = element("nic", element("net", name="eth0"))
    text = system(cpus[0].replace("</cpu>", f"{net}</cpu>"), *cpus[1:])
    assert values(text, tmp_path) == {"gpus": 4, "hcas": 1, "pcie_slots": 4}


def test_the_matrix_of_a_dgx_h100(tmp_path):
    host = read(matrix(), tmp_path)
    assert values(matrix(), tmp_path) == {
        "gpus": 8,
        "hcas": 8,
        "pcie_slots": 8,
        "nvlink_bandwidth": "450 GB/s",
    }
    assert host.gpus[1].nearby_ports == ("mlx5_3",)
    assert [gpu.numa for gpu in host.gpus] == [*"00001111"]
    assert "# of 12 network ports, those below the root port of a GPU" in host.to_yaml()
    assert read(matrix(tabs="   "), tmp_path) == host


def test_gpus_that_share_an_adapter_are_below_one_root_port(tmp_path):
    text = matrix(gpus=2).replace("NIC3\tNODE\tPXB", "NIC3\tNODE\tNODE").split("\n")
    at = next(i for i, line in enumerate(text) if line.startswith("GPU1"))
    cells = text[at].split("\t")
    # to NIC0, as GPU0, and not to NIC3; the way between both GPUs is NVLink
    cells[3], cells[6] = "PXB", "NODE"
    host = read("\n".join([*text[:at], "\t".join(cells), *text[at + 1 :]]), tmp_path)
    assert {gpu.root_port for gpu in host.gpus} == {"of GPU0"}
    assert host.gpus[1].nearby_ports == ("mlx5_0",)


@pytest.mark.parametrize(
    ("gpus", "nvlink", "links"),
    # a DGX H100 has a switch; four A100 and two of them are joined without one
    [(8, "NV18", 18), (4, "NV4", 12), (2, "NV12", 12), (8, "NV12", 12), (8, "SYS", 0)],
)
def test_nvlinks_of_a_gpu_with_and_without_a_switch(tmp_path, gpus, nvlink, links):
    host = read(matrix(gpus, nvlink), tmp_path)
    assert [gpu.nvlinks for gpu in host.gpus] == [links] * gpus


def test_what_does_not_share_evenly_is_left_out(tmp_path):
    text = dump().replace("</system>", f"{element('cpu', pci('9', 'gpu'), numaid=2)}</system>")
    found = values(text, tmp_path)
    assert (found["gpus"], found["pcie_slots"], "hcas" in found) == (3, 3, False)
    assert "hcas: 2 do not divide 3 GPUs evenly" in read(text, tmp_path).to_yaml()


def test_a_scenario_includes_it(tmp_path, capsys):
    topology, out = tmp_path / "topology.xml", tmp_path / "host.yaml"
    topology.write_text(dump())
    assert main(["machine", "import", str(topology), "--out", str(out)]) == 0
    assert "mlx5_1" in capsys.readouterr().err
    scenario = load_scenario("quickstart", {"include": str(out), "world_size": 2})
    assert scenario.cluster.host.nvlink_bandwidth == 450e9
    assert {record.key for record in scenario.calibrated} >= {f"{HOST}pcie_bandwidth"}
    assert "topology.xml" in scenario.calibrated[0].source
    assert main(["machine", "import", str(topology), "--out", str(out)]) == 2  # it is there
    words = ["machine", "import", str(topology), "--out", str(out), "--force"]
    assert main([*words, "--gpus", "8"]) == 2
    assert "FILE: shows the inside of a host" in capsys.readouterr().err


@pytest.mark.parametrize("before", ["", "\n", "\n\n  \n", "one line\n\n", "$ cat topology.xml\n\n"])
@pytest.mark.parametrize("head", ["", "<?xml version='1.0'?>\n", "<?xml version='1.0'?>"])
def test_a_fault_of_the_xml_has_its_line_in_the_file(before, head, tmp_path):
    text = before + head + dump()
    assert read(text, tmp_path) == read(dump(), tmp_path)
    damaged = text.replace("</gpu>", "<gpu>", 1)
    with pytest.raises(TopologyError) as caught:
        read(damaged, tmp_path)
    # the pci element that ends behind it finds another one open
    line = damaged[: damaged.index("<gpu>")].count("\n") + 2
    assert caught.value.problems[0].path == f"line {line}"


def test_a_file_of_something_else_is_no_host(tmp_path):
    assert read("SwitchName=a Nodes=n[0-3]\n", tmp_path) is None
    path = tmp_path / "host.xml"
    path.write_text(dump())
    with pytest.raises(TopologyError):
        read_fabric(path)
