"""Studies, of a file or of the caller's own training, whose runs are trained on real
ranks, each as a cell.
"""

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
from simshuffle.studies.training.tables import TIMELINE, run_outcome
from simshuffle.study import engine
from simshuffle.study.cell import Outcome, PlainCell, Tell, digest_of
from simshuffle.study.store import Disk
from simshuffle.study.study import Request, Result, fingerprint
from simshuffle.train.cell import TrainingCell
from simshuffle.train.distributed.group import RankGroup, check_equal
from simshuffle.train.distributed.training import check_world, train_distributed
from simshuffle.train.distributed.transport import TransportName
from simshuffle.train.emulate import find_device
from simshuffle.train.own import (
    Strategies,
    StudyOptions,
    custom_from_arguments,
    load_files,
    own_request,
    run_store,
)


@dataclass(frozen=True)
class RankCell(PlainCell):
    """A run on the ranks that torchrun started. Every one of them runs the cell at the
    same time; the outcome is that of rank 0.
    """

    emulated: TrainingCell  # the same run on emulated ranks
    transport: TransportName = "isend"  # of the samples
    storage: Path | None = None  # folder of the shards; None for memory
    torch_device: str = "cpu"  # of this rank, such as 'cuda:1'

    @property
    def key(self) -> Any:
        """The values that decide the run: the key of the emulated run, which names the
        kind of device, and the transport; not the storage.
        """
        return [*self.emulated.key, self.transport]

    @property
    def label(self) -> str:
        """The label of the emulated run."""
        return self.emulated.label

    @property
    def parts(self) -> frozenset[str]:
        """Names of the outcome's tables and files, with the timeline."""
        return self.emulated.parts | {TIMELINE}

    def run(self, tell: Tell) -> Outcome:
        """Train on all ranks; return the outcome, with the timeline of every rank, on
        rank 0, and an empty outcome on the others. Collective; ``tell`` is not called.

        Raises:
            InputError: the run cannot be trained so.
            ExchangeError: samples could not be exchanged.
        """
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
        outcome = run_outcome(record)
        timeline = BytesIO()
        record.timeline.to_parquet(timeline, index=False, compression="zstd")
        return replace(outcome, files={**outcome.files, TIMELINE: timeline.getvalue()})


def request_on_ranks(
    emulated: Request[Trainings],
    world_size: int,
    transport: TransportName,
    storage: Path | None,
    device: torch.device,
) -> Request[Trainings]:
    """Return the request of a study with real ranks in place of emulated ones.

    Args:
        emulated: the request with emulated ranks.
        world_size: number of processes.
        transport: of the samples.
        storage: folder of the shards; None for memory.
        device: of this rank.
    """
    cells = {
        name: RankCell(cast(TrainingCell, cell), transport, storage, str(device))
        for name, cell in emulated.values.cells.items()
    }
    label = f"{device.type}, {world_size} processes"
    return replace(
        emulated,
        values=replace(emulated.values, cells=cells, device=label),
        asked={**emulated.asked, "ranks": world_size, "transport": transport},
    )


def run_on_ranks(
    ranks: RankGroup, request: Request[Trainings], store: Disk
) -> Result | None:
    """Train the runs of a study on real ranks; return its result on rank 0, None on the
    others.

    Collective. Runs that rank 0 finds in ``store`` are not trained again; rank 0 adds
    each new run to it.

    Raises:
        InputError: the ranks' studies differ, or a run cannot be trained.
        ExchangeError: samples could not be exchanged.
    """
    check_equal(
        ranks,
        {"study": fingerprint(STUDY, request)},
        {
            "study": "Give every rank the same study, model and data, and the same versions."
        },
    )
    is_first = ranks.rank == 0
    for cell in request.values.cells.values():
        digest = digest_of(cell)
        is_stored = "stored" if is_first and store.has(digest, cell.parts) else ""
        if not any(ranks.gather_texts(is_stored)):
            outcome = cell.run(lambda share: None)
            if is_first:
                store.add(digest, outcome)
    return engine.run(STUDY, request, store=store) if is_first else None


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
    """Train as `simshuffle.train.train_study`, on the ranks of the process group. Every
    rank calls it.

    Random transforms of ``train`` are drawn once, when a rank stages its shard.

    Args:
        model, train, test, strategies: as for `simshuffle.train.train_study`, the same
            on all ranks.
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
    ranks = RankGroup.current()
    torch_device = find_device(device)
    if world_size is not None:
        check_world(world_size, ranks.world_size)
    custom = custom_from_arguments(model, train, test, study)
    emulated = own_request(custom, strategies, ranks.world_size, device, study)
    folder = None if storage is None else Path(storage)
    request = request_on_ranks(
        emulated, ranks.world_size, transport, folder, torch_device
    )
    with run_store(study) as store:
        result = run_on_ranks(ranks, request, store)
        return result and load_files(result)
