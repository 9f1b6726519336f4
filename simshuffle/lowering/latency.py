"""How late a batch is when every request for its files takes a time of its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simshuffle.lowering.compute import lognormal_factor

Floats = NDArray[np.float64]
AT_ONCE = 1 << 22  # latencies in memory


def slowest_thread(
    requests: NDArray[np.int64],
    threads: int,
    latency: float,
    spread: float,
    decode: float,
    rng: np.random.Generator,
) -> Floats:
    """Seconds until the last request of every batch is answered, in the shape of ``requests``.

    A batch's requests wait in a line. Each of its threads takes the next one when it is done with
    its last (list scheduling): a request takes a log-normal time, and what it brought is decoded.

    Args:
        requests: of every batch.
        threads: of a batch's worker.
        latency: mean seconds of a request.
        spread: standard deviation of the same over its mean.
        decode: seconds that the thread then decodes.
        rng: which times.
    """
    count = requests.ravel()
    most = int(count.max(initial=0))
    out = np.zeros(len(count))
    step = max(AT_ONCE // max(most, 1), 1)
    for start in range(0, len(count), step):
        part = count[start : start + step]
        seconds = latency * lognormal_factor(rng, spread, (most, len(part))) + decode
        seconds[np.arange(most)[:, None] >= part] = 0.0
        busy_until, batch = seconds[:threads], np.arange(len(part))
        for following in seconds[threads:]:
            busy_until[busy_until.argmin(axis=0), batch] += following
        out[start : start + step] = busy_until.max(axis=0, initial=0.0)
    return out.reshape(requests.shape)
