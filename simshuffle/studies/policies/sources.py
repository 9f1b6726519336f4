"""The sources of a sample, and how long a worker takes to fetch from each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simshuffle.studies.policies.accesses import Floats
from simshuffle.studies.policies.system import StorageClass, System

SOURCES = ("pfs", "own_memory", "own_ssd", "remote_memory", "remote_ssd", "staging_buffer")
PFS, OWN_MEMORY, OWN_SSD, REMOTE_MEMORY, REMOTE_SSD, READY = range(len(SOURCES))
"""Codes of the sources; READY: the sample lies in the staging buffer before it is needed, as
nowhere but in the lower bound."""

Codes = NDArray[np.int8]


def pfs_seconds(system: System, nbytes: Floats, samples: float, readers: float) -> Floats:
    """Seconds for blocks of ``nbytes`` bytes and ``samples`` samples each from the file system,
    while ``readers`` workers read.

    The study (Sec. 4, case 1): s / (t(gamma) / gamma). Here also: not faster than one client, nor
    than 1/gamma of the opened files.
    """
    servers = system.parallel_file_system
    rate = servers.read_bandwidth(readers) / readers
    if servers.client_bandwidth is not None:
        rate = min(rate, servers.client_bandwidth)
    seconds = nbytes / rate
    return (
        seconds
        if servers.open_rate is None
        else np.maximum(seconds, samples * readers / servers.open_rate)
    )


def class_bandwidth(system: System, storage: StorageClass) -> float:
    """Bytes/s that the threads of the staging buffer get from storage class j.

    The study gives each thread r_j(p_j) / p_j; p_0 of them get p_0 times that. Here, they never get
    more than r_j(p_j).
    """
    return storage.read_bandwidth * min(1.0, system.staging_buffer.threads / storage.threads)


def bandwidths(system: System, readers: float) -> dict[int, float]:
    """Bytes/s of a worker from each source for large samples; ``readers`` workers read from the
    file system. No SSD: 0.

    The study (Sec. 4, case 2): s / min(b_c, r_j(p_j) / p_j) from another worker; (case 3) s /
    (r_j(p_j) / p_j) from its own class.
    """
    memory = class_bandwidth(system, system.memory)
    ssd = class_bandwidth(system, system.ssd) if system.ssd is not None else 0.0
    network = system.network_bandwidth
    one = np.ones(1)
    return {
        PFS: 1.0 / float(pfs_seconds(system, one, 0.0, readers)[0]),
        OWN_MEMORY: memory,
        OWN_SSD: ssd,
        REMOTE_MEMORY: min(network, memory),
        REMOTE_SSD: min(network, ssd),
    }


def fetch_seconds(
    system: System, codes: Codes, nbytes: Floats, samples: float
) -> tuple[Floats, float]:
    """Seconds (n,) to fetch blocks from their sources, and the number of workers that read from the
    file system meanwhile.

    All workers do the same, so at a moment as many others read from the file system as is their
    time's share of it: gamma = 1 + (N - 1) T_pfs(gamma) / (T_pfs(gamma) + T_other). The right side
    falls slower than gamma rises wherever t(gamma) does not fall, so there is one solution;
    bisection finds it. With every sample from the file system it is N, as in the study (gamma - 1
    others read too); the study does not say what it takes for other shares.
    """
    seconds = np.zeros(len(codes))
    for code, rate in bandwidths(system, 1.0).items():
        if code != PFS and (chosen := codes == code).any():
            seconds[chosen] = nbytes[chosen] / rate
    from_pfs = codes == PFS
    if not from_pfs.any():
        return seconds, 0.0
    other, sizes = float(seconds.sum()), nbytes[from_pfs]

    def excess(readers: float) -> float:
        here = float(pfs_seconds(system, sizes, samples, readers).sum())
        return 1.0 + (system.workers - 1) * here / (here + other) - readers

    low, high = 1.0, float(system.workers)
    if other == 0 or excess(high) >= 0:
        low = high
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    seconds[from_pfs] = pfs_seconds(system, sizes, samples, high)
    return seconds, high


def write_seconds(system: System, nbytes: Floats) -> Floats:
    """Seconds to prepare blocks and write them into the staging buffer: max(s / beta, s / w_0(p_0))
    of a worker (the study, Sec. 4).

    The study divides w_0(p_0) by p_0, being that of one thread, and what all threads take by p_0;
    the quotient is the same. Its beta is the worker's, so that more threads do not prepare more.
    """
    return nbytes / min(system.preprocess_bandwidth, system.staging_buffer.write_bandwidth)
