"""The cells of the study: extractions, from a trained network to points in a plane (what goes into
its last layer, principal components, t-SNE); filters; trainings on what these leave."""

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
"""Samples passing a small network in the time that t-SNE takes for one (estimate, from digits)."""
UNREADABLE = (
    *(OSError, RuntimeError, ValueError, TypeError, AttributeError, KeyError, EOFError),
    pickle.UnpicklingError,
)
"""What torch raises at a file that holds no weights, or others."""
SMALL_BATCH = 64
"""Samples; with smaller batches an iteration takes about as long as with this one (estimate)."""


@dataclass(frozen=True)
class ExtractionCell(TorchCell):
    """One extraction: a network, trained or read, and its projected features of the training
    samples."""

    data: Data  # what it is trained on
    extractor: Extractor  # the network
    projection: Projection  # of its features
    seed: int  # of its weights, the order of samples, and t-SNE
    num_samples: int  # of the training part of ``data``; for the cost alone
    device: str = "cpu"  # that trains

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        records = (self.data, self.extractor, self.projection)
        plain = [record.model_dump(mode="json") for record in records]
        packages = [version("torch"), version("scikit-learn")]
        kind = self.device.partition(":")[0]
        return [*plain, self.seed, weights_of(self.extractor), packages, kind]

    @property
    def label(self) -> str:
        """As for `Cell`."""
        return f"{self.extractor.name}_s{self.seed}"

    @property
    def cost(self) -> float:
        """As for `Cell`."""
        epochs = 0 if self.extractor.weights else self.extractor.training.epochs
        return SECONDS_PER_SAMPLE * self.num_samples * (epochs + TSNE_COST)

    @property
    def parts(self) -> frozenset[str]:
        """As for `Cell`."""
        return frozenset({f"{POINTS}{TABLE}"})

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: what is known of the network and the projection as values, and the table
        `POINTS`, a row for each training sample: sample, label, x, y, loss, right."""
        begin = perf_counter()
        with one_thread():
            data, run = self.data.load(), ordinary_run(self.data, self.extractor, self.seed)
            model = trained(run, data, self.extractor.weights, tell, self.device)
            features, losses, right = outputs(model, data, data.train, self.device)
            _, _, tested = outputs(model, data, data.test, self.device)
            points, facts = project(features, self.projection, self.seed)
        table = pd.DataFrame(
            {
                "sample": np.arange(len(points)),
                "label": data.train.targets,
                "x": points[:, 0],
                "y": points[:, 1],
                # of a network that is not finite there is none
                "loss": np.where(np.isfinite(losses), losses, np.nan),
                "right": right,
            }
        )
        values = {
            "extractor": self.extractor.name,
            "seed": self.seed,
            "parameters": sum(p.numel() for p in model.parameters()),
            **facts,
            "features": features.shape[1],
            "train_accuracy": float(right.mean()),
            "test_accuracy": float(tested.mean()),
            "seconds": perf_counter() - begin,
        }
        return Outcome(values, {POINTS: table})


def weights_of(extractor: Extractor) -> list[int] | None:
    """What tells the file of an extractor's weights from another one in its place: size, and time
    of change in ns; None if it is trained."""
    if extractor.weights is None:
        return None
    about = Path(extractor.weights).stat()
    return [about.st_size, about.st_mtime_ns]


def ordinary_run(data: Data, how: Extractor | Retraining, seed: int) -> Run:
    """The training of ``how`` with one rank, so batch norm goes over the whole batch."""
    return Run.of_one_rank(data, how.model, how.training, seed)


def trained(
    run: Run, data: TrainingSet, weights: str | None, tell: Tell, device: str = "cpu"
) -> nn.Module:
    """The network of ``run``, trained on ``data`` or with the ``weights`` of a file; on ``device``,
    in eval mode. Raises InputError if these do not fit, Diverged if the loss is not finite."""
    model, where, dtype = initial_model(run, data), find_device(device), torch_dtype(run.training)
    if weights is not None:
        return loaded(model, Path(weights)).to(where, dtype).eval()
    source = ArraySource(data.train, data.mean, data.std, dtype=dtype, device=where)
    emulation = Emulation(
        model,
        source,
        strategy=run.exchange,
        world_size=run.world_size,
        training=run.training,
        seed=run.seed,
        device=where,
    )
    for epoch in range(run.training.epochs):
        tell(epoch / run.training.epochs)
        emulation.epoch()
    return emulation.model().to(where, dtype).eval()


def loaded(model: nn.Module, path: Path) -> nn.Module:
    """``model`` with the weights in ``path``, or raise InputError if it cannot be read so."""
    remedy = "Give a state_dict of this network, written by torch.save(model.state_dict(), path)."
    try:
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except UNREADABLE as error:
        rule, shown = "must be weights of the network", " ".join(str(error).split())[:200]
        refuse("extractors.weights", rule, f"{path}: {shown}", remedy, str(path))
    return model


def outputs(
    model: nn.Module, data: TrainingSet, samples: Samples, device: str = "cpu"
) -> tuple[Floats, Floats, Flags]:
    """What goes into the layer ``head`` (n, features) in eval mode, the losses (n,) in nats, and
    whether the right label is found (n,)."""
    head = model.get_submodule("head")
    seen: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0].detach().flatten(1).float().cpu())
    )
    dtype = next(model.parameters()).dtype
    source = ArraySource(samples, data.mean, data.std, dtype=dtype, device=find_device(device))
    losses, right = [], []
    try:
        with torch.no_grad():
            for first in range(0, len(samples), ROWS_AT_ONCE):
                end = min(first + ROWS_AT_ONCE, len(samples))
                inputs, targets = source.batch(np.arange(first, end))
                logits = model(inputs)
                losses.append(nn.functional.cross_entropy(logits, targets, reduction="none").cpu())
                right.append((logits.argmax(1) == targets).cpu())
    finally:
        hook.remove()
    return torch.cat(seen).numpy(), torch.cat(losses).double().numpy(), torch.cat(right).numpy()


def project(features: Floats, projection: Projection, seed: int) -> tuple[Floats, dict[str, float]]:
    """Features (n, f) as points in a plane (n, 2), without unit; and 'components', their
    'explained_variance' (share of the features') and 'kl_divergence' (of t-SNE, nats). Raises
    SimulationError if all features are the same or not finite, InputError at too large a
    perplexity."""
    if not np.isfinite(features).all() or not (features.std(axis=0) > 0).any():
        why = "The features are all the same or not finite: the network has learnt nothing."
        raise SimulationError(f"{why} Use a lower learning rate.")
    if projection.perplexity >= len(features):
        rule = f"must be below the number of samples, {len(features)}"
        refuse("projection.perplexity", rule, f"{projection.perplexity:g}", "Lower it.", "study")
    state = int(stream(seed, "t-SNE").integers(2**32))
    count = min(projection.pca_components, *features.shape)
    pca = PCA(count, random_state=state)
    components = pca.fit_transform(features.astype(np.float64))
    tsne = TSNE(2, perplexity=projection.perplexity, random_state=state, n_jobs=1)
    points = np.asarray(tsne.fit_transform(components), np.float64)
    explained = min(float(pca.explained_variance_ratio_.sum()), 1.0)
    if not math.isfinite(float(tsne.kl_divergence_)):
        raise SimulationError("t-SNE did not converge to finite points.")
    known = {"components": count, "explained_variance": explained}
    return points, {**known, "kl_divergence": float(tsne.kl_divergence_)}


# ------------------------------------------------------------------------------------------ filters


def noise(points: NDArray[np.floating[Any]], labels: Ints64, eps: float, min_samples: int) -> Flags:
    """Which of the points (n, 2) DBSCAN puts into no cluster, each class by itself, (n,): not
    within ``eps`` of one that has ``min_samples`` points of its class, itself included, within
    ``eps``."""
    out = np.zeros(len(points), np.bool_)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        out[own] = DBSCAN(eps=eps, min_samples=min_samples).fit_predict(points[own]) < 0
    return out


def noise_of(table: pd.DataFrame, clustering: Clustering, eps: float | None = None) -> Flags:
    """`noise` of an extraction's table; with another ``eps`` than that of ``clustering`` if
    given."""
    points, labels = table[["x", "y"]].to_numpy(np.float64), table["label"].to_numpy(np.int64)
    return noise(points, labels, clustering.eps if eps is None else eps, clustering.min_samples)


def random_filter(num_samples: int, removed: int, seed: int) -> Flags:
    """Which samples are left out if that many are drawn at random, whatever their class: (n,)."""
    out = np.zeros(num_samples, np.bool_)
    out[stream(seed, "random filter").permutation(num_samples)[:removed]] = True
    return out


# --------------------------------------------------------------------------------------- retraining


@dataclass(frozen=True, eq=False)
class RetrainingCell(TorchCell):
    """One run."""

    training_run: Run  # what is trained; its data are the full ones
    # numbers of the training samples that are trained on; None for all of them
    kept: Ints64 | None
    num_samples: int  # how many those are
    # values of `simshuffle.extensions.learning.filtering.tables.DESCRIPTION_COLUMNS`
    description: Mapping[str, Any]
    label: str  # for people
    device: str = "cpu"  # that trains

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        kept = None if self.kept is None else hashlib.sha256(self.kept.tobytes()).hexdigest()
        return [*run_key(self.training_run, self.device), kept]

    @property
    def cost(self) -> float:
        """As for `Cell`; small batches take longer."""
        training = self.training_run.training
        small = max(1.0, SMALL_BATCH / training.local_batch_size)
        return SECONDS_PER_SAMPLE * self.num_samples * training.epochs * small

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: status, message, seconds; and train_loss, accuracy, loss of the last
        epoch."""
        with one_thread():
            data = self.training_run.data.load()
            part = data if self.kept is None else part_of(data, self.kept)
            record = train_run(self.training_run, tell, self.device, part)
        names = {"train_loss": "train_loss", "accuracy": "own_accuracy", "loss": "own_loss"}
        done = record.status == "done"
        last = {key: float(record.epochs[of].iloc[-1]) for key, of in names.items() if done}
        finite = {key: value if math.isfinite(value) else math.nan for key, value in last.items()}
        ended = {"status": record.status, "message": record.message, "seconds": record.seconds}
        return Outcome({**ended, **finite})


def part_of(data: TrainingSet, kept: Ints64) -> TrainingSet:
    """The set with only those training samples; scaled as the whole set, to change nothing else."""
    return replace(data, train=Samples(data.train.inputs[kept], data.train.targets[kept]))
