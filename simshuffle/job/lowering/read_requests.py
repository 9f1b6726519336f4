"""Add up what batches read: requests and bytes of each source, and what a cache tier
stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from simshuffle.job.plan.epochs import Reads
from simshuffle.job.scenario.workload import Dataset, Workload
from simshuffle.spec.arrays import Floats


@dataclass(frozen=True)
class ReadRequests:
    """Samples and bytes that batches read from a file system or an SSD."""

    samples: Floats  # (iterations, M) samples, or pieces that a loader fetches
    nbytes: Floats  # (iterations, M) their bytes
    per_file: int  # samples, or pieces, in a file
    per_request: float  # samples, or pieces, that a request reads

    @property
    def requests(self) -> Floats:
        """Requests of every batch, (iterations, M); fractions are not rounded."""
        return self.samples / self.per_request

    def in_flight(self, threads: int) -> Floats:
        """Return the requests at once of a worker with ``threads`` threads,
        (iterations, M): from 1, for a batch without requests too, to ``threads``.
        """
        return np.minimum(threads, np.maximum(self.requests, 1.0))


@dataclass(frozen=True)
class ReadSums:
    """Bytes, requests and file opens of all ranks in a pass."""

    # bytes by what they are read from: 'pfs', 'ssd', 'memory', 'object_store', each there (0.0)
    nbytes: Mapping[str, float]
    # requests to 'pfs', 'ssd', 'object_store', each there (0); those of a batch are rounded up
    requests: Mapping[str, int]
    file_opens: float  # by the PFS, perhaps a fraction; 0 for another source


def read_sums(reads: Reads, workload: Workload) -> ReadSums:
    """Add up what all ranks read in a pass, without the hits of a cache tier.

    Hits of the node's cache count as read from memory, or from where a loader's fetched
    pieces are kept ('ssd' or 'memory').
    """
    hit_source = "memory" if reads.fetches is None else reads.fetches.cached_in
    return sum_reads(
        storage_requests(reads, workload.dataset), workload.source, reads, hit_source
    )


def storage_requests(reads: Reads, dataset: Dataset) -> ReadRequests:
    """Return the reads from the source of the samples: all that is neither in the
    node's cache nor in the cache tier.

    Where a loader fetches pieces, ``samples`` are pieces: each is a request and a file.
    """
    if reads.fetches is not None:
        requests = reads.fetches.requests.astype(float)
        return ReadRequests(requests, reads.fetches.nbytes.astype(float), 1, 1)
    samples = (reads.samples - reads.hit_samples).astype(float)
    nbytes = reads.nbytes - reads.hit_nbytes
    if reads.tier is not None:
        samples = samples - reads.tier.hit_samples
        # without what rounding leaves
        nbytes = np.where(samples > 0, nbytes - reads.tier.hit_nbytes, 0.0)
    return ReadRequests(samples, nbytes, dataset.samples_per_file, dataset.read_at_once)


def split_by_tier(
    missed: ReadRequests, reads: Reads
) -> list[tuple[ReadRequests, bool]]:
    """Split reads into the part that is written into the cache tier and the part that
    is not.

    Returns:
        Each part with whether it is written into the tier, the written part first. A
        part without samples is left out if the other has all.
    """
    if reads.tier is None or not reads.tier.stored_samples.any():
        return [(missed, False)]
    samples = reads.tier.stored_samples.astype(float)
    if (samples == missed.samples).all():
        return [(missed, True)]
    nbytes = reads.tier.stored_nbytes
    remaining_samples = missed.samples - samples
    remaining_nbytes = np.where(remaining_samples > 0, missed.nbytes - nbytes, 0.0)
    stored_part = replace(missed, samples=samples, nbytes=nbytes), True
    return [
        stored_part,
        (replace(missed, samples=remaining_samples, nbytes=remaining_nbytes), False),
    ]


def sum_reads(
    missed: ReadRequests, source: str, reads: Reads, hit_source: str
) -> ReadSums:
    """Add up what is read in a pass: ``missed`` from the ``source``, hits of the node's
    cache from ``hit_source``.

    Hits of a cache tier are left out, and so is ``missed`` if the source is 'memory'.
    Each hit on an SSD is a request.
    """
    nbytes = {"pfs": 0.0, "ssd": 0.0, "memory": 0.0, "object_store": 0.0}
    requests = {"pfs": 0, "ssd": 0, "object_store": 0}
    opens = float(missed.samples.sum()) / missed.per_file if source == "pfs" else 0.0
    if source != "memory":
        nbytes[source] += float(missed.nbytes.sum())
        requests[source] += int(np.ceil(missed.requests).sum())
    nbytes[hit_source] += float(reads.hit_nbytes.sum())
    if hit_source == "ssd":
        requests["ssd"] += int(reads.hit_samples.sum())
    return ReadSums(nbytes, requests, opens)
