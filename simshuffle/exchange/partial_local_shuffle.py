"""Partial local shuffle (PLS): local shuffle, with a fraction Q of every shard exchanged each
epoch."""

from __future__ import annotations

from typing import Literal

from simshuffle.exchange.sending import SendingStrategy


class PartialLocalShuffle(SendingStrategy):
    """Nguyen et al., IPDPS 2022. The first Q N/M samples of a rank's new local order are sent,
    spread over the iterations.

    Importance is needed only where the schedule pairs ranks by it; it is then that of an inference
    pass.

    Attributes:
        selection: 'random', as published; or 'oldest': the samples that the rank has had for the
            most epochs go first, equals at random.
    """

    kind: Literal["partial_local_shuffle"]
    selection: Literal["random", "oldest"] = "random"

    @property
    def short_name(self) -> str:
        """'partial'."""
        return "partial"
