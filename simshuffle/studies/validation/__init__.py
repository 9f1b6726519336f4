"""Predicted against measured: every published number in ``validation/`` beside what the simulator
says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["validate"]


def validate(
    only: Sequence[str] | None = None, folder: Path | None = None, processes: int | None = None
) -> pd.DataFrame:
    """Predict the measured numbers of ``folder`` and put both side by side.

    Args:
        only, folder: as of `simshuffle.studies.validation.study.request`.
        processes: simulations at once; None for one on each core.

    Returns:
        One row for each measured number, with the columns of `table.SCHEMA`.

    Raises:
        InputError: a file or a row is not valid, or there is no such set.
    """
    # what computes; the package is imported where verbs are listed
    from simshuffle.studies.validation.study import STUDY, request  # noqa: PLC0415
    from simshuffle.study import engine  # noqa: PLC0415
    from simshuffle.study.executors import Local  # noqa: PLC0415
    from simshuffle.study.store import Disk  # noqa: PLC0415

    with TemporaryDirectory(ignore_cleanup_errors=True) as place:
        result = engine.run(STUDY, request(only, folder), Local(processes), Disk(Path(place)))
    return result.tables["validation"]
