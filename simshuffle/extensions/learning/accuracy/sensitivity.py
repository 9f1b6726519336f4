"""The accuracy that networks lose where their statistics rest on fewer samples.

Values are measured; those of a network that nobody measured are predicted.

A strategy loses c (1/n - 1/n of global shuffle) points. c was measured, network by
network and set by set (`sensitivity.csv`). Of one that is not in the table, log c is
taken as drawn from the same normal distribution as those of the table that normalise
alike and have layers of the same kind (a convolution normalises over many places of a
sample, and loses far less); of each network the mean over its data sets counts. The
interval is the prediction interval of random effects, mean ± t sqrt(tau^2 + s^2), with
t of as many degrees of freedom as there are networks less one, tau^2 by DerSimonian and
Laird (Controlled Clinical Trials 7, 1986), s the error of the mean (Higgins, Thompson
and Spiegelhalter, J. R. Statist. Soc. A 172, 2009, have one degree less).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

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
"""Confidence level of every interval."""
NORMAL_QUANTILE = float(stats.norm.ppf(0.5 + LEVEL / 2))
MEASURED_MOMENTUM = 0.1
"""Momentum of the running statistics in all rows of the table, PyTorch's."""
TABLE = Path(__file__).with_name("sensitivity")
RANGES = {
    "ranks": ("ranks_low", "ranks_high"),
    "samples a rank": ("samples_low", "samples_high"),
    "n": ("n_low", "n_high"),
    "local batch": ("local_batch", "local_batch"),
}
"""Inputs that were tried, and the columns with the least and the most of each."""


class LossEstimate(NamedTuple):
    """Percentage points of accuracy lost, below 0 gained, with their 90 % interval."""

    points: float  # expected loss
    low: float  # lower end of the interval
    high: float  # upper end of the interval


NO_LOSS = LossEstimate(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Sensitivity:
    """The sensitivity c of a network, with its interval and its origin."""

    model: str  # name of the network
    norm: Norm  # what the network normalises by
    c: float  # points; 0 without batch norm
    # low, high: the 90 % interval of c
    low: float
    high: float
    rms: float  # points that settings lie beside the curve (root mean square)
    basis: str  # the measurements behind c, in words
    known: bool  # whether this network was measured
    # least and most value of each input of `RANGES` of which both are known
    tried: Mapping[str, tuple[float, float]]
    momentum: float  # momentum of the running statistics in the measurements

    def expected_loss(
        self,
        extra_inverse: float,
        lowest: float | None = None,
        highest: float | None = None,
    ) -> LossEstimate:
        """Return the points lost and their 90 % interval.

        1/n is ``extra_inverse`` more than under global shuffle, from ``lowest`` to
        ``highest``; None for these stands for no error of n. Three errors are taken as
        independent, and added as squares on either side: that of c, that of n, and the
        distance of settings from the curve.
        """
        points = self.c * extra_inverse
        low, high = sorted((self.low * extra_inverse, self.high * extra_inverse))
        scatter = NORMAL_QUANTILE * self.rms
        errors_of_n = [
            self.c * abs((extra_inverse if bound is None else bound) - extra_inverse)
            for bound in (lowest, highest)
        ]
        down = math.hypot(points - low, errors_of_n[0], scatter)
        up = math.hypot(high - points, errors_of_n[1], scatter)
        return LossEstimate(points, points - down, points + up)

    def plain_values(self) -> dict[str, Any]:
        """Return the fields as plain values, as JSON holds them."""
        return {
            **asdict(self),
            "tried": {key: list(bounds) for key, bounds in self.tried.items()},
        }


def read_sensitivities() -> pd.DataFrame:
    """Read the measured sensitivities, a row for each network and data set.

    Columns are those of `SENSITIVITY`.
    """
    sensitivities = SENSITIVITY.read(TABLE)
    assert isinstance(sensitivities, pd.DataFrame)  # noqa: S101 - a CSV file
    return sensitivities


MIN_NETWORKS = 3
"""Least networks with layers of one kind from which another such network is predicted."""


def predict_sensitivity(
    rows: pd.DataFrame, model: str, norm: Norm, data: str = "", layers: str = ""
) -> Sensitivity:
    """Return the sensitivity of a network that normalises by ``norm``.

    ``rows`` are those of `read_sensitivities`. The network's own row of that data set
    counts, else its own rows, else those of other networks of that norm, only those
    with ``layers`` of one kind if there are `MIN_NETWORKS` of them. Each other network
    counts once, with the geometric mean over its data sets.

    Without batch norm there are no running statistics: 0 points are expected, and the
    scatter of the measurements of such networks is the error.

    Raises:
        InputError: nothing was measured of such networks, or too little for an
            interval.
    """
    if norm != "batch":
        return _sensitivity_without_norm(rows, model, norm)
    norm_rows = rows[rows["norm"] == norm]
    model_rows = norm_rows[norm_rows["model"] == model]
    is_known = len(model_rows) > 0
    if is_known:
        data_rows = model_rows[model_rows["data"] == data]
        chosen_rows = data_rows if len(data_rows) else model_rows
        networks = f"{model} itself"
        c, low, high = pool_sensitivities(chosen_rows, single=True)
    else:
        layer_rows = norm_rows[norm_rows["layers"] == layers]
        has_enough = layer_rows["model"].nunique() >= MIN_NETWORKS
        chosen_rows = layer_rows if has_enough else norm_rows
        names = [
            name.replace(", ", " with ") for name in sorted(set(chosen_rows["model"]))
        ]
        networks = f"other networks with batch norm ({'; '.join(names)})"
        c, low, high = pool_sensitivities(_means_of_networks(chosen_rows))

    count = (
        f"{len(chosen_rows)} sensitivities"
        if len(chosen_rows) > 1
        else "the sensitivity"
    )
    return Sensitivity(
        model=model,
        norm=norm,
        c=c,
        low=low,
        high=high,
        rms=_rms(chosen_rows),
        basis=f"{count} measured in trainings of {networks}",
        known=is_known,
        tried=_tried_ranges(chosen_rows),
        momentum=MEASURED_MOMENTUM,
    )


def _means_of_networks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each network: geometric means over its data sets.

    Columns are model, c, c_low, c_high.
    """
    means_of_models = []
    for model, model_rows in rows.groupby("model", sort=False):
        # rows: data sets; columns: logs of c, c_low, c_high; mean over rows
        means = np.log(model_rows[["c", "c_low", "c_high"]].to_numpy(float)).mean(
            axis=0
        )
        means_of_models.append([model, *np.exp(means).tolist()])
    return pd.DataFrame(means_of_models, columns=["model", "c", "c_low", "c_high"])


def _sensitivity_without_norm(
    rows: pd.DataFrame, model: str, norm: Norm
) -> Sensitivity:
    """Return the sensitivity, 0 with a scatter, of a network without batch norm.

    The scatter is of networks of that ``norm``, else of all without batch norm.
    """
    norm_free_rows = rows[rows["norm"] != "batch"]
    norm_rows = norm_free_rows[norm_free_rows["norm"] == norm]
    chosen_rows = norm_rows if len(norm_rows) else norm_free_rows
    if not len(chosen_rows):
        rule = "needs a network without batch norm in the table"
        refuse("--norm", rule, norm, "Give --screening FILE.", "sensitivity.csv")
    models_and_norms = zip(chosen_rows["model"], chosen_rows["norm"], strict=True)
    names = sorted({f"{name} ({kind})" for name, kind in models_and_norms})
    return Sensitivity(
        model=model,
        norm=norm,
        c=0.0,
        low=0.0,
        high=0.0,
        rms=_rms(chosen_rows),
        basis=f"the scatter of {', '.join(names)}, since there are no running statistics",
        known=bool((chosen_rows["model"] == model).any()),
        tried=_tried_ranges(chosen_rows),
        momentum=MEASURED_MOMENTUM,
    )


def pool_sensitivities(
    rows: pd.DataFrame, *, single: bool = False
) -> tuple[float, float, float]:
    """Return c and its 90 % interval from measured rows.

    One row gives its own interval, of no width where none is documented, if a
    ``single`` one will do. Several give the prediction interval for one more network or
    data set; the logs of c are pooled, equally weighted where one row has no interval.

    Raises:
        InputError: fewer than two rows must be pooled.
    """
    logs = np.log(rows["c"].to_numpy(float))
    log_bounds = np.log(rows[["c_low", "c_high"]].to_numpy(float))
    # standard errors of the logs: half the interval over its quantile; 0 where undocumented
    errors = np.nan_to_num(
        (log_bounds[:, 1] - log_bounds[:, 0]) / (2 * NORMAL_QUANTILE)
    )
    if len(logs) == 1 and single:
        c = float(rows["c"].iloc[0])
        low, high = (float(rows[column].iloc[0]) for column in ("c_low", "c_high"))
        return c, c if math.isnan(low) else low, c if math.isnan(high) else high
    if len(logs) < 2:
        rule = "needs two rows of networks with batch norm, for an interval"
        remedy = "Give --screening FILE, of your own network."
        refuse("--model", rule, f"{len(logs)}", remedy, "sensitivity.csv")
    mean, error, spread = _random_effects(logs, errors)
    half_width = float(stats.t.ppf(0.5 + LEVEL / 2, len(logs) - 1)) * math.hypot(
        error, spread
    )
    return math.exp(mean), math.exp(mean - half_width), math.exp(mean + half_width)


def _random_effects(
    values: np.ndarray[Any, Any], errors: np.ndarray[Any, Any]
) -> tuple[float, float, float]:
    """Return the mean of effects, its standard error, and their standard deviation.

    The estimator is that of DerSimonian and Laird for effects that differ; ``errors``
    are the standard errors of ``values``. Where any of them is 0, the effects weigh
    alike, and nothing is taken out of their spread.
    """
    count = len(values)
    if not errors.all():
        spread = float(values.std(ddof=1))
        return float(values.mean()), spread / math.sqrt(count), spread
    weight = errors**-2.0
    fixed = float((weight * values).sum() / weight.sum())
    # Cochran's Q: what of it exceeds its mean, count - 1, is spread between effects
    q = float((weight * (values - fixed) ** 2).sum())
    scale = float(weight.sum() - (weight**2).sum() / weight.sum())
    square = max(0.0, (q - (count - 1)) / scale)
    weight = 1.0 / (errors**2 + square)
    mean = float((weight * values).sum() / weight.sum())
    return mean, float(weight.sum()) ** -0.5, math.sqrt(square)


def _rms(rows: pd.DataFrame) -> float:
    """Return the root of the mean square of ``rms`` over rows."""
    return float(np.sqrt(np.mean(rows["rms"].to_numpy(float) ** 2)))


def _tried_ranges(rows: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return the least and most tried value of each input of `RANGES`; inputs that no
    row has are left out.
    """
    ranges = {
        name: (float(rows[low].min()), float(rows[high].max()))
        for name, (low, high) in RANGES.items()
    }
    return {
        name: bounds for name, bounds in ranges.items() if not math.isnan(sum(bounds))
    }


# ------------------------------------------------------------------------------ a screening


class ScreenedPoint(Spec):
    """A setting of a screening: its n and its loss."""

    n: Annotated[float, Field(gt=0)]  # samples that statistics rested on
    loss_points: float  # points lost against global shuffle
    # low, high: the interval of loss_points; None where there was one draw
    low: float | None
    high: float | None


class MeasuredScreening(Spec):
    """The measurements of `simshuffle.train.screen` on a network: c with its 90 %
    interval.
    """

    model: Annotated[str, Field(min_length=1)]  # the network
    data: str  # the data set
    norm: Norm  # what the network normalises by
    momentum: Annotated[float, Field(gt=0, le=1)]  # m of the running statistics
    local_batch: Count  # samples of a rank in an iteration
    curve: Annotated[list[ScreenedPoint], Field(min_length=2)]  # the settings
    # c_points, c_low, c_high: c in points, and its 90 % interval
    c_points: float
    c_low: float
    c_high: float
    rms: NonNegative  # points that settings lie beside the curve (root mean square)

    @model_validator(mode="after")
    def _in_order(self) -> MeasuredScreening:
        """Refuse an interval of c that does not hold c."""
        if not self.c_low <= self.c_points <= self.c_high:
            raise ValueError("c_points must be from c_low to c_high")
        return self


def read_screening_file(path: Path) -> MeasuredScreening:
    """Read the screening in a file; unknown keys are left out.

    Raises:
        InputError: there is no such file, it is cut off or of another shape.
    """
    remedy = "Give the complete file that simshuffle.train.screen wrote."
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        refuse(
            "--screening",
            "must be a screening in JSON",
            str(error)[:80],
            remedy,
            str(path),
        )
    if not isinstance(document, dict):
        refuse(
            "--screening",
            "must be a screening in JSON",
            repr(document)[:60],
            remedy,
            str(path),
        )
    return parse_screening_values(
        {
            key: value
            for key, value in document.items()
            if key in MeasuredScreening.model_fields
        },
        str(path),
    )


def parse_screening_values(values: Mapping[str, Any], source: str) -> MeasuredScreening:
    """Check the plain values of a screening.

    Raises:
        InputError: keys are missing, or values are out of range.
    """
    screening, problems = validate_record(dict(values), MeasuredScreening)
    if screening is None or problems:
        remedy = "Give the complete file that simshuffle.train.screen wrote."
        raise InputError(
            [_name_option(problem, remedy) for problem in problems], source
        )
    return screening


def _name_option(problem: Problem, remedy: str) -> Problem:
    """Return a problem of a screening as one of the option ``--screening``."""
    return Problem(
        f"--screening {problem.path}".strip(), problem.rule, problem.value, remedy
    )


TRAINING_FACTORS = (0.8, 1.5, 3.0)
"""Loss of trainings over the loss that a screening predicts: 90 % low, middle, high.
From ten comparisons (docs/accuracy.md: five on procedural images, five on
Fashion-MNIST) the mean of the logs, and the t-interval of one more. Weights that have
seen fewer steps are more sensitive.
"""


def _scale_to_trainings(screening: MeasuredScreening) -> tuple[float, float, float]:
    """Return c of a training and its 90 % interval: the errors of the screening and of
    `TRAINING_FACTORS` added as squares.
    """
    low, c, high = sorted(factor * screening.c_points for factor in TRAINING_FACTORS)
    error_below = c - TRAINING_FACTORS[1] * screening.c_low
    error_above = TRAINING_FACTORS[1] * screening.c_high - c
    return (
        c,
        c - math.hypot(c - low, error_below),
        c + math.hypot(high - c, error_above),
    )


def screening_sensitivity(
    screening: MeasuredScreening, momentum: float, norm: Norm | None
) -> Sensitivity:
    """Return the sensitivity that a screening measured, scaled to trainings by
    `TRAINING_FACTORS`.

    c is 0 without batch norm. The scatter ``rms`` stays as measured. Tried inputs are
    the local batch and, with batch norm, n.

    Raises:
        InputError: the screening was of another momentum, or of a network that
            normalises otherwise than ``norm``.
    """
    if not math.isclose(screening.momentum, momentum, rel_tol=1e-6):
        rule = f"must have the momentum of --momentum, {momentum:g}"
        remedy = f"Add --momentum {screening.momentum:g}, or screen again."
        refuse("--screening", rule, f"{screening.momentum:g}", remedy, "screening")
    if norm is not None and norm != screening.norm:
        rule = f"must be of a network with the norm of --norm, {norm}"
        refuse("--screening", rule, screening.norm, "Leave --norm out.", "screening")
    tried_ranges: dict[str, tuple[float, float]] = {
        "local batch": (screening.local_batch, screening.local_batch)
    }
    if screening.norm == "batch":
        numbers = [point.n for point in screening.curve]
        tried_ranges["n"] = min(numbers), max(numbers)
        c, low, high = _scale_to_trainings(screening)
        basis = f"a screening of {screening.model} on {screening.data}, {len(numbers)} settings"
    else:
        c = low = high = 0.0
        basis = f"the scatter of a screening of {screening.model}, without running statistics"
    return Sensitivity(
        model=screening.model,
        norm=screening.norm,
        c=c,
        low=low,
        high=high,
        rms=screening.rms,
        basis=basis,
        known=True,
        tried=tried_ranges,
        momentum=screening.momentum,
    )
