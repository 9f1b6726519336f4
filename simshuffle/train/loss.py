"""Losses: one number for each sample, of that sample alone; and the contrastive loss, where the two
views of a sample are to be told from those of the other samples of the batch, its negatives.

InfoNCE (van den Oord, Li and Vinyals 2018, arXiv 1807.03748) of normalised embeddings, in the
symmetric form of CLIP (Radford et al. 2021, arXiv 2103.00020): from each view its partner has to be
found among the partners' views. SimCLR (Chen et al. 2020, arXiv 2002.05709) has both views of a
sample from one augmentation too; its denominator also holds the other samples' views of the same
side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from simshuffle.errors import InputError, refuse
from simshuffle.spec.arrays import Ints
from simshuffle.spec.rng import stream
from simshuffle.train.iterations import Shuffled
from simshuffle.train.samples import Augmentation
from simshuffle.train.training import Contrastive

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""The loss of each sample, (n,), by what the model puts out, (n, classes), and the targets,
(n,)."""
FAULTS = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError)
"""What torch raises where shapes or kinds do not fit."""


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of each sample, nats."""
    return F.cross_entropy(output, target, reduction="none")


def loss_name(loss: Loss) -> str:
    """What tables call it: the name of the function or class."""
    return str(getattr(loss, "__name__", type(loss).__name__))


def check_losses(losses: object, count: int | None = None, source: str = "training") -> None:
    """See that these are losses of ``count`` samples, of any number if None, or raise
    InputError."""
    if isinstance(losses, torch.Tensor) and losses.ndim == 1 and count in {None, len(losses)}:
        return
    shown = f"a {type(losses).__name__}"
    if isinstance(losses, torch.Tensor):
        shown = f"shape {tuple(losses.shape)}"
    rule = (
        f"must be one number for each sample, shape ({'n' if count is None else count},): the"
        " importance of a sample is its own loss, and every rank takes the mean of its own samples"
    )
    refuse("loss", rule, shown, "Use reduction='none'; the mean is taken for you.", source)


def try_loss(loss: Loss, logits: torch.Tensor, targets: torch.Tensor) -> None:
    """See that a network can be trained with ``loss``, on a few samples of several ranks: that it
    takes them, gives a loss for each, mixes none and has a gradient; or raise InputError."""
    if not callable(loss):
        rule = "must be a function of outputs and targets"
        remedy = "Use CrossEntropyLoss(reduction='none')."
        refuse("loss", rule, f"a {type(loss).__name__}", remedy, "training")
    with torch.enable_grad():
        given = logits.detach().clone().requires_grad_()
        try:
            losses = loss(given, targets)
            check_losses(losses, len(targets))
            first = loss(given[:2], targets[:2])
        except InputError:
            raise
        except FAULTS as error:
            shown = f"outputs {tuple(logits.shape)}, targets {tuple(targets.shape)}"
            rule, remedy = f"cannot take them: {error}", "Make model, data and loss fit."
            refuse("loss", rule, shown, remedy, "training")
    if not losses.requires_grad:
        rule, remedy = "must have a gradient", "Compute it with torch's functions alone."
        refuse("loss", rule, loss_name(loss), remedy, "training")
    if not torch.allclose(losses[:2], first, rtol=1e-4, atol=1e-6, equal_nan=True):
        rule = "of a sample must not depend on the other samples, which may be of other ranks"
        remedy = "Take out what goes over the whole batch."
        refuse("loss", rule, loss_name(loss), remedy, "training")


# -------------------------------------------------------------------------------------------- views


class Views:
    """Two views of every one of ``count`` samples in every epoch, the same whoever asks, emulated
    or real rank. Draws are made for all samples together and take twice their memory."""

    def __init__(self, augmentation: Augmentation, count: int, seed: int) -> None:
        self._how, self._count, self._seed, self._epoch = augmentation, count, seed, 0

    def pair(self, inputs: torch.Tensor, samples: Ints, epoch: int) -> torch.Tensor:
        """The first views of all samples, and then the second: (2 n, *shape); of inputs (n, *shape)
        as the network would get them, the samples' numbers (n,), and the epoch, from 1."""
        if epoch != self._epoch:
            self._draw(epoch)
        which = torch.from_numpy(np.asarray(samples, np.int64))
        return torch.cat([self._view(number, inputs, which) for number in (0, 1)])

    def _draw(self, epoch: int) -> None:
        rng, how = stream(self._seed, "views", epoch), self._how
        size = (2, self._count)
        self._shift = torch.from_numpy(rng.integers(-how.shift, how.shift + 1, (*size, 2)))
        contrast = 1 + how.contrast * (2 * rng.random(size, dtype=np.float32) - 1)
        self._contrast = torch.from_numpy(contrast)
        noise = rng.standard_normal((*size, *how.shape), dtype=np.float32)
        self._noise = torch.from_numpy(noise)
        self._epoch = epoch

    def _view(self, number: int, inputs: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        """One view of each of the samples ``which``."""
        how = self._how
        pixels = inputs.reshape(len(inputs), how.shape[0], -1)
        places = self._places(self._shift[number, which]).to(inputs.device)
        shifted = pixels.gather(2, places[:, None, :].expand_as(pixels))
        contrast = self._contrast[number, which].to(inputs).view(-1, 1, 1)
        noise = self._noise[number, which].to(inputs).view(pixels.shape)
        view: torch.Tensor = (shifted * contrast + noise * how.noise) / (1 + how.noise**2) ** 0.5
        return view.reshape(inputs.shape)

    def _places(self, shift: torch.Tensor) -> torch.Tensor:
        """Where the pixels of images shifted by (n, 2) come from: (n, height width)."""
        _, height, width = self._how.shape
        rows = (torch.arange(height) + shift[:, :1]) % height
        columns = (torch.arange(width) + shift[:, 1:]) % width
        return (rows[:, :, None] * width + columns[:, None, :]).flatten(1)


# ----------------------------------------------------------------------------------------- the loss


def info_nce(one: torch.Tensor, other: torch.Tensor, temperature: float) -> torch.Tensor:
    """The loss of each sample, nats, (groups, n), given the embeddings of its two views, (groups,
    n, numbers) each; negatives are the other samples of the group.

    -log of the share that exp(cosine / temperature) of its own partner has in the sum over all
    partners of the group; mean of both directions.
    """
    similarity = F.normalize(one, dim=-1) @ F.normalize(other, dim=-1).mT / temperature
    own = similarity.diagonal(dim1=-2, dim2=-1)
    return (similarity.logsumexp(-1) + similarity.logsumexp(-2)) / 2 - own


@dataclass(frozen=True)
class Contrast:
    """A contrastive training."""

    loss: Contrastive  # its temperature, and where negatives come from
    views: Views  # of the training samples

    @property
    def gathered(self) -> bool:
        """Whether negatives come from all ranks."""
        return self.loss.negatives == "gathered"

    def losses(self, embeddings: torch.Tensor, ranks: int) -> torch.Tensor:
        """The loss of each sample, (n ranks,), given the embeddings (2 n ranks, numbers) of their
        first views and then of their second, the rank being the fastest index."""
        one, other = embeddings.view(2, -1, 1 if self.gathered else ranks, embeddings.shape[-1])
        by_group = info_nce(one.transpose(0, 1), other.transpose(0, 1), self.loss.temperature)
        return by_group.T.reshape(-1)


def contrast_of(
    run: Shuffled, augmentation: Augmentation | None, loss: Loss = cross_entropy
) -> Contrast | None:
    """What a contrastive training needs; None of other trainings. Raises InputError if a local
    batch has no negatives, data without ``augmentation`` no views, the caller gives another
    ``loss``, or the exchange needs the importance of samples."""
    how, sizes = run.training.loss, run.batch_sizes
    if not isinstance(how, Contrastive):
        return None
    if loss is not cross_entropy:
        rule = "contrastive takes the place of a loss of your own"
        refuse("training.loss", rule, loss_name(loss), "Leave one of them out.", "training")
    if augmentation is None:
        rule = "contrastive needs two views of each sample, and these data have none"
        remedy = "Use procedural data, or loss: cross_entropy."
        refuse("training.loss", rule, how.kind, remedy, "training")
    if run.strategy.needs_importance:
        rule = (
            "cannot go by importance with a contrastive loss: a sample's loss is not its own there,"
            " but depends on its negatives"
        )
        remedy = "Use partial_local_shuffle, or loss: cross_entropy."
        refuse("exchange", rule, run.strategy.kind, remedy, "training")
    if min(sizes) * (run.world_size if how.negatives == "gathered" else 1) < 2:
        which = "local_batch_size" if max(sizes) == 1 else "the last local batch"
        rule = f"leaves a sample without negatives: {which} holds one sample"
        remedy = "Use another local_batch_size, drop_last: true, or negatives: gathered."
        size = str(run.training.local_batch_size)
        refuse("training.local_batch_size", rule, size, remedy, "training")
    return Contrast(how, Views(augmentation, run.num_samples, run.seed))
