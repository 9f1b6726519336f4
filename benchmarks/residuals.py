"""What the laws have missed, from a validation: python benchmarks/residuals.py RESULT.json, the
output of `simshuffle study validate --json`; writes validation/data/residuals.csv.

Rows of sets that the validation does not have stay in the file as they are."""

import json
import sys
from pathlib import Path

import pandas as pd

from simshuffle.extensions.calibration.validation.intervals import learn_residuals

if __name__ == "__main__":
    table = pd.DataFrame(
        json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["rows"]
    )
    numbers = ["measured", "low", "high", "predicted"]
    table[numbers] = table[numbers].apply(pd.to_numeric)
    target = Path(__file__).parent.parent / "validation" / "data" / "residuals.csv"
    before = pd.read_csv(target)
    removed_sets = before[~before["set"].isin(table["set"])]
    rows = pd.concat([learn_residuals(table).rows, removed_sets])
    rows.to_csv(target, index=False, float_format="%.5g")
    print(f"Written: {target}")
