"""Declare the verbs, functions and folders that this extension adds to simshuffle."""

from __future__ import annotations

from simshuffle.study.extension import Extension

EXTENSION = Extension(
    commands={
        "simshuffle.extensions.doctor.command": "",
        "simshuffle.extensions.doctor.blame.command": "study",
    },
    functions={
        "diagnose": "simshuffle.extensions.doctor.api:diagnose",
        "train.record": "simshuffle.extensions.doctor.recording:record",
        "train.Recording": "simshuffle.extensions.doctor.recording:Recording",
    },
    folders={"doctor": "It is a recorded training: simshuffle doctor FOLDER shows it."},
    measured={
        "a folder of simshuffle doctor": "simshuffle.extensions.doctor.measured:read_training"
    },
)
