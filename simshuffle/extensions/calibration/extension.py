"""The commands and readers that this extension adds to simshuffle."""

from __future__ import annotations

from simshuffle.study.extension import Extension

EXTENSION = Extension(
    commands={"simshuffle.extensions.calibration.command": "machine"},
    measured={
        "an epoch log": "simshuffle.extensions.calibration.measured:read_training"
    },
)
