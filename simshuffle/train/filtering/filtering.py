"""Filters: which training samples are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN

from simshuffle.spec.rng import stream
from simshuffle.train.filtering.record import Clustering

Bools = NDArray[np.bool_]


def noise(
    points: NDArray[np.floating[Any]], labels: NDArray[np.int64], eps: float, min_samples: int
) -> Bools:
    """Which of the points (n, 2) DBSCAN puts into no cluster, each class by itself: (n,).

    A point is noise if fewer than ``min_samples`` points of its class, itself included, lie within
    ``eps`` of it, and it does not lie within ``eps`` of one that has so many.
    """
    out = np.zeros(len(points), np.bool_)
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        out[own] = DBSCAN(eps=eps, min_samples=min_samples).fit_predict(points[own]) < 0
    return out


def noise_of(table: pd.DataFrame, clustering: Clustering, eps: float | None = None) -> Bools:
    """`noise` of an extraction's table; with another ``eps`` than that of ``clustering`` if
    given."""
    points, labels = table[["x", "y"]].to_numpy(np.float64), table["label"].to_numpy(np.int64)
    return noise(points, labels, clustering.eps if eps is None else eps, clustering.min_samples)


def random_filter(num_samples: int, removed: int, seed: int) -> Bools:
    """Which samples are left out if that many are drawn at random, whatever their class: (n,)."""
    out = np.zeros(num_samples, np.bool_)
    out[stream(seed, "random filter").permutation(num_samples)[:removed]] = True
    return out
