"""Records of an audit: its request, its kill points, and the rows that its ranks
trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming.law import Batches


@dataclass(frozen=True)
class AuditRequest:
    """The request of an audit: ranks, samples, epochs, and the points at which loaders
    die.
    """

    before: Readers  # ranks and workers until the crash
    after: tuple[Readers, ...]  # ranks and workers after it; one change of ranks each
    samples: tuple[int, ...]  # of each shard
    epochs: int
    seed: int
    at: tuple[tuple[int, int], ...]  # epochs and steps at which states are saved
    tries: int  # further points, drawn at random
    seconds: float  # that each run of the ranks may take

    @property
    def size(self) -> int:
        """Number of samples, N."""
        return sum(self.samples)


@dataclass(frozen=True)
class KillPoint:
    """The epoch and step at which the loader is killed."""

    epoch: int
    step: int  # at which its state is saved
    further: int  # batches that it goes on before it is killed


@dataclass(frozen=True)
class AuditTimes:
    """Seconds of the slowest rank of a run; None where no rank had a batch."""

    made_s: float | None  # for `make` or `resume`
    first_batch_s: float | None  # the same, and the first batch


@dataclass(frozen=True)
class AuditOutcome:
    """The outcome of a kill point and a change of ranks."""

    point: KillPoint
    after: Readers
    # what was trained on, of each epoch up to that of the point
    before_rows: Sequence[Batches]
    # the rest of that epoch, and the epochs after it; () if none
    after_rows: Sequence[Batches]
    error: str  # '' for none, 'hangs', or what a rank said
    state_nbytes: int  # of the rank with most; 0 if there is none
    started: AuditTimes  # before the crash
    resumed: AuditTimes
    # what the broken epoch, and each after it, has without this crash
    reference: Sequence[Batches] = ()
    trained_steps: int = 0  # iterations of the first of these that were done
    second: Sequence[AuditOutcome] = ()  # the same, killed once more


@dataclass(frozen=True)
class Audit:
    """The runs of an audit: uninterrupted, killed, and resumed."""

    request: AuditRequest
    name: str  # of the loader
    words: Sequence[str]  # of the command
    versions: Mapping[str, str]  # of the libraries that it has loaded
    # the uninterrupted epochs of each shape
    uninterrupted: Mapping[Readers, Sequence[Batches]]
    repeatable: bool  # whether the same seed gave the same epochs
    outcomes: Sequence[AuditOutcome]
