"""A measured truth that anyone can repeat: a small network of Linux network namespaces, measured
and simulated."""

from __future__ import annotations

from simshuffle.studies.testbed.predict import predicted

__all__ = ["predicted"]
