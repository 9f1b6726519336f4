"""Accuracy lost against global shuffle, over the number of samples that a rank's statistics rest
on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.studies.training.tables import CONDITION

FEWEST = 3
"""Settings that a curve is fitted to, at least."""


@dataclass(frozen=True)
class Curve:
    """The loss c (1/n - 1/n of global shuffle), fitted by least squares.

    Attributes:
        settings: that it was fitted to.
        slope: c, share of accuracy times samples.
        residual: root of the mean square of what it leaves of the losses, share of accuracy.
        spread: the same of the losses themselves.
        worst: of `losses`, the row that it misses by most.
        miss: by how much this row loses more than the curve says, share of accuracy.
    """

    settings: int
    slope: float
    residual: float
    spread: float
    worst: Mapping[Any, Any]
    miss: float


def losses(settings: pd.DataFrame) -> pd.DataFrame:
    """The settings that a rank's own statistics were evaluated in, global shuffle of the same
    condition beside them.

    Args:
        settings: rows of summary.csv.

    Returns:
        Those rows, with the columns loss, loss_low, loss_high (accuracy of global shuffle less that
        of the setting, pairs of seeds; 0 and empty for global shuffle itself) and
        global_effective_samples.
    """
    own = settings[(settings["statistics"] == "own") & settings["effective_samples"].notna()]
    reference = own.loc[own["strategy"] == "global", [*CONDITION, "effective_samples"]]
    rows = own.merge(
        reference.rename(columns={"effective_samples": "global_effective_samples"}),
        on=list(CONDITION),
    )
    itself = rows["strategy"] == "global"
    rows = rows.assign(
        loss=(-rows["global_difference"]).mask(itself, 0.0),
        loss_low=-rows["global_high"],
        loss_high=-rows["global_low"],
    )
    return rows[rows["loss"].notna()]


def curve(rows: pd.DataFrame) -> Curve | None:
    """The curve of `losses`; None where fewer than `FEWEST` settings differ from global shuffle, or
    all rest on as many samples as it."""
    others = rows[rows["strategy"] != "global"]
    x = 1.0 / others["effective_samples"] - 1.0 / others["global_effective_samples"]
    y = others["loss"]
    if len(others) < FEWEST or not (square := float((x * x).sum())) > 0.0:
        return None
    slope = float((x * y).sum()) / square
    missed = (y - slope * x).to_numpy(float)
    worst = int(np.abs(missed).argmax())
    return Curve(
        len(others),
        slope,
        math.sqrt(float(np.mean(missed**2))),
        math.sqrt(float(np.mean(y**2))),
        others.to_dict("records")[worst],
        float(missed[worst]),
    )
