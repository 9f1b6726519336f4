"""The studies: one package for each verb that simulates, trains or measures."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.results.folders import meta_of
from simshuffle.study import engine
from simshuffle.study.study import Result, Study

KINDS = {
    "simulation": "simshuffle.studies.simulation.study",
    "simulation_over_seeds": "simshuffle.studies.simulation.seeds",
    "sweep": "simshuffle.studies.simulation.sweep",
    "ablation": "simshuffle.studies.ablation.study",
    "congestion": "simshuffle.studies.congestion.study",
    "calibration": "simshuffle.studies.calibrate.study",
    "policies": "simshuffle.studies.policies.study",
    "loader": "simshuffle.studies.loader.study",
    "hiding": "simshuffle.studies.hidden_fraction.study",
    "oracle": "simshuffle.studies.oracle.study",
    "training": "simshuffle.studies.training.study",
    "data_optimised": "simshuffle.studies.filtering.study",
    "validation": "simshuffle.studies.validation.study",
    "testbed": "simshuffle.studies.testbed.study",
    "time_to_accuracy": "simshuffle.studies.time_to_accuracy.study",
}
"""Every kind of result folder, and the module whose ``STUDY`` it is."""


def study_of(kind: str) -> Study[Any]:
    """The study that writes result folders of that kind. Its module is imported now.

    Raises:
        KeyError: there is none.
    """
    study: Study[Any] = importlib.import_module(KINDS[kind]).STUDY
    return study


def read_folder(folder: Path) -> Result:
    """The result in ``folder``, of whatever study.

    Raises:
        InputError: it holds none, or a damaged one.
    """
    kind = meta_of(folder).get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        rule = "must be a result folder, with a meta.json that names its kind"
        remedy = "Give a folder that simshuffle wrote."
        raise InputError(Problem("", rule, repr(kind) if kind else "none", remedy), str(folder))
    return engine.read(study_of(kind), folder)
