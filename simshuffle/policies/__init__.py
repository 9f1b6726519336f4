"""Data-loading policies compared: the eight of the NoPFS study, with its performance model."""

from __future__ import annotations

from simshuffle.policies.model import Epoch, Outcome, compare
from simshuffle.policies.plan import POLICIES
from simshuffle.policies.study import Study, load
from simshuffle.policies.system import Case, Servers, StorageClass, System
from simshuffle.policies.validation import predicted

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
