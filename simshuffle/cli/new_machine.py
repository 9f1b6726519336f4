"""The machine of a new scenario as commented YAML: a shape, of which a few numbers are known, the
network of a file, or a machine that is there."""

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
    ESTIMATE,
    MACHINE,
    NO_SSD,
    SHEET,
    SOURCE,
    start_of,
)
from simshuffle.cli.new_sources import quoted
from simshuffle.errors import refuse
from simshuffle.fabric.topology import RailOptimised
from simshuffle.spec.library import find_file, is_file
from simshuffle.spec.units import Dimension, parse_quantity, readable

COLUMNS = 100
_OF_LINKS = ("pcie", "pcie_why", "nvlink", "nvlink_why", "intra", "intra_why")
_LINKS = {
    name: dict(zip(_OF_LINKS, values, strict=True))
    for name, *values in (
        ("v100", "16 GB/s", "PCIe 3 x16", "50 GB/s", "NVLink 2 to one other, ABCI's guide",
         "21 GB/s", "4 GPUs of ABCI, from its logs"),
        ("a100", "32 GB/s", "PCIe 4 x16", "300 GB/s", "NVLink 3, data sheet",
         "230 GB/s", "estimate: inside a DGX A100"),
        ("h100", "64 GB/s", "PCIe 5 x16", "450 GB/s", "NVLink 4, data sheet",
         "345 GB/s", "estimate: the share of NVLink that an A100 has"),
    )
}  # fmt: skip
"""What joins the GPUs of a host, and what an allreduce in it reaches, by accelerator."""

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
"""
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
NETWORKS = {
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
  # As in NVIDIA's DGX SuperPOD (RA-11333-001): a pod has one leaf switch for each rail, and so as
  # many hosts as that has ports down.
  hosts_per_pod: {{hosts_per_pod}}
  pods: {{pods}}
  spine_layout: {{spine_layout}}  # the first of shared, rail and pod for which there are ports
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
"""By what a new machine begins from."""


def machine_text(name: str, answers: Mapping[str, str], origins: Mapping[str, str]) -> str:
    """Return the text of the machine of a scenario ``name``, from an answer to every question and
    the sources of those that have one (`simshuffle.cli.new_sources`), by name."""
    start = start_of(answers["topology"])
    if start == MACHINE:
        path = find_file(answers["topology"], "topologies")
        return COPY.format(name=name, topology=answers["topology"]) + _standing_alone(path)
    text = TEXT.replace("{network}", NETWORKS[start])
    values = {
        **answers,
        **links_of(answers["accelerator"]),
        **(VALUES[start](answers) if start in VALUES else {}),
        "path": str(Path(answers["topology"]).resolve()),
        "name": name,
        "label": scalar(name),
        "device": scalar(answers["accelerator"]),
        **_sources_of_machine(answers, origins),
    }
    storage = WITHOUT_SSD if answers["ssd"] == NO_SSD else SSD
    return filled(text.replace("{storage}", storage), values)


def _sources_of_machine(answers: Mapping[str, str], origins: Mapping[str, str]) -> dict[str, str]:
    """Return the sources of the records of a machine as YAML, by what the text calls them."""
    links = links_of(answers["accelerator"])
    known = "as of an A100" not in links["pcie_why"]
    kind = SHEET if known else ESTIMATE
    host = {
        f"{key}_bandwidth": f"{kind}: {links[f'{key}_why'].removesuffix(', data sheet')}"
        for key in ("pcie", "nvlink")
    }
    servers = {"read_bandwidth": origins["pfs_bandwidth"], "open_rate": origins["pfs_opens"]}
    device = {f"{way}_bandwidth": origins[f"ssd_{way}"] for way in ("read", "write")}
    return {
        "host_source": quoted(host, 4),
        "pfs_source": quoted(servers, 4),
        "ssd_source": quoted(device, 4),
        "link_source": quoted({"link_bandwidth": origins["hca_bandwidth"]}, 4),
    }


def _standing_alone(path: Path) -> str:
    """The text of a machine's file, in which files beside it are named by their whole path."""

    def whole(found: re.Match[str]) -> str:
        beside = path.parent / found[2]
        return f"{found[1]}{beside.resolve() if is_file(beside) else found[2]}"

    return re.sub(r"(?m)^(\s+path: )(\S+)", whole, path.read_text(encoding="utf-8"))


def links_of(accelerator: str, nvlink: str = "") -> dict[str, str]:
    """What joins the GPUs of a host, and why that is taken: texts by name. ``nvlink`` is what a
    machine has that is there."""
    known = next((key for key in _LINKS if accelerator.lower().startswith(key)), None)
    links = _LINKS[known or "a100"]
    if known is not None:
        return links
    if nvlink:
        reached = 230 / 300 * parse_quantity(nvlink, Dimension.BANDWIDTH)
        why = "estimate: the share of nvlink_bandwidth that an A100 has"
        return {"intra": readable(reached, Dimension.BANDWIDTH), "intra_why": why}
    return {k: f"{v}; as of an A100" if k.endswith("_why") else v for k, v in links.items()}


def scalar(text: str) -> str:
    """A name as YAML, in quotes if it would be a number or the like without."""
    return yaml.safe_dump(text).splitlines()[0]


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with its values; a line ``{name?}`` becomes what the question ``name`` says, as
    a comment that is indented like the line after it."""
    out = []
    lines = template.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.endswith("?}"):
            indent = " " * (len(following) - len(following.lstrip())) + "# "
            question = BY_NAME[line.strip("{?}")]
            out += [indent + text for text in question.lines(COLUMNS - len(indent))]
        else:
            out.append(line.format_map(values))
    return "\n".join(out) + "\n"


# -------------------------------------------------- what shapes need beside answers: texts by name


def _torus(answers: Mapping[str, str]) -> dict[str, str]:
    sizes, hosts = answers["shape"].split("x"), int(answers["hosts"])
    switches = math.prod(map(int, sizes))
    if switches > hosts:
        rule = f"must have at most {hosts} switches: each needs one of the hosts"
        refuse("--shape", rule, f"{answers['shape']} = {switches}", "Use fewer.", SOURCE)
    return {"dimensions": f"[{', '.join(sizes)}]", "hosts_per_switch": str(-(-hosts // switches))}


def _dragonfly(answers: Mapping[str, str]) -> dict[str, str]:
    hosts, groups, hcas, ports = (int(answers[of]) for of in ("hosts", "groups", "hcas", "ports"))
    found = _balanced(hosts, groups, hcas, ports)
    if found is None:
        near = sorted(range(1, min(hosts, 4096) + 1), key=lambda count: abs(count - groups))
        fitting = next((count for count in near if _balanced(hosts, count, hcas, ports)), None)
        remedy = "Use switches with more ports." if fitting is None else f"Use {fitting}."
        rule = f"must be such that {ports} ports of a switch join {hosts} hosts with {hcas} HCAs"
        refuse("--groups", rule, str(groups), remedy, SOURCE)
    names = ("switches_per_group", "hosts_per_switch", "global_links")
    return dict(zip(names, map(str, found), strict=True))


def _balanced(hosts: int, groups: int, hcas: int, ports: int) -> tuple[int, int, int] | None:
    """Switches of a group, hosts on each and its links to other groups; None if there are too few
    ports. A balanced dragonfly has p links to hosts on a switch, 2p switches in a group and p links
    to other groups, with p + (2p - 1) + p ports (Kim, Dally, Scott & Abts, ISCA 2008)."""
    if groups > hosts:
        return None
    on_switch = max((ports + 1) // 4 // hcas, 1)
    switches = min(-(-hosts // (groups * on_switch)), hosts // groups)
    on_switch = -(-hosts // (groups * switches))
    least = max(-(-(groups - 1) // switches), 1)
    left = ports - on_switch * hcas - (switches - 1)
    return (switches, on_switch, min(left, max(on_switch * hcas, least))) if left >= least else None


def _rail_optimised(answers: Mapping[str, str]) -> dict[str, str]:
    hosts, ports, taper = int(answers["hosts"]), int(answers["ports"]), float(answers["taper"])
    up = math.floor(ports / (taper + 1) + 1e-3)
    each = min(max(math.floor(up * taper + 1e-3), 1), hosts)
    pods = -(-hosts // each)
    given = {
        "kind": "rail_optimised",
        "hosts": hosts,
        "rails": int(answers["hcas"]),
        "ports": ports,
        "taper": taper,
        "link_bandwidth": answers["hca_bandwidth"],
        "hosts_per_pod": each,
        "pods": pods,
    }
    possible = []
    for layout in ("shared", "rail", "pod"):
        with suppress(ValidationError):
            possible.append(RailOptimised.model_validate({**given, "spine_layout": layout}))
    if not possible:
        rule = (
            f"must be enough for {hosts} hosts with {answers['hcas']} HCAs, and spines above them"
        )
        remedy = "Use switches with more ports, another --taper, or --topology fat_tree."
        refuse("--ports", rule, str(ports), remedy, SOURCE)
    layout = possible[0].spine_layout
    return {"hosts_per_pod": str(each), "pods": str(pods), "spine_layout": layout}


VALUES = {"dragonfly": _dragonfly, "rail_optimised": _rail_optimised, "torus": _torus}
