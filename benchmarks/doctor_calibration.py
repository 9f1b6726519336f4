"""Count how often doctor was right on trainings whose causes are known, by kind and evidence.

    python benchmarks/doctor_calibration.py OUTCOMES.csv ... [--add]

Each row of OUTCOMES.csv is a training: ``named`` is the cause that doctor names first ('' where it
says healthy), ``evidence`` that of the cause in diagnosis.json (1 where it is healthy), and
``put_in`` the names that are right, with semicolons between them ('' for a healthy training). A
healthy verdict is right only where nothing was put in. Writes calibration.csv of the package, from
which doctor says how sure it is; with ``--add``, the counts in it stay and grow.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from simshuffle.extensions.doctor import certainty

TABLE = Path(certainty.__file__).with_name(certainty.TABLE)
COLUMNS = ("kind", "evidence", "right", "cases")


def count_outcomes(
    outcomes: Iterable[Mapping[str, str]],
) -> Counter[tuple[str, float, bool]]:
    """Return the number of trainings by kind of the named cause, bin of its evidence, and
    whether it was right.
    """
    counts: Counter[tuple[str, float, bool]] = Counter()
    for outcome in outcomes:
        named = outcome["named"]
        right_names = [name for name in outcome["put_in"].split(";") if name]
        is_right = named in right_names if named else not right_names
        kind = named or certainty.HEALTHY
        counts[kind, certainty.bin_of(float(outcome["evidence"])), is_right] += 1
    return counts


def table_rows(
    counts: Counter[tuple[str, float, bool]],
) -> list[tuple[str, float, int, int]]:
    """Return the rows of the table: kind, low end of the bin, right ones, cases."""
    bins = sorted({(kind, low) for kind, low, _ in counts})
    return [
        (
            kind,
            low,
            counts[kind, low, True],
            counts[kind, low, True] + counts[kind, low, False],
        )
        for kind, low in bins
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("outcomes", nargs="+", type=Path, metavar="OUTCOMES.csv")
    parser.add_argument(
        "--add", action="store_true", help="keep the counts that are there"
    )
    options = parser.parse_args()
    counts: Counter[tuple[str, float, bool]] = Counter()
    if options.add:
        for row in csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()):
            right, cases = int(row["right"]), int(row["cases"])
            counts[row["kind"], float(row["evidence"]), True] += right
            counts[row["kind"], float(row["evidence"]), False] += cases - right
    for path in options.outcomes:
        counts += count_outcomes(
            csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        )
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(table_rows(counts))
    right = sum(count for (_, _, is_right), count in counts.items() if is_right)
    print(f"{right} of {counts.total()} are right. Table: {TABLE.name}")


if __name__ == "__main__":
    main()
