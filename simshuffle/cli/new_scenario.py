"""A new scenario and its machine as commented YAML, from the answers to the questions."""

from __future__ import annotations

import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from simshuffle.cli.common import write_files
from simshuffle.cli.new_answers import complete_answers
from simshuffle.cli.new_machine import (
    COLUMNS,
    fill_template,
    links_of_accelerator,
    machine_text,
    yaml_scalar,
)
from simshuffle.cli.new_questions import (
    ALL_RANKS,
    BY_FORMAT,
    FITTING,
    NO_SSD,
    NONE,
    OFFERED_WAYS,
    PROBLEM_SOURCE,
    QUESTIONS,
    STRATEGY_OF_WAY,
    split_answer,
)
from simshuffle.cli.new_sources import source_lines, sources_of_inputs
from simshuffle.errors import InputError
from simshuffle.fabric.allreduce import Ddp, Horovod
from simshuffle.job.plan.holding import HeldStrategy, list_alternatives
from simshuffle.job.scenario.scenario import Scenario, load_scenario
from simshuffle.spec.units import Dimension, parse_quantity, readable

BATCHES_PER_WORKER = 2
"""Batches that a worker loads ahead (prefetch_factor of PyTorch's DataLoader)."""
_ALLREDUCE_SHARE = 0.85
"""Of the adapters of a host, what an allreduce over hosts reaches: 84.8 of 100 GB/s
with 4 HDR200 (github.com/NVIDIA/nccl-tests, issue 119).
"""

SCENARIO = """\
# {many} samples of {sample_size} on {gpu_counts} GPUs: what do ways to shuffle them cost?
#   simshuffle check {name}.yaml    what follows from these values, before anything is simulated
#   simshuffle run {name}.yaml      seconds of an epoch, and what they go into
# Written by `simshuffle new`. Every value is yours to change; docs/scenario.md has all keys.
name: {label}
cluster: {name}-cluster.yaml
# include: host.yaml  # written by `simshuffle machine probe FOLDER > host.yaml`, or by calibrate
world_size: {ranks}  # a rank for each GPU; fewer ranks fill fewer hosts
epochs: {epochs}  # the first reads everything for the first time
time_tolerance: 1 %  # simulate until the mean iteration is known this well; 0: every iteration
workload:
  dataset:
    name: {name}-data
    num_samples: {samples}
{sample_size?}
    sample_size: {{mean: {sample_size}}}
{samples_per_shard?}
    samples_per_file: {samples_per_shard}{one_request}
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
    # Bus bandwidths. Measure: column busbw of all_reduce_perf (nccl-tests).
    intra_host_bus_bandwidth: {intra}  # {intra_why}
    inter_host_bus_bandwidth: {inter}  # 0.85 of the HCAs: nccl-tests issue 119, A100 and HDR
    {allreduce_source}
    protocols: nccl_2.7  # LL and LL128 where they are faster, by the same table
{overlap?}
    {added}"""
SHARDS_LINE = """
    samples_per_request: {samples_per_shard}  # of a shard read from end to end; 1 at random"""
LOADER_LINES = """\
    # Shards that hosts keep as a library's loader does (docs/loaders.md):
    # - loader_shuffle:order=mosaicml_streaming,samples_per_shard={number},source={tier}
"""


TEXTS_OF_TIMING = {
    "one_gpu": (
        "on one GPU",
        "# Overlap makes a batch that was timed on one GPU longer: by hooks, and by the share\n"
        "    # slowdown while gradients travel. If it was timed distributed, write 0 s and 0.\n",
    ),
    "distributed": (
        "distributed",
        "# hooks and slowdown are 0: the batch time of distributed training includes them. On\n"
        "    # many more hosts, gradients travel for longer and slow more of the batch.\n",
    ),
}
"""What is said of a batch time, and of what an overlap adds to it, by how it was timed."""


def draft_texts(
    name: str, user_answers: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the texts of a scenario and of its machine, by the names of their files.

    Args:
        name: of the scenario.
        user_answers: by the names of the questions, the user's alone; those that have a
            default may be missing.

    Returns:
        The texts, the scenario's first; and a sentence for each strategy that is left
        out. With `FITTING` those are left out for which hosts have no room at one or
        more of the numbers of ranks; strategies that the user names all stay.

    Raises:
        InputError: an answer is missing or not valid, or they do not make a scenario.
    """
    answers = complete_answers(user_answers)
    only_fitting = answers["ways"] == FITTING
    strategies = [
        STRATEGY_OF_WAY.get(run_name)
        or f"partial_local_shuffle:exchange_fraction={run_name.partition('-')[2]}"
        for run_name in (
            OFFERED_WAYS if only_fitting else split_answer(answers["ways"])
        )
    ]
    if only_fitting and answers["store"] != NONE:
        strategies[0] = STRATEGY_OF_WAY["global-object_store"]
    ranks = requested_ranks(answers)
    origins = sources_of_inputs(user_answers)
    derived = {**derived_values(name, answers), **loading_values(answers, origins)}
    text = fill_template(SCENARIO, {**answers, **derived, "first": strategies[0]})
    texts = {
        f"{name}.yaml": text,
        f"{name}-cluster.yaml": machine_text(name, answers, origins),
    }
    option_of_key = {question.key: question.option for question in QUESTIONS}
    option_of_key |= {"workload.exchange": "--ways", "cluster.host": "--hcas"}
    too_large: dict[str, HeldStrategy] = {}
    if only_fitting:
        # which strategies hosts have room for hangs on the machine, so it is read first
        scenario = check_texts(texts, option_of_key, PROBLEM_SOURCE)
        too_large = {
            alternative.exchange: alternative
            for count in ranks
            for alternative in list_alternatives(scenario, count)
            if not alternative.fits
        }
        strategies = [strategy for strategy in strategies if strategy not in too_large]
    unfit_sentences = tuple(f"Left out: {strategy}." for strategy in too_large.values())
    sweep = sweep_lines(ranks, strategies, unfit_sentences)
    loaders = derived["loaders"] if strategies[1:] else ""
    texts[f"{name}.yaml"] = text + sweep + loaders
    check_texts(texts, option_of_key, PROBLEM_SOURCE)
    return texts, unfit_sentences


def check_texts(
    texts: Mapping[str, str], origins: Mapping[str, str], source: str
) -> Scenario:
    """Return the scenario that some texts make; all its runs are checked.

    The texts are written to a temporary folder and loaded.

    Args:
        texts: by the names of their files; the first is the scenario, another its
            machine.
        origins: by dotted key, the option or key of a user's file that decides it; it
            stands in an error in place of the key.
        source: what the texts are made from, for errors.

    Raises:
        InputError: they do not make a scenario.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            scenario = load_scenario(write_files(Path(folder), texts)[0])
            scenario.runs()
        except InputError as error:
            problems = [
                replace(problem, path=origins.get(problem.path, problem.path))
                for problem in error.problems
            ]
            raise InputError(problems, source) from None
    return scenario


def requested_ranks(answers: Mapping[str, str]) -> list[int]:
    """Return the numbers of ranks that the answers ask for, each once, in their order.

    `ALL_RANKS` is a rank for each GPU of the machine.
    """
    machine = int(answers["hosts"]) * int(answers["gpus"])
    rank_counts = (
        machine if count == ALL_RANKS else int(count)
        for count in split_answer(answers["ranks"])
    )
    return list(dict.fromkeys(rank_counts))


def derived_values(name: str, answers: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the template that follow from the answers, by name.

    All are texts. Of several numbers of ranks, 'ranks' is the largest, and 'gpu_counts'
    has all. Bandwidths inside a host are those of `links_of_accelerator`; 'inter',
    between hosts, is `_ALLREDUCE_SHARE` of a host's adapters.
    """
    adapters = int(answers["hcas"]) * parse_quantity(
        answers["hca_bandwidth"], Dimension.BANDWIDTH
    )
    ranks = requested_ranks(answers)
    timed_on, _ = TEXTS_OF_TIMING[answers["timed"]]
    in_shards = answers["samples_per_shard"] != "1"
    tier = "pfs" if answers["store"] == NONE else "object_store"
    return {
        "name": name,
        "label": yaml_scalar(name),
        "device": yaml_scalar(answers["accelerator"]),
        "ranks": str(max(ranks)),
        "gpu_counts": ", ".join(map(str, ranks)),
        "many": f"{int(answers['samples']):,}",
        "thirds": str(3 * int(answers["batch_size"])),
        **links_of_accelerator(answers["accelerator"], answers.get("nvlink", "")),
        "inter": readable(_ALLREDUCE_SHARE * adapters, Dimension.BANDWIDTH),
        "staging": staging_line(answers),
        "one_request": SHARDS_LINE.format_map(answers) if in_shards else "",
        "loaders": LOADER_LINES.format(number=answers["samples_per_shard"], tier=tier)
        if in_shards
        else "",
        "timed_on": timed_on,
        "added": overlap_lines(answers["overlap"], answers["timed"]),
    }


def staging_line(answers: Mapping[str, str]) -> str:
    """Return the lines of the scenario on staging, after a line feed; '' for the
    defaults: from the parallel file system to the SSD.

    A host stages from an object store over 10 connections, as the AWS CLI
    (max_concurrent_requests).
    """
    source = "source: object_store, copies: 10" * (answers["store"] != NONE)
    target = "target: memory" * (answers["ssd"] == NO_SSD)
    keys = ", ".join(filter(None, [source, target]))
    connections = "\n  # copies: connections of a host, as many as of the AWS CLI"
    reason = "  # the hosts have no SSD"
    line = f"\n  staging: {{{keys}}}" if keys else ""
    return f"{connections * bool(source)}{line}{reason * bool(target)}"


def loading_values(
    answers: Mapping[str, str], origins: Mapping[str, str]
) -> dict[str, str]:
    """Return the values of the template on decoding, loader workers and sources, by
    name.

    Decoding is a comment where no answer gives it. Workers prefetch
    `BATCHES_PER_WORKER` batches each.

    Args:
        answers: to all questions, by name.
        origins: sources of the numbers, by the names of their questions
            (`sources_of_inputs`).
    """
    decode = answers["decode"]
    workers = int(answers["workers"])
    decoding = "# decode: 1 ms"
    if decode != BY_FORMAT:
        decoding = (
            f"decode: {decode}\n    {source_lines({'decode': origins['decode']}, 6)}"
        )
    buses = {
        "intra_host_bus_bandwidth": "estimate: of hosts like these, measured elsewhere",
        "inter_host_bus_bandwidth": "estimate: 0.85 of the adapters, as measured on A100 and HDR",
    }
    return {
        "decoding": decoding,
        "workers": str(workers),
        "prefetch": str(BATCHES_PER_WORKER * workers),
        "model_source": source_lines({"accelerators": origins["batch_time"]}, 6),
        "allreduce_source": source_lines(buses, 6),
    }


def overlap_lines(kind: str, timed: str) -> str:
    """Return the lines of the overlap: a comment, and what it adds to the answered batch
    time.

    Nothing is added to a batch that was timed distributed. Without overlap it is one
    line, and no comment. The first line is not indented, as the template does that.

    Args:
        kind: the answer 'ddp', 'horovod' or 'none'.
        timed: the answer on how the batch was timed, a key of `TEXTS_OF_TIMING`.
    """
    if kind == "none":
        return "overlap: none"
    rule = Ddp(kind="ddp") if kind == "ddp" else Horovod(kind="horovod")
    hooks, slowdown = (rule.hooks, rule.slowdown) if timed == "one_gpu" else (0.0, 0.0)
    added = f"hooks: {readable(hooks, Dimension.SECONDS)}, slowdown: {slowdown:g}"
    return f"{TEXTS_OF_TIMING[timed][1]}    overlap: {{kind: {kind}, {added}}}"


def sweep_lines(
    ranks: Sequence[int], strategies: Sequence[str], unfit_sentences: Sequence[str]
) -> str:
    """Return the YAML of the sweep over ranks and strategies that have several values.

    Sentences on strategies without room are comments below it, or stand alone. It is ''
    if nothing has several values and there are no sentences.
    """
    lines = [f"  world_size: {[*ranks]}"] if ranks[1:] else []
    if strategies[1:]:
        lines += [
            "  workload.exchange:",
            *(f"    - {strategy}" for strategy in strategies),
        ]
    lines = ["sweep:  # a run for each combination", *lines] if lines else []
    indent = "    # " if strategies[1:] else "# "
    for text in unfit_sentences:
        wrapped = textwrap.wrap(text, COLUMNS - len(indent), break_on_hyphens=False)
        lines += [indent + line for line in wrapped]
    return "".join(f"{line}\n" for line in lines)
