"""Data-optimised large-batch training (Gahlot, Yin and Shankar): leave out what looks like noise in
a trained network's features."""

from __future__ import annotations

from simshuffle.studies.filtering.folder import FilterResult, existing
from simshuffle.train.filtering.pipeline import (
    check_study,
    count_jobs,
    run_study,
    study_fingerprint,
)
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
    "FilterResult",
    "Projection",
    "Retraining",
    "check_study",
    "count_jobs",
    "existing",
    "load_study",
    "run_study",
    "study_fingerprint",
]
