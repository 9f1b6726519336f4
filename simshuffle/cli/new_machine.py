"""The machine of a new scenario as commented YAML.

It begins from a shape of which a few numbers are known, the network of a file, or a
machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import yaml
from pydantic import ValidationError

from simshuffle.cli.new_questions import (
    BY_NAME,
    DATA_SHEET,
    ESTIMATE,
    MACHINE,
    NO_SSD,
    NONE,
    PROBLEM_SOURCE,
    start_of,
)
from simshuffle.cli.new_sources import source_lines
from simshuffle.errors import refuse
from simshuffle.fabric.topology import RailOptimised
from simshuffle.spec.library import find_file, is_file
from simshuffle.spec.units import Dimension, parse_quantity, readable

COLUMNS = 100
_LINK_NAMES = ("pcie", "pcie_why", "nvlink", "nvlink_why", "intra", "intra_why")
_LINKS_OF_ACCELERATOR = {
    name: dict(zip(_LINK_NAMES, values, strict=True))
    for name, *values in (
        ("v100", "16 GB/s", "PCIe 3 x16", "50 GB/s", "NVLink 2 to one other GPU, ABCI's guide",
         "21 GB/s", "4 GPUs of ABCI, from its logs"),
        ("a100", "32 GB/s", "PCIe 4 x16", "300 GB/s", "NVLink 3, data sheet",
         "230 GB/s", "estimate: inside a DGX A100"),
        ("h100", "64 GB/s", "PCIe 5 x16", "450 GB/s", "NVLink 4, data sheet",
         "345 GB/s", "estimate: the same share of NVLink as on an A100"),
    )
}  # fmt: skip
"""Bandwidths (text) of PCIe, of NVLink and of an allreduce inside a host, each with its
reason (``_why``), by the beginning of the accelerator's name.
"""

TEXT = """\
# The machine of {name}.yaml, written by `simshuffle new`. Every value is yours to change.
# "Unknown?" says what to write where you have no number. `simshuffle machine calibrate` reads
# what ior, mdtest and OSU's benchmarks print, and writes a file that {name}.yaml can include.
name: {label}
description: {hosts} hosts with {gpus} {accelerator} each
{network}
host:  # nvidia-smi -L, nproc and ibstat -l show what a host has
  gpus: {gpus}
  accelerator: {device}  # the key of the step times in {name}.yaml
  cores: {cores}
  hcas: {hcas}
  pcie_slots: {hcas}  # one for each HCA; GPUs share them evenly
  pcie_bandwidth: {pcie}  # {pcie_why}
  nvlink_bandwidth: {nvlink}  # {nvlink_why}
  {host_source}
{storage}
memory:
  capacity: {memory}  # free -h; three quarters are page cache, `page_cache: 0 B` turns it off
  bandwidth: 200 GB/s  # 8 x DDR4-3200 have 204.8 GB/s
parallel_file_system:
{pfs_bandwidth?}
  read_bandwidth: {pfs_bandwidth}
{pfs_opens?}
  open_rate: {pfs_opens}
  {pfs_source}
{object_store}"""
OBJECT_STORE = """\
object_store:  # keys that are left out have the numbers of Amazon S3 within its region
  # Of all hosts together. Measure: s5cmd cp 's3://bucket/*' /dev/shm on all hosts at once
  bandwidth: {store}
  prefixes: 1  # beginnings of the objects' names; each answers 5.5 k requests/s
  # host_bandwidth: 12.5 GB/s  # of one host, where the store is reached over another network
  # price_per_gigabyte: 0.09  # US dollars, where reads leave the region
  {store_source}"""
SSD = """\
ssd:
  capacity: {ssd}  # of one host; df -h
{ssd_read?}
  read_bandwidth: {ssd_read}
{ssd_write?}
  write_bandwidth: {ssd_write}
  {ssd_source}"""
WITHOUT_SSD = """\
ssd:  # none: samples are staged to memory (staging in {name}.yaml), whose numbers stand here
  capacity: {memory}
  read_bandwidth: 200 GB/s
  write_bandwidth: 200 GB/s
  latency: 1 us"""
COPY = """\
# The machine of {name}.yaml, written by `simshuffle new`: a copy of {topology}.
# Every value is yours to change.
"""
_PORTS = """\
{ports?}
  ports: {ports}
"""
_TAPER = """\
{taper?}
  taper: {taper}
"""
_LINK = """\
{hca_bandwidth?}
  link_bandwidth: {hca_bandwidth}
  {link_source}"""
NETWORK_TEXTS = {
    "fat_tree": f"""\
topology:
  kind: fat_tree
  hosts: {{hosts}}
{_PORTS}{_TAPER}\
  rails: {{hcas}}  # one for each HCA, on leaf switches of its own
{_LINK}""",
    "dragonfly": f"""\
topology:  # Dragonfly+ and other keys: docs/topologies.md
  kind: dragonfly
  hosts: {{hosts}}  # spread evenly over all switches
{{groups?}}
  groups: {{groups}}
  # A switch of {{ports}} ports, shared as in a balanced dragonfly (Kim et al., ISCA 2008):
  # a quarter for hosts, and as many for other groups. Estimates, if you do not know better.
  hosts_per_switch: {{hosts_per_switch}}
  switches_per_group: {{switches_per_group}}  # as the hosts of a group need; all linked
  global_links_per_switch: {{global_links}}  # to other groups; some may be unused
  hcas_per_host: {{hcas}}  # all on one switch
{_LINK}""",
    "rail_optimised": f"""\
topology:
  kind: rail_optimised
  hosts: {{hosts}}
  rails: {{hcas}}  # one for each HCA
{_PORTS}{_TAPER}\
  # As in NVIDIA's DGX SuperPOD (RA-11333-001): a pod has one leaf switch for each rail, and as many
  # hosts as a leaf switch has ports to hosts.
  hosts_per_pod: {{hosts_per_pod}}
  pods: {{pods}}
  spine_layout: {{spine_layout}}  # the first of shared, rail and pod whose ports suffice
{_LINK}""",
    "torus": f"""\
topology:
  kind: torus
  hosts: {{hosts}}  # spread evenly over all switches
{{shape?}}
  shape: {{dimensions}}
  hosts_per_switch: {{hosts_per_switch}}  # as many as the hosts need
  hcas_per_host: {{hcas}}  # all on one switch
  links: 1  # between two switches; estimate
{_LINK}""",
    "network": """\
topology:
  kind: custom
  path: {path}""",
}
"""Templates of the section ``topology``, by what a new machine begins from."""


def machine_text(
    name: str, answers: Mapping[str, str], origins: Mapping[str, str]
) -> str:
    """Return the text of the whole machine file of a new scenario.

    If the answer to ``topology`` is a machine, the text is a copy of that machine's
    file, and all other answers are ignored.

    Args:
        name: name of the scenario.
        answers: answers to every question, by name.
        origins: sources of the numbers, by the names of their questions
            (`simshuffle.cli.new_sources.sources_of_inputs`).

    Raises:
        InputError: there is no such machine, or the shape of the network does not fit
            the hosts or the ports.
    """
    start = start_of(answers["topology"])
    if start == MACHINE:
        path = find_file(answers["topology"], "topologies")
        return COPY.format(name=name, topology=answers["topology"]) + copy_machine_text(
            path
        )
    text = TEXT.replace("{network}", NETWORK_TEXTS[start])
    values = {
        **answers,
        **links_of_accelerator(answers["accelerator"]),
        **(VALUES_OF_SHAPE[start](answers) if start in VALUES_OF_SHAPE else {}),
        "path": str(Path(answers["topology"]).resolve()),
        "name": name,
        "label": yaml_scalar(name),
        "device": yaml_scalar(answers["accelerator"]),
        **sources_of_machine(answers, origins),
    }
    storage = WITHOUT_SSD if answers["ssd"] == NO_SSD else SSD
    store = "" if answers["store"] == NONE else OBJECT_STORE
    text = text.replace("{storage}", storage).replace("{object_store}", store)
    return fill_template(text, values)


def sources_of_machine(
    answers: Mapping[str, str], origins: Mapping[str, str]
) -> dict[str, str]:
    """Return the YAML lines on the sources of a machine's numbers: host, parallel file
    system, SSD, object store and links.

    Returns:
        Texts by their names in the templates: host_source, pfs_source, ssd_source,
        store_source and link_source. Links inside a host are estimates if the
        accelerator is unknown.
    """
    links = links_of_accelerator(answers["accelerator"])
    is_known = "as of an A100" not in links["pcie_why"]
    kind = DATA_SHEET if is_known else ESTIMATE
    host = {
        f"{key}_bandwidth": f"{kind}: {links[f'{key}_why'].removesuffix(', data sheet')}"
        for key in ("pcie", "nvlink")
    }
    servers = {
        "read_bandwidth": origins["pfs_bandwidth"],
        "open_rate": origins["pfs_opens"],
    }
    device = {
        f"{direction}_bandwidth": origins[f"ssd_{direction}"]
        for direction in ("read", "write")
    }
    return {
        "host_source": source_lines(host, 4),
        "pfs_source": source_lines(servers, 4),
        "ssd_source": source_lines(device, 4),
        "store_source": source_lines({"bandwidth": origins["store"]}, 4),
        "link_source": source_lines({"link_bandwidth": origins["hca_bandwidth"]}, 4),
    }


def copy_machine_text(path: Path) -> str:
    """Return the text of a machine's file, with absolute paths in place of relative
    ones.

    Only an indented ``path:`` that names an existing file, seen from the machine's
    folder, is changed.
    """

    def absolute_line(match: re.Match[str]) -> str:
        """Return a line 'path: FILE' with the absolute path of the file; as it is if
        there is no such file.
        """
        neighbour = path.parent / match[2]
        return f"{match[1]}{neighbour.resolve() if is_file(neighbour) else match[2]}"

    return re.sub(
        r"(?m)^(\s+path: )(\S+)", absolute_line, path.read_text(encoding="utf-8")
    )


def links_of_accelerator(accelerator: str, nvlink: str = "") -> dict[str, str]:
    """Return the bandwidths inside a host of such GPUs, and their reasons, as texts by
    name: pcie, nvlink and intra (an allreduce), each with ``_why``.

    An unknown GPU has the bandwidths of an A100, and every reason says so.

    Args:
        accelerator: name of the GPU; a known one begins with v100, a100 or h100.
        nvlink: NVLink bandwidth of an existing machine. For an unknown GPU only
            ``intra`` and ``intra_why`` are then returned, estimated from it. '' for a
            new machine.
    """
    known_name = next(
        (key for key in _LINKS_OF_ACCELERATOR if accelerator.lower().startswith(key)),
        None,
    )
    links = _LINKS_OF_ACCELERATOR[known_name or "a100"]
    if known_name is not None:
        return links
    if nvlink:
        bandwidth = 230 / 300 * parse_quantity(nvlink, Dimension.BANDWIDTH)
        reason = "estimate: the same share of nvlink_bandwidth as on an A100"
        return {"intra": readable(bandwidth, Dimension.BANDWIDTH), "intra_why": reason}
    return {
        name: f"{text}; as of an A100" if name.endswith("_why") else text
        for name, text in links.items()
    }


def yaml_scalar(text: str) -> str:
    """Return a text as a YAML scalar on one line, however long it is.

    It is quoted where plain YAML would be read as something else, such as a number.
    """
    style = '"' if "\n" in text else None  # other styles break the line there
    return yaml.safe_dump(text, width=math.inf, default_style=style).splitlines()[0]


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """Return the template with its values, ending in a line feed.

    A line ``{name?}`` becomes the text of the question ``name``, as a comment that is
    indented like the line after it.
    """
    filled_lines = []
    lines = template.splitlines()
    for line, next_line in zip(lines, [*lines[1:], ""], strict=True):
        if line.endswith("?}"):
            indent = " " * (len(next_line) - len(next_line.lstrip())) + "# "
            question = BY_NAME[line.strip("{?}")]
            filled_lines += [
                indent + text for text in question.lines(COLUMNS - len(indent))
            ]
        else:
            filled_lines.append(line.format_map(values))
    return "\n".join(filled_lines) + "\n"


# -------------------------------------------------- what shapes need beside answers: texts by name


def torus_values(answers: Mapping[str, str]) -> dict[str, str]:
    """Return dimensions and hosts_per_switch of a torus as texts by name.

    Raises:
        InputError: there are more switches than hosts.
    """
    sizes = answers["shape"].split("x")
    hosts = int(answers["hosts"])
    switches = math.prod(map(int, sizes))
    if switches > hosts:
        rule = f"must have at most {hosts} switches: each switch needs a host"
        refuse(
            "--shape",
            rule,
            f"{answers['shape']} = {switches}",
            "Use fewer.",
            PROBLEM_SOURCE,
        )
    return {
        "dimensions": f"[{', '.join(sizes)}]",
        "hosts_per_switch": str(-(-hosts // switches)),
    }


def dragonfly_values(answers: Mapping[str, str]) -> dict[str, str]:
    """Return switches_per_group, hosts_per_switch and global_links of a balanced
    dragonfly as texts by name.

    The layout is that of `balance_dragonfly`.

    Raises:
        InputError: the ports of a switch are too few for so many groups, or there are
            more groups than hosts; it names the nearest number of groups that fits, if
            there is one up to 4096.
    """
    hosts, groups, hcas, ports = (
        int(answers[name]) for name in ("hosts", "groups", "hcas", "ports")
    )
    layout = balance_dragonfly(hosts, groups, hcas, ports)
    if layout is None:
        nearest_counts = sorted(
            range(1, min(hosts, 4096) + 1), key=lambda count: abs(count - groups)
        )
        fitting_count = next(
            (
                count
                for count in nearest_counts
                if balance_dragonfly(hosts, count, hcas, ports)
            ),
            None,
        )
        remedy = (
            "Use switches with more ports."
            if fitting_count is None
            else f"Use {fitting_count}."
        )
        rule = (
            f"must be such that switches of {ports} ports join {hosts} hosts with"
            f" {hcas} HCAs each"
        )
        refuse("--groups", rule, str(groups), remedy, PROBLEM_SOURCE)
    names = ("switches_per_group", "hosts_per_switch", "global_links")
    return dict(zip(names, map(str, layout), strict=True))


def balance_dragonfly(
    hosts: int, groups: int, hcas: int, ports: int
) -> tuple[int, int, int] | None:
    """Return the switches of a group, the hosts of a switch and its links to other
    groups; None if the ports are too few or there are more groups than hosts.

    A balanced dragonfly has p links to hosts on a switch, 2p switches in a group and p
    links to other groups, with p + (2p - 1) + p ports (Kim, Dally, Scott & Abts, ISCA
    2008). Here a switch has at most that many links to hosts, or one host. A group has
    as many switches as its hosts need, not 2p, and each is linked to all others of the
    group. A switch has as many links to other groups as to its hosts, more where other
    groups could not be reached, and fewer where its ports do not suffice.

    Args:
        hosts: hosts of the machine.
        groups: groups of switches.
        hcas: HCAs of a host, all on one switch.
        ports: ports of a switch.
    """
    if groups > hosts:
        return None
    hosts_per_switch = max((ports + 1) // 4 // hcas, 1)
    switches = min(-(-hosts // (groups * hosts_per_switch)), hosts // groups)
    hosts_per_switch = -(-hosts // (groups * switches))
    min_global_links = max(-(-(groups - 1) // switches), 1)
    free_ports = ports - hosts_per_switch * hcas - (switches - 1)
    if free_ports < min_global_links:
        return None
    global_links = min(free_ports, max(hosts_per_switch * hcas, min_global_links))
    return switches, hosts_per_switch, global_links


def rail_optimised_values(answers: Mapping[str, str]) -> dict[str, str]:
    """Return hosts_per_pod, pods and spine_layout of a rail-optimised network as texts
    by name.

    The layout is the first of shared, rail and pod for which there are enough ports.

    Raises:
        InputError: the ports of a switch are too few for each of them.
    """
    hosts = int(answers["hosts"])
    ports = int(answers["ports"])
    taper = float(answers["taper"])
    ports_up = math.floor(ports / (taper + 1) + 1e-3)
    hosts_per_pod = min(max(math.floor(ports_up * taper + 1e-3), 1), hosts)
    pods = -(-hosts // hosts_per_pod)
    topology = {
        "kind": "rail_optimised",
        "hosts": hosts,
        "rails": int(answers["hcas"]),
        "ports": ports,
        "taper": taper,
        "link_bandwidth": answers["hca_bandwidth"],
        "hosts_per_pod": hosts_per_pod,
        "pods": pods,
    }
    valid_topologies = []
    for layout in ("shared", "rail", "pod"):
        with suppress(ValidationError):
            valid_topologies.append(
                RailOptimised.model_validate({**topology, "spine_layout": layout})
            )
    if not valid_topologies:
        rule = (
            f"must be enough for {hosts} hosts with {answers['hcas']}"
            " HCAs each, and for the spine switches above them"
        )
        remedy = (
            "Use switches with more ports, another --taper, or --topology fat_tree."
        )
        refuse("--ports", rule, str(ports), remedy, PROBLEM_SOURCE)
    layout = valid_topologies[0].spine_layout
    return {
        "hosts_per_pod": str(hosts_per_pod),
        "pods": str(pods),
        "spine_layout": layout,
    }


VALUES_OF_SHAPE = {
    "dragonfly": dragonfly_values,
    "rail_optimised": rail_optimised_values,
    "torus": torus_values,
}
