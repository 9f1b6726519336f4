"""Workload: the data set, the model and how it is trained on one rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import model_validator

from simshuffle.errors import InputError, Problem
from simshuffle.fabric.allreduce import Allreduce
from simshuffle.job.scenario.checkpoint import Checkpoint
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.model import ModelProfile
from simshuffle.job.scenario.tokens import Tokens
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.spec.record import (
    Count,
    NBytes,
    NonNegative,
    PositiveNBytes,
    Seconds,
    Sourced,
    Spec,
)
from simshuffle.workload.exchange import Exchange, ShardsContext, Source
from simshuffle.workload.parallelism import AnyParallelism, Data

PHOTOGRAPH_SPREAD = 100e3 / 110e3
"""Standard deviation over mean of the sizes of ImageNet-1K's files (the catalog's
imagenet1k).
"""


@dataclass(frozen=True)
class StoredAs:
    """Properties of a sample that follow from its bytes in storage, where a data set
    leaves them out.
    """

    expansion: float  # decoded bytes for each
    # decode, encode: s of one core for each
    decode: float
    encode: float
    spread: float  # standard deviation of the sizes over their mean
    source: str  # where that is from


FORMATS = {
    "jpeg": StoredAs(
        562_642 / 110e3,
        1.0e-3 / 110e3,
        0.46e-3 / 110e3,
        PHOTOGRAPH_SPREAD,
        "as the JPEGs of imagenet1k in the catalog, in proportion to the bytes of a file",
    ),
    "raw": StoredAs(
        1.0,
        1 / 12.9e9,
        1 / 12.9e9,
        0.0,
        "all alike, and copied at the 12.9 GB/s of one EPYC core",
    ),
}
"""Defaults of a data set by its ``format``."""


class SampleSize(Spec):
    """Size of a sample in storage.

    Attributes:
        mean: of a sample in storage.
        std: standard deviation of the sizes, which are log-normal; '0 B' for samples
            that are all alike. If left out it follows from the format.
    """

    mean: PositiveNBytes
    std: NBytes | None = None

    @property
    def spread(self) -> float:
        """The standard deviation (bytes); that of photographs if ``std`` is None."""
        return PHOTOGRAPH_SPREAD * self.mean if self.std is None else self.std

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Sizes of ``count`` samples: (count,) bytes. Log-normal: s^2 = ln(1 +
        (std/mean)^2), mu = ln(mean) - s^2/2. Draws nothing if all are alike.
        """
        if self.spread == 0:
            return np.full(count, self.mean)
        variance = math.log1p((self.spread / self.mean) ** 2)
        return rng.lognormal(
            math.log(self.mean) - variance / 2, math.sqrt(variance), count
        )


class DecodedSize(Spec):
    """Mean size of a decoded sample; that of a single one is in proportion to its size
    in storage.

    Attributes:
        mean: of a decoded sample.
    """

    mean: PositiveNBytes


class Dataset(Sourced):
    """A training set. What is None follows from the mean size by ``format`` (see
    `FORMATS`); ask for it by `stored`, `decoded_nbytes`, `decode_seconds` and
    `encode_seconds`.

    With ``tokens`` samples are sequences of a language model: their size and the
    requests that each takes follow from how documents are packed, and they are in one
    file that is opened once.

    Attributes:
        name: of the data set.
        num_samples: N, samples.
        sample_size: of a sample in storage; required but with 'tokens', from which it
            follows.
        tokens: documents packed into sequences, which are the samples.
        format: what follows from the mean size where it is left out; 'jpeg' if left
            out, and 'raw' with 'tokens'.
        decoded_size: of a sample as it is exchanged decoded; if left out it follows
            from the format.
        decode, encode: of one core for a sample of mean size; if left out it follows
            from the
            format.
        samples_per_file: samples that share the opening of a file; with 'tokens' all,
            if left out.
        samples_per_request: samples that one request reads; at most 'samples_per_file'.
    """

    name: str
    num_samples: Count
    sample_size: SampleSize | None = None
    tokens: Tokens | None = None
    format: Literal["jpeg", "raw"] | None = None
    decoded_size: DecodedSize | None = None
    decode: Seconds | None = None
    encode: Seconds | None = None
    samples_per_file: Count = 1
    samples_per_request: Count = 1

    @model_validator(mode="before")
    @classmethod
    def _tokens_are_in_one_file(cls, values: Any) -> Any:
        """Return values in which all samples of tokens share a file, unless they say
        ``samples_per_file``.
        """
        if not isinstance(values, dict) or values.get("tokens") is None:
            return values
        return {"samples_per_file": values.get("num_samples"), **values}

    @model_validator(mode="after")
    def _sizes_fit(self) -> Dataset:
        """Refuse a data set with neither ``sample_size`` nor ``tokens``, or with both.

        Also refuse requests for more samples than a file or a range of it has.
        """
        if self.sample_size is None and self.tokens is None:
            raise InputError(
                Problem("sample_size", "is required", "", "Add it, or tokens.")
            )
        if self.sample_size is not None and self.tokens is not None:
            value = Problem(
                "sample_size", "follows from tokens", "given beside", "Leave it out."
            )
            raise InputError(value)
        if (
            self.tokens is not None
            and self.tokens.ranges > 1 < self.samples_per_request
        ):
            rule = "must be 1 where a sample is pieces of documents in random order"
            remedy = "Leave it out, or set tokens.shuffled: sequences."
            each = str(self.samples_per_request)
            raise InputError(Problem("samples_per_request", rule, each, remedy))
        if self.samples_per_request > self.samples_per_file:
            raise ValueError("samples_per_request must not exceed samples_per_file")
        return self

    @property
    def nbytes(self) -> float:
        """Expected size of the whole set (bytes)."""
        return self.num_samples * self.stored.mean

    @property
    def stored_as(self) -> StoredAs:
        """The facts of the storage format from which left-out values follow: of the
        ``format``, by default 'jpeg', and 'raw' where samples are stored as they are
        decoded.
        """
        return FORMATS[self.format or ("jpeg" if self.tokens is None else "raw")]

    @property
    def stored(self) -> SampleSize:
        """Mean and standard deviation of a sample in storage, both known."""
        size = self.sample_size
        if self.tokens is not None:
            mean, std = self.tokens.nbytes
            return SampleSize.model_construct(mean=mean, std=std)
        assert size is not None  # noqa: S101 - a data set has one of both
        if size.std is not None:
            return size
        spread = self.stored_as.spread * size.mean
        return SampleSize.model_construct(mean=size.mean, std=spread)

    @property
    def read_at_once(self) -> float:
        """Samples of a request, in the mean: less than 1 where a sample is several
        ranges.
        """
        return self.samples_per_request / (
            1.0 if self.tokens is None else self.tokens.ranges
        )

    def draw_nbytes(self, rng: np.random.Generator) -> Floats:
        """Draw the sizes of all samples in storage: (N,) bytes; nothing is drawn if all
        are alike.
        """
        if self.tokens is None:
            return self.stored.draw(rng, self.num_samples)
        return self.tokens.draw_nbytes(rng, self.num_samples)

    @property
    def decoded_nbytes(self) -> float:
        """Mean bytes of a decoded sample."""
        if self.decoded_size is None:
            return self.stored_as.expansion * self.stored.mean
        return self.decoded_size.mean

    @property
    def decode_seconds(self) -> float:
        """Seconds of one core to decode a sample of mean size."""
        return (
            self.stored_as.decode * self.stored.mean
            if self.decode is None
            else self.decode
        )

    @property
    def encode_seconds(self) -> float:
        """Seconds of one core to encode a sample of mean size."""
        return (
            self.stored_as.encode * self.stored.mean
            if self.encode is None
            else self.encode
        )


class Loader(Spec):
    """The data loader of a rank. The defaults are the authors' 4 workers of one thread,
    and PyTorch's 2 batches for each; Chainer's MultithreadIterator is one worker with
    several threads and one batch ahead. In PyTorch an epoch begins with nothing loaded.

    Attributes:
        workers: of a rank, each loading whole batches.
        prefetch: batches that a rank loads ahead at most.
        threads: of a worker; as many reads are in flight at once, and as many cores
            decode.
        across_epochs: whether the batches ahead may be those of the next epoch.
    """

    workers: Count = 4
    prefetch: Count = 8
    threads: Count = 1
    across_epochs: bool = False

    @property
    def at_once(self) -> int:
        """Batches that a rank loads at once at most."""
        return min(self.workers, self.prefetch)

    @property
    def reads_in_flight(self) -> int:
        """Reads that a rank has in flight at most."""
        return self.at_once * self.threads


class Staging(Spec):
    """Staging: the samples are copied from the PFS or the object store to the hosts
    before the first epoch, under strategies that keep them there.

    Attributes:
        source: what samples are copied from: the parallel file system, or the object
            store of the cluster.
        format: how samples are copied to the hosts: as an archive, or as files that are
            opened one by one.
        target: where to; what is staged to memory is read from there.
        copies: files that a host copies at once; from an object store, its connections.
        broadcast: where every host gets the same: each reads an equal part, and the
            parts go round a ring of the hosts.
    """

    source: Literal["pfs", "object_store"] = "pfs"
    format: Literal["archive", "files"] = "archive"
    target: Literal["ssd", "memory"] = "ssd"
    copies: Count = 1
    broadcast: bool = False


class Jitter(Spec):
    """Random variation, by log-normal factors.

    Attributes:
        compute: standard deviation over mean of a factor for each rank and iteration.
        read: the same, for the reads of each batch.
        host_decode: the same, for what decoding takes on each host: one factor for the
            whole run.
    """

    compute: NonNegative = 0.02
    read: NonNegative = 0.1
    host_decode: NonNegative = 0.0


class Workload(Spec):
    """The training of all ranks: data set, model, batches, exchange and allreduce. Of
    ``last_batch``, 'keep' is PyTorch's drop_last=False, 'carry' Chainer's repeating
    iterators.

    Attributes:
        model: the neural network.
        dataset: the data set.
        local_batch_size: b, samples of a rank in an iteration; at most those of the
            data set.
        last_batch: what becomes of the remainder of a shard that does not fill a batch:
            'nearest' keeps it if it is at least half a batch, 'keep' always, 'drop'
            never; 'carry' fills it up with the first samples of the next epoch.
        exchange: the shuffling strategy.
        allreduce: how gradients are summed.
        parallelism: how training is divided among the GPUs; 'data' if left out.
        loader: the data loader of a rank.
        staging: how samples come to the hosts before the first epoch.
        jitter: how much times vary.
        checkpoint: how the state of the training is saved; never if left out.
        description: in words.
    """

    model: ModelProfile
    dataset: Dataset
    local_batch_size: Count
    last_batch: Literal["nearest", "keep", "drop", "carry"] = "nearest"
    exchange: Exchange
    allreduce: Allreduce
    parallelism: AnyParallelism = Data()
    loader: Loader = Loader()
    staging: Staging = Staging()
    jitter: Jitter = Jitter()
    checkpoint: Checkpoint | None = None
    description: str = ""

    @model_validator(mode="after")
    def _something_to_train(self) -> Workload:
        """Refuse a batch larger than the data set."""
        if self.local_batch_size > self.dataset.num_samples:
            raise ValueError("local_batch_size exceeds the number of samples")
        return self

    def allreduce_on(self, cluster: Cluster) -> Allreduce:
        """The allreduce, with a ring, channel, leader or rail for each HCA if it does
        not say how many.
        """
        return self.allreduce.over_hcas(cluster.hcas_per_domain)

    @property
    def source(self) -> Source | Literal["memory"]:
        """The tier from which samples are read: the exchange's source, or 'memory' if
        they are staged there.
        """
        exchange_tier = self.exchange.tier
        return (
            "memory"
            if exchange_tier == "ssd" and self.staging.target == "memory"
            else exchange_tier
        )

    @property
    def attention_share(self) -> float:
        """Share of attention to all of a sequence in its computing; 0 where nobody says
        it.
        """
        tokens = self.dataset.tokens
        attention = self.model.attention
        if tokens is not None and tokens.attention_share is not None:
            return tokens.attention_share
        return 0.0 if attention is None else attention[1]

    @property
    def mean_work(self) -> float:
        """Computing of a mean sample over what the model's step times say."""
        tokens = self.dataset.tokens
        return 1.0 if tokens is None else tokens.mean_work(self.attention_share)

    def draw_work(self, rng: np.random.Generator) -> Floats | None:
        """Draw the computing of each sample over the model's step times: (N,).

        None if it is 1 for all.
        """
        tokens = self.dataset.tokens
        count = self.dataset.num_samples
        return (
            None
            if tokens is None
            else tokens.draw_work(rng, count, self.attention_share)
        )

    def stored_nbytes(self, world_size: int, ranks_on_host: int) -> float:
        """Return the largest number of staged bytes that a host with ``ranks_on_host``
        ranks keeps: (1 + Q) N/M size for each rank; 0 where hosts keep none.
        """
        return (
            self.exchange.stored_share(world_size, ranks_on_host) * self.dataset.nbytes
        )

    def shards_context(
        self,
        cluster: Cluster,
        owner: Ints,
        world_size: int,
        epoch: int,
        *,
        rng: np.random.Generator,
        seed: int,
    ) -> ShardsContext:
        """Return the inputs that decide which rank trains on which samples in an epoch
        (from 1); ``owner`` is (N,) the rank of each sample, ``rng`` of the epoch.
        """
        return ShardsContext(
            owner,
            world_size,
            epoch,
            rng,
            seed,
            self.local_batch_size,
            ranks_per_host=cluster.ranks_per_host(world_size),
            workers=self.loader.workers,
            sample_nbytes=self.dataset.stored.mean,
        )

    def iterations(self, world_size: int, epoch: int = 1) -> int:
        """Return the iterations of an epoch: N / (M b), made whole by ``last_batch``;
        at least 1.

        With 'carry', epochs (from 1) differ by up to 1.
        """
        exact = self.dataset.num_samples / (world_size * self.local_batch_size)
        iterations_by_rule = {
            "nearest": math.floor(exact + 0.5),
            "keep": math.ceil(exact),
            "drop": math.floor(exact),
            "carry": math.ceil(epoch * exact) - math.ceil((epoch - 1) * exact),
        }
        return max(iterations_by_rule[self.last_batch], 1)
