"""Parameters of a scenario from measurements: nccl-tests, OSU micro-benchmarks, IOR, mdtest, epoch
logs.

Readers make one tidy table (`rows`), laws fit it (`collectives`, `messages`, `storage`,
`training`), and `fragment` writes what a scenario includes. `docs/calibrate.md` has the formats,
the laws and how the intervals are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simshuffle.studies.calibrate.study import Calibration

__all__ = ["calibrate"]


def calibrate(files: str | Path | Sequence[str | Path], **options: Any) -> Calibration:
    """Read measurement files and fit the parameters that they tell of.

    Args:
        files: one or several: nccl-tests, OSU micro-benchmarks, IOR, mdtest, epoch logs.
        **options: as of `simshuffle.studies.calibrate.verb.CalibrationOptions`.

    Raises:
        InputError: a file or an option is wrong, or there is nothing to fit.
    """
    # what computes; the package is imported where verbs are listed
    from simshuffle.studies.calibrate.study import STUDY, Calibration, request  # noqa: PLC0415
    from simshuffle.studies.calibrate.verb import CalibrationOptions  # noqa: PLC0415
    from simshuffle.study import engine  # noqa: PLC0415
    from simshuffle.study.options import filled  # noqa: PLC0415

    several = [files] if isinstance(files, str | Path) else list(files)
    wanted = filled(CalibrationOptions, {"files": several, **options}, "calibrate")
    result = engine.run(STUDY, request(wanted))
    assert isinstance(result, Calibration)  # noqa: S101 - what its study makes
    return result
