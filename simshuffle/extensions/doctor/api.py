"""Diagnose a recorded training from Python."""

from __future__ import annotations

from pathlib import Path

from simshuffle.extensions.doctor.diagnosis import Diagnosis
from simshuffle.extensions.doctor.examined import examine


def diagnose(record: str | Path) -> Diagnosis:
    """Return what a recorded training loses time with, and what helps.

    Args:
        record: a record, a trace, or a folder of ``simshuffle doctor``.

    Raises:
        InputError: ``record`` is none of them, or has no loop.
    """
    return examine(Path(record)).diagnosis
