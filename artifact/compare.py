"""Whether the results of artifact/run.sh are those of expected.csv: python compare.py RESULTS

Only those results are compared that are in RESULTS. The exit status is 1 if one of them differs, or
if there are none.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from simshuffle import read

EXPECTED = Path(__file__).parent / "expected.csv"
TOLERANCE = 0.0001
"""Share by which seconds may differ: they are stored to five digits."""


def found(folder: Path) -> pd.DataFrame:
    """Columns run and seconds, of the last epoch of each run in a result folder."""
    result = read(folder)
    table = result.tables["sweep" if "sweep" in result.tables else "epochs"]
    last = table[table["epoch"] == table["epoch"].max()]
    names = last["label"] if "label" in last else last["run"]
    return pd.DataFrame({"run": names.astype(str), "seconds": last["epoch_s"]})


def compare(results: Path) -> bool:
    """Write a line for each expected number; whether all that are there agree, and any is there."""
    agree = []
    for folder, rows in pd.read_csv(EXPECTED).groupby("folder", sort=False):
        if not (results / str(folder)).is_dir():
            continue
        now = found(results / str(folder)).set_index("run")["seconds"]
        for row in rows.itertuples():
            seconds = float(now.get(row.run, float("nan")))
            agree.append(abs(seconds / row.seconds - 1) <= TOLERANCE)
            said = "the same" if agree[-1] else "DIFFERS"
            name = f"{folder}, {row.run}"
            sys.stdout.write(
                f"{name:45} {row.seconds:8.5g} s {seconds:8.5g} s  {said}\n"
            )
    sys.stdout.write(f"{sum(agree)} of {len(agree)} as expected\n")
    return bool(agree) and all(agree)


if __name__ == "__main__":
    sys.exit(not compare(Path(sys.argv[1])))
