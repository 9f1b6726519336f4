"""How often hosts fail, for how long, and what that costs a training: no clock, no network."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.job.reliability.faults import Faults
from simshuffle.job.reliability.processes import Bursty, Exponential, Lemons, Repair, Trace

Failures = Annotated[Exponential | Bursty | Trace, Field(discriminator="kind")]
"""How hosts fail, by its kind."""

__all__ = ["Bursty", "Exponential", "Failures", "Faults", "Lemons", "Repair", "Trace"]
