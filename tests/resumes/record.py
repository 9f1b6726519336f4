"""Runs a library in processes, kills them, goes on with others, and records what came of it.

To record again: ``python -m tests.resumes.record NAME PYTHON [COUNT]``, where NAME.py in `loaders`
has `make`, `state`, `resume`, and a literal ``SETTINGS``, a list of laws; PYTHON has the library.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from simshuffle.audit import ranks
from simshuffle.errors import InputError
from simshuffle.orders.order import Readers, ShardedSet
from simshuffle.resuming import AnyResume
from simshuffle.resuming.law import Batches, Resume

HERE = Path(__file__).parent
RECORDED = HERE.parent / "data" / "resumes"
LAW: TypeAdapter[Resume] = TypeAdapter(AnyResume)
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
Case = dict[str, Any]


def data_of(case: Case) -> ShardedSet:
    return ShardedSet(np.array(case["samples"]), 100.0 * np.array(case["samples"]))


def readers_of(case: Case, name: str) -> Readers:
    nodes, of_node, workers = case[name]
    return Readers(nodes, of_node, workers, case["batch_size"])


def settings_of(name: str) -> list[dict[str, Any]]:
    """The literal SETTINGS of a loader, which cannot be imported where its library is not."""
    tree = ast.parse((HERE / "loaders" / f"{name}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "SETTINGS":
            found: list[dict[str, Any]] = ast.literal_eval(node.value)
            return found
    raise ValueError(name)


def drawn(name: str, count: int, seed: int = 0) -> list[Case]:
    """Cases that the laws allow: sets, readers before and after, and where the epoch breaks off."""
    rng, cases, settings = np.random.default_rng(seed), [], settings_of(name)
    tries = 0
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


class Audited:
    """A loader's script in the interpreter of its library, to be asked case by case."""

    def __init__(self, python: str, script: Path, folder: Path) -> None:
        self._folder, self._number = folder, 0
        (folder / "of_loader").mkdir()
        self._process = subprocess.Popen(  # noqa: S603 - as asked
            [python, ranks.__file__, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "log").open("w"),
            text=True,
        )
        ready = self._answer()
        if not ready["ready"]:
            raise RuntimeError(str(ready) + (folder / "log").read_text()[-2000:])

    def _answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())  # type: ignore[union-attr]
        return answer

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()

    def job(self, case: Case, readers: str, **of: Any) -> tuple[Path, list[str]]:
        """A job's folder, and what its ranks came to."""
        self._number += 1
        out = self._folder / str(self._number)
        out.mkdir()
        nodes, of_node, workers = case[readers]
        run = {
            "law": case["law"],
            "nodes": nodes,
            "ranks": of_node,
            "workers": workers,
            "batch_size": case["batch_size"],
            "seed": case["seed"],
            "samples": case["samples"],
            "folder": str(self._folder / "of_loader"),
            "epoch": case["epoch"],
            "step": case["step"],
            "ranks_before": case["before"][0] * case["before"][1],
            "workers_before": case["before"][2],
        }
        given = {"run": run, "states": "", "saved": 0, "further": 0, "kill_at": -1, **of}
        line = json.dumps({**given, "out": str(out), "seconds": 30})
        self._process.stdin.write(line + "\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        return out, self._answer()["ranks"]


def rows(out: Path, count: int, epoch: int) -> list[list[list[int]]]:
    """Of each rank the batches of an epoch."""
    found = []
    for rank in range(count):
        lines = (out / f"{rank}.jsonl").read_text(encoding="utf-8").splitlines()
        found.append([line[2] for line in map(json.loads, lines) if line[0] == epoch])
    return found


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


def answer(audited: Audited, case: Case) -> dict[str, Any]:
    """What the library does: marks of what came before and of the epoch after, and what is trained
    on in the rest of the epoch; or its error."""
    count = case["before"][0] * case["before"][1]
    more = {"kill_at": case["step"], "further": case["further"]}
    first, came_to = audited.job(case, "before", first=0, last=case["epoch"], **more)
    if set(came_to) != {ranks.KILLED}:
        return {"failed": Counter(came_to).most_common(1)[0][0]}
    trained = mark(rows(first, count, case["epoch"]))
    epochs = {"first": case["epoch"], "last": case["epoch"] + 1}
    then, came_to = audited.job(case, "after", states=str(first), saved=count, **epochs)
    wrong = [one for one in came_to if one != ranks.ENDED]
    if wrong:
        return {"trained": trained, "error": wrong[0]}
    left = case["after"][0] * case["after"][1]
    return {
        "trained": trained,
        "rest": rows(then, left, case["epoch"]),
        "later": mark(rows(then, left, case["epoch"] + 1)),
    }


def main(name: str, python: str, count: int) -> None:
    """Record a library, and say how many cases came to what."""
    asked, came = [], Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        audited = Audited(python, HERE / "loaders" / f"{name}.py", Path(folder))
        for case in drawn(name, count):
            asked.append(case | answer(audited, case))
            came[next(key for key in ("failed", "error", "rest") if key in asked[-1])] += 1
        audited.close()
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in asked)
    (RECORDED / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    sys.stdout.write(f"{name}: {dict(came)}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int((sys.argv[3:] or ["200"])[0]))
