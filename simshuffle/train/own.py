"""Studies of a model, data, loss and optimiser of the caller's, from Python: many runs of seeds and
strategies, with the tables, report and figures of every other study of trainings."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from simshuffle.errors import InputError, Problem
from simshuffle.exchange import Strategy
from simshuffle.spec.overrides import related
from simshuffle.spec.record import Spec
from simshuffle.spec.validation import validated
from simshuffle.studies.training.record import outcome_of
from simshuffle.studies.training.study import STUDY, Trainings
from simshuffle.study import engine
from simshuffle.study.cell import Outcome, Tell
from simshuffle.study.executors import Executor, Local
from simshuffle.study.progress import study_progress
from simshuffle.study.standing import Progress
from simshuffle.study.store import Disk
from simshuffle.study.study import Request, Result
from simshuffle.train.cell import RunCell, one_thread
from simshuffle.train.emulate import (
    device_named,
    plain_record,
    trained,
    warn_of_large_batch,
    with_first_weights,
)
from simshuffle.train.iterations import local_batches
from simshuffle.train.loss import Loss, cross_entropy, loss_name
from simshuffle.train.network import ranked_network, torch_dtype
from simshuffle.train.optimizer import (
    OF_SGD,
    OptimizerFactory,
    own_optimizer,
    training_values,
)
from simshuffle.train.partition import Partition, check_ranks
from simshuffle.train.shuffling import named, request_of, run_label
from simshuffle.train.source import DatasetSource
from simshuffle.train.study import Study

NOUN = "run"


@dataclass(frozen=True, eq=False)
class Own:
    """What the caller gives.

    Attributes:
        model: makes the network; called once for each run, with torch's generator at its seed.
        train, test: map-style data sets of pairs (input, target).
        loss: of each sample.
        optimizer: of the network's parameters; SGD if None.
    """

    model: Callable[[], nn.Module]
    train: Dataset[Any]
    test: Dataset[Any]
    loss: Loss
    optimizer: OptimizerFactory | None

    def sources(self, dtype: torch.dtype, device: torch.device) -> list[DatasetSource]:
        """The samples for training and for testing, on ``device``.

        Raises:
            InputError: as of `DatasetSource`.
        """
        return [
            DatasetSource(data, dtype=dtype, device=device, name=name)
            for name, data in (("train", self.train), ("test", self.test))
        ]


@dataclass(frozen=True)
class OwnCell(RunCell):
    """A run of what the caller gives. It is known again by its ``mark``.

    Attributes:
        own: model, data, loss and optimiser.
        mark: stands for them, as far as can be seen from outside: see `mark_of`.
    """

    own: Own
    mark: str

    @property
    def key(self) -> Any:
        """As for `Cell`. Code is not in it; the version of the study's model stands for that."""
        return [*super().key, self.mark]

    @property
    def memory(self) -> float:
        """As for `Cell`: every process has data of its own."""
        return super().memory + 2 * (held(self.own.train) + held(self.own.test))

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`."""
        run, own, where = self.training_run, self.own, device_named(self.device)
        names = {"data": run.data.label, "model": run.model.label}
        how = {"loss": own.loss, "optimizer": own.optimizer}
        with one_thread():
            train, test = own.sources(torch_dtype(run.training), where)
            model = with_first_weights(run, own.model)
            return outcome_of(trained(run, model, train, test, where, tell, names, **how))


def train_study(
    model: Callable[[], nn.Module],
    train: Dataset[Any],
    test: Dataset[Any],
    *,
    strategies: Sequence[str | Strategy],
    world_size: int | Sequence[int],
    seeds: int | Sequence[int] = 3,
    partition: str | Partition = "random",
    cluster: str | None = None,
    over: Mapping[str, Sequence[Any]] | None = None,
    loss: Loss = cross_entropy,
    optimizer: OptimizerFactory | None = None,
    name: str = "own",
    description: str = "",
    model_name: str = "",
    data_name: str = "",
    version: str = "",
    kept_in: str | Path | None = None,
    processes: int | None = None,
    device: str = "auto",
    progress: bool | Progress = True,
    **training: Any,
) -> Result:
    """Train a model on emulated ranks under several strategies, each with every number of ranks and
    seed.

    Args:
        model: makes the network, such as ``lambda: MyNet()``. It is called for every run with the
            generator of torch at the run's seed: runs of one seed begin with the same weights.
        train, test: map-style data sets of pairs (input, target), targets whole numbers from 0.
        strategies: as records or text, such as ``"partial_local_shuffle:exchange_fraction=0.1"``.
        world_size: M, or several.
        seeds: a list, or how many, which are 0, 1, ...; intervals need two or more.
        partition: who holds which sample before the first epoch.
        cluster: machine of the ranks, for strategies with near partners.
        over: further lists of values by the dotted key of a run, of which every combination is
            trained, such as ``{"training.learning_rate": [0.1, 0.2]}``.
        loss: of each sample, (n,); see `emulate`.
        optimizer: makes the optimiser of the parameters; see `emulate`.
        name, description: of the study.
        model_name, data_name: for tables and figures; by default those of the classes.
        version: a text of the caller's that is changed with the code of model, data, loss or
            optimiser. Code cannot be seen from outside, so runs are kept only under a version.
        kept_in: folder in which finished runs are kept, so that a study that was stopped, or got
            more seeds, goes on. Needs a ``version``.
        processes: at once; None for one on each core where that pays, and one on a GPU.
        device: 'auto' (a GPU if there is one), 'cpu', 'cuda', 'cuda:1'.
        progress: whether standard error shows how far it is; or what is told instead.
        training: fields of `Training`, of all runs.

    Returns:
        The result of `simshuffle train`: ``tables``, ``derived["summary"]`` with intervals,
        ``save(folder)`` for files and figures; `simshuffle.read` reads it again.

    Raises:
        InputError: an argument is not valid, or a run cannot be trained so.
        SimulationError: all runs were lost.
        Interrupted: by Ctrl-C; its ``result`` has the runs that are done.
    """
    if kept_in is not None and not version:
        rule, remedy = "is needed where runs are kept", "Give one, and change it with your code."
        raise InputError(Problem("version", rule, "none", remedy), "train_study")
    own, where = Own(model, train, test, loss, optimizer), device_named(device).type
    first = _network(model)
    if optimizer is not None:
        training |= training_values(first, optimizer, _given(training, over or {}))
    study = _study(
        {
            "name": name,
            "description": description,
            "data": {"kind": "own", "name": data_name or _called(train), "version": version},
            "model": _model_values(first, own) | {"version": version} | _if_given(name=model_name),
            "partition": plain_record(partition, "partition"),
            "cluster": cluster,
            "training": training,
            "seeds": seeds if isinstance(seeds, int) else list(seeds),
            "runs": [_block(strategies, world_size, over or {})],
        }
    )
    cells = own_cells(study, own, device if device != "auto" else where)
    asked = request_of(study, cells, where)
    marks = hashlib.sha256("".join(cell.mark for cell in cells.values()).encode()).hexdigest()
    asked = replace(asked, asked={**asked.asked, "own": marks})
    executor = Local(processes or (None if where == "cpu" else 1))
    with _progress(progress) as tell, _place(kept_in) as place:
        return _done(asked, executor, place, tell)


def own_cells(study: Study, own: Own, device: str) -> dict[str, OwnCell]:
    """The runs of a study of what the caller gives, by name.

    Raises:
        InputError: one cannot be trained.
    """
    cpu, problems, seen = torch.device("cpu"), dict[Problem, None](), set[str]()
    runs, marks = study.all_runs(), dict[int, str]()
    train, test = own.sources(torch.float32, cpu)
    for run in runs:
        network = with_first_weights(run, own.model)
        if run.seed not in marks:
            marks[run.seed] = mark_of(network, own, train, test)
        parts = repr((run.training, run.world_size, run.cluster, run.exchange.needs_places))
        if parts in seen:
            continue
        seen.add(parts)
        try:
            check_ranks(len(train), run.world_size)
            run.places()
            sizes = local_batches(len(train), run.world_size, run.training)
            dtype = torch_dtype(run.training)
            source = train if dtype == torch.float32 else own.sources(dtype, cpu)[0]
            ranked_network(network, source, run.world_size, run.training, cpu, sizes, own.loss)
            warn_of_large_batch(len(train), run.world_size, run.training)
        except InputError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise InputError(list(problems), "train_study")
    return named(
        OwnCell(run, len(train), run_label(run), device, own, marks[run.seed]) for run in runs
    )


def mark_of(network: nn.Module, own: Own, train: DatasetSource, test: DatasetSource) -> str:
    """What stands for ``own`` in a run that begins with ``network``: its layers and first weights,
    the labels of all samples, and the loss' and the optimiser's names and numbers. Neither inputs,
    which may be drawn at random, nor code."""
    digest = hashlib.sha256(repr(network).encode())
    for key, value in network.state_dict().items():
        digest.update(key.encode() + value.detach().cpu().numpy().tobytes())
    for source in (train, test):
        digest.update(np.ascontiguousarray(source.targets).tobytes())
    settings = "" if own.optimizer is None else repr(own_optimizer(network, own.optimizer))
    loss = repr(own.loss) if isinstance(own.loss, nn.Module) else loss_name(own.loss)
    digest.update(f"{len(train)} {len(test)} {loss} {settings}".encode())
    return digest.hexdigest()


def held(data: Dataset[Any]) -> float:
    """Bytes of the tensors and arrays that a data set holds; 0 where its samples lie elsewhere."""
    found = getattr(data, "__dict__", {}).values()
    parts = [part for value in found for part in (value if isinstance(value, tuple) else (value,))]
    return float(sum(part.nbytes for part in parts if isinstance(part, torch.Tensor | np.ndarray)))


def _done(
    asked: Request[Trainings], executor: Executor, place: Path, tell: Progress | None
) -> Result:
    """The result, which needs nothing of what is kept in ``place``."""
    try:
        return with_contents(engine.run(STUDY, asked, executor, Disk(place), tell))
    except engine.Interrupted as stop:
        there = stop.result and with_contents(stop.result)
        raise engine.Interrupted(stop.done, stop.total, there) from None


def with_contents(result: Result) -> Result:
    """``result`` with its plans in memory, wherever they were kept."""
    files = {
        place: {n: of if isinstance(of, bytes) else of.read_bytes() for n, of in within.items()}
        for place, within in result.files_in.items()
    }
    return replace(result, files_in=files)


# ------------------------------------------------------------------------------------ the arguments


def _network(model: Callable[[], nn.Module]) -> nn.Module:
    """What ``model`` makes, for its name and parameters.

    Raises:
        InputError: it makes no network, or is one.
    """
    made = None
    if callable(model) and not isinstance(model, nn.Module):
        with torch.random.fork_rng(devices=[]):
            made = model()
    if isinstance(made, nn.Module):
        return made
    rule = "must make a torch.nn.Module, a new one for every run"
    shown = f"a {type(model if made is None else made).__name__}"
    raise InputError(Problem("model", rule, shown, "Pass model=lambda: MyNet()."), "train_study")


def _study(raw: dict[str, Any]) -> Study:
    """The study of these values.

    Raises:
        InputError: they are none.
    """
    study, problems = validated({key: of for key, of in raw.items() if of is not None}, Study)
    if problems or study is None:
        raise InputError(problems, "train_study")
    study.all_runs()
    return study


def _block(
    strategies: Sequence[str | Strategy],
    world_size: int | Sequence[int],
    over: Mapping[str, Sequence[Any]],
) -> dict[str, list[Any]]:
    """The block of runs, as a study's file has it."""
    several = [strategies] if isinstance(strategies, str) else strategies
    records = [plain_record(strategy, "strategies") for strategy in several]
    return {
        "exchange": [r.model_dump(mode="json") if isinstance(r, Spec) else r for r in records],
        "world_size": [world_size] if isinstance(world_size, int) else list(world_size),
        **{key: list(values) for key, values in over.items()},
    }


def _given(training: Mapping[str, Any], over: Mapping[str, Any]) -> set[str]:
    """Fields of SGD that the caller sets."""
    return {
        name
        for name in OF_SGD
        if name in training or any(related(key, f"training.{name}") for key in over)
    }


def _model_values(network: nn.Module, own: Own) -> dict[str, str]:
    """The values of `simshuffle.train.models.OwnModel`, by the names of classes and functions."""
    optimizer = None if own.optimizer is None else own_optimizer(network, own.optimizer)
    return {
        "kind": "own",
        "name": type(network).__name__,
        "loss": loss_name(own.loss),
        "optimizer": "SGD" if optimizer is None else type(optimizer).__name__,
    }


def _if_given(**values: str) -> dict[str, str]:
    return {key: value for key, value in values.items() if value}


def _called(data: Dataset[Any]) -> str:
    """A name for the data: its class; of a subset that of the whole."""
    return _called(data.dataset) if hasattr(data, "dataset") else type(data).__name__


@contextmanager
def _progress(progress: bool | Progress) -> Iterator[Progress | None]:
    if progress is True:
        with study_progress(NOUN) as tell:
            yield tell
    else:
        yield progress or None


@contextmanager
def _place(kept_in: str | Path | None) -> Iterator[Path]:
    """Where finished runs are kept: for good, or until the study is done."""
    temporary = tempfile.TemporaryDirectory(prefix="simshuffle-") if kept_in is None else None
    with temporary or nullcontext(str(kept_in)) as place:
        yield Path(place).absolute()
