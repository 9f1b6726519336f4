"""What every network of a study answers."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from simshuffle.errors import InputError, Problem

SMALLEST_SIDE = 8
"""Pixels: the convolutional networks halve an image twice."""


class Network(Protocol):
    """A record of a study that can be built. Its last layer is linear and named ``head``; what goes
    into it are the features."""

    @property
    def kind(self) -> str:
        """Its name."""

    @property
    def label(self) -> str:
        """What it is in words, for figures: 'two-layer network'."""

    @property
    def has_batch_norm(self) -> bool:
        """Whether it has layers of batch norm."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for samples of ``shape`` ((features,) or (channels, height, width)); weights
        drawn from torch's global generator.

        Raises:
            InputError: it cannot take samples of that shape.
        """


def image_shape(shape: tuple[int, ...], kind: str) -> tuple[int, int, int]:
    """``shape`` as (channels, height, width).

    Raises:
        InputError: it is not that of an image of at least 8 x 8 pixels.
    """
    if len(shape) != 3 or min(shape[1:]) < SMALLEST_SIDE:
        rule = (
            f"{kind} takes images (channels, height, width) of at least {SMALLEST_SIDE} x"
            f" {SMALLEST_SIDE} pixels"
        )
        raise InputError(
            Problem("model", rule, f"samples of shape {shape}", "Use model mlp, or other data."),
            "training",
        )
    return shape
