"""MosaicML Streaming: several streams, sampled by weights and put into batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.record import Count
from simshuffle.workload.orders.fetching import iteration
from simshuffle.workload.orders.mixture import Mixture
from simshuffle.workload.orders.mosaicml_streaming import MosaicmlStreaming
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet, Unit
from simshuffle.workload.orders.streams import check, dealt

Batching = Literal["random", "stratified", "per_stream", "device_per_stream"]


class _OfStream(MosaicmlStreaming):
    """The order of one stream, with its part of the block."""

    portion: int

    def block_size(self, readers: Readers) -> int:
        """As given."""
        return self.portion

    def _check_block(self, data: ShardedSet) -> None:
        """A part of a block may be larger than a stream."""


class MosaicmlStreams(Mixture):
    """mosaicml-streaming 0.13.0: ``StreamingDataset(streams=...)`` (streaming/base/stream.py
    `apply_weights`, sampling.py, dataset.py `resample_streams`, batching/*.py), bit by bit.

    An epoch has so many samples of each stream: whole passes of it, and of what is left over picks
    of ``sampling_granularity`` samples from its shards. Then streams are shuffled and dealt as
    `mosaicml_streaming` has it:

    - ``random``: all together, as if picked shards were the set.
    - ``stratified``: each batch of all ranks together has the same samples of each stream, one
      stream after another, so the first ranks always train on the first streams. The stream that
      has fewest batches ends the epoch.
    - ``per_stream``: such a batch is of one stream, ``device_per_stream``: that of a rank is. What
      of a stream is no whole batch is left out. With more than one node and rank, a node hands out
      batches of other nodes, whose shards it does not have.

    Attributes:
        kind: its name.
        of: how streams are shuffled and dealt.
        weighing: what weights are: shares of as many samples as there are (`proportion`), passes
            of a stream (`repeat`), or samples of it (`choose`).
        batching_method: how streams come into batches: all mixed, each batch of all ranks with the
            same of every stream, or batches of all ranks, or of a rank, of one stream.
        sampling_method: whether what is left over is picked anew in each epoch.
        sampling_granularity: samples that are picked at once from a shard.
    """

    kind: Literal["mosaicml_streams"]
    unit: ClassVar[Unit] = "shard"
    of: MosaicmlStreaming = MosaicmlStreaming(kind="mosaicml_streaming")
    weighing: Literal["proportion", "repeat", "choose"] = "proportion"
    batching_method: Batching = "random"
    sampling_method: Literal["balanced", "fixed"] = "balanced"
    sampling_granularity: Count = 1

    default_sources: ClassVar[dict[str, str]] = dict.fromkeys(
        ("batching_method", "sampling_method", "sampling_granularity"),
        "default of mosaicml-streaming 0.13.0, streaming/base/dataset.py",
    )

    @property
    def short_name(self) -> str:
        """'mosaicml streams' and how they come into batches."""
        return f"mosaicml streams {self.batching_method}"

    def chosen(self, data: ShardedSet, seed: int) -> Ints64:
        """(K,) samples that an epoch is to have of each stream."""
        sizes = np.array([data.samples[own].sum() for own in self.shards(data)])
        if self.weighing == "proportion":
            counts: Ints64 = (sizes.sum() * self.shares).astype(np.int64)
            missing = sizes.sum() - counts.sum()
            counts[np.random.default_rng(seed).choice(len(sizes), missing, False)] += 1
            return counts
        if self.weighing == "choose":
            return np.array(self.weights).astype(np.int64)
        return np.array(
            [int(weight * size) for weight, size in zip(self.weights, sizes, strict=True)]
        )

    def asked(self, data: ShardedSet, seed: int) -> Floats:
        """(K,) the share of an epoch that each stream should have."""
        return self.proportions(self.chosen(data, seed))

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`; ``seed`` is the library's ``shuffle_seed``. Raises an InputError as
        `MosaicmlStreaming.epoch`, and where a stream has no whole batch, as the library fails."""
        return self.since(data, readers, seed, epoch, 0)

    def since(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int, first: int
    ) -> EpochOrder:
        """The order of what is left of an epoch of which all ranks together have had the ``first``
        samples."""
        check(data, readers, seed, epoch, 2**64)
        self._check_counts(self.chosen(data, seed))
        if self.batching_method == "random":
            units, samples = self.resampled(data, seed, epoch)
            order = self.of.since(
                ShardedSet(units, units.astype(np.float64)), readers, seed, epoch, first
            )
            return replace(order, sample=samples[order.sample])
        rows = BATCHINGS[self.batching_method](self, data, readers, seed, epoch)
        left = rows[first // rows.shape[1] :].reshape(-1, readers.world_size, readers.batch_size)
        return dealt(left.transpose(1, 0, 2).reshape(readers.world_size, -1), readers)

    def _check_counts(self, counts: Ints64) -> None:
        if counts.min() < 1:
            rule = "must leave each stream a sample of an epoch"
            refuse("weights", rule, str(counts.tolist()), "Take larger ones.", "order")

    def resampled(
        self, data: ShardedSet, seed: int, epoch: int, stream: int | None = None
    ) -> tuple[Ints64, Ints64]:
        """(U,) the sizes of what is shuffled as shards are, of a stream or of all; and the samples
        of one after another."""
        balanced = self.sampling_method == "balanced"
        rng = np.random.default_rng(seed + epoch if balanced else seed)
        units, samples = [], []
        for number, shards in enumerate(self.shards(data)):
            if stream not in (None, number):
                continue
            sizes = data.samples[shards]
            count = int(self.chosen(data, seed)[number])
            picks = np.random.default_rng(seed + epoch * balanced)
            counts = picked(sizes, count, self.sampling_granularity, picks)
            for shard, size, chosen in zip(shards, sizes.tolist(), counts.tolist(), strict=True):
                whole, part = divmod(chosen, size) if size else (0, 0)
                units += [size] * whole + [part] * bool(part)
                samples += [data.begin[shard] + np.arange(size)] * whole
                if part:
                    samples.append(data.begin[shard] + np.sort(rng.choice(size, part, False)))
        return np.array(units), np.concatenate(samples)

    def stream_rows(
        self,
        data: ShardedSet,
        seed: int,
        epoch: int,
        stream: int,
        of: MosaicmlStreaming,
        readers: Readers,
    ) -> Ints64:
        """(n, M) samples of a stream in the order in which those ``readers`` go through them."""
        units, samples = self.resampled(data, seed, epoch, stream)
        order = of.epoch(ShardedSet(units, units.astype(np.float64)), readers, seed, epoch)
        rows = np.lexsort((order.position, iteration(order, readers), order.rank))
        return samples[order.sample[rows]].reshape(readers.world_size, -1).T

    def parts(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int, dealt_to: Readers
    ) -> list[Ints64]:
        """Of each stream, `stream_rows` for others than the readers."""
        counts, found = self.chosen(data, seed), []
        for stream, share in enumerate(self.proportions(counts).tolist()):
            portion = int(self.of.block_size(readers) * share)
            canonical = self.of.canonical_nodes(readers)
            own = self.of.model_dump() | {"num_canonical_nodes": canonical, "portion": portion}
            of = _OfStream.model_validate(own)
            found.append(self.stream_rows(data, seed, epoch, stream, of, dealt_to))
        return found

    def proportions(self, counts: Ints64) -> Floats:
        """(K,) the share of each stream as the library reckons with it."""
        return self.shares if self.weighing == "proportion" else counts / counts.sum()

    def mixer(self, seed: int, epoch: int) -> np.random.Generator:
        """What batches of streams are mixed with."""
        return np.random.default_rng(seed + epoch * (self.sampling_method == "balanced"))


def picked(sizes: Ints64, count: int, granularity: int, rng: np.random.Generator) -> Ints64:
    """(S,) samples of each shard of those sizes, ``count`` together (`get_sampling`)."""
    whole, left = divmod(count, int(sizes.sum()))
    counts = sizes * whole
    if not left:
        return counts
    picks = -(-sizes // granularity)
    shard = np.repeat(np.arange(len(sizes)), picks)
    each = np.full(len(shard), granularity)
    last = np.cumsum(picks) - 1
    each[last] = sizes - (picks - 1) * granularity
    order = rng.permutation(len(shard))
    taken = np.diff(np.minimum(np.cumsum(each[order]), left), prepend=0)
    return counts + np.bincount(shard[order], taken, minlength=len(sizes)).astype(np.int64)


def _stratified(
    of: MosaicmlStreams, data: ShardedSet, readers: Readers, seed: int, epoch: int
) -> Ints64:
    """(T, G) the samples of each batch of all ranks."""
    size = readers.world_size * readers.batch_size
    shares = of.proportions(of.chosen(data, seed))
    own = (shares * size).astype(np.int64)
    own[np.flip(np.argsort(size * shares - own))[: size - own.sum()]] += 1
    if own.min() < 1:
        _refuse_batch(f"{size} samples of all ranks")
    parts = of.parts(data, readers, seed, epoch, Readers(1, readers.ranks, readers.workers, 1))
    flat = [part.ravel() for part in parts]
    steps = min(len(part) // count for part, count in zip(flat, own, strict=True))
    return np.concatenate(
        [
            part[: steps * count].reshape(steps, count)
            for part, count in zip(flat, own, strict=True)
        ],
        axis=1,
    )


def _per_stream(
    of: MosaicmlStreams, data: ShardedSet, readers: Readers, seed: int, epoch: int
) -> Ints64:
    ranks, batch = readers.world_size, readers.batch_size
    found = []
    for part in of.parts(data, readers, seed, epoch, readers):
        steps = len(part) // batch
        rows = part[: steps * batch].reshape(steps, batch, ranks).transpose(0, 2, 1)
        found.append(rows.reshape(steps, ranks * batch))
    return _shuffled(found, of.mixer(seed, epoch))


def _device_per_stream(
    of: MosaicmlStreams, data: ShardedSet, readers: Readers, seed: int, epoch: int
) -> Ints64:
    canonical, nodes, batch = of.of.canonical_nodes(readers), readers.nodes, readers.batch_size
    if canonical % nodes:
        rule = f"must be a multiple of the {nodes} nodes, as the library fails otherwise"
        refuse("num_canonical_nodes", rule, str(canonical), f"Take {nodes}", "order")
    alike = Readers(canonical, readers.ranks, readers.workers, 1)
    parts = of.parts(data, readers, seed, epoch, alike)
    rng, of_nodes = of.mixer(seed, epoch), []
    each = canonical // nodes * readers.ranks
    for node in range(nodes):
        own = [part[:, node * each : (node + 1) * each].ravel() for part in parts]
        whole = [one[: len(one) // batch * batch].reshape(-1, batch) for one in own]
        of_nodes.append(_shuffled(whole, rng))
    most = max(map(len, of_nodes))
    most += readers.world_size - most % readers.world_size
    rows = np.full((most, nodes, batch), -1)
    for node, own_rows in enumerate(of_nodes):
        rows[: len(own_rows), node] = own_rows
    return rows.reshape(-1, readers.world_size * batch)


def _shuffled(parts: list[Ints64], rng: np.random.Generator) -> Ints64:
    """The rows of streams, mixed; those of each stay in their order."""
    if not min(map(len, parts)):
        _refuse_batch("a stream of less than a batch")
    origin = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    rng.shuffle(origin)
    return np.concatenate(parts)[np.argsort(np.argsort(origin, kind="stable"), kind="stable")]


def _refuse_batch(value: str) -> None:
    rule = "a stream needs a sample of each batch, or a whole batch, as the library fails otherwise"
    refuse("weights", rule, value, "Take smaller batches, or larger weights.", "order")


BATCHINGS: dict[str, Callable[[MosaicmlStreams, ShardedSet, Readers, int, int], Ints64]] = {
    "stratified": _stratified,
    "per_stream": _per_stream,
    "device_per_stream": _device_per_stream,
}
