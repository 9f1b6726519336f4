"""Read the matrix that ``nvidia-smi topo -m`` prints: how GPUs and network adapters are
connected.

A word that the legend explains stands for each pair of devices. The matrix says nothing
of the speed of PCIe.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from simshuffle.extensions.interop.fabrics.host_inside import (
    MAX_NVLINKS,
    NVLINK_BANDWIDTH,
    Gpu,
    HostInventory,
)
from simshuffle.extensions.interop.fabrics.imported import fabric_error

SAME_ROOT = {"PIX", "PXB", "PSB"}
"""Words for a connection through PCIe bridges alone: below one root port."""
CONNECTION_WORDS = SAME_ROOT | {"X", "PHB", "NODE", "SYS", "SOC"}
"""Words of the legend except NV#; PSB and SOC are of old drivers."""
_NVLINKS = re.compile(r"NV([0-9]{1,3})")
_HEADER = re.compile(
    r"^[ \t]*GPU[0-9]+[ \t].*\b(?:GPU[0-9]+|CPU Affinity)\b", re.MULTILINE
)
_LEGEND = re.compile(r"^\s*(NIC[0-9]+):\s*(\S+)", re.MULTILINE)
REMEDY = "Save the whole output of nvidia-smi topo -m."


def begins(text: str) -> bool:
    """Return whether a text may hold the matrix of ``nvidia-smi topo -m``."""
    return _HEADER.search(text) is not None


@dataclass(frozen=True)
class _ConnectionMatrix:
    """The connection between every two devices of a host."""

    names: list[str]  # of columns, and so of rows
    connections: dict[str, list[str]]  # the words of a row by its name
    numa: dict[str, str]  # NUMA domain of a GPU; '' if not known

    def devices_below_same_root(self, name: str) -> list[str]:
        """Return the names of the other devices that share a device's PCIe root port,
        by the words in the device's row or in the peer's.
        """
        column = self.names.index(name)
        pairs = zip(self.names, self.connections[name], strict=True)
        return [
            peer
            for peer, word in pairs
            if {word, self.connections[peer][column]} & SAME_ROOT
        ]


def host_of(text: str, source: str) -> HostInventory:
    """Parse the GPUs and network ports of a host from ``nvidia-smi topo -m``.

    The bandwidth of PCIe is not known. All NVLinks count as those of V100 to H100.
    Ports that the legend does not name keep their column's name.

    Args:
        text: the file's text, for which `begins` is true.
        source: name of the file.

    Raises:
        TopologyError: the matrix is cut, names a column twice, or has an unknown word.
    """
    matrix = _parse_matrix(text.split("\n"))
    port_name_of_nic = dict(_LEGEND.findall(text))
    gpu_names = [name for name in matrix.names if re.fullmatch(r"GPU[0-9]+", name)]
    root_ports = _root_ports(matrix)
    ports = [name for name in matrix.names if name not in gpu_names]
    warnings = []
    gpus = []
    for name in gpu_names:
        nearby_ports = [
            port_name_of_nic.get(port, port)
            for port in ports
            if root_ports[port] == root_ports[name]
        ]
        gpus.append(
            Gpu(
                name=name,
                numa=matrix.numa[name],
                root_port=f"of {root_ports[name]}",
                nearby_ports=tuple(nearby_ports),
                nvlinks=_count_nvlinks(matrix.connections[name]),
                nvlink_bandwidth=NVLINK_BANDWIDTH[80],
            )
        )
    if any(gpu.nvlinks for gpu in gpus):
        warnings.append(
            "NVLinks count with the bandwidth of V100 to H100; NVLinks of B200 carry twice as much"
        )
    warnings.append("the matrix does not give the bandwidth of PCIe")
    port_names = [port_name_of_nic.get(port, port) for port in ports]
    return HostInventory(f"{source} (nvidia-smi topo -m)", gpus, port_names, warnings)


def _root_ports(matrix: _ConnectionMatrix) -> dict[str, str]:
    """Return a name for the root port of each device: the first device below it, maybe
    itself.

    NVLinks between two GPUs hide what else joins them. Two such GPUs are below one root
    port if another device is below the root ports of both.
    """
    root_ports: dict[str, str] = {}
    for name in matrix.names:
        if name in root_ports:
            continue
        group = {name}
        unvisited = [name]
        while unvisited:
            newly_reached = set(matrix.devices_below_same_root(unvisited.pop())) - group
            group |= newly_reached
            unvisited += newly_reached
        root_ports |= dict.fromkeys(group, name)
    return root_ports


def _count_nvlinks(words: Sequence[str]) -> int:
    """Return the number of NVLinks of a GPU, given its row of the matrix; 0 if the row
    names none.

    With an NVSwitch, all links stand in the word for every other GPU. Without one, each
    word has some of them, and the sum is at most `MAX_NVLINKS`; of a larger sum the
    largest word counts.
    """
    counts = [int(match[1]) for word in words if (match := _NVLINKS.fullmatch(word))]
    return sum(counts) if sum(counts) <= MAX_NVLINKS else max(counts)


def _parse_matrix(lines: Sequence[str]) -> _ConnectionMatrix:
    """Parse the matrix in the lines of a file: a header, and a row for each of its
    columns.

    Other lines are passed over, and so is a second row of a column. A NUMA domain that
    is no single number counts as not known.

    Raises:
        TopologyError: a column is named twice, or a row is absent or wrong.
    """
    start = next(
        line_number for line_number, line in enumerate(lines) if _HEADER.match(line)
    )
    header = lines[start].split()
    names = header[: header.index("CPU")] if "CPU" in header else header
    if len(set(names)) < len(names):
        raise fabric_error(
            start + 1, "must name each column once", lines[start].strip(), REMEDY
        )
    connections: dict[str, list[str]] = {}
    numa: dict[str, str] = {}
    for line_number, line in enumerate(lines[start + 1 :], start + 2):
        name, *cells = line.split() or [""]
        if name not in names or name in connections:
            continue
        connections[name] = cells[: len(names)]
        _check_row(line_number, names, name, connections[name])
        affinities = cells[len(names) :]
        numa[name] = (
            affinities[1] if len(affinities) > 1 and affinities[1].isdecimal() else ""
        )
    if absent_rows := [name for name in names if name not in connections]:
        rule = "must have a row for each column of the matrix"
        raise fabric_error(0, rule, f"none for {', '.join(absent_rows[:3])}", REMEDY)
    return _ConnectionMatrix(names, connections, numa)


def _check_row(
    line_number: int, names: Sequence[str], name: str, words: Sequence[str]
) -> None:
    """Refuse a row that is too short, has an unknown word, or has its X in another
    column.

    Args:
        line_number: line of the row, from 1.
        names: names of all columns.
        name: name of the row.
        words: words of the row, at most one for each column.

    Raises:
        TopologyError: the row is refused.
    """
    if len(words) < len(names):
        rule = f"must have {len(names)} words, one for each column"
        raise fabric_error(line_number, rule, f"{name} with {len(words)}", REMEDY)
    for column, word in zip(names, words, strict=True):
        if word not in CONNECTION_WORDS and not _NVLINKS.fullmatch(word):
            rule = f"must be one of {', '.join(sorted(CONNECTION_WORDS))} and NV#"
            raise fabric_error(line_number, rule, repr(word), REMEDY)
        if (word == "X") != (column == name):
            raise fabric_error(
                line_number,
                "X must stand where a row meets its own column",
                name,
                REMEDY,
            )
