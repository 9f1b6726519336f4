"""Workload: the data set, the model and how it is trained on one rank."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from simshuffle.allreduce import Allreduce
from simshuffle.exchange import Exchange
from simshuffle.spec import Count, NBytes, NonNegative, PositiveNBytes, PositiveSeconds, Seconds, Sourced, Spec


class SampleSize(Spec):
    """Size of a sample in storage: log-normal with this mean and standard deviation (0 B: all alike)."""

    mean: PositiveNBytes
    std: NBytes

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Sizes of ``count`` samples: (count,) bytes. Log-normal: s^2 = ln(1 + (std/mean)^2), mu = ln(mean) - s^2/2."""
        if self.std == 0:
            return np.full(count, self.mean)
        variance = math.log1p((self.std / self.mean) ** 2)
        return rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)


class DecodedSize(Spec):
    """Mean size of a decoded sample; that of a single one is in proportion to its size in storage."""

    mean: PositiveNBytes


class Dataset(Sourced):
    """A training set. ``decode`` and ``encode`` are seconds of one core for a sample of mean size."""

    name: str
    num_samples: Count
    sample_size: SampleSize
    decoded_size: DecodedSize
    decode: Seconds
    encode: Seconds

    @property
    def nbytes(self) -> float:
        """Expected size of the whole set (bytes)."""
        return self.num_samples * self.sample_size.mean


class StepTimes(Spec):
    """Seconds on one accelerator: ``forward`` and ``backward`` for one sample, ``update`` for one iteration."""

    forward: PositiveSeconds
    backward: PositiveSeconds
    update: Seconds


class ModelProfile(Sourced):
    """A neural network as the cluster sees it: bytes of gradients and of one input sample, step times by accelerator."""

    name: str
    num_parameters: Count
    gradient_size: PositiveNBytes
    input_size: PositiveNBytes
    accelerators: dict[str, StepTimes]


class Loader(Spec):
    """The data loader of a rank: ``workers`` processes of one core, each loading whole batches, ``prefetch`` of them ahead at most.

    The defaults are the authors' 4 workers and PyTorch's 2 batches for each.
    """

    workers: Count = 4
    prefetch: Count = 8


class Jitter(Spec):
    """Random variation, as standard deviation over mean of a log-normal factor: of each iteration's compute, of each batch's read."""

    compute: NonNegative = 0.02
    read: NonNegative = 0.1


class Workload(Spec):
    """What every rank does. ``last_batch`` rules on the remainder of a shard that does not fill a batch.

    'nearest' keeps it as an iteration if it is at least half a batch, 'keep' always (PyTorch's drop_last=False), 'drop' never.
    """

    model: ModelProfile
    dataset: Dataset
    local_batch_size: Count
    last_batch: Literal["nearest", "keep", "drop"] = "nearest"
    exchange: Exchange
    allreduce: Allreduce
    loader: Loader = Loader()
    jitter: Jitter = Jitter()
    description: Annotated[str, Field(default="")] = ""

    @model_validator(mode="after")
    def _something_to_train(self) -> Workload:
        if self.local_batch_size > self.dataset.num_samples:
            raise PydanticCustomError("batch", "local_batch_size exceeds the number of samples")
        return self

    def iterations(self, world_size: int) -> int:
        """Iterations of an epoch: N / (M b), made whole by ``last_batch``; at least 1."""
        exact = self.dataset.num_samples / (world_size * self.local_batch_size)
        whole = {"nearest": math.floor(exact + 0.5), "keep": math.ceil(exact), "drop": math.floor(exact)}[self.last_batch]
        return max(whole, 1)
