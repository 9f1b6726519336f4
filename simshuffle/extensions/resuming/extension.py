"""The registration of this extension: the verb audit and its result folders."""

from __future__ import annotations

from simshuffle.study.extension import Extension

EXTENSION = Extension(
    commands={"simshuffle.extensions.resuming.command": "study"},
    folders={"audit": "It is an audit of a loader: its tables are CSV files."},
)
