"""The facts that ``meta.json`` of an accuracy study holds for its figure and texts."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

Amount = Annotated[float, Field(ge=0, le=1e100)]
Norm = Literal["batch", "group", "layer", "none"]


class AccuracyQuestion(TypedDict):
    """The options that the user asked with."""

    model: str | None  # the network; None for the scenario's
    norm: Norm | None  # what the network normalises by; None where the user did not say
    momentum: Annotated[float, Field(gt=0, le=1)]  # m of the running statistics
    epochs: Annotated[int, Field(ge=1)]  # epochs of the training
    tolerance: Amount  # points of accuracy that may be lost
    screening: dict[str, Any] | None  # a `MeasuredScreening` as plain values
    exact: NotRequired[bool]  # whether all remedies are simulated


class SensitivityFacts(TypedDict):
    """The sensitivity that the losses were computed with.

    The fields of `simshuffle.extensions.learning.accuracy.sensitivity.Sensitivity`.
    """

    model: str  # name of the network
    norm: Norm  # what the network normalises by
    c: float  # points lost for each 1/n more than under global shuffle
    # low, high: the 90 % interval of c
    low: float
    high: float
    rms: Amount  # points that settings lie beside the curve (root mean square)
    basis: str  # the measurements behind c, in words
    known: bool  # whether this network was measured
    tried: dict[str, list[float]]  # least and most tried value of each input
    momentum: float  # momentum of the running statistics in the measurements


class AccuracyFindings(TypedDict):
    """Facts of the study that its tables do not hold."""

    scenario: str  # name of the scenario
    timed: str  # network whose steps are timed
    importance: bool  # whether a strategy selects by importance
    settings: int  # rows of settings.csv
    remedies: int  # rows of remedies.csv
    # whether it is known what the network normalises by
    norm_is_known: NotRequired[bool]


class AccuracyFacts(TypedDict):
    """The facts that the sentences of an accuracy study are built from."""

    asked: AccuracyQuestion
    sensitivity: SensitivityFacts
    accuracy: AccuracyFindings
