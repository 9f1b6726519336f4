"""A study, of a file or of the caller's, whose runs are trained on real ranks, each as a cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Unpack, cast

import torch
from torch import nn
from torch.utils.data import Dataset

from simshuffle.studies.training.study import STUDY, Trainings
from simshuffle.studies.training.tables import TIMELINE, outcome_of
from simshuffle.study import engine
from simshuffle.study.cell import Outcome, PlainCell, Tell, digest_of
from simshuffle.study.store import Disk
from simshuffle.study.study import Request, Result, fingerprint
from simshuffle.train.cell import TrainingCell
from simshuffle.train.distributed.group import RankGroup, alike
from simshuffle.train.distributed.training import check_world, train_distributed
from simshuffle.train.distributed.transport import TransportName
from simshuffle.train.emulate import device_named
from simshuffle.train.own import (
    Strategies,
    StudyOptions,
    kept_runs,
    own_of,
    own_request,
    with_contents,
)


@dataclass(frozen=True)
class RankCell(PlainCell):
    """A run on the ranks that torchrun started. Every one of them runs the cell at the same time;
    what the first one gives is its outcome."""

    emulated: TrainingCell  # the same run on emulated ranks
    transport: TransportName = "isend"  # of the samples
    storage: Path | None = None  # folder of the shards; None for memory
    torch_device: str = "cpu"  # of this rank, such as 'cuda:1'

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [*self.emulated.key, self.transport]

    @property
    def label(self) -> str:
        """As for `Cell`."""
        return self.emulated.label

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`."""
        return self.emulated.parts | {TIMELINE}

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`, with what every rank did when."""
        device = torch.device(self.torch_device)
        record = train_distributed(
            self.emulated.training_run,
            data=self.emulated.materials(device),
            transport=self.transport,
            storage=self.storage,
            device=device,
        )
        if record is None:
            return Outcome()
        outcome, timeline = outcome_of(record), BytesIO()
        record.timeline.to_parquet(timeline, index=False, compression="zstd")
        return replace(outcome, files={**outcome.files, TIMELINE: timeline.getvalue()})


def on_ranks(
    emulated: Request[Trainings],
    world_size: int,
    transport: TransportName,
    storage: Path | None,
    device: torch.device,
) -> Request[Trainings]:
    """What is asked of a study, with real ranks in the place of emulated ones."""
    cells = {
        name: RankCell(cast(TrainingCell, cell), transport, storage, str(device))
        for name, cell in emulated.values.cells.items()
    }
    where = f"{device.type}, {world_size} processes"
    asked = {**emulated.asked, "ranks": world_size, "transport": transport}
    return replace(
        emulated, values=replace(emulated.values, cells=cells, device=where), asked=asked
    )


def carried_out(ranks: RankGroup, asked: Request[Trainings], store: Disk) -> Result | None:
    """The result of a study on real ranks: on rank 0, None on the others. Runs that rank 0 finds in
    ``store`` are not trained again. Collective. Raises InputError where the ranks' studies differ
    or a run cannot be trained, ExchangeError where samples could not be exchanged."""
    alike(
        ranks,
        {"study": fingerprint(STUDY, asked)},
        {"study": "Give every rank the same study, model and data, and the same versions."},
    )
    first = ranks.rank == 0
    for cell in asked.values.cells.values():
        digest = digest_of(cell)
        there = "there" if first and store.has(digest, cell.parts) else ""
        if not any(ranks.gather_texts(there)):
            outcome = cell.run(lambda share: None)
            if first:
                store.add(digest, outcome)
    return engine.run(STUDY, asked, store=store) if first else None


def train_study(
    model: Callable[[], nn.Module],
    train: Dataset[Any],
    test: Dataset[Any],
    *,
    strategies: Strategies,
    world_size: int | None = None,
    transport: TransportName = "isend",
    storage: str | Path | None = None,
    device: str = "cpu",
    **study: Unpack[StudyOptions],
) -> Result | None:
    """`simshuffle.train.train_study` on the ranks of the process group. Every rank calls it.

    Random transforms of ``train`` are drawn once, when a rank stages its shard.

    Args:
        model, train, test, strategies: as for `simshuffle.train.train_study`, the same on all
            ranks.
        world_size: the number of processes, if it is given.
        transport: 'isend' or 'all_to_all'; see `Scheduler`.
        storage: folder on the local storage for the shards; None for memory.
        device: that trains, of this rank.
        study: `StudyOptions`.

    Returns:
        The result on rank 0, None on the others.

    Raises:
        InputError: an argument is not valid, or a run cannot be trained so.
        ExchangeError: samples could not be exchanged; none is lost.
    """
    ranks, where = RankGroup.current(), device_named(device)
    if world_size is not None:
        check_world(world_size, ranks.world_size)
    own = own_of(model, train, test, study)
    emulated = own_request(own, strategies, ranks.world_size, device, study)
    folder = None if storage is None else Path(storage)
    request = on_ranks(emulated, ranks.world_size, transport, folder, where)
    with kept_runs(study) as store:
        result = carried_out(ranks, request, store)
        return result and with_contents(result)
