"""What settings are compared in, from tables alone: when they reach an accuracy, which of them no
other one beats, and three claims about importance exchange.

Sources: of the interval of a probability, C. J. Clopper and E. S. Pearson, 'The use of confidence
or fiducial limits illustrated in the case of the binomial', Biometrika 26 (1934); of the claims,
Nguyen and Tanimura, 'Efficient Sample Exchanging for Large-Scale Training Distributed Deep Learning
with Local Sampling', poster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from simshuffle.extensions.learning.time_to_accuracy.tables import TARGET_COLUMNS, JoinTables
from simshuffle.spec.arrays import Flags, Floats
from simshuffle.studies.training.summary import LEVEL, Estimate, estimate, paired_difference
from simshuffle.studies.training.wording import format_percent

BELOW_GLOBAL = (0.01, 0.03)
"""How far below global's mean final accuracy the default targets are."""
GIVEN = "as given"


def clopper_pearson(reached: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a probability of which ``reached`` of ``n`` independent trials came
    true: the 2.5th percentile of Beta(k, n - k + 1), 0 for k = 0, and the 97.5th of Beta(k + 1, n -
    k), 1 for k = n. Raises ValueError if n is 0, or ``reached`` not from 0 to n."""
    if not 0 <= reached <= n or n == 0:
        raise ValueError(f"{reached} of {n}")
    tail = (1 - LEVEL) / 2
    low = float(stats.beta.ppf(tail, reached, n - reached + 1)) if reached else 0.0
    high = float(stats.beta.ppf(1 - tail, reached + 1, n - reached)) if reached < n else 1.0
    return low, high


def default_targets(settings: pd.DataFrame) -> dict[float, str]:
    """Names by target: global's mean final accuracy less 1 and less 3 points, if there is
    global."""
    accuracies = settings.loc[settings["strategy"] == "global", "accuracy"].dropna()
    if not len(accuracies):
        return {}
    reached = float(accuracies.iloc[0])
    named = {
        below: f"global less {100 * below:g} point{'' if below == 0.01 else 's'}"
        for below in BELOW_GLOBAL
    }
    return {reached - below: name for below, name in named.items() if reached > below}


def targets_table(
    curves: pd.DataFrame, seeds: Mapping[str, Sequence[int]], targets: Mapping[float, str]
) -> pd.DataFrame:
    """A row for each setting and target, columns `TARGET_COLUMNS`; ``seeds`` are those trained, to
    their end or until they failed, ``targets`` names by accuracy."""
    rows = [
        {
            "setting": setting,
            "target": target,
            "name": name,
            **_reached(curves[curves["setting"] == setting], target, len(of_setting)),
        }
        for target, name in targets.items()
        for setting, of_setting in seeds.items()
    ]
    return pd.DataFrame(rows, columns=list(TARGET_COLUMNS))


def first_reached(curve: pd.DataFrame, target: float) -> pd.DataFrame:
    """For each seed that reached ``target`` the row of its first evaluation at or above it, indexed
    by seed; of rows of one setting, columns `CURVE_COLUMNS`."""
    above = curve[curve["accuracy"] >= target].sort_values("epoch")
    return above.drop_duplicates("seed").set_index("seed")


def _reached(curve: pd.DataFrame, target: float, n: int) -> dict[str, Any]:
    hits = first_reached(curve, target)
    time = estimate(hits["time_s"].tolist())
    low, high = clopper_pearson(len(hits), n)
    return {
        "n": n,
        "reached": len(hits),
        "probability": len(hits) / n,
        "probability_low": low,
        "probability_high": high,
        "time_s": time.mean,
        "time_low_s": time.low,
        "time_high_s": time.high,
        "epochs": float(hits["epoch"].mean()) if len(hits) else float("nan"),
    }


# --------------------------------------------------------------------------------- the Pareto front

CRITERIA = {
    "storage": "storage_nbytes",
    "time": "total_s",
    "requests": "total_requests",
    "accuracy": "accuracy",
}
"""What settings are compared in, and the column: all better if smaller but accuracy."""


def pareto(costs: Floats) -> Flags:
    """Which rows of ``costs``, (n, criteria), smaller being better, no other dominates: is nowhere
    larger and somewhere smaller. Equal rows do not; a row with a NaN is not, and dominates none."""
    return np.asarray(~np.isnan(costs).any(axis=1) & ~_dominates(costs).any(axis=0))


def _dominates(costs: Floats) -> Flags:
    """(n, n): [i, j] if row i is nowhere larger than row j, and somewhere smaller."""
    no_larger = (costs[:, None, :] <= costs[None, :, :]).all(axis=2)
    smaller = (costs[:, None, :] < costs[None, :, :]).any(axis=2)
    return np.asarray(no_larger & smaller)


def _costs(settings: pd.DataFrame) -> Floats:
    """(n, criteria), each better if smaller."""
    return settings[list(CRITERIA.values())].assign(accuracy=-settings["accuracy"]).to_numpy(float)


def on_front(settings: pd.DataFrame) -> Flags:
    """Whether each row is on the front of storage per host, time, requests, and mean accuracy."""
    return pareto(_costs(settings))


@dataclass(frozen=True)
class Beaten:
    """A setting that is not on the front, ``by`` which one that is, and the criteria in which that
    one is ``better``; in all others they are equal."""

    setting: str
    by: str
    better: tuple[str, ...]


def beaten(settings: pd.DataFrame) -> list[Beaten]:
    """Every setting that another one beats, each by the one on the front that takes the least time
    of those that beat it; what was not simulated is passed over."""
    costs, names = _costs(settings), settings["setting"].tolist()
    beats = _dominates(costs) & pareto(costs)[:, None]
    out = []
    for place in np.flatnonzero(beats.any(axis=0)):
        by = min(np.flatnonzero(beats[:, place]), key=lambda other: costs[other][1])
        smaller = costs[by] < costs[place]
        better = tuple(name for name, less in zip(CRITERIA, smaller, strict=True) if less)
        out.append(Beaten(names[place], names[by], better))
    return out


# --------------------------------------------------------------------------------------- the claims

MARGIN = 0.01
"""Accuracies that differ by no more are called the same: a point."""
EQUIVALENT, BELOW, UNDECIDED = "not below", "below", "undecided"


@dataclass(frozen=True)
class AtFraction:
    """A strategy at one Q against global shuffle."""

    fraction: float  # Q
    difference: Estimate  # accuracy less that of global shuffle, over the seeds that both have
    # `EQUIVALENT` if the interval is above -1 point, `BELOW` if it is below, else `UNDECIDED`
    verdict: str


def against_global(tables: JoinTables, strategy: str) -> list[AtFraction]:
    """The strategy at each of its Q, rising, against global; empty if one was not trained."""
    settings = tables.settings
    reference = settings[settings["strategy"] == "global"]
    if not len(reference):
        return []
    out = []
    of_strategy = settings[settings["strategy"] == strategy].sort_values("exchange_fraction")
    for row in of_strategy.to_dict("records"):
        found = paired(tables, str(row["setting"]), str(reference["setting"].iloc[0]))
        out.append(AtFraction(float(row["exchange_fraction"]), found, not_below(found)))
    return out


def not_below(difference: Estimate) -> str:
    """Whether a difference is no less than -1 point, by its 95 % interval."""
    if difference.low > -MARGIN:
        return EQUIVALENT
    return BELOW if difference.high < -MARGIN else UNDECIDED


def same(difference: Estimate) -> str:
    """Whether an interval is within 1 point: 'the same', 'different' or 'undecided'."""
    if difference.low > -MARGIN and difference.high < MARGIN:
        return "the same"
    return "different" if difference.low > MARGIN or difference.high < -MARGIN else UNDECIDED


def paired(tables: JoinTables, setting: str, other: str) -> Estimate:
    """Final accuracy of ``setting`` less that of ``other``, over the seeds that finished both."""
    return paired_difference(final_accuracy(tables, setting), final_accuracy(tables, other))


def final_accuracy(tables: JoinTables, setting: str) -> dict[int, float]:
    """Accuracy after the last epoch by seed."""
    epochs = int(tables.settings["epochs"].iloc[0])
    rows = tables.curves[(tables.curves["setting"] == setting) & (tables.curves["epoch"] == epochs)]
    return {int(row["seed"]): float(row["accuracy"]) for row in rows.to_dict("records")}


def needs_less(found: Sequence[AtFraction], other: Sequence[AtFraction]) -> str:
    """Whether the first strategy is as good as global shuffle with less exchange than the second:
    'yes', 'no' or 'undecided'.

    Yes: the smallest Q at which it is not below is smaller than every Q at which the other may be
    not below. No: the other way round, or both begin at the same Q for certain. Undecided: anything
    else, also where neither is found at any Q.
    """
    (sure, possible), (other_sure, other_possible) = (
        (_smallest(of, {EQUIVALENT}), _smallest(of, {EQUIVALENT, UNDECIDED}))
        for of in (found, other)
    )
    if sure < other_possible:
        return "yes"
    return "no" if possible >= other_sure and not math.isinf(other_sure) else UNDECIDED


def _smallest(found: Sequence[AtFraction], verdicts: set[str]) -> float:
    return min((at.fraction for at in found if at.verdict in verdicts), default=math.inf)


def sentences(tables: JoinTables) -> list[str]:
    """The three claims, one after the other, with what was found or what is missing."""
    return [*_less_exchange(tables), *_less_communication(tables), *_no_inference(tables)]


def _less_exchange(tables: JoinTables) -> Iterator[str]:
    yield (
        "1. To reach the same accuracy, IS needs a smaller exchange fraction than partial local"
        " shuffle, and IS-Pair a smaller one than IS: 10 % against 30 % and 70 %. Here the same"
        " accuracy means: not below global shuffle by more than 1 point, by the 95 % interval."
    )
    found = {name: against_global(tables, name) for name in ("partial", "IS", "IS-Pair")}
    yield from (_by_fraction(strategy, at) for strategy, at in found.items() if at)
    for strategy, other in (("IS", "partial"), ("IS-Pair", "IS")):
        if found[strategy] and found[other]:
            yield (
                f"{strategy} needs a smaller Q than {other}:"
                f" {needs_less(found[strategy], found[other])}."
            )
    lacking = [name for name, at in found.items() if not at]
    if lacking:
        yield f"Not trained here, or without global shuffle to compare with: {', '.join(lacking)}."


def _by_fraction(strategy: str, found: Sequence[AtFraction]) -> str:
    parts = [f"Q = {at.fraction:g} {at.verdict} ({points(at.difference)})" for at in found]
    smallest = _smallest(found, {EQUIVALENT})
    reached = f"smallest Q that is not below: {smallest:g}"
    if math.isinf(smallest):
        reached = "surely not below at none of them"
    return f"{strategy}: {', '.join(parts)}; {reached}."


def points(found: Estimate) -> str:
    """A difference of accuracies in points, with half its interval."""
    return format_percent(found.mean, found.low, found.high, "+")


def pairs(
    tables: JoinTables, strategy: str, other: str
) -> list[tuple[float, pd.Series, pd.Series]]:
    """Q and the two rows of settings.csv, for each Q that both strategies were simulated at."""
    known = tables.settings[tables.settings["message"] == ""]
    rows = {
        name: known[known["strategy"] == name].set_index("exchange_fraction")
        for name in (strategy, other)
    }
    return [
        (float(q), rows[strategy].loc[q], rows[other].loc[q])
        for q in rows[strategy].index
        if q in rows[other].index
    ]


def _less_communication(tables: JoinTables) -> Iterator[str]:
    yield (
        "2. At the same exchange fraction, IS-Pair takes much less communication time (GE+WU and"
        " EXCHANGE) than IS."
    )
    found = pairs(tables, "IS-Pair", "IS")
    if not found:
        yield "IS-Pair and IS were not simulated at the same Q."
    for fraction, pair, other in found:
        parts = [
            f"{label} {pair[column]:.3g} s against {other[column]:.3g} s"
            for label, column in _COMMUNICATION.items()
        ]
        one, two = (sum(row[column] for column in _COMMUNICATION.values()) for row in (pair, other))
        change = f"{100 * (one / two - 1):+.0f} %" if two else "no change"
        verdict = "less" if one < two else "more" if one > two else "the same"
        yield (
            f"Q = {fraction:g}: {', '.join(parts)}; together {one:.3g} s against {two:.3g} s"
            f" ({change}): {verdict}."
        )


_COMMUNICATION = {"EXCHANGE": "exchange_s", "GE+WU": "ge_wu_s"}


def _no_inference(tables: JoinTables) -> Iterator[str]:
    yield (
        "3. Lagging losses (ILag-Pair) remove the computing of importance (IMPT) and keep the"
        " accuracy of IS-Pair."
    )
    some = False
    for lagging, fresh in (("ILag-Pair", "IS-Pair"), ("ILag", "IS")):
        for fraction, late, own in pairs(tables, lagging, fresh):
            some = True
            found = paired(tables, str(late["setting"]), str(own["setting"]))
            verdict = same(found).replace("the same", "the same within 1 point")
            yield (
                f"{lagging} {fraction:g}: IMPT {late['impt_s']:.3g} s against {own['impt_s']:.3g}"
                f" s; accuracy less that of {fresh} {points(found)} points: {verdict}."
            )
    if not some:
        yield "ILag-Pair and IS-Pair were not simulated at the same Q."
