"""Batch norm of many ranks in one batch whose channels come last in memory, on a CPU:
compiled, one pass over a rank's samples after the other, so that they stay in the
cache.

Row j M + r is sample j of rank r, as in `simshuffle.train.batch_norm`. A row is S
places of C channels, seen as S C numbers one after the other. Statistics are sums by
number of a block of a whole number of places: they are taken side by side, in an order
that no machine changes, in the type of the inputs for one row, and in float64 over
rows.

Formulas: Ioffe and Szegedy 2015 (arXiv 1502.03167), section 3; gradients as there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from simshuffle.spec.compiling import compiled, entry

Tensor = torch.Tensor
BLOCK = 256
"""Numbers of a block, at least: many vectors, and few beside all of a row."""


@compiled
def _tile(values: Any, block: Any) -> None:
    """Copy ``values`` (C,) into every place of a block."""
    channels = len(values)
    for place in range(0, len(block), channels):
        for c in range(channels):
            block[place + c] = values[c]


@compiled
def _fold(sums: Any, total: Any) -> None:
    """Add a block of ``sums`` to ``total`` (C,) by channel, and fill it with zeros."""
    channels = len(total)
    for place in range(0, len(sums), channels):
        for c in range(channels):
            total[c] += sums[place + c]
            sums[place + c] = 0


@compiled
def _moments(
    x: Any, rank: int, mean: Any, variance: Any, total: Any, work: Any
) -> None:
    """Fill ``rank``'s row of ``mean`` and of the biased ``variance``, (M, C) each, from
    its rows of ``x`` (b M, S C).

    Its mean also fills the block work[1]. The block work[0] is zeros, before and after.
    ``total`` (C,) float64 is overwritten.
    """
    rows, numbers = x.shape
    ranks, channels = mean.shape
    width = work.shape[1]
    values = (rows // ranks) * (numbers // channels)
    sums = work[0]
    middle = work[1]
    total[:] = 0
    # rows of this rank, block by block; then again, for squares about the mean
    for row in range(rank, rows, ranks):
        for begin in range(0, numbers, width):
            a = x[row, begin : begin + width]
            for k in range(len(a)):
                sums[k] += a[k]
        _fold(sums, total)
    for c in range(channels):
        mean[rank, c] = total[c] / values
    _tile(mean[rank], middle)
    total[:] = 0
    for row in range(rank, rows, ranks):
        for begin in range(0, numbers, width):
            a = x[row, begin : begin + width]
            for k in range(len(a)):
                deviation = a[k] - middle[k]
                sums[k] += deviation * deviation
        _fold(sums, total)
    for c in range(channels):
        variance[rank, c] = total[c] / values


@entry
def normalise(
    x: Any,
    affine: Any,
    moments: Any,
    eps: float,
    added: Any,
    rectified: bool,
    y: Any,
    work: Any,
    total: Any,
    factor: Any,
) -> None:
    """Normalise ``x`` (b M, S C) by rank.

    Fills ``moments`` (2, M, C), mean and biased variance by rank, and ``y`` with (x -
    mean) / sqrt(variance + eps) weight + bias, plus ``added`` if that has rows, and no
    less than 0 if ``rectified``. ``affine`` (2, C) is weight and bias; the last three
    are for its own use, as of `_workspace` (4).
    """
    rows, numbers = x.shape
    mean = moments[0]
    variance = moments[1]
    ranks, channels = mean.shape
    width = work.shape[1]
    middle = work[1]
    scale = work[2]
    shift = work[3]
    zero = x.dtype.type(0)
    _tile(affine[1], shift)
    for rank in range(ranks):
        _moments(x, rank, mean, variance, total[0], work)
        for c in range(channels):
            factor[0, c] = affine[0, c] / math.sqrt(variance[rank, c] + eps)
        _tile(factor[0], scale)
        for row in range(rank, rows, ranks):
            for begin in range(0, numbers, width):
                a = x[row, begin : begin + width]
                out = y[row, begin : begin + width]
                for k in range(len(a)):
                    out[k] = (a[k] - middle[k]) * scale[k] + shift[k]
                if len(added):
                    addend = added[row, begin : begin + width]
                    for k in range(len(a)):
                        out[k] += addend[k]
                if rectified:
                    for k in range(len(a)):
                        out[k] = zero if out[k] <= zero else out[k]


@compiled
def _sums(
    output_gradient: Any,
    x: Any,
    y: Any,
    passed: Any,
    rank: int,
    ranks: int,
    total: Any,
    work: Any,
) -> None:
    """Sum the gradients of ``rank``, whose mean is in work[2].

    Fills ``total`` (2, C) with the sums of the gradient ``output_gradient`` and of its
    products with x - mean. If ``y`` has rows, these are of the part that a rectifier
    with output ``y`` lets through; the rank's rows of ``passed`` are filled with that
    part. work[0] and work[1] are zeros, before and after.
    """
    rows, numbers = x.shape
    width = work.shape[1]
    sums = work[0]
    products = work[1]
    middle = work[2]
    zero = x.dtype.type(0)  # a whole number would make it float64
    total[:] = 0
    for row in range(rank, rows, ranks):
        for begin in range(0, numbers, width):
            a = x[row, begin : begin + width]
            g = output_gradient[row, begin : begin + width]
            if len(y):
                activation = y[row, begin : begin + width]
                out = passed[row, begin : begin + width]
                for k in range(len(a)):
                    out[k] = zero if activation[k] <= zero else g[k]
                g = out
            for k in range(len(a)):
                sums[k] += g[k]
                products[k] += g[k] * (a[k] - middle[k])
        _fold(sums, total[0])
        _fold(products, total[1])


@entry
def gradients(
    output_gradient: Any,
    x: Any,
    y: Any,
    weight: Any,
    moments: Any,
    eps: float,
    of_x: Any,
    passed: Any,
    inside: bool,
    of_affine: Any,
    work: Any,
    total: Any,
    factor: Any,
) -> None:
    """Compute the gradients of a loss whose gradient by the output of `normalise` is
    ``output_gradient``.

    Fills ``of_x`` (b M, S C), and ``of_affine`` (2, C) float64: by weight and by bias,
    summed over ranks. ``weight`` is (C,), and ``moments`` (2, M, C) as of `normalise`.
    ``y`` is that output if it was rectified; then ``passed`` becomes the part that the
    rectifier lets through, and is ``of_x`` itself if ``inside``. Else ``y`` has no rows
    and ``passed`` is not used. The last three are for its own use, as of `_workspace`
    (6).
    """
    rows, numbers = x.shape
    mean = moments[0]
    variance = moments[1]
    ranks, channels = mean.shape
    width = work.shape[1]
    values = (rows // ranks) * (numbers // channels)
    middle = work[2]
    scale = work[3]
    level = work[4]
    slope = work[5]
    of_affine[:] = 0
    for rank in range(ranks):
        _tile(mean[rank], middle)
        _sums(output_gradient, x, y, passed, rank, ranks, total, work)
        for c in range(channels):
            spread = variance[rank, c] + eps
            of_affine[0, c] += total[1, c] / math.sqrt(spread)
            of_affine[1, c] += total[0, c]
            factor[0, c] = weight[c] / math.sqrt(spread)
            # mean gradient; and mean of gradient times (x - mean), over the variance
            factor[1, c] = total[0, c] / values
            factor[2, c] = total[1, c] / values / spread
        _tile(factor[0], scale)
        _tile(factor[1], level)
        _tile(factor[2], slope)
        for row in range(rank, rows, ranks):
            for begin in range(0, numbers, width):
                a = x[row, begin : begin + width]
                out = of_x[row, begin : begin + width]
                if (
                    inside
                ):  # said apart, so that the compiler sees that nothing else overlaps
                    for k in range(len(a)):
                        out[k] = (
                            out[k] - level[k] - (a[k] - middle[k]) * slope[k]
                        ) * scale[k]
                else:
                    g = (passed if len(y) else output_gradient)[
                        row, begin : begin + width
                    ]
                    for k in range(len(a)):
                        out[k] = (
                            g[k] - level[k] - (a[k] - middle[k]) * slope[k]
                        ) * scale[k]


@entry
def rescale(x: Any, scale: Any, shift: Any, y: Any, work: Any) -> None:
    """Fill ``y`` with ``x`` (b M, S C) times ``scale`` plus ``shift`` (M, C).

    ``work`` (2, block) is for its own use.
    """
    rows, numbers = x.shape
    ranks = len(scale)
    width = work.shape[1]
    factor = work[0]
    added = work[1]
    for rank in range(ranks):
        _tile(scale[rank], factor)
        _tile(shift[rank], added)
        # sample j of the rank is row j M + rank; k runs over places and channels
        for row in range(rank, rows, ranks):
            for begin in range(0, numbers, width):
                a = x[row, begin : begin + width]
                out = y[row, begin : begin + width]
                for k in range(len(a)):
                    out[k] = a[k] * factor[k] + added[k]


# -------------------------------------------------------------------------------- as torch calls it


def supports_kernels(x: Tensor) -> bool:
    """Return True if these kernels can do the batch norm of ``x``.

    They can on a CPU, in float32 or float64, if ``x`` is not empty: (rows, C)
    contiguous, or (rows, C, H, W) with channels last in memory.
    """
    if (
        x.device.type != "cpu"
        or x.dtype not in {torch.float32, torch.float64}
        or not x.numel()
    ):
        return False
    return x.ndim in {2, 4} and x.is_contiguous(memory_format=_order(x))


def _order(x: Tensor) -> torch.memory_format:
    """Return the memory format in which the kernels read ``x``.

    It is channels last for (rows, C, H, W), and contiguous for other shapes, of which
    the kernels support (rows, C) alone.
    """
    return torch.channels_last if x.ndim == 4 else torch.contiguous_format


def _flat(x: Tensor | None, like: Tensor) -> Any:
    """Return ``x`` as (rows, S C) numbers, channels last; an array without rows if None.

    It is a view if ``x`` is in that order in memory, else a copy, so that what is
    written there does not reach ``x``. The empty array has the type of ``like``.
    """
    if x is None:
        return np.empty((0, 0), like.detach().numpy().dtype)
    contiguous = x.detach().contiguous(memory_format=_order(x))
    rows = contiguous.permute(0, 2, 3, 1) if x.ndim == 4 else contiguous
    return rows.reshape(len(x), -1).numpy()


def _workspace(x: Tensor, blocks: int) -> tuple[Any, Any, Any]:
    """Return zeros: (blocks, block), (2, C) float64 and (3, C).

    The first and the last have the type of ``x``. A block is the least multiple of C
    that is not below `BLOCK`.
    """
    channels = x.shape[1]
    dtype = x.detach().numpy().dtype
    width = -(-BLOCK // channels) * channels
    return (
        np.zeros((blocks, width), dtype),
        np.zeros((2, channels)),
        np.zeros((3, channels), dtype),
    )


def rescale_by_rank(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return ``x`` (b M, C, ...) times ``scale`` plus ``shift``, (M, C) each; without
    gradient.

    `supports_kernels` must accept ``x``; else the output may stay unfilled.
    """
    y = torch.empty_like(x)
    work, _, _ = _workspace(x, 2)
    rescale(
        _flat(x, x), scale.detach().numpy(), shift.detach().numpy(), _flat(y, x), work
    )
    return y


class NormaliseByRank(torch.autograd.Function):
    """Batch norm by rank in training: see `normalise`."""

    @staticmethod
    def forward(
        context: Any,
        x: Tensor,
        affine: Tensor,
        added: Tensor | None,
        ranks: int,
        eps: float,
        rectified: bool,
    ) -> tuple[Tensor, Tensor]:
        """Normalise ``x`` (b M, C, ...), M = ``ranks``, by rank; then add ``added``, if
        any, and replace negative values by 0 if ``rectified``.

        `supports_kernels` must accept ``x``; else the output may stay unfilled.
        ``affine`` (2, C) is weight and bias.

        Returns:
            The output; and mean and biased variance (2, M, C), which have no gradient.
        """
        moments = x.new_empty(2, ranks, x.shape[1])
        y = torch.empty_like(x)
        normalise(
            _flat(x, x),
            affine.detach().numpy(),
            moments.numpy(),
            eps,
            _flat(added, x),
            rectified,
            _flat(y, x),
            *_workspace(x, 4),
        )
        context.save_for_backward(x, affine, moments, *([y] if rectified else []))
        context.eps = eps
        context.has_added = added is not None
        context.mark_non_differentiable(moments)
        return y, moments

    @staticmethod
    @once_differentiable
    def backward(
        context: Any, output_gradient: Tensor, *_: Any
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients by the six inputs of `forward`: ``x``, ``affine`` and
        ``added`` (None if it was None), then three None.
        """
        x, affine, moments, *outputs = context.saved_tensors
        of_x = torch.empty_like(x)
        of_affine = torch.empty(*affine.shape, dtype=torch.float64)
        y, passed = (outputs[0], of_x) if outputs else (None, None)
        if outputs and context.has_added:
            passed = torch.empty_like(x)
        gradients(
            _flat(output_gradient, x),
            _flat(x, x),
            _flat(y, x),
            affine[0].detach().numpy(),
            moments.numpy(),
            context.eps,
            _flat(of_x, x),
            _flat(passed, x),
            passed is of_x,
            of_affine.numpy(),
            *_workspace(x, 6),
        )
        of_added = None
        if context.has_added:
            of_added = output_gradient if passed is None else passed
        return of_x, of_affine.to(x.dtype), of_added, None, None, None
