"""Calibrations without progress and stores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simshuffle.extensions.calibration.calibrate.study import STUDY, Calibration, request
from simshuffle.extensions.calibration.calibrate.verb import CalibrationOptions
from simshuffle.study import engine


def calibrate(files: str | Path | Sequence[str | Path], **options: Any) -> Calibration:
    """What the files tell, with options as of `CalibrationOptions`."""
    several = [files] if isinstance(files, str | Path) else files
    wanted = CalibrationOptions(files=tuple(map(Path, several)), **options)
    result = engine.run(STUDY, request(wanted))
    assert isinstance(result, Calibration)
    return result
