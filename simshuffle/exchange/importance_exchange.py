"""Importance exchange (IS): local shuffle, with samples of high loss exchanged rather than
others."""

from __future__ import annotations

from typing import Literal

from simshuffle.exchange.importance import Selection
from simshuffle.exchange.sending import SendingStrategy


class ImportanceSending(SendingStrategy):
    """What the two importance strategies have in common.

    "We define the importance of a sample by its inference loss" (poster): each rank's network, as
    it stands before the epoch, on each sample of its shard. "To reduce the overhead of computing
    the importance of samples in an epoch t, we propose to reuse the training losses in the previous
    epoch t - 1 (lagging loss)". Nothing is said of the first epoch, which has none before it: all
    samples are alike then, so they are drawn, and ranks paired, at random.

    Attributes:
        selection: which samples are sent; see `Selection`.
        lagging: importance is the loss that a sample had when it was last trained on, and not that
            of an inference pass.
    """

    selection: Selection = "importance"
    lagging: bool = False

    @property
    def inference_pass(self) -> bool:
        """Whether importance is needed, and not that of the last epoch's training."""
        return self.needs_importance and not self.lagging


class ImportanceExchange(ImportanceSending):
    """IS, and ILag with ``lagging`` (Nguyen and Tanimura, Efficient Sample Exchanging, poster;
    ImportanceScheduler of the authors' code).

    As partial local shuffle, but for the samples: "we propose to exchange the samples that provide
    more important information in training". They are drawn with p_i = I_i / sum(I) over the rank's
    shard, without replacement (`importance.selected`). Partners are a new random permutation for
    every sample.
    """

    kind: Literal["importance_exchange"]

    @property
    def short_name(self) -> str:
        """That of the poster."""
        return "ILag" if self.lagging else "IS"
