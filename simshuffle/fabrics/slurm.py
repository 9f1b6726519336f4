"""Slurm's topology.conf and topology.yaml: which nodes are below which switches, and no more."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simshuffle.errors import ScenarioError, TopologyError
from simshuffle.fabrics.imported import (
    Cable,
    ImportedFabric,
    Missing,
    Node,
    read_text,
    refuse,
)
from simshuffle.spec.library import documents

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
    """The fabric of a file's text; ``source`` is what errors call the file.

    Slurm says neither what links carry nor how many there are. So ``missing`` has to say the first;
    of links up a switch has as many as hosts are below it, unless that is said too.

    Raises:
        TopologyError: the file is no topology of Slurm, names a switch that it does not have or a
            node twice, or bandwidth is missing; or it is no usable network.
    """
    switches = _switches(text, source)
    bandwidth = missing.bandwidth
    if bandwidth is None:
        rule, remedy = "Slurm does not say what links carry", "Add --link-bandwidth '25 GB/s'."
        raise refuse(source, 0, rule, "no --link-bandwidth", remedy)
    above = _parents(switches, source)
    hosts = _hosts(switches, source)
    below = Counter(switch for switch in hosts.values())
    for switch in list(below):
        count, up = below[switch], above.get(switch)
        while up is not None:
            below[up] += count
            up = above.get(up)
    nodes = [*(Node(name, "host", tier="host") for name in hosts)]
    nodes += [Node(name, "switch") for name in switches if below[name]]
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
    text = read_text(path)
    if not begins(text):
        rule, remedy = "must be a topology of Slurm", "Name its topology.conf or topology.yaml."
        raise refuse(str(path), 0, rule, "something else", remedy)
    return frozenset(_hosts(_switches(text, str(path)), str(path)))


def _switches(text: str, source: str) -> dict[str, _Switch]:
    """The switches of a file by name."""
    return _of_yaml(text, source) if _YAML.search(text) else _of_conf(text, source)


def _parents(switches: dict[str, _Switch], source: str) -> dict[str, str]:
    """The switch above each that has one."""
    above: dict[str, str] = {}
    for name, switch in switches.items():
        for child in switch.below:
            if child not in switches:
                rule, remedy = "must be a switch of the file", "Add its line, or correct the name."
                raise refuse(source, switch.line, rule, f"{child!r} below {name!r}", remedy)
            if child in above:
                rule = "a switch must have one switch above it"
                found = f"{child!r} below {above[child]!r} and {name!r}"
                raise refuse(source, switch.line, rule, found, "Keep one of the two.")
            above[child] = name
    for name in above:
        way = [name]
        while way[-1] in above and len(way) <= len(switches):
            way.append(above[way[-1]])
        if len(way) > len(switches):
            rule, remedy = "switches must stand in a tree", "Correct what is below what."
            raise refuse(source, switches[name].line, rule, f"{name!r} in a circle", remedy)
    return above


def _hosts(switches: dict[str, _Switch], source: str) -> dict[str, str]:
    """The switch of each host."""
    hosts: dict[str, str] = {}
    for name, switch in switches.items():
        for node in switch.nodes:
            if node in hosts or node in switches:
                rule = "a node must be below one switch, and no switch itself"
                found = f"{node!r} below {hosts.get(node, 'another')!r} and {name!r}"
                raise refuse(source, switch.line, rule, found, "Keep one of the two.")
            hosts[node] = name
    return hosts


def _of_conf(text: str, source: str) -> dict[str, _Switch]:
    """The switches of a topology.conf by name; a block is one."""
    switches: dict[str, _Switch] = {}
    blocks = False
    joined = text.replace("\\\n", " \x00")  # a line may go on in the next; lines are still counted
    number = 1
    for raw in joined.split("\n"):
        line = raw.replace("\x00", "").partition("#")[0].strip()
        here, number = number, number + 1 + raw.count("\x00")
        if not line:
            continue
        words = {key.lower(): value for key, value in _WORD.findall(line)}
        name = words.get("switchname") or words.get("blockname")
        if name is None:
            if "blocksizes" in words:
                continue
            rule = "must begin with SwitchName= or BlockName="
            raise refuse(source, here, rule, repr(line[:60]), "Name Slurm's topology.conf.")
        blocks = blocks or "blockname" in words
        if not words.get("nodes") and not words.get("switches"):
            rule, remedy = "a switch needs Nodes= or Switches=", "Add what is below it."
            raise refuse(source, here, rule, repr(line[:60]), remedy)
        nodes = expanded(words.get("nodes", ""), source, here)
        below = expanded(words.get("switches", ""), source, here)
        for each in expanded(name, source, here):
            _add(switches, each, _Switch(here, nodes, below), source)
    return _joined(switches) if blocks else switches


def _of_yaml(text: str, source: str) -> dict[str, _Switch]:
    """The switches of the first topology of a topology.yaml, or of the default one."""
    try:
        (topologies,) = documents(text, source)
    except ScenarioError as error:
        raise TopologyError(error.problems, source) from None
    except ValueError:
        raise refuse(source, 0, "must be one YAML document", "several", "Keep one.") from None
    found = _list({"topologies": topologies}, "topologies", source)
    chosen = next((each for each in found if each.get("cluster_default") is True), found[0])
    switches: dict[str, _Switch] = {}
    for kind, parts, name, below in _YAML_KINDS:
        if not isinstance(chosen.get(kind), dict):
            continue
        for each in _list(chosen[kind], parts, source):
            lists = (expanded(str(each.get(key) or ""), source, 0) for key in ("nodes", below))
            _add(switches, _name(each, name, source), _Switch(0, *lists), source)
        return _joined(switches) if kind == "block" else switches
    rule, remedy = "a topology must be a tree or blocks", "A flat one says nothing of the network."
    raise refuse(source, 0, rule, repr(chosen.get("topology")), remedy)


def _list(holder: dict[str, Any], key: str, source: str) -> list[dict[str, Any]]:
    found = holder.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(e, dict) for e in found):
        raise refuse(
            source, 0, f"{key} must be a list of mappings", repr(found)[:60], "Correct it."
        )
    return found


def _name(each: dict[str, Any], key: str, source: str) -> str:
    if not isinstance(each.get(key), str | int):
        rule, remedy = f"every {key} needs a name", f"Write {key}: NAME."
        raise refuse(source, 0, rule, repr(each.get(key)), remedy)
    return str(each[key])


def _add(switches: dict[str, _Switch], name: str, switch: _Switch, source: str) -> None:
    if name in switches:
        raise refuse(source, switch.line, "must have every switch once", repr(name), "Rename one.")
    switches[name] = switch


def _joined(blocks: dict[str, _Switch]) -> dict[str, _Switch]:
    """Blocks, and one switch above them if there are several."""
    if len(blocks) == 1:
        return blocks
    return {**blocks, TOP: _Switch(0, [], list(blocks))}


def expanded(text: str, source: str, line: int) -> list[str]:
    """The names that a list such as 'a[1-3,07]b,c' stands for, in its order.

    Raises:
        TopologyError: brackets do not match, or it stands for too many.
    """
    out: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\]|\[|\])+", text):
        names = [""]
        for piece in re.findall(r"\[[^\]]*\]|[^\[\]]+|\[|\]", part):
            ends = [piece]
            if piece.startswith(("[", "]")):
                ends = _range(piece, text, source, line)
            if len(names) * len(ends) + len(out) > MOST_NAMES:
                rule = f"must stand for at most {MOST_NAMES} names"
                raise refuse(source, line, rule, repr(text[:60]), "Write fewer.")
            names = [name + end for name in names for end in ends]
        out += names
    return out


def _range(piece: str, text: str, source: str, line: int) -> list[str]:
    """The numbers of '[1-3,07]' as texts, with leading zeros."""
    out = []
    for part in piece[1:-1].split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        if not found or not piece.endswith("]") or len(piece) < 3:
            rule = "brackets must hold numbers and ranges such as [1-3,07]"
            raise refuse(source, line, rule, repr(text[:60]), "Correct them.")
        first, last = int(found[1]), int(found[2] or found[1])
        if last - first > MOST_NAMES:
            rule = f"must stand for at most {MOST_NAMES} names"
            raise refuse(source, line, rule, repr(text[:60]), "Write fewer.")
        out += [str(number).zfill(len(found[1])) for number in range(first, last + 1)]
    return out
