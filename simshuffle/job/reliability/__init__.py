"""The failures of hosts: how often they come, and how long they last."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.job.reliability.faults import Faults
from simshuffle.job.reliability.processes import (
    Bursty,
    Exponential,
    Lemons,
    Repair,
    Trace,
)

Failures = Annotated[Exponential | Bursty | Trace, Field(discriminator="kind")]
"""A law by which hosts fail; ``kind`` names it."""

__all__ = ["Bursty", "Exponential", "Failures", "Faults", "Lemons", "Repair", "Trace"]
