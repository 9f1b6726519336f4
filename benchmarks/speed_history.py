"""The speeds that must not fall, beside the last ones that were committed.

    python benchmarks/speed_history.py [--write] [--only TEXT]

Measures each metric in fresh processes (CPU seconds, the least of three) and divides it by the CPU
seconds of a calibration loop on this machine, measured before and after it. The command fails if a
metric takes more than a tenth longer than its last row in speeds.csv, in two measurements.
``--write`` adds a row for each metric, with date and commit, and draws docs/figures/speed.png.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from speed import (
    CASES,
    REPEATS,
    ROOT,
    Case,
    Cost,
    Version,
    command_cost,
    cost_of,
    least,
)

from simshuffle.report import canvas, paper
from simshuffle.report.chart import Axis, Chart, Look, Mark, Panel, log_axis

HISTORY = ROOT / "benchmarks" / "speeds.csv"
FIGURE = ROOT / "docs" / "figures" / "speed"
ALLOWED = 1.10
"""Time of a metric over its last one, both in calibration loops, beyond which it fails."""
METRICS = {
    "`simshuffle --help`": "help",
    "`simshuffle check quickstart`": "check quickstart",
    "`simshuffle run quickstart`": "run quickstart",
    "2,048 ranks, whole command, 2 epochs": "run 2,048 ranks, 2 epochs",
    "16,384 ranks, tolerance 1 %": "run 16,384 ranks, 1 %",
    "network: all-to-all, 2048 hosts": "network, all-to-all",
    "network: exchange, fluid": "network, exchange",
}
"""Cases of speed.py, and their names in speeds.csv."""
# Generators, a heap and dictionaries as in SimPy, and arrays that are sorted and gathered
CALIBRATION = """
import numpy as np
import simpy
clock = simpy.Environment()
def idle():
    for _ in range(300):
        yield clock.timeout(1.0)
for _ in range(1000):
    clock.process(idle())
clock.run()
values = np.random.default_rng(1).random(2_000_000)
for _ in range(4):
    values = values[np.argsort(values, kind="stable")][::-1].copy()
"""


@dataclass(frozen=True)
class Speed:
    """What a metric takes on this machine."""

    seconds: float  # of CPU
    calibration_s: float  # of the calibration loop, about that time

    @property
    def ratio(self) -> float:
        return self.seconds / self.calibration_s


def measure_seconds(measure: Callable[[Version], Cost], version: Version) -> float:
    """Return CPU seconds, the least of `REPEATS` measurements."""
    seconds = least([measure(version) for _ in range(REPEATS)]).seconds
    assert seconds is not None, "nothing is stopped without a limit"
    return seconds


def measure_calibration(version: Version) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        return cost_of(version, ["-c", CALIBRATION], Path(folder))


def measure_speed(case: Case, version: Version) -> Speed:
    before = measure_seconds(measure_calibration, version)
    seconds = measure_seconds(case.measure, version)
    after = measure_seconds(measure_calibration, version)
    return Speed(seconds, (before + after) / 2)


def last_ratios() -> dict[str, float]:
    """Return the last ratio of each metric in speeds.csv; {} where there is no file."""
    if not HISTORY.exists():
        return {}
    return {
        str(name): float(rows["ratio"].iloc[-1])
        for name, rows in pd.read_csv(HISTORY).groupby("metric")
    }


def write_rows(speeds: dict[str, Speed]) -> None:
    """Add a row for each metric to speeds.csv, and draw all rows."""
    head = ["git", "log", "-1", "--format=%h"]
    commit = subprocess.run(
        head, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    rows = pd.DataFrame(
        {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "commit": commit.stdout.strip(),
            "metric": name,
            "seconds": round(speed.seconds, 4),
            "calibration_s": round(speed.calibration_s, 4),
            "ratio": round(speed.ratio, 4),
        }
        for name, speed in speeds.items()
    )
    earlier = [pd.read_csv(HISTORY)] if HISTORY.exists() else []
    history = pd.concat([*earlier, rows])
    history.to_csv(HISTORY, index=False)
    draw_history(history)


def draw_history(history: pd.DataFrame) -> None:
    """Draw the ratio of each metric over its first one, by commit."""
    commits = list(dict.fromkeys(history["commit"]))
    colours = [
        "#4477AA",
        "#EE6677",
        "#228833",
        "#CCBB44",
        "#66CCEE",
        "#AA3377",
        "#000000",
    ]
    looks = {
        name: Look(name, colour, "o")
        for name, colour in zip(METRICS.values(), colours, strict=True)
    }
    points = history.assign(
        x=[float(commits.index(commit)) for commit in history["commit"]],
        y=history["ratio"] / history.groupby("metric")["ratio"].transform("first"),
        look=history["metric"],
    )
    marks = [Mark("line", points[points["metric"] == name]) for name in looks]
    dates = history.drop_duplicates("commit")["date"].str.slice(5)
    labels = [f"{date}\n{commit}" for date, commit in zip(dates, commits, strict=True)]
    x = Axis("", False, -0.3, len(commits) - 0.7, dict(enumerate(labels)))
    y = log_axis(
        "time, over its first", points["y"].min() * 0.8, points["y"].max() * 1.25
    )
    about = "CPU time in calibration loops of the same machine, over that of the first commit."
    chart = Chart([Panel(marks, x, y)], 2.6, looks, about)
    canvas.save(paper.draw(chart), FIGURE)[1].unlink()


def main(only: str, write: bool) -> int:
    """Print each metric as it is measured, and return 1 if one has become slower."""
    cases = {METRICS[case.name]: case for case in CASES if case.name in METRICS}
    last = last_ratios()
    speeds = {}
    slower = []
    with tempfile.TemporaryDirectory() as cache:
        version = Version(ROOT, Path(cache))
        command_cost(["run", "quickstart"], version)  # compiles
        for name, case in cases.items():
            if only not in name:
                continue
            speed = measure_speed(case, version)
            limit = last.get(name, float("inf")) * ALLOWED
            if speed.ratio > limit:
                again = measure_speed(case, version)
                speed = min(speed, again, key=lambda measured: measured.ratio)
            speeds[name] = speed
            change = (
                f"{speed.ratio / last[name]:.2f} times the last"
                if name in last
                else "new"
            )
            print(
                f"{name}: {speed.seconds:.3f} s, {speed.ratio:.3f} loops, {change}",
                flush=True,
            )
            if speed.ratio > limit:
                slower.append(name)
    if write:
        write_rows(speeds)
        print(f"Written: {HISTORY}, {FIGURE}.png")
    elif slower:
        print(
            f"More than a tenth slower than the last row of {HISTORY.name}: {', '.join(slower)}"
        )
    return int(bool(slower) and not write)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Speeds beside the last committed ones."
    )
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="metrics whose names contain it"
    )
    parser.add_argument(
        "--write", action="store_true", help="add rows and draw the figure"
    )
    args = parser.parse_args()
    sys.exit(main(args.only, args.write))
