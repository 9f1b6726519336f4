"""Predicted against measured: every published number in ``validation/`` beside what the simulator
says."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from simshuffle.studies.validation.study import STUDY, request
from simshuffle.study import engine
from simshuffle.study.executors import Local
from simshuffle.study.store import Disk

__all__ = ["validate"]


def validate(
    only: Sequence[str] | None = None,
    folder: Path | None = None,
    processes: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> pd.DataFrame:
    """Predict the measured numbers of ``folder`` and put both side by side.

    Args:
        only, folder: as of `simshuffle.studies.validation.study.request`.
        processes: simulations at once; None for one on each core.
        progress: called with the share of the simulations that are done.

    Returns:
        One row for each measured number, with the columns of `table.SCHEMA`.

    Raises:
        InputError: a file or a row is not valid, or there is no such set.
    """
    tell = (lambda standing: progress(standing.share)) if progress else None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        executor, store = Local(processes), Disk(Path(place))
        result = engine.run(STUDY, request(only, folder), executor, store, tell)
    return result.tables["validation"]
