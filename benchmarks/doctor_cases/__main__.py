"""Judge ``simshuffle doctor`` on trainings drawn by seed, or print tables of judged ones.

    python -m benchmarks.doctor_cases --seed 1 --count 200 --out cases.csv
    python -m benchmarks.doctor_cases --seed 1 --count 200 --truth cases.csv --out again.csv
    python -m benchmarks.doctor_cases --table cases.csv
    python -m benchmarks.doctor_cases --table cases.csv --out outcomes.csv
    python -m benchmarks.doctor_cases --seed 1 --write 7 --out folder

With both ``--table`` and ``--out`` it writes what benchmarks/doctor_calibration.py counts. Costs
are drawn for the speed of this host. A run that was interrupted goes on with the cases that its
file lacks. A case takes 25 to 45 s, and half of that where ``--truth`` names a file of rows that
were measured before.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.doctor_cases.case import draw_case
from benchmarks.doctor_cases.host_speed import measure_host
from benchmarks.doctor_cases.judge import (
    COLUMNS,
    HEALTHY,
    LEAST_GAIN,
    ScriptRunner,
    judge_case,
)
from benchmarks.doctor_cases.recipe import HostSpeed
from benchmarks.doctor_cases.table import is_right, text_of

Truths = dict[tuple[str, str], dict[str, str]]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file of judged cases, none if there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["error"] is not None]


def host_of_rows(rows: list[dict[str, str]]) -> HostSpeed:
    """Return the speed for which rows were drawn, or that of this host if there are none."""
    if not rows:
        return measure_host()
    first = rows[0]
    return HostSpeed(
        float(first.get("step_factor") or 1.0), float(first.get("work_factor") or 1.0)
    )


def judge_cases(
    seed: int, count: int, path: Path, runner: ScriptRunner, truth: Truths
) -> None:
    """Judge the cases that a file lacks, and add a row for each as soon as it is judged."""
    earlier = read_rows(path)
    judged = {(row["seed"], row["number"]) for row in earlier}
    host = host_of_rows([*truth.values(), *earlier])
    for number in range(count):
        if (str(seed), str(number)) in judged:
            continue
        before = truth.get((str(seed), str(number)))
        row = judge_case(draw_case(seed, number, host), runner, before)
        begins = not path.exists()
        with path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if begins:
                writer.writeheader()
            writer.writerow(asdict(row))
        print(
            f"{seed}:{number} {row.drawn or 'nothing'}: truth {row.truth_first}"
            f" {row.truth_second} {row.measured_gain:.0%}, named {row.named_first}"
            f" {row.predicted_gain:.0%} ({row.confidence:.2f}) {row.error}",
            file=sys.stderr,
        )


def counts_for_confidence(row: dict[str, str]) -> bool:
    """Return whether the truth of a case is beyond noise, or the case is called healthy, and the
    noise is below `LEAST_GAIN`: what was put in then says whether it is.

    That no loader at all gains more is no disease: a worker slows steps on the next core.
    """
    is_called_healthy = row["named_first"] == HEALTHY
    is_quiet = float(row["gain_noise"] or 0.0) < LEAST_GAIN
    return row["is_settled"] == "1" or (is_called_healthy and is_quiet)


def write_outcomes(rows: list[dict[str, str]], path: Path) -> None:
    """Write the cases that count for benchmarks/doctor_calibration.py."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["named", "evidence", "put_in"])
        for row in rows:
            if row["error"] or not counts_for_confidence(row):
                continue
            named = row["named_first"].replace(HEALTHY, "")
            truth = row["truth_first"].replace(HEALTHY, "")
            writer.writerow([named, row["evidence"], named if is_right(row) else truth])


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--truth", type=Path, help="rows whose measured gains count")
    parser.add_argument(
        "--out", type=Path, help="table of judged cases, or folder of --write"
    )
    parser.add_argument(
        "--table", type=Path, help="print the tables of this file, judge nothing"
    )
    parser.add_argument(
        "--write", type=int, metavar="NUMBER", help="write one case's scripts"
    )
    arguments = parser.parse_args()
    if arguments.table:
        if not arguments.table.exists():
            parser.error(f"{arguments.table}: no such file")
        print(text_of(read_rows(arguments.table)))
        if arguments.out is not None:
            write_outcomes(read_rows(arguments.table), arguments.out)
    elif arguments.out is None:
        parser.error("--out is needed")
    elif arguments.write is not None:
        draw_case(arguments.seed, arguments.write, measure_host()).write(arguments.out)
    else:
        rows = read_rows(arguments.truth) if arguments.truth else []
        truth = {(row["seed"], row["number"]): row for row in rows if not row["error"]}
        with ScriptRunner() as runner:
            judge_cases(arguments.seed, arguments.count, arguments.out, runner, truth)


if __name__ == "__main__":
    main()
