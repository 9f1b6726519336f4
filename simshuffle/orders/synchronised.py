"""Synchronised shuffle: local shuffles that follow one permutation."""

from __future__ import annotations

from typing import ClassVar, Literal

from simshuffle.errors import InputError, Problem
from simshuffle.orders.order import EpochOrder, Order, Readers, ShardedSet, Unit
from simshuffle.orders.streams import handed_out_by_ranks
from simshuffle.spec.rng import stream


class Synchronised(Order):
    """Synchronised shuffling (Yun, Rajput & Sra, arXiv 2110.10342): every rank keeps its N/M
    samples, drawn once, and in each epoch all go through the places of their parts in the same
    random order. Nothing is sent. A rank reads by itself: worker 0 hands out everything."""

    kind: Literal["synchronised"]
    unit: ClassVar[Unit] = "sample"

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`.

        Raises:
            InputError: the parts of the ranks are not of one size, so that they have no
                permutation in common.
        """
        size, left = divmod(data.size, readers.world_size)
        if left or not size:
            rule = (
                f"must hold a multiple of {readers.world_size} samples: one permutation serves"
                " all ranks"
            )
            remedy = f"Leave out {left}." if size else "Read with fewer ranks."
            raise InputError(Problem("data.samples", rule, f"{data.size} samples", remedy))
        parts = stream(seed, "orders/synchronised/parts").permutation(data.size)
        order = stream(seed, "orders/synchronised/places", epoch).permutation(size)
        return handed_out_by_ranks(part[order] for part in parts.reshape(readers.world_size, size))
