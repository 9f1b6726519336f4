"""Loaders that save nothing but the number of the epoch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import field_validator

from simshuffle.spec.library import parse_kind
from simshuffle.workload.orders import AnyOrder
from simshuffle.workload.orders.order import ShardedSet
from simshuffle.workload.resuming.law import Crash, Resumed, ResumeOf


class Restart(ResumeOf):
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
    def _named(cls, of: Any) -> Any:
        """An order by its kind alone."""
        return parse_kind(of) if isinstance(of, str) else of

    @property
    def short_name(self) -> str:
        """That of the order, and 'restarted'."""
        return f"{self.of.short_name}, restarted"

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed:
        """The whole epoch, for those who read now."""
        return Resumed(self.epoch(data, crash.after, seed, crash.epoch))
