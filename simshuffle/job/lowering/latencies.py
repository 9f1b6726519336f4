"""Draw how long the threads of a batch wait for their requests, where latencies differ."""

from __future__ import annotations

import numpy as np

from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.rng import lognormal_factor

MAX_DRAWS = 1 << 22  # latencies in memory


def slowest_thread(
    requests: Ints64,
    threads: int,
    *,
    latency: float,
    spread: float,
    decode: float,
    rng: np.random.Generator,
    retries: tuple[float, float] = (0.0, 0.0),
) -> Floats:
    """Return when each batch's last request is answered and decoded (s).

    The array is shaped as ``requests``; a batch without requests has 0. Each of a
    batch's threads takes the next request when its last one is done (list scheduling).
    A request takes a log-normal time of mean ``latency`` s and standard deviation
    ``spread`` times that; decoding its answer takes ``decode`` s.

    Args:
        requests: requests of each batch, whole numbers, of any shape.
        threads: threads of each batch, at least 1.
        latency: mean s of a try.
        spread: standard deviation of latencies over their mean; 0 draws none.
        decode: s after the last try of each request.
        rng: draws latencies, then failures; as many for each batch as the largest has.
        retries: the share of all tries that fail, below 1, and the s to wait after a
            failed try. Each try takes a latency of its own; a retry may fail, too.
    """
    count = requests.ravel()
    max_requests = int(count.max(initial=0))
    out = np.zeros(len(count))
    batches_at_once = max(MAX_DRAWS // max(max_requests, 1), 1)
    (share, wait) = retries
    for start in range(0, len(count), batches_at_once):
        # (requests, batches) s of each request
        counts = count[start : start + batches_at_once]
        seconds = (
            latency * lognormal_factor(rng, spread, (max_requests, len(counts)))
            + decode
        )
        if share > 0:
            retry_seconds = np.zeros_like(seconds)
            failed = rng.random(seconds.shape) < share
            while (tries := int(np.count_nonzero(failed))) > 0:
                retry_seconds[failed] += (
                    latency * lognormal_factor(rng, spread, (tries,)) + wait
                )
                failed[failed] = rng.random(tries) < share
            seconds += retry_seconds
        # (requests, batches): a batch has no more requests than its count
        seconds[np.arange(max_requests)[:, None] >= counts] = 0.0
        busy_until = seconds[:threads]
        batch = np.arange(len(counts))
        for next_seconds in seconds[threads:]:
            busy_until[busy_until.argmin(axis=0), batch] += next_seconds
        out[start : start + batches_at_once] = busy_until.max(axis=0, initial=0.0)
    return out.reshape(requests.shape)
