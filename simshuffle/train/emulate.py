"""Whole trainings on emulated ranks: a run of a study, or a model and data sets of the caller."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import nn
from torch.utils.data import Dataset

from simshuffle.errors import InputError, ScenarioError, SimshuffleWarning, refuse
from simshuffle.spec.library import parse_kind
from simshuffle.spec.record import Count, Spec
from simshuffle.spec.rng import stream
from simshuffle.spec.validation import Record, validate_record
from simshuffle.studies.training.tables import RunRecord
from simshuffle.train.emulation import Diverged, Emulation, Progress
from simshuffle.train.evaluate import Evaluation
from simshuffle.train.iterations import large_batch_warning
from simshuffle.train.loss import Loss, contrast_of, cross_entropy
from simshuffle.train.network import ranked_network, torch_dtype
from simshuffle.train.partition import Partition, check_ranks
from simshuffle.train.recording import TrainingRecorder
from simshuffle.train.run import Run, check_order
from simshuffle.train.samples import ArraySource, Augmentation, DatasetSource, Source, TrainingSet
from simshuffle.train.training import OptimizerFactory, Training, TrainingOptions, training_values
from simshuffle.workload.exchange import Strategy, TrainedExchange

__all__ = [
    "Diverged",
    "EmulatedRun",
    "Emulation",
    "check_run",
    "emulate",
    "initial_model",
    "train_run",
]


@dataclass(frozen=True)
class EmulatedRun(RunRecord):
    """What `emulate` returns: the record of the run, and"""

    # a copy of the caller's model with the trained weights, on the CPU, in eval mode; batch-norm
    # statistics are pooled over ranks
    model: nn.Module


@dataclass(frozen=True)
class Materials:
    """What a run is trained with."""

    model: nn.Module  # the initial weights, in float32 on the CPU
    # train, test: the samples, on the device that trains
    train: Source
    test: Source
    # data_name, model_name: for the description of the run
    data_name: str
    model_name: str
    loss: Loss = cross_entropy  # of each sample
    optimizer: OptimizerFactory | None = None  # of the network's parameters; SGD if None
    # how views of the samples are made; None if there is none
    augmentation: Augmentation | None = None


def train_run(
    run: Run,
    progress: Progress | None = None,
    device: str = "auto",
    data: TrainingSet | None = None,
) -> RunRecord:
    """Train ``run`` on emulated ranks.

    The same run gives the same weights, bit by bit, on the same machine with the same number of
    threads; else sums are added up in another order, and weights agree to rounding only.

    Args:
        run: what to train.
        progress: called with the share that is done.
        device: that trains: 'auto' (a GPU if there is one), 'cpu', 'cuda', 'cuda:1'.
        data: that of ``run``, if it is loaded already.

    Returns:
        The record; of status 'failed', with the epochs before, where the loss was no longer finite.

    Raises:
        InputError: the run cannot be trained so.
    """
    where = device_named(device)
    return trained(run, materials_of(run, where, data), where, progress)


def materials_of(run: Run, device: torch.device, data: TrainingSet | None = None) -> Materials:
    """What a run of a study's file is trained with, on ``device``; ``data`` are those of ``run`` if
    they are loaded already. Raises InputError if there are none, or the network cannot take
    them."""
    data = run.data.load() if data is None else data
    train, test = (
        ArraySource(part, data.mean, data.std, dtype=torch_dtype(run.training), device=device)
        for part in (data.train, data.test)
    )
    model, names = initial_model(run, data), (data.name, run.model.kind)
    return Materials(model, train, test, *names, augmentation=data.augmentation)


def trained(
    run: Run, materials: Materials, device: torch.device, progress: Progress | None
) -> RunRecord:
    """Train ``materials`` as ``run`` says on ``device``."""
    names = {"data": materials.data_name, "model": materials.model_name}
    emulation = emulation_of(run, materials, device)
    return _carried_out(emulation, materials.test, progress, **names, partition=run.partition.kind)


def emulation_of(run: Run, materials: Materials, device: torch.device) -> Emulation:
    """``run`` before its first epoch, of ``materials``; errors as of `Emulation`."""
    train = materials.train
    return Emulation(
        materials.model,
        train,
        strategy=run.exchange,
        world_size=run.world_size,
        training=run.training,
        owner=run.partition.owner(train.targets, run.world_size, run.rng("partition")),
        seed=run.seed,
        device=device,
        places=run.places(),
        loss=materials.loss,
        optimizer=materials.optimizer,
        augmentation=materials.augmentation,
    )


def check_run(run: Run, data: TrainingSet | None = None) -> None:
    """See, much faster than an epoch takes, that ``run`` can be trained: that ranks get samples,
    and that the network takes them; or raise InputError."""
    data = run.data.load() if data is None else data
    source = ArraySource(data.train, data.mean, data.std, dtype=torch_dtype(run.training))
    check_materials(run, initial_model(run, data), source, augmentation=data.augmentation)
    warn_of_large_batch(len(source), run.world_size, run.training)


def check_materials(
    run: Run,
    model: nn.Module,
    source: Source,
    loss: Loss = cross_entropy,
    augmentation: Augmentation | None = None,
) -> None:
    """See that ``model`` can be trained on ``source`` as ``run`` says, or raise InputError."""
    count, world_size, training = len(source), run.world_size, run.training
    check_ranks(count, world_size)
    check_order(run, count)
    contrast_of(run.shuffled(count), augmentation, loss)
    ranked_network(model, source, world_size, training, torch.device("cpu"), loss)


def warn_of_large_batch(num_samples: int, world_size: int, training: Training) -> None:
    """Warn where a local batch is larger than the shard of a rank."""
    if warning := large_batch_warning(num_samples, world_size, training):
        warnings.warn(warning, SimshuffleWarning, stacklevel=3)


def initial_model(run: Run, data: TrainingSet) -> nn.Module:
    """The network of ``run`` with the weights that it begins with, in float32 on the CPU."""
    return with_first_weights(run, lambda: run.model.build(data.train.shape, data.classes))


def with_first_weights(run: Run, build: Callable[[], nn.Module]) -> nn.Module:
    """What ``build`` makes, with the weights that the seed of ``run`` draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(run.rng("weights").integers(2**63 - 1)))
        return build()


def emulate(
    model: nn.Module,
    train: Dataset[Any],
    test: Dataset[Any],
    *,
    strategy: str | Strategy = "global_shuffle",
    world_size: int,
    partition: str | Partition = "random",
    seed: int = 0,
    progress: Progress | None = None,
    device: str = "auto",
    loss: Loss = cross_entropy,
    optimizer: OptimizerFactory | None = None,
    **training: Unpack[TrainingOptions],
) -> EmulatedRun:
    """Train a copy of ``model`` on emulated ranks.

    Args:
        model: gives logits; its weights are those that the training begins with. It stays as it is.
        train, test: map-style datasets of pairs (input, target), targets whole numbers from 0.
            Items are read when they are needed, so that random transforms work.
        strategy: as a record, or as text, such as
            ``"partial_local_shuffle:exchange_fraction=0.1"``.
        world_size: M.
        partition: who holds which sample before the first epoch; a record or text, such as
            ``"dirichlet:alpha=0.3"``.
        seed: of all that is drawn: shards, exchange, partition, and what layers such as dropout
            draw.
        progress: called with the share that is done, from 0 to 1.
        device: 'auto' (a GPU if there is one), 'cpu', 'cuda', 'cuda:1'.
        loss: gives the loss of each sample, (n,), from what the model puts out, (n, classes), and
            the targets, (n,), such as ``torch.nn.CrossEntropyLoss(reduction="none")``. The mean is
            trained on; the importance of a sample is its own loss.
        optimizer: makes an optimiser of the model's parameters, in the place of SGD, such as
            ``functools.partial(torch.optim.AdamW, lr=1e-3)``. Its ``lr`` stands for
            ``learning_rate``: warm-up, decay and scaling begin from it.
        training: fields of `Training`, such as ``local_batch_size=8, epochs=10,
            learning_rate=0.1``.

    Returns:
        The record of the run and the trained model; of status 'failed', with the epochs before,
        where the loss was no longer finite.

    Raises:
        InputError: an argument is not valid, or the model cannot be trained so.
    """
    of_optimizer = {}
    if optimizer is not None:
        of_optimizer = training_values(copy.deepcopy(model), optimizer, training)
    given: dict[str, Any] = {"strategy": strategy, "world_size": world_size, "partition": partition}
    chosen = records_of(_Chosen, "emulate", **given, training={**training, **of_optimizer})
    where, dtype = device_named(device), torch_dtype(chosen.training)
    source = DatasetSource(train, dtype=dtype, device=where, name="train")
    test_source = DatasetSource(test, dtype=dtype, device=where, name="test")
    emulation = Emulation(
        model,
        source,
        strategy=chosen.strategy,
        world_size=chosen.world_size,
        training=chosen.training,
        owner=chosen.partition.owner(source.targets, chosen.world_size, stream(seed, "partition")),
        seed=seed,
        device=where,
        loss=loss,
        optimizer=optimizer,
    )
    warn_of_large_batch(len(source), chosen.world_size, chosen.training)
    names = {"data": type(train).__name__, "model": type(model).__name__}
    record = _carried_out(
        emulation, test_source, progress, **names, partition=chosen.partition.kind
    )
    return EmulatedRun(**record.__dict__, model=emulation.model().to("cpu").eval())


class _Chosen(Spec):
    """The arguments of `emulate` that are records."""

    strategy: TrainedExchange
    world_size: Count
    partition: Partition
    training: Training


def records_of(
    kind: type[Record], source: str, called: Mapping[str, str] | None = None, **given: Any
) -> Record:
    """Arguments that are records, each ``given`` as one, as plain values, or as text; or raise
    InputError, told by their names, or by what they are ``called``."""
    raw = {name: plain_record(value, name, source) for name, value in given.items()}
    found, problems = validate_record(raw, kind)
    if problems or found is None:
        names = called or {}
        told = [replace(each, path=names.get(each.path, each.path)) for each in problems]
        raise InputError(told, source)
    return found


def plain_record(given: Any, name: str, source: str = "emulate") -> Any:
    """A record, or the plain values of one named by text; or raise InputError, told of ``name``."""
    if not isinstance(given, str):
        return given
    try:
        return parse_kind(given)
    except ScenarioError as error:
        raise InputError([replace(each, path=name) for each in error.problems], source) from None


def device_named(name: str) -> torch.device:
    """The device of that name, for 'auto' a GPU if there is one, else the CPU; or raise
    InputError."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    # a torch without CUDA asserts
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        rule = f"cannot be used: {str(error).splitlines()[0]}"
        refuse("device", rule, repr(name), "Use auto, cpu or cuda.", "training")
    return device


def _carried_out(
    emulation: Emulation, test: Source, progress: Progress | None, **names: str
) -> RunRecord:
    """All epochs of ``emulation``, evaluated on ``test``, as a record; ``names`` describe it."""
    source, network, training = emulation.source, emulation.network, emulation.training
    evaluation = Evaluation(training, test, source, emulation.world_size, emulation.rng)
    device = emulation.device.type
    recorder = TrainingRecorder(emulation, network.model, source.targets, device=device, **names)

    def told(share: float) -> None:
        if progress is not None:
            progress((emulation.epochs_done + share) / training.epochs)

    for epoch in range(1, training.epochs + 1):
        try:
            outcome = emulation.epoch(told)
        except Diverged as error:
            return recorder.record(str(error))
        scores = evaluation.scores(network) if training.evaluates(epoch) else {}
        recorder.add(outcome, emulation.last_losses, scores)
    return recorder.record()
