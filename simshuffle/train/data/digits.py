"""Digits: 1,797 handwritten digits of 8 x 8 pixels, which come with scikit-learn."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field
from sklearn.datasets import load_digits

from simshuffle.spec.record import Fraction, Spec, whole_as_float
from simshuffle.spec.rng import stream
from simshuffle.train.data.base import Samples, TrainingSet, split, standardised, with_wrong_labels

TestShare = Annotated[float, BeforeValidator(whole_as_float), Field(ge=0.001, le=0.9)]


class Digits(Spec):
    """The test set of the UCI Optical Recognition of Handwritten Digits Data Set (Alpaydin and
    Kaynak, 1998).

    Attributes:
        test_share: part of the samples of each digit that is kept for testing.
        label_noise: share of the training labels that are replaced by a wrong one.
        flat: vectors of 64 values; otherwise images of shape (1, 8, 8).
        seed: of the split and of the wrong labels.
    """

    label: ClassVar[str] = "scikit-learn's digits"
    kind: Literal["digits"]
    test_share: TestShare = 0.2
    label_noise: Fraction = 0.0
    flat: bool = False
    seed: Annotated[int, Field(ge=0)] = 0

    def load(self) -> TrainingSet:
        """The samples, less the training pixels' mean and divided by their standard deviation."""
        bunch = load_digits()
        images = np.asarray(bunch.data, np.float64).reshape(
            (-1, 64) if self.flat else (-1, 1, 8, 8)
        )
        targets = np.asarray(bunch.target, np.int64)
        train, test = split(targets, self.test_share, stream(self.seed, "digits split"))
        inputs, test_inputs = standardised(images[train], images[test])
        labels = with_wrong_labels(
            targets[train], 10, self.label_noise, stream(self.seed, "digits wrong labels")
        )
        return TrainingSet(
            "digits", Samples(inputs, labels), Samples(test_inputs, targets[test]), 10
        )
