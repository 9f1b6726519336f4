"""How true the estimates of time are that commands show: of twelve commands on a cluster that
stands nowhere in this repository, the estimate over what was really left, from a tenth of the way
on. Each command runs in a folder of its own, so that nothing is there already.

    python benchmarks/estimates.py              all, some ten minutes on two cores
    python benchmarks/estimates.py plan sweep   those whose name begins so
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from time import monotonic

import pandas as pd

from simshuffle.cli import main
from simshuffle.study import standing
from simshuffle.study.standing import Progress, Standing

CLUSTER = """new shop --hosts 48 --gpus 8 --accelerator a100 --cores 64 --memory 512GB --hcas 4
 --hca-bandwidth 25GB/s --ports 40 --taper 3 --pfs-bandwidth 40GB/s --pfs-opens 18k/s --ssd 3.2TB
 --ssd-read 5GB/s --samples 3000000 --sample-size 150kB --batch-size 48 --batch-time 0.11s
 --gradients 350MB --ranks 32,96 --ways global-pfs,local,partial-0.1,partial-0.5"""
ONE = ["--set", "sweep={}", "--set", "world_size=96"]
PARTIAL = [*ONE, "--set", "workload.exchange=partial_local_shuffle:exchange_fraction=0.3"]
COMMANDS = {
    "run": ["run", "shop.yaml"],
    "run seeds": ["run", "shop.yaml", *PARTIAL, "--seeds", "3"],
    "run interval": ["run", "shop.yaml", *PARTIAL, "--interval"],
    "sweep": ["sweep", "shop.yaml", *PARTIAL, "--over", "world_size=16,64,192"],
    "sweep opens": [
        *("sweep", "shop.yaml", *ONE),
        *("--over", "cluster.parallel_file_system.open_rate=6k/s,18k/s,50k/s"),
    ],
    "sweep interval": ["sweep", "shop.yaml", *ONE, "--over", "world_size=32,96", "--interval"],
    "plan": ["plan", "shop.yaml", *ONE],
    "hiding": ["study", "hiding", "shop.yaml", *PARTIAL],
    "ablate": ["study", "ablate", "shop.yaml", *PARTIAL],
    "congestion": ["congestion", "shop.yaml", "--world-size", "96", "--seeds", "2"],
    "month": [
        *("month", "shop.yaml", *PARTIAL, "--set", "failures=infinitehbd"),
        *("--set", "recovery.spares=4", "--set", "workload.checkpoint.period=30 min"),
    ],
    "oracle": ["study", "oracle", "shop.yaml", *ONE],
}
"""Words of each command by its name."""


def time_command(words: list[str]) -> tuple[int, float, list[tuple[float, float | None]]]:
    """Run a command; return its exit status, its s, and when it told how many s are left."""
    told: list[tuple[float, float | None]] = []
    begun = monotonic()

    @contextmanager
    def recorded(noun: str) -> Iterator[Progress]:
        def tell(now: Standing) -> None:
            told.append((monotonic() - begun, now.left_s))

        yield tell

    before, standing.study_progress = standing.study_progress, recorded
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        status = main(words)
    standing.study_progress = before
    return status, monotonic() - begun, told


def judge(name: str, seconds: float, told: list[tuple[float, float | None]]) -> dict[str, object]:
    """Return a row: how far estimates were off from a tenth of the way to 19 twentieths of it."""
    middle = [(at, left) for at, left in told if 0.1 * seconds <= at <= 0.95 * seconds]
    factors = [
        max(left, 1.0) / (seconds - at)
        for at, left in middle
        if left is not None and seconds - at >= 1.0
    ]
    within = [0.5 <= factor <= 2.0 for factor in factors]
    return {
        "command": name,
        "took (s)": round(seconds, 1),
        "estimates": len(factors),
        "within a factor of 2": f"{sum(within) / len(within):.0%}" if within else "-",
        "lowest": round(min(factors), 2) if factors else None,
        "highest": round(max(factors), 2) if factors else None,
    }


def run_all(beginnings: list[str]) -> pd.DataFrame:
    """Return a row for each command whose name begins with one of these, or for all."""
    rows = []
    for name, words in COMMANDS.items():
        if beginnings and not name.startswith(tuple(beginnings)):
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            main(["-q", *CLUSTER.split()])
            status, seconds, told = time_command([*words, "--out", "result"])
        if status:
            print(f"{name}: exit status {status}", file=sys.stderr)
        rows.append(judge(name, seconds, told))
        print(rows[-1], file=sys.stderr)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    print(run_all(sys.argv[1:]).to_string(index=False))
