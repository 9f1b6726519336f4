"""Ray Data: sources that are mixed block by block."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.workload.orders.mixture import Mixture
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet, Unit
from simshuffle.workload.orders.streams import (
    order_from_ranks,
    require_shard_for_each,
    samples_of_shards,
)


class RayMix(Mixture):
    """Ray Data 2.60.0: ``ds.mix(*others, weights, stopping_condition)``, by its source
    (ray/data/_internal/execution/operators/mix_operator.py
    `_select_most_behind_input`); its operator has been asked, not a cluster.

    A block, here a shard, is taken from the source that is furthest behind its share of
    the rows so far; of equals, from that of larger weight. So all epochs are equal, and
    seeds have no part in them. Where the longest source ends the epoch, shares hold
    only until the first source is exhausted: in the end each source is there once,
    whatever the weights. Blocks are dealt to ranks in turn (`streaming_split` deals
    them to whoever asks first, which no seed decides), and a rank reads by itself.

    Attributes:
        kind: its name.
        stopping: what ends an epoch (`stopping_condition`).
    """

    kind: Literal["ray_mix"]
    unit: ClassVar[Unit] = "shard"
    stopping: Literal["stop_on_shortest", "stop_on_longest_drop"] = (
        "stop_on_longest_drop"
    )

    default_sources: ClassVar[dict[str, str]] = {
        "stopping": "Ray Data 2.60.0, Dataset.mix"
    }

    @property
    def short_name(self) -> str:
        """'ray_mix' and the stopping condition."""
        return f"{self.kind} {self.stopping}"

    def epoch(
        self, data: ShardedSet, readers: Readers, seed: int, epoch: int
    ) -> EpochOrder:
        """Mix the sources of an epoch; no epoch and no seed differs from another.

        All rows are of worker 0. Shards that come after the end of the mixture are left
        out.

        Raises:
            InputError: for sources that do not fit to the set, and for a mixture of
                fewer shards than ranks, where Ray gives no block to some.
        """
        shards = self.mix_shards(data)
        mixed_set = ShardedSet(data.samples[shards], data.nbytes[shards])
        consequence = "Ray gives the others no block"
        require_shard_for_each(
            mixed_set, "readers.ranks", readers.world_size, "ranks", consequence
        )
        return order_from_ranks(
            samples_of_shards(data, shards[rank :: readers.world_size])
            for rank in range(readers.world_size)
        )

    def mix_shards(self, data: ShardedSet) -> list[int]:
        """Return the shards of an epoch, in the order in which the sources give them.

        They end when a source is exhausted, or when all are (``stopping``). Each shard
        comes once at most.

        Raises:
            InputError: for sources that do not fit to the set.
        """
        waiting_shards = [shards.tolist() for shards in self.shards_of_sources(data)]
        shares = [weight / sum(self.weights) for weight in self.weights]
        rows = [0] * len(shares)  # of each source, so far
        mixed_shards = []
        while any(waiting_shards) and (
            self.stopping != "stop_on_shortest" or all(waiting_shards)
        ):
            total_rows = sum(rows)
            # rows by which each source is behind its share, and its share
            behind = [
                (share * total_rows - source_rows, share) if shards else (-np.inf, 0.0)
                for share, source_rows, shards in zip(
                    shares, rows, waiting_shards, strict=True
                )
            ]
            source = behind.index(max(behind))
            mixed_shards.append(waiting_shards[source].pop(0))
            rows[source] += int(data.samples[mixed_shards[-1]])
        return mixed_shards
