"""Data-optimised large-batch training (Gahlot, Yin and Shankar): leave out what looks like noise in
a trained network's features."""

from __future__ import annotations

from simshuffle.train.filtering.pipeline import check_study, request
from simshuffle.train.filtering.record import (
    Clustering,
    DataOptimisedStudy,
    Extractor,
    Projection,
    Retraining,
    load_study,
)

__all__ = [
    "Clustering",
    "DataOptimisedStudy",
    "Extractor",
    "Projection",
    "Retraining",
    "check_study",
    "load_study",
    "request",
]
