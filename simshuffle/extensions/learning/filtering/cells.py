"""The cells of a data-optimised study: extractions and retrainings, and the filters
between them.

An extraction goes from a trained network to points in a plane: the inputs of its last
layer, principal components, t-SNE. A retraining uses the samples that a filter leaves.
"""

from __future__ import annotations

import hashlib
import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from torch import nn

from simshuffle.errors import SimulationError, refuse
from simshuffle.extensions.learning.filtering.record import (
    Clustering,
    Extractor,
    Projection,
    Retraining,
)
from simshuffle.spec.arrays import Flags, Ints64
from simshuffle.spec.rng import stream
from simshuffle.study.cell import Outcome, Tell
from simshuffle.study.store import TABLE
from simshuffle.train.cell import SECONDS_PER_SAMPLE, TorchCell, one_thread, run_key
from simshuffle.train.data import Data
from simshuffle.train.emulate import find_device, initial_model, train_run
from simshuffle.train.emulation import Emulation
from simshuffle.train.network import torch_dtype
from simshuffle.train.run import Run
from simshuffle.train.samples import Samples, TrainingSet
from simshuffle.train.sources import ArraySource

Floats = NDArray[np.floating[Any]]
POINTS = "points"
ROWS_AT_ONCE = 512
"""Samples that pass the trained network together."""
TSNE_COST = 200.0
"""Cost of t-SNE for a sample: so many samples pass a small network in that time (estimate,
from digits).
"""
UNREADABLE = (
    *(OSError, RuntimeError, ValueError, TypeError, AttributeError, KeyError, EOFError),
    pickle.UnpicklingError,
)
"""Errors that torch raises at a file that holds no weights, or those of another
network.
"""
SMALL_BATCH = 64
"""Samples; with smaller batches an iteration takes about as long as with this one
(estimate).
"""


@dataclass(frozen=True)
class ExtractionCell(TorchCell):
    """An extraction: a network, trained or read, and its features of the training
    samples.

    The features are projected to points in a plane.
    """

    data: Data  # the data set that the network is trained on
    extractor: Extractor  # the network
    projection: Projection  # from its features to points
    seed: int  # seed of its weights, the order of samples, and t-SNE
    num_samples: int  # samples of the training part of ``data``; for the cost alone
    device: str = "cpu"  # device that trains: cpu or cuda

    @property
    def key(self) -> Any:
        """The records, seed, weights, packages and kind of device that decide the
        outcome.
        """
        records = (self.data, self.extractor, self.projection)
        records_as_json = [record.model_dump(mode="json") for record in records]
        packages = [version("torch"), version("scikit-learn")]
        kind = self.device.partition(":")[0]
        return [
            *records_as_json,
            self.seed,
            weights_identity(self.extractor),
            packages,
            kind,
        ]

    @property
    def label(self) -> str:
        """The extractor's name and the seed."""
        return f"{self.extractor.name}_s{self.seed}"

    @property
    def cost(self) -> float:
        """The estimated s of training and t-SNE on one core."""
        epochs = 0 if self.extractor.weights else self.extractor.training.epochs
        return SECONDS_PER_SAMPLE * self.num_samples * (epochs + TSNE_COST)

    @property
    def parts(self) -> frozenset[str]:
        """The name of the table of points, with its ending, which is stored beside the
        values.
        """
        return frozenset({f"{POINTS}{TABLE}"})

    def run(self, tell: Tell) -> Outcome:
        """Train or read the network, and return facts and the table `POINTS`.

        The values are the names, counts of parameters and features, facts of
        `project_features`, train_accuracy and test_accuracy (shares), and seconds. The
        table has a row for each training sample: sample, label, x, y, loss (nats; NaN
        where not finite), and right (True if the network finds the label).

        Raises:
            InputError, SimulationError, Diverged: as in `train_network` and
                `project_features`.
        """
        start = perf_counter()
        with one_thread():
            data = self.data.load()
            run = one_rank_run(self.data, self.extractor, self.seed)
            model = train_network(run, data, self.extractor.weights, tell, self.device)
            features, losses, is_right = evaluate_network(
                model, data, data.train, self.device
            )
            _, _, is_right_in_test = evaluate_network(
                model, data, data.test, self.device
            )
            points, facts = project_features(features, self.projection, self.seed)
        table = pd.DataFrame(
            {
                "sample": np.arange(len(points)),
                "label": data.train.targets,
                "x": points[:, 0],
                "y": points[:, 1],
                # of a network that is not finite there is none
                "loss": np.where(np.isfinite(losses), losses, np.nan),
                "right": is_right,
            }
        )
        values = {
            "extractor": self.extractor.name,
            "seed": self.seed,
            "parameters": sum(p.numel() for p in model.parameters()),
            **facts,
            "features": features.shape[1],
            "train_accuracy": float(is_right.mean()),
            "test_accuracy": float(is_right_in_test.mean()),
            "seconds": perf_counter() - start,
        }
        return Outcome(values, {POINTS: table})


def weights_identity(extractor: Extractor) -> list[int] | None:
    """Return the size in bytes and the time of change in ns of a file of weights.

    They tell the file of an extractor's weights from another one in its place. None if
    the extractor is trained.

    Raises:
        OSError: there is no such file.
    """
    if extractor.weights is None:
        return None
    status = Path(extractor.weights).stat()
    return [status.st_size, status.st_mtime_ns]


def one_rank_run(data: Data, recipe: Extractor | Retraining, seed: int) -> Run:
    """Return the training of ``recipe`` with one rank, so batch norm goes over the
    whole batch.
    """
    return Run.of_one_rank(data, recipe.model, recipe.training, seed)


def train_network(
    run: Run, data: TrainingSet, weights: str | None, tell: Tell, device: str = "cpu"
) -> nn.Module:
    """Return the network of ``run``, trained on ``data`` or with ``weights`` of a file.

    It is on ``device``, in eval mode.

    Args:
        weights: a file to read in place of training; None to train.
        tell: called with the share of epochs that are done.

    Raises:
        InputError: the weights do not fit.
        Diverged: the loss is not finite.
    """
    model = initial_model(run, data)
    torch_device = find_device(device)
    dtype = torch_dtype(run.training)
    if weights is not None:
        return load_weights(model, Path(weights)).to(torch_device, dtype).eval()
    source = ArraySource(
        data.train, data.mean, data.std, dtype=dtype, device=torch_device
    )
    emulation = Emulation(
        model,
        source,
        strategy=run.exchange,
        world_size=run.world_size,
        training=run.training,
        seed=run.seed,
        device=torch_device,
    )
    for epoch in range(run.training.epochs):
        tell(epoch / run.training.epochs)
        emulation.epoch()
    return emulation.model().to(torch_device, dtype).eval()


def load_weights(model: nn.Module, path: Path) -> nn.Module:
    """Load the weights in ``path`` into ``model``, and return it.

    Raises:
        InputError: the file cannot be read as weights of the network.
    """
    remedy = "Give a state_dict of this network, written by torch.save(model.state_dict(), path)."
    try:
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except UNREADABLE as error:
        rule = "must be weights of the network"
        cause = " ".join(str(error).split())[:200]
        refuse("extractors.weights", rule, f"{path}: {cause}", remedy, str(path))
    return model


def evaluate_network(
    model: nn.Module, data: TrainingSet, samples: Samples, device: str = "cpu"
) -> tuple[Floats, Floats, Flags]:
    """Evaluate a network on samples: features, losses, and correctness.

    The mode of the network is not changed: the caller has put it into eval mode, and
    onto ``device``.

    Returns:
        The inputs of the layer ``head`` (n, features), the losses (n,) in nats, and
            whether the right label is found (n,).
    """
    head = model.get_submodule("head")
    head_inputs: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(
        lambda module, inputs: head_inputs.append(
            inputs[0].detach().flatten(1).float().cpu()
        )
    )
    dtype = next(model.parameters()).dtype
    source = ArraySource(
        samples, data.mean, data.std, dtype=dtype, device=find_device(device)
    )
    losses = []
    is_right = []
    try:
        with torch.no_grad():
            for first in range(0, len(samples), ROWS_AT_ONCE):
                end = min(first + ROWS_AT_ONCE, len(samples))
                inputs, targets = source.batch(np.arange(first, end))
                logits = model(inputs)
                losses.append(
                    nn.functional.cross_entropy(logits, targets, reduction="none").cpu()
                )
                is_right.append((logits.argmax(1) == targets).cpu())
    finally:
        hook.remove()
    return (
        torch.cat(head_inputs).numpy(),
        torch.cat(losses).double().numpy(),
        torch.cat(is_right).numpy(),
    )


def project_features(
    features: Floats, projection: Projection, seed: int
) -> tuple[Floats, dict[str, float]]:
    """Project features (n, f) to points in a plane (n, 2), without unit.

    Principal components go into t-SNE.

    Returns:
        The points; and 'components', their 'explained_variance' (share of the
            features'), and 'kl_divergence' (of t-SNE, nats).

    Raises:
        SimulationError: all features are equal or not finite, or t-SNE does not
            converge.
        InputError: the perplexity is too large.
    """
    if not np.isfinite(features).all() or not (features.std(axis=0) > 0).any():
        reason = "The features are all the same or not finite: the network has learnt nothing."
        raise SimulationError(f"{reason} Use a lower learning rate.")
    if projection.perplexity >= len(features):
        rule = f"must be below the number of samples, {len(features)}"
        refuse(
            "projection.perplexity",
            rule,
            f"{projection.perplexity:g}",
            "Lower it.",
            "study",
        )
    random_state = int(stream(seed, "t-SNE").integers(2**32))
    count = min(projection.pca_components, *features.shape)
    pca = PCA(count, random_state=random_state)
    components = pca.fit_transform(features.astype(np.float64))
    tsne = TSNE(
        2, perplexity=projection.perplexity, random_state=random_state, n_jobs=1
    )
    points = np.asarray(tsne.fit_transform(components), np.float64)
    explained_variance = min(float(pca.explained_variance_ratio_.sum()), 1.0)
    if not math.isfinite(float(tsne.kl_divergence_)):
        raise SimulationError("t-SNE did not converge to finite points.")
    facts = {"components": count, "explained_variance": explained_variance}
    return points, {**facts, "kl_divergence": float(tsne.kl_divergence_)}


# ------------------------------------------------------------------------------------------ filters


def find_noise(
    points: NDArray[np.floating[Any]], labels: Ints64, eps: float, min_samples: int
) -> Flags:
    """Mark the points (n, 2) that DBSCAN puts into no cluster: (n,).

    Each class of ``labels`` (n,) is clustered by itself. A point is noise unless it is
    within ``eps`` of one that has ``min_samples`` points of its class, itself included,
    within ``eps``.
    """
    is_noise = np.zeros(len(points), np.bool_)
    for label in np.unique(labels):
        class_rows = np.flatnonzero(labels == label)
        clusters = DBSCAN(eps=eps, min_samples=min_samples).fit_predict(
            points[class_rows]
        )
        is_noise[class_rows] = clusters < 0  # scikit-learn gives -1 to noise
    return is_noise


def find_table_noise(
    table: pd.DataFrame, clustering: Clustering, eps: float | None = None
) -> Flags:
    """Mark the samples of an extraction's table that are noise, (n,), see `find_noise`.

    ``eps`` replaces that of ``clustering`` if it is given.
    """
    points = table[["x", "y"]].to_numpy(np.float64)
    labels = table["label"].to_numpy(np.int64)
    if eps is None:
        eps = clustering.eps
    return find_noise(points, labels, eps, clustering.min_samples)


def draw_random_filter(num_samples: int, removed: int, seed: int) -> Flags:
    """Draw ``removed`` of ``num_samples`` samples, and mark them: (num_samples,).

    The class of a sample has no influence. One seed draws one filter.
    """
    is_removed = np.zeros(num_samples, np.bool_)
    is_removed[stream(seed, "random filter").permutation(num_samples)[:removed]] = True
    return is_removed


# --------------------------------------------------------------------------------------- retraining


@dataclass(frozen=True, eq=False)
class RetrainingCell(TorchCell):
    """A training on the samples that a filter leaves."""

    training_run: Run  # the run; its data are the full ones
    # indices of the samples that are trained on; None for all
    retained_samples: Ints64 | None
    num_samples: int  # how many samples are trained on
    # values of `simshuffle.extensions.learning.filtering.tables.DESCRIPTION_COLUMNS`
    description: Mapping[str, Any]
    label: str  # names the cell to people
    device: str = "cpu"  # device that trains: cpu or cuda

    @property
    def key(self) -> Any:
        """The run, the device and the digest of the samples that are trained on."""
        samples_digest = None
        if self.retained_samples is not None:
            samples_digest = hashlib.sha256(self.retained_samples.tobytes()).hexdigest()
        return [*run_key(self.training_run, self.device), samples_digest]

    @property
    def cost(self) -> float:
        """The estimated s of the training on one core; small batches take longer."""
        training = self.training_run.training
        small_batch_factor = max(1.0, SMALL_BATCH / training.local_batch_size)
        return (
            SECONDS_PER_SAMPLE * self.num_samples * training.epochs * small_batch_factor
        )

    def run(self, tell: Tell) -> Outcome:
        """Train the run, and return its ending and values of the last epoch.

        Keys are status, message and seconds; and train_loss, loss (nats) and accuracy
        (share) where the status is 'done', NaN where they are not finite.
        """
        with one_thread():
            data = self.training_run.data.load()
            if self.retained_samples is not None:
                data = select_samples(data, self.retained_samples)
            record = train_run(self.training_run, tell, self.device, data)
        values: dict[str, Any] = {
            "status": record.status,
            "message": record.message,
            "seconds": record.seconds,
        }
        if record.status == "done":
            names = {
                "train_loss": "train_loss",
                "accuracy": "own_accuracy",
                "loss": "own_loss",
            }
            for key, column in names.items():
                value = float(record.epochs[column].iloc[-1])
                values[key] = value if math.isfinite(value) else math.nan
        return Outcome(values)


def select_samples(data: TrainingSet, retained_samples: Ints64) -> TrainingSet:
    """Return the set with only those training samples; the test samples stay.

    The inputs are scaled as in the complete set, to change nothing else.
    """
    return replace(
        data,
        train=Samples(
            data.train.inputs[retained_samples], data.train.targets[retained_samples]
        ),
    )
