"""Loaders that save nothing but the number of the epoch."""

from __future__ import annotations

from typing import ClassVar, Literal

from simshuffle.orders import AnyOrder
from simshuffle.orders.order import Order, ShardedSet
from simshuffle.resuming.law import Crash, Resume, Resumed


class Restart(Resume):
    """A loader without a state of its own: the epoch that was broken off begins again.

    Attributes:
        kind: its name.
        of: the order of the loader.
    """

    kind: Literal["restart"]
    library: ClassVar[str] = "any"
    saves: ClassVar[str] = "the number of the epoch"
    of: AnyOrder

    @property
    def short_name(self) -> str:
        """That of the order, and 'restarted'."""
        return f"{self.of.short_name}, restarted"

    @property
    def order(self) -> Order:
        """As given."""
        return self.of

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed:
        """The whole epoch, for those who read now."""
        return Resumed(self.epoch(data, crash.after, seed, crash.epoch))
