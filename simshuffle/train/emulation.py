"""Emulation: training on M ranks, exactly, in one process.

The averaged gradient of M ranks with local batches of b samples is that of one batch of
M b samples, if batch norm goes by rank. So one network, with running statistics for
each rank, is trained on the batches of all ranks together. The strategy's shards and
exchange plan decide the samples of these batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from simshuffle.errors import SimshuffleError
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.train.batch_norm import ordinary_copy
from simshuffle.train.iterations import TrainingEpochs
from simshuffle.train.loss import Loss, contrast_of, cross_entropy
from simshuffle.train.network import inference_losses, ranked_network, refreshing_losses
from simshuffle.train.samples import Augmentation
from simshuffle.train.sources import Source
from simshuffle.train.training import OptimizerFactory, Training, optimizer_of, set_rate
from simshuffle.workload.exchange import (
    ExchangePlan,
    RankPlaces,
    Shards,
    Strategy,
    initial_owner,
)
from simshuffle.workload.exchange.epochs import epoch_samples

Progress = Callable[[float], None]
"""Called with the share that is done, from 0 to 1."""


class Diverged(SimshuffleError, ArithmeticError):
    """A training that has left the finite numbers.

    Attributes:
        epoch: from 1.
        iteration: from 0.
        rank: the first one whose loss is not finite; 0 for a weight.
        learning_rate: of that iteration.
    """

    def __init__(
        self,
        epoch: int,
        iteration: int,
        rank: int,
        rate: float,
        quantity: str = "the loss",
    ) -> None:
        self.epoch = epoch
        self.iteration = iteration
        self.rank = rank
        self.learning_rate = rate
        super().__init__(
            f"{quantity} is not finite: epoch {epoch}, iteration {iteration}, first on rank {rank},"
            f" learning rate {rate:g}. Use a lower learning rate or a longer warm-up."
        )


def check_weights(model: nn.Module, epoch: int, iteration: int, rate: float) -> None:
    """Raise Diverged, of rank 0, unless all weights are finite after an iteration."""
    if not all(bool(torch.isfinite(weight).all()) for weight in model.parameters()):
        quantity = "a weight, which all ranks share, after the update"
        raise Diverged(epoch, iteration, 0, rate, quantity)


def now(device: torch.device) -> float:
    """Return the s of `time.perf_counter`, after waiting for a CUDA ``device`` to
    finish its work.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass
class Stopwatch:
    """Seconds by name, measured after waiting for the device."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of the block to ``name``; nothing if the block raises."""
        begin = now(self.device)
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + now(self.device) - begin


@dataclass(frozen=True)
class EpochOutcome:
    """The outcome of an epoch."""

    epoch: int  # from 1
    shards: Shards  # samples that each rank trained on
    plan: ExchangePlan  # the exchange after the epoch
    # (N,) nats, that the plan was made with; None where it needs none
    importance: Floats | None
    train_loss: float  # mean over the samples as they were trained on, nats
    samples: int  # samples that all ranks trained on
    learning_rate: float  # of the last iteration
    # for each, in order, the seconds forward_s, backward_s and update_s. On emulated ranks
    # forward_s has the reading of samples; on real ranks all are means over ranks, and there is
    # exchange_s too
    iterations: list[dict[str, float]]
    importance_s: float  # s, of the inference pass over all shards; 0 without one
    # s, of all iterations; on real ranks with the inference pass and the wait for the last exchange
    seconds: float


class Emulation(TrainingEpochs):
    """A training on M emulated ranks, epoch by epoch.

    Args:
        model: the initial weights. It is copied, and stays as it is.
        source: the training samples; must give inputs of ``training.dtype`` on
            ``device``.
        strategy: which rank trains on which samples, and which are exchanged.
        world_size: M.
        training: how.
        owner: the rank of each sample before the first epoch, (N,); None for a random
            partition.
        seed: of all that is drawn, in the streams of `simshuffle.train.run.Run.rng`.
        device: that trains.
        places: where the ranks are, for strategies with partners of the same host, leaf
            switch or rack.
        loss: of each sample.
        optimizer: makes the optimiser in the place of SGD. The ``lr`` of each of its
            groups is that after the warm-up, before it is scaled with the global batch.
        augmentation: how views of the samples are made, for a contrastive training.

    Attributes:
        network: with the weights as they are now; see `RankedNetwork`.
        batch_sizes, owner, epochs_held, epochs_done: as of `TrainingEpochs`.
        last_losses: (N,) nats, of each sample as it was last trained on; NaN where it
            never was. Changed in place.

    Raises:
        InputError: there are more ranks than samples; or the model cannot be trained
            so, see `ranked_network` and `contrast_of`.
    """

    def __init__(
        self,
        model: nn.Module,
        source: Source,
        *,
        strategy: Strategy,
        world_size: int,
        training: Training,
        owner: Ints | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        places: RankPlaces | None = None,
        loss: Loss = cross_entropy,
        optimizer: OptimizerFactory | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        super().__init__(
            strategy, training, len(source), world_size, seed=seed, places=places
        )
        self.source = source
        self.device = torch.device(device)
        self.owner = (
            initial_owner(len(source), world_size, self.rng("partition"))
            if owner is None
            else np.asarray(owner)
        )
        self.network = ranked_network(
            model,
            source,
            world_size,
            training,
            self.device,
            loss=loss,
            contrast=contrast_of(self, augmentation, loss),
        )
        self.optimizer = optimizer_of(self.network.model, training, optimizer)
        self.last_losses: Floats = np.full(len(source), np.nan)

    def epoch(self, progress: Progress | None = None) -> EpochOutcome:
        """Train for one epoch, and exchange after it.

        ``progress`` is called after every iteration with the share of the epoch that is
        done.

        Raises:
            Diverged: a loss is not finite, and the weights are those before its
                iteration; or a weight, or a loss of the inference pass, is not finite.
                Weights are checked at the end of the epoch only. The epoch does not
                count as done.
        """
        epoch = self.epochs_done + 1
        sizes = self.batch_sizes
        shards = self.next_shards()
        watch = Stopwatch(self.device)
        with watch.measure("importance"):
            importance = self._importance(epoch, shards)
        plan = self.next_plan(shards, importance)
        samples = epoch_samples(shards, drop_last=self.training.drop_last)
        with watch.measure("iterations"):
            total_loss, iteration_rows = self._iterations(epoch, samples, progress)
        last = len(sizes) - 1
        check_weights(self.network.model, epoch, last, self.learning_rate(epoch, last))
        self.finish_epoch(plan)
        num_samples = sum(sizes) * self.world_size
        return EpochOutcome(
            epoch=epoch,
            shards=shards,
            plan=plan,
            importance=importance,
            train_loss=total_loss / num_samples,
            samples=num_samples,
            learning_rate=self.learning_rate(epoch, last),
            iterations=iteration_rows,
            importance_s=(
                watch.seconds["importance"] if self.strategy.inference_pass else 0.0
            ),
            seconds=watch.seconds["iterations"],
        )

    def _importance(self, epoch: int, shards: Shards) -> Floats | None:
        """Return the importance of each sample, (N,) nats; None if the strategy needs
        none.

        Without an inference pass it is the last loss, or 1 where there is none yet.
        With one, values of samples in no shard are arbitrary.

        Raises:
            Diverged: a loss of the inference pass is not finite.
        """
        if not self.strategy.needs_importance:
            return None
        if not self.strategy.inference_pass:  # in the first epoch all are alike
            return np.where(np.isnan(self.last_losses), 1.0, self.last_losses)
        if self.training.refreshes_statistics:
            with self._seed_layers("importance pass", epoch):
                losses = refreshing_losses(
                    self.network, self.source, shards, self.batch_sizes
                )
        else:
            losses = inference_losses(self.network, self.source, shards)
        is_finite = np.isfinite(losses[shards.order])
        if not is_finite.all():
            position = int(np.argmin(is_finite))
            rank = int(np.searchsorted(shards.start, position, side="right")) - 1
            quantity = "the inference loss of a sample"
            raise Diverged(epoch, 0, rank, self.learning_rate(epoch, 0), quantity)
        return losses

    def _iterations(
        self, epoch: int, samples: Ints, progress: Progress | None
    ) -> tuple[float, list[dict[str, float]]]:
        """Train the iterations of an epoch, and keep each sample's loss.

        Args:
            epoch: from 1.
            samples: (n, M) of the epoch.
            progress: see `epoch`.

        Returns:
            The sum of all losses (nats); and for each iteration the s of its phases:
            forward_s, backward_s and update_s.

        Raises:
            Diverged: a loss is not finite.
        """
        total_loss = 0.0
        rows = []
        begin = 0
        with self._seed_layers("dropout", epoch):
            for iteration, size in enumerate(self.batch_sizes):
                watch = Stopwatch(self.device)
                batch = samples[begin : begin + size]
                rate = self.learning_rate(epoch, iteration)
                try:
                    losses = self.step(batch, rate, watch)
                except _NotFinite as error:
                    raise Diverged(epoch, iteration, error.rank, rate) from None
                self.last_losses[batch] = losses
                total_loss += float(losses.sum())
                phases = ("forward", "backward", "update")
                rows.append({f"{phase}_s": watch.seconds[phase] for phase in phases})
                begin += size
                if progress is not None:
                    progress((iteration + 1) / len(self.batch_sizes))
        return total_loss, rows

    @contextmanager
    def _seed_layers(self, name: str, epoch: int) -> Iterator[None]:
        """Within the context, let layers draw from the random stream of a name and
        epoch; the state of torch on the CPU and the device that trains is restored
        after it.
        """
        with torch.random.fork_rng(
            devices=[self.device] if self.device.type == "cuda" else []
        ):
            torch.manual_seed(int(self.rng(name, epoch).integers(2**63 - 1)))
            yield

    def step(
        self, samples: Ints, rate: float, watch: Stopwatch | None = None
    ) -> Floats:
        """Train one iteration, with one update.

        Args:
            samples: (n, M); every rank trains on its column, n is its local batch.
            rate: learning rate, which an optimiser of the caller's takes relative to
                that of the training.
            watch: measures the phases.

        Returns:
            The loss of each sample before the update, (n, M) nats.

        Raises:
            _NotFinite: a loss is not finite; the weights are as before, but running
                statistics may have moved.
        """
        watch = watch or Stopwatch(self.device)
        losses = self.gradient(samples, watch)
        with watch.measure("update"):
            set_rate(self.optimizer, rate)
            self.optimizer.step()
        return losses

    def gradient(self, samples: Ints, watch: Stopwatch | None = None) -> Floats:
        """Leave the gradient of the mean loss of ``samples`` (n, M) in the weights, for
        the epoch after those that are done.

        Gradients of before are dropped; running statistics of batch norm move on.

        Returns:
            The losses (n, M) in nats.

        Raises:
            _NotFinite: a loss is not finite.
        """
        watch = watch or Stopwatch(self.device)
        all_losses: Floats = np.empty(samples.shape)
        # a part is the columns of some ranks; gradients of all parts add up
        self.optimizer.zero_grad()
        for first, part in self.network.parts(samples):
            part_losses = all_losses[
                :, first : first + part.shape[1]
            ]  # a view, filled in
            with watch.measure("forward"):
                losses = self.network.trained_losses(
                    self.source, first, part, self.epochs_done + 1
                )
                part_losses[:] = losses.detach().cpu().numpy().reshape(part.shape)
            is_finite = np.isfinite(part_losses).all(axis=0)
            if not is_finite.all():
                raise _NotFinite(first + int(np.argmin(is_finite)))
            with watch.measure("backward"):
                (losses.sum() / samples.size).backward()  # type: ignore[no-untyped-call]
        return all_losses

    def weights(self) -> dict[str, torch.Tensor]:
        """Return copies of the weights, by name as in the model, on the device; no
        buffers.
        """
        return {
            name: weight.detach().clone()
            for name, weight in self.network.model.named_parameters()
        }

    def model(self, rank: int | None = None) -> nn.Module:
        """Return a copy of the trained model with ordinary layers, on the device that
        trains and in training mode.

        It has the statistics of ``rank``, or those of all ranks pooled if None. With
        batch_norm 'none' its batch norm only scales and shifts.
        """
        group = None if rank is None else rank // self.network.ranks_per_group
        return ordinary_copy(self.network.model, group)


class _NotFinite(Exception):
    """A loss is not finite, first on ``rank``; `Emulation.epoch` says when."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.rank = rank
