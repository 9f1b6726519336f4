"""A network of the caller's: a module that a program gives, which a study only names."""

from __future__ import annotations

from typing import Literal

from torch import nn

from simshuffle.errors import InputError, Problem
from simshuffle.spec.record import Spec


class OwnModel(Spec):
    """What `simshuffle.train.train_study` was given to train, and by what.

    Attributes:
        name: for tables and figures.
        version: that the caller gives; changed where the code changes.
        loss: name of the loss.
        optimizer: name of the optimiser.
        has_batch_norm: whether the network has layers of batch norm.
    """

    kind: Literal["own"]
    name: str
    version: str = ""
    loss: str = "cross_entropy"
    optimizer: str = "SGD"
    has_batch_norm: bool = True

    @property
    def label(self) -> str:
        """In words: its name."""
        return self.name

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Nothing: a file has no module of the caller's.

        Raises:
            InputError: always.
        """
        remedy = "Call simshuffle.train.train_study with it."
        raise InputError(Problem("model", "must be given from Python", self.name, remedy), "study")
