"""Data sets to train on, one file each. To add one, write a file and add it to the union."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simshuffle.train.data.base import Augmentation, DataSource, OwnData, Samples, TrainingSet
from simshuffle.train.data.cifar import Cifar10, Cifar100
from simshuffle.train.data.classification import Classification
from simshuffle.train.data.digits import Digits
from simshuffle.train.data.image_folder import ImageFolder
from simshuffle.train.data.procedural import Procedural

Data = Annotated[
    Digits | Procedural | Classification | Cifar10 | Cifar100 | ImageFolder | OwnData,
    Field(discriminator="kind"),
]

__all__ = [
    "Augmentation",
    "Cifar10",
    "Cifar100",
    "Classification",
    "Data",
    "DataSource",
    "Digits",
    "ImageFolder",
    "OwnData",
    "Procedural",
    "Samples",
    "TrainingSet",
]
