"""What the laws have missed, from a validation: python benchmarks/residuals.py RESULT.json, the
output of `simshuffle study validate --json`; writes validation/data/residuals.csv.

Rows of sets that the validation does not have stay in the file as they are.

python benchmarks/residuals.py --scores prints what RELATED and WIDTH of
simshuffle/job/uncertainty/residuals.py are chosen by: the interval score (in logarithms, the
mean over sets, each left out when it is judged), the share inside, and half the median width."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from simshuffle.extensions.calibration.validation.intervals import learn_residuals
from simshuffle.extensions.calibration.validation.scores import winkler
from simshuffle.job.uncertainty import residuals as laws

TARGET = Path(__file__).parent.parent / "validation" / "data" / "residuals.csv"


def write_residuals(result: Path) -> None:
    table = pd.DataFrame(json.loads(result.read_text(encoding="utf-8"))["rows"])
    numbers = ["measured", "low", "high", "predicted"]
    table[numbers] = table[numbers].apply(pd.to_numeric)
    before = pd.read_csv(TARGET)
    removed_sets = before[~before["set"].isin(table["set"])]
    rows = pd.concat([learn_residuals(table).rows, removed_sets])
    rows.to_csv(TARGET, index=False, float_format="%.5g")
    print(f"Written: {TARGET}")


def print_scores() -> None:
    rows = laws.residuals().rows.dropna(subset=["residual"])
    learned = laws.Residuals(rows)
    kinds = rows[["set", "mechanism", "ranks"]].drop_duplicates()
    for laws.RELATED, laws.WIDTH in itertools.product(
        (0.01, 0.03, 0.1, 0.3, 1.0), (0.5, 1.0, 2.0, 4.0, 8.0, 100.0)
    ):
        ends = [
            learned.ends(row.mechanism, row.ranks, row.set)
            for row in kinds.itertuples()
        ]
        bounds = pd.DataFrame(np.exp(ends), kinds.index, ["low", "high"])
        judged = rows.merge(kinds.join(bounds))
        factor = np.exp(judged["residual"])
        scores = pd.Series(winkler(judged["low"], judged["high"], factor))
        score = scores.groupby(judged["set"].to_numpy()).mean()
        inside = factor.between(judged["low"], judged["high"]).mean()
        half_width = np.log(judged["high"] / judged["low"]).median() / 2
        print(
            f"related {laws.RELATED}, width {laws.WIDTH}: score {score.mean():.3f},"
            f" inside {inside:.1%}, half width {half_width:.3f}"
        )


if __name__ == "__main__":
    if sys.argv[1] == "--scores":
        print_scores()
    else:
        write_residuals(Path(sys.argv[1]))
