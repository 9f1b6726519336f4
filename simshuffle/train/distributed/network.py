"""The network on real ranks: DistributedDataParallel, and batch norm over ranks on any
backend.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from simshuffle.train.batch_norm import (
    LAYERS,
    ConvertedNorm,
    check_layers,
    check_not_lazy,
    scale_and_shift_only,
)
from simshuffle.train.training import BatchNorm


def data_parallel(model: nn.Module, **options: Any) -> DistributedDataParallel:
    """Wrap ``model`` in torch's DistributedDataParallel, so that every rank keeps its
    own running statistics; ``options`` go to its constructor.

    By default all ranks would get the buffers of rank 0 before every forward pass in
    training, and evaluate with the statistics of its shard.
    """
    parameters = inspect.signature(DistributedDataParallel.__init__).parameters
    # renamed in torch 2.13
    keep = (
        "forward_sync_buffers"
        if "forward_sync_buffers" in parameters
        else "broadcast_buffers"
    )
    return DistributedDataParallel(model, **{keep: False, **options})


def with_batch_norm(
    model: nn.Module, mode: BatchNorm, group: dist.ProcessGroup | None = None
) -> nn.Module:
    """Return ``model`` with its batch norm changed to ``mode``, in place; 'per_rank'
    needs no change on real ranks.

    'sync' is over the ranks of ``group``, or all if None. It uses torch's SyncBatchNorm
    on a GPU; that refuses CPUs, where layers of this package do the same. 'none' keeps
    only weight and bias.

    Raises:
        InputError: a layer is lazy; or in any mode, another layer than torch's batch
            norm mixes samples or keeps statistics. The error names the layers.
    """
    check_not_lazy(model)
    if mode == "none":
        scale_and_shift_only(model)
    elif mode == "sync":
        check_layers(model)
        if any(weight.is_cuda for weight in model.parameters()):
            return nn.SyncBatchNorm.convert_sync_batchnorm(model, group)  # type: ignore[no-any-return, no-untyped-call, unused-ignore]
        for layer in model.modules():
            if type(layer) in LAYERS:
                ConvertedNorm.change(layer, SyncedBatchNorm)
                layer.group = group  # type: ignore[assignment]
    else:
        check_layers(model)
    return model


class _SumOverRanks(torch.autograd.Function):
    """The sum over the ranks of a group, all if None.

    Its gradient is summed over them too, as each rank's sum enters the loss of every
    one of these ranks.
    """

    @staticmethod
    def forward(
        ctx: Any, value: torch.Tensor, group: dist.ProcessGroup | None
    ) -> torch.Tensor:
        """Return the sum of ``value`` over the ranks; ``value`` stays as it is."""
        ctx.group = group
        total = value.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Sum the gradient over the ranks; the group has none."""
        total = gradients[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _GatherRows(torch.autograd.Function):
    """The rows of all ranks, which have equally many.

    A row enters the loss of every rank, so its gradient is the sum of the gradients on
    all ranks.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        """Return the ``rows`` (n, numbers) of all ranks as (n, M, numbers)."""
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.stack(parts, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Sum the gradient over the ranks, and return that of this rank's rows."""
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[:, dist.get_rank()]


def gather_rows(rows: torch.Tensor, world_size: int) -> torch.Tensor:
    """Return the ``rows`` (n, numbers) of all ranks, (n M, numbers) with the rank as
    the fastest index; their gradient reaches all ranks. Collective.
    """
    all_rows: torch.Tensor = _GatherRows.apply(rows)  # type: ignore[no-untyped-call]
    return all_rows.view(len(rows) * world_size, -1)


class SyncedBatchNorm(ConvertedNorm):
    """Batch norm over the equally large batches of the ranks of a group, all if None,
    as torch's SyncBatchNorm; the running variance is the unbiased one of all these
    batches.
    """

    group: dist.ProcessGroup | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return ``input`` (n, C, ...), normalised.

        Training is collective, takes statistics over the ranks of the group, and
        updates the running ones. Evaluation takes the running ones, or, without any,
        those of this rank's batch.
        """
        self._check_input_dim(input)
        if not self.training:
            return super().forward(input)
        shape = (1, -1, *[1] * (input.ndim - 2))  # to broadcast (C,) over input
        other_axes = [axis for axis in range(input.ndim) if axis != 1]
        count = input.numel() // input.shape[1] * dist.get_world_size(self.group)
        mean = self._sum(input.sum(other_axes)) / count
        centred = input - mean.view(shape)
        variance = self._sum((centred * centred).sum(other_axes)) / count
        self._track(mean.detach(), variance.detach() * (count / max(count - 1, 1)))
        output = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            output = output * self.weight.view(shape)
        if self.bias is not None:  # a layer may have a weight alone
            output = output + self.bias.view(shape)
        return output

    def _sum(self, value: torch.Tensor) -> torch.Tensor:
        """Return the sum of ``value`` over the ranks of the group."""
        total: torch.Tensor = _SumOverRanks.apply(value, self.group)  # type: ignore[no-untyped-call]
        return total

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Move the running statistics towards ``mean`` (C,) and ``variance`` (C,) of a
        batch, by the momentum; without one, to their mean over all batches.

        Nothing is done for a layer that keeps none.
        """
        if (
            self.running_mean is None
            or self.running_var is None
            or self.num_batches_tracked is None
        ):
            return
        self.num_batches_tracked += 1
        factor = (
            1.0 / float(self.num_batches_tracked)
            if self.momentum is None
            else self.momentum
        )
        self.running_mean.lerp_(mean, factor)
        self.running_var.lerp_(variance, factor)
