"""Importance pair (IS-Pair): importance exchange with one partner for the epoch, the least
important rank with the most important."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from simshuffle.exchange.importance_exchange import ImportanceSending
from simshuffle.exchange.partners import PartnerRuleName
from simshuffle.exchange.schedule import (
    SOURCES,
    ExchangeSchedule,
    PartnerLifetime,
    SamplesPerMessage,
)

PAIR_CODE = (
    "github.com/TruongThaoNguyen/kakurenbo (6cb9f88), ImageNet/utils/importance_scheduler.py,"
    " ImportancePairScheduler"
)


class PairSchedule(ExchangeSchedule):
    """Partners as of the authors' ImportancePairScheduler; keys and costs are those of
    `ExchangeSchedule`.

    Ranks are sorted once an epoch by the importance of their most important sample. All samples of
    an iteration travel in one message; in the ``authors`` schedule after one barrier.
    """

    partner_rule: PartnerRuleName = "importance_sorted"
    partner_lifetime: PartnerLifetime = "epoch"
    samples_per_message: SamplesPerMessage = "iteration"
    of_authors: ClassVar[Mapping[str, Any]] = {
        **ExchangeSchedule.of_authors,
        "barriers": "iteration",
    }
    source: str | dict[str, str] = Field(
        default_factory=lambda: SOURCES | {"samples_per_message": PAIR_CODE}
    )


class ImportancePair(ImportanceSending):
    """IS-Pair, and ILag-Pair with ``lagging`` (Nguyen and Tanimura, Efficient Sample Exchanging,
    poster).

    Samples are drawn as in importance exchange. "We also avoid network congestion by managing the
    communication pattern in a pair-wise manner (instead of an all-to-all pattern). That is, we pair
    the worker that holds the most important sample with the worker that holds the least importance
    of samples, and so on". The sentence compares the best sample of one rank with all samples of
    another; as in the authors' code, ranks are compared by their most important sample
    (``rank_importance: max``).
    """

    kind: Literal["importance_pair"]
    schedule: PairSchedule = PairSchedule()

    @property
    def short_name(self) -> str:
        """That of the poster."""
        return "ILag-Pair" if self.lagging else "IS-Pair"
