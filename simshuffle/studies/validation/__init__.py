"""Predicted against measured: every published number in ``validation/`` beside what the simulator
says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import nearest, shipped
from simshuffle.studies.validation.predict import predictions
from simshuffle.studies.validation.rows import read_rows
from simshuffle.studies.validation.table import table

__all__ = ["validate"]


def validate(
    only: Sequence[str] | None = None,
    folder: Path | None = None,
    processes: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> pd.DataFrame:
    """Predict the measured numbers of ``folder`` and put both side by side.

    Args:
        only: names of sets; None for all.
        folder: with CSV files (see `simshuffle.studies.validation.rows`); None for the one that
            comes with simshuffle.
        processes: simulations at once; None for one on each core.
        progress: called with the share of the simulations that are done.

    Returns:
        One row for each measured number, with the columns
        `simshuffle.studies.validation.table.COLUMNS`.

    Raises:
        InputError: a file or a row is not valid, or there is no such set.
    """
    rows = read_rows(folder or shipped("validation"))
    sets = list(dict.fromkeys(row.set for row in rows))
    problems = [
        Problem("--only", "no such set", repr(name), nearest(name, sets))
        for name in only or ()
        if name not in sets
    ]
    if problems:
        raise InputError(problems, "command line")
    chosen = [row for row in rows if not only or row.set in only]
    found = predictions(chosen, processes, progress)
    return table(chosen, [(one.value, one.low, one.high) if one else None for one in found])
