"""Whole trainings on emulated ranks: a run of a study, or a model and data sets of the
caller.
"""

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
from simshuffle.train.iterations import large_batch_message
from simshuffle.train.loss import Loss, contrast_of, cross_entropy
from simshuffle.train.network import ranked_network, torch_dtype
from simshuffle.train.partition import Partition, check_ranks
from simshuffle.train.recording import TrainingRecorder
from simshuffle.train.run import Run, check_order
from simshuffle.train.samples import Augmentation, TrainingSet
from simshuffle.train.sources import ArraySource, DatasetSource, Source
from simshuffle.train.training import (
    OptimizerFactory,
    Training,
    TrainingOptions,
    training_values,
)
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
    """The result of `emulate`: the record of the run, and the trained model."""

    # a copy of the caller's model with the trained weights, on the CPU, in eval mode; batch-norm
    # statistics are pooled over ranks
    model: nn.Module


@dataclass(frozen=True)
class Materials:
    """The network, samples, loss and optimiser of a run."""

    model: nn.Module  # with the initial weights, in float32 on the CPU
    train: Source  # the samples to train on, on the device that trains
    test: Source  # the samples to test with, on the device that trains
    data_name: str  # for the description of the run
    model_name: str  # for the description of the run
    loss: Loss = cross_entropy  # of each sample
    optimizer: OptimizerFactory | None = (
        None  # of the network's parameters; SGD if None
    )
    # how views of the samples are made; None if there is none
    augmentation: Augmentation | None = None


def train_run(
    run: Run,
    progress: Progress | None = None,
    device: str = "auto",
    data: TrainingSet | None = None,
) -> RunRecord:
    """Train ``run`` on emulated ranks.

    The same run gives the same weights, bit by bit, on the same machine with the same
    number of threads; else sums are added up in another order, and weights agree to
    rounding only.

    Args:
        run: what to train.
        progress: called after every iteration with the share of the run that is done,
            from 0 to 1.
        device: that trains: 'auto' (a GPU if there is one), 'cpu', 'cuda', 'cuda:1'.
        data: that of ``run``, if it is loaded already.

    Returns:
        The record; of status 'failed', with the epochs before, where a loss or a weight
        was no longer finite.

    Raises:
        InputError: the run cannot be trained so.
    """
    torch_device = find_device(device)
    materials = materials_of(run, torch_device, data)
    return train_materials(run, materials, torch_device, progress)


def materials_of(
    run: Run, device: torch.device, data: TrainingSet | None = None
) -> Materials:
    """Return the network, on the CPU, and the samples, on ``device``, of a run of a
    study's file.

    ``data`` are those of ``run`` if they are loaded already.

    Raises:
        InputError: if there are no samples, or the network cannot take them.
    """
    data = run.data.load() if data is None else data
    train, test = (
        ArraySource(
            part, data.mean, data.std, dtype=torch_dtype(run.training), device=device
        )
        for part in (data.train, data.test)
    )
    return Materials(
        model=initial_model(run, data),
        train=train,
        test=test,
        data_name=data.name,
        model_name=run.model.kind,
        augmentation=data.augmentation,
    )


def train_materials(
    run: Run, materials: Materials, device: torch.device, progress: Progress | None
) -> RunRecord:
    """Train ``materials`` as ``run`` says on ``device``.

    ``progress`` and the record are those of `train_run`.

    Raises:
        InputError: the run cannot be trained so.
    """
    names = {"data": materials.data_name, "model": materials.model_name}
    emulation = emulation_of(run, materials, device)
    return _train_all_epochs(
        emulation, materials.test, progress, **names, partition=run.partition.kind
    )


def emulation_of(run: Run, materials: Materials, device: torch.device) -> Emulation:
    """Return the emulation of ``run`` before its first epoch.

    Raises:
        InputError: the cluster is missing or too small, the samples cannot be divided
            among the ranks, or the model cannot be trained so.
    """
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
    """Raise an InputError unless ``run`` can be trained, in much less time than an
    epoch.

    It checks that ranks get samples, and that the network takes them, on the CPU. It
    issues a SimshuffleWarning where a local batch is larger than a shard. ``data`` are
    those of ``run`` if they are loaded already.
    """
    data = run.data.load() if data is None else data
    source = ArraySource(
        data.train, data.mean, data.std, dtype=torch_dtype(run.training)
    )
    check_materials(
        run, initial_model(run, data), source, augmentation=data.augmentation
    )
    warn_of_large_batch(len(source), run.world_size, run.training)


def check_materials(
    run: Run,
    model: nn.Module,
    source: Source,
    loss: Loss = cross_entropy,
    augmentation: Augmentation | None = None,
) -> None:
    """Raise an InputError unless ``model`` can be trained on ``source`` as ``run``
    says.

    The network is tried on a few samples, on the CPU; nothing is trained.
    """
    num_samples = len(source)
    check_ranks(num_samples, run.world_size)
    check_order(run, num_samples)
    contrast_of(run.new_epochs(num_samples), augmentation, loss)
    cpu = torch.device("cpu")
    ranked_network(model, source, run.world_size, run.training, cpu, loss=loss)


def warn_of_large_batch(num_samples: int, world_size: int, training: Training) -> None:
    """Issue a SimshuffleWarning where a local batch is larger than a rank's shard."""
    if warning := large_batch_message(num_samples, world_size, training):
        warnings.warn(warning, SimshuffleWarning, stacklevel=3)


def initial_model(run: Run, data: TrainingSet) -> nn.Module:
    """Build the network of ``run`` with its first weights, in float32 on the CPU."""
    return with_first_weights(
        run, lambda: run.model.build(data.train.shape, data.classes)
    )


def with_first_weights(run: Run, build: Callable[[], nn.Module]) -> nn.Module:
    """Return what ``build`` makes, with the weights that the seed of ``run`` draws.

    torch's random state on the CPU is afterwards as it was; GPUs keep the new seed.
    """
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
        model: gives logits; its weights are those that the training begins with. It
            stays as it is.
        train, test: map-style datasets of pairs (input, target), targets whole numbers
            from 0. Items are read when they are needed, so that random transforms work.
        strategy: as a record, or as text, such as
            ``"partial_local_shuffle:exchange_fraction=0.1"``.
        world_size: M.
        partition: who holds which sample before the first epoch; a record or text, such
            as ``"dirichlet:alpha=0.3"``.
        seed: of all that is drawn: shards, exchange, partition, and what layers such as
            dropout draw.
        progress: called after every iteration with the share of all epochs that is
            done, from 0 to 1.
        device: 'auto' (a GPU if there is one), 'cpu', 'cuda', 'cuda:1'.
        loss: gives the loss of each sample, (n,), from what the model puts out, (n,
            classes), and the targets, (n,), such as
            ``torch.nn.CrossEntropyLoss(reduction="none")``. The mean is trained on; the
            importance of a sample is its own loss.
        optimizer: makes an optimiser of the model's parameters, in the place of SGD,
            such as ``functools.partial(torch.optim.AdamW, lr=1e-3)``. Its ``lr`` stands
            for ``learning_rate``: warm-up, decay and scaling begin from it.
        training: fields of `Training`, such as ``local_batch_size=8, epochs=10,
            learning_rate=0.1``.

    Returns:
        The record of the run and the trained model; of status 'failed', with the epochs
        before, where a loss or a weight was no longer finite.

    Raises:
        InputError: an argument is not valid, or the model cannot be trained so.
    """
    optimizer_values = {}
    if optimizer is not None:
        optimizer_values = training_values(copy.deepcopy(model), optimizer, training)
    chosen = read_records(
        _Arguments,
        "emulate",
        strategy=strategy,
        world_size=world_size,
        partition=partition,
        training={**training, **optimizer_values},
    )
    torch_device = find_device(device)
    dtype = torch_dtype(chosen.training)
    source = DatasetSource(train, dtype=dtype, device=torch_device, name="train")
    test_source = DatasetSource(test, dtype=dtype, device=torch_device, name="test")
    emulation = Emulation(
        model,
        source,
        strategy=chosen.strategy,
        world_size=chosen.world_size,
        training=chosen.training,
        owner=chosen.partition.owner(
            source.targets, chosen.world_size, stream(seed, "partition")
        ),
        seed=seed,
        device=torch_device,
        loss=loss,
        optimizer=optimizer,
    )
    warn_of_large_batch(len(source), chosen.world_size, chosen.training)
    names = {"data": type(train).__name__, "model": type(model).__name__}
    record = _train_all_epochs(
        emulation, test_source, progress, **names, partition=chosen.partition.kind
    )
    return EmulatedRun(**record.__dict__, model=emulation.model().to("cpu").eval())


class _Arguments(Spec):
    """The arguments of `emulate` that are records."""

    strategy: TrainedExchange
    world_size: Count
    partition: Partition
    training: Training


def read_records(
    kind: type[Record],
    source: str,
    argument_names: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Record:
    """Read arguments that are records, each given as one, as plain values, or as text
    such as ``"dirichlet:alpha=0.3"``.

    Args:
        kind: the record that has a field for each argument.
        source: where they come from, for the error.
        argument_names: what paths of problems are called, where that is not the path.
        **arguments: by the name of the field.

    Raises:
        InputError: if one is not valid.
    """
    raw = {name: plain_values(value, name, source) for name, value in arguments.items()}
    record, problems = validate_record(raw, kind)
    if problems or record is None:
        names = argument_names or {}
        renamed = [
            replace(problem, path=names.get(problem.path, problem.path))
            for problem in problems
        ]
        raise InputError(renamed, source)
    return record


def plain_values(record: Any, name: str, source: str = "emulate") -> Any:
    """Return the plain values of a record named by text, else ``record`` itself.

    Raises:
        InputError: of ``source`` at ``name``: the text cannot be read.
    """
    if not isinstance(record, str):
        return record
    try:
        return parse_kind(record)
    except ScenarioError as error:
        problems = [replace(problem, path=name) for problem in error.problems]
        raise InputError(problems, source) from None


def find_device(name: str) -> torch.device:
    """Return the device of a name; for 'auto' a GPU if there is one, else the CPU.

    Raises:
        InputError: if a named device does not exist, or cannot hold a tensor.
    """
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


def _train_all_epochs(
    emulation: Emulation, test: Source, progress: Progress | None, **names: str
) -> RunRecord:
    """Train all epochs of ``emulation``, and evaluate on ``test``; ``names`` describe
    the run.

    Where the training diverges, the record is of status 'failed', with the epochs
    before. ``progress`` gets the share of all epochs.
    """
    source = emulation.source
    network = emulation.network
    training = emulation.training
    evaluation = Evaluation(training, test, source, emulation.world_size, emulation.rng)
    device = emulation.device.type
    recorder = TrainingRecorder(
        emulation, network.model, source.targets, device=device, **names
    )

    def tell(share: float) -> None:
        """Report the share of all epochs, from that of the current one."""
        if progress is not None:
            progress((emulation.epochs_done + share) / training.epochs)

    for epoch in range(1, training.epochs + 1):
        try:
            outcome = emulation.epoch(tell)
        except Diverged as error:
            return recorder.record(str(error))
        scores = evaluation.scores(network) if training.evaluates(epoch) else {}
        recorder.add(outcome, emulation.last_losses, scores)
    return recorder.record()
