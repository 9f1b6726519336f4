"""What the policies are compared on: a system of equal workers, and a training set; the notation is
that of the NoPFS study.

Source: N. Dryden, R. Böhringer, T. Ben-Nun, T. Hoefler, "Clairvoyant Prefetching for Distributed
Machine Learning I/O", SC'21, doi:10.1145/3458817.3476181, Sec. 4 and Table 2. Its symbols stand in
brackets.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.scenario.workload import SampleSize
from simshuffle.spec.interpolation import BandwidthByCount
from simshuffle.spec.record import (
    Bandwidth,
    Count,
    Frequency,
    NBytes,
    Seconds,
    Sourced,
)

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
    def ssd_capacity(self) -> float:
        """Bytes of SSD of a worker; 0 where there is none."""
        return self.ssd.capacity if self.ssd is not None else 0.0

    @property
    def storage(self) -> float:
        """Bytes that a worker can keep from epoch to epoch [D]."""
        return self.memory.capacity + self.ssd_capacity


class Case(Sourced):
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
        return (
            system if self.workers is None else system.model_copy(update={"workers": self.workers})
        )
