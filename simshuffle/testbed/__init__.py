"""A measured truth that anyone can repeat: a small network of Linux network namespaces, measured
and simulated."""

from __future__ import annotations

from simshuffle.testbed.predict import predicted

__all__ = ["predicted"]
