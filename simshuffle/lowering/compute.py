"""How long computing takes, batch by batch, how much any duration varies, and slow requests."""

from __future__ import annotations

import numpy as np

from simshuffle.plan.epochs import Reads
from simshuffle.scenario.model import StepTimes
from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.rng import lognormal_factor


def compute_factor(
    rng: np.random.Generator, spread: float, reads: Reads, times: StepTimes
) -> Floats:
    """By what the passes over each batch take longer than ``times`` say: (iterations, M). Jitter,
    log-normal, and what its samples are to compute, which the fixed part does not feel."""
    jitter = lognormal_factor(rng, spread, reads.samples.shape)
    if reads.work is None:
        return jitter
    growing = times.per_sample * reads.samples
    share = np.divide(
        growing, growing + times.fixed_seconds, out=np.zeros_like(jitter), where=growing > 0
    )
    factor: Floats = jitter * (1.0 + (reads.work - 1.0) * share)
    return factor


def by_rank(seconds: Floats) -> list[list[float]]:
    """A list for each rank, one number for each of its batches, of (iterations, M) seconds."""
    lists: list[list[float]] = seconds.T.tolist()
    return lists


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

    A batch's requests wait in a line. Each of its threads takes the next one when it is done with
    its last (list scheduling): a request takes a log-normal time, and what it brought is decoded.

    Args:
        requests: of every batch.
        threads: of a batch's worker.
        latency: mean seconds of a request.
        spread: standard deviation of the same over its mean.
        decode: seconds that the thread then decodes.
        rng: which times.
        retries: share of all tries that fail, and s after which each of those is tried again; every
            try takes a time of its own.
    """
    count = requests.ravel()
    most = int(count.max(initial=0))
    out = np.zeros(len(count))
    step = max(AT_ONCE // max(most, 1), 1)
    for start in range(0, len(count), step):
        part = count[start : start + step]
        seconds = latency * lognormal_factor(rng, spread, (most, len(part))) + decode
        if retries[0] > 0:
            seconds += _failed(seconds.shape, latency, spread, rng, *retries)
        seconds[np.arange(most)[:, None] >= part] = 0.0
        busy_until, batch = seconds[:threads], np.arange(len(part))
        for following in seconds[threads:]:
            busy_until[busy_until.argmin(axis=0), batch] += following
        out[start : start + step] = busy_until.max(axis=0, initial=0.0)
    return out.reshape(requests.shape)


def _failed(
    shape: tuple[int, ...],
    latency: float,
    spread: float,
    rng: np.random.Generator,
    share: float,
    wait: float,
) -> Floats:
    """Seconds of the tries that fail, and of the waiting after each; see `slowest_thread`."""
    out = np.zeros(shape)
    left = rng.random(shape) < share
    while (count := int(np.count_nonzero(left))) > 0:
        out[left] += latency * lognormal_factor(rng, spread, (count,)) + wait
        left[left] = rng.random(count) < share
    return out
