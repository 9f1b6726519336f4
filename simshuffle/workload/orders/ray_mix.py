"""Ray Data: sources that are mixed block by block."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from simshuffle.workload.orders.mixture import Mixture
from simshuffle.workload.orders.order import EpochOrder, Readers, ShardedSet, Unit
from simshuffle.workload.orders.streams import handed_out_by_ranks, need_shards_for, samples_of


class RayMix(Mixture):
    """Ray Data 2.60.0: ``ds.mix(*others, weights, stopping_condition)``, by its source
    (ray/data/_internal/execution/operators/mix_operator.py `_select_most_behind_input`); its
    operator has been asked, not a cluster.

    A block, here a shard, is taken from the source that is furthest behind its share of the rows so
    far; of equals, from that of larger weight. So every epoch is alike, and seeds have no part in
    it. Where the longest source ends it, shares hold only until the first source is exhausted: in
    the end each source is there once, whatever the weights. Blocks are dealt to ranks in turn
    (`streaming_split` deals them to whoever asks first, which no seed decides), and a rank reads by
    itself.

    Attributes:
        kind: its name.
        stopping: what ends an epoch (`stopping_condition`).
    """

    kind: Literal["ray_mix"]
    unit: ClassVar[Unit] = "shard"
    stopping: Literal["stop_on_shortest", "stop_on_longest_drop"] = "stop_on_longest_drop"

    default_sources: ClassVar[dict[str, str]] = {"stopping": "Ray Data 2.60.0, Dataset.mix"}

    @property
    def short_name(self) -> str:
        """'ray_mix' and what ends an epoch."""
        return f"{self.kind} {self.stopping}"

    def epoch(self, data: ShardedSet, readers: Readers, seed: int, epoch: int) -> EpochOrder:
        """See `Order`. Raises an InputError for sources that do not fit to the set, and for fewer
        shards than ranks, where Ray gives no block to some."""
        shards = self.mixed(data)
        taken = ShardedSet(data.samples[shards], data.nbytes[shards])
        lack = "Ray gives the others no block"
        need_shards_for(taken, "readers.ranks", readers.world_size, "ranks", lack)
        return handed_out_by_ranks(
            samples_of(data, shards[rank :: readers.world_size])
            for rank in range(readers.world_size)
        )

    def mixed(self, data: ShardedSet) -> list[int]:
        """The shards of an epoch, in their order."""
        waiting = [own.tolist() for own in self.shards(data)]
        shares = [weight / sum(self.weights) for weight in self.weights]
        rows, taken = [0] * len(shares), []
        while any(waiting) and (self.stopping != "stop_on_shortest" or all(waiting)):
            whole = sum(rows)
            behind = [
                (share * whole - had, share) if own else (-np.inf, 0.0)
                for share, had, own in zip(shares, rows, waiting, strict=True)
            ]
            source = behind.index(max(behind))
            taken.append(waiting[source].pop(0))
            rows[source] += int(data.samples[taken[-1]])
        return taken
