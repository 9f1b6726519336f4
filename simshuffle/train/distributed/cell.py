"""One training run on real ranks as a cell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from simshuffle.studies.training.record import TIMELINE, outcome_of
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.train.cell import RunCell
from simshuffle.train.distributed.training import trained_on_ranks
from simshuffle.train.distributed.transport import TransportName


@dataclass(frozen=True)
class RankCell(PlainCell):
    """A run on the ranks that torchrun started. Every one of them runs the cell at the same time;
    what the first one gives is its outcome.

    Attributes:
        emulated: the same run on emulated ranks.
        transport: of the samples.
        storage: folder of the shards; None for memory.
        torch_device: of this rank, such as 'cuda:1'.
    """

    emulated: RunCell
    transport: TransportName = "isend"
    storage: Path | None = None
    torch_device: str = "cpu"

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [*self.emulated.key, self.transport]

    @property
    def label(self) -> str:
        """As for `Cell`."""
        return self.emulated.label

    @property
    def cost(self) -> float:
        """As for `Cell`."""
        return self.emulated.cost

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return self.emulated.memory

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`."""
        return self.emulated.parts | {TIMELINE}

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`, with what every rank did when."""
        device = torch.device(self.torch_device)
        record = trained_on_ranks(
            self.emulated.training_run,
            self.emulated.materials(device),
            transport=self.transport,
            storage=self.storage,
            device=device,
        )
        if record is None:
            return Outcome()
        outcome, timeline = outcome_of(record), BytesIO()
        record.timeline.to_parquet(timeline, index=False, compression="zstd")
        return replace(outcome, files={**outcome.files, TIMELINE: timeline.getvalue()})
