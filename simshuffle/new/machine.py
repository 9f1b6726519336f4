"""The machine of a new scenario as commented YAML, from the answers to the questions, or a copy of
one that is there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from simshuffle.new.questions import BY_NAME, NO_SSD
from simshuffle.new.shapes import NETWORKS, VALUES
from simshuffle.new.start import MACHINE, start_of
from simshuffle.spec.library import find, is_file
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
_OF_NVLINK = 230 / 300
"""Of NVLink, what an allreduce in a host reaches: the share of an A100, see there."""

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
{storage}
memory:
  capacity: {memory}  # free -h; three quarters are page cache, `page_cache: 0 B` turns it off
  bandwidth: 200 GB/s  # 8 x DDR4-3200 have 204.8 GB/s
parallel_file_system:
{pfs_bandwidth?}
  read_bandwidth: {pfs_bandwidth}
{pfs_opens?}
  open_rate: {pfs_opens}
"""
SSD = """\
ssd:
  capacity: {ssd}  # of one host; df -h
{ssd_read?}
  read_bandwidth: {ssd_read}
{ssd_write?}
  write_bandwidth: {ssd_write}"""
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


def machine_text(name: str, answers: Mapping[str, str]) -> str:
    """The text of the machine of a scenario ``name``, from an answer to every question."""
    start = start_of(answers["topology"])
    if start == MACHINE:
        path = find(answers["topology"], "topologies")
        return COPY.format(name=name, topology=answers["topology"]) + _standing_alone(path)
    text = TEXT.replace("{network}", NETWORKS[start])
    values = {
        **answers,
        **links_of(answers["accelerator"]),
        **VALUES[start](answers),
        "name": name,
        "label": scalar(name),
        "device": scalar(answers["accelerator"]),
    }
    storage = WITHOUT_SSD if answers["ssd"] == NO_SSD else SSD
    return filled(text.replace("{storage}", storage), values)


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
        reached = _OF_NVLINK * parse_quantity(nvlink, Dimension.BANDWIDTH)
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
