"""Local shuffle: every rank keeps its shard and shuffles it."""

from __future__ import annotations

from typing import Literal

from simshuffle.exchange.base import Source, Strategy


class LocalShuffle(Strategy):
    """Each rank trains on its own N/M samples, in a new order every epoch; kept on the SSD, or read
    from the PFS or the object store each time.

    Attributes:
        source: what samples are read from.
    """

    kind: Literal["local_shuffle"]
    source: Source = "ssd"

    @property
    def tier(self) -> Source:
        """``source``."""
        return self.source
