"""Small commands that together run every verb: what `same_results.py` compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

TINY = (
    "cluster=small-fat-tree",
    "workload.allreduce.rings=1",
    "world_size=8",
    "workload.dataset.num_samples=1600",
)
JITTER = ("workload.jitter.compute=0.05", "workload.jitter.read=0.2")
EXCHANGES = (
    "sweep={workload.exchange: [global_shuffle:source=ssd,"
    " importance_exchange:exchange_fraction=0.3,"
    " 'importance_pair:exchange_fraction=0.3,lagging=true',"
    " 'partial_local_shuffle:exchange_fraction=0.5,schedule.payload=encoded']}"
)
STUDY = """\
name: tiny
description: Three strategies.
data: digits:flat=true
model: mlp:width=16
training: {epochs: 2, learning_rate: 0.2, local_batch_size: 8}
seeds: 2
runs:
  - exchange: [global_shuffle, local_shuffle, "importance_pair:exchange_fraction=0.3,lagging=true"]
    world_size: [16]
"""
FILTERING = """\
kind: data_optimised
name: tiny
data: {kind: digits, test_share: 0.7}
extractors:
  - name: mlp
    model: &mlp {kind: mlp, width: 16, layers: 1}
    training: {epochs: 2, local_batch_size: 32, learning_rate: 0.1}
clustering: {eps: 8.0, eps_table: [0.5, 8.0]}
retrain:
  model: *mlp
  training: {epochs: 2, drop_last: true}
  batch_sizes: [32, largest]
  learning_rates: [0.1]
seeds: 2
"""
INPUTS = {"study.yaml": STUDY, "filtering.yaml": FILTERING}
COPIED = {
    "logs": "tests/data/calibrate",
    "cases": "tests/golden/simgrid",
    "fabrics": "tests/data/fabrics",
    "blame": "tests/data/blame",
}
GROUPS = {"machine", "results", "study"}
"""Verbs that are followed by another."""


class Case(NamedTuple):
    """Commands that run one after the other in a folder of their own."""

    name: str
    commands: tuple[tuple[str, ...], ...]


def verb_of(words: Sequence[str]) -> str:
    """Return the verb of a command, that of a group by its own name."""
    return words[1] if words[0] in GROUPS else words[0]


def setting(*assignments: str) -> tuple[str, ...]:
    """The options that set these values."""
    return tuple(part for assignment in assignments for part in ("--set", assignment))


def case(
    name: str, *commands: str | tuple[str | tuple[str, ...], ...], plot: str = ""
) -> Case:
    """Commands, as text or as parts of which some set values; ``plot`` is redrawn at last."""
    lines = []
    for command in commands:
        words: list[str] = []
        for part in (command,) if isinstance(command, str) else command:
            words += part.split() if isinstance(part, str) else setting(*part)
        lines.append(tuple(words))
    if plot:
        lines.append(("results", "plot", plot, "--out", "figures"))
    return Case(name, tuple(lines))


CASES = (
    case("list", "list"),
    case(
        "check",
        "check quickstart abci-imagenet1k paper/scaling",
        ("check quickstart", (*TINY, "network={kind: packet, mtu: 16 KiB}")),
    ),
    case("run", ("run quickstart --json --out out", (*TINY, *JITTER)), plot="out"),
    case(
        "run-exchanges",
        ("run quickstart --out out", (*TINY, *JITTER, "world_size=16", EXCHANGES)),
        plot="out",
    ),
    case(
        "run-abci",
        (
            "run quickstart paper/strategies",
            ("world_size=16", "epochs=2", "workload.dataset.num_samples=6400"),
        ),
    ),
    case(
        "run-seeds",
        ("run quickstart --seeds 3 --out out", (*TINY, *JITTER)),
        plot="out",
    ),
    case(
        "sweep",
        (
            "sweep quickstart --over world_size=4,8 --seeds 2 --out out --over"
            " workload.exchange=global_shuffle,importance_pair:exchange_fraction=0.3",
            (*TINY, *JITTER),
        ),
        plot="out",
    ),
    case(
        "run-packet",
        ("run quickstart --json --out out", (*TINY, "network.kind=packet")),
    ),
    case(
        "run-analytic",
        ("run quickstart --json --out out", (*TINY, "network.kind=analytic")),
    ),
    case(
        "replay",
        "study replay cases/two_share_down.json.gz --compare",
        "study replay cases/p1_w2_32.json.gz --tolerance 0.01 --out ends.csv",
        "study replay cases/p1_w1_32.json.gz --network analytic --out bounds.csv.gz",
        "study replay cases/two_staggered.json.gz --network packet --compare",
    ),
    case(
        "congestion",
        (
            "congestion quickstart --seeds 2 --packet-seeds 1 --packets 100000 --out out",
            (*TINY, "workload.exchange=partial_local_shuffle:exchange_fraction=0.1"),
        ),
        plot="out",
    ),
    case(
        "congestion-json",
        (
            "congestion quickstart --json --world-size 16 --pattern pairing_topology",
            ("workload.dataset.num_samples=3200",),
        ),
    ),
    case(
        "ablate",
        (
            "study ablate quickstart --seeds 2 --alone partner_scope=host --out out",
            (*TINY, "world_size=4", "workload.dataset.num_samples=320", *JITTER),
        ),
        plot="out",
    ),
    case(
        "hiding",
        (
            "study hiding quickstart --world-size 8,16 --variant authors,wire --out out",
            ("workload.dataset.num_samples=6400",),
        ),
        plot="out",
    ),
    case(
        "oracle",
        (
            "study oracle quickstart --world-sizes 1,8 --simulate data@8 --out out",
            ("sweep={}",),
        ),
        (
            "study oracle quickstart --world-sizes 4 --strategies data,spatial --json",
            ("sweep={}",),
        ),
        plot="out",
    ),
    case(
        "loader",
        "study loader --samples 2000 --shards 16 --nodes 2 --epochs 2 --out out",
        "study loader --samples 512 --shards 8 --order own:shuffle=local --json",
        plot="out",
    ),
    case(
        "calibrate",
        "machine calibrate logs/nccl-1-host.txt logs/nccl-2-hosts.txt --out nccl",
        "machine calibrate logs/osu-latency.txt logs/osu-bw.txt logs/ior-4-hosts.txt --out machine",
        "machine calibrate logs/epochs-vgg16.csv --model vgg16=vgg16_chainer --fit-up-to 8 --json",
        (
            "check quickstart",
            ("include=[nccl/calibration.yaml, machine/calibration.yaml]",),
        ),
    ),
    case(
        "validate",
        "study validate --only testbed --only storage --only collectives --out out",
        "study validate --only testbed --json",
        "study validate --only storage --to markdown",
        plot="out",
    ),
    case("train", "train study.yaml --out out --processes 1", plot="out"),
    case(
        "tta",
        "train study.yaml --out trained --processes 1",
        ("study tta trained quickstart --scale trained --target 0.5 --out out", TINY),
        plot="out",
    ),
    case("filtering", "train filtering.yaml --out out --processes 1", plot="out"),
    case(
        "results",
        ("run quickstart --out first", (*TINY, *JITTER)),
        ("run quickstart --out second", (*TINY, "workload.loader.workers=2")),
        "results show first --to latex",
        "results verify first --json",
        "compare first second --json",
        "compare first second --to markdown",
        "report first second --out both.html",
        "figure breakdown first --format png --out breakdown.png",
        "results export first --to perfetto --out trace.json.gz",
    ),
    case(
        "export",
        ("results export quickstart --to goal --out exchange.goal", TINY),
        ("results export quickstart --to infragraph --out network.json", TINY),
        "machine export small-fat-tree --to ibsim --out small.net",
        "machine import fabrics/rack.ibnet --routes fabrics/rack-lfts.dump --out rack.yaml",
    ),
    case(
        "new",
        "new mine --hosts 64 --hcas 2 --taper 2 --samples 1000000 --sample-size 150kB"
        " --batch-size 64 --batch-time 0.11s --gradients 100MB --ranks 16",
        "check mine.yaml",
        "study schema topology --out schema.json",
    ),
    case(
        "collective",
        "study collective small-fat-tree --sizes 8B,1MiB --json",
        "study collective small-fat-tree --kind alltoall --algorithm linear,bruck --sizes 1KiB",
    ),
    case(
        "planning",
        (
            "plan quickstart --strategy local_shuffle --price host-hour=1 --out plan",
            (*TINY, "sweep={}"),
        ),
        "month llama3-month --days 5 --seeds 2 --out month",
        "accuracy quickstart --model resnet50 --json",
        "study sizes quickstart --json",
    ),
    case("blame", "study blame blame/slow-rank.csv --json"),
)
