"""Settings of a training, except its data, network, ranks and strategy; and its
optimiser, SGD as `Training` describes it or the caller's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Literal, NoReturn

import torch
from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from torch import nn
from typing_extensions import TypedDict

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.spec.record import Count, NonNegative, Spec, whole_as_float

Statistics = Literal["own", "rank0", "pooled", "recalibrated"]
"""Source of the batch-norm statistics of an evaluation: own: each rank evaluates with
its own running statistics, and the mean over ranks is taken; rank0: those of rank 0, as
a checkpoint of DistributedDataParallel has them; pooled: mean over ranks, and variance
within ranks plus variance between them; recalibrated: of the training set or a sample
of it, with the weights as they are then.
"""
STATISTICS: tuple[Statistics, ...] = ("own", "rank0", "pooled", "recalibrated")
BatchNorm = Literal["per_rank", "sync", "none"]
"""The samples over which batch norm goes: see `Training`."""
ImportancePass = Literal["train", "eval"]
"""Mode of the network in the pass that measures importance before an epoch: 'eval',
with the rank's running statistics, which do not change; or 'train', where each local
batch is normalised by itself and updates them, so that they rest on the shard once more
before new samples come.
"""
Positive = Annotated[float, BeforeValidator(whole_as_float), Field(gt=0)]


class CrossEntropy(Spec):
    """Cross-entropy of the network's outputs and the labels, in nats."""

    kind: Literal["cross_entropy"]


class Contrastive(Spec):
    """InfoNCE: the network's normalised outputs must tell two views of a sample from
    views of other samples, its negatives; see `simshuffle.train.loss`.

    Labels are used in the evaluation alone.

    Attributes:
        temperature: that cosines are divided by; 0.1 was the best of SimCLR (Chen et
            al. 2020, table 5).
        negatives: 'local', the other samples of the rank's own local batch; or
            'gathered', those of all ranks' batches.
    """

    kind: Literal["contrastive"]
    temperature: Positive = 0.1
    negatives: Literal["local", "gathered"] = "local"


class Training(Spec):
    """Stochastic gradient descent with momentum, as torch.optim.SGD.

    Attributes:
        epochs: how often every sample is trained on.
        local_batch_size: b, samples of a rank in an iteration.
        learning_rate: at a global batch of ``reference_batch_size``, after the warm-up.
        learning_rate_scaling: with the global batch M b over the reference: 'linear',
            'sqrt', or 'none' at all.
        reference_batch_size: samples; see above.
        warmup_epochs: over which the learning rate rises linearly from 0, iteration by
            iteration.
        decay: of the learning rate after the warm-up: 'none', or 'cosine' down to 0 at
            the end.
        momentum, weight_decay, nesterov: as in torch.optim.SGD.
        batch_norm: 'per_rank' (each rank normalises its own local batch and keeps its
            own running statistics, as DistributedDataParallel does), 'sync' (over all
            ranks, as SyncBatchNorm), or 'none' (scale and shift only).
        sync_ranks: with 'sync', how many neighbouring ranks normalise together and
            share their running statistics, such as those of a host: SyncBatchNorm with
            a process group of them. M must be a multiple; None: all ranks.
        statistics_momentum: how far the running statistics of batch norm move towards
            those of each batch, as momentum of torch.nn.BatchNorm1d; None leaves what
            the network's layers have, which is torch's 0.1 in the networks of this
            package.
        importance_pass: how importance is measured before an epoch; see
            `ImportancePass`.
        loss: what is trained on: 'cross_entropy', or 'contrastive'; see `Contrastive`.
        drop_last: leave out what does not fill a last local batch, and the surplus
            sample of larger shards. If False, ranks with fewer samples repeat their
            first ones, as torch's DistributedSampler does, and the last local batch may
            be smaller.
        dtype: of weights and arithmetic.
        evaluate_every: epochs between evaluations; the last epoch is always evaluated.
        statistics: evaluations to make; see `Statistics`. With 'none' all of them are
            the same; with 'sync' over all ranks all but 'recalibrated'.
        own_ranks: how many ranks, or groups of ``sync_ranks``, evaluate each test
            sample for 'own'; all of them where there are no more.
        recalibration_samples: how many training samples, drawn at random once, the
            statistics 'recalibrated' are of: update_bn of stochastic weight averaging
            (Izmailov et al. 2018, arXiv 1803.05407) on a sample, which takes a forward
            pass of it in every evaluation; None, or more than there are: all.
    """

    epochs: Count = 30
    local_batch_size: Count = 8
    learning_rate: Positive = 0.1
    learning_rate_scaling: Literal["linear", "sqrt", "none"] = "none"
    reference_batch_size: Count = 256
    warmup_epochs: NonNegative = 0.0
    decay: Literal["none", "cosine"] = "cosine"
    momentum: Annotated[float, BeforeValidator(whole_as_float), Field(ge=0, lt=1)] = 0.9
    weight_decay: NonNegative = 5e-4
    nesterov: bool = False
    batch_norm: BatchNorm = "per_rank"
    sync_ranks: Count | None = None
    statistics_momentum: (
        Annotated[float, BeforeValidator(whole_as_float), Field(gt=0, le=1)] | None
    ) = None
    importance_pass: ImportancePass = "eval"  # noqa: S105 - no password
    loss: Annotated[CrossEntropy | Contrastive, Field(discriminator="kind")] = (
        CrossEntropy(kind="cross_entropy")
    )
    drop_last: bool = False
    dtype: Literal["float32", "float64"] = "float32"
    evaluate_every: Count = 1
    statistics: list[Statistics] = Field(default_factory=lambda: list(STATISTICS))
    own_ranks: Count = 8
    recalibration_samples: Annotated[int, Field(ge=2, le=2**53)] | None = None

    @field_validator("sync_ranks")
    @classmethod
    def _needs_sync(cls, value: int | None, info: ValidationInfo) -> int | None:
        """Refuse ``sync_ranks``, with an InputError, without batch norm over ranks."""
        if value is not None and info.data.get("batch_norm", "sync") != "sync":
            remedy = "Use batch_norm: sync, or leave sync_ranks out."
            refuse("", "needs batch_norm: sync", str(value), remedy, "training")
        return value

    def norm_groups(self, world_size: int) -> tuple[BatchNorm, int]:
        """Return how batch norm treats groups of neighbouring ranks, and how many ranks
        a group has.

        ('per_rank', k): every group normalises by itself and has statistics of its own.
        ('sync', ``world_size``): all ranks are one group. ('none', 1): no batch norm.

        Raises:
            InputError: the ranks do not make whole groups.
        """
        if self.batch_norm != "sync":
            return self.batch_norm, 1
        group_size = self.sync_ranks or world_size
        if world_size % group_size:
            remedy = f"Use a divisor of {world_size}, or leave sync_ranks out, for all ranks."
            rule = f"must divide the number of ranks, {world_size}"
            refuse("training.sync_ranks", rule, str(group_size), remedy, "training")
        return "per_rank" if group_size < world_size else "sync", group_size

    @property
    def refreshes_statistics(self) -> bool:
        """True if the pass that measures importance changes the running statistics."""
        return self.importance_pass == "train"  # noqa: S105 - no password

    @property
    def temperature(self) -> float | None:
        """The temperature of a contrastive loss; None of another loss."""
        return self.loss.temperature if isinstance(self.loss, Contrastive) else None

    def evaluates(self, epoch: int) -> bool:
        """Return whether the network is evaluated after ``epoch``, counted from 1."""
        return epoch % self.evaluate_every == 0 or epoch == self.epochs

    def peak_learning_rate(self, world_size: int) -> float:
        """Return the learning rate after the warm-up, with ``world_size`` ranks."""
        ratio = world_size * self.local_batch_size / self.reference_batch_size
        power = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}[self.learning_rate_scaling]
        return float(self.learning_rate * ratio**power)

    def learning_rate_at(self, progress: float, world_size: int) -> float:
        """Return the learning rate after ``progress`` epochs, a number from 0 to
        ``epochs``: 0 at the beginning of a warm-up, and at the end of a cosine decay.
        """
        peak = self.peak_learning_rate(world_size)
        if progress < self.warmup_epochs:
            return peak * progress / self.warmup_epochs
        if self.decay == "none":
            return peak
        decay_epochs = max(self.epochs - self.warmup_epochs, 1e-12)
        share = min(
            (progress - self.warmup_epochs) / decay_epochs, 1.0
        )  # of the decay, 0 to 1
        return peak * 0.5 * (1.0 + math.cos(math.pi * share))


class TrainingOptions(TypedDict, total=False):
    """Fields of `Training`, which says what they mean, as arguments of a function,
    except ``loss``, which is a function there.
    """

    epochs: int
    local_batch_size: int
    learning_rate: float
    learning_rate_scaling: Literal["linear", "sqrt", "none"]
    reference_batch_size: int
    warmup_epochs: float
    decay: Literal["none", "cosine"]
    momentum: float
    weight_decay: float
    nesterov: bool
    batch_norm: BatchNorm
    sync_ranks: int | None
    statistics_momentum: float | None
    importance_pass: ImportancePass
    drop_last: bool
    dtype: Literal["float32", "float64"]
    evaluate_every: int
    statistics: list[Statistics]
    own_ranks: int
    recalibration_samples: int | None


# --------------------------------------------------------------------------------------- optimisers


OptimizerFactory = Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimiser, such as ``functools.partial(torch.optim.AdamW, lr=1e-3)``, of
parameters.
"""
SGD_FIELDS = ("learning_rate", "momentum", "weight_decay", "nesterov")
"""Fields of `Training` that the caller's own optimiser takes the place of."""


def load_optimizers() -> None:
    """Load the modules that torch loads for the first optimiser of a process,
    torch._dynamo and sympy.

    It takes more than a second, in which a small network is trained.
    """
    torch.optim.SGD([torch.zeros(1)], lr=1.0)


def sgd(model: nn.Module, training: Training) -> torch.optim.SGD:
    """Return SGD for the weights of ``model``, at ``training.learning_rate`` without
    scaling or warm-up: the rate is to be set before every step (`set_rate`).
    """
    return torch.optim.SGD(
        model.parameters(),
        lr=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        nesterov=training.nesterov,
        foreach=True,
    )


def optimizer_of(
    model: nn.Module, training: Training, factory: OptimizerFactory | None
) -> torch.optim.Optimizer:
    """Return the optimiser that trains ``model``: SGD, or one made by ``factory``,
    whose parameter groups keep the ratio of their learning rates; SGD if that is None.

    Each group gets a key ``relative_lr``, its rate over ``training.learning_rate``, by
    which `set_rate` sets its learning rate. Errors as of `own_optimizer`.
    """
    optimizer = (
        sgd(model, training) if factory is None else own_optimizer(model, factory)
    )
    for group in optimizer.param_groups:
        group["relative_lr"] = float(group["lr"]) / training.learning_rate
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next step of ``optimizer``, one of `optimizer_of`.

    Each group gets ``rate`` times its ``relative_lr``.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate * group["relative_lr"]


def own_optimizer(model: nn.Module, factory: OptimizerFactory) -> torch.optim.Optimizer:
    """Return the optimiser of ``model`` that ``factory`` makes.

    It is tried by one step, which changes no weight, as ``model`` must have no
    gradients yet.

    Raises:
        InputError: ``factory`` is no function, fails, or makes no optimiser, or one
            that leaves out a trained weight, has a group without a learning rate above
            0, or steps only with a closure.
    """
    if not callable(factory):
        rule = "must be a function that makes an optimiser of the weights"
        _refuse(rule, f"a {_factory_name(factory)}")
    try:
        optimizer = factory(model.parameters())
    except (TypeError, ValueError) as error:
        _refuse(
            f"cannot be made of the model's parameters: {error}", _factory_name(factory)
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        _refuse("must make a torch.optim.Optimizer", f"a {type(optimizer).__name__}")
    groups = optimizer.param_groups
    if not all(float(group.get("lr", 0.0)) > 0 for group in groups):
        _refuse(
            "must have a learning rate lr above 0 in every group",
            _factory_name(factory),
        )
    optimised = {id(weight) for group in groups for weight in group["params"]}
    missing = [
        name
        for name, weight in model.named_parameters()
        if weight.requires_grad and id(weight) not in optimised
    ]
    if missing:
        _refuse(
            "must hold all weights that are trained",
            f"none of {', '.join(missing[:3])}",
        )
    try:
        optimizer.step()  # there are no gradients yet: nothing changes
    except TypeError:
        _refuse("must step without a closure", type(optimizer).__name__)
    return optimizer


def training_values(
    model: nn.Module, factory: OptimizerFactory, sgd_fields: Collection[str]
) -> dict[str, float]:
    """Return fields of `Training` for the caller's own optimiser: learning_rate, of its
    first group, and 0 for momentum and weight_decay.

    The optimiser is made and tried once, for its learning rate.

    Args:
        model: whose weights it optimises.
        factory: makes the optimiser.
        sgd_fields: fields of `Training` that the caller sets too.

    Raises:
        InputError: one of `SGD_FIELDS` is set too; or as of `own_optimizer`.
    """
    optimizer = own_optimizer(model, factory)
    problems = [
        Problem(
            name,
            "is not used beside an optimizer",
            "both",
            "Set it only in the optimizer.",
        )
        for name in SGD_FIELDS
        if name in sgd_fields
    ]
    if problems:
        raise InputError(problems, "training")
    rate = float(optimizer.param_groups[0]["lr"])
    return {"learning_rate": rate, "momentum": 0.0, "weight_decay": 0.0}


def _factory_name(factory: OptimizerFactory) -> str:
    """Return the name of a function, or of the class of another object."""
    return str(getattr(factory, "__name__", type(factory).__name__))


def _refuse(rule: str, value: str) -> NoReturn:
    """Raise InputError about the argument ``optimizer``."""
    remedy = "For example optimizer=functools.partial(torch.optim.AdamW, lr=1e-3)."
    refuse("optimizer", rule, value, remedy, "training")
