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
    epochs: int  # of a run, the broken one included
    seed: int  # of the loader, and of the points that are drawn
    # (epoch from 0, step from 1) after which states are saved, and the loader is killed
    at: tuple[tuple[int, int], ...]
    tries: int  # further points, drawn at random
    seconds: float  # that each run of the ranks may take

    @property
    def size(self) -> int:
        """Number of samples, N."""
        return sum(self.samples)


@dataclass(frozen=True)
class KillPoint:
    """The epoch and step at which the loader is killed."""

    epoch: int  # from 0
    # from 1: its state is saved after this step; of a second crash, since the run went
    # on or the epoch began
    step: int
    # batches that it goes on before it is killed; they do not count as trained
    further: int


@dataclass(frozen=True)
class AuditTimes:
    """Seconds of the slowest rank of a run; None where no rank had a batch."""

    made_s: float | None  # for `make` or `resume`
    first_batch_s: float | None  # the same, and the first batch after it


@dataclass(frozen=True)
class AuditOutcome:
    """The outcome of a kill point and a change of ranks."""

    point: KillPoint
    after: Readers  # that resume
    # what was trained on until the state was saved, of each epoch up to the point's
    before_rows: Sequence[Batches]
    # the rest of that epoch, steps from 0, and the epochs after it; empty with an error
    after_rows: Sequence[Batches]
    error: str  # '' for none, 'hangs', or what a rank said
    state_nbytes: int  # pickled, of the rank with most; 0 if there is none
    started: AuditTimes  # before the crash
    resumed: AuditTimes  # after the crash
    # what the broken epoch, and each after it, has without this crash; () if the ranks
    # were not killed as told
    reference: Sequence[Batches] = ()
    trained_steps: int = 0  # iterations of the first of these that were done
    # the same run killed once more, at up to two places; () if it was not
    second: Sequence[AuditOutcome] = ()


@dataclass(frozen=True)
class Audit:
    """The runs of an audit: uninterrupted, killed, and resumed."""

    request: AuditRequest
    name: str  # of the loader
    words: Sequence[str]  # of the command
    versions: Mapping[str, str]  # of the libraries that it has loaded
    # the uninterrupted epochs, by readers: those before the crash and those after it
    uninterrupted: Mapping[Readers, Sequence[Batches]]
    repeatable: bool  # whether the same seed gave the same epochs
    outcomes: Sequence[AuditOutcome]  # by points, then by readers after the crash
