"""What ``meta.json`` of an accuracy holds for figure and texts."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

Amount = Annotated[float, Field(ge=0, le=1e100)]
Norm = Literal["batch", "group", "layer", "none"]


class AccuracyQuestion(TypedDict):
    """What was asked."""

    model: str | None
    norm: Norm | None
    momentum: Annotated[float, Field(gt=0, le=1)]
    epochs: Annotated[int, Field(ge=1)]
    tolerance: Amount
    screening: dict[str, Any] | None
    exact: NotRequired[bool]


class OfNetwork(TypedDict):
    """The sensitivity that was used:
    `simshuffle.extensions.learning.accuracy.sensitivity.Sensitivity`."""

    model: str
    norm: Norm
    c: float
    low: float
    high: float
    rms: Amount
    basis: str
    known: bool
    tried: dict[str, list[float]]
    momentum: float


class AccuracyFindings(TypedDict):
    """What was found beside the tables."""

    scenario: str
    timed: str
    importance: bool
    settings: int
    remedies: int
    norm_is_known: NotRequired[bool]


class AccuracyFacts(TypedDict):
    """All of it."""

    asked: AccuracyQuestion
    sensitivity: OfNetwork
    accuracy: AccuracyFindings
