"""The order of a data loader as a strategy: nodes fetch shards, nothing is exchanged."""

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
from simshuffle.workload.orders.fetching import Caches, Pieces, iteration, pieces
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet

RANKS, WORKERS = 4, 4
"""Ranks of a node, at most, and workers of a rank where no machine and no loader are known."""
_KEYS = {
    "readers": "workers",
    "readers.workers": "workers",
    "readers.ranks": "ranks_per_node",
    "readers.nodes": "ranks_per_node",
    "data.samples": "samples_per_shard",
}
"""What decides, by what orders call it."""
MOST_CHECKED = 10_000_000
"""Samples up to which an order is drawn to see whether it can be."""


class LoaderShuffle(Strategy):
    """The order in which a library's loader hands out samples (`simshuffle.workload.orders`).

    **Where samples lie.** In shards of ``samples_per_shard``, one after another: first the samples
    of rank 0 of the partition in random order, then those of rank 1, and so on. So the partition
    'random' is a set that was shuffled before it was written, and 'sorted' one that was not.

    **Who trains on what.** Every rank trains on N/M samples, rounded up: the first of those that
    its workers hand out, in turns of a batch. What the order has for it beyond that is not read in
    this epoch; where it has less, the rank begins with its own first samples again. A sample that
    the order repeats is trained on again.

    **What is fetched.** A node fetches the whole piece (sample, block or shard, as the library
    does) in the iteration in which it hands out the first sample of it, and keeps it in its cache.
    What it hands out of it later is read from there.

    Attributes:
        order: the library, and how it shuffles.
        samples_per_shard: of each shard but the last. Needed where the order reads shards or
            blocks.
        cache_limit: what a node keeps, the least recently used being dropped; by default as much as
            there is room. '0 B' is no cache: each worker holds a piece in memory until it has
            handed out its last sample of it.
        cache_in: where a node keeps it.
        source: what nodes fetch from.
        ranks_per_node: by default those of a host of the machine; where none is named as many, up
            to 4, as divide the ranks.
        workers: of a rank, which divide what it reads; by default those of the loader, or 4 where
            there is none, as in a training.
        sample_size: of a sample in storage, where a training must know it: only LitData's order
            depends on it. By default that of the data set, or so small that all fits.
    """

    kind: Literal["loader_shuffle"]
    redraws: ClassVar[bool] = True
    fetches: ClassVar[bool] = True
    whole_because: ClassVar[str] = "the order of the loader is drawn for the whole data set"
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
    def _named(cls, order: Any) -> Any:
        """An order by its kind alone."""
        return parse_kind(order) if isinstance(order, str) else order

    @property
    def short_name(self) -> str:
        """That of the order."""
        return self.order.short_name

    @property
    def in_name(self) -> dict[str, Any]:
        """Kind and algorithm of the order."""
        return {"kind": True, "order": {"kind", "shuffle", "shuffle_algo", "source"}}

    @property
    def tier(self) -> Source:
        """``source``."""
        return self.source

    @property
    def held_in(self) -> Literal["ssd", "memory"]:
        """Where a node has what it fetched: ``cache_in``; without a cache, the workers' memory."""
        return "memory" if self.cache_limit == 0 else self.cache_in

    def stored_share(self, world_size: int, ranks_on_host: int) -> float:
        """0: nothing is staged."""
        return 0.0

    def shards(self, owner: Ints, world_size: int, rng: np.random.Generator) -> Shards:
        """Not to be had without epoch and seed: raises a NotImplementedError."""
        raise NotImplementedError("ask epoch_shards, which knows the epoch and the seed")

    def epoch_shards(self, context: ShardsContext) -> Shards:
        """See the class.

        Raises:
            InputError: as of `check`.
        """
        readers, size = self.readers(context), len(context.owner)
        data = self.data(size, context.sample_nbytes)
        order = self._drawn(data, readers, context.seed, context.epoch)
        rows = _trained(order, readers, size)
        stored = stored_samples(context.owner, context.world_size, context.seed)
        each = len(rows) // context.world_size
        return Shards(
            stored[order.sample[rows]],
            np.arange(context.world_size + 1) * each,
            worker=order.worker[rows].astype(np.int32),
        )

    def readers(self, context: ShardsContext) -> Readers:
        """Who reads. Raises an InputError if ranks cannot be shared evenly among nodes, or the keys
        say otherwise than machine and loader."""
        ranks = _agreed(
            "ranks_per_node", self.ranks_per_node, context.ranks_per_host, "the machine"
        )
        workers = _agreed("workers", self.workers, context.workers, "the loader")
        if ranks is None:
            ranks = max(of for of in range(1, RANKS + 1) if context.world_size % of == 0)
        if context.world_size % ranks:
            rule = f"must divide the {context.world_size} ranks: a library knows no nodes half full"
            remedy = "Use as many ranks as fill nodes."
            refuse("ranks_per_node", rule, str(ranks), remedy, "exchange")
        nodes = context.world_size // ranks
        return Readers(nodes, ranks, WORKERS if workers is None else workers, context.batch_size)

    def data(self, num_samples: int, sample_nbytes: float | None = None) -> ShardedSet:
        """The set in shards, in which ``num_samples`` samples are numbered as they lie;
        ``sample_nbytes`` are mean bytes of one, None where they are not known. Raises an InputError
        if the order reads shards or blocks, and there are none; or ``sample_size`` is another."""
        each = self.samples_per_shard or 1
        if each == 1 and self.order.unit != "sample":
            rule = f"must be at least 2: {self.short_name} reads {self.order.unit}s of samples"
            found = "none" if self.samples_per_shard is None else "1"
            remedy = "Say how many samples a shard of the data set has."
            refuse("samples_per_shard", rule, found, remedy, "exchange")
        nbytes = _agreed("sample_size", self.sample_size, sample_nbytes, "the data set") or 0.0
        samples = np.full(-(-num_samples // each), each)
        samples[-1] = num_samples - each * (len(samples) - 1)
        return ShardedSet(samples, samples * nbytes)

    def check(self, context: ShardsContext) -> None:
        """See that the order can be drawn for that many samples and ranks. Raises an InputError if
        it cannot; below the keys of this record."""
        readers = self.readers(context)
        self.data(len(context.owner), context.sample_nbytes)
        if len(context.owner) <= MOST_CHECKED:
            size, nbytes = len(context.owner), context.sample_nbytes
            _drawn_once(self.model_dump_json(), size, nbytes, readers, context.seed)

    def _drawn(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """The order of an epoch (from 1), with problems below the keys of this record."""
        try:
            return self.order.epoch(data, readers, seed, epoch - 1)
        except InputError as error:
            raise InputError([_below(problem) for problem in error.problems], "exchange") from None

    def cache_problems(self, sample_nbytes: float, capacity: float) -> list[Problem]:
        """What is wrong with the limit of the cache, given mean bytes of a sample, and the capacity
        of what the cache is in."""
        limit, samples = self.cache_limit, 1
        if not limit:
            return []
        if self.order.unit == "shard":
            samples = self.samples_per_shard or 1
        elif self.order.unit == "block":
            samples = min(self.order.block, self.samples_per_shard or 1)
        least, problems = samples * sample_nbytes, []
        shown = readable(limit, Dimension.NBYTES)
        if limit < least:
            rule = (
                f"must hold a {self.order.unit} of {readable(least, Dimension.NBYTES)}: a library"
                " fetches it anew for every sample, or fails"
            )
            problems.append(Problem("cache_limit", rule, shown, "Raise it, or give 0 B."))
        if limit > capacity:
            rule = f"must not exceed the {readable(capacity, Dimension.NBYTES)} of its host"
            problems.append(Problem("cache_limit", rule, shown, "Leave it out to have just that."))
        return problems

    def room(self, capacity: float, nbytes: float) -> int | None:
        """Bytes that the cache of a node may hold, given the capacity of what it is in and the
        bytes of the whole set; None where nothing need ever be dropped."""
        limit = capacity if self.cache_limit is None else self.cache_limit
        return None if limit >= nbytes else int(limit)

    def caches(self, context: ShardsContext, capacity: float, nbytes: Floats) -> Caches:
        """Those of all nodes, given the capacity of what they are in and the bytes (N,) of every
        sample."""
        of = self.pieces(context.owner, context.world_size, context.seed, nbytes)
        return Caches(self.readers(context), of, self.room(capacity, float(of.nbytes.sum())))

    def pieces(self, owner: Ints, world_size: int, seed: int, nbytes: Floats) -> Pieces:
        """What is fetched at once, given the bytes (N,) of every sample; those of a piece are
        rounded to whole ones."""
        data = self.data(len(owner))
        of_place = pieces(data, self.order.unit, self.order.block, self.order.places(data, seed))
        of_sample = np.empty(len(owner), np.int64)
        of_sample[stored_samples(owner, world_size, seed)] = of_place.of_sample
        sums = np.bincount(of_sample, nbytes, len(of_place.nbytes))
        return Pieces(of_sample, np.rint(sums).astype(np.int64))


def stored_samples(owner: Ints, world_size: int, seed: int) -> Ints:
    """The samples as they lie in the shards, (N,) int32: those of each rank of the partition in
    random order."""
    return shuffled_shards(owner, world_size, stream(seed, "storage")).order


def _trained(order: EpochOrder, readers: Readers, size: int) -> Ints64:
    """The rows of ``order`` that the ranks train on, rank by rank, ``size`` / M each, rounded up.
    Raises an InputError if a rank has none."""
    turn = iteration(order, readers)
    # rows come by rank, worker and position
    by_rank = np.argsort(order.rank * (int(turn.max(initial=0)) + 1) + turn, kind="stable")
    count = np.bincount(order.rank, minlength=readers.world_size)
    if not count.all():
        rule = "must leave each rank a sample: it would have nothing to train on"
        found = f"none for rank {int(np.argmin(count))}"
        refuse("order", rule, found, "Use fewer ranks, or more and smaller shards.", "exchange")
    place = np.arange(-(-size // readers.world_size)) % count[:, None]
    return np.asarray(by_rank[(np.cumsum(count) - count)[:, None] + place].ravel())


@lru_cache(maxsize=256)
def _drawn_once(
    text: str, size: int, sample_nbytes: float | None, readers: Readers, seed: int
) -> None:
    """See that the order of a `LoaderShuffle` in JSON can be drawn; not again for the same."""
    strategy = LoaderShuffle.model_validate_json(text)
    order = strategy._drawn(strategy.data(size, sample_nbytes), readers, seed, 1)
    _trained(order, readers, size)


def _below(problem: Problem) -> Problem:
    """A problem of an order at the key of the strategy that decides it."""
    key = _KEYS.get(problem.path)
    return problem.below("order") if key is None else replace(problem, path=key)


def _agreed(key: str, given: Any, known: Any, whose: str) -> Any:
    """What is given or known, which must not differ. Raises an InputError if they do."""
    if given is not None and known is not None and given != known:
        shown = [
            readable(one, Dimension.NBYTES) if key == "sample_size" else str(one)
            for one in (known, given)
        ]
        refuse(key, f"must be that of {whose}, {shown[0]}", shown[1], "Leave it out.", "exchange")
    return known if given is None else given
