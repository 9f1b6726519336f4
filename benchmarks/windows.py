"""How well windows tell whole epochs: random scenarios and all shipped ones, simulated whole and
with a tolerance of time; writes docs/reference/windows.md, and docs/data/windows-outside.csv.

python benchmarks/windows.py [random] [shipped]

What is done is kept in results/windows.jsonl, under what decides it: a stopped study goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from validation_tables import ROOT, put
from window_scenarios import window_scenario

from simshuffle.errors import SimshuffleError
from simshuffle.job.plan.effort import effort
from simshuffle.job.scenario.scenario import (
    Scenario,
    all_runs,
    from_dict,
    load_scenarios,
)
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report

RANDOM = 200
TOLERANCES = {"random": (0.01, 0.05), "shipped": (0.01,)}
LONGEST = 3.0
"""s by estimate, above which a shipped run is cut."""
FEWEST_RANKS = 64
OUTSIDE = ROOT / "docs" / "data" / "windows-outside.csv"
KEPT = ROOT / "results" / "windows.jsonl"
METHOD = "".join(
    (ROOT / "simshuffle" / name).read_text(encoding="utf-8")
    for name in (
        "job/plan/effort.py",
        "job/sim/served.py",
        "job/sim/steady.py",
        "job/sim/simulate.py",
    )
)
"""Sources on which windows rest, and whole epochs do not."""
COLUMNS = {
    "epoch": "epoch",
    "iterations": "iterations",
    "iterations_simulated": "simulated",
    "epoch_s": "seconds",
    "epoch_low_s": "low",
    "epoch_high_s": "high",
}


@dataclass(frozen=True)
class Work:
    """A run to simulate, with a tolerance or whole (0)."""

    of: str
    name: str
    scenario: dict[str, Any]
    tolerance: float

    @property
    def key(self) -> str:
        """What decides its outcome."""
        method = METHOD if self.tolerance else ""
        decides = json.dumps([self.scenario, self.tolerance, method], sort_keys=True)
        return hashlib.sha256(decides.encode()).hexdigest()[:24]


def simulated(work: Work) -> dict[str, Any]:
    """CPU seconds, and a row for every epoch."""
    scenario = from_dict({**work.scenario, "time_tolerance": work.tolerance}, work.name)
    begin = time.process_time()
    timeline = simulate(scenario)
    cpu = time.process_time() - begin
    rows = report.epochs(timeline)[list(COLUMNS)].rename(columns=COLUMNS)
    because = timeline.sources["whole_because"].astype(str).to_numpy()
    return {"cpu": cpu, "epochs": rows.assign(because=because).to_dict("records")}


def works(which: list[str]) -> Iterator[Work]:
    """All runs, whole and with each tolerance."""
    for of in which:
        for name, scenario in (_random() if of == "random" else _shipped()).items():
            for tolerance in (0.0, *TOLERANCES[of]):
                yield Work(of, name, scenario.to_dict(), tolerance)


def _random() -> dict[str, Scenario]:
    return {f"random {number}": window_scenario(number) for number in range(RANDOM)}


def _shipped() -> dict[str, Scenario]:
    folder = ROOT / "scenarios"
    return {
        f"{path.relative_to(folder).with_suffix('')}: {name}": cut(run)
        for path in sorted(folder.rglob("*.yaml"))
        for name, run in all_runs(load_scenarios(path)).items()
    }


def cut(run: Scenario) -> Scenario:
    """A run that can be simulated whole: half of its ranks with half of the samples, again and
    again, down to `FEWEST_RANKS`; then fewer samples."""
    while (seconds := effort(run).seconds) > LONGEST:
        samples = run.workload.dataset.num_samples
        fewer = {
            "workload.dataset.num_samples": samples // 2,
            "world_size": run.world_size // 2,
        }
        if run.world_size < 2 * FEWEST_RANKS:
            del fewer["world_size"]
            fewer["workload.dataset.num_samples"] = round(
                0.9 * samples * LONGEST / seconds
            )
        run = run.with_values(fewer)
    return run


# --------------------------------------------------------------------------------------- the study


def study(which: list[str]) -> pd.DataFrame:
    """A row for every epoch with a tolerance: columns of, name, tolerance, those of `COLUMNS`,
    because, whole (s, all iterations simulated), cpu and whole_cpu (s, in its first epoch)."""
    asked = list(works(which))
    keys = {work.key: work for work in asked}
    found = dict(_kept(keys))
    KEPT.parent.mkdir(exist_ok=True)
    missing = [work for key, work in keys.items() if key not in found]
    processes = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(processes, initializer=os.nice, initargs=(5,)) as pool:
        pending = {pool.submit(simulated, work): work for work in missing}
        for number, future in enumerate(as_completed(pending), 1):
            work = pending[future]
            try:
                found[work.key] = future.result()
            except SimshuffleError as error:
                print(f"{work.name}: {error}", file=sys.stderr)
                continue
            with KEPT.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": work.key, **found[work.key]}) + "\n")
            print(
                f"\r{number} of {len(missing)} runs",
                end="",
                file=sys.stderr,
                flush=True,
            )
    return _rows(asked, found)


def _kept(keys: dict[str, Work]) -> Iterator[tuple[str, dict[str, Any]]]:
    if KEPT.exists():
        for line in KEPT.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["key"] in keys:
                yield row.pop("key"), row


def _rows(asked: list[Work], found: dict[str, dict[str, Any]]) -> pd.DataFrame:
    whole = {work.name: found.get(work.key) for work in asked if not work.tolerance}
    rows = []
    for work in asked:
        with_window = found.get(work.key)
        all_of_it = whole[work.name]
        if not work.tolerance or with_window is None or all_of_it is None:
            continue
        about = {"of": work.of, "name": work.name, "tolerance": work.tolerance}
        cpu = {"cpu": with_window["cpu"], "whole_cpu": all_of_it["cpu"]}
        for row, exact in zip(with_window["epochs"], all_of_it["epochs"], strict=True):
            rows.append({**about, **row, "whole": exact["seconds"], **cpu})
            cpu = {"cpu": 0.0, "whole_cpu": 0.0}
    return pd.DataFrame(rows)


# -------------------------------------------------------------------------------------- the tables


def summary(rows: pd.DataFrame) -> dict[str, str]:
    """What is said of the epochs of a set with one tolerance."""
    left_out = rows[rows["high"] > rows["low"]]
    error = (left_out["seconds"] / left_out["whole"] - 1.0).to_numpy()
    inside = (left_out["whole"] >= left_out["low"]) & (
        left_out["whole"] <= left_out["high"]
    )
    reasons = rows.loc[rows["because"] != "", "because"].value_counts()
    count = max(len(error), 2)
    return {
        "epochs": str(len(rows)),
        "with an interval": str(len(left_out)),
        "of them the whole epoch lies in it": f"{inside.mean():.1%}",
        "half the interval, mean": f"{_half(left_out).mean():.2%}",
        "error, mean": f"{np.abs(error).mean():.2%}",
        "error, largest": f"{np.abs(error).max():.2%}",
        "errors above the tolerance": f"{(np.abs(error) > rows['tolerance'].iloc[0]).mean():.1%}",
        "bias": f"{error.mean():+.3%} ± {error.std(ddof=1) / count**0.5:.3%}",
        **{
            f"simulated whole: {why}": f"{n / len(rows):.0%}"
            for why, n in reasons.items()
        },
        "iterations simulated": f"{rows['simulated'].sum() / rows['iterations'].sum():.0%}",
        "CPU time": f"{rows['cpu'].sum() / rows['whole_cpu'].sum():.0%}",
    }


def _half(rows: pd.DataFrame) -> pd.Series[float]:
    return (rows["high"] - rows["low"]) / 2 / rows["whole"]


def table(rows: pd.DataFrame) -> str:
    """The summaries of all sets and tolerances beside one another, as markdown."""
    sets = {
        f"{of}, {tolerance:.0%}": summary(part)
        for (of, tolerance), part in rows.groupby(["of", "tolerance"], sort=False)
    }
    names = list(dict.fromkeys(name for each in sets.values() for name in each))
    first = [name for name in names if not name.startswith("simulated whole")]
    whole = sorted(set(names) - set(first))
    order = [*first[:-2], *whole, *first[-2:]]
    return _markdown(
        ["", *sets],
        [[name, *(each.get(name, "-") for each in sets.values())] for name in order],
    )


def outside(rows: pd.DataFrame) -> pd.DataFrame:
    """The epochs that lie outside their interval."""
    missed = rows[
        (rows["high"] > rows["low"])
        & ((rows["whole"] < rows["low"]) | (rows["whole"] > rows["high"]))
    ]
    cells = [
        [
            row["name"],
            f"{row['tolerance']:.0%}",
            str(row["epoch"]),
            f"{row['simulated']} of {row['iterations']}",
            f"{row['whole']:.3f}",
            f"{row['low']:.3f} to {row['high']:.3f}",
            f"{row['seconds'] / row['whole'] - 1.0:+.2%}",
        ]
        for row in missed.to_dict("records")
    ]
    heads = [
        "run",
        "tolerance",
        "epoch",
        "iterations",
        "whole (s)",
        "interval (s)",
        "error",
    ]
    return pd.DataFrame(cells, columns=heads)


def _markdown(heads: list[str], cells: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    which = sys.argv[1:] or list(TOLERANCES)
    rows = study(which)
    print(table(rows), outside(rows).to_string(index=False), sep="\n\n")
    if which == list(TOLERANCES):
        put(ROOT / "docs" / "reference" / "windows.md", "windows", table(rows))
        outside(rows).to_csv(OUTSIDE, index=False)


if __name__ == "__main__":
    main()
