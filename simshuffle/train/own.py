"""Studies of a caller's own model, data, loss and optimiser, from Python: runs of many
seeds and strategies, with tables, report and figures as of every other study of
trainings.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from simshuffle.errors import InputError, refuse
from simshuffle.spec.overrides import keys_overlap
from simshuffle.spec.record import Spec
from simshuffle.spec.validation import validate_record
from simshuffle.studies.training.study import STUDY, Trainings
from simshuffle.studies.training.tables import ABSENT
from simshuffle.study import engine
from simshuffle.study.executors import LocalExecutor
from simshuffle.study.standing import Progress, study_progress
from simshuffle.study.store import Disk
from simshuffle.study.study import Request, Result
from simshuffle.train.batch_norm import norm_mode
from simshuffle.train.cell import OwnCell, OwnTraining, cells_by_name
from simshuffle.train.emulate import (
    check_materials,
    find_device,
    plain_values,
    warn_of_large_batch,
    with_first_weights,
)
from simshuffle.train.loss import Loss, cross_entropy, loss_name
from simshuffle.train.network import torch_dtype
from simshuffle.train.partition import Partition
from simshuffle.train.run import Run
from simshuffle.train.shuffling import check_all, request_of, run_label
from simshuffle.train.sources import DatasetSource
from simshuffle.train.study import REFERENCES, Study
from simshuffle.train.training import (
    SGD_FIELDS,
    OptimizerFactory,
    TrainingOptions,
    own_optimizer,
    training_values,
)
from simshuffle.workload.exchange import Strategy

Strategies = Sequence[str | Strategy]


class StudyOptions(TrainingOptions, total=False):
    """Options of a study of the caller's own training, on emulated and on real ranks;
    the other keys are fields of `Training`, for all runs.

    Attributes:
        seeds: a list, or how many, which are 0, 1, ...; 3 by default. Intervals need
            two or more.
        loss: gives the loss of each sample, (n,), from outputs (n, classes) and targets
            (n,); cross-entropy by default.
        optimizer: makes an optimiser of the parameters; by default, or if None, SGD as
            `Training` describes it. See `emulate`.
        partition: who holds which sample before the first epoch, such as
            ``"dirichlet:alpha=0.3"``; 'random' by default.
        cluster: machine of the ranks, by its file or name, for strategies with near
            partners.
        over: further lists of values by the dotted key of a run, of which every
            combination is trained, such as ``{"training.learning_rate": [0.1, 0.2]}``.
        name, description: of the study; 'own' and '' by default.
        model_name, data_name: for tables and figures; by default those of the classes.
        version: a text that the caller changes with the code of model, data, loss or
            optimiser. Code cannot be seen from outside, so runs are kept only under a
            version.
        kept_in: folder in which finished runs are kept, so that a study that was
            stopped, or got more seeds, goes on. Needs a ``version``.
    """

    seeds: int | Sequence[int]
    loss: Loss
    optimizer: OptimizerFactory | None
    partition: str | Partition
    cluster: str | None
    over: Mapping[str, Sequence[Any]] | None
    name: str
    description: str
    model_name: str
    data_name: str
    version: str
    kept_in: str | Path | None


def train_study(
    model: Callable[[], nn.Module],
    train: Dataset[Any],
    test: Dataset[Any],
    *,
    strategies: Strategies,
    world_size: int | Sequence[int],
    device: str = "auto",
    processes: int | None = None,
    progress: bool | Progress = True,
    **study: Unpack[StudyOptions],
) -> Result:
    """Train a model on emulated ranks under several strategies, each with every number
    of ranks and seed.

    All runs are tried on a few samples before the first is trained, with a warning of
    local batches that are larger than a shard.

    Args:
        model: makes the network, such as ``lambda: MyNet()``. It is called for every
            run with the generator of torch at the run's seed: runs of one seed begin
            with the same weights.
        train, test: map-style data sets of pairs (input, target), targets whole numbers
            from 0.
        strategies: as records or text, such as
            ``"partial_local_shuffle:exchange_fraction=0.1"``; a single text will do.
        world_size: M, or several.
        device: 'auto' (a GPU if there is one), 'cpu', 'cuda', 'cuda:1'.
        processes: how many train at once; None or 0 for one on each core where that
            pays, and one on a GPU.
        progress: whether standard error shows how far it is; or a function that is told
            instead.
        study: `StudyOptions`.

    Returns:
        The result of `simshuffle train`: ``tables``, ``derived["summary"]`` with
        intervals, ``save(folder)`` for files and figures; `simshuffle.read` reads it
        again.

    Raises:
        InputError: an argument is not valid, a run cannot be trained so, or several
            processes were started by torchrun.
        SimulationError: all runs were lost.
        Interrupted: by Ctrl-C; its ``result`` has the runs that are done.
    """
    # what is refused is refused before anything is trained or shown
    _check_single_process()
    custom = custom_from_arguments(model, train, test, study)
    request = own_request(custom, strategies, world_size, device, study)
    executor = LocalExecutor(
        processes or (None if find_device(device).type == "cpu" else 1)
    )
    display = (
        study_progress("run") if progress is True else nullcontext(progress or None)
    )
    with display as tell, run_store(study) as store:
        try:
            return load_files(engine.run(STUDY, request, executor, store, tell))
        except engine.Interrupted as stop:
            partial_result = stop.result and load_files(stop.result)
            raise engine.Interrupted(stop.done, stop.total, partial_result) from None


def custom_from_arguments(
    model: Callable[[], nn.Module],
    train: Dataset[Any],
    test: Dataset[Any],
    study: StudyOptions,
) -> OwnTraining:
    """Return the caller's model, data, loss (default: cross-entropy) and optimiser."""
    return OwnTraining(
        model, train, test, study.get("loss", cross_entropy), study.get("optimizer")
    )


def own_request(
    custom: OwnTraining,
    strategies: Strategies,
    world_size: int | Sequence[int],
    device: str,
    study: StudyOptions,
) -> Request[Trainings]:
    """Return the request of a study of the caller's own training.

    Every run is tried on a few samples first, and the digests of all runs (`mark_of`)
    are part of what is asked.

    Args:
        custom: model, data, loss and optimiser.
        strategies, world_size, device, study: as of `train_study`.

    Raises:
        InputError: an argument is not valid, ``kept_in`` is given without ``version``,
            or a run cannot be trained so.
    """
    if study.get("kept_in") is not None and not study.get("version"):
        rule = "is needed with kept_in"
        remedy = "Give a version, and change it with your code."
        refuse("version", rule, "none", remedy, "train_study")
    device_type = find_device(device).type
    block = _run_block(strategies, world_size, study.get("over") or {})
    values = _study_values(_make_network(custom.model), custom, study)
    valid_study = _validate_study({**values, "runs": [block]})
    cells = own_cells(valid_study, custom, device if device != "auto" else device_type)
    request = request_of(valid_study, cells, device_type)
    marks = hashlib.sha256(
        "".join(cell.mark for cell in cells.values()).encode()
    ).hexdigest()
    return replace(request, asked={**request.asked, "own": marks})


@contextmanager
def run_store(study: StudyOptions) -> Iterator[Disk]:
    """Within the context, give the store of finished runs: a folder of the caller's, or
    one that is removed at the end.
    """
    if (folder := study.get("kept_in")) is not None:
        yield Disk(Path(folder).absolute())
    else:
        with tempfile.TemporaryDirectory(prefix="simshuffle-") as temporary:
            yield Disk(Path(temporary).absolute())


def load_files(result: Result) -> Result:
    """Return a copy of ``result`` with its files as bytes, which outlives the store."""
    files = {
        run: {
            name: file if isinstance(file, bytes) else file.read_bytes()
            for name, file in run_files.items()
        }
        for run, run_files in result.files_in.items()
    }
    return replace(result, files_in=files)


# ------------------------------------------------------------------------------------ the arguments


def _make_network(model: Callable[[], nn.Module]) -> nn.Module:
    """Return the network of one call of ``model``. The CPU's random state is restored.

    Errors of the call itself pass through.

    Raises:
        InputError: ``model`` is itself a network, no function, or makes no network.
    """
    network = None
    if callable(model) and not isinstance(model, nn.Module):
        with torch.random.fork_rng(devices=[]):
            network = model()
    if isinstance(network, nn.Module):
        return network
    rule = "must make a new torch.nn.Module for every run"
    value = f"a {type(model if network is None else network).__name__}"
    refuse("model", rule, value, "Pass model=lambda: MyNet().", "train_study")


def _study_values(
    network: nn.Module, custom: OwnTraining, study: StudyOptions
) -> dict[str, Any]:
    """Return the values of a study's file, except its runs; None for a key that is not
    set.

    Args:
        network: as ``custom`` makes it.
        custom: model, data, loss and optimiser.
        study: options.

    Raises:
        InputError: as of `training_values`, where the caller gives an optimiser; it is
            made, and tried on ``network``.
    """
    study_keys = StudyOptions.__annotations__.keys() - TrainingOptions.__annotations__
    training = {key: value for key, value in study.items() if key not in study_keys}
    varied_keys = study.get("over") or {}
    version = study.get("version", "")
    optimizer = "SGD"
    if custom.optimizer is not None:
        sgd_fields = {
            key
            for key in SGD_FIELDS
            if key in training
            or any(keys_overlap(varied, f"training.{key}") for varied in varied_keys)
        }
        training |= training_values(network, custom.optimizer, sgd_fields)
        optimizer = type(own_optimizer(network, custom.optimizer)).__name__
    model = {
        "kind": "own",
        "name": study.get("model_name") or type(network).__name__,
        "loss": loss_name(custom.loss),
        "optimizer": optimizer,
        "has_batch_norm": norm_mode(network, "per_rank") != ABSENT,
        "version": version,
    }
    data_name = study.get("data_name") or _data_name(custom.train)
    seeds = study.get("seeds", 3)
    return {
        "name": study.get("name", "own"),
        "description": study.get("description", ""),
        "data": {"kind": "own", "name": data_name, "version": version},
        "model": model,
        "partition": plain_values(study.get("partition", "random"), "partition"),
        "cluster": study.get("cluster"),
        "training": training,
        "seeds": seeds if isinstance(seeds, int) else list(seeds),
    }


def _validate_study(raw: dict[str, Any]) -> Study:
    """Return the study with these plain values (None: not set), or raise InputError,
    naming arguments of `train_study` for faults of runs, else the key in ``raw``.
    """
    present = {key: value for key, value in raw.items() if value is not None}
    study, problems = validate_record(present, Study)
    if problems or study is None:
        raise InputError(problems, "train_study")
    try:
        study.all_runs()
    except InputError as error:
        renamed = [
            replace(problem, path=_argument(problem.path)) for problem in error.problems
        ]
        raise InputError(renamed, "train_study") from None
    return study


def _argument(path: str) -> str:
    """Return the argument of `train_study` behind path ``runs.0.KEY``, KEY being of the
    study's only block: ``over.KEY`` for keys of ``over``; any other path as it is.
    """
    key = path.removeprefix("runs.0.")
    if key == path or key.partition(".")[0] == "world_size":
        return key
    name = argument_of(key)
    return name if name != key else f"over.{key}"


def _run_block(
    strategies: Strategies,
    world_size: int | Sequence[int],
    over: Mapping[str, Sequence[Any]],
) -> dict[str, list[Any]]:
    """Return the block of runs as a study's file has it: lists of values by dotted key.

    Arguments as of `train_study` and `StudyOptions`. In ``over``, keys ``exchange`` and
    ``world_size`` replace those arguments.

    Raises:
        InputError: a value of ``over`` is no list, or a record's text cannot be read.
    """
    for key, values in over.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            rule = "must be a list of values"
            remedy = f"Write [{values!r}]."
            refuse(f"over.{key}", rule, repr(values), remedy, "train_study")
    strategy_list = [strategies] if isinstance(strategies, str) else strategies
    return {
        "exchange": _plain_records(strategy_list, "strategies"),
        "world_size": [world_size] if isinstance(world_size, int) else list(world_size),
        **{
            key: _plain_records(values, f"over.{key}")
            if key in REFERENCES
            else list(values)
            for key, values in over.items()
        },
    }


def _plain_records(values: Sequence[Any], name: str) -> list[Any]:
    """Return records, each given as an object or by text, as plain values.

    Args:
        values: the records.
        name: of the argument, for errors.
    """
    records = [plain_values(value, name) for value in values]
    return [
        record.model_dump(mode="json") if isinstance(record, Spec) else record
        for record in records
    ]


def _data_name(data: Dataset[Any]) -> str:
    """Return a name for the data: its class; of a subset that of the whole set."""
    return _data_name(data.dataset) if hasattr(data, "dataset") else type(data).__name__


def _check_single_process() -> None:
    """Raise InputError if torchrun started several processes, which would all train
    everything.
    """
    has_group = dist.is_available() and dist.is_initialized()
    count = (
        dist.get_world_size() if has_group else int(os.environ.get("WORLD_SIZE", "1"))
    )
    if count > 1:
        rule = "emulates all ranks in one process"
        remedy = (
            "Start without torchrun, or use simshuffle.train.distributed.train_study."
        )
        refuse("train_study", rule, f"{count} processes", remedy, "train_study")


# ----------------------------------------------------------------------------------------- the runs


def own_cells(study: Study, custom: OwnTraining, device: str) -> dict[str, OwnCell]:
    """Return the runs of a study of the caller's own training, as cells by name.

    Each is checked on the CPU as of `check_all`, with a warning of local batches larger
    than a shard. Runs of one seed share a digest.

    Raises:
        InputError: with the problems of all runs that cannot be trained, by the
            arguments of `train_study`.
    """
    runs = study.all_runs()
    cpu = torch.device("cpu")
    train, test = custom.sources(torch.float32, cpu)
    # first weights follow from the seed alone, so one network a seed will do
    run_of_seed = {run.seed: run for run in runs}
    marks = {
        seed: mark_of(with_first_weights(run, custom.model), custom, train, test)
        for seed, run in run_of_seed.items()
    }

    def check(run: Run) -> None:
        """Try the run's network on a few samples, and warn of a large batch."""
        dtype = torch_dtype(run.training)
        # another type needs a source of its own
        source = train if dtype == torch.float32 else custom.sources(dtype, cpu)[0]
        check_materials(run, with_first_weights(run, custom.model), source, custom.loss)
        warn_of_large_batch(len(train), run.world_size, run.training)

    check_all(runs, "train_study", check, argument_of)
    return cells_by_name(
        OwnCell(run, len(train), run_label(run), device, custom, marks[run.seed])
        for run in runs
    )


def argument_of(key: str) -> str:
    """Return the argument of `train_study` that a key of a run comes from.

    ``exchange`` is ``strategies``, ``exchange.KEY`` ``strategies.KEY``, others stay.
    """
    record, dot, inner_key = key.partition(".")
    return f"strategies{dot}{inner_key}" if record == "exchange" else key


def mark_of(
    network: nn.Module, custom: OwnTraining, train: DatasetSource, test: DatasetSource
) -> str:
    """Return a digest that tells trainings of the caller's apart.

    It covers layers and first weights of ``network``, with which a run begins, all
    labels, what the optimiser and a loss of torch.nn print of themselves, and the name
    of any other loss. It covers neither inputs, which may be drawn at random, nor code,
    nor arguments that were bound to a loss function.
    """
    digest = hashlib.sha256(repr(network).encode())
    for key, value in network.state_dict().items():
        # as bytes, since numpy has no bfloat16
        content = value.detach().cpu().reshape(-1).view(torch.uint8)
        digest.update(key.encode() + content.numpy().tobytes())
    for source in (train, test):
        digest.update(np.ascontiguousarray(source.targets).tobytes())
    settings = (
        ""
        if custom.optimizer is None
        else repr(own_optimizer(network, custom.optimizer))
    )
    loss = (
        repr(custom.loss)
        if isinstance(custom.loss, nn.Module)
        else loss_name(custom.loss)
    )
    digest.update(f"{len(train)} {len(test)} {loss} {settings}".encode())
    return digest.hexdigest()
