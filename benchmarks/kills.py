"""Commands killed with SIGKILL at random moments: is every result complete, absent or resumable,
and in the end the same to the byte?

    python benchmarks/kills.py [--kills N] [--verb run|sweep|train|tta] [--seed N] [--cells N]

Each verb is run once in peace. Then the same command is begun again and again in another folder and
killed after a random time, up to as long as it takes in peace. After each kill a result folder that
is there must be read back whole. When the kills are used up, the command runs to its end, and its
folder must have the bytes of the one that was made in peace. Prints a row for each verb; the exit
status is 1 if one of them fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from simshuffle.errors import SimshuffleError
from simshuffle.study.registry import read_folder

SMALL = ["--set", "epochs=1", "--set", "workload.dataset.num_samples=512"]
STUDY = """\
name: killed
data: {kind: classification, num_samples: 256, features: 8, informative: 4, classes: 4}
model: {kind: mlp, width: 8}
training: {epochs: 2, local_batch_size: 4}
seeds: 6
runs:
  - exchange: [local_shuffle, "partial_local_shuffle:exchange_fraction=0.3"]
    world_size: [2, 4]
"""
MEASURED = {"seconds", "forward_s", "backward_s", "importance_s"}
"""Columns that are measured on this machine, never the same twice."""
PATIENCE = 600.0


@dataclass
class Outcome:
    """What became of a verb.

    Attributes:
        kills: how many there were.
        found: how often a complete result was there after a kill.
        peace_s, last_s: s of the command in peace, and of the last one, which went on.
        faults: what was wrong.
    """

    kills: int = 0
    found: int = 0
    peace_s: float = 0.0
    last_s: float = 0.0
    faults: list[str] = field(default_factory=list)


def words(verb: str, cells: int, place: Path) -> list[str]:
    """The command line of a verb, without --out."""
    if verb == "run":
        sizes = "sweep={world_size: [2, 4, 8], workload.exchange: [local_shuffle, global_shuffle]}"
        return ["run", "quickstart", *SMALL, "--set", sizes]
    if verb == "sweep":
        base = ["sweep", "quickstart", *SMALL, "--set", "sweep={}", "--over", "world_size=2,4"]
        return [*base, "--seeds", str(cells // 2)]
    study = place / "killed.yaml"
    study.write_text(STUDY, encoding="utf-8")
    if verb == "train":
        return ["train", str(study)]
    return ["study", "tta", str(study), "quickstart", "--scale", "samples", *SMALL]


def begun(words: list[str], out: Path) -> subprocess.Popen[bytes]:
    """The command in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "simshuffle", *words, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def in_peace(words: list[str], out: Path) -> float:
    """Run a command to its end; returns s."""
    start = time.monotonic()
    process = begun(words, out)
    _, error = process.communicate(timeout=PATIENCE)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}: {error.decode()}")
    return time.monotonic() - start


def content(folder: Path) -> dict[str, object]:
    """All files of a result but what is measured anew each time."""
    out: dict[str, object] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.suffix in {".csv", ".parquet"}:
            out[name] = table(path)
        elif path.suffix not in {".png", ".pdf", ".txt"}:
            out[name] = timeless(path.read_bytes()) if name == "meta.json" else path.read_bytes()
    return out


def timeless(meta: bytes) -> object:
    """A ``meta.json`` without how it was made, and the speed of its trainings."""
    found = json.loads(meta)
    found.pop("made", None)
    if "torch" in found:
        for run in found["runs"].values():
            run.pop("samples_per_s", None)
    return found


def table(path: Path) -> str:
    """A table as text, without what is measured."""
    import pandas as pd  # noqa: PLC0415 - the parent must stay small while it kills

    frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    kept = [name for name in frame if name not in MEASURED]
    if "iterations" in path.name:
        kept = [name for name in kept if not name.endswith("_s")]
    return frame[kept].to_csv(index=False)


def kill_often(verb: str, kills: int, cells: int, chance: random.Random, place: Path) -> Outcome:
    """Kill a verb so often, and let it end then."""
    line, outcome = words(verb, cells, place), Outcome()
    peace, torn = place / "peace" / "out", place / "torn" / "out"
    outcome.peace_s = in_peace(line, peace)
    wanted = content(peace)
    for _ in range(kills):
        process = begun(line, torn)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=chance.uniform(0.0, outcome.peace_s))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        outcome.kills += 1
        if torn.exists():
            outcome.found += 1
            try:
                complete = read_folder(torn).meta.get("state", "finished") == "finished"
            except SimshuffleError as error:
                outcome.faults.append(f"half a result: {error}")
                break
            if complete:  # the next one begins from its cells alone
                shutil.rmtree(torn)
                if chance.random() < 0.5:
                    shutil.rmtree(torn.parent / ".cells", ignore_errors=True)
    outcome.last_s = in_peace(line, torn)
    found = content(torn)
    different = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    outcome.faults += [f"{name} differs" for name in different]
    return outcome


def main() -> int:
    """Kill, and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="of each verb")
    parser.add_argument("--verb", action="append", choices=["run", "sweep", "train", "tta"])
    parser.add_argument("--cells", type=int, default=40, help="of the sweep")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    print(f"{'verb':<8}{'kills':>6}{'complete':>10}{'peace (s)':>11}{'last (s)':>10}  faults")
    failed = False
    for verb in asked.verb or ["run", "sweep", "train", "tta"]:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            chance = random.Random(f"{asked.seed} {verb}")
            of = kill_often(verb, asked.kills, asked.cells, chance, Path(folder))
        faults = json.dumps(of.faults) if of.faults else "none"
        print(
            f"{verb:<8}{of.kills:>6}{of.found:>10}{of.peace_s:>11.1f}{of.last_s:>10.1f}  {faults}",
            flush=True,
        )
        failed |= bool(of.faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
