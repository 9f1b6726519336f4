"""A new scenario and its machine as commented YAML, from the answers to the questions."""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from simshuffle.cli.common import write_together
from simshuffle.cli.new_machine import COLUMNS, filled, links_of, machine_text, scalar
from simshuffle.cli.new_questions import (
    ALL_RANKS,
    BY_FORMAT,
    FITTING,
    NO_SSD,
    OFFERED,
    QUESTIONS,
    SOURCE,
    WAYS,
    answered,
    listed,
)
from simshuffle.cli.new_sources import quoted, sources
from simshuffle.errors import InputError
from simshuffle.fabric.allreduce import Ddp, Horovod
from simshuffle.job.plan.holding import HeldStrategy, list_alternatives
from simshuffle.job.scenario.scenario import Scenario, load_scenario
from simshuffle.spec.units import Dimension, parse_quantity, readable

BATCHES_AHEAD = 2
"""Batches that a worker loads ahead (prefetch_factor of PyTorch's DataLoader)."""
_ALLREDUCE_SHARE = 0.85
"""Of the adapters of a host, what an allreduce over hosts reaches: 84.8 of 100 GB/s with 4 HDR200
(github.com/NVIDIA/nccl-tests, issue 119)."""

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
{decode?}
    {decoding}
  model:
    name: {name}-model
{gradients?}
    gradient_size: {gradients}
    accelerators:
      {device}:
{batch_time?}
        # Here {batch_time} for {batch_size} samples, timed {timed_on}. A third of that is the
        # forward pass; the backward pass, left out, takes twice as long, as in the catalog.
        forward: {batch_time} / {thirds}
        measured_batch: {batch_size}
    {model_source}
  local_batch_size: {batch_size}
  exchange: {first}{staging}
{workers?}
  loader: {{workers: {workers}, prefetch: {prefetch}}}
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
    {allreduce_source}
    protocols: nccl_2.7  # LL and LL128 where they are faster, by the same table
{overlap?}
    {added}"""
STAGING = "\n  staging: {target: memory}  # the hosts have no SSD"


TIMED = {
    "one_gpu": (
        "on one GPU",
        "# It makes a batch that was timed on one GPU longer: by hooks, and by the share slowdown\n"
        "    # while gradients travel. If the batch was timed distributed, write 0 s and 0.\n",
    ),
    "distributed": (
        "distributed",
        "# hooks and slowdown are 0: they are in the batch time, which is of distributed\n"
        "    # training. On many more hosts gradients travel for longer, and slow more of it.\n",
    ),
}
"""What is said of a batch time, and of what an overlap adds to it, by how it was timed."""


def drafts(name: str, given: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The texts of the scenario ``name`` and of its machine, by the names of their files; and a
    sentence for each strategy that is left out, as hosts have no room for it. ``given`` are answers
    by the names of the questions; those that have a default may be missing. Raises an InputError if
    an answer is missing or not valid, or they do not make a scenario."""
    answers = answered(given)
    fitting = answers["ways"] == FITTING
    strategies = [
        WAYS.get(way) or f"partial_local_shuffle:exchange_fraction={way.partition('-')[2]}"
        for way in (OFFERED if fitting else listed(answers["ways"]))
    ]
    ranks = _ranks(answers)
    origins = sources(given)
    derived = {**_derived(name, answers), **_loading(answers, origins)}
    text = filled(SCENARIO, {**answers, **derived, "first": strategies[0]})
    texts = {f"{name}.yaml": text, f"{name}-cluster.yaml": machine_text(name, answers, origins)}
    options = {question.at: question.option for question in QUESTIONS}
    options |= {"workload.exchange": "--ways", "cluster.host": "--hcas"}
    too_large: dict[str, HeldStrategy] = {}
    if fitting:
        scenario = checked(texts, options, SOURCE)
        each = [of for count in ranks for of in list_alternatives(scenario, count)]
        too_large = {of.exchange: of for of in each if not of.fits}
        strategies = [strategy for strategy in strategies if strategy not in too_large]
    left_out = tuple(f"Left out: {of}." for of in too_large.values())
    texts[f"{name}.yaml"] = text + _sweep(ranks, strategies, left_out)
    checked(texts, options, SOURCE)
    return texts, left_out


def checked(texts: Mapping[str, str], origins: Mapping[str, str], source: str) -> Scenario:
    """The scenario of texts by the names of their files, of which it is the first, and its machine
    another, with all runs. For messages, ``origins`` say what decides a dotted key, and ``source``
    what the texts are made from. Raises an InputError if they do not make a scenario."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            scenario = load_scenario(write_together(Path(folder), texts)[0])
            scenario.runs()
        except InputError as error:
            problems = [replace(p, path=origins.get(p.path, p.path)) for p in error.problems]
            raise InputError(problems, source) from None
    return scenario


def _ranks(answers: Mapping[str, str]) -> list[int]:
    """The numbers of ranks that are asked for, each once."""
    machine = int(answers["hosts"]) * int(answers["gpus"])
    given = (machine if each == ALL_RANKS else int(each) for each in listed(answers["ranks"]))
    return list(dict.fromkeys(given))


def _derived(name: str, answers: Mapping[str, str]) -> dict[str, str]:
    """What follows from the answers: texts by name."""
    adapters = int(answers["hcas"]) * parse_quantity(answers["hca_bandwidth"], Dimension.BANDWIDTH)
    ranks, timed_on = _ranks(answers), TIMED[answers["timed"]][0]
    return {
        "name": name,
        "label": scalar(name),
        "device": scalar(answers["accelerator"]),
        "ranks": str(max(ranks)),
        "gpu_counts": ", ".join(map(str, ranks)),
        "many": f"{int(answers['samples']):,}",
        "thirds": str(3 * int(answers["batch_size"])),
        **links_of(answers["accelerator"], answers.get("nvlink", "")),
        "inter": readable(_ALLREDUCE_SHARE * adapters, Dimension.BANDWIDTH),
        "staging": STAGING if answers["ssd"] == NO_SSD else "",
        "timed_on": timed_on,
        "added": _overlap(answers["overlap"], answers["timed"]),
    }


def _loading(answers: Mapping[str, str], origins: Mapping[str, str]) -> dict[str, str]:
    """Return what was said of decoding, which is a comment where nothing was, of loader workers,
    and where numbers are from."""
    decode, workers = answers["decode"], int(answers["workers"])
    decoding = "# decode: 1 ms"
    if decode != BY_FORMAT:
        decoding = f"decode: {decode}\n    {quoted({'decode': origins['decode']}, 6)}"
    buses = {
        "intra_host_bus_bandwidth": "estimate: of hosts like these, measured elsewhere",
        "inter_host_bus_bandwidth": "estimate: 0.85 of the adapters, as measured on A100 and HDR",
    }
    return {
        "decoding": decoding,
        "workers": str(workers),
        "prefetch": str(BATCHES_AHEAD * workers),
        "model_source": quoted({"accelerators": origins["batch_time"]}, 6),
        "allreduce_source": quoted(buses, 6),
    }


def _overlap(kind: str, timed: str) -> str:
    """The lines of the overlap, with what it adds to the batch time that is given."""
    if kind == "none":
        return "overlap: none"
    rule = Ddp(kind="ddp") if kind == "ddp" else Horovod(kind="horovod")
    hooks, slowdown = (rule.hooks, rule.slowdown) if timed == "one_gpu" else (0.0, 0.0)
    added = f"hooks: {readable(hooks, Dimension.SECONDS)}, slowdown: {slowdown:g}"
    return f"{TIMED[timed][1]}    overlap: {{kind: {kind}, {added}}}"


def _sweep(ranks: Sequence[int], strategies: Sequence[str], left_out: Sequence[str]) -> str:
    """The sweep over what has several values; '' if nothing has. What is ``left_out`` stands in
    comments."""
    lines = [f"  world_size: {[*ranks]}"] if ranks[1:] else []
    if strategies[1:]:
        lines += ["  workload.exchange:", *(f"    - {of}" for of in strategies)]
    lines = ["sweep:  # a run for each combination", *lines] if lines else []
    indent = "    # " if strategies[1:] else "# "
    for text in left_out:
        wrapped = textwrap.wrap(text, COLUMNS - len(indent), break_on_hyphens=False)
        lines += [indent + line for line in wrapped]
    return "".join(f"{line}\n" for line in lines)
