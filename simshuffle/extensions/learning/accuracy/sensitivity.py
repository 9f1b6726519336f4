"""How much accuracy networks lose for what their statistics rest on: measured values, and what is
expected of a network that nobody measured.

A strategy loses c (1/n - 1/n of global shuffle) points. c was measured, network by network and set
by set (`sensitivity.csv`). Of one that is not in the table, log c is taken as drawn from the same
normal distribution as those of the table that normalise alike and have layers of the same kind (a
convolution normalises over many places of a sample, and loses far less); of each network the mean
over its data sets counts. The interval is the prediction interval of random effects, mean ± t
sqrt(tau^2 + s^2), with t of as many degrees of freedom as there are networks less one, tau^2 by
DerSimonian and Laird (Controlled Clinical Trials 7, 1986), s the error of the mean (Higgins,
Thompson and Spiegelhalter, J. R. Statist. Soc. A 172, 2009, have one degree less).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field, model_validator
from scipy import stats

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.extensions.learning.accuracy.tables import SENSITIVITY
from simshuffle.spec.record import Count, NonNegative, Spec
from simshuffle.spec.validation import validate_record

Norm = Literal["batch", "group", "layer", "none"]
LEVEL = 0.90
"""Of every interval."""
NORMAL = float(stats.norm.ppf(0.5 + LEVEL / 2))
MEASURED_AT = 0.1
"""Momentum of the running statistics in all rows of the table, PyTorch's."""
TABLE = Path(__file__).with_name("sensitivity")
RANGES = {
    "ranks": ("ranks_low", "ranks_high"),
    "samples a rank": ("samples_low", "samples_high"),
    "n": ("n_low", "n_high"),
    "local batch": ("local_batch", "local_batch"),
}
"""What was tried, and the columns that say from where to where."""


@dataclass(frozen=True)
class Sensitivity:
    """What a network loses."""

    model: str
    norm: Norm
    c: float  # points; 0 without batch norm
    # low, high: the 90 % interval of c
    low: float
    high: float
    rms: float  # points that settings lie beside the curve
    basis: str  # what it rests on, in words
    known: bool  # whether this network was measured
    tried: Mapping[str, tuple[float, float]]  # least and most of what was tried, by `RANGES`
    momentum: float  # of the running statistics when it was measured

    def lost(
        self, less: float, least: float | None = None, most: float | None = None
    ) -> tuple[float, float, float]:
        """Points lost and their 90 % interval where 1/n is ``less`` more than under global shuffle,
        from ``least`` to ``most``. Three errors are taken as independent, and added as squares on
        either side: that of c, of n, and how far settings lie beside the curve."""
        ends = sorted((self.low * less, self.high * less))
        middle, beside = self.c * less, NORMAL * self.rms
        of_n = [self.c * abs((less if end is None else end) - less) for end in (least, most)]
        down = math.hypot(middle - ends[0], of_n[0], beside)
        up = math.hypot(ends[1] - middle, of_n[1], beside)
        return middle, middle - down, middle + up

    def plain(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "tried": {key: list(of) for key, of in self.tried.items()}}


def table() -> pd.DataFrame:
    """All that was measured: the columns of `SENSITIVITY`."""
    found = SENSITIVITY.read(TABLE)
    assert isinstance(found, pd.DataFrame)  # noqa: S101 - a CSV file
    return found


FEWEST = 3
"""Networks with layers of a kind that suffice for one more of them."""


def of_network(
    rows: pd.DataFrame, model: str, norm: Norm, data: str = "", layers: str = ""
) -> Sensitivity:
    """The sensitivity of a network that normalises by ``norm``, from rows of `table`: its own row
    of that data set, else its own rows, else those of networks of that norm, with ``layers`` of the
    same kind if there are `FEWEST` of them.

    Without batch norm there are no running statistics: 0 points are expected, and what was measured
    of such networks says how far from that they came.

    Raises:
        InputError: nothing was measured of such networks, or too little for an interval.
    """
    if norm != "batch":
        return _without(rows, model, norm)
    alike = rows[rows["norm"] == norm]
    own = alike[alike["model"] == model]
    exact, similar = own[own["data"] == data], alike[alike["layers"] == layers]
    similar = similar if similar["model"].nunique() >= FEWEST else alike
    chosen = exact if len(exact) else own if len(own) else similar
    c, low, high = pooled(chosen if len(own) else _by_network(chosen), single=bool(len(own)))
    count = f"{len(chosen)} sensitivities" if len(chosen) > 1 else "the sensitivity"
    networks = "; ".join(of.replace(", ", " with ") for of in sorted(set(chosen["model"])))
    whose = f"{model} itself" if len(own) else f"other networks with batch norm ({networks})"
    basis = f"{count} measured in trainings of {whose}"
    rms = _rms(chosen)
    return Sensitivity(
        model, norm, c, low, high, rms, basis, len(own) > 0, _tried(chosen), MEASURED_AT
    )


def _by_network(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each network: the mean over its data sets of log c and its ends."""
    made = []
    for model, of in rows.groupby("model", sort=False):
        means = np.log(of[["c", "c_low", "c_high"]].to_numpy(float)).mean(axis=0)
        made.append([model, *np.exp(means).tolist()])
    return pd.DataFrame(made, columns=["model", "c", "c_low", "c_high"])


def _without(rows: pd.DataFrame, model: str, norm: Norm) -> Sensitivity:
    others = rows[rows["norm"] != "batch"]
    same = others[others["norm"] == norm]
    chosen = same if len(same) else others
    if not len(chosen):
        rule = "needs a network without batch norm in the table"
        refuse("--norm", rule, norm, "Give --screening FILE.", "sensitivity.csv")
    known = bool((chosen["model"] == model).any())
    names = ", ".join(
        sorted({f"{m} ({n})" for m, n in zip(chosen["model"], chosen["norm"], strict=True)})
    )
    basis = f"the scatter of {names}, as there are no running statistics"
    return Sensitivity(
        model, norm, 0.0, 0.0, 0.0, _rms(chosen), basis, known, _tried(chosen), MEASURED_AT
    )


def pooled(rows: pd.DataFrame, *, single: bool = False) -> tuple[float, float, float]:
    """c and its 90 % interval: where there is one row its own, if a ``single`` one will do; else
    the prediction interval for one more network or data set. Raises an InputError of fewer than two
    rows that must be pooled."""
    logs = np.log(rows["c"].to_numpy(float))
    ends = np.log(rows[["c_low", "c_high"]].to_numpy(float))
    errors = np.nan_to_num((ends[:, 1] - ends[:, 0]) / (2 * NORMAL))
    if len(logs) == 1 and single:
        c = float(rows["c"].iloc[0])
        low, high = (float(rows[of].iloc[0]) for of in ("c_low", "c_high"))
        return c, c if math.isnan(low) else low, c if math.isnan(high) else high
    if len(logs) < 2:
        rule = "needs two rows of networks with batch norm, for an interval"
        remedy = "Give --screening FILE, of your own network."
        refuse("--model", rule, f"{len(logs)}", remedy, "sensitivity.csv")
    mean, error, spread = _random_effects(logs, errors)
    reach = float(stats.t.ppf(0.5 + LEVEL / 2, len(logs) - 1)) * math.hypot(error, spread)
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def _random_effects(
    values: np.ndarray[Any, Any], errors: np.ndarray[Any, Any]
) -> tuple[float, float, float]:
    """Mean of effects that differ, its standard error, and their standard deviation (DerSimonian
    and Laird). Where a row has no error, nothing is taken out of their spread."""
    count = len(values)
    if not errors.all():
        spread = float(values.std(ddof=1))
        return float(values.mean()), spread / math.sqrt(count), spread
    weight = errors**-2.0
    fixed = float((weight * values).sum() / weight.sum())
    q = float((weight * (values - fixed) ** 2).sum())
    scale = float(weight.sum() - (weight**2).sum() / weight.sum())
    square = max(0.0, (q - (count - 1)) / scale)
    weight = 1.0 / (errors**2 + square)
    mean = float((weight * values).sum() / weight.sum())
    return mean, float(weight.sum()) ** -0.5, math.sqrt(square)


def _rms(rows: pd.DataFrame) -> float:
    """Root of the mean square over rows."""
    return float(np.sqrt(np.mean(rows["rms"].to_numpy(float) ** 2)))


def _tried(rows: pd.DataFrame) -> dict[str, tuple[float, float]]:
    found = {
        name: (float(rows[low].min()), float(rows[high].max()))
        for name, (low, high) in RANGES.items()
    }
    return {name: ends for name, ends in found.items() if not math.isnan(sum(ends))}


# ------------------------------------------------------------------------------ a screening


class ScreenedPoint(Spec):
    """A setting of a screening."""

    n: Annotated[float, Field(gt=0)]  # samples that statistics rested on
    # loss_points, low, high: points lost against global shuffle, and their interval; None of one
    # draw
    loss_points: float
    low: float | None
    high: float | None


class MeasuredScreening(Spec):
    """What `simshuffle.train.screen` measured of a network: c with its 90 % interval."""

    model: Annotated[str, Field(min_length=1)]
    data: str
    norm: Norm
    momentum: Annotated[float, Field(gt=0, le=1)]
    local_batch: Count
    curve: Annotated[list[ScreenedPoint], Field(min_length=2)]
    # c_points, c_low, c_high: points; and points that settings lie beside the curve
    c_points: float
    c_low: float
    c_high: float
    rms: NonNegative

    @model_validator(mode="after")
    def _in_order(self) -> MeasuredScreening:
        if not self.c_low <= self.c_points <= self.c_high:
            raise ValueError("c_points must be from c_low to c_high")
        return self


def screened(path: Path) -> MeasuredScreening:
    """The screening in a file; an InputError if there is none, it is cut off or of another shape.
    Keys that are not known are left out."""
    remedy = "Give the file that simshuffle.train.screen wrote, whole."
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        refuse("--screening", "must be a screening in JSON", str(error)[:80], remedy, str(path))
    if not isinstance(found, dict):
        refuse("--screening", "must be a screening in JSON", repr(found)[:60], remedy, str(path))
    return screening_of(
        {key: of for key, of in found.items() if key in MeasuredScreening.model_fields}, str(path)
    )


def screening_of(values: Mapping[str, Any], source: str) -> MeasuredScreening:
    """The screening of plain values; an InputError as of `screened`."""
    made, problems = validate_record(dict(values), MeasuredScreening)
    if made is None or problems:
        remedy = "Give the file that simshuffle.train.screen wrote, whole."
        raise InputError([_named(each, remedy) for each in problems], source)
    return made


def _named(problem: Problem, remedy: str) -> Problem:
    return Problem(f"--screening {problem.path}".strip(), problem.rule, problem.value, remedy)


TRAINED = (0.8, 1.5, 3.0)
"""How many times the loss that a screening says trainings lose: 90 % low, middle, high. Of ten
comparisons (docs/accuracy.md: five on procedural images, five on Fashion-MNIST) the mean of the
logs, and the t-interval of one more. Weights that have seen fewer steps are more sensitive."""


def _trained(found: MeasuredScreening) -> tuple[float, float, float]:
    """c of a training and its 90 % interval: both errors as squares."""
    low, c, high = sorted(factor * found.c_points for factor in TRAINED)
    error = (c - TRAINED[1] * found.c_low, TRAINED[1] * found.c_high - c)
    return c, c - math.hypot(c - low, error[0]), c + math.hypot(high - c, error[1])


def of_screening(found: MeasuredScreening, momentum: float, norm: Norm | None) -> Sensitivity:
    """The sensitivity that a screening found, times what trainings lose of that, `TRAINED`; an
    InputError if it was of another momentum, or of a network that normalises otherwise than is
    said."""
    if not math.isclose(found.momentum, momentum, rel_tol=1e-6):
        rule = f"must be of the momentum that is asked about, {momentum:g}"
        remedy = f"Add --momentum {found.momentum:g}, or screen again."
        refuse("--screening", rule, f"{found.momentum:g}", remedy, "screening")
    if norm is not None and norm != found.norm:
        rule = f"must be of a network with the norm that is asked about, {norm}"
        refuse("--screening", rule, found.norm, "Leave --norm out.", "screening")
    tried: dict[str, tuple[float, float]] = {"local batch": (found.local_batch, found.local_batch)}
    if found.norm == "batch":
        numbers = [each.n for each in found.curve]
        tried["n"] = min(numbers), max(numbers)
        c = _trained(found)
        basis = f"a screening of {found.model} on {found.data}, {len(numbers)} settings"
    else:
        c = 0.0, 0.0, 0.0
        basis = f"the scatter of a screening of {found.model}, without running statistics"
    return Sensitivity(found.model, found.norm, *c, found.rms, basis, True, tried, found.momentum)
