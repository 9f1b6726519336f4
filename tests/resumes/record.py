"""Runs a library in processes, kills them, goes on with others, and records what came of it.

To record again: ``python -m tests.resumes.record NAME PYTHON [COUNT]``, where NAME.py in `loaders`
has `make`, `state`, `resume`, and literals: ``KIND`` of its laws, and ``SETTINGS``, a list of their
other keys; PYTHON has the library. With ``KEPT``, that share of the cases keeps the batch of all
ranks together. ``NEEDS`` names the libraries and versions where they are not those of the law.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from simshuffle.errors import InputError
from simshuffle.extensions.resuming import ranks
from simshuffle.extensions.resuming.script import Command, Script, rows_of
from simshuffle.workload.orders.order import Readers, ShardedSet
from simshuffle.workload.resuming import AnyResume
from simshuffle.workload.resuming.law import Batches, ResumptionLaw

HERE = Path(__file__).parent
RECORDED = HERE.parent / "data" / "resumes"
LAW: TypeAdapter[ResumptionLaw] = TypeAdapter(AnyResume)
SHARDS = [
    [12] * 8,
    [7, 1, 19, 3, 30, 11, 2, 5, 16, 9],
    [23, 24, 25, 26],
    [4] * 24,
    [5, 9, 14, 6] * 3,
]
HOSTS = [
    (1, 1),
    (1, 2),
    (1, 3),
    (1, 4),
    (2, 1),
    (2, 2),
    (3, 1),
    (2, 3),
    (1, 6),
    (4, 2),
    (2, 4),
    (1, 8),
]
WORKERS = [1, 2, 3, 4]
LONGEST = 150.0
"""s after which ranks hang, on a machine that does much else."""
Case = dict[str, Any]


def data_of(case: Case) -> ShardedSet:
    return ShardedSet(np.array(case["samples"]), 100.0 * np.array(case["samples"]))


def readers_of(case: Case, name: str) -> Readers:
    nodes, of_node, workers, *batch_size = case[name]
    return Readers(nodes, of_node, workers, *(batch_size or [case["batch_size"]]))


def literal(name: str, of: str, default: Any = None) -> Any:
    """A literal of a loader, which cannot be imported where its library is not."""
    tree = ast.parse((HERE / "loaders" / f"{name}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == of:
            return ast.literal_eval(node.value)
    return default


def laws(name: str) -> list[dict[str, Any]]:
    """The laws of a loader. Of its kind are their orders, too, that do not name another."""
    kind, others = {"kind": literal(name, "KIND")}, literal(name, "SETTINGS")
    return [kind | keys | ({"of": kind | keys["of"]} if "of" in keys else {}) for keys in others]


def drawn(name: str, count: int, seed: int = 0) -> list[Case]:
    """Cases that the laws allow: sets, readers before and after, and where the epoch breaks off."""
    rng, cases, settings = np.random.default_rng(seed), [], laws(name)
    tries, kept = 0, literal(name, "KEPT", 0.0)
    while len(cases) < count:
        tries += 1
        if tries > 100 * count:
            raise ValueError(f"only {len(cases)} cases that the laws allow")
        before, after = HOSTS[rng.integers(len(HOSTS))], HOSTS[rng.integers(len(HOSTS))]
        workers = [int(rng.choice(WORKERS)) for _ in range(2)]
        if rng.random() < 0.3:
            after = before
        if rng.random() < 0.5:
            workers[1] = workers[0]
        case: Case = {
            "law": settings[len(cases) % len(settings)],
            "samples": SHARDS[rng.integers(len(SHARDS))],
            "before": [*before, workers[0]],
            "after": [*after, workers[1]],
            "batch_size": int(rng.integers(1, 5)),
            "seed": int(rng.choice([0, 7, 42, 9176])),
            "epoch": int(rng.integers(3)),
        }
        if kept and rng.random() < kept:
            hosts = math.prod(before), math.prod(after)
            batch = math.lcm(*hosts) * int(rng.integers(1, 3))
            case["batch_size"] = batch // hosts[0]
            case["after"] = [*case["after"], batch // hosts[1]]
        law = LAW.validate_python(case["law"])
        try:
            whole = law.epoch(
                data_of(case), readers_of(case, "before"), case["seed"], case["epoch"]
            )
            law.epoch(data_of(case), readers_of(case, "after"), case["seed"], case["epoch"] + 1)
        except InputError:
            continue
        ends = np.bincount(whole.rank[np.diff(whole.step, prepend=-1) != 0])
        steps = int(ends.min())
        if steps < 3 or len(ends) < before[0] * before[1]:
            continue
        case["step"] = int(rng.integers(1, steps))
        case["further"] = int(rng.integers(min(3, steps - case["step"] + 1)))
        cases.append(case)
    return cases


def job(script: Script, case: Case, readers: str, **of: Any) -> tuple[Path, list[str]]:
    """A job's folder, and what its ranks came to."""
    run = {
        **asdict(readers_of(case, readers)),
        "ranks_before": case["before"][0] * case["before"][1],
        "workers_before": case["before"][2],
    }
    same = ("law", "seed", "samples", "epoch", "step")
    return script.job(run | {name: case[name] for name in same}, LONGEST, **of)


def batches(of: Batches, count: int) -> list[list[list[int]]]:
    """The same of a law."""
    found: list[list[list[int]]] = [[] for _ in range(count)]
    for rank, step, sample in zip(
        of.rank.tolist(), of.step.tolist(), of.sample.tolist(), strict=True
    ):
        while len(found[rank]) <= step:
            found[rank].append([])
        found[rank][step].append(sample)
    return found


def mark(of: list[list[list[int]]]) -> str:
    """What stands for batches that would take much room."""
    return hashlib.sha256(json.dumps(of).encode()).hexdigest()[:16]


def answer(script: Script, case: Case) -> dict[str, Any]:
    """What the library does: marks of what came before and of the epoch after, and what is trained
    on in the rest of the epoch; or its error."""
    count = case["before"][0] * case["before"][1]
    more = {"kill_at": case["step"], "further": case["further"]}
    first, came_to = job(script, case, "before", first=0, last=case["epoch"], **more)
    if set(came_to) != {ranks.KILLED}:
        return {"failed": Counter(came_to).most_common(1)[0][0]}
    trained = mark(rows_of(first, count, case["epoch"]))
    epochs = {"first": case["epoch"], "last": case["epoch"] + 1}
    then, came_to = job(script, case, "after", states=str(first), saved=count, **epochs)
    wrong = [one for one in came_to if one != ranks.ENDED]
    if wrong:
        return {"trained": trained, "error": wrong[0].split("\n")[0]}  # a trace names paths
    left = case["after"][0] * case["after"][1]
    return {
        "trained": trained,
        "rest": rows_of(then, left, case["epoch"]),
        "later": mark(rows_of(then, left, case["epoch"] + 1)),
    }


def command(name: str, python: str) -> Command:
    """What runs a loader."""
    return Command((python,), str(HERE / "loaders" / f"{name}.py"))


def main(name: str, python: str, count: int) -> None:
    """Record a library, going on after the cases that are there, and say how many came to what."""
    path, cases = RECORDED / f"{name}.json", drawn(name, count)
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    asked = [old for old, case in zip(known, cases, strict=False) if old == old | case]
    with (
        tempfile.TemporaryDirectory() as folder,
        Script(command(name, python), Path(folder)) as script,
    ):
        for case in cases[len(asked) :]:
            asked.append(case | answer(script, case))
            lines = ",\n".join(json.dumps(of, separators=(",", ":")) for of in asked)
            path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    came = Counter(next(key for key in ("failed", "error", "rest") if key in of) for of in asked)
    sys.stdout.write(f"{name}: {dict(came)}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int((sys.argv[3:] or ["200"])[0]))
