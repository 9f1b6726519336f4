"""Data sets that are made or come with a package. A new one is added to the union at
the end.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError
from sklearn.datasets import load_digits, make_classification

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64
from simshuffle.spec.record import Count, Fraction, NonNegative, Spec, whole_as_float
from simshuffle.spec.rng import stream
from simshuffle.train.data_files import Cifar10, Cifar100, ImageFolder
from simshuffle.train.data_idx import FashionMnist, Idx
from simshuffle.train.samples import (
    MOST_NBYTES,
    Augmentation,
    Samples,
    TestShare,
    TrainingSet,
    balanced_labels,
    check_memory,
    long_tailed_labels,
    replace_labels,
    split_samples,
    standardise,
)

STEPS = 16
"""Positions between two values that an image is interpolated from; few enough that sums
of squares stay exact in 64 bits.
"""


class Procedural(Spec):
    """Random images: a class has one or more smooth templates, and a sample is a
    template, shifted, with another contrast, and with noise.

    Sizes, templates, shifts and labels are integers, and every further step is one
    correctly rounded operation. So two machines get the same bytes if they get the same
    numbers from numpy's generators.

    Attributes:
        num_samples: of the training part.
        test_samples: of the test part, in which classes and their images are equally
            frequent. It depends on none of ``num_samples``, ``label_noise``,
            ``imbalance`` and ``rare_share``.
        classes: number of labels. More of them are harder.
        image_size: pixels along a side.
        channels: of an image.
        prototypes: images that each class consists of; with more than one, a class is
            no longer one cluster.
        detail: random values along a side, between which an image is interpolated;
            fewer make smoother images.
        shift: largest shift along each axis in pixels; images wrap around.
        contrast: a sample's contrast is drawn from 1 - contrast to 1 + contrast.
        noise: standard deviation of a pixel's noise, where images themselves have
            standard deviation 1. More of it is harder.
        label_noise: share of the training labels that are replaced by a wrong one; test
            labels are always right.
        imbalance: how many times as many training samples the first class has as the
            last; in between they fall from class to class by the same factor, a long
            tail. 1 makes classes equally frequent, to within one sample.
        rare_share: share of the training samples that show another image of their class
            than its first: groups that are rare in training, and as frequent as others
            in the test. None shows all images equally often. It needs several
            ``prototypes``.
        flat: vectors; otherwise images of shape (channels, image_size, image_size).
        seed: of everything that is drawn.
    """

    label: ClassVar[str] = "synthetic images"
    kind: Literal["procedural"]
    num_samples: Count = 16384
    test_samples: Count = 4096
    classes: Annotated[int, Field(ge=2, le=100_000)] = 32
    image_size: Annotated[int, Field(ge=2, le=1024)] = 8
    channels: Annotated[int, Field(ge=1, le=64)] = 1
    prototypes: Annotated[int, Field(ge=1, le=1000)] = 1
    detail: Annotated[int, Field(ge=2, le=1024)] = 4
    shift: Annotated[int, Field(ge=0, le=1024)] = 1
    contrast: Fraction = 0.5
    noise: NonNegative = 1.25
    label_noise: Fraction = 0.0
    imbalance: Annotated[
        float, BeforeValidator(whole_as_float), Field(ge=1, le=1e6)
    ] = 1.0
    rare_share: Fraction | None = None
    flat: bool = False
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _check_sizes(self) -> Procedural:
        """Refuse more detail than pixels, and rare images without several prototypes."""
        if self.detail > self.image_size:
            raise PydanticCustomError("detail", "detail must not exceed image_size")
        if self.rare_share is not None and self.prototypes < 2:
            raise PydanticCustomError(
                "rare_share", "rare_share needs at least 2 prototypes"
            )
        return self

    def load(self) -> TrainingSet:
        """Return the samples, float32, divided by the standard deviation of signal and
        noise together.

        Inputs are (n, channels, image_size, image_size), or vectors if ``flat``. The
        augmentation of the set has the same shift, contrast and noise.

        Raises:
            InputError: if samples or templates would take more than 8 GB.
        """
        pixels = self.channels * self.image_size**2
        nbytes = 4 * pixels * (self.num_samples + self.test_samples)
        remedy = "Lower num_samples, test_samples, channels or image_size."
        check_memory(nbytes, MOST_NBYTES, "num_samples", "data", remedy)
        template_nbytes = 8 * pixels * self.classes * self.prototypes
        remedy = "Lower classes or prototypes."
        check_memory(template_nbytes, MOST_NBYTES, "classes", "data", remedy)

        templates = self._templates(stream(self.seed, "procedural templates"))
        rng = stream(self.seed, "procedural train")
        labels = long_tailed_labels(self.num_samples, self.classes, self.imbalance, rng)
        train = self._samples(templates, labels, self.rare_share, rng)
        rng = stream(self.seed, "procedural test")
        labels = balanced_labels(self.test_samples, self.classes, rng)
        test = self._samples(templates, labels, None, rng)
        rng = stream(self.seed, "procedural wrong labels")
        labels = replace_labels(train.targets, self.classes, self.label_noise, rng)
        shape = (self.channels, self.image_size, self.image_size)
        augmentation = Augmentation(shape, self.shift, self.contrast, self.noise)
        return TrainingSet(
            "procedural",
            Samples(train.inputs, labels),
            test,
            self.classes,
            augmentation=augmentation,
        )

    def _templates(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Draw the images of the classes, of mean 0 and standard deviation 1.

        Returns:
            (classes, prototypes, channels, image_size, image_size)
        """
        shape = (self.classes, self.prototypes, self.channels, self.detail, self.detail)
        coarse = rng.integers(-128, 128, shape)
        # an image of one value gets another one, so that its deviation is above 0
        is_constant = (coarse == coarse[..., :1, :1]).all((-1, -2))
        coarse[..., 0, 0] = np.where(
            is_constant, coarse[..., 0, 0] + 1, coarse[..., 0, 0]
        )
        by_column = _interpolate(coarse, self.image_size).swapaxes(-1, -2)
        fine = _interpolate(by_column, self.image_size).swapaxes(-1, -2)
        axes = (-3, -2, -1)
        count = self.channels * self.image_size**2
        mean = (
            fine.sum(axes, keepdims=True) / count
        )  # sums of integers are the same in any order
        variance = (fine * fine).sum(axes, keepdims=True) / count - mean * mean
        return np.asarray((fine - mean) / np.sqrt(variance), np.float32)

    def _samples(
        self,
        templates: NDArray[np.float32],
        labels: Ints64,
        rare_share: float | None,
        rng: np.random.Generator,
    ) -> Samples:
        """Draw samples of these labels, 4096 at once: drawing takes several times their
        memory. Arguments are those of `_images`; inputs are vectors if ``flat``.
        """
        count = len(labels)
        inputs = np.empty(
            (count, self.channels, self.image_size, self.image_size), np.float32
        )
        for first in range(0, count, 4096):
            inputs[first : first + 4096] = self._images(
                templates, labels[first : first + 4096], rare_share, rng
            )
        return Samples(inputs.reshape(count, -1) if self.flat else inputs, labels)

    def _images(
        self,
        templates: NDArray[np.float32],
        labels: Ints64,
        rare_share: float | None,
        rng: np.random.Generator,
    ) -> NDArray[np.float32]:
        """Draw the images of a piece of the samples: (n, channels, image_size,
        image_size).

        Args:
            templates: of the classes, from `_templates`.
            labels: (n,) of the samples.
            rare_share: expected share of samples that show another image than the
                first; None for equal shares of all images.
            rng: that draws.
        """
        count = len(labels)
        if rare_share is None:
            prototype = rng.integers(0, self.prototypes, count)
        else:
            is_rare = rng.random(count) < rare_share
            prototype = is_rare * rng.integers(1, self.prototypes, count)
        shifts = rng.integers(-self.shift, self.shift + 1, (2, count, 1))
        contrast = (1 + self.contrast * (2 * rng.random(count) - 1)).astype(np.float32)
        noise = rng.standard_normal(
            (count, self.channels, self.image_size, self.image_size), dtype=np.float32
        )
        # (n, image_size) each: where the rows and columns of each image come from
        rows, columns = (np.arange(self.image_size) + shifts) % self.image_size
        images = templates[labels, prototype]
        images = np.take_along_axis(images, rows[:, None, :, None], axis=2)
        images = np.take_along_axis(images, columns[:, None, None, :], axis=3)
        deviation = np.float32(np.sqrt(1 + self.noise * self.noise))
        signal = images * contrast[:, None, None, None]
        return np.asarray((signal + noise * np.float32(self.noise)) / deviation)


def _interpolate(coarse: Ints64, size: int) -> Ints64:
    """Interpolate linearly along the last axis to ``size`` values, which wraps around.

    In integers, STEPS times too large.
    """
    detail = coarse.shape[-1]
    # value k lies at k detail / size: after value ``index``, by ``weight`` STEPS-ths
    index, weight = np.divmod(np.arange(size) * detail * STEPS // size, STEPS)
    return np.asarray(
        coarse[..., index] * (STEPS - weight)
        + coarse[..., (index + 1) % detail] * weight
    )


class Classification(Spec):
    """Vectors, as `sklearn.datasets.make_classification` makes them (Guyon, 2003); its
    names in brackets.

    Attributes:
        num_samples, test_samples: of the two parts; drawn together, so both share the
            clusters.
        features: values of a vector (n_features).
        informative: of them, those that the clusters differ in (n_informative).
        redundant: of them, random combinations of the informative ones (n_redundant);
            the rest is noise.
        classes: number of labels (n_classes).
        clusters_per_class: Gaussian clusters that a class consists of
            (n_clusters_per_class).
        separation: half the side of the hypercube (class_sep). Less of it is harder.
        label_noise: share of the training labels that are replaced by a wrong one; test
            labels are always right.
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
    def _check_counts(self) -> Classification:
        """Refuse more features or clusters than there is room for."""
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
        """Return the samples, each feature less its mean, over its standard deviation,
        both of the training part.

        Inputs are (n, features) float32. A constant feature is divided by 1.

        Raises:
            InputError: if they would take more than 8 GB.
        """
        count = self.num_samples + self.test_samples
        remedy = "Lower num_samples, test_samples or features."
        check_memory(
            8 * count * self.features, MOST_NBYTES, "num_samples", "data", remedy
        )
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
        train, test = standardise(
            inputs[: self.num_samples], inputs[self.num_samples :], by_feature=True
        )
        targets = np.asarray(targets, np.int64)
        rng = stream(self.seed, "classification wrong labels")
        labels = replace_labels(
            targets[: self.num_samples], self.classes, self.label_noise, rng
        )
        return TrainingSet(
            "classification",
            Samples(train, labels),
            Samples(test, targets[self.num_samples :]),
            self.classes,
        )


class Digits(Spec):
    """The test set of the UCI Optical Recognition of Handwritten Digits Data Set
    (Alpaydin and Kaynak, 1998).

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
        """Return the samples, less the mean of all training pixels together, divided by
        their standard deviation: float32.
        """
        bunch = load_digits()
        images = np.asarray(bunch.data, np.float64).reshape(
            (-1, 64) if self.flat else (-1, 1, 8, 8)
        )
        targets = np.asarray(bunch.target, np.int64)
        train, test = split_samples(
            targets, self.test_share, stream(self.seed, "digits split")
        )
        inputs, test_inputs = standardise(images[train], images[test])
        labels = replace_labels(
            targets[train],
            10,
            self.label_noise,
            stream(self.seed, "digits wrong labels"),
        )
        return TrainingSet(
            "digits", Samples(inputs, labels), Samples(test_inputs, targets[test]), 10
        )


class OwnData(Spec):
    """The data of a caller of `simshuffle.train.train_study`, by name.

    Attributes:
        name: for tables and figures.
        version: that the caller gives; changed where the samples change.
    """

    kind: Literal["own"]
    name: str
    version: str = ""

    @property
    def label(self) -> str:
        """The name."""
        return self.name

    def load(self) -> TrainingSet:
        """Raise InputError: a file has no samples of the caller's."""
        remedy = "Pass the data to simshuffle.train.train_study."
        refuse("data", "must be given from Python", self.name, remedy, "study")


Data = Annotated[
    Digits
    | Procedural
    | Classification
    | Cifar10
    | Cifar100
    | FashionMnist
    | Idx
    | ImageFolder
    | OwnData,
    Field(discriminator="kind"),
]
