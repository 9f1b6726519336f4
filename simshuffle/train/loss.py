"""Losses: one number for each sample, of that sample alone; and the contrastive loss,
which tells two views of a sample from views of other samples of the batch, its
negatives.

InfoNCE (van den Oord, Li and Vinyals 2018, arXiv 1807.03748) of normalised embeddings,
in the symmetric form of CLIP (Radford et al. 2021, arXiv 2103.00020): from each view
its partner has to be found among the partners' views. SimCLR (Chen et al. 2020, arXiv
2002.05709) has both views of a sample from one augmentation too; its denominator also
holds the other samples' views of the same side.
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
from simshuffle.train.iterations import TrainingEpochs
from simshuffle.train.samples import Augmentation
from simshuffle.train.training import Contrastive

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Returns the loss of each sample, (n,), given the outputs of the model, (n, classes),
and the targets, (n,).
"""
FAULTS = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError)
"""The errors that torch raises where shapes or types do not fit."""


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each sample, (n,) nats."""
    return F.cross_entropy(output, target, reduction="none")


def loss_name(loss: Loss) -> str:
    """Return the name of a loss in tables: that of the function or class."""
    return str(getattr(loss, "__name__", type(loss).__name__))


def check_losses(
    losses: object, count: int | None = None, source: str = "training"
) -> None:
    """Raise an InputError unless ``losses`` are a tensor with one index, (``count``,).

    It may have any length if ``count`` is None. The error names ``source``.
    """
    if (
        isinstance(losses, torch.Tensor)
        and losses.ndim == 1
        and count in {None, len(losses)}
    ):
        return
    value = f"a {type(losses).__name__}"
    if isinstance(losses, torch.Tensor):
        value = f"shape {tuple(losses.shape)}"
    rule = (
        f"must be one number for each sample, shape ({'n' if count is None else count},): each"
        " sample's own loss is its importance, and each rank takes the mean over its own samples"
    )
    refuse(
        "loss",
        rule,
        value,
        "Use reduction='none'; the training takes the mean.",
        source,
    )


def try_loss(loss: Loss, logits: torch.Tensor, targets: torch.Tensor) -> None:
    """Raise an InputError unless a network can be trained with ``loss``.

    It is tried on the given samples: it must take them, and give a loss for each, (n,),
    that requires a gradient; no gradient is computed. The losses of the first two alone
    must be the same (to 1e-4).

    Args:
        loss: to be tried.
        logits: (n, classes) outputs of the network, of samples of several ranks.
        targets: (n,) labels.
    """
    if not callable(loss):
        rule = "must be a function of outputs and targets"
        remedy = "Use CrossEntropyLoss(reduction='none')."
        refuse("loss", rule, f"a {type(loss).__name__}", remedy, "training")
    with torch.enable_grad():
        outputs = logits.detach().clone().requires_grad_()
        try:
            losses = loss(outputs, targets)
            check_losses(losses, len(targets))
            losses_of_two = loss(outputs[:2], targets[:2])
        except InputError:
            raise
        except FAULTS as error:
            value = f"outputs {tuple(logits.shape)}, targets {tuple(targets.shape)}"
            rule = f"cannot take outputs and targets: {error}"
            remedy = "Make model, data and loss fit together."
            refuse("loss", rule, value, remedy, "training")
    if not losses.requires_grad:
        rule = "must have a gradient"
        remedy = "Compute the loss with torch's functions only."
        refuse("loss", rule, loss_name(loss), remedy, "training")
    if not torch.allclose(
        losses[:2], losses_of_two, rtol=1e-4, atol=1e-6, equal_nan=True
    ):
        rule = "a sample's loss must depend on that sample only, as others may be of other ranks"
        remedy = "Take out operations over the whole batch."
        refuse("loss", rule, loss_name(loss), remedy, "training")


# -------------------------------------------------------------------------------------------- views


class Views:
    """The two views of each of ``num_samples`` samples in every epoch.

    They depend on seed, epoch and sample alone, so they are equal on emulated and real
    ranks. Draws are made for all samples together, and take the memory of two float32
    copies of them.
    """

    def __init__(self, augmentation: Augmentation, num_samples: int, seed: int) -> None:
        self._augmentation = augmentation
        self._num_samples = num_samples
        self._seed = seed
        self._epoch = 0

    def pair(self, inputs: torch.Tensor, samples: Ints, epoch: int) -> torch.Tensor:
        """Return the first views of n samples, and then their second: (2 n, *shape).

        In the first call of an epoch, views of all ``num_samples`` are drawn, and kept
        until another epoch is asked for.

        Args:
            inputs: (n, *shape) as the network would get them.
            samples: (n,) their indices in the training set.
            epoch: from 1.
        """
        if epoch != self._epoch:
            self._draw(epoch)
        indices = torch.from_numpy(np.asarray(samples, np.int64))
        return torch.cat([self._view(view, inputs, indices) for view in (0, 1)])

    def _draw(self, epoch: int) -> None:
        """Draw and keep shift, contrast and noise of both views of all samples; those
        of the last epoch are dropped.
        """
        rng = stream(self._seed, "views", epoch)
        augmentation = self._augmentation
        # (2, N, ...): the first axis is the view, the second the sample
        size = (2, self._num_samples)
        shift = rng.integers(-augmentation.shift, augmentation.shift + 1, (*size, 2))
        self._shift = torch.from_numpy(shift)
        contrast = 1 + augmentation.contrast * (
            2 * rng.random(size, dtype=np.float32) - 1
        )
        self._contrast = torch.from_numpy(contrast)
        noise = rng.standard_normal((*size, *augmentation.shape), dtype=np.float32)
        self._noise = torch.from_numpy(noise)
        self._epoch = epoch

    def _view(
        self, view: int, inputs: torch.Tensor, indices: torch.Tensor
    ) -> torch.Tensor:
        """Return view 0 or 1, (n, *shape), of ``inputs``, which are the samples
        ``indices`` (n,) of the drawn epoch.

        Shifted images are multiplied by their contrast, noise is added, and the sum is
        divided by sqrt(1 + noise²): inputs of variance 1 keep it but for the contrast.
        """
        augmentation = self._augmentation
        pixels = inputs.reshape(len(inputs), augmentation.shape[0], -1)
        source_pixels = self._source_pixels(self._shift[view, indices]).to(
            inputs.device
        )
        shifted = pixels.gather(2, source_pixels[:, None, :].expand_as(pixels))
        contrast = self._contrast[view, indices].to(inputs).view(-1, 1, 1)
        noise = self._noise[view, indices].to(inputs).view(pixels.shape)
        deviation = (1 + augmentation.noise**2) ** 0.5
        values: torch.Tensor = (
            shifted * contrast + noise * augmentation.noise
        ) / deviation
        return values.reshape(inputs.shape)

    def _source_pixels(self, shift: torch.Tensor) -> torch.Tensor:
        """Return where the pixels of images shifted by (n, 2) come from, as indices
        into the flattened image: (n, height width).

        A pixel comes from its own row and column plus the shift; images wrap around.
        """
        _, height, width = self._augmentation.shape
        # (n, height) and (n, width): images wrap around
        rows = (torch.arange(height) + shift[:, :1]) % height
        columns = (torch.arange(width) + shift[:, 1:]) % width
        return (rows[:, :, None] * width + columns[:, None, :]).flatten(1)


# ----------------------------------------------------------------------------------------- the loss


def info_nce(
    first_views: torch.Tensor, second_views: torch.Tensor, temperature: float
) -> torch.Tensor:
    """Return the InfoNCE loss of each sample, (groups, n) nats.

    It is -log of the share that exp(cosine / temperature) of the sample's own partner
    has in the sum over all partners of the group; the mean of both directions.
    Negatives are the other samples of the group.

    Args:
        first_views: (groups, n, numbers) embeddings.
        second_views: (groups, n, numbers) embeddings.
        temperature: that cosines are divided by.
    """
    cosines = F.normalize(first_views, dim=-1) @ F.normalize(second_views, dim=-1).mT
    similarity = cosines / temperature
    own_similarity = similarity.diagonal(dim1=-2, dim2=-1)
    return (similarity.logsumexp(-1) + similarity.logsumexp(-2)) / 2 - own_similarity


@dataclass(frozen=True)
class Contrast:
    """A contrastive training."""

    loss: Contrastive  # its temperature, and where negatives come from
    views: Views  # of the training samples

    @property
    def gathered(self) -> bool:
        """True if negatives come from all ranks: ``loss.negatives`` is 'gathered'."""
        return self.loss.negatives == "gathered"

    def losses(self, embeddings: torch.Tensor, ranks: int) -> torch.Tensor:
        """Return the loss of each sample, (n ranks,) nats, the rank being the fastest
        index.

        Negatives are the other samples of the same rank, or of all ``ranks`` if
        `gathered`.

        Args:
            embeddings: (2 n ranks, numbers) of the first views and then of the second,
                the rank being the fastest index.
            ranks: how many there are.
        """
        # (2, n, groups, numbers): a group has negatives in common
        groups = 1 if self.gathered else ranks
        first_views, second_views = embeddings.view(2, -1, groups, embeddings.shape[-1])
        by_group = info_nce(
            first_views.transpose(0, 1),
            second_views.transpose(0, 1),
            self.loss.temperature,
        )
        return by_group.T.reshape(-1)


def contrast_of(
    epochs: TrainingEpochs,
    augmentation: Augmentation | None,
    loss: Loss = cross_entropy,
) -> Contrast | None:
    """Return loss and views of a contrastive training; None for other trainings.

    Args:
        epochs: of the training, whose ``training.loss`` says whether it is contrastive.
        augmentation: how views are made; None if the data have none.
        loss: the caller's; anything but `cross_entropy` is refused.

    Raises:
        InputError: the training is contrastive, and a sample of the smallest local
            batch has no negatives, ``augmentation`` is None, the caller gives a
            ``loss``, or the exchange needs the importance of samples.
    """
    contrastive = epochs.training.loss
    sizes = epochs.batch_sizes
    if not isinstance(contrastive, Contrastive):
        return None
    if loss is not cross_entropy:
        rule = "contrastive cannot be combined with your own loss"
        refuse(
            "training.loss", rule, loss_name(loss), "Leave one of them out.", "training"
        )
    if augmentation is None:
        rule = "contrastive needs two views of each sample, but these data have none"
        remedy = "Use procedural data, or loss: cross_entropy."
        refuse("training.loss", rule, contrastive.kind, remedy, "training")
    if epochs.strategy.needs_importance:
        rule = (
            "cannot go by importance with a contrastive loss, since the loss of a sample depends on"
            " its negatives"
        )
        remedy = "Use partial_local_shuffle, or loss: cross_entropy."
        refuse("exchange", rule, epochs.strategy.kind, remedy, "training")
    ranks_together = epochs.world_size if contrastive.negatives == "gathered" else 1
    if min(sizes) * ranks_together < 2:
        batch = "local_batch_size" if max(sizes) == 1 else "the last local batch"
        rule = f"leaves a sample without negatives: {batch} holds one sample"
        remedy = (
            "Use another local_batch_size, drop_last: true, or negatives: gathered."
        )
        size = str(epochs.training.local_batch_size)
        refuse("training.local_batch_size", rule, size, remedy, "training")
    return Contrast(contrastive, Views(augmentation, epochs.num_samples, epochs.seed))
