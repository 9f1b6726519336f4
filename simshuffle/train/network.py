"""The network of all emulated ranks: one set of weights, batch-norm statistics for each
rank.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.train.batch_norm import (
    RankRows,
    apply_mode,
    batch_norm_layers,
    set_statistics_momentum,
)
from simshuffle.train.iterations import local_batches, pass_batches
from simshuffle.train.loss import Contrast, Loss, cross_entropy
from simshuffle.train.probe import Probe, probe_model
from simshuffle.train.sources import Source
from simshuffle.train.training import Training
from simshuffle.workload.exchange import Shards
from simshuffle.workload.exchange.epochs import epoch_samples

# -------------------------------------------------------------------------------------- the network


ACTIVATIONS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 28}
"""The most values, by type of device, that all layers put out in one forward pass.
Larger batches are processed in parts of whole ranks, so that memory does not grow with
M; on a CPU such a part stays near its caches (benchmarks/training.py).
"""


@dataclass
class RankedNetwork:
    """The network of M ranks."""

    # takes samples of one or more ranks, once ``rows`` knows which rank each is of
    model: nn.Module
    rows: RankRows  # tells `model` the ranks of its rows; unused unless batch norm is by rank
    world_size: int  # M
    statistics_by_rank: bool  # whether there are batch-norm statistics for each rank
    # whether a training batch must not be processed in parts, because the output of a sample
    # depends on samples of other ranks
    whole_batches: bool
    rows_at_once: int  # the most samples processed together
    loss: Loss = cross_entropy  # of each sample
    contrast: Contrast | None = None  # None unless the training is contrastive
    # k, neighbouring ranks that share statistics: to ``model`` and ``rows`` they are one rank
    ranks_per_group: int = 1

    @classmethod
    def of_one_rank(cls, model: nn.Module, rows_at_once: int) -> RankedNetwork:
        """Return an ordinary ``model``, no copy, as the network of one rank, with
        cross-entropy as its loss.
        """
        return cls(model, RankRows(), 1, False, False, rows_at_once)

    def parts(self, samples: Ints) -> Iterator[tuple[int, Ints]]:
        """Yield the parts of a batch that are processed together: the first rank, and
        the samples (n, ranks) of this rank and its neighbours.

        A part has about ``rows_at_once`` samples at most, but at least one group of
        ranks, which is never split. With ``whole_batches`` and the model in training
        mode, there is one part of all ranks.

        Args:
            samples: (n, M) sample indices.
        """
        groups_at_once = max(
            1, self.rows_at_once // len(samples) // self.ranks_per_group
        )
        ranks = groups_at_once * self.ranks_per_group
        if self.whole_batches and self.model.training:
            ranks = self.world_size
        for first in range(0, self.world_size, ranks):
            yield first, samples[:, first : first + ranks]

    def losses(
        self, source: Source, first: int, part: Ints
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the losses (n ranks,), by default cross-entropy in nats, and logits (n
        ranks, classes), the rank being the fastest index.

        Never the contrastive loss: see `trained_losses`.

        Args:
            source: gives the samples.
            first: the first rank of ``part``.
            part: samples (n, ranks) of neighbouring ranks.
        """
        logits, targets = self.outputs(source, first, part)
        return self.loss(logits, targets), logits

    def outputs(
        self, source: Source, first: int, part: Ints
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the network's outputs (n ranks, classes) and the targets (n ranks,),
        the rank being the fastest index.

        Args:
            source: gives the samples.
            first: the first rank of ``part``.
            part: samples (n, ranks) of neighbouring ranks.
        """
        inputs, targets = source.batch(part.ravel())
        return self._forward(inputs, first, part.shape[1]), targets

    def trained_losses(
        self, source: Source, first: int, part: Ints, epoch: int
    ) -> torch.Tensor:
        """Return the losses (n ranks,) that the network is trained on, the rank being the
        fastest index.

        A contrastive loss is of the two views of each sample, which ``epoch`` decides.

        Args:
            source: gives the samples.
            first: the first rank of ``part``.
            part: samples (n, ranks) of neighbouring ranks.
            epoch: from 1; matters only to a contrastive loss.
        """
        if self.contrast is None:
            return self.losses(source, first, part)[0]
        pair = self.contrast.views.pair(
            source.batch(part.ravel())[0], part.ravel(), epoch
        )
        return self.contrast.losses(
            self._forward(pair, first, part.shape[1]), part.shape[1]
        )

    def _forward(self, inputs: torch.Tensor, first: int, ranks: int) -> torch.Tensor:
        """Return the model's outputs (rows, ...) for ``inputs`` (rows, ...) of
        ``ranks`` ranks from rank ``first`` on; in both, row = i ranks + (rank - first).

        Tells ``rows`` first which ranks the model gets.
        """
        groups = ranks // self.ranks_per_group
        self.rows.expect(first // self.ranks_per_group, groups, len(inputs))
        if self.ranks_per_group == 1:
            return self.model(inputs)  # type: ignore[no-any-return]

        # in the model's rows the group is the fastest index, not the rank within the group
        outputs = self.model(_swap_indices(inputs, groups, self.ranks_per_group))
        return _swap_indices(outputs, self.ranks_per_group, groups)

    def with_groups_as_ranks(self) -> RankedNetwork:
        """Return a network with this network's model, and with its groups as ranks.

        For evaluation, where all ranks of a group give equal outputs. The model and
        ``rows`` are shared, not copied.
        """
        return replace(
            self, world_size=self.world_size // self.ranks_per_group, ranks_per_group=1
        )


def _swap_indices(rows: torch.Tensor, slow: int, fast: int) -> torch.Tensor:
    """Return ``rows`` (n slow fast, ...) in the order (n fast slow, ...).

    Args:
        rows: row = (i slow + s) fast + f.
        slow: values of the slower index s.
        fast: values of the faster index f.
    """
    return rows.view(-1, slow, fast, *rows.shape[1:]).transpose(1, 2).flatten(0, 2)


def ranked_network(
    model: nn.Module,
    source: Source,
    world_size: int,
    training: Training,
    device: torch.device,
    *,
    loss: Loss = cross_entropy,
    contrast: Contrast | None = None,
) -> RankedNetwork:
    """Return a copy of ``model`` for M ranks, with the batch norm that ``training``
    wants, to be trained on ``source`` with ``loss`` or ``contrast``.

    The copy is on ``device``, in training mode, and of the training's dtype; on a CPU
    its weights may be channels last in memory. ``model`` stays as it is. It is tried on
    a few samples first, with ``loss`` and not with ``contrast``.

    Raises:
        InputError: something other than batch norm mixes samples of ranks (allowed
            with one rank, or batch norm over all ranks), or batch norm would have to
            normalise single values; or as of `apply_mode`,
            `probe_model` and `Training.norm_groups`.
    """
    dtype = torch_dtype(training)
    mode, ranks_per_group = training.norm_groups(world_size)
    probe = probe_model(model, mode, source, dtype=dtype, device=device, loss=loss)
    if probe.mixes_ranks and world_size > 1 and mode != "sync":
        ranks = (
            "ranks" if ranks_per_group == 1 else f"groups of {ranks_per_group} ranks"
        )
        rule = (
            f"with batch_norm: {training.batch_norm}, its outputs for a rank's samples must not"
            f" depend on samples of other {ranks}"
        )
        remedy = "Take out operations over the whole batch, or use batch_norm: sync over all ranks."
        refuse("model", rule, type(model).__name__, remedy, "training")
    batch_sizes = local_batches(len(source), world_size, training)
    _check_norm_values(probe, batch_sizes, ranks_per_group, training)
    if device.type == "cpu":
        _keep_freed_memory()
    twin = copy.deepcopy(model)
    set_statistics_momentum(twin, training.statistics_momentum)
    rows = apply_mode(twin, mode, world_size // ranks_per_group)
    twin.to(device, dtype).train()
    if probe.channels_last:
        twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rows_at_once = ACTIVATIONS_AT_ONCE.get(device.type, 1 << 22) // probe.activations
    return RankedNetwork(
        twin,
        rows,
        world_size,
        statistics_by_rank=mode == "per_rank" and bool(batch_norm_layers(twin)),
        whole_batches=probe.mixes_ranks or (contrast is not None and contrast.gathered),
        rows_at_once=max(1, rows_at_once),
        loss=loss,
        contrast=contrast,
        ranks_per_group=ranks_per_group if mode == "per_rank" else 1,
    )


def _keep_freed_memory() -> None:
    """Have the C library keep up to 64 MB that the process frees.

    Otherwise it gives the activations of every part back to the system, which then
    clears the pages of the next part: up to a tenth of the time.

    glibc gives back the free memory at the end of the heap beyond twice the largest
    block that was mapped and freed, counting blocks up to 32 MiB ("M_TRIM_THRESHOLD",
    "M_MMAP_THRESHOLD", mallopt(3)). So one such block is allocated, not touched, and
    freed; other C libraries do not mind.
    """
    torch.empty((32 << 20) - (1 << 16), dtype=torch.uint8)


def _check_norm_values(
    probe: Probe, batch_sizes: list[int], ranks_per_group: int, training: Training
) -> None:
    """Raise InputError if batch norm would have to normalise a single value.

    Args:
        probe: names the layers with one value for each sample and channel.
        batch_sizes: samples of each local batch of an epoch.
        ranks_per_group: ranks that normalise together.
        training: says whether there is batch norm; with 'none' nothing is checked.
    """
    num_values = min(batch_sizes) * ranks_per_group
    if num_values > 1 or training.batch_norm == "none" or not probe.single_value_norms:
        return
    batch = (
        "local_batch_size" if training.local_batch_size == 1 else "the last local batch"
    )
    layer = probe.single_value_norms[0]
    rule = (
        f"batch norm '{layer}' cannot normalise a single sample, but {batch} holds one"
    )
    remedy = (
        "Use another local_batch_size, or drop_last: true, or batch_norm: sync or none."
    )
    value = f"local batches of {batch_sizes[0]} to {batch_sizes[-1]}"
    refuse("training.local_batch_size", rule, value, remedy, "training")


def torch_dtype(training: Training) -> torch.dtype:
    """Return the type of weights and arithmetic of a training: float64 or float32."""
    return torch.float64 if training.dtype == "float64" else torch.float32


# --------------------------------------------------------- the loss of every sample, as importance


def inference_losses(network: RankedNetwork, source: Source, shards: Shards) -> Floats:
    """Return the loss of every sample, by the network of the rank that has it, in
    evaluation mode: with that rank's running statistics.

    Leaves the model in training mode; running statistics do not change.

    Returns:
        Float64, as long as ``shards.order``, by sample index. The value of an index in
        no shard is not initialised, as where a library's order leaves samples out.
    """
    samples = epoch_samples(shards, drop_last=False)
    # row: position in the shard, column: rank; false where a smaller shard is filled up
    in_shard = np.arange(len(samples))[:, None] < shards.sizes[None, :]
    losses = np.empty(len(shards.order))
    network.model.eval()
    with torch.no_grad():
        for first, part in network.parts(samples):
            ranks = part.shape[1]
            rows = max(1, network.rows_at_once // ranks)
            for begin in range(0, len(part), rows):
                batch = part[begin : begin + rows]
                batch_losses = (
                    network.losses(source, first, batch)[0].double().cpu().numpy()
                )
                counted = in_shard[begin : begin + rows, first : first + ranks]
                losses[batch[counted]] = batch_losses.reshape(batch.shape)[counted]
    network.model.train()
    return losses


def refreshing_losses(
    network: RankedNetwork, source: Source, shards: Shards, sizes: Sequence[int]
) -> Floats:
    """Return the loss of every sample, by the network of the rank that has it, in
    training mode: running statistics are updated, weights are not.

    The model must already be in training mode.

    Args:
        network: of all ranks.
        source: gives the samples.
        shards: the samples of each rank.
        sizes: samples of each local batch of the epoch. Of a sample that is in a first
            batch and fills up a last one too, the first loss counts.

    Returns:
        Float64, as long as ``shards.order``, by sample index. The value of an index in
        no shard is not initialised.
    """
    losses = np.empty(len(shards.order))
    begin = 0
    with torch.no_grad():
        for samples in pass_batches(shards, sizes):
            # row: position in the shard, column: rank; false where a smaller shard is filled up
            in_shard = (
                np.arange(begin, begin + len(samples))[:, None] < shards.sizes[None, :]
            )
            begin += len(samples)
            for first, part in network.parts(samples):
                part_losses = (
                    network.losses(source, first, part)[0].double().cpu().numpy()
                )
                counted = in_shard[:, first : first + part.shape[1]]
                losses[part[counted]] = part_losses.reshape(part.shape)[counted]
    return losses
