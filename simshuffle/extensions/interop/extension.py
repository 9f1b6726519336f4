"""Verbs that the extension interop adds to simshuffle."""

from __future__ import annotations

from simshuffle.study.extension import Extension

EXTENSION = Extension(
    commands={
        "simshuffle.extensions.interop.command": "machine",
        "simshuffle.extensions.interop.import_command": "machine",
        "simshuffle.extensions.interop.exports.command": "results",
    }
)
