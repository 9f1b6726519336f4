"""MosaicML Streaming: several streams, sampled by weights and put into batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal, NoReturn

import numpy as np

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.record import Count
from simshuffle.workload.orders.fetching import iteration_of_rows
from simshuffle.workload.orders.mixture import Mixture
from simshuffle.workload.orders.mosaicml_streaming import MosaicmlStreaming
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet, Unit
from simshuffle.workload.orders.streams import check_inputs, deal_batches

Batching = Literal["random", "stratified", "per_stream", "device_per_stream"]


class _StreamOrder(MosaicmlStreaming):
    """The order of one stream, whose blocks are a portion of the block of all streams."""

    portion: int  # samples of a block

    def block_size(self, readers: Readers) -> int:
        """Return ``portion``."""
        return self.portion

    def _check_block(self, data: ShardedSet) -> None:
        """Accept every block: a part of a block may be larger than a stream."""


class MosaicmlStreams(Mixture):
    """mosaicml-streaming 0.13.0: ``StreamingDataset(streams=...)``
    (streaming/base/stream.py `apply_weights`, sampling.py, dataset.py
    `resample_streams`, batching/*.py), bit by bit.

    An epoch has so many samples of each stream: whole passes of it, and of what is left
    over picks of ``sampling_granularity`` samples from its shards. Then streams are
    shuffled and dealt as `mosaicml_streaming` has it:

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
        weighing: what weights are: shares of as many samples as there are
            (`proportion`), passes of a stream (`repeat`), or samples of it (`choose`).
        batching_method: how streams come into batches: all mixed, each batch of all
            ranks with the same of every stream, or batches of all ranks, or of a rank,
            of one stream.
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
        """'mosaicml streams' and the batching method."""
        return f"mosaicml streams {self.batching_method}"

    def samples_of_streams(self, data: ShardedSet, seed: int) -> Ints64:
        """Return the samples that an epoch is to have of each stream, (K,).

        With 'proportion' they sum to the set, and ``seed`` draws which streams get the
        samples that rounding leaves over; with 'choose' they are the weights, with
        'repeat' weights times sizes, rounded down.
        """
        sizes = np.array(
            [data.samples[shards].sum() for shards in self.shards_of_sources(data)]
        )
        if self.weighing == "proportion":
            counts: Ints64 = (sizes.sum() * self.shares).astype(np.int64)
            missing = sizes.sum() - counts.sum()
            counts[np.random.default_rng(seed).choice(len(sizes), missing, False)] += 1
            return counts
        if self.weighing == "choose":
            return np.array(self.weights).astype(np.int64)
        return np.array(
            [
                int(weight * size)
                for weight, size in zip(self.weights, sizes, strict=True)
            ]
        )

    def requested_shares(self, data: ShardedSet, seed: int) -> Floats:
        """Return the share of an epoch that each stream should have, (K,).

        With 'proportion' these are the shares of the weights, before rounding.
        """
        return self.proportions(self.samples_of_streams(data, seed))

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch; ``seed`` is the library's ``shuffle_seed``.

        Raises:
            InputError: as `MosaicmlStreaming.epoch`, and where a stream has no whole
                batch, as the library fails.
        """
        return self.remaining_order(data, readers, seed, epoch, 0)

    def remaining_order(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int, num_done: int
    ) -> EpochOrder:
        """Return the order of the rest of an epoch, of which ``num_done`` samples are
        done.

        ``num_done`` counts the samples that all ranks together have had. Samples of an
        iteration that was not finished are read again; with ``random``, those that are
        no whole turn of the nodes.

        Raises:
            InputError: as of `epoch`.
        """
        check_inputs(data, readers, seed, epoch, 2**64)
        self._check_counts(self.samples_of_streams(data, seed))
        if self.batching_method == "random":
            units, samples = self.resample_units(data, seed, epoch)
            unit_set = ShardedSet(units, units.astype(np.float64))
            order = self.of.remaining_order(unit_set, readers, seed, epoch, num_done)
            return replace(order, sample=samples[order.sample])
        # (T, M b) the samples of each batch of all ranks
        rows = BATCHINGS[self.batching_method](self, data, readers, seed, epoch)
        rows = rows[num_done // rows.shape[1] :]
        by_rank = rows.reshape(-1, readers.world_size, readers.batch_size).transpose(
            1, 0, 2
        )
        return deal_batches(by_rank.reshape(readers.world_size, -1), readers)

    def _check_counts(self, counts: Ints64) -> None:
        """Raise an InputError if an epoch has no sample of some stream."""
        if counts.min() < 1:
            rule = "must leave each stream a sample of an epoch"
            refuse("weights", rule, str(counts.tolist()), "Take larger ones.", "order")

    def resample_units(
        self, data: ShardedSet, seed: int, epoch: int, stream: int | None = None
    ) -> tuple[Ints64, Ints64]:
        """Pick the samples of an epoch, in units that are shuffled as shards are.

        A unit is a pass over a shard, or the samples that were picked from it. Picks
        follow from the seed alone with 'fixed', from seed and epoch with 'balanced'.

        Args:
            data: the set in shards.
            seed: of the run.
            epoch: from 0.
            stream: whose samples are picked; None for all streams.

        Returns:
            (U,) the size of each unit; and the samples of one unit after another, each
            unit's in the order of storage.
        """
        is_balanced = self.sampling_method == "balanced"
        rng = np.random.default_rng(seed + epoch if is_balanced else seed)
        stream_counts = self.samples_of_streams(data, seed)
        units = []
        samples = []
        for index, shards in enumerate(self.shards_of_sources(data)):
            if stream not in (None, index):
                continue
            sizes = data.samples[shards]
            pick_rng = np.random.default_rng(seed + epoch * is_balanced)
            counts = pick_samples(
                sizes, int(stream_counts[index]), self.sampling_granularity, pick_rng
            )
            for shard, size, count in zip(
                shards, sizes.tolist(), counts.tolist(), strict=True
            ):
                passes, picked = divmod(count, size) if size else (0, 0)
                units += [size] * passes + [picked] * bool(picked)
                samples += [data.begin[shard] + np.arange(size)] * passes
                if picked:
                    samples.append(
                        data.begin[shard] + np.sort(rng.choice(size, picked, False))
                    )
        return np.array(units), np.concatenate(samples)

    def stream_rows(
        self,
        data: ShardedSet,
        seed: int,
        epoch: int,
        stream: int,
        *,
        stream_order: MosaicmlStreaming,
        readers: Readers,
    ) -> Ints64:
        """Return the samples of a stream in the order in which ``readers`` read them:
        (n, M).

        Args:
            data: the set in shards.
            seed: of the run.
            epoch: from 0.
            stream: whose samples.
            stream_order: by which they are shuffled and dealt.
            readers: the processes that read.

        Raises:
            InputError: if ``stream_order`` or the streams do not fit to ``readers``.
        """
        units, samples = self.resample_units(data, seed, epoch, stream)
        unit_set = ShardedSet(units, units.astype(np.float64))
        order = stream_order.epoch(unit_set, readers, seed, epoch)
        rows = np.lexsort(
            (order.position, iteration_of_rows(order, readers), order.rank)
        )
        return samples[order.sample[rows]].reshape(readers.world_size, -1).T

    def rows_of_streams(
        self,
        data: ShardedSet,
        readers: Readers,
        seed: int,
        epoch: int,
        dealt_to: Readers,
    ) -> list[Ints64]:
        """Return `stream_rows` of each stream, dealt to ``dealt_to`` in place of
        ``readers``: (n, ranks of ``dealt_to``) each.

        Canonical nodes and blocks remain those of ``readers``; a stream has its share
        of a block.
        """
        counts = self.samples_of_streams(data, seed)
        canonical = self.of.canonical_nodes(readers)
        rows_of_streams = []
        for stream, share in enumerate(self.proportions(counts).tolist()):
            portion = int(self.of.block_size(readers) * share)
            settings = self.of.model_dump()
            settings |= {"num_canonical_nodes": canonical, "portion": portion}
            stream_order = _StreamOrder.model_validate(settings)
            rows = self.stream_rows(
                data, seed, epoch, stream, stream_order=stream_order, readers=dealt_to
            )
            rows_of_streams.append(rows)
        return rows_of_streams

    def proportions(self, counts: Ints64) -> Floats:
        """Return the share of each stream as the library reckons with it, (K,): that of
        the weights with 'proportion', else that of ``counts``.

        Args:
            counts: (K,) samples that an epoch is to have of each stream.
        """
        return self.shares if self.weighing == "proportion" else counts / counts.sum()

    def mixing_rng(self, seed: int, epoch: int) -> np.random.Generator:
        """Return the generator by which batches of streams are mixed.

        It is new in each epoch with 'balanced', and equal in all with 'fixed'.
        """
        return np.random.default_rng(
            seed + epoch * (self.sampling_method == "balanced")
        )


def pick_samples(
    sizes: Ints64, num_samples: int, granularity: int, rng: np.random.Generator
) -> Ints64:
    """Decide how many samples of each shard an epoch has, (S,), as `get_sampling` does.

    All shards get as many whole passes; what is left over is picked at random.

    Args:
        sizes: (S,) samples of each shard, not all 0.
        num_samples: samples of the epoch: the sum of the result.
        granularity: samples that are picked at once from a shard; the last pick may
            take fewer.
        rng: that picks; nothing is drawn if nothing is left over.
    """
    passes, num_picked = divmod(num_samples, int(sizes.sum()))
    counts = sizes * passes
    if not num_picked:
        return counts
    # a row for each pick that is possible: its shard, and its samples
    picks_of_shard = -(-sizes // granularity)
    shard = np.repeat(np.arange(len(sizes)), picks_of_shard)
    pick_size = np.full(len(shard), granularity)
    last_pick = np.cumsum(picks_of_shard) - 1
    pick_size[last_pick] = sizes - (picks_of_shard - 1) * granularity
    order = rng.permutation(len(shard))
    picked = np.diff(np.minimum(np.cumsum(pick_size[order]), num_picked), prepend=0)
    return counts + np.bincount(shard[order], picked, minlength=len(sizes)).astype(
        np.int64
    )


def _batch_by_strata(
    order: MosaicmlStreams, data: ShardedSet, readers: Readers, seed: int, epoch: int
) -> Ints64:
    """Put equally many samples of each stream into each batch of all ranks: (T, M b).

    A row has the samples of one stream after another. Rows end with the stream that has
    fewest; samples of other streams beyond that are left out.

    Raises:
        InputError: if a stream has less than a sample in a batch.
    """
    size = readers.world_size * readers.batch_size
    shares = order.proportions(order.samples_of_streams(data, seed))
    # (K,) samples of each stream in a batch, rounded so that they sum to the batch
    counts = (shares * size).astype(np.int64)
    by_rounding = np.flip(np.argsort(size * shares - counts))
    counts[by_rounding[: size - counts.sum()]] += 1
    if counts.min() < 1:
        _refuse_batch(f"{size} samples of all ranks")
    one_node = Readers(1, readers.ranks, readers.workers, 1)
    streams = [
        rows.ravel()
        for rows in order.rows_of_streams(data, readers, seed, epoch, one_node)
    ]
    steps = min(
        len(samples) // count for samples, count in zip(streams, counts, strict=True)
    )
    columns = [
        samples[: steps * count].reshape(steps, count)
        for samples, count in zip(streams, counts, strict=True)
    ]
    return np.concatenate(columns, axis=1)


def _batch_per_stream(
    order: MosaicmlStreams, data: ShardedSet, readers: Readers, seed: int, epoch: int
) -> Ints64:
    """Fill each batch of all ranks from one stream: (T, M b), a rank's batch after
    another's.

    Samples of a stream that fill no batch are left out.

    Raises:
        InputError: if a stream has no whole batch.
    """
    ranks = readers.world_size
    batch_size = readers.batch_size
    batches_of_streams = []
    for rows in order.rows_of_streams(data, readers, seed, epoch, readers):
        # (steps b, M) to (steps, M b): a rank's batch after another's
        steps = len(rows) // batch_size
        batches = (
            rows[: steps * batch_size]
            .reshape(steps, batch_size, ranks)
            .transpose(0, 2, 1)
        )
        batches_of_streams.append(batches.reshape(steps, ranks * batch_size))
    return _mix_rows(batches_of_streams, order.mixing_rng(seed, epoch))


def _batch_per_device(
    order: MosaicmlStreams, data: ShardedSet, readers: Readers, seed: int, epoch: int
) -> Ints64:
    """Fill each batch of a rank from one stream: (T, M b), a rank's batch after
    another's; -1 in the last rows where a node has no batch.

    Samples of a stream that fill no batch on a node are left out.

    Raises:
        InputError: if the canonical nodes are no multiple of the nodes, or a stream has
            no whole batch on a node.
    """
    canonical = order.of.canonical_nodes(readers)
    nodes = readers.nodes
    batch_size = readers.batch_size
    if canonical % nodes:
        rule = (
            f"must be a multiple of the {nodes} nodes, as the library fails otherwise"
        )
        refuse("num_canonical_nodes", rule, str(canonical), f"Take {nodes}", "order")
    canonical_readers = Readers(canonical, readers.ranks, readers.workers, 1)
    streams = order.rows_of_streams(data, readers, seed, epoch, canonical_readers)
    rng = order.mixing_rng(seed, epoch)
    columns_per_node = canonical // nodes * readers.ranks
    batches_of_nodes = []
    for node in range(nodes):
        columns = slice(node * columns_per_node, (node + 1) * columns_per_node)
        batches_of_streams = []
        for rows in streams:
            # (n, columns) row by row: canonical nodes and ranks of the node in turn
            samples = rows[:, columns].ravel()
            full_batches = samples[: len(samples) // batch_size * batch_size]
            batches_of_streams.append(full_batches.reshape(-1, batch_size))
        batches_of_nodes.append(_mix_rows(batches_of_streams, rng))
    max_batches = max(map(len, batches_of_nodes))
    max_batches += readers.world_size - max_batches % readers.world_size
    # (batches, nodes, b), -1 where a node has no batch
    table = np.full((max_batches, nodes, batch_size), -1)
    for node, batches in enumerate(batches_of_nodes):
        table[: len(batches), node] = batches
    return table.reshape(-1, readers.world_size * batch_size)


def _mix_rows(rows_of_streams: list[Ints64], rng: np.random.Generator) -> Ints64:
    """Mix the rows of streams at random; the rows of each stream stay in their order.

    Args:
        rows_of_streams: (n, columns) of each stream.
        rng: that mixes.

    Raises:
        InputError: if a stream has no row.
    """
    if not min(map(len, rows_of_streams)):
        _refuse_batch("a stream of less than a batch")
    stream = np.repeat(
        np.arange(len(rows_of_streams)), [len(rows) for rows in rows_of_streams]
    )
    rng.shuffle(stream)
    # the rank of each place among those of its stream, behind all earlier streams
    row = np.argsort(np.argsort(stream, kind="stable"), kind="stable")
    return np.concatenate(rows_of_streams)[row]


def _refuse_batch(value: str) -> NoReturn:
    """Raise an InputError for a stream that has too few samples for its part of the
    batches.
    """
    rule = "a stream needs a sample of each batch, or a whole batch, as the library fails otherwise"
    refuse("weights", rule, value, "Take smaller batches, or larger weights.", "order")


BATCHINGS: dict[
    str, Callable[[MosaicmlStreams, ShardedSet, Readers, int, int], Ints64]
] = {
    "stratified": _batch_by_strata,
    "per_stream": _batch_per_stream,
    "device_per_stream": _batch_per_device,
}
