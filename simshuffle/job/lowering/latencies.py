"""How long the threads of a batch wait for their requests, where latencies differ."""

from __future__ import annotations

import numpy as np

from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.rng import lognormal_factor

AT_ONCE = 1 << 22  # latencies in memory


def slowest_thread(
    requests: Ints64,
    threads: int,
    latency: float,
    spread: float,
    decode: float,
    rng: np.random.Generator,
    retries: tuple[float, float] = (0.0, 0.0),
) -> Floats:
    """Seconds until the last request of every batch is answered, in the shape of ``requests``.

    Each of a batch's threads takes the next request when it is done with its last (list
    scheduling). A request takes a log-normal time of mean ``latency`` s and standard deviation
    ``spread`` times that, and what it brought is decoded in ``decode`` s. ``retries`` are the share
    of all tries that fail, and s after which each is tried again, in a time of its own.
    """
    count = requests.ravel()
    most = int(count.max(initial=0))
    out = np.zeros(len(count))
    step, (share, wait) = max(AT_ONCE // max(most, 1), 1), retries
    for start in range(0, len(count), step):
        part = count[start : start + step]
        seconds = latency * lognormal_factor(rng, spread, (most, len(part))) + decode
        if share > 0:
            lost, failed = np.zeros_like(seconds), rng.random(seconds.shape) < share
            while (tries := int(np.count_nonzero(failed))) > 0:
                lost[failed] += latency * lognormal_factor(rng, spread, (tries,)) + wait
                failed[failed] = rng.random(tries) < share
            seconds += lost
        seconds[np.arange(most)[:, None] >= part] = 0.0
        busy_until, batch = seconds[:threads], np.arange(len(part))
        for following in seconds[threads:]:
            busy_until[busy_until.argmin(axis=0), batch] += following
        out[start : start + step] = busy_until.max(axis=0, initial=0.0)
    return out.reshape(requests.shape)
