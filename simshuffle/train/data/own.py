"""Data of the caller's: torch data sets that a program gives, which a study only names."""

from __future__ import annotations

from typing import Literal

from simshuffle.errors import refuse
from simshuffle.spec.record import Spec
from simshuffle.train.data.base import TrainingSet


class OwnData(Spec):
    """What `simshuffle.train.train_study` was given to train on.

    Attributes:
        name: for tables and figures.
        version: that the caller gives; changed where the samples change.
    """

    kind: Literal["own"]
    name: str
    version: str = ""

    @property
    def label(self) -> str:
        """In words: its name."""
        return self.name

    def load(self) -> TrainingSet:
        """Nothing: a file has no samples of the caller's.

        Raises:
            InputError: always.
        """
        remedy = "Call simshuffle.train.train_study with it."
        refuse("data", "must be given from Python", self.name, remedy, "study")
