"""Classification: scikit-learn's make_classification, Gaussian clusters on the corners of a
hypercube."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from sklearn.datasets import make_classification

from simshuffle.spec.record import Count, Fraction, NonNegative, Spec
from simshuffle.spec.rng import stream
from simshuffle.train.data.base import (
    Samples,
    TrainingSet,
    check_memory,
    standardised,
    with_wrong_labels,
)
from simshuffle.train.data.procedural import MOST_NBYTES


class Classification(Spec):
    """Vectors, as `sklearn.datasets.make_classification` makes them (Guyon, 2003); its names in
    brackets.

    Attributes:
        num_samples, test_samples: of the two parts; drawn together, so both share the clusters.
        features: values of a vector (n_features).
        informative: of them, those that the clusters differ in (n_informative).
        redundant: of them, random combinations of the informative ones (n_redundant); the rest is
            noise.
        classes: number of labels (n_classes).
        clusters_per_class: Gaussian clusters that a class consists of (n_clusters_per_class).
        separation: half the side of the hypercube (class_sep). Less of it is harder.
        label_noise: share of the training labels that are replaced by a wrong one; test labels are
            always right.
        seed: of everything that is drawn.
    """

    label: ClassVar[str] = "synthetic features"
    kind: Literal["classification"]
    num_samples: Count = 8192
    test_samples: Count = 2048
    features: Annotated[int, Field(ge=1, le=100_000)] = 32
    informative: Annotated[int, Field(ge=1, le=64)] = 16
    redundant: Annotated[int, Field(ge=0)] = 0
    classes: Annotated[int, Field(ge=2, le=10_000)] = 16
    clusters_per_class: Annotated[int, Field(ge=1, le=1000)] = 2
    separation: NonNegative = 1.0
    label_noise: Fraction = 0.0
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _fits(self) -> Classification:
        if self.informative + self.redundant > self.features:
            raise PydanticCustomError(
                "features", "features must be at least informative + redundant"
            )
        if self.classes * self.clusters_per_class > 2**self.informative:
            raise PydanticCustomError(
                "corners",
                "classes times clusters_per_class must be at most 2 to the power of informative",
            )
        return self

    def load(self) -> TrainingSet:
        """The samples, each feature less its mean and divided by its standard deviation in the
        training part.

        Raises:
            InputError: the samples would fill the memory.
        """
        count = self.num_samples + self.test_samples
        remedy = "Lower num_samples, test_samples or features."
        check_memory(8 * count * self.features, MOST_NBYTES, "num_samples", "data", remedy)
        inputs, targets = make_classification(
            n_samples=count,
            n_features=self.features,
            n_informative=self.informative,
            n_redundant=self.redundant,
            n_repeated=0,
            n_classes=self.classes,
            n_clusters_per_class=self.clusters_per_class,
            flip_y=0,
            class_sep=self.separation,
            random_state=int(stream(self.seed, "classification").integers(2**32)),
        )
        train, test = standardised(
            inputs[: self.num_samples], inputs[self.num_samples :], by_feature=True
        )
        targets = np.asarray(targets, np.int64)
        rng = stream(self.seed, "classification wrong labels")
        labels = with_wrong_labels(targets[: self.num_samples], self.classes, self.label_noise, rng)
        return TrainingSet(
            "classification",
            Samples(train, labels),
            Samples(test, targets[self.num_samples :]),
            self.classes,
        )
