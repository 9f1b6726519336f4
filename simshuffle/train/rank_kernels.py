"""Batch norm of many ranks in one batch whose channels come last in memory, on a CPU: compiled, one
pass over a rank's samples after the other, so that they stay in the cache.

Row j M + r is sample j of rank r, as in `simshuffle.train.batch_norm`. A row is S places of C
channels, seen as S C numbers one after the other. Statistics are sums by number of a block of a
whole number of places: they are taken side by side, in an order that no machine changes, in the
type of the inputs for one row, and in float64 over rows.

Formulas: Ioffe and Szegedy 2015 (arXiv 1502.03167), section 3; gradients as there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from simshuffle.spec.compiling import compiled, entry

Tensor = torch.Tensor
BLOCK = 64
"""Numbers of a block, at least: four vectors of 512 bits of float32."""


@compiled
def _fold(sums: Any, total: Any) -> None:
    """Add the block ``sums`` to ``total`` (C,), and empty it."""
    channels = len(total)
    for number in range(len(sums)):
        total[number % channels] += sums[number]
        sums[number] = 0


@compiled
def _moments(x: Any, rank: int, ranks: int, mean: Any, square: Any, total: Any, work: Any) -> None:
    """Mean (C,) and mean square deviation ``square`` (C,) of the rows of ``rank``; ``mean`` also
    goes into every place of the block work[1]. work[0] is empty, before and after."""
    rows, numbers = x.shape
    width, channels = work.shape[1], len(mean)
    values = (rows // ranks) * (numbers // channels)
    sums, middle = work[0], work[1]
    total[:] = 0
    for row in range(rank, rows, ranks):
        line = x[row]
        for begin in range(0, numbers, width):
            a = line[begin : begin + width]
            for k in range(len(a)):
                sums[k] += a[k]
        _fold(sums, total)
    for c in range(channels):
        mean[c] = total[c] / values
    for k in range(width):
        middle[k] = mean[k % channels]
    total[:] = 0
    for row in range(rank, rows, ranks):
        line = x[row]
        for begin in range(0, numbers, width):
            a = line[begin : begin + width]
            for k in range(len(a)):
                away = a[k] - middle[k]
                sums[k] += away * away
        _fold(sums, total)
    for c in range(channels):
        square[c] = total[c] / values


@entry
def normalise(  # noqa: PLR0913, PLR0917 - compiled
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    square: Any,
    eps: float,
    y: Any,
    total: Any,
    work: Any,
) -> None:
    """Fill ``mean`` and ``square`` (M, C), the biased variance, from ``x`` (b M, S C), and ``y``
    with (x - mean) / sqrt(square + eps) weight + bias. ``total`` (2, C) float64 and ``work``
    (4, block) are for its own use; the latter comes with zeros."""
    rows, numbers = x.shape
    ranks, channels = mean.shape
    width = work.shape[1]
    middle, scale, shift = work[1], work[2], work[3]
    for rank in range(ranks):
        _moments(x, rank, ranks, mean[rank], square[rank], total[0], work)
        for k in range(width):
            c = k % channels
            scale[k] = weight[c] / (square[rank, c] + eps) ** 0.5
            shift[k] = bias[c]
        for row in range(rank, rows, ranks):
            line, out = x[row], y[row]
            for begin in range(0, numbers, width):
                a, to = line[begin : begin + width], out[begin : begin + width]
                for k in range(len(a)):
                    to[k] = (a[k] - middle[k]) * scale[k] + shift[k]


@entry
def rescale(x: Any, scale: Any, shift: Any, y: Any, work: Any) -> None:
    """Fill ``y`` with ``x`` (b M, S C) times ``scale`` plus ``shift`` (M, C); ``work`` (2, block)
    is for its own use."""
    rows, numbers = x.shape
    ranks, channels = scale.shape
    width = work.shape[1]
    factor, added = work[0], work[1]
    for rank in range(ranks):
        for k in range(width):
            factor[k] = scale[rank, k % channels]
            added[k] = shift[rank, k % channels]
        for row in range(rank, rows, ranks):
            line, out = x[row], y[row]
            for begin in range(0, numbers, width):
                a, to = line[begin : begin + width], out[begin : begin + width]
                for k in range(len(a)):
                    to[k] = a[k] * factor[k] + added[k]


@entry
def gradients(  # noqa: PLR0913, PLR0917 - compiled
    given: Any,
    x: Any,
    weight: Any,
    mean: Any,
    square: Any,
    eps: float,
    found: Any,
    of_weight: Any,
    of_bias: Any,
    total: Any,
    work: Any,
) -> None:
    """Fill ``found`` (b M, S C) with the gradient by ``x``, and ``of_weight`` and ``of_bias`` (C,)
    float64, of what has the gradient ``given`` by the output; the others as of `normalise`."""
    rows, numbers = x.shape
    ranks, channels = mean.shape
    width = work.shape[1]
    values = (rows // ranks) * (numbers // channels)
    middle, scale, level, slope, sums, products = (
        work[0],
        work[1],
        work[2],
        work[3],
        work[4],
        work[5],
    )
    of_weight[:] = 0
    of_bias[:] = 0
    for rank in range(ranks):
        total[:] = 0
        for k in range(width):
            middle[k] = mean[rank, k % channels]
        for row in range(rank, rows, ranks):
            line, come = x[row], given[row]
            for begin in range(0, numbers, width):
                a, g = line[begin : begin + width], come[begin : begin + width]
                for k in range(len(a)):
                    sums[k] += g[k]
                    products[k] += g[k] * (a[k] - middle[k])
            _fold(sums, total[0])
            _fold(products, total[1])
        for c in range(channels):
            of_bias[c] += total[0, c]
            of_weight[c] += total[1, c] / (square[rank, c] + eps) ** 0.5
        for k in range(width):
            c = k % channels
            scale[k] = weight[c] / (square[rank, c] + eps) ** 0.5
            level[k] = total[0, c] / values
            slope[k] = total[1, c] / values / (square[rank, c] + eps)
        for row in range(rank, rows, ranks):
            line, come, out = x[row], given[row], found[row]
            for begin in range(0, numbers, width):
                a, g, to = (
                    line[begin : begin + width],
                    come[begin : begin + width],
                    out[begin : begin + width],
                )
                for k in range(len(a)):
                    away = a[k] - middle[k]
                    to[k] = (g[k] - level[k] - away * slope[k]) * scale[k]


# -------------------------------------------------------------------------------- as torch calls it


def takes(x: Tensor) -> bool:
    """Whether these kernels do the batch norm of ``x``: on a CPU, in float32 or float64, with
    channels last in memory."""
    if x.device.type != "cpu" or x.dtype not in {torch.float32, torch.float64} or not x.numel():
        return False
    if x.ndim == 4:
        return x.is_contiguous(memory_format=torch.channels_last)
    return x.ndim == 2 and x.is_contiguous()


def _flat(x: Tensor) -> Any:
    """(rows, S C) in the order of memory."""
    given = x.detach()
    return (given.permute(0, 2, 3, 1) if x.ndim == 4 else given).reshape(len(x), -1).numpy()


def _work(x: Tensor, blocks: int) -> tuple[Any, Any]:
    """Room for sums: (2, C) float64, and zeros (blocks, block)."""
    channels = x.shape[1]
    width = -(-BLOCK // channels) * channels
    total = torch.zeros(2, channels, dtype=torch.float64).numpy()
    return total, torch.zeros(blocks, width, dtype=x.dtype).numpy()


def rescaled(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """``x`` (b M, C, ...) times ``scale`` plus ``shift``, (M, C) each; without gradient."""
    y = torch.empty_like(x)
    rescale(_flat(x), scale.detach().numpy(), shift.detach().numpy(), _flat(y), _work(x, 2)[1])
    return y


class NormaliseByRank(torch.autograd.Function):
    """Batch norm by rank in training: see `normalise`."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, weight: Tensor, bias: Tensor, ranks: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of ``x`` (b M, C, ...) by M = ``ranks``: what is normalised; mean and biased variance
        (M, C)."""
        mean, square = x.new_empty(2, ranks, x.shape[1])
        y = torch.empty_like(x)
        given = weight.detach().numpy(), bias.detach().numpy()
        normalise(_flat(x), *given, mean.numpy(), square.numpy(), eps, _flat(y), *_work(x, 4))
        context.save_for_backward(x, weight, mean, square)
        context.eps = eps
        context.mark_non_differentiable(mean, square)
        return y, mean, square

    @staticmethod
    @once_differentiable
    def backward(context: Any, given: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """The gradients by ``x``, ``weight`` and ``bias``."""
        x, weight, mean, square = context.saved_tensors
        if not takes(given):
            given = given.contiguous(
                memory_format=torch.channels_last if x.ndim == 4 else torch.contiguous_format
            )
        found, of_both = torch.empty_like(x), torch.empty(2, x.shape[1], dtype=torch.float64)
        gradients(
            _flat(given),
            _flat(x),
            weight.detach().numpy(),
            mean.numpy(),
            square.numpy(),
            context.eps,
            _flat(found),
            *of_both.numpy(),
            *_work(x, 6),
        )
        return found, *of_both.to(x.dtype), None, None
