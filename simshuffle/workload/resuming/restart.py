"""Loaders that save only the epoch's index."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import field_validator

from simshuffle.spec.library import parse_kind
from simshuffle.workload.orders import AnyOrder
from simshuffle.workload.orders.order import ShardedSet
from simshuffle.workload.resuming.law import Crash, OrderResumptionLaw, ResumedEpoch


class Restart(OrderResumptionLaw):
    """A loader without a state of its own: the epoch that was broken off begins again.

    Attributes:
        kind: its name.
        of: the order of the loader.
    """

    kind: Literal["restart"]
    library: ClassVar[str] = "any"
    saves: ClassVar[str] = "the number of the epoch"
    of: AnyOrder

    @field_validator("of", mode="before")
    @classmethod
    def _expand_kind(cls, order: Any) -> Any:
        """Read an order that is given by its kind alone."""
        return parse_kind(order) if isinstance(order, str) else order

    @property
    def short_name(self) -> str:
        """The short name of the order, and 'restarted'."""
        return f"{self.of.short_name}, restarted"

    def resume(self, data: ShardedSet, crash: Crash, seed: int) -> ResumedEpoch:
        """Return the whole epoch, for those who read now."""
        return ResumedEpoch(self.epoch(data, crash.readers_after, seed, crash.epoch))
