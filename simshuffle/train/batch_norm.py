"""Batch norm of many ranks in one batch: every rank normalises its own samples and keeps its own
running statistics.

The batch holds the samples of all ranks with the rank as the fastest index: sample j of rank r is
row j M + r. Then (b M, C, ...) seen as (b, M C, ...) is a batch of b samples with M C channels,
whose ordinary batch norm is that of every rank alone, and nothing is copied.
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
from simshuffle.train.rank_kernels import NormaliseByRank, rescaled, takes
from simshuffle.train.training import BatchNorm

Tensor = torch.Tensor


@dataclass
class RankRows:
    """Whose rows the next batch holds: row j ``count`` + i is of rank ``first`` + i."""

    first: int = 0  # lowest rank
    count: int = 1  # ranks
    rows: int = 0  # of the batch, a multiple of ``count``

    def expect(self, first: int, count: int, rows: int) -> None:
        """The next batch has ``rows`` rows, of ``count`` ranks from ``first`` on."""
        self.first, self.count, self.rows = first, count, rows


class OtherNorm(_BatchNorm):
    """A layer of `LAYERS` whose class was changed, and which was ``ordinary`` before."""

    ordinary: type[_BatchNorm]

    @staticmethod
    def change(layer: Any, to: type[OtherNorm]) -> None:
        """Let ``layer`` be of class ``to``."""
        layer.ordinary = type(layer)
        layer.__class__ = to

    def _check_input_dim(self, input: Tensor) -> None:
        self.ordinary._check_input_dim(self, input)  # type: ignore[no-untyped-call]


class ByRank(OtherNorm):
    """Batch norm with running statistics (M, C), one row for each rank."""

    ranks: RankRows
    path: str

    def forward(
        self, input: Tensor, added: Tensor | None = None, *, rectified: bool = False
    ) -> Tensor:
        """``input`` (rows, C, ...), normalised by rank, see `RankRows`; plus ``added``; and no less
        than 0 if ``rectified``."""
        self._check_input_dim(input)
        ranks = self.ranks
        if len(input) != ranks.rows:
            rule = f"batch norm by rank needs one row for each sample ({ranks.rows} of this batch)"
            refuse(self.path, rule, f"{len(input)} rows", _SYNC, "model")
        mine = slice(ranks.first, ranks.first + ranks.count)
        compiled = takes(input) and input.numel() > ranks.count * input.shape[1]
        if self.training and compiled:
            return self._normalised(input, mine, added, rectified)
        # statistics of the batch that is evaluated, whoever does it
        if not self.training and self.running_mean is None:
            output = super().forward(input)
        elif compiled and not torch.is_grad_enabled():
            output = self._rescaled(input, mine)
        else:
            output = self._seen_wide(input, mine)
        output = output if added is None else output + added
        return F.relu(output) if rectified else output

    def _seen_wide(self, input: Tensor, mine: slice) -> Tensor:
        """Of the ranks ``mine``, as torch does it."""
        ranks, factor = self.ranks, self._count_batch(mine)
        keeps = not self.training or self.track_running_stats
        channels = ranks.count * input.shape[1]
        wide = input.reshape(ranks.rows // ranks.count, channels, *input.shape[2:])
        output = F.batch_norm(
            wide,
            self.running_mean[mine].view(-1) if keeps and self.running_mean is not None else None,
            self.running_var[mine].view(-1) if keeps and self.running_var is not None else None,
            None if self.weight is None else self.weight.repeat(ranks.count),
            None if self.bias is None else self.bias.repeat(ranks.count),
            self.training or self.running_mean is None,
            factor,
            self.eps,
        )
        return output.reshape(input.shape)

    def _normalised(
        self, input: Tensor, mine: slice, added: Tensor | None, rectified: bool
    ) -> Tensor:
        """In training, compiled; the running statistics of the ranks ``mine`` take it in."""
        factor, normalised = self._count_batch(mine), cast(Any, NormaliseByRank.apply)
        output: Tensor
        output, (mean, square) = normalised(
            input, self._affine(input), added, self.ranks.count, self.eps, rectified
        )
        if self.track_running_stats and self.running_mean is not None:
            values = input.numel() // mean.numel()
            unbiased = factor * values / (values - 1)
            self.running_mean[mine].mul_(1 - factor).add_(mean, alpha=factor)
            known(self.running_var)[mine].mul_(1 - factor).add_(square, alpha=unbiased)
        return output

    def _rescaled(self, input: Tensor, mine: slice) -> Tensor:
        """With the running statistics of the ranks ``mine``, compiled."""
        weight, bias = self._affine(input)
        scale = weight * (known(self.running_var)[mine] + self.eps).rsqrt()
        return rescaled(input, scale, bias - known(self.running_mean)[mine] * scale)

    def _affine(self, input: Tensor) -> Tensor:
        """Weight and bias (2, C); 1 and 0 where there are none."""
        channels = input.shape[1]
        weight = input.new_ones(channels) if self.weight is None else self.weight
        bias = input.new_zeros(channels) if self.bias is None else self.bias
        return torch.stack([weight, bias])

    def _count_batch(self, mine: slice) -> float:
        """Count this batch; how far the running statistics go towards its own."""
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked[mine] += 1
            if self.momentum is None:  # the mean over all batches so far
                return 1.0 / float(self.num_batches_tracked[mine.start])
        return 0.0 if self.momentum is None else self.momentum


class _ScaleAndShift(OtherNorm):
    """What remains of batch norm without normalisation: its weight and bias."""

    def forward(self, input: Tensor) -> Tensor:
        """``input`` (rows, C, ...) times weight plus bias."""
        self._check_input_dim(input)
        if self.weight is None:
            return input
        by_channel = (-1, *[1] * (input.ndim - 2))
        if self.bias is None:
            return input * self.weight.view(by_channel)
        return torch.addcmul(self.bias.view(by_channel), input, self.weight.view(by_channel))


def known(statistic: Tensor | None) -> Tensor:
    """A running statistic of a layer that has one; a ValueError if it has none."""
    if statistic is None:
        raise ValueError("a layer without running statistics")
    return statistic


def rectified(norm: nn.Module, x: Tensor, added: Tensor | None = None) -> Tensor:
    """No less than 0: ``x`` through the batch norm ``norm``, plus ``added``; at once where that is
    batch norm by rank."""
    output: Tensor
    if isinstance(norm, ByRank):
        output = norm(x, added, rectified=True)  # as a call, so that hooks see it
        return output
    output = norm(x)
    return F.relu(output if added is None else output + added)


LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""What is understood. A layer of a changed class keeps its own one as ``ordinary``."""
_SYNC = (
    "Use batch_norm: sync without sync_ranks, which leaves the model's layers as they are and"
    " normalises over all ranks."
)


def apply_mode(model: nn.Module, mode: BatchNorm, world_size: int) -> RankRows:
    """Make the batch norm of ``model`` as ``mode`` says, in place: errors as of `group_by_rank`.
    For 'sync' it stays: over the whole batch, torch's own does what SyncBatchNorm does over ranks;
    its running variance is unbiased over all samples in both."""
    check_materialised(model)
    if mode == "per_rank":
        return group_by_rank(model, world_size)
    if mode == "none":
        scale_and_shift_only(model)
    return RankRows()


def group_by_rank(model: nn.Module, world_size: int) -> RankRows:
    """Make the batch-norm layers of ``model`` keep statistics for each of ``world_size`` ranks, in
    place, or raise InputError naming a layer that cannot. Parameters stay the same; the buffers
    ``running_mean`` and ``running_var`` become (M, C), and ``num_batches_tracked`` (M,). The
    returned `RankRows` must be told whose rows each batch holds."""
    check_layers(model)
    ranks = RankRows()
    for path, layer in model.named_modules():
        if type(layer) in LAYERS:
            OtherNorm.change(layer, ByRank)
            layer.ranks, layer.path = ranks, path or "(model)"
            for name, buffer in layer.named_buffers(recurse=False):
                setattr(layer, name, buffer.expand(world_size, *buffer.shape).clone())
    return ranks


def scale_and_shift_only(model: nn.Module) -> None:
    """Leave of the batch norm of ``model`` x weight + bias, in place; errors as of
    `group_by_rank`."""
    check_layers(model)
    for layer in model.modules():
        if type(layer) in LAYERS:
            OtherNorm.change(layer, _ScaleAndShift)
            for name, _ in list(layer.named_buffers(recurse=False)):
                setattr(layer, name, None)


def check_layers(model: nn.Module) -> None:
    """See that every layer of ``model`` that keeps statistics is a BatchNorm1d, 2d or 3d of torch,
    or raise InputError with path and class of those that are not."""
    problems = []
    for path, layer in model.named_modules():
        if type(layer) in LAYERS or not _keeps_statistics(layer):
            continue
        rule = "keeps statistics that cannot be kept by rank"
        problems.append(Problem(path or "(model)", rule, type(layer).__name__, _SYNC))
    if problems:
        raise InputError(problems, "model")


def check_materialised(model: nn.Module) -> None:
    """See that no layer of ``model`` is lazy, its weights still to be made, or raise InputError."""
    rule, remedy = "has no weights yet", "Give the model one batch before it is trained."
    lazy = [
        Problem(path or "(model)", rule, type(layer).__name__, remedy)
        for path, layer in model.named_modules()
        if isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params()  # type: ignore[misc]
    ]
    if lazy:
        raise InputError(lazy, "model")


def _keeps_statistics(layer: nn.Module) -> bool:
    names = ("running_mean", "running_var")
    if any(getattr(layer, name, None) is not None for name in names):
        return True
    # untracked, but it mixes samples
    alone = nn.modules.instancenorm._InstanceNorm
    return isinstance(layer, _NormBase) and not isinstance(layer, alone)


def pooled(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Statistics of equally large groups together, from (groups, C) each: (C,) mean of means; mean
    of variances + variance of means."""
    return mean.mean(0), variance.mean(0) + mean.var(0, correction=0)


def ordinary(model: nn.Module, rank: int | None = None) -> nn.Module:
    """A copy of ``model``, as `group_by_rank` left it, with torch's own batch-norm layers; they
    have the running statistics of ``rank``, or `pooled` ones if None."""
    twin = copy.deepcopy(model)
    for layer in twin.modules():
        if isinstance(layer, ByRank):
            _reduce(layer, rank)
    return twin


def _reduce(layer: Any, rank: int | None) -> None:
    """From a layer by rank to the one it was: (M, C) buffers to (C,)."""
    if layer.running_mean is not None:
        if rank is None:
            layer.running_mean, layer.running_var = pooled(layer.running_mean, layer.running_var)
        else:
            layer.running_mean = layer.running_mean[rank].clone()
            layer.running_var = layer.running_var[rank].clone()
        layer.num_batches_tracked = layer.num_batches_tracked[rank or 0].clone()
    layer.__class__ = layer.ordinary
    del layer.ranks, layer.path, layer.ordinary


def mode_of(model: nn.Module, mode: BatchNorm) -> str:
    """``mode``, or `ABSENT` where nothing in ``model`` keeps statistics."""
    return mode if any(_keeps_statistics(layer) for layer in model.modules()) else ABSENT


def set_statistics_momentum(model: nn.Module, momentum: float | None) -> None:
    """Let the running statistics of ``model`` move so far towards each batch's; None changes
    nothing."""
    for layer in batch_norm_layers(model) if momentum is not None else []:
        layer.momentum = momentum


def statistics_momentum(model: nn.Module) -> float | None:
    """How far the running statistics of ``model`` move towards those of each batch; None if it has
    none, or layers that differ or take the mean over all batches."""
    found = {layer.momentum for layer in batch_norm_layers(model)}
    return found.pop() if len(found) == 1 else None


def batch_norm_layers(model: nn.Module) -> list[_BatchNorm]:
    """The layers of ``model`` that keep running statistics as batch norm does, in order."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
