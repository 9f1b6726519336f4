"""Read Slurm's topology.conf and topology.yaml, which say which nodes are below which
switches.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError, list_first
from simshuffle.extensions.interop.fabrics.imported import (
    Cable,
    FabricNode,
    FabricSupplement,
    ImportedFabric,
    attribute_errors,
    fabric_error,
    read_text,
)
from simshuffle.spec.hostlist import expand_node_list
from simshuffle.spec.library import parse_documents

MAX_NAMES = 200_000
"""Names that a list with brackets may stand for, at most."""
TOP_SWITCH = "above-the-blocks"
"""A switch that joins blocks, of which Slurm does not say how they are joined."""
_CONF = re.compile(r"^\s*(SwitchName|BlockName)\s*=", re.IGNORECASE | re.MULTILINE)
_YAML = re.compile(r"^\s*-\s*topology\s*:", re.MULTILINE)
_YAML_KINDS = (
    ("tree", "switches", "switch", "children"),
    ("block", "blocks", "block", ""),
)
"""Of topology.yaml: the kind, the key of its list, and there of a name and of what is
below.
"""
_WORD = re.compile(r"(\w+)=(\S*)")


@dataclass(frozen=True)
class _SlurmSwitch:
    """A switch or block of Slurm's topology, with what is directly below it."""

    line: int  # of the file, from 1; 0 in YAML
    nodes: list[str]  # names of the hosts
    child_switches: list[str]  # names of the switches


def begins(text: str) -> bool:
    """Return whether a text may be a topology of Slurm."""
    return bool(_CONF.search(text) or _YAML.search(text))


def fabric_of(text: str, source: str, supplement: FabricSupplement) -> ImportedFabric:
    """Parse a fabric from a topology of Slurm.

    Slurm says neither what links carry nor how many there are. A switch has as many
    links up as hosts are below it, unless ``supplement`` says another number. A host
    has one link. Switches without hosts below them are left out, and named in
    ``left_out``. Ports have no numbers, and nodes no GUIDs.

    Args:
        text: the file's text.
        source: name of the file.
        supplement: the bandwidth of every link, and perhaps the links up of each
            switch.

    Raises:
        TopologyError: the file is no topology of Slurm, names a switch that it does not
            have or a node twice, or bandwidth is missing; or the fabric is no usable
            network.
    """
    switches = _parse_switches(text)
    bandwidth = supplement.bandwidth
    if bandwidth is None:
        rule = "the bandwidth of links is needed, which Slurm does not know"
        remedy = "Add --link-bandwidth '25 GB/s'."
        raise fabric_error(0, rule, "no --link-bandwidth", remedy)
    parent_of_switch = _switch_above(switches)
    switch_of_host = _switch_of_hosts(switches)

    num_hosts_below = Counter(switch for switch in switch_of_host.values())
    for switch in list(num_hosts_below):
        num_hosts = num_hosts_below[switch]
        parent = parent_of_switch.get(switch)
        while parent is not None:
            num_hosts_below[parent] += num_hosts
            parent = parent_of_switch.get(parent)

    nodes = [FabricNode(name, "host", tier="host") for name in switch_of_host]
    nodes += [FabricNode(name, "switch") for name in switches if num_hosts_below[name]]
    cables = [
        Cable((host, switch), None, bandwidth)
        for host, switch in switch_of_host.items()
    ]
    for name, parent in parent_of_switch.items():
        if num_hosts_below[name]:
            num_links = supplement.links_up or num_hosts_below[name]
            cables += [Cable((name, parent), None, bandwidth)] * num_links
    warnings = [
        f"each link has the bandwidth of --link-bandwidth, and each host has one link: {source}"
    ]
    if parent_of_switch and supplement.links_up is None:
        warnings.append(
            "a switch has as many links up as hosts below: an estimate; --links-up sets another"
            " number"
        )
    if TOP_SWITCH in switches:
        warnings.append(
            "one switch joins all blocks: an estimate, since Slurm does not say how blocks are"
            " joined"
        )
    unused_switches = [name for name in switches if not num_hosts_below[name]]
    left_out = []
    if unused_switches:
        left_out.append(
            f"switches without hosts below them: {list_first(unused_switches)}"
        )
    fabric = ImportedFabric(
        source,
        nodes,
        cables,
        adapters=len(switch_of_host),
        left_out=left_out,
        warnings=warnings,
    )
    return fabric.check_usable()


def read_hosts(path: Path) -> frozenset[str]:
    """Read the names of the nodes of Slurm's topology from a file.

    Raises:
        TopologyError: the file is no such topology, or names a node twice.
    """
    with attribute_errors(path):
        text = read_text(path)
        if not begins(text):
            remedy = "Name Slurm's topology.conf or topology.yaml."
            raise fabric_error(
                0, "must be a topology of Slurm", "something else", remedy
            )
        return frozenset(_switch_of_hosts(_parse_switches(text)))


def _parse_switches(text: str) -> dict[str, _SlurmSwitch]:
    """Parse the switches of a topology.yaml or topology.conf, by their names."""
    return _parse_yaml(text) if _YAML.search(text) else _parse_conf(text)


def _switch_above(switches: dict[str, _SlurmSwitch]) -> dict[str, str]:
    """Return the name of the switch above each switch that has one.

    Raises:
        TopologyError: a switch is unknown, has two switches above it, or stands in a
            circle.
    """
    parent_of_switch: dict[str, str] = {}
    for name, switch in switches.items():
        for child in switch.child_switches:
            if child not in switches:
                rule = "must be a switch of the file"
                remedy = "Add a line for the switch, or correct its name."
                raise fabric_error(
                    switch.line, rule, f"{child!r} below {name!r}", remedy
                )
            if child in parent_of_switch:
                rule = "a switch must have only one switch above it"
                value = f"{child!r} below {parent_of_switch[child]!r} and {name!r}"
                raise fabric_error(switch.line, rule, value, "Keep one of the two.")
            parent_of_switch[child] = name
    for name in parent_of_switch:
        ancestors = [name]
        while ancestors[-1] in parent_of_switch and len(ancestors) <= len(switches):
            ancestors.append(parent_of_switch[ancestors[-1]])
        if len(ancestors) > len(switches):
            rule = "switches must stand in a tree"
            remedy = "Correct the switches below each switch."
            raise fabric_error(
                switches[name].line, rule, f"{name!r} in a circle", remedy
            )
    return parent_of_switch


def _switch_of_hosts(switches: dict[str, _SlurmSwitch]) -> dict[str, str]:
    """Return the name of the switch that each host is directly below, by the host.

    Raises:
        TopologyError: a node is below two switches, or is a switch.
    """
    switch_of_host: dict[str, str] = {}
    for name, switch in switches.items():
        for node in switch.nodes:
            if node in switch_of_host or node in switches:
                rule = "a node must be below only one switch, and must not be a switch"
                value = f"{node!r} below {switch_of_host.get(node, 'another')!r} and {name!r}"
                raise fabric_error(switch.line, rule, value, "Keep one of the two.")
            switch_of_host[node] = name
    return switch_of_host


def _parse_conf(text: str) -> dict[str, _SlurmSwitch]:
    """Parse the switches of a topology.conf by name; each block counts as a switch.

    Several blocks get one switch above them, `TOP_SWITCH`. Lines with BlockSizes are
    passed over.

    Raises:
        TopologyError: a line defines no switch or block, or one without anything below
            it, or one that is there already.
    """
    switches: dict[str, _SlurmSwitch] = {}
    has_blocks = False
    # a line may go on in the next; lines are still counted
    joined_text = text.replace("\\\n", " \x00")
    next_line = 1
    for raw_line in joined_text.split("\n"):
        line = raw_line.replace("\x00", "").partition("#")[0].strip()
        line = re.sub(r"\s+=\s*", "=", line).replace('"', "")
        line_number = next_line
        next_line += 1 + raw_line.count("\x00")
        if not line:
            continue
        words = {key.lower(): value for key, value in _WORD.findall(line)}
        name = words.get("switchname") or words.get("blockname")
        if name is None:
            if "blocksizes" in words:
                continue
            rule = "must begin with SwitchName= or BlockName="
            remedy = "Take that line out, or name Slurm's topology.conf."
            raise fabric_error(line_number, rule, repr(line[:60]), remedy)
        has_blocks = has_blocks or "blockname" in words
        if not words.get("nodes") and not words.get("switches"):
            rule = "a switch needs Nodes= or Switches="
            remedy = "Add the nodes or switches below the switch."
            raise fabric_error(line_number, rule, repr(line[:60]), remedy)
        nodes = _expand_names(words.get("nodes", ""), line_number)
        child_switches = _expand_names(words.get("switches", ""), line_number)
        for switch_name in _expand_names(name, line_number):
            _add_switch(
                switches, switch_name, _SlurmSwitch(line_number, nodes, child_switches)
            )
    return _join_blocks(switches) if has_blocks else switches


def _parse_yaml(text: str) -> dict[str, _SlurmSwitch]:
    """Parse the switches of a topology.yaml by name: of its default topology, or else
    its first.

    Several blocks get one switch above them, `TOP_SWITCH`.

    Raises:
        TopologyError: it is not one YAML document with a tree or blocks, or has a
            switch twice.
    """
    documents = parse_documents(text, "")
    if len(documents) != 1:
        raise fabric_error(0, "must be one YAML document", "several", "Keep one.")
    topologies = _require_list({"topologies": documents[0]}, "topologies")
    defaults = [
        topology for topology in topologies if topology.get("cluster_default") is True
    ]
    chosen = (defaults or topologies)[0]

    switches: dict[str, _SlurmSwitch] = {}
    for kind, list_key, name_key, children_key in _YAML_KINDS:
        if not isinstance(chosen.get(kind), dict):
            continue
        for record in _require_list(chosen[kind], list_key):
            name = _require_name(record, name_key)
            nodes = _expand_names(str(record.get("nodes") or ""), 0)
            child_switches = _expand_names(str(record.get(children_key) or ""), 0)
            _add_switch(switches, name, _SlurmSwitch(0, nodes, child_switches))
        return _join_blocks(switches) if kind == "block" else switches
    rule = "a topology must be a tree or blocks"
    remedy = "Name a file with a tree or blocks; a flat topology does not describe the network."
    raise fabric_error(0, rule, repr(chosen.get("topology")), remedy)


def _require_list(mapping: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the list of mappings below a key; refuse anything else or an empty one."""
    records = mapping.get(key)
    if (
        not isinstance(records, list)
        or not records
        or not all(isinstance(record, dict) for record in records)
    ):
        rule = f"{key} must be a list of mappings"
        raise fabric_error(0, rule, repr(records)[:60], "Correct it.")
    return records


def _require_name(record: dict[str, Any], key: str) -> str:
    """Return the name below a key of a switch or block, and refuse a missing one."""
    if not isinstance(record.get(key), str | int):
        rule = f"every {key} needs a name"
        remedy = f"Write {key}: NAME."
        raise fabric_error(0, rule, repr(record.get(key)), remedy)
    return str(record[key])


def _add_switch(
    switches: dict[str, _SlurmSwitch], name: str, switch: _SlurmSwitch
) -> None:
    """Add a switch, and refuse a second one with its name."""
    if name in switches:
        raise fabric_error(
            switch.line, "must have each switch only once", repr(name), "Rename one."
        )
    switches[name] = switch


def _join_blocks(blocks: dict[str, _SlurmSwitch]) -> dict[str, _SlurmSwitch]:
    """Return the blocks, with switch `TOP_SWITCH` above them if there are several."""
    if len(blocks) == 1:
        return blocks
    return {**blocks, TOP_SWITCH: _SlurmSwitch(0, [], list(blocks))}


def _expand_names(text: str, line: int) -> list[str]:
    """Return the names that a list such as 'a[1-3,07]b,c' stands for; [] for ''. Raises
    a TopologyError of the line if it is no list, or has more than `MAX_NAMES`.
    """
    try:
        return expand_node_list(text, MAX_NAMES) if text else []
    except InputError as error:
        problem = error.problems[0]
        raise fabric_error(line, problem.rule, problem.value, problem.remedy) from None
