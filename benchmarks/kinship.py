"""How much the errors of one machine's runs have in common, from a validation.

python benchmarks/kinship.py RESULT, the output of `simshuffle study validate --json` or the folder
of `--out`; prints the constants of simshuffle/job/uncertainty/kinship.py."""

import sys
from pathlib import Path

from validation_tables import results_of

from simshuffle.extensions.calibration.validation.kinship import (
    larger_runs,
    learn_kinship,
)

if __name__ == "__main__":
    print(learn_kinship(larger_runs(results_of(Path(sys.argv[1])))))
