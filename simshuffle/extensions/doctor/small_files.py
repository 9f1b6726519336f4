"""Find what many small files of a sample cost: opening each, and reading its head."""

from __future__ import annotations

import numpy as np

from simshuffle.extensions.doctor.loop import RecordedLoop
from simshuffle.spec.arrays import Floats

MANY = 2.0
"""Files of a sample from which they are many (chosen: an image and its label are one)."""
SMALL_NBYTES = 256e3
"""Mean bytes of a file below which what a file costs hardly depends on them (chosen: a
disk or store moves them in a few ms, and a call of numpy.load takes 0.1 ms).
"""


def small_file_seconds(loop: RecordedLoop) -> Floats | None:
    """Return the s of each batch, (B, M), that calls which open or parse many small files
    take beyond the opens and reads in them; None if a sample has few files, or large
    ones.

    The calls of some fetches were timed. They count as often as the opens of all do, and
    a batch has a share of them as of the code of samples.
    """
    opens = float(loop.sum_of("open", "count").sum())
    samples = float(loop.sum_of("fetch", "count").sum())
    calls = [call for call in loop.known_calls if call["anew"] < call["calls"] / 2]
    num_calls = sum(call["calls"] for call in calls)
    is_small = (loop.mean_file_nbytes or np.inf) < SMALL_NBYTES
    if not num_calls or not is_small or opens < MANY * samples:
        return None

    code_s = loop.sum_of("transform")
    timed_s = sum(call["seconds"] for call in calls)
    total_s = timed_s * max(opens / num_calls, 1.0)
    extra_s = total_s - float((loop.sum_of("open") + loop.sum_of("read")).sum())
    share = min(max(extra_s / max(float(code_s.sum()), 1e-300), 0.0), 1.0)
    return np.asarray(share * code_s)
