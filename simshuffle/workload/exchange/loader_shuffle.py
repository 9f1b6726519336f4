"""The order of a data loader as a strategy: nodes fetch shards, and nothing is
exchanged.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import field_validator

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.spec.arrays import Floats, Ints, Ints64
from simshuffle.spec.library import parse_kind
from simshuffle.spec.record import Count, NBytes, PositiveNBytes
from simshuffle.spec.rng import stream
from simshuffle.spec.units import Dimension, readable
from simshuffle.workload.exchange.base import ShardsContext, Source, Strategy
from simshuffle.workload.exchange.plan import Shards, shuffled_shards
from simshuffle.workload.orders import AnyOrder
from simshuffle.workload.orders.fetching import (
    Caches,
    Pieces,
    divide_into_pieces,
    iteration_of_rows,
)
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet

MAX_DEFAULT_RANKS = 4
"""The most ranks of a node where no machine is known."""
DEFAULT_WORKERS = 4
"""Workers of a rank where no loader is known."""
_KEYS_OF_PATHS = {
    "readers": "workers",
    "readers.workers": "workers",
    "readers.ranks": "ranks_per_node",
    "readers.nodes": "ranks_per_node",
    "data.samples": "samples_per_shard",
}
"""The key of `LoaderShuffle` that decides each path of a problem that orders report."""
MAX_CHECKED_SAMPLES = 10_000_000
"""The most samples for which `LoaderShuffle.check` draws an order to see whether it
can.
"""


class LoaderShuffle(Strategy):
    """The order in which a library's loader hands out samples
    (`simshuffle.workload.orders`).

    **Where samples lie.** In shards of ``samples_per_shard``, one after another: first
    the samples of rank 0 of the partition in random order, then those of rank 1, and so
    on. So the partition 'random' is a set that was shuffled before it was written, and
    'sorted' one that was not.

    **Who trains on what.** Every rank trains on N/M samples, rounded up: the first of
    those that its workers hand out, in turns of a batch. What the order has for it
    beyond that is not read in this epoch; where it has less, the rank begins with its
    own first samples again. A sample that the order repeats is trained on again.

    **What is fetched.** A node fetches the whole piece (sample, block or shard, as the
    library does) in the iteration in which it hands out the first sample of it, and
    keeps it in its cache. What it hands out of it later is read from there.

    Attributes:
        order: the library, and how it shuffles.
        samples_per_shard: of each shard but the last. Needed where the order reads
            shards or blocks.
        cache_limit: what a node keeps, the least recently used being dropped; by
            default as much as there is room. '0 B' is no cache: each worker holds a
            piece in memory until it has handed out its last sample of it.
        cache_in: where a node keeps it.
        source: what nodes fetch from.
        ranks_per_node: by default those of a host of the machine; where none is named
            as many, up to 4, as divide the ranks.
        workers: of a rank, which divide what it reads; by default those of the loader,
            or 4 where there is none, as in a training.
        sample_size: of a sample in storage, where a training must know it: only
            LitData's order depends on it. By default that of the data set, or so small
            that all fits.
    """

    kind: Literal["loader_shuffle"]
    redraws: ClassVar[bool] = True
    fetches: ClassVar[bool] = True
    whole_because: ClassVar[str] = (
        "the order of the loader is drawn for the whole data set"
    )
    order: AnyOrder
    samples_per_shard: Count | None = None
    cache_limit: NBytes | None = None
    cache_in: Literal["ssd", "memory"] = "ssd"
    source: Literal["pfs", "object_store"] = "pfs"
    ranks_per_node: Count | None = None
    workers: Count | None = None
    sample_size: PositiveNBytes | None = None

    @field_validator("order", mode="before")
    @classmethod
    def _expand_kind(cls, order: Any) -> Any:
        """Read an order that is given by its kind alone."""
        return parse_kind(order) if isinstance(order, str) else order

    @property
    def short_name(self) -> str:
        """The short name of the order."""
        return self.order.short_name

    @property
    def in_name(self) -> dict[str, Any]:
        """Kind and algorithm of the order, which `short_name` already tells."""
        return {"kind": True, "order": {"kind", "shuffle", "shuffle_algo", "source"}}

    @property
    def tier(self) -> Source:
        """``source``."""
        return self.source

    @property
    def cache_device(self) -> Literal["ssd", "memory"]:
        """The device in which a node keeps fetched pieces: ``cache_in``, or 'memory' if
        there is no cache.

        Without a cache the workers hold pieces in their memory.
        """
        return "memory" if self.cache_limit == 0 else self.cache_in

    def stored_share(self, world_size: int, ranks_on_host: int) -> float:
        """0: nothing is staged."""
        return 0.0

    def shards(self, owner: Ints, world_size: int, rng: np.random.Generator) -> Shards:
        """Raise a NotImplementedError: the order needs epoch and seed, see
        `epoch_shards`.
        """
        raise NotImplementedError(
            "ask epoch_shards, which knows the epoch and the seed"
        )

    def epoch_shards(self, context: ShardsContext) -> Shards:
        """Draw the order of the epoch, and give each rank its first N/M samples,
        rounded up.

        The worker that loads each sample is given too (`Shards.worker`).

        Raises:
            InputError: as of `check`.
        """
        readers = self.readers(context)
        num_samples = len(context.owner)
        data = self.sharded_set(num_samples, context.sample_nbytes)
        order = self._draw_order(data, readers, context.seed, context.epoch)
        rows = _rows_trained_on(order, readers, num_samples)
        # the order's samples are places in storage
        stored = stored_samples(context.owner, context.world_size, context.seed)
        samples_per_rank = len(rows) // context.world_size
        return Shards(
            stored[order.sample[rows]],
            np.arange(context.world_size + 1) * samples_per_rank,
            worker=order.worker[rows].astype(np.int32),
        )

    def readers(self, context: ShardsContext) -> Readers:
        """Return the nodes, ranks and workers that read.

        Ranks of a node and workers of a rank are those of this record or of
        ``context``. Where neither has them, they are the most ranks up to
        `MAX_DEFAULT_RANKS` that divide M, and `DEFAULT_WORKERS`.

        Raises:
            InputError: if ranks cannot be shared evenly among nodes, or the keys of
                this record differ from the machine or the loader.
        """
        ranks = _agree_on(
            "ranks_per_node", self.ranks_per_node, context.ranks_per_host, "the machine"
        )
        workers = _agree_on("workers", self.workers, context.workers, "the loader")
        if ranks is None:
            ranks = max(
                ranks
                for ranks in range(1, MAX_DEFAULT_RANKS + 1)
                if context.world_size % ranks == 0
            )
        if context.world_size % ranks:
            rule = (
                f"must divide the {context.world_size} ranks: a library's"
                " nodes have equally many"
            )
            remedy = "Use as many ranks as fill nodes."
            refuse("ranks_per_node", rule, str(ranks), remedy, "exchange")
        return Readers(
            context.world_size // ranks,
            ranks,
            DEFAULT_WORKERS if workers is None else workers,
            context.batch_size,
        )

    def sharded_set(
        self, num_samples: int, sample_nbytes: float | None = None
    ) -> ShardedSet:
        """Return the shards of the set, in which samples are numbered in the order of
        storage.

        Args:
            num_samples: N.
            sample_nbytes: mean bytes of a sample; None where they are not known. If
                ``sample_size`` is not known either, shards have 0 bytes.

        Raises:
            InputError: if the order reads shards or blocks, and there are none; or if
                ``sample_size`` differs from ``sample_nbytes``.
        """
        samples_per_shard = self.samples_per_shard or 1
        if samples_per_shard == 1 and self.order.unit != "sample":
            rule = f"must be at least 2: {self.short_name} reads {self.order.unit}s of samples"
            value = "none" if self.samples_per_shard is None else "1"
            remedy = "Say how many samples a shard of the data set has."
            refuse("samples_per_shard", rule, value, remedy, "exchange")
        nbytes = (
            _agree_on("sample_size", self.sample_size, sample_nbytes, "the data set")
            or 0.0
        )
        # the last shard has what is left
        num_shards = -(-num_samples // samples_per_shard)
        samples = np.full(num_shards, samples_per_shard)
        samples[-1] = num_samples - samples_per_shard * (num_shards - 1)
        return ShardedSet(samples, samples * nbytes)

    def check(self, context: ShardsContext) -> None:
        """Check that the order can be drawn for that many samples and ranks.

        An order of up to `MAX_CHECKED_SAMPLES` samples is drawn; of more, only readers
        and shards are checked.

        Raises:
            InputError: if it cannot be drawn; its paths begin below the keys of this
                record.
        """
        readers = self.readers(context)
        num_samples = len(context.owner)
        self.sharded_set(num_samples, context.sample_nbytes)
        if num_samples <= MAX_CHECKED_SAMPLES:
            _check_drawable(
                self.model_dump_json(),
                num_samples,
                context.sample_nbytes,
                readers,
                context.seed,
            )

    def _draw_order(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Draw the order of an epoch (from 1); report problems below the keys of this
        record.
        """
        try:
            return self.order.epoch(data, readers, seed, epoch - 1)
        except InputError as error:
            problems = [_relocate_problem(problem) for problem in error.problems]
            raise InputError(problems, "exchange") from None

    def cache_problems(self, sample_nbytes: float, capacity: float) -> list[Problem]:
        """Return the problems of ``cache_limit``: below one piece, or above the device.

        There are none if it is left out, or 0 for no cache.

        Args:
            sample_nbytes: mean bytes of a sample.
            capacity: bytes of the device that the cache is in.
        """
        limit = self.cache_limit
        if not limit:
            return []
        samples_per_unit = 1
        if self.order.unit == "shard":
            samples_per_unit = self.samples_per_shard or 1
        elif self.order.unit == "block":
            samples_per_unit = min(self.order.block, self.samples_per_shard or 1)
        min_limit = samples_per_unit * sample_nbytes
        limit_text = readable(limit, Dimension.NBYTES)
        problems = []
        if limit < min_limit:
            rule = (
                f"must hold a {self.order.unit} of {readable(min_limit, Dimension.NBYTES)}:"
                " a library fetches it anew for every sample, or fails"
            )
            problems.append(
                Problem("cache_limit", rule, limit_text, "Raise it, or give 0 B.")
            )
        if limit > capacity:
            rule = f"must not exceed the {readable(capacity, Dimension.NBYTES)} of its host"
            remedy = "Leave it out to have just that."
            problems.append(Problem("cache_limit", rule, limit_text, remedy))
        return problems

    def cache_nbytes(self, capacity: float, nbytes: float) -> int | None:
        """Return the bytes that a node's cache may hold; None where nothing need ever
        be dropped.

        It is ``cache_limit`` (0 for no cache) or, where that is left out, the capacity.

        Args:
            capacity: bytes of the device that the cache is in.
            nbytes: of the whole set.
        """
        limit = capacity if self.cache_limit is None else self.cache_limit
        return None if limit >= nbytes else int(limit)

    def caches(self, readers: Readers, pieces: Pieces, capacity: float) -> Caches:
        """Return the caches of all nodes, empty.

        Args:
            readers: the nodes, ranks and workers that read.
            pieces: that they fetch at once, from `fetched_pieces`.
            capacity: bytes of the device that the caches of a node are in.
        """
        limit = self.cache_nbytes(capacity, float(pieces.nbytes.sum()))
        return Caches(readers, pieces, limit)

    def fetched_pieces(
        self, owner: Ints, world_size: int, seed: int, nbytes: Floats
    ) -> Pieces:
        """Return the pieces (samples, blocks or shards) that nodes fetch at once.

        Samples are indexed as in the data set, pieces as they lie in storage.

        Args:
            owner: (N,) the rank of each sample in the partition.
            world_size: M.
            seed: of the run.
            nbytes: (N,) of every sample; those of a piece are rounded to whole ones.

        Raises:
            InputError: as of `sharded_set`.
        """
        data = self.sharded_set(len(owner))
        block_size = self.order.block
        # by position in storage, then by sample
        stored_pieces = divide_into_pieces(
            data, self.order.unit, block_size, self.order.places(data, seed)
        )
        piece_of_sample = np.empty(len(owner), np.int64)
        piece_of_sample[stored_samples(owner, world_size, seed)] = (
            stored_pieces.piece_of_sample
        )
        piece_nbytes = np.bincount(piece_of_sample, nbytes, len(stored_pieces.nbytes))
        return Pieces(piece_of_sample, np.rint(piece_nbytes).astype(np.int64))


def stored_samples(owner: Ints, world_size: int, seed: int) -> Ints:
    """Return the samples in the order of storage, (N,) int32.

    First the samples of rank 0 of the partition in random order, then those of rank 1,
    and so on.
    """
    return shuffled_shards(owner, world_size, stream(seed, "storage")).order


def _rows_trained_on(order: EpochOrder, readers: Readers, num_samples: int) -> Ints64:
    """Return the row indices of ``order`` that the ranks train on, rank by rank.

    Each rank trains on ``num_samples`` / M of them, rounded up, in the order of
    iterations; where it has fewer, it begins with its own first rows again, and where
    it has more, the last are left out.

    Raises:
        InputError: if a rank has none.
    """
    iteration = iteration_of_rows(order, readers)
    # rows come by rank, worker and position: sort them by rank, then by iteration
    num_iterations = int(iteration.max(initial=0)) + 1
    by_rank = np.argsort(order.rank * num_iterations + iteration, kind="stable")
    rows_of_rank = np.bincount(order.rank, minlength=readers.world_size)
    if not rows_of_rank.all():
        rule = "must leave each rank a sample: it would have nothing to train on"
        value = f"none for rank {int(np.argmin(rows_of_rank))}"
        refuse(
            "order",
            rule,
            value,
            "Use fewer ranks, or more and smaller shards.",
            "exchange",
        )
    # (M, n) index of each sample among the rows of its rank
    samples_per_rank = -(-num_samples // readers.world_size)
    index_in_rank = np.arange(samples_per_rank) % rows_of_rank[:, None]
    first_row = np.cumsum(rows_of_rank) - rows_of_rank
    return np.asarray(by_rank[first_row[:, None] + index_in_rank].ravel())


@lru_cache(maxsize=256)
def _check_drawable(
    strategy_json: str,
    num_samples: int,
    sample_nbytes: float | None,
    readers: Readers,
    seed: int,
) -> None:
    """Raise an InputError unless the order of a `LoaderShuffle` in JSON can be drawn.

    A check that passed is not repeated for equal arguments.
    """
    strategy = LoaderShuffle.model_validate_json(strategy_json)
    data = strategy.sharded_set(num_samples, sample_nbytes)
    order = strategy._draw_order(data, readers, seed, 1)
    _rows_trained_on(order, readers, num_samples)


def _relocate_problem(problem: Problem) -> Problem:
    """Move a problem of an order to the key of `LoaderShuffle` that decides it.

    Problems of other paths are moved below ``order``.
    """
    key = _KEYS_OF_PATHS.get(problem.path)
    return problem.below("order") if key is None else replace(problem, path=key)


def _agree_on(key: str, key_value: Any, actual_value: Any, owner: str) -> Any:
    """Return the value of a key: its own or, where it is None, the actual one.

    Args:
        key: of the record.
        key_value: of the record; None if it was left out.
        actual_value: of ``owner``; None where it is not known.
        owner: what has the actual value, as 'the machine', for the text of the error.

    Raises:
        InputError: if both are there and differ.
    """
    if key_value is not None and actual_value is not None and key_value != actual_value:
        actual_text, key_text = (
            readable(value, Dimension.NBYTES) if key == "sample_size" else str(value)
            for value in (actual_value, key_value)
        )
        rule = f"must be that of {owner}, {actual_text}"
        refuse(key, rule, key_text, "Leave it out.", "exchange")
    return actual_value if key_value is None else key_value
