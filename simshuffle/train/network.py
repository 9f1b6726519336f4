"""The network of all ranks: one set of weights, and batch-norm statistics for each rank."""

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
    """What a trial found."""

    activations: int = 1  # numbers that go in and that the layers put out, for a sample
    # paths of the batch-norm layers that see one value for each sample and channel
    flat: list[str] = field(default_factory=list)
    # whether what the network makes of a rank's samples depends on those of another rank
    mixes: bool = False
    # whether it finds the same with channels last in memory, and has convolutions to gain by it
    channels_last: bool = False


def try_out(
    model: nn.Module,
    mode: BatchNorm,
    source: Source,
    dtype: torch.dtype,
    device: torch.device,
    loss: Loss = cross_entropy,
) -> Probe:
    """Give two samples of each of two ranks to a copy of ``model`` with batch norm as ``mode``, and
    what it puts out to ``loss``; no random state changes. Raises InputError if it has nothing to
    train, cannot take the samples or lacks logits; or as of `try_loss`."""
    if not any(weight.requires_grad for weight in model.parameters()):
        rule, remedy = "must have weights that can be trained", "Give it a layer that has some."
        refuse("model", rule, type(model).__name__, remedy, "training")
    twin = copy.deepcopy(model)
    rows = apply_mode(twin, mode, 2)
    twin.to(device, dtype).train()
    spread = np.linspace(0, len(source) - 1, 6).astype(np.int64)
    probe = Probe(activations=max(1, source.batch(spread[:1])[0].numel()))
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        hooks = _watch(twin, probe, samples=4)
        logits = _logits(twin, rows, source, spread[:4])
        for hook in hooks:
            hook.remove()
        other = _logits(twin, rows, source, spread[[0, 4, 2, 5]])
    largest = int(source.targets.max())
    if logits.shape[1] <= largest:
        rule = f"must give a logit for each label; the largest is {largest}"
        refuse("model", rule, f"{logits.shape[1]} outputs", "Widen its last layer.", "training")
    try_loss(loss, logits, source.batch(spread[:4])[1])
    # rank 0 has the same samples in both
    probe.mixes = bool(((logits - other)[0::2].abs() > 1e-5 * logits.abs().max()).any())
    if device.type == "cpu" and any(isinstance(layer, nn.Conv2d) for layer in twin.modules()):
        probe.channels_last = _same_with_channels_last(twin, rows, source, spread[:4], logits)
    return probe


def _same_with_channels_last(
    twin: nn.Module, rows: RankRows, source: Source, samples: Ints, logits: torch.Tensor
) -> bool:
    """Whether ``twin`` puts out the ``logits`` with its weights laid out so too; one that needs the
    usual order in memory, or draws by it, does not."""
    twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            found = _logits(twin, rows, source, samples)
    except InputError:
        return False
    return torch.allclose(found, logits, rtol=1e-4, atol=1e-4 * float(logits.abs().max()))


def _logits(twin: nn.Module, rows: RankRows, source: Source, samples: Ints) -> torch.Tensor:
    inputs, _ = source.batch(samples)
    rows.expect(0, 2, len(samples))
    torch.manual_seed(0)
    try:
        logits = twin(inputs)
    except InputError:
        raise
    except FAULTS as error:
        rule, shown = f"cannot take the samples: {error}", f"inputs {tuple(inputs.shape)}"
        problem = Problem("model", rule, shown, "Make model and data fit.")
        raise InputError(problem, "training") from error
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2 or len(logits) != len(samples):
        shown = f"a {type(logits).__name__}"
        if isinstance(logits, torch.Tensor):
            shown = f"{tuple(logits.shape)}"
        rule = f"must give one row of logits for each sample, here ({len(samples)}, classes)"
        refuse("model", rule, shown, "Wrap it in a module that does.", "training")
    return logits


def _watch(twin: nn.Module, probe: Probe, samples: int) -> list[Any]:
    """Hooks that fill ``probe`` in while the network runs."""

    def output(_layer: nn.Module, _given: Any, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            probe.activations += result.numel() // samples

    def flat(path: str) -> Any:
        def note(_layer: nn.Module, given: tuple[Any, ...]) -> None:
            if math.prod(given[0].shape[2:]) == 1:
                probe.flat.append(path)

        return note

    hooks: list[Any] = [
        m.register_forward_hook(output)
        for m in twin.modules()
        if not any(True for _ in m.children())
    ]
    normal = [(path, m) for path, m in twin.named_modules() if isinstance(m, _BatchNorm)]
    return hooks + [m.register_forward_pre_hook(flat(path or "(model)")) for path, m in normal]


# -------------------------------------------------------------------------------------- the network


ACTIVATIONS_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Numbers that the layers of a network put out together: larger batches are worked off in parts of
whole ranks, so that memory does not grow with M. On a CPU such a part stays near its caches
(benchmarks/training.py)."""


@dataclass
class RankedNetwork:
    """The network of M ranks."""

    # takes a batch of samples of several ranks after ``rows`` was told whose they are
    model: nn.Module
    rows: RankRows  # see `RankRows`; without effect where batch norm is not by rank
    world_size: int  # M
    by_rank: bool  # whether there are batch-norm statistics for each rank
    # whether a batch must stay whole, because what is made of a sample depends on those of other
    # ranks
    whole: bool
    rows_at_once: int  # samples that are worked off together
    loss: Loss = cross_entropy  # of each sample
    contrast: Contrast | None = None  # of a contrastive training
    # k, neighbouring ranks that share statistics, where there are several: to ``model`` and
    # ``rows``, such a group is one rank
    group: int = 1

    @classmethod
    def alone(cls, model: nn.Module, rows_at_once: int) -> RankedNetwork:
        """An ordinary ``model`` as the network of one rank."""
        return cls(model, RankRows(), 1, False, False, rows_at_once)

    def parts(self, samples: Ints) -> Iterator[tuple[int, Ints]]:
        """``samples`` (n, M) in parts (n, ranks) of neighbouring ranks, in whole groups, each with
        its first rank."""
        count = max(1, self.rows_at_once // len(samples) // self.group) * self.group
        if self.whole and self.model.training:
            count = self.world_size
        for first in range(0, self.world_size, count):
            yield first, samples[:, first : first + count]

    def losses(self, source: Source, first: int, part: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses (n ranks,), by default cross-entropy in nats, and logits (n ranks, classes) of
        ``part`` (n, ranks), samples of the ranks from ``first`` on."""
        logits, targets = self.outputs(source, first, part)
        return self.loss(logits, targets), logits

    def outputs(self, source: Source, first: int, part: Ints) -> tuple[torch.Tensor, torch.Tensor]:
        """What the network puts out (n ranks, classes), and targets, of ``part`` as of `losses`."""
        inputs, targets = source.batch(part.ravel())
        return self._asked(inputs, first, part.shape[1]), targets

    def trained_losses(self, source: Source, first: int, part: Ints, epoch: int) -> torch.Tensor:
        """The losses (n ranks,) that the network is trained on in ``epoch`` (from 1), of ``part``
        as of `losses`: of the two views of each sample, if the training is contrastive."""
        if self.contrast is None:
            return self.losses(source, first, part)[0]
        pair = self.contrast.views.pair(source.batch(part.ravel())[0], part.ravel(), epoch)
        return self.contrast.losses(self._asked(pair, first, part.shape[1]), part.shape[1])

    def _asked(self, inputs: torch.Tensor, first: int, ranks: int) -> torch.Tensor:
        """What the model makes of ``inputs`` (rows, ...) of so many ranks from ``first`` on, the
        rank being the fastest index, here and in what is returned; to the model the group is."""
        groups = ranks // self.group
        self.rows.expect(first // self.group, groups, len(inputs))
        if self.group == 1:
            return self.model(inputs)  # type: ignore[no-any-return]
        return _swapped(self.model(_swapped(inputs, groups, self.group)), self.group, groups)

    def of_groups(self) -> RankedNetwork:
        """The same network where every group is one rank: which rank of it evaluates is the
        same."""
        return replace(self, world_size=self.world_size // self.group, group=1)


def _swapped(rows: torch.Tensor, slow: int, fast: int) -> torch.Tensor:
    """``rows`` (n slow fast, ...), whose two fastest indices have so many values, with these two
    swapped."""
    return rows.view(-1, slow, fast, *rows.shape[1:]).transpose(1, 2).flatten(0, 2)


def ranked_network(
    model: nn.Module,
    source: Source,
    world_size: int,
    training: Training,
    device: torch.device,
    loss: Loss = cross_entropy,
    contrast: Contrast | None = None,
) -> RankedNetwork:
    """A copy of ``model`` for M ranks, with the batch norm that ``training`` wants, to be trained
    on ``source`` with ``loss`` or ``contrast``. Raises InputError as of `apply_mode`, `try_out` and
    `Training.by_group`; or if it mixes samples of ranks by something else than batch norm, or batch
    norm would have to normalise single values."""
    dtype, sizes = torch_dtype(training), local_batches(len(source), world_size, training)
    mode, group = training.by_group(world_size)
    probe = try_out(model, mode, source, dtype, device, loss)
    if probe.mixes and world_size > 1 and mode != "sync":
        ranks = "ranks" if group == 1 else f"groups of {group} ranks"
        rule = (
            f"with batch_norm: {training.batch_norm}, what it makes of a rank's samples must not"
            f" depend on those of other {ranks}"
        )
        remedy = "Take out what goes over the whole batch, or use batch_norm: sync over all ranks."
        refuse("model", rule, type(model).__name__, remedy, "training")
    _check_sizes(probe, sizes, group, training)
    if device.type == "cpu":
        _keep_freed_memory()
    twin = copy.deepcopy(model)
    set_statistics_momentum(twin, training.statistics_momentum)
    rows = apply_mode(twin, mode, world_size // group)
    twin.to(device, dtype).train()
    if probe.channels_last:
        twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    by_rank = mode == "per_rank" and bool(batch_norm_layers(twin))
    at_once = max(1, ACTIVATIONS_AT_ONCE.get(device.type, 1 << 22) // probe.activations)
    whole = probe.mixes or (contrast is not None and contrast.gathered)
    together = group if mode == "per_rank" else 1
    return RankedNetwork(twin, rows, world_size, by_rank, whole, at_once, loss, contrast, together)


def _keep_freed_memory() -> None:
    """Have the C library keep up to 64 MB that the process frees. Else it gives the activations of
    every part back to the system, which then has to clear the pages of the next one: up to a tenth
    of the time.

    glibc gives back what is free at the end beyond twice the size of the largest block that was
    mapped and freed, of those up to 32 MiB ("M_TRIM_THRESHOLD", "M_MMAP_THRESHOLD", mallopt(3)). So
    such a block is taken, not touched, and freed; other libraries do not mind."""
    torch.empty((32 << 20) - (1 << 16), dtype=torch.uint8)


def _check_sizes(probe: Probe, sizes: list[int], group: int, training: Training) -> None:
    """See that batch norm, over so many ranks, never has to normalise a single value, or raise
    InputError."""
    values = min(sizes) * group
    if values > 1 or training.batch_norm == "none" or not probe.flat:
        return
    which = "local_batch_size" if training.local_batch_size == 1 else "the last local batch"
    rule = f"batch norm '{probe.flat[0]}' cannot normalise a single sample, which {which} holds"
    remedy = "Use another local_batch_size, or drop_last: true, or batch_norm: sync or none."
    shown = f"local batches of {sizes[0]} to {sizes[-1]}"
    refuse("training.local_batch_size", rule, shown, remedy, "training")


def torch_dtype(training: Training) -> torch.dtype:
    """The type of weights and arithmetic."""
    return torch.float64 if training.dtype == "float64" else torch.float32


# --------------------------------------------------------- the loss of every sample, as importance


def inference_losses(network: RankedNetwork, source: Source, shards: Shards) -> Floats:
    """The loss of every sample, (N,), by the rank that has it: with its running statistics."""
    samples = epoch_samples(shards, drop_last=False)
    # without those that fill up smaller shards
    own = np.arange(len(samples))[:, None] < shards.sizes[None, :]
    losses = np.empty(len(shards.order))
    network.model.eval()
    with torch.no_grad():
        for first, part in network.parts(samples):
            count = max(1, network.rows_at_once // part.shape[1])
            for begin in range(0, len(part), count):
                some = part[begin : begin + count]
                found = network.losses(source, first, some)[0].double().cpu().numpy()
                found = found.reshape(some.shape)
                mine = own[begin : begin + count, first : first + part.shape[1]]
                losses[some[mine]] = found[mine]
    network.model.train()
    return losses


def refreshing_losses(
    network: RankedNetwork, source: Source, shards: Shards, sizes: Sequence[int]
) -> Floats:
    """The loss of every sample, (N,), by the rank that has it: in training mode, in the local
    batches of these ``sizes`` that the epoch has. Running statistics take them in; weights stay. Of
    a sample that fills up a last batch too it is the first one."""
    losses, begin = np.empty(len(shards.order)), 0
    with torch.no_grad():
        for samples in pass_batches(shards, sizes):
            own = np.arange(begin, begin + len(samples))[:, None] < shards.sizes[None, :]
            begin += len(samples)
            for first, part in network.parts(samples):
                found = network.losses(source, first, part)[0].double().cpu().numpy()
                mine = own[:, first : first + part.shape[1]]
                losses[part[mine]] = found.reshape(part.shape)[mine]
    return losses
