"""The seconds that an exchange takes of the hosts of its sender and receiver, for a
sample of mean size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.workload import Dataset
from simshuffle.workload.exchange import MessageSchedule
from simshuffle.workload.exchange.schedule import Payload

# Bytes over seconds of pickling, measured on one core of an AMD EPYC as `machine probe` does.
IMAGE = 562_642 / 410e-6
"""Bytes/s of a decoded Pillow image, which is taken apart first. A bare array of 4 to
64 MB has 2.3e9.
"""
SMALL, LARGE = 11e9, 2.3e9
"""Bytes/s of a file's bytes, below and from `MAPPED` on: 104 kB took 7 to 9 us, 60 MB
26 to 34 ms, 1 MiB 50 us to 0.4 ms.
"""
MAPPED = 128 * 1024
"""Bytes from which on an allocation may get fresh pages, which are zeroed at their
first use (M_MMAP_THRESHOLD of glibc, mallopt(3)).
"""


@dataclass(frozen=True)
class HostWork:
    """Seconds of the training loop's thread for a sample of mean size, sent and
    received once; ``draw`` is for each rank of a permutation.
    """

    read: float  # of the sender, to open and read, beside the device's time
    zero_buffer: float  # of the receiver, to zero the buffer of one sample
    decode: float  # of the sender; 0 if files travel as they are
    pickle: float  # of the sender
    draw: float  # of every rank, to draw partners
    write: float  # of the receiver, to encode and write, beside the device's time
    remove: float  # of the sender, at the end of the epoch


def barrier_seconds(cluster: Cluster, world_size: int) -> float:
    """Seconds of a barrier: ceil(log2 M) message latencies (dissemination barrier:
    Hensgen, Finkel and Manber, Int. J. Parallel Program. 17, 1988).
    """
    return math.ceil(math.log2(world_size)) * cluster.message_passing.latency


def payload_nbytes(schedule: MessageSchedule, dataset: Dataset) -> float:
    """Mean bytes of a sample on the wire: decoded, or as it is stored."""
    return (
        dataset.decoded_nbytes if schedule.payload == "decoded" else dataset.stored.mean
    )


def host_work(schedule: MessageSchedule, dataset: Dataset) -> HostWork:
    """Return the seconds of host work for a sample of mean size.

    They are the values of the schedule, else the defaults that follow from data set and
    payload. Where files travel as they are, decoding is 0 whatever the schedule says,
    and so is writing by default.
    """
    decoded = schedule.payload == "decoded"
    decode = dataset.decode_seconds if schedule.decode is None else schedule.decode
    pickle = pickling_seconds(schedule.payload, payload_nbytes(schedule, dataset))
    write = dataset.encode_seconds if decoded else 0.0
    return HostWork(
        read=schedule.read,
        zero_buffer=schedule.zero_buffer,
        decode=decode if decoded else 0.0,
        pickle=pickle if schedule.pickle is None else schedule.pickle,
        draw=schedule.draw,
        write=write if schedule.write is None else schedule.write,
        remove=schedule.remove,
    )


def pickling_seconds(payload: Payload, nbytes: float) -> float:
    """Seconds to pickle a sample of ``nbytes`` as it is sent: an image, or the bytes of
    a file.
    """
    if payload == "decoded":
        return nbytes / IMAGE
    return nbytes / (SMALL if nbytes < MAPPED else LARGE)
