"""The matrix that ``nvidia-smi topo -m`` prints: how every GPU and network adapter reaches every
other one, by a word that its legend explains. It says nothing of the speed of PCIe.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from simshuffle.extensions.interop.fabrics.host_inside import (
    MOST_NVLINKS,
    NVLINK_BANDWIDTH,
    Gpu,
    HostInside,
)
from simshuffle.extensions.interop.fabrics.imported import refuse

SAME_ROOT = {"PIX", "PXB", "PSB"}
"""Words for a way through PCIe bridges alone: below one root port."""
WORDS = SAME_ROOT | {"X", "PHB", "NODE", "SYS", "SOC"}
"""Those of the legend but NV#; PSB and SOC are of old drivers."""
_NVLINKS = re.compile(r"NV([0-9]{1,3})")
_HEADER = re.compile(r"^[ \t]*GPU[0-9]+[ \t].*\b(?:GPU[0-9]+|CPU Affinity)\b", re.MULTILINE)
_LEGEND = re.compile(r"^\s*(NIC[0-9]+):\s*(\S+)", re.MULTILINE)
AGAIN = "Save all that nvidia-smi topo -m prints."


def begins(text: str) -> bool:
    """Whether a text may be such a matrix."""
    return _HEADER.search(text) is not None


@dataclass(frozen=True)
class _Matrix:
    """How each reaches each other."""

    names: list[str]  # of columns, and so of rows
    ways: dict[str, list[str]]  # the words of a row by its name
    numa: dict[str, str]  # NUMA domain of a GPU; '' if not known

    def near(self, one: str) -> list[str]:
        """The names of what is below the same root port as one."""
        place = self.names.index(one)
        ways = zip(self.names, self.ways[one], strict=True)
        return [name for name, way in ways if {way, self.ways[name][place]} & SAME_ROOT]


def host_of(text: str, source: str) -> HostInside:
    """What a file's text shows; ``source`` is the file.

    Raises:
        TopologyError: the matrix is cut, or has a word that no legend explains.
    """
    matrix = _matrix(text.split("\n"))
    called = dict(_LEGEND.findall(text))
    names = [name for name in matrix.names if re.fullmatch(r"GPU[0-9]+", name)]
    slots = _slots(matrix)
    ports = [name for name in matrix.names if name not in names]
    warnings = []
    gpus = []
    for name in names:
        near = [called.get(port, port) for port in ports if slots[port] == slots[name]]
        gpus.append(
            Gpu(
                name,
                matrix.numa[name],
                f"of {slots[name]}",
                tuple(near),
                _nvlinks(matrix.ways[name]),
                NVLINK_BANDWIDTH[80],
            )
        )
    if any(gpu.nvlinks for gpu in gpus):
        warnings.append("NVLinks count as of V100 to H100: those of B200 carry twice as much")
    warnings.append("The matrix does not say what PCIe carries")
    every = [called.get(port, port) for port in ports]
    return HostInside(f"{source} (nvidia-smi topo -m)", gpus, every, warnings)


def _slots(matrix: _Matrix) -> dict[str, str]:
    """By name the first of those below the same root port. Two GPUs between which NVLinks hide what
    else there is are below the same one if something else is below that of both."""
    slots: dict[str, str] = {}
    for name in matrix.names:
        if name in slots:
            continue
        group, left = {name}, [name]
        while left:
            found = set(matrix.near(left.pop())) - group
            group |= found
            left += found
        slots |= dict.fromkeys(group, name)
    return slots


def _nvlinks(ways: Sequence[str]) -> int:
    """NVLinks of a GPU. To a switch, all are in the way to every other GPU; without one, some in
    each, and no more than a GPU has in all."""
    counts = [int(found[1]) for way in ways if (found := _NVLINKS.fullmatch(way))]
    return sum(counts) if sum(counts) <= MOST_NVLINKS else max(counts)


def _matrix(lines: Sequence[str]) -> _Matrix:
    """The matrix in the lines of a file: a header, and a row for each of its columns."""
    start = next(number for number, line in enumerate(lines) if _HEADER.match(line))
    header = lines[start].split()
    names = header[: header.index("CPU")] if "CPU" in header else header
    if len(set(names)) < len(names):
        raise refuse(start + 1, "must name each column once", lines[start].strip(), AGAIN)
    ways: dict[str, list[str]] = {}
    numa: dict[str, str] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        name, *cells = line.split() or [""]
        if name not in names or name in ways:
            continue
        ways[name] = cells[: len(names)]
        _check_row(number, names, name, ways[name])
        rest = cells[len(names) :]
        numa[name] = rest[1] if len(rest) > 1 and rest[1].isdecimal() else ""
    if missing := [name for name in names if name not in ways]:
        rule = "must have a row for each column of the matrix"
        raise refuse(0, rule, f"none for {', '.join(missing[:3])}", AGAIN)
    return _Matrix(names, ways, numa)


def _check_row(number: int, names: Sequence[str], name: str, ways: Sequence[str]) -> None:
    if len(ways) < len(names):
        rule = f"must have {len(names)} words, one for each column"
        raise refuse(number, rule, f"{name} with {len(ways)}", AGAIN)
    for column, way in zip(names, ways, strict=True):
        if way not in WORDS and not _NVLINKS.fullmatch(way):
            rule = f"must be one of {', '.join(sorted(WORDS))} and NV#"
            raise refuse(number, rule, repr(way), AGAIN)
        if (way == "X") != (column == name):
            raise refuse(number, "X must stand where a row meets its own column", name, AGAIN)
