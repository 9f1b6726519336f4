"""Batch norm of many ranks in one batch: every rank normalises its own samples and
keeps its own running statistics.

The batch holds the samples of all ranks with the rank as the fastest index: sample j of
rank r is row j M + r. Then (b M, C, ...) seen as (b, M C, ...) is a batch of b samples
with M C channels, whose ordinary batch norm is that of every rank alone, and nothing is
copied.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.lazy import LazyModuleMixin

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.studies.training.tables import ABSENT
from simshuffle.train.rank_kernels import (
    NormaliseByRank,
    rescale_by_rank,
    supports_kernels,
)
from simshuffle.train.training import BatchNorm

Tensor = torch.Tensor


@dataclass
class RankRows:
    """The ranks whose rows the next batch holds: row j ``count`` + i is of rank
    ``first`` + i. All layers of a model share one record.
    """

    first: int = 0  # lowest rank
    count: int = 1  # ranks
    # rows of the batch, a multiple of ``count``; 0 before a batch is announced
    rows: int = 0

    def expect(self, first: int, count: int, rows: int) -> None:
        """Announce that the next batch has ``rows`` rows, of ``count`` ranks from
        ``first`` on.
        """
        self.first = first
        self.count = count
        self.rows = rows


class ConvertedNorm(_BatchNorm):
    """A layer of `LAYERS` whose class was changed, from ``original_class``."""

    original_class: type[_BatchNorm]

    @staticmethod
    def change(layer: Any, new_class: type[ConvertedNorm]) -> None:
        """Change the class of ``layer`` to ``new_class``, in place; its old class
        becomes ``original_class``.
        """
        layer.original_class = type(layer)
        layer.__class__ = new_class

    def _check_input_dim(self, input: Tensor) -> None:
        """Raise a ValueError for a shape that the original class does not take."""
        self.original_class._check_input_dim(self, input)  # type: ignore[no-untyped-call]


class RankBatchNorm(ConvertedNorm):
    """Batch norm with running statistics (M, C), one row for each rank."""

    ranks: RankRows  # the ranks of the next batch
    path: str  # of the layer in the model, for errors

    def forward(
        self, input: Tensor, added: Tensor | None = None, *, rectify: bool = False
    ) -> Tensor:
        """Normalise ``input`` (rows, C, ...) by rank, then add ``added``, and replace
        negative values by 0 if ``rectify``.

        Training uses the statistics of each rank's rows, and moves the running ones, if
        any, towards them. Evaluation uses the running statistics of each rank; where
        there are none, it uses statistics over the whole batch, of all ranks together.

        Raises:
            InputError: ``input`` has not as many rows as `RankRows` announced.
            ValueError: in training, a rank has one value for a channel.
        """
        self._check_input_dim(input)
        ranks = self.ranks
        if len(input) != ranks.rows:
            rule = f"batch norm by rank needs one row for each sample ({ranks.rows} of this batch)"
            refuse(self.path, rule, f"{len(input)} rows", _SYNC, "model")
        batch_ranks = slice(ranks.first, ranks.first + ranks.count)
        compiled = (
            supports_kernels(input) and input.numel() > ranks.count * input.shape[1]
        )
        if self.training and compiled:
            return self._normalise_compiled(input, batch_ranks, added, rectify)
        # statistics of the batch that is evaluated, whoever does it
        if not self.training and self.running_mean is None:
            output = super().forward(input)
        elif compiled and not torch.is_grad_enabled():
            output = self._rescale_compiled(input, batch_ranks)
        else:
            output = self._normalise_by_torch(input, batch_ranks)
        output = output if added is None else output + added
        return F.relu(output) if rectify else output

    def _normalise_by_torch(self, input: Tensor, batch_ranks: slice) -> Tensor:
        """Normalise by torch, seeing the ranks of the batch as more channels.

        Training takes the statistics of each rank's rows, and updates the running ones,
        if any. Evaluation takes the running statistics.
        """
        ranks = self.ranks
        factor = self._count_batch(batch_ranks)
        has_statistics = not self.training or self.track_running_stats
        channels = ranks.count * input.shape[1]
        wide = input.reshape(ranks.rows // ranks.count, channels, *input.shape[2:])
        mean = variance = None
        if has_statistics and self.running_mean is not None:
            mean = self.running_mean[batch_ranks].view(-1)
        if has_statistics and self.running_var is not None:
            variance = self.running_var[batch_ranks].view(-1)
        output = F.batch_norm(
            wide,
            mean,
            variance,
            None if self.weight is None else self.weight.repeat(ranks.count),
            None if self.bias is None else self.bias.repeat(ranks.count),
            self.training or self.running_mean is None,
            factor,
            self.eps,
        )
        return output.reshape(input.shape)

    def _normalise_compiled(
        self, input: Tensor, batch_ranks: slice, added: Tensor | None, rectify: bool
    ) -> Tensor:
        """Normalise in training by compiled code, add ``added``, replace negative
        values by 0 if ``rectify``, and update the running statistics, if any.
        """
        factor = self._count_batch(batch_ranks)
        normalise = cast(Any, NormaliseByRank.apply)
        output: Tensor
        output, (mean, biased_variance) = normalise(
            input, self._affine(input), added, self.ranks.count, self.eps, rectify
        )
        if self.track_running_stats and self.running_mean is not None:
            values = input.numel() // mean.numel()
            unbiased_factor = factor * values / (values - 1)
            running_mean = self.running_mean[batch_ranks]
            running_variance = require_statistic(self.running_var)[batch_ranks]
            running_mean.mul_(1 - factor).add_(mean, alpha=factor)
            running_variance.mul_(1 - factor).add_(
                biased_variance, alpha=unbiased_factor
            )
        return output

    def _rescale_compiled(self, input: Tensor, batch_ranks: slice) -> Tensor:
        """Normalise by the running statistics of the ranks of the batch, by compiled
        code.
        """
        weight, bias = self._affine(input)
        mean = require_statistic(self.running_mean)[batch_ranks]
        variance = require_statistic(self.running_var)[batch_ranks]
        scale = weight * (variance + self.eps).rsqrt()
        return rescale_by_rank(input, scale, bias - mean * scale)

    def _affine(self, input: Tensor) -> Tensor:
        """Return weight and bias of every channel, (2, C); 1 and 0 where there are
        none.
        """
        channels = input.shape[1]
        weight = input.new_ones(channels) if self.weight is None else self.weight
        bias = input.new_zeros(channels) if self.bias is None else self.bias
        return torch.stack([weight, bias])

    def _count_batch(self, batch_ranks: slice) -> float:
        """Count this batch in training, for layers that track statistics; return how
        far the running statistics move towards its own, 0 to 1.

        That is ``momentum``. With ``momentum`` None it is 1 / the batches so far of the
        first rank in the batch, and 0 where nothing is counted.
        """
        if (
            self.training
            and self.track_running_stats
            and self.num_batches_tracked is not None
        ):
            self.num_batches_tracked[batch_ranks] += 1
            if self.momentum is None:  # the mean over all batches so far
                return 1.0 / float(self.num_batches_tracked[batch_ranks.start])
        return 0.0 if self.momentum is None else self.momentum


class _ScaleAndShift(ConvertedNorm):
    """Batch norm without normalisation: its weight and bias alone."""

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input`` (rows, C, ...) times weight plus bias; without a weight,
        ``input`` itself.
        """
        self._check_input_dim(input)
        if self.weight is None:
            return input
        by_channel = (-1, *[1] * (input.ndim - 2))
        if self.bias is None:
            return input * self.weight.view(by_channel)
        return torch.addcmul(
            self.bias.view(by_channel), input, self.weight.view(by_channel)
        )


def require_statistic(statistic: Tensor | None) -> Tensor:
    """Return a running statistic of a layer; raise a ValueError if it is None."""
    if statistic is None:
        raise ValueError("the layer has no running statistics")
    return statistic


def rectify_norm(norm: nn.Module, x: Tensor, added: Tensor | None = None) -> Tensor:
    """Return ``x`` through the batch norm ``norm``, plus ``added``, negative values
    replaced by 0.

    Batch norm by rank does all at once.
    """
    output: Tensor
    if isinstance(norm, RankBatchNorm):
        output = norm(x, added, rectify=True)  # as a call, so that hooks see it
        return output
    output = norm(x)
    return F.relu(output if added is None else output + added)


LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""The classes of layers that can be converted (`ConvertedNorm`)."""
_SYNC = (
    "Use batch_norm: sync without sync_ranks, which keeps the model's layers and normalises over"
    " all ranks."
)


def apply_mode(model: nn.Module, mode: BatchNorm, world_size: int) -> RankRows:
    """Make the batch norm of ``model`` as ``mode`` says, in place.

    For 'none' only weight and bias of the layers remain. For 'sync' it stays: over the
    whole batch, torch's own does what SyncBatchNorm does over ranks; its running
    variance is unbiased over all samples in both.

    Returns:
        For 'per_rank' the `RankRows` of all layers, which must be told whose rows each
        batch holds; for other modes one that no layer looks at.

    Raises:
        InputError: a layer is lazy, or for 'per_rank' and 'none' keeps statistics that
            cannot be kept by rank.
    """
    check_not_lazy(model)
    if mode == "per_rank":
        return group_by_rank(model, world_size)
    if mode == "none":
        scale_and_shift_only(model)
    return RankRows()


def group_by_rank(model: nn.Module, world_size: int) -> RankRows:
    """Make the batch-norm layers of ``model`` keep statistics for each of
    ``world_size`` ranks, in place.

    Every rank begins with the statistics that the layer has. Parameters stay unchanged;
    the buffers ``running_mean`` and ``running_var`` become (M, C), and
    ``num_batches_tracked`` (M,). The returned `RankRows` must be told whose rows each
    batch holds.

    Raises:
        InputError: a layer keeps statistics that cannot be kept by rank.
    """
    check_layers(model)
    ranks = RankRows()
    for path, layer in model.named_modules():
        if type(layer) in LAYERS:
            ConvertedNorm.change(layer, RankBatchNorm)
            layer.ranks = ranks
            layer.path = path or "(model)"
            for name, buffer in layer.named_buffers(recurse=False):
                setattr(layer, name, buffer.expand(world_size, *buffer.shape).clone())
    return ranks


def scale_and_shift_only(model: nn.Module) -> None:
    """Reduce the batch norm of ``model`` to x weight + bias, in place; its running
    statistics are dropped.

    Raises:
        InputError: another layer than torch's batch norm mixes samples, or keeps
            statistics.
    """
    check_layers(model)
    for layer in model.modules():
        if type(layer) in LAYERS:
            ConvertedNorm.change(layer, _ScaleAndShift)
            for name, _ in list(layer.named_buffers(recurse=False)):
                setattr(layer, name, None)


def check_layers(model: nn.Module) -> None:
    """Raise an InputError unless every layer that keeps statistics or mixes samples is
    torch's BatchNorm1d, 2d or 3d, and not of a subclass.

    The error names path and class of all other layers.
    """
    problems = []
    for path, layer in model.named_modules():
        if type(layer) in LAYERS or not _keeps_statistics(layer):
            continue
        rule = "keeps statistics that cannot be separated by rank"
        problems.append(Problem(path or "(model)", rule, type(layer).__name__, _SYNC))
    if problems:
        raise InputError(problems, "model")


def check_not_lazy(model: nn.Module) -> None:
    """Raise an InputError that names all lazy layers of ``model``, if there are any:
    their weights are made from the first batch.
    """
    rule = "has no weights yet"
    remedy = "Give the model one batch before it is trained."
    lazy = [
        Problem(path or "(model)", rule, type(layer).__name__, remedy)
        for path, layer in model.named_modules()
        if isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params()  # type: ignore[misc]
    ]
    if lazy:
        raise InputError(lazy, "model")


def _keeps_statistics(layer: nn.Module) -> bool:
    """Return True if a layer keeps running statistics, or mixes samples without keeping
    any.

    Every batch-norm layer counts, also one of mode 'none'; instance norm only with
    running statistics.
    """
    names = ("running_mean", "running_var")
    if any(getattr(layer, name, None) is not None for name in names):
        return True
    # untracked, but it mixes samples
    instance_norm = nn.modules.instancenorm._InstanceNorm
    return isinstance(layer, _NormBase) and not isinstance(layer, instance_norm)


def pool_statistics(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Pool the statistics of equally large groups, (groups, C) each.

    Returns:
        (C,) the mean of means; and (C,) the mean of variances + the variance of means.
    """
    return mean.mean(0), variance.mean(0) + mean.var(0, correction=0)


def ordinary_copy(model: nn.Module, rank: int | None = None) -> nn.Module:
    """Return a copy of ``model``, as `group_by_rank` left it, with torch's own
    batch-norm layers.

    They have the running statistics of ``rank``, or those of all ranks pooled, with
    equal weights, if None. Device and mode are those of ``model``. ``model`` itself,
    and layers of mode 'none' in the copy, stay as they are.
    """
    twin = copy.deepcopy(model)
    for layer in twin.modules():
        if isinstance(layer, RankBatchNorm):
            _reduce(layer, rank)
    return twin


def _reduce(layer: Any, rank: int | None) -> None:
    """Turn a layer by rank into a layer of its original class, in place: (M, C) buffers
    become (C,), the buffers of ``rank`` or, if None, pooled over all ranks.

    The count of batches is that of ``rank``, or of rank 0 if None.
    """
    if layer.running_mean is not None:
        if rank is None:
            mean, variance = pool_statistics(layer.running_mean, layer.running_var)
            layer.running_mean = mean
            layer.running_var = variance
        else:
            layer.running_mean = layer.running_mean[rank].clone()
            layer.running_var = layer.running_var[rank].clone()
        layer.num_batches_tracked = layer.num_batches_tracked[rank or 0].clone()
    layer.__class__ = layer.original_class
    del layer.ranks, layer.path, layer.original_class


def norm_mode(model: nn.Module, mode: BatchNorm) -> str:
    """Return ``mode``, or `ABSENT` where no layer of ``model`` keeps statistics or
    mixes samples.
    """
    return (
        mode if any(_keeps_statistics(layer) for layer in model.modules()) else ABSENT
    )


def set_statistics_momentum(model: nn.Module, momentum: float | None) -> None:
    """Set how far the running statistics of ``model`` move towards each batch's
    statistics, 0 to 1, in place; None changes nothing.

    Layers without running statistics keep their momentum.
    """
    for layer in batch_norm_layers(model) if momentum is not None else []:
        layer.momentum = momentum


def statistics_momentum(model: nn.Module) -> float | None:
    """Return the momentum of the running statistics of ``model``: how far they move
    towards the statistics of each batch, 0 to 1.

    None if layers differ, if none keeps running statistics, or if these are means over
    all batches.
    """
    momenta = {layer.momentum for layer in batch_norm_layers(model)}
    return momenta.pop() if len(momenta) == 1 else None


def batch_norm_layers(model: nn.Module) -> list[_BatchNorm]:
    """Return the layers of ``model`` that keep running statistics as batch norm does,
    in order.
    """
    return [
        layer
        for layer in model.modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None
    ]
