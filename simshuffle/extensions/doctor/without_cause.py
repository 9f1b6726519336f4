"""Hold a loop without one possible cause of its slowness."""

from __future__ import annotations

from dataclasses import dataclass

from simshuffle.extensions.doctor.replay import LoopTimes

SPECIAL = 2.0
"""Weight of a special case: it comes first if it explains half of what the broad one
does.
"""


@dataclass(frozen=True)
class LoopWithoutCause:
    """The times of a loop without one possible cause of its slowness."""

    name: str  # of the cause
    times: LoopTimes  # without it
    sentence: str  # what the record shows of the cause
    # factor on the seconds of the cause that decides which cause is named first: `SPECIAL` for a
    # special case
    weight: float = 1.0
