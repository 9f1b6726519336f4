"""The strategies: samples drawn anew, kept, or exchanged in part, at random or by
importance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simshuffle.spec.arrays import Ints
from simshuffle.workload.exchange.base import Source, Strategy, Style
from simshuffle.workload.exchange.importance import Selection
from simshuffle.workload.exchange.partners import PartnerRuleName
from simshuffle.workload.exchange.plan import Shards, random_order
from simshuffle.workload.exchange.schedule import (
    SOURCES,
    ExchangeSchedule,
    PartnerLifetime,
    SamplesPerMessage,
)
from simshuffle.workload.exchange.sending import SendingStrategy

PAIR_CODE = (
    "github.com/TruongThaoNguyen/kakurenbo (6cb9f88), ImageNet/utils/importance_scheduler.py,"
    " ImportancePairScheduler"
)


class GlobalShuffle(Strategy):
    """Each rank reads a random 1/M of all samples in every epoch: from the 'pfs', from
    the 'object_store' of the cluster, or from an 'ssd' that holds the whole set.

    Attributes:
        source: what samples are read from.
    """

    kind: Literal["global_shuffle"]
    redraws: ClassVar[bool] = True
    styles: ClassVar = {"global": Style("#000000", "s")}
    source: Source = "pfs"

    @property
    def tier(self) -> Source:
        """``source``."""
        return self.source

    def stored_share(self, world_size: int, ranks_on_host: int) -> float:
        """Return 1 if samples are read from the SSD, 0 if from what all hosts share."""
        return 1.0 if self.source == "ssd" else 0.0

    def first_owner(
        self, num_samples: int, world_size: int, rng: np.random.Generator
    ) -> Ints:
        """Return rank 0 for every sample, as a placeholder: nobody owns samples.

        The array (N,) is read-only and takes no memory. Nothing is drawn from ``rng``.
        """
        return np.broadcast_to(np.int32(0), num_samples)

    def shards(self, owner: Ints, world_size: int, rng: np.random.Generator) -> Shards:
        """Permute all samples, and cut them into M parts that differ by one at most.

        ``owner`` serves for its length only.
        """
        order = random_order(len(owner), rng)
        # rank r begins at r N / M, rounded down
        return Shards(order, np.arange(world_size + 1) * len(owner) // world_size)


class LocalShuffle(Strategy):
    """Each rank trains on its own N/M samples, in a new order every epoch; kept on the
    SSD, or read from the PFS or the object store each time.

    Attributes:
        source: what samples are read from.
    """

    kind: Literal["local_shuffle"]
    styles: ClassVar = {"local": Style("#EE6677", "v")}
    source: Source = "ssd"

    @property
    def tier(self) -> Source:
        """``source``."""
        return self.source


class PartialLocalShuffle(SendingStrategy):
    """Nguyen et al., IPDPS 2022. The first Q N/M samples of a rank's new local order
    are sent, spread over the iterations.

    Importance is needed only where the schedule pairs ranks by it; it is then that of
    an inference pass.

    Attributes:
        selection: 'random', as published; or 'oldest': the samples that the rank has
            had for the most epochs go first, equals at random.
    """

    kind: Literal["partial_local_shuffle"]
    styles: ClassVar = {"partial": Style("#4477AA", "o")}
    selection: Literal["random", "oldest"] = "random"

    @property
    def short_name(self) -> str:
        """'partial'."""
        return "partial"


class ImportanceSending(SendingStrategy):
    """The common part of the two importance strategies.

    "We define the importance of a sample by its inference loss" (poster): each rank's
    network, as it stands before the epoch, on each sample of its shard. "To reduce the
    overhead of computing the importance of samples in an epoch t, we propose to reuse
    the training losses in the previous epoch t - 1 (lagging loss)". The poster does not
    say what happens in the first epoch, which has none before it. Here all samples are
    equal then, so they are drawn, and ranks paired, at random.

    Attributes:
        selection: which samples are sent; see `Selection`.
        lagging: importance is the loss that a sample had when it was last trained on,
            and not that of an inference pass.
    """

    selection: Selection = "importance"
    lagging: bool = False

    @property
    def inference_pass(self) -> bool:
        """True if importance is needed, and is not that of the last epoch's training."""
        return self.needs_importance and not self.lagging


class ImportanceExchange(ImportanceSending):
    """IS, and ILag with ``lagging`` (Nguyen and Tanimura, Efficient Sample Exchanging,
    poster; ImportanceScheduler of the authors' code).

    As partial local shuffle, but for the samples: "we propose to exchange the samples
    that provide more important information in training". By default they are drawn with
    p_i = I_i / sum(I) over the rank's shard, without replacement
    (`importance.select_samples`), and partners are a new random permutation for every
    sample.
    """

    kind: Literal["importance_exchange"]
    styles: ClassVar = {"IS": Style("#228833", "^"), "ILag": Style("#66CCEE", "<")}

    @property
    def short_name(self) -> str:
        """The poster's name: 'ILag' if ``lagging``, else 'IS'."""
        return "ILag" if self.lagging else "IS"


class PairSchedule(ExchangeSchedule):
    """Partners by the authors' ImportancePairScheduler, with the keys and costs of
    `ExchangeSchedule`.

    Ranks are sorted once an epoch by the importance of their most important sample. All
    samples of an iteration travel in one message; in the ``authors`` schedule after one
    barrier.
    """

    partner_rule: PartnerRuleName = "importance_sorted"
    partner_lifetime: PartnerLifetime = "epoch"
    samples_per_message: SamplesPerMessage = "iteration"
    authors_settings: ClassVar[Mapping[str, Any]] = {
        **ExchangeSchedule.authors_settings,
        "barriers": "iteration",
    }
    source: str | dict[str, str] = Field(
        default_factory=lambda: SOURCES | {"samples_per_message": PAIR_CODE}
    )


class ImportancePair(ImportanceSending):
    """IS-Pair, and ILag-Pair with ``lagging`` (Nguyen and Tanimura, Efficient Sample
    Exchanging, poster).

    Samples are drawn as in importance exchange. "We also avoid network congestion by
    managing the communication pattern in a pair-wise manner (instead of an all-to-all
    pattern). That is, we pair the worker that holds the most important sample with the
    worker that holds the least importance of samples, and so on". The sentence compares
    the best sample of one rank with all samples of another; as in the authors' code,
    ranks are compared by their most important sample (``rank_importance: max``).
    """

    kind: Literal["importance_pair"]
    styles: ClassVar = {
        "IS-Pair": Style("#CCBB44", "D"),
        "ILag-Pair": Style("#AA3377", "P"),
    }
    schedule: PairSchedule = PairSchedule()

    @property
    def short_name(self) -> str:
        """The poster's name: 'ILag-Pair' if ``lagging``, else 'IS-Pair'."""
        return "ILag-Pair" if self.lagging else "IS-Pair"
