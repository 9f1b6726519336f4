"""Studies of a model, data, loss and optimiser of the caller's, from Python: many runs of seeds and
strategies, with the tables, report and figures of every other study of trainings."""

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
from simshuffle.train.batch_norm import mode_of
from simshuffle.train.cell import OwnCell, OwnTraining, named
from simshuffle.train.emulate import (
    check_materials,
    device_named,
    plain_record,
    warn_of_large_batch,
    with_first_weights,
)
from simshuffle.train.loss import Loss, cross_entropy, loss_name
from simshuffle.train.network import torch_dtype
from simshuffle.train.partition import Partition
from simshuffle.train.run import Run
from simshuffle.train.samples import DatasetSource
from simshuffle.train.shuffling import check_all, request_of, run_label
from simshuffle.train.study import REFERENCES, Study
from simshuffle.train.training import (
    OF_SGD,
    OptimizerFactory,
    TrainingOptions,
    own_optimizer,
    training_values,
)
from simshuffle.workload.exchange import Strategy

Strategies = Sequence[str | Strategy]


class StudyOptions(TrainingOptions, total=False):
    """What a study of the caller's takes, on emulated and on real ranks, beside fields of
    `Training`, of all runs.

    Attributes:
        seeds: a list, or how many, which are 0, 1, ...; 3 by default. Intervals need two or more.
        loss, optimizer: see `emulate`.
        partition: who holds which sample before the first epoch, such as ``"dirichlet:alpha=0.3"``.
        cluster: machine of the ranks, for strategies with near partners.
        over: further lists of values by the dotted key of a run, of which every combination is
            trained, such as ``{"training.learning_rate": [0.1, 0.2]}``.
        name, description: of the study.
        model_name, data_name: for tables and figures; by default those of the classes.
        version: a text of the caller's that is changed with the code of model, data, loss or
            optimiser. Code cannot be seen from outside, so runs are kept only under a version.
        kept_in: folder in which finished runs are kept, so that a study that was stopped, or got
            more seeds, goes on. Needs a ``version``.
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
    """Train a model on emulated ranks under several strategies, each with every number of ranks and
    seed.

    Args:
        model: makes the network, such as ``lambda: MyNet()``. It is called for every run with the
            generator of torch at the run's seed: runs of one seed begin with the same weights.
        train, test: map-style data sets of pairs (input, target), targets whole numbers from 0.
        strategies: as records or text, such as ``"partial_local_shuffle:exchange_fraction=0.1"``.
        world_size: M, or several.
        device: 'auto' (a GPU if there is one), 'cpu', 'cuda', 'cuda:1'.
        processes: at once; None for one on each core where that pays, and one on a GPU.
        progress: whether standard error shows how far it is; or what is told instead.
        study: `StudyOptions`.

    Returns:
        The result of `simshuffle train`: ``tables``, ``derived["summary"]`` with intervals,
        ``save(folder)`` for files and figures; `simshuffle.read` reads it again.

    Raises:
        InputError: an argument is not valid, or a run cannot be trained so.
        SimulationError: all runs were lost.
        Interrupted: by Ctrl-C; its ``result`` has the runs that are done.
    """
    _check_alone()
    own = own_of(model, train, test, study)
    request = own_request(own, strategies, world_size, device, study)
    executor = LocalExecutor(processes or (None if device_named(device).type == "cpu" else 1))
    shown = study_progress("run") if progress is True else nullcontext(progress or None)
    with shown as tell, kept_runs(study) as store:
        try:
            return with_contents(engine.run(STUDY, request, executor, store, tell))
        except engine.Interrupted as stop:
            there = stop.result and with_contents(stop.result)
            raise engine.Interrupted(stop.done, stop.total, there) from None


def own_of(
    model: Callable[[], nn.Module], train: Dataset[Any], test: Dataset[Any], study: StudyOptions
) -> OwnTraining:
    """What the caller gives."""
    loss, optimizer = study.get("loss", cross_entropy), study.get("optimizer")
    return OwnTraining(model, train, test, loss, optimizer)


def own_request(
    own: OwnTraining,
    strategies: Strategies,
    world_size: int | Sequence[int],
    device: str,
    study: StudyOptions,
) -> Request[Trainings]:
    """The runs of a study, with what they are made of; arguments and errors as of `train_study`."""
    if study.get("kept_in") is not None and not study.get("version"):
        rule, remedy = "is needed where runs are kept", "Give one, and change it with your code."
        refuse("version", rule, "none", remedy, "train_study")
    where = device_named(device).type
    runs = _block(strategies, world_size, study.get("over") or {})
    made = _study({**_values(_network(own.model), own, study), "runs": [runs]})
    cells = own_cells(made, own, device if device != "auto" else where)
    request = request_of(made, cells, where)
    marks = hashlib.sha256("".join(cell.mark for cell in cells.values()).encode()).hexdigest()
    return replace(request, asked={**request.asked, "own": marks})


@contextmanager
def kept_runs(study: StudyOptions) -> Iterator[Disk]:
    """Where finished runs are kept: for good, or until the study is done."""
    if (folder := study.get("kept_in")) is not None:
        yield Disk(Path(folder).absolute())
    else:
        with tempfile.TemporaryDirectory(prefix="simshuffle-") as place:
            yield Disk(Path(place).absolute())


def with_contents(result: Result) -> Result:
    """``result`` with its plans in memory, wherever they were kept."""
    files = {
        place: {n: of if isinstance(of, bytes) else of.read_bytes() for n, of in within.items()}
        for place, within in result.files_in.items()
    }
    return replace(result, files_in=files)


# ------------------------------------------------------------------------------------ the arguments


def _network(model: Callable[[], nn.Module]) -> nn.Module:
    """What ``model`` makes, for its name and parameters; or raise InputError where that is none."""
    made = None
    if callable(model) and not isinstance(model, nn.Module):
        with torch.random.fork_rng(devices=[]):
            made = model()
    if isinstance(made, nn.Module):
        return made
    rule = "must make a torch.nn.Module, a new one for every run"
    shown = f"a {type(model if made is None else made).__name__}"
    refuse("model", rule, shown, "Pass model=lambda: MyNet().", "train_study")


def _values(network: nn.Module, own: OwnTraining, study: StudyOptions) -> dict[str, Any]:
    """The values of the study's file but its runs; of a key that is not set None."""
    others = StudyOptions.__annotations__.keys() - TrainingOptions.__annotations__
    training = {key: value for key, value in study.items() if key not in others}
    over, version, optimizer = study.get("over") or {}, study.get("version", ""), "SGD"
    if own.optimizer is not None:
        sgd = {
            key
            for key in OF_SGD
            if key in training or any(keys_overlap(of, f"training.{key}") for of in over)
        }
        training |= training_values(network, own.optimizer, sgd)
        optimizer = type(own_optimizer(network, own.optimizer)).__name__
    model = {
        "kind": "own",
        "name": study.get("model_name") or type(network).__name__,
        "loss": loss_name(own.loss),
        "optimizer": optimizer,
        "has_batch_norm": mode_of(network, "per_rank") != ABSENT,
        "version": version,
    }
    name, seeds = study.get("data_name") or _called(own.train), study.get("seeds", 3)
    return {
        "name": study.get("name", "own"),
        "description": study.get("description", ""),
        "data": {"kind": "own", "name": name, "version": version},
        "model": model,
        "partition": plain_record(study.get("partition", "random"), "partition"),
        "cluster": study.get("cluster"),
        "training": training,
        "seeds": seeds if isinstance(seeds, int) else list(seeds),
    }


def _study(raw: dict[str, Any]) -> Study:
    """The study of these values, or raise InputError."""
    study, problems = validate_record({key: of for key, of in raw.items() if of is not None}, Study)
    if problems or study is None:
        raise InputError(problems, "train_study")
    try:
        study.all_runs()
    except InputError as error:
        told = [replace(each, path=_argument(each.path)) for each in error.problems]
        raise InputError(told, "train_study") from None
    return study


def _argument(path: str) -> str:
    """Which argument a key of the study's only block comes from."""
    key = path.removeprefix("runs.0.")
    if key == path or key.partition(".")[0] == "world_size":
        return key
    name = argument_of(key)
    return name if name != key else f"over.{key}"


def _block(
    strategies: Strategies,
    world_size: int | Sequence[int],
    over: Mapping[str, Sequence[Any]],
) -> dict[str, list[Any]]:
    """The block of runs, as a study's file has it."""
    several = [strategies] if isinstance(strategies, str) else strategies
    for key, values in over.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            rule, remedy = "must be a list of values", f"Write [{values!r}]."
            refuse(f"over.{key}", rule, repr(values), remedy, "train_study")
    return {
        "exchange": _plain(several, "strategies"),
        "world_size": [world_size] if isinstance(world_size, int) else list(world_size),
        **{
            key: _plain(values, f"over.{key}") if key in REFERENCES else list(values)
            for key, values in over.items()
        },
    }


def _plain(values: Sequence[Any], name: str) -> list[Any]:
    """Records, each given as such or by text, as plain values."""
    records = [plain_record(value, name) for value in values]
    return [each.model_dump(mode="json") if isinstance(each, Spec) else each for each in records]


def _called(data: Dataset[Any]) -> str:
    """A name for the data: its class; of a subset that of the whole."""
    return _called(data.dataset) if hasattr(data, "dataset") else type(data).__name__


def _check_alone() -> None:
    """See that torchrun did not start several processes to train it all, or raise InputError."""
    grouped = dist.is_available() and dist.is_initialized()
    count = dist.get_world_size() if grouped else int(os.environ.get("WORLD_SIZE", "1"))
    if count > 1:
        rule = "emulates all ranks in one process"
        remedy = "Start it without torchrun, or use simshuffle.train.distributed.train_study."
        refuse("train_study", rule, f"{count} processes", remedy, "train_study")


# ----------------------------------------------------------------------------------------- the runs


def own_cells(study: Study, own: OwnTraining, device: str) -> dict[str, OwnCell]:
    """The runs of a study of what the caller gives, by name; InputError where one cannot be
    trained."""
    runs, cpu = study.all_runs(), torch.device("cpu")
    train, test = own.sources(torch.float32, cpu)
    firsts = {run.seed: run for run in runs}
    marks = {
        seed: mark_of(with_first_weights(run, own.model), own, train, test)
        for seed, run in firsts.items()
    }

    def check(run: Run) -> None:
        dtype = torch_dtype(run.training)
        source = train if dtype == torch.float32 else own.sources(dtype, cpu)[0]
        check_materials(run, with_first_weights(run, own.model), source, own.loss)
        warn_of_large_batch(len(train), run.world_size, run.training)

    check_all(runs, "train_study", check, argument_of)
    return named(
        OwnCell(run, len(train), run_label(run), device, own, marks[run.seed]) for run in runs
    )


def argument_of(key: str) -> str:
    """Which argument of `train_study` a key of a run comes from."""
    first, dot, rest = key.partition(".")
    return f"strategies{dot}{rest}" if first == "exchange" else key


def mark_of(network: nn.Module, own: OwnTraining, train: DatasetSource, test: DatasetSource) -> str:
    """What stands for ``own`` in a run that begins with ``network``: its layers and first weights,
    all labels, names and numbers of loss and optimiser. Neither inputs, which may be drawn, nor
    code."""
    digest = hashlib.sha256(repr(network).encode())
    for key, value in network.state_dict().items():
        digest.update(key.encode() + value.detach().cpu().numpy().tobytes())
    for source in (train, test):
        digest.update(np.ascontiguousarray(source.targets).tobytes())
    settings = "" if own.optimizer is None else repr(own_optimizer(network, own.optimizer))
    loss = repr(own.loss) if isinstance(own.loss, nn.Module) else loss_name(own.loss)
    digest.update(f"{len(train)} {len(test)} {loss} {settings}".encode())
    return digest.hexdigest()
