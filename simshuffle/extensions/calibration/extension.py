"""The commands that this extension adds to simshuffle."""

from __future__ import annotations

from simshuffle.study.extension import Extension

EXTENSION = Extension(commands={"simshuffle.extensions.calibration.command": "machine"})
