"""Slurm's topology.conf and topology.yaml: which nodes are below which switches, and no more."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError
from simshuffle.extensions.interop.fabrics.imported import (
    Cable,
    FabricNode,
    ImportedFabric,
    Missing,
    errors_of,
    read_text,
    refuse,
)
from simshuffle.spec.hostlist import expand_node_list
from simshuffle.spec.library import parse_documents

MOST_NAMES = 200_000
"""That a list with brackets may stand for."""
TOP = "above-the-blocks"
"""A switch that joins blocks, of which Slurm does not say how they are joined."""
_CONF = re.compile(r"^\s*(SwitchName|BlockName)\s*=", re.IGNORECASE | re.MULTILINE)
_YAML = re.compile(r"^\s*-\s*topology\s*:", re.MULTILINE)
_YAML_KINDS = (("tree", "switches", "switch", "children"), ("block", "blocks", "block", ""))
"""Of topology.yaml: the kind, the key of its list, and there of a name and of what is below."""
_WORD = re.compile(r"(\w+)=(\S*)")


@dataclass(frozen=True)
class _Switch:
    """A switch: where it stands in the file, its nodes, and the switches below."""

    line: int
    nodes: list[str]
    below: list[str]


def begins(text: str) -> bool:
    """Whether a text may be a topology of Slurm."""
    return bool(_CONF.search(text) or _YAML.search(text))


def fabric_of(text: str, source: str, missing: Missing) -> ImportedFabric:
    """The fabric of a file's text; ``source`` is the file.

    Slurm says neither what links carry nor how many there are. So ``missing`` has to say the first;
    of links up a switch has as many as hosts are below it, unless that is said too.

    Raises:
        TopologyError: the file is no topology of Slurm, names a switch that it does not have or a
            node twice, or bandwidth is missing; or it is no usable network.
    """
    switches = _switches(text)
    bandwidth = missing.bandwidth
    if bandwidth is None:
        rule, remedy = "Slurm does not say what links carry", "Add --link-bandwidth '25 GB/s'."
        raise refuse(0, rule, "no --link-bandwidth", remedy)
    above = _parents(switches)
    hosts = _hosts(switches)
    below = Counter(switch for switch in hosts.values())
    for switch in list(below):
        count, up = below[switch], above.get(switch)
        while up is not None:
            below[up] += count
            up = above.get(up)
    nodes = [*(FabricNode(name, "host", tier="host") for name in hosts)]
    nodes += [FabricNode(name, "switch") for name in switches if below[name]]
    cables = [Cable((host, switch), None, bandwidth) for host, switch in hosts.items()]
    for name, up in above.items():
        links = missing.links_up or below[name]
        cables += [Cable((name, up), None, bandwidth)] * (links if below[name] else 0)
    warnings = [f"every link carries what --link-bandwidth says, and a host has one: {source}"]
    if above and missing.links_up is None:
        warnings.append("links up are as many as hosts below: an estimate; --links-up says another")
    if TOP in switches:
        warnings.append("blocks are joined by one switch: an estimate, as Slurm does not say how")
    return ImportedFabric(source, nodes, cables, len(hosts), warnings=warnings).checked()


def read_hosts(path: Path) -> frozenset[str]:
    """The nodes that a topology of Slurm has.

    Raises:
        TopologyError: the file is none, or names a node twice.
    """
    with errors_of(path):
        text = read_text(path)
        if not begins(text):
            remedy = "Name its topology.conf or topology.yaml."
            raise refuse(0, "must be a topology of Slurm", "something else", remedy)
        return frozenset(_hosts(_switches(text)))


def _switches(text: str) -> dict[str, _Switch]:
    """The switches of a file by name."""
    return _of_yaml(text) if _YAML.search(text) else _of_conf(text)


def _parents(switches: dict[str, _Switch]) -> dict[str, str]:
    """The switch above each that has one."""
    above: dict[str, str] = {}
    for name, switch in switches.items():
        for child in switch.below:
            if child not in switches:
                rule, remedy = "must be a switch of the file", "Add its line, or correct the name."
                raise refuse(switch.line, rule, f"{child!r} below {name!r}", remedy)
            if child in above:
                rule = "a switch must have one switch above it"
                found = f"{child!r} below {above[child]!r} and {name!r}"
                raise refuse(switch.line, rule, found, "Keep one of the two.")
            above[child] = name
    for name in above:
        way = [name]
        while way[-1] in above and len(way) <= len(switches):
            way.append(above[way[-1]])
        if len(way) > len(switches):
            rule, remedy = "switches must stand in a tree", "Correct what is below what."
            raise refuse(switches[name].line, rule, f"{name!r} in a circle", remedy)
    return above


def _hosts(switches: dict[str, _Switch]) -> dict[str, str]:
    """The switch of each host."""
    hosts: dict[str, str] = {}
    for name, switch in switches.items():
        for node in switch.nodes:
            if node in hosts or node in switches:
                rule = "a node must be below one switch, and no switch itself"
                found = f"{node!r} below {hosts.get(node, 'another')!r} and {name!r}"
                raise refuse(switch.line, rule, found, "Keep one of the two.")
            hosts[node] = name
    return hosts


def _of_conf(text: str) -> dict[str, _Switch]:
    """The switches of a topology.conf by name; a block is one."""
    switches: dict[str, _Switch] = {}
    blocks = False
    joined = text.replace("\\\n", " \x00")  # a line may go on in the next; lines are still counted
    number = 1
    for raw in joined.split("\n"):
        line = raw.replace("\x00", "").partition("#")[0].strip()
        line = re.sub(r"\s+=\s*", "=", line).replace('"', "")
        here, number = number, number + 1 + raw.count("\x00")
        if not line:
            continue
        words = {key.lower(): value for key, value in _WORD.findall(line)}
        name = words.get("switchname") or words.get("blockname")
        if name is None:
            if "blocksizes" in words:
                continue
            rule = "must begin with SwitchName= or BlockName="
            remedy = "Take that line out, or name Slurm's topology.conf."
            raise refuse(here, rule, repr(line[:60]), remedy)
        blocks = blocks or "blockname" in words
        if not words.get("nodes") and not words.get("switches"):
            rule, remedy = "a switch needs Nodes= or Switches=", "Add what is below it."
            raise refuse(here, rule, repr(line[:60]), remedy)
        nodes = _listed(words.get("nodes", ""), here)
        below = _listed(words.get("switches", ""), here)
        for each in _listed(name, here):
            _add(switches, each, _Switch(here, nodes, below))
    return _joined(switches) if blocks else switches


def _of_yaml(text: str) -> dict[str, _Switch]:
    """The switches of the first topology of a topology.yaml, or of the default one."""
    found = parse_documents(text, "")
    if len(found) != 1:
        raise refuse(0, "must be one YAML document", "several", "Keep one.")
    found = _list({"topologies": found[0]}, "topologies")
    chosen = next((each for each in found if each.get("cluster_default") is True), found[0])
    switches: dict[str, _Switch] = {}
    for kind, parts, name, below in _YAML_KINDS:
        if not isinstance(chosen.get(kind), dict):
            continue
        for each in _list(chosen[kind], parts):
            lists = (_listed(str(each.get(key) or ""), 0) for key in ("nodes", below))
            _add(switches, _name(each, name), _Switch(0, *lists))
        return _joined(switches) if kind == "block" else switches
    rule, remedy = "a topology must be a tree or blocks", "A flat one says nothing of the network."
    raise refuse(0, rule, repr(chosen.get("topology")), remedy)


def _list(holder: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = holder.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(e, dict) for e in found):
        rule = f"{key} must be a list of mappings"
        raise refuse(0, rule, repr(found)[:60], "Correct it.")
    return found


def _name(each: dict[str, Any], key: str) -> str:
    if not isinstance(each.get(key), str | int):
        rule, remedy = f"every {key} needs a name", f"Write {key}: NAME."
        raise refuse(0, rule, repr(each.get(key)), remedy)
    return str(each[key])


def _add(switches: dict[str, _Switch], name: str, switch: _Switch) -> None:
    if name in switches:
        raise refuse(switch.line, "must have every switch once", repr(name), "Rename one.")
    switches[name] = switch


def _joined(blocks: dict[str, _Switch]) -> dict[str, _Switch]:
    """Blocks, and one switch above them if there are several."""
    if len(blocks) == 1:
        return blocks
    return {**blocks, TOP: _Switch(0, [], list(blocks))}


def _listed(text: str, line: int) -> list[str]:
    """The names that a list such as 'a[1-3,07]b,c' stands for."""
    try:
        return expand_node_list(text, MOST_NAMES) if text else []
    except InputError as error:
        problem = error.problems[0]
        raise refuse(line, problem.rule, problem.value, problem.remedy) from None
