"""The network of all emulated ranks: one set of weights, batch-norm statistics for each rank."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.train.batch_norm import (
    RankRows,
    apply_mode,
    batch_norm_layers,
    set_statistics_momentum,
)
from simshuffle.train.iterations import local_batches, pass_batches
from simshuffle.train.loss import FAULTS, Contrast, Loss, cross_entropy, try_loss
from simshuffle.train.samples import Source
from simshuffle.train.training import BatchNorm, Training
from simshuffle.workload.exchange import Shards
from simshuffle.workload.exchange.epochs import epoch_samples


@dataclass
class Probe:
    """What a forward pass of a few samples shows about a network."""

    activations: int = 1  # values of one sample's input and of all its layers' outputs
    # paths of the batch-norm layers that see one value for each sample and channel
    single_value_norms: list[str] = field(default_factory=list)
    # whether the outputs of a rank's samples depend on the samples of another rank
    mixes_ranks: bool = False
    # whether it has convolutions, and gives the same outputs with channels last in memory
    channels_last: bool = False


def probe_model(
    model: nn.Module,
    mode: BatchNorm,
    source: Source,
    *,
    dtype: torch.dtype,
    device: torch.device,
    loss: Loss = cross_entropy,
) -> Probe:
    """Run a copy of ``model``, with batch norm as ``mode``, on two samples of each of two ranks,
    and give its outputs to ``loss``. No random state changes.

    Raises:
        InputError: the model has no weights to train, cannot take the samples, or does not give a
            logit for each label; or as `try_loss`.
    """
    if not any(weight.requires_grad for weight in model.parameters()):
        rule = "must have weights that can be trained"
        refuse("model", rule, type(model).__name__, "Give it a layer that has some.", "training")
    twin = copy.deepcopy(model)
    rows = apply_mode(twin, mode, 2)
    twin.to(device, dtype).train()
    sample_choice = np.linspace(0, len(source) - 1, 6).astype(np.int64)
    probe = Probe(activations=max(1, source.batch(sample_choice[:1])[0].numel()))
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        hooks = _add_hooks(twin, probe, num_samples=4)
        logits = _logits(twin, rows, source, sample_choice[:4])
        for hook in hooks:
            hook.remove()

        # rows 0 and 2 are rank 0's: it has the same samples, rank 1 has two others
        logits_beside_others = _logits(twin, rows, source, sample_choice[[0, 4, 2, 5]])
    largest_label = int(source.targets.max())
    if logits.shape[1] <= largest_label:
        rule = f"must give a logit for each label; the largest is {largest_label}"
        refuse("model", rule, f"{logits.shape[1]} outputs", "Widen its last layer.", "training")
    try_loss(loss, logits, source.batch(sample_choice[:4])[1])
    differences = (logits - logits_beside_others)[0::2].abs()
    probe.mixes_ranks = bool((differences > 1e-5 * logits.abs().max()).any())
    if device.type == "cpu" and any(isinstance(layer, nn.Conv2d) for layer in twin.modules()):
        probe.channels_last = _equal_with_channels_last(
            twin, rows, source, sample_choice[:4], logits
        )
    return probe


def _equal_with_channels_last(
    twin: nn.Module, rows: RankRows, source: Source, samples: Ints, logits: torch.Tensor
) -> bool:
    """Return whether ``twin`` gives the ``logits`` with its weights laid out channels last too.

    A network that needs the usual order in memory, or draws random numbers by it, does not.
    """
    twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            new_logits = _logits(twin, rows, source, samples)
    except InputError:
        return False
    return torch.allclose(new_logits, logits, rtol=1e-4, atol=1e-4 * float(logits.abs().max()))


def _logits(twin: nn.Module, rows: RankRows, source: Source, samples: Ints) -> torch.Tensor:
    """Return the logits (n, classes) that ``twin`` gives for ``samples`` (n,), of two ranks by
    turns; raise InputError if it gives none.
    """
    inputs, _ = source.batch(samples)
    rows.expect(0, 2, len(samples))
    torch.manual_seed(0)
    try:
        logits = twin(inputs)
    except InputError:
        raise
    except FAULTS as error:
        rule = f"cannot take the samples: {error}"
        value = f"inputs {tuple(inputs.shape)}"
        problem = Problem("model", rule, value, "Make model and data fit.")
        raise InputError(problem, "training") from error
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != len(samples):
        value = f"a {type(logits).__name__}"
        if isinstance(logits, torch.Tensor):
            value = f"{tuple(logits.shape)}"
        rule = f"must give one row of logits for each sample, here ({len(samples)}, classes)"
        refuse("model", rule, value, "Wrap it in a module that does.", "training")
    return logits


def _add_hooks(twin: nn.Module, probe: Probe, num_samples: int) -> list[Any]:
    """Add hooks that fill in ``probe`` while ``twin`` runs on a batch of ``num_samples``; return
    their handles.
    """

    def count_output(_layer: nn.Module, _inputs: Any, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            probe.activations += result.numel() // num_samples

    def single_value_hook(path: str) -> Any:
        def list_path(_layer: nn.Module, inputs: tuple[Any, ...]) -> None:
            if math.prod(inputs[0].shape[2:]) == 1:
                probe.single_value_norms.append(path)

        return list_path

    hooks: list[Any] = [
        layer.register_forward_hook(count_output)
        for layer in twin.modules()
        if not any(True for _ in layer.children())
    ]
    norms = [(path, layer) for path, layer in twin.named_modules() if isinstance(layer, _BatchNorm)]
    return hooks + [
        layer.register_forward_pre_hook(single_value_hook(path or "(model)"))
        for path, layer in norms
    ]


# -------------------------------------------------------------------------------------- the network


ACTIVATIONS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 28}
"""The most values, by type of device, that all layers put out in one forward pass. Larger batches
are processed in parts of whole ranks, so that memory does not grow with M; on a CPU such a part
stays near its caches (benchmarks/training.py)."""


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
        """Return an ordinary ``model`` as the network of one rank."""
        return cls(model, RankRows(), 1, False, False, rows_at_once)

    def parts(self, samples: Ints) -> Iterator[tuple[int, Ints]]:
        """Divide ``samples`` (n, M) into parts (n, ranks) of neighbouring ranks that are processed
        together, in whole groups; yield the first rank and the samples of each part.
        """
        groups_at_once = max(1, self.rows_at_once // len(samples) // self.ranks_per_group)
        ranks = groups_at_once * self.ranks_per_group
        if self.whole_batches and self.model.training:
            ranks = self.world_size
        for first in range(0, self.world_size, ranks):
            yield first, samples[:, first : first + ranks]

    def losses(self, source: Source, first: int, part: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the losses (n ranks,), by default cross-entropy in nats, and logits (n ranks,
        classes).

        Args:
            source: gives the samples.
            first: the first rank of ``part``.
            part: samples (n, ranks) of neighbouring ranks.
        """
        logits, targets = self.outputs(source, first, part)
        return self.loss(logits, targets), logits

    def outputs(self, source: Source, first: int, part: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the network's outputs (n ranks, classes) and the targets (n ranks,); arguments
        as of `losses`.
        """
        inputs, targets = source.batch(part.ravel())
        return self._forward(inputs, first, part.shape[1]), targets

    def trained_losses(self, source: Source, first: int, part: Ints, epoch: int) -> torch.Tensor:
        """Return the losses (n ranks,) that the network is trained on in ``epoch`` (from 1).

        A contrastive loss is of the two views of each sample. Other arguments as of `losses`.
        """
        if self.contrast is None:
            return self.losses(source, first, part)[0]
        pair = self.contrast.views.pair(source.batch(part.ravel())[0], part.ravel(), epoch)
        return self.contrast.losses(self._forward(pair, first, part.shape[1]), part.shape[1])

    def _forward(self, inputs: torch.Tensor, first: int, ranks: int) -> torch.Tensor:
        """Return the model's outputs (rows, ...) for ``inputs`` (rows, ...) of ``ranks`` ranks from
        rank ``first`` on; in both, row = i ranks + (rank - first).
        """
        groups = ranks // self.ranks_per_group
        self.rows.expect(first // self.ranks_per_group, groups, len(inputs))
        if self.ranks_per_group == 1:
            return self.model(inputs)  # type: ignore[no-any-return]

        # in the model's rows the group is the fastest index, not the rank within the group
        outputs = self.model(_swap_indices(inputs, groups, self.ranks_per_group))
        return _swap_indices(outputs, self.ranks_per_group, groups)

    def with_groups_as_ranks(self) -> RankedNetwork:
        """Return the network whose ranks are the groups of this one.

        For evaluation, where all ranks of a group give equal outputs.
        """
        return replace(self, world_size=self.world_size // self.ranks_per_group, ranks_per_group=1)


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
    """Return a copy of ``model`` for M ranks, with the batch norm that ``training`` wants, to be
    trained on ``source`` with ``loss`` or ``contrast``.

    Raises:
        InputError: something other than batch norm mixes samples of ranks, or batch norm would
            have to normalise single values; or as of `apply_mode`, `probe_model` and
            `Training.norm_groups`.
    """
    dtype = torch_dtype(training)
    mode, ranks_per_group = training.norm_groups(world_size)
    probe = probe_model(model, mode, source, dtype=dtype, device=device, loss=loss)
    if probe.mixes_ranks and world_size > 1 and mode != "sync":
        ranks = "ranks" if ranks_per_group == 1 else f"groups of {ranks_per_group} ranks"
        rule = (
            f"with batch_norm: {training.batch_norm}, what it makes of a rank's samples must not"
            f" depend on those of other {ranks}"
        )
        remedy = "Take out what goes over the whole batch, or use batch_norm: sync over all ranks."
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

    Otherwise it gives the activations of every part back to the system, which then clears the
    pages of the next part: up to a tenth of the time.

    glibc gives back the free memory at the end of the heap beyond twice the largest block that
    was mapped and freed, counting blocks up to 32 MiB ("M_TRIM_THRESHOLD", "M_MMAP_THRESHOLD",
    mallopt(3)). So one such block is allocated, not touched, and freed; other C libraries do
    not mind.
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
        training: says whether there is batch norm.
    """
    num_values = min(batch_sizes) * ranks_per_group
    if num_values > 1 or training.batch_norm == "none" or not probe.single_value_norms:
        return
    batch = "local_batch_size" if training.local_batch_size == 1 else "the last local batch"
    layer = probe.single_value_norms[0]
    rule = f"batch norm '{layer}' cannot normalise a single sample, which {batch} holds"
    remedy = "Use another local_batch_size, or drop_last: true, or batch_norm: sync or none."
    value = f"local batches of {batch_sizes[0]} to {batch_sizes[-1]}"
    refuse("training.local_batch_size", rule, value, remedy, "training")


def torch_dtype(training: Training) -> torch.dtype:
    """Return the type of weights and arithmetic of a training: float64 or float32."""
    return torch.float64 if training.dtype == "float64" else torch.float32


# --------------------------------------------------------- the loss of every sample, as importance


def inference_losses(network: RankedNetwork, source: Source, shards: Shards) -> Floats:
    """Return the loss of every sample, (N,), by the network of the rank that has it, in evaluation
    mode: with that rank's running statistics.
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
                batch_losses = network.losses(source, first, batch)[0].double().cpu().numpy()
                counted = in_shard[begin : begin + rows, first : first + ranks]
                losses[batch[counted]] = batch_losses.reshape(batch.shape)[counted]
    network.model.train()
    return losses


def refreshing_losses(
    network: RankedNetwork, source: Source, shards: Shards, sizes: Sequence[int]
) -> Floats:
    """Return the loss of every sample, (N,), by the network of the rank that has it, in training
    mode: running statistics are updated, weights are not.

    Args:
        network: of all ranks.
        source: gives the samples.
        shards: the samples of each rank.
        sizes: samples of each local batch of the epoch. Of a sample that is in a first batch and
            fills up a last one too, the first loss counts.
    """
    losses = np.empty(len(shards.order))
    begin = 0
    with torch.no_grad():
        for samples in pass_batches(shards, sizes):
            # row: position in the shard, column: rank; false where a smaller shard is filled up
            in_shard = np.arange(begin, begin + len(samples))[:, None] < shards.sizes[None, :]
            begin += len(samples)
            for first, part in network.parts(samples):
                part_losses = network.losses(source, first, part)[0].double().cpu().numpy()
                counted = in_shard[:, first : first + part.shape[1]]
                losses[part[counted]] = part_losses.reshape(part.shape)[counted]
    return losses
