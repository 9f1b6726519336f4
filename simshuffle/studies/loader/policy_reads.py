"""What policies are compared on, a system of equal workers and a training set; who reads what when,
as one worker sees it, on a set that may be thinned out; and how long it takes to fetch from where.

Source: N. Dryden, R. Böhringer, T. Ben-Nun, T. Hoefler, "Clairvoyant Prefetching for Distributed
Machine Learning I/O", SC'21, doi:10.1145/3458817.3476181, Sec. 4 and Table 2. Its symbols stand in
brackets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simshuffle.errors import InputError, Problem
from simshuffle.job.scenario.workload import SampleSize
from simshuffle.spec.arrays import Floats, Ints32, Ints64
from simshuffle.spec.interpolation import BandwidthByCount
from simshuffle.spec.record import Bandwidth, Count, Frequency, NBytes, Seconds, Sourced
from simshuffle.studies.loader.tables import OWN_MEMORY, OWN_SSD, PFS, REMOTE_MEMORY, REMOTE_SSD

MOST_WORKERS = 200_000
MOST_EPOCHS = 100


class StorageClass(Sourced):
    """Storage of a worker [class j]: room [d_j], and what all its threads [p_j] together read
    [r_j(p_j)] and write [w_j(p_j)]."""

    capacity: NBytes
    read_bandwidth: Bandwidth
    write_bandwidth: Bandwidth
    threads: Annotated[int, Field(ge=1, le=4096)]


class Servers(Sourced):
    """The parallel file system.

    ``read_bandwidth`` [t(gamma)] is what all readers together get, over their number. The rest is
    not in the study: one reader gets at most ``client_bandwidth``; all servers open ``open_rate``
    files a second, one for each sample; each takes ``latency``.
    """

    read_bandwidth: BandwidthByCount
    client_bandwidth: Bandwidth | None = None
    open_rate: Frequency | None = None
    latency: Seconds = 0.0


class System(Sourced):
    """``workers`` [N] equal workers, one on a host.

    Each trains ``compute_bandwidth`` [c] and prepares ``preprocess_bandwidth`` [beta] bytes of
    stored samples a second, and exchanges ``network_bandwidth`` [b_c] with the others. The staging
    buffer [class 0] holds samples ready for training, memory [class 1] and SSD [class 2] keep
    samples from epoch to epoch; there may be no SSD.
    """

    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)]
    compute_bandwidth: Bandwidth
    preprocess_bandwidth: Bandwidth
    network_bandwidth: Bandwidth
    staging_buffer: StorageClass
    memory: StorageClass
    ssd: StorageClass | None = None
    parallel_file_system: Servers

    @property
    def storage(self) -> float:
        """Bytes that a worker can keep from epoch to epoch [D]."""
        return self.memory.capacity + (self.ssd.capacity if self.ssd is not None else 0.0)


class PolicyCase(Sourced):
    """A training set and how it is read: samples [F] and their sizes [s_k], batch of a worker [b],
    epochs [E]; other ``workers`` [N]."""

    num_samples: Count
    sample_size: SampleSize
    local_batch_size: Count
    epochs: Annotated[int, Field(ge=1, le=MOST_EPOCHS)]
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)] | None = None
    description: str = ""

    @property
    def nbytes(self) -> float:
        """Size of the whole set (bytes) [S]."""
        return self.num_samples * self.sample_size.mean

    def on(self, system: System) -> System:
        """``system`` with this case's number of workers."""
        workers = system.workers if self.workers is None else self.workers
        return system.model_copy(update={"workers": workers})


Codes = NDArray[np.int8]
"""Sources, see `simshuffle.studies.loader.tables.SOURCES`."""

BLOCKS = 1 << 17
"""Blocks that a data set is thinned out to, if it has more samples; a worker has at least
`OWN_BLOCKS` of them in an epoch."""
OWN_BLOCKS = 1024
MOST_READS = 1 << 23
"""Blocks times epochs, unless there are more workers; keeps the table of readers at 32 MiB."""


@dataclass(frozen=True)
class Accesses:
    """The reads of all epochs. Samples that travel together are one block; all workers read equally
    many blocks in an epoch."""

    reader: Ints32  # (epochs, blocks) which worker reads a block
    nbytes: Floats  # (blocks,) bytes; the mean is that of the data set, so that its size is exact
    samples: float  # samples of a block (a number that need not be whole)
    workers: int  # number of workers

    @property
    def epochs(self) -> int:
        """Number of epochs."""
        return len(self.reader)

    @property
    def own(self) -> int:
        """Blocks that a worker reads in an epoch."""
        return len(self.nbytes) // self.workers

    def stream(self, epoch: int) -> Ints64:
        """Numbers of the blocks that worker 0 reads in an epoch, in order: (own,).

        Blocks have no order of their own, so that their numbers may stand for one; what matters is
        which of them come, and from where.
        """
        return np.flatnonzero(self.reader[epoch] == 0)

    def rank_in_first_epoch(self) -> Ints64:
        """(blocks,) how many blocks the reader of a block has read before it in the first epoch."""
        order = np.argsort(self.reader[0], kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order)) % self.own
        return rank

    def fit(self, capacity: float) -> int:
        """Blocks of mean size that ``capacity`` bytes hold."""
        return int(min(capacity / float(self.nbytes.mean()) * (1 + 1e-12), len(self.nbytes)))


def draw(case: PolicyCase, workers: int, seed: int) -> Accesses:
    """The accesses of a case on ``workers`` workers: in each epoch every sample is read once, by a
    random worker.

    Sizes are log-normal (`SampleSize`); the mean of m of them has a standard deviation smaller by
    the root of m.

    Raises:
        InputError: there are fewer samples than workers.
    """
    if case.num_samples < workers:
        rule = f"every one of the {workers} workers needs a sample"
        remedy = "Use fewer workers or a larger data set."
        raise InputError(Problem("num_samples", rule, str(case.num_samples), remedy))
    most = max(MOST_READS // case.epochs, workers)
    blocks = int(min(case.num_samples, max(BLOCKS, OWN_BLOCKS * workers), most))
    blocks -= blocks % workers
    samples = case.num_samples / blocks
    rng = np.random.default_rng([seed, 0])
    spread = case.sample_size.spread / samples**0.5
    sizes = case.sample_size.model_copy(update={"std": spread}).draw(rng, blocks)
    sizes *= case.nbytes / float(sizes.sum())
    turns = (np.arange(blocks) % workers).astype(np.int32)
    reader = np.stack([rng.permutation(turns) for _ in range(case.epochs)])
    return Accesses(reader, sizes, samples, workers)


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
    if servers.open_rate is None:
        return seconds
    return np.maximum(seconds, samples * readers / servers.open_rate)


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
