"""A new scenario and its machine as commented YAML, from the answers to the questions."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from simshuffle.errors import InputError
from simshuffle.new.questions import (
    ALL_RANKS,
    BY_NAME,
    NO_SSD,
    QUESTIONS,
    answered,
    listed,
    strategy_of,
)
from simshuffle.scenario.scenario import load_scenario
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
_ALLREDUCE_SHARE = 0.85
"""Of the adapters of a host, what an allreduce over hosts reaches: 84.8 of 100 GB/s with 4 HDR200
(github.com/NVIDIA/nccl-tests, issue 119)."""

MACHINE = """\
# The machine of {name}.yaml, written by `simshuffle new`. Every value is yours to change.
# "Unknown?" says what to write where you have no number. `simshuffle machine calibrate` reads
# what ior, mdtest and OSU's benchmarks print, and writes a file that {name}.yaml can include.
name: {label}
description: {hosts} hosts with {gpus} {accelerator} each
topology:
  kind: fat_tree
  hosts: {hosts}
{ports?}
  ports: {ports}
{taper?}
  taper: {taper}
  rails: {hcas}  # one for each HCA, on leaf switches of its own
{hca_bandwidth?}
  link_bandwidth: {hca_bandwidth}
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
SCENARIO = """\
# {many} samples of {sample_size} on {gpu_counts} GPUs: what do ways to shuffle them cost?
#   simshuffle check {name}.yaml    what follows from these values, before anything is simulated
#   simshuffle run {name}.yaml      seconds of an epoch, and what they go into
# Written by `simshuffle new`. Every value is yours to change; docs/scenario.md has all keys.
name: {label}
cluster: {name}-cluster.yaml
# include: host.yaml  # what `simshuffle machine probe FOLDER > host.yaml` wrote, or calibrate
world_size: {ranks}  # a rank for each GPU; fewer fill fewer hosts
epochs: {epochs}  # the first reads everything for the first time
time_tolerance: 1 %  # simulate until an iteration is known to that; 0: every iteration
workload:
  dataset:
    name: {name}-data
    num_samples: {samples}
{sample_size?}
    sample_size: {{mean: {sample_size}}}
    # jpeg or raw: how sizes vary, and what decoding costs, unless you say it (std, decode, encode).
    # Measure: simshuffle machine probe FOLDER
    format: {format}
  model:
    name: {name}-model
{gradients?}
    gradient_size: {gradients}
    accelerators:
      {device}:
{batch_time?}
        # Here {batch_time} for {batch_size} samples. A third of that is the forward pass; the
        # backward pass, left out, takes twice as long: the usual rule, and the catalog's.
        forward: {batch_time} / {thirds}
        measured_batch: {batch_size}
  local_batch_size: {batch_size}
  exchange: {first}{staging}
  allreduce:
    kind: nccl  # the faster of rings and trees; latencies as in NCCL's tuning table (v2.7.8)
    channels: {hcas}  # one for each HCA
    ring_intra_host_latency: 3.4 us
    ring_inter_host_latency: 9.6 us
    tree_intra_host_latency: 28 us
    tree_inter_host_latency: 50 us
    # Bus bandwidths. Measure: all_reduce_perf of nccl-tests, whose column busbw they are.
    intra_host_bus_bandwidth: {intra}  # {intra_why}
    inter_host_bus_bandwidth: {inter}  # 0.85 of the HCAs: nccl-tests issue 119, A100 and HDR
    protocols: nccl_2.7  # LL and LL128 where they are faster, by the same table
{overlap?}
    overlap: {overlap}
"""
STAGING = "\n  staging: {target: memory}  # the hosts have no SSD"


def drafts(name: str, given: Mapping[str, str]) -> dict[str, str]:
    """The texts of the scenario ``name`` and of its machine, by the names of their files. ``given``
    are answers by the names of the questions; those that have a default may be missing.

    Raises:
        InputError: an answer is missing or not valid, or they do not make a scenario.
    """
    answers = answered(given)
    values = {**answers, **_derived(name, answers)}
    texts = {
        f"{name}.yaml": _filled(SCENARIO, values) + values["sweep"],
        f"{name}-cluster.yaml": machine_text(name, answers),
    }
    options = {question.at: question.option for question in QUESTIONS}
    options["workload.exchange"] = BY_NAME["ways"].option
    options["cluster.host"] = BY_NAME["hcas"].option
    return checked(texts, options, "new scenario")


def machine_text(name: str, answers: Mapping[str, str]) -> str:
    """The text of the machine of a scenario ``name``, from an answer to every question."""
    storage = WITHOUT_SSD if answers["ssd"] == NO_SSD else SSD
    values = {**answers, **_derived(name, answers)}
    return _filled(MACHINE.replace("{storage}", storage), values)


def checked(texts: dict[str, str], origins: Mapping[str, str], source: str) -> dict[str, str]:
    """The texts of a scenario, which is the first, and of its machine, when they have been read.

    Args:
        texts: by the names of their files.
        origins: what decides a dotted key of the scenario, for messages.
        source: what they are made from, likewise.

    Raises:
        InputError: they do not make a scenario.
    """
    with tempfile.TemporaryDirectory() as folder:
        for file, text in texts.items():
            Path(folder, file).write_text(text, encoding="utf-8")
        try:
            load_scenario(Path(folder, next(iter(texts)))).runs()
        except InputError as error:
            problems = [replace(p, path=origins.get(p.path, p.path)) for p in error.problems]
            raise InputError(problems, source) from None
    return texts


def _derived(name: str, answers: Mapping[str, str]) -> dict[str, str]:
    """What follows from the answers: texts by name."""
    links = links_of(answers["accelerator"])
    adapters = int(answers["hcas"]) * parse_quantity(answers["hca_bandwidth"], Dimension.BANDWIDTH)
    ways, machine = listed(answers["ways"]), int(answers["hosts"]) * int(answers["gpus"])
    given = (machine if each == ALL_RANKS else int(each) for each in listed(answers["ranks"]))
    ranks = list(dict.fromkeys(given))
    return {
        "name": name,
        "label": scalar(name),
        "device": scalar(answers["accelerator"]),
        "ranks": str(max(ranks)),
        "gpu_counts": ", ".join(map(str, ranks)),
        "many": f"{int(answers['samples']):,}",
        "thirds": str(3 * int(answers["batch_size"])),
        **links,
        "inter": readable(_ALLREDUCE_SHARE * adapters, Dimension.BANDWIDTH),
        "first": strategy_of(ways[0]),
        "sweep": _sweep(ranks, [strategy_of(way) for way in ways]),
        "staging": STAGING if answers["ssd"] == NO_SSD else "",
    }


def links_of(accelerator: str) -> dict[str, str]:
    """What joins the GPUs of a host, and why that is taken: texts by name."""
    known = next((key for key in _LINKS if accelerator.lower().startswith(key)), None)
    links = _LINKS[known or "a100"]
    if known is not None:
        return links
    return {k: f"{v}; as of an A100" if k.endswith("_why") else v for k, v in links.items()}


def _sweep(ranks: list[int], strategies: list[str]) -> str:
    """The sweep over what has several values; '' if nothing has."""
    lines = [f"  world_size: {ranks}\n"] if ranks[1:] else []
    if strategies[1:]:
        lines += ["  workload.exchange:\n", *(f"    - {of}\n" for of in strategies)]
    return "".join(["sweep:  # a run for each combination\n", *lines]) if lines else ""


def scalar(text: str) -> str:
    """A name as YAML, in quotes if it would be a number or the like without."""
    return yaml.safe_dump(text).splitlines()[0]


def _filled(template: str, values: Mapping[str, str]) -> str:
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
