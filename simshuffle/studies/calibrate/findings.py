"""What the laws find: parameters, residuals, notes, and what each of them rests on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from typing_extensions import TypedDict

from simshuffle.studies.calibrate.fit import Floats, pooled_half_widths
from simshuffle.studies.calibrate.parameter import Over, Parameter, Points
from simshuffle.studies.calibrate.tables import RESIDUALS

COLUMNS = {
    "world_size": "ranks",
    "hosts": "hosts",
    "clients": "ranks",
    "local_batch_size": "batch",
    "message_size": "nbytes",
    "file_size": "nbytes",
}
"""The column of the measurements that has each quantity."""


@dataclass
class Findings:
    """What the laws have found so far."""

    parameters: list[Parameter] = field(default_factory=list)
    residuals: list[pd.DataFrame] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Take over what another law has found."""
        self.parameters += other.parameters
        self.residuals += other.residuals
        self.notes += other.notes


class Basis(TypedDict):
    """What a parameter rests on; as of `Parameter`."""

    over: Over
    residual: float
    rows: int
    source: str


def basis(rows: pd.DataFrame, residual: float, *over: str) -> Basis:
    """What rests on ``rows``, measured over the quantities ``over``."""
    spans = {name: span(rows[COLUMNS[name]]) for name in over}
    return {"over": spans, "residual": residual, "rows": len(rows), "source": sources(rows)}


def sources(rows: pd.DataFrame) -> str:
    """Files and tool of the rows, such as 'a.txt, b.txt (nccl-tests)'."""
    return f"{', '.join(dict.fromkeys(rows['source']))} ({', '.join(dict.fromkeys(rows['tool']))})"


def span(values: Any) -> tuple[float, float]:
    """Lowest and highest of some values."""
    return float(np.min(values)), float(np.max(values))


def for_people(parameter: Parameter, note: str, key: str = "") -> Parameter:
    """The same for people only, with the reason; under another name if ``key`` gives one."""
    return replace(parameter, usable=False, note=note, key=key or parameter.key)


def sentences(*notes: str) -> str:
    """Those notes that say something, as one."""
    return "; ".join(filter(None, notes))


def residuals(
    rows: pd.DataFrame, law: str, unit: str, measured: Floats, fitted: Floats, used: Any = True
) -> pd.DataFrame:
    """A table `RESIDUALS`; ``rows`` gives the columns that it has in common with the
    measurements."""
    relative = fitted / measured - 1
    out = rows.assign(
        law=law, unit=unit, measured=measured, fitted=fitted, relative=relative, used=used
    )
    return out[list(RESIDUALS.columns)].reset_index(drop=True)


def mean_error(measured: Floats, fitted: Floats | float) -> float:
    """Mean of \\|fitted / measured - 1\\|."""
    return float(np.abs(fitted / measured - 1).mean())


class LogCurve(NamedTuple):
    """Points of a curve with the ends of their intervals (None where the rows are too few), and the
    mean relative error of the rows about them."""

    points: Points
    low: Points | None
    high: Points | None
    error: float


def log_curve(x: Floats, y: Floats) -> LogCurve:
    """A point for each distinct ``x``: the geometric mean of its ``y``.

    The spread of the logarithms within a place, pooled over all places, gives the intervals (t
    distribution, rows - places degrees of freedom).

    Args:
        x, y: (n,) positive.
    """
    logs = np.log(y)
    places, index, counts = np.unique(x, return_inverse=True, return_counts=True)
    means = np.bincount(index, logs) / counts
    left = logs - means[index]
    half = pooled_half_widths(left, counts)

    def points(values: Floats) -> Points:
        return tuple(zip(places.tolist(), np.exp(values).tolist(), strict=True))

    known = bool(np.isfinite(half).all())
    low, high = (points(means + sign * half) if known else None for sign in (-1, 1))
    return LogCurve(points(means), low, high, float(np.abs(np.expm1(-left)).mean()))
