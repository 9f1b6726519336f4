"""Data-loading policies compared: the eight of the NoPFS study, with its performance model."""

from __future__ import annotations

from simshuffle.studies.policies.cases import Study, load
from simshuffle.studies.policies.model import Epoch, Outcome, compare
from simshuffle.studies.policies.plan import POLICIES
from simshuffle.studies.policies.system import Case, Servers, StorageClass, System
from simshuffle.studies.policies.validation import predicted

__all__ = [
    "POLICIES",
    "Case",
    "Epoch",
    "Outcome",
    "Servers",
    "StorageClass",
    "Study",
    "System",
    "compare",
    "load",
    "predicted",
]
