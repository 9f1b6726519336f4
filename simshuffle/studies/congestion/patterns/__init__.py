"""Exchange patterns as explicit flows: who sends how much to whom, in which order, over which
links. No host work, only the network.

Every pattern moves the same bytes: those of the samples that each rank sends in one epoch.
"""

from __future__ import annotations

from simshuffle.studies.congestion.patterns.fabric import Fabric
from simshuffle.studies.congestion.patterns.partners import distances, partners
from simshuffle.studies.congestion.patterns.traffic import Traffic, exchange, first_samples
from simshuffle.studies.congestion.patterns.variant import (
    PATTERNS,
    REPEATED,
    Variant,
    needs_power_of_two,
    variants,
)

__all__ = [
    "PATTERNS",
    "REPEATED",
    "Fabric",
    "Traffic",
    "Variant",
    "distances",
    "exchange",
    "first_samples",
    "needs_power_of_two",
    "partners",
    "variants",
]
