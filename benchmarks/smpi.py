"""The exchange of an iteration as the simulator has it and as SimGrid runs it: the table of
docs/reference/smpi.md.

    python benchmarks/smpi.py [--only TEXT] [--write]

Each case is exported with ``results export --to simgrid``, compiled with smpicc and run under
smpirun; the same messages are posted to the simulator's network. ``--write`` records what SMPI
answered in tests/data/smpi/ and writes the table.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simshuffle.extensions.interop.exports.export import export
from simshuffle.extensions.interop.exports.program import make_program
from simshuffle.extensions.interop.exports.simgrid import smpi_options
from simshuffle.extensions.interop.exports.source import ExportedRun
from simshuffle.job.lowering.messages import (
    MessageLowering,
    delivery_counts,
    exchange_costs,
    messages_of,
)
from simshuffle.job.plan.epochs import plan_epochs, sample_nbytes
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.scenario import Scenario, load_scenario

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "smpi.md"
DATA = ROOT / "tests" / "data" / "smpi"
HEAD = (
    "| case | ranks | all are done, simshuffle / SMPI (ms) | arrived (%) | done (%) | sent (us) |"
    " left a barrier (us) |\n|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True)
class Case:
    """What is compared.

    Attributes:
        name: of the row, and of the file without spaces.
        values: of the scenario, by dotted key, beside `PLAIN`.
        options: of smpirun, after those of the README.
    """

    name: str
    values: dict[str, Any]
    options: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        """Where SMPI's answer is recorded."""
        return DATA / (re.sub(r"[^a-z0-9]+", "-", self.name).strip("-") + ".json")

    def scenario(self) -> Scenario:
        """The scenario, one iteration long."""
        return load_scenario("quickstart", PLAIN | self.values)


def tree(arity: int, taper: float = 1.0, **latencies: str) -> dict[str, Any]:
    """A fat tree of arity * arity hosts; links up are fewer by ``taper``."""
    return {
        "kind": "fat_tree",
        "levels": 2,
        "arity": arity,
        "taper": taper,
        "link_bandwidth": "12.5 GB/s",
        "cable_latency": "26 ns",
        "switch_latency": "90 ns",
        **latencies,
    }


def exchange(kind: str, schedule: Any, fraction: float = 0.25) -> dict[str, Any]:
    return {
        "workload.exchange": {
            "kind": kind,
            "exchange_fraction": fraction,
            "schedule": schedule,
        }
    }


PLAIN: dict[str, Any] = {
    "cluster": "small-fat-tree",
    "cluster.topology": tree(8, 4),
    "world_size": 64,
    "epochs": 1,
    "sweep": {},
    "workload.allreduce.rings": 1,
    "workload.allreduce.inter_host_bus_bandwidth": "1 TB/s",
    "workload.local_batch_size": 16,
    "workload.dataset": {
        "name": "two-iterations",
        "num_samples": 2048,
        "sample_size": {"mean": "110 kB", "std": "50 kB"},
        "decoded_size": {"mean": "600 kB"},
        "decode": "1 ms",
        "encode": "0.5 ms",
    },
}
STREAMLINED = {"overlap": False}
AUTHORS = {"kind": "authors", "overlap": False}
AT_ONCE = {"overlap": False, "read": "1 us", "pickle": "0 s", "write": "0 s"}
BUSY = {
    "cluster.ssd.latency": "0 s",
    "cluster.ssd.read_bandwidth": "1 TB/s",
    "cluster.ssd.write_bandwidth": "1 TB/s",
    "workload.dataset.sample_size": {"mean": "2 MB", "std": "1 MB"},
}
"""Large samples and next to no work on them: all messages are under way at a time."""
PAIR = {**AT_ONCE, "partner_rule": "importance_sorted", "partner_lifetime": "iteration"}
ONE_BY_ONE = {**PAIR, "samples_per_message": 1}
PAIRS, PARTIAL = "importance_pair", "partial_local_shuffle"
TREE_16 = {
    "cluster.topology": tree(4, 4),
    "world_size": 16,
    "workload.dataset.num_samples": 512,
}
TREE_144 = {
    "cluster.topology": tree(12, 6),
    "world_size": 128,
    "workload.dataset.num_samples": 4096,
}
FULL = {"cluster.topology": tree(8)}
MEETING = ("--cfg=smpi/async-small-thresh:0", "--cfg=smpi/send-is-detached-thresh:0")
"""A message without bytes waits for its receiver too."""

MESSAGES = {"network.fair_share": "message"}

CASES = (
    Case("streamlined, 4:1", exchange(PARTIAL, STREAMLINED)),
    Case("busy, 1:1", {**BUSY, **FULL, **MESSAGES, **exchange(PARTIAL, AT_ONCE)}),
    Case("busy, 4:1", {**BUSY, **MESSAGES, **exchange(PARTIAL, AT_ONCE)}),
    Case("busy, 6:1", {**BUSY, **TREE_144, **MESSAGES, **exchange(PARTIAL, AT_ONCE)}),
    Case("pairs, one message, 4:1", {**BUSY, **MESSAGES, **exchange(PAIRS, PAIR)}),
    Case(
        "pairs, four messages, 4:1", {**BUSY, **MESSAGES, **exchange(PAIRS, ONE_BY_ONE)}
    ),
    Case("busy, 4:1, fair to pairs", {**BUSY, **exchange(PARTIAL, AT_ONCE)}),
    Case(
        "pairs, four messages, fair to pairs", {**BUSY, **exchange(PAIRS, ONE_BY_ONE)}
    ),
    Case("authors, 4:1", exchange(PARTIAL, AUTHORS)),
    Case("authors, 4:1, barriers that wait", exchange(PARTIAL, AUTHORS), MEETING),
    Case(
        "authors' barriers, busy, 4:1",
        {**BUSY, **MESSAGES, **exchange(PARTIAL, {**AT_ONCE, "barriers": "message"})},
    ),
    Case(
        "busy, 16 ranks", {**BUSY, **TREE_16, **MESSAGES, **exchange(PARTIAL, AT_ONCE)}
    ),
    Case("authors, 16 ranks", {**TREE_16, **MESSAGES, **exchange(PARTIAL, AUTHORS)}),
)

Times = dict[str, np.ndarray]
"""(M,) s after the start by 'sent', 'arrived' and 'done'; (barriers, M) s by 'barriers'."""


def simulated(scenario: Scenario) -> Times:
    """What the simulator's network makes of the first iteration's messages. A host has one rank, so
    that its storing meets nothing."""
    made = make_program(scenario, 1, 1)
    schedule = scenario.workload.exchange.exchange_schedule
    assert schedule is not None
    nbytes = sample_nbytes(scenario)
    plan = next(plan_epochs(scenario, nbytes))
    dataset = scenario.workload.dataset
    cached = plan.sent_from_cache
    costs = exchange_costs(
        plan.exchange,
        schedule,
        dataset,
        nbytes=nbytes,
        cached=cached,
        iterations=plan.iterations,
    )
    resources = Resources(
        scenario.cluster, scenario.world_size, scenario.rng("placement")
    )
    assert resources.ranks_per_host == 1
    messages = messages_of(
        costs, 0, resources, scenario.workload.loader.reads_in_flight
    )
    network = resources.network(scenario.network, accounts=scenario.world_size)
    counts = delivery_counts(messages, scenario.world_size)
    worked = [network.open_group(1) for _ in counts]
    delivered = [network.open_group(int(count)) if count else -1 for count in counts]
    lowering = MessageLowering(
        resources, schedule, serial_pairs=scenario.network.serial_pairs
    )
    batch = lowering.graph(messages, worked, delivered).batch
    barriers = sum(made.barrier_before)
    network.reserve_tags(max(barriers, 1))
    batch.tasks["tag"][:barriers] = np.arange(barriers)
    network.post(0.0, batch)
    network.advance(math.inf)
    sent = np.array([network.close_group(group)[1] for group in worked])
    arrived = np.array(
        [network.close_group(g)[1] if g >= 0 else 0.0 for g in delivered]
    )
    arrived = np.maximum(arrived, sent)
    done = arrived + made.store_s
    met = np.tile(network.finish[:barriers, None], (1, made.world_size))
    if made.barrier_after:
        done = np.full(made.world_size, done.max() + made.barrier_s)
        met = np.concatenate([met, done[None]])
    return {"sent": sent, "arrived": arrived, "done": done, "barriers": met}


def run_smpi(scenario: Scenario, more: tuple[str, ...] = ()) -> Times:
    """What SMPI makes of the same; ``more`` are options of smpirun after those of the README."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "smpi"
        export(ExportedRun("", scenario, "run", ("run",)), "simgrid", folder)
        compiled = ["smpicc", "-O2", "exchange.c", "-o", "exchange"]
        subprocess.run(compiled, cwd=folder, check=True)
        files = ["-platform", "platform.xml", "-hostfile", "hostfile"]
        given = [*smpi_options(), *more, "--log=root.thresh:warning"]
        command = ["smpirun", *files, *given, "./exchange", "exchange.txt"]
        done = subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True
        )
    lines = [
        line.split()
        for line in done.stdout.splitlines()
        if re.match(r"\d+ [\d.]+ ", line)
    ]
    rows = np.array(sorted([float(word) for word in words] for words in lines))
    assert rows[:, 0].tolist() == list(range(scenario.world_size))
    return {
        "sent": rows[:, 1],
        "arrived": rows[:, 2],
        "done": rows[:, 3],
        "barriers": rows[:, 4:].T,
    }


def recorded(case: Case) -> Times:
    """What SMPI answered when it was recorded."""
    stored = json.loads(case.file.read_text(encoding="utf-8"))
    times = {key: np.array(values) for key, values in stored["times_s"].items()}
    return {**times, "barriers": times["barriers"].reshape(-1, len(times["done"]))}


def error(ours: Times, theirs: Times, key: str) -> np.ndarray:
    """|simulator - SMPI| as a share of SMPI's time, for each rank."""
    return np.abs(ours[key] - theirs[key]) / theirs[key]


def row(case: Case, ours: Times, theirs: Times) -> str:
    """A row of the table: medians and maxima of all ranks."""
    ends = f"{1e3 * ours['done'].max():.4f} / {1e3 * theirs['done'].max():.4f}"
    cells = [case.name, str(len(ours["done"])), ends]
    for key in ("arrived", "done"):
        share = 100 * error(ours, theirs, key)
        cells.append(f"{np.median(share):.4f} / {share.max():.4f}")
    for key in ("sent", "barriers"):
        late = 1e6 * np.abs(ours[key] - theirs[key])
        cells.append(f"{np.median(late):.2f} / {late.max():.2f}" if len(late) else "-")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument(
        "--write", action="store_true", help="record, and write the page"
    )
    asked = parser.parse_args()
    rows = []
    for case in CASES:
        if asked.only not in case.name:
            continue
        theirs = run_smpi(case.scenario(), case.options)
        rows.append(row(case, simulated(case.scenario()), theirs))
        print(rows[-1], flush=True)
        if asked.write:
            times = {
                key: np.round(values, 12).tolist() for key, values in theirs.items()
            }
            text = json.dumps({"simgrid": "3.32", "case": case.name, "times_s": times})
            case.file.write_text(f"{text}\n", encoding="utf-8")
    if asked.write and not asked.only:
        page = PAGE.read_text(encoding="utf-8")
        table = HEAD + "\n".join(rows) + "\n"
        page = re.sub(
            r"(<!-- smpi -->\n).*?(<!-- end -->)",
            rf"\g<1>{table}\g<2>",
            page,
            flags=re.DOTALL,
        )
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
