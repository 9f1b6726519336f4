"""Compare settings from tables alone: times to an accuracy, the Pareto front, and three claims.

The claims are about importance exchange.

Sources: of the interval of a probability, C. J. Clopper and E. S. Pearson, 'The use of
confidence or fiducial limits illustrated in the case of the binomial', Biometrika 26
(1934); of the claims, Nguyen and Tanimura, 'Efficient Sample Exchanging for Large-Scale
Training Distributed Deep Learning with Local Sampling', poster.
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
USER_TARGET = "as given"


def clopper_pearson(reached: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of the probability of an event.

    The event came in ``reached`` of ``n`` independent trials. The interval is the 2.5th
    percentile of Beta(k, n - k + 1), 0 for k = 0, and the 97.5th of Beta(k + 1, n - k), 1
    for k = n.

    Raises:
        ValueError: n is 0, or ``reached`` not from 0 to n.
    """
    if not 0 <= reached <= n or n == 0:
        raise ValueError(f"{reached} of {n}")
    tail = (1 - LEVEL) / 2
    low = float(stats.beta.ppf(tail, reached, n - reached + 1)) if reached else 0.0
    high = float(stats.beta.ppf(1 - tail, reached + 1, n - reached)) if reached < n else 1.0
    return low, high


def default_targets(settings: pd.DataFrame) -> dict[float, str]:
    """Return names by target: global's mean final accuracy less 1 and less 3 points.

    Empty if there is no global shuffle.
    """
    accuracies = settings.loc[settings["strategy"] == "global", "accuracy"].dropna()
    if not len(accuracies):
        return {}
    global_accuracy = float(accuracies.iloc[0])
    name_by_margin = {
        margin: f"global less {100 * margin:g} point{'' if margin == 0.01 else 's'}"
        for margin in BELOW_GLOBAL
    }
    return {
        global_accuracy - margin: name
        for margin, name in name_by_margin.items()
        if global_accuracy > margin
    }


def targets_table(
    curves: pd.DataFrame, seeds: Mapping[str, Sequence[int]], targets: Mapping[float, str]
) -> pd.DataFrame:
    """Return a row for each setting and target, columns `TARGET_COLUMNS`.

    ``seeds`` are those trained, to their end or until they failed; ``targets`` are names by
    accuracy.
    """
    rows = [
        {
            "setting": setting,
            "target": target,
            "name": name,
            **_target_columns(curves[curves["setting"] == setting], target, len(setting_seeds)),
        }
        for target, name in targets.items()
        for setting, setting_seeds in seeds.items()
    ]
    return pd.DataFrame(rows, columns=list(TARGET_COLUMNS))


def first_rows_at_target(curve: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return the first evaluation at or above ``target`` of each seed that reached it, by seed.

    ``curve`` has rows of one setting, columns `CURVE_COLUMNS`.
    """
    reaching_rows = curve[curve["accuracy"] >= target].sort_values("epoch")
    return reaching_rows.drop_duplicates("seed").set_index("seed")


def _target_columns(curve: pd.DataFrame, target: float, n: int) -> dict[str, Any]:
    """Return columns of `TARGET_COLUMNS`: the seeds that reached the target, their share and time.

    ``curve`` has the rows of a setting with ``n`` seeds.
    """
    first_rows = first_rows_at_target(curve, target)
    time = estimate(first_rows["time_s"].tolist())
    low, high = clopper_pearson(len(first_rows), n)
    return {
        "n": n,
        "reached": len(first_rows),
        "probability": len(first_rows) / n,
        "probability_low": low,
        "probability_high": high,
        "time_s": time.mean,
        "time_low_s": time.low,
        "time_high_s": time.high,
        "epochs": float(first_rows["epoch"].mean()) if len(first_rows) else float("nan"),
    }


# --------------------------------------------------------------------------------- the Pareto front

CRITERIA = {
    "storage": "storage_nbytes",
    "time": "total_s",
    "requests": "total_requests",
    "accuracy": "accuracy",
}
"""What settings are compared in, and the column: all better if smaller but accuracy."""


def find_pareto_front(costs: Floats) -> Flags:
    """Return whether each row of ``costs``, (n, criteria), is on the Pareto front: (n,).

    Smaller costs are better. A row is on the front if no other dominates it: is nowhere
    larger and somewhere smaller. Equal rows do not dominate each other; a row with a NaN is
    not on the front, and dominates none.
    """
    return np.asarray(~np.isnan(costs).any(axis=1) & ~_dominates(costs).any(axis=0))


def _dominates(costs: Floats) -> Flags:
    """Return whether row i of ``costs`` dominates row j, (n, n).

    A row dominates another if it is nowhere larger, and somewhere smaller.
    """
    no_larger = (costs[:, None, :] <= costs[None, :, :]).all(axis=2)
    smaller = (costs[:, None, :] < costs[None, :, :]).any(axis=2)
    return np.asarray(no_larger & smaller)


def _costs(settings: pd.DataFrame) -> Floats:
    """Return the costs of settings, (n, criteria), each better if smaller."""
    return settings[list(CRITERIA.values())].assign(accuracy=-settings["accuracy"]).to_numpy(float)


def is_on_front(settings: pd.DataFrame) -> Flags:
    """Return whether each row is on the Pareto front of the `CRITERIA`: (n,)."""
    return find_pareto_front(_costs(settings))


@dataclass(frozen=True)
class DominatedSetting:
    """A setting that is not on the front, and the one on the front that beats it."""

    setting: str  # name of the setting
    winner: str  # name of the setting on the front
    better_criteria: tuple[
        str, ...
    ]  # of `CRITERIA`, where the winner is better; else both are equal


def find_dominated_settings(settings: pd.DataFrame) -> list[DominatedSetting]:
    """Return every setting that another one beats, with the quickest winner on the front.

    Settings that were not simulated are passed over.
    """
    names = settings["setting"].tolist()
    costs = _costs(settings)
    # (n, n): row i is on the front and dominates row j
    beats = _dominates(costs) & find_pareto_front(costs)[:, None]
    time_column = list(CRITERIA).index("time")

    dominated_settings = []
    for loser in np.flatnonzero(beats.any(axis=0)):
        winner = min(np.flatnonzero(beats[:, loser]), key=lambda rival: costs[rival][time_column])
        is_better = costs[winner] < costs[loser]
        criteria = tuple(name for name, flag in zip(CRITERIA, is_better, strict=True) if flag)
        dominated_settings.append(DominatedSetting(names[loser], names[winner], criteria))
    return dominated_settings


# --------------------------------------------------------------------------------------- the claims

MARGIN = 0.01
"""Accuracies that differ by no more are called the same: a point."""
EQUIVALENT, BELOW, UNDECIDED = "not below", "below", "undecided"


@dataclass(frozen=True)
class FractionComparison:
    """A strategy at one Q against global shuffle."""

    fraction: float  # Q
    difference: Estimate  # accuracy less that of global shuffle, over the seeds that both have
    # `EQUIVALENT` if the interval is above -1 point, `BELOW` if it is below, else `UNDECIDED`
    verdict: str


def compare_with_global(tables: JoinTables, strategy: str) -> list[FractionComparison]:
    """Compare the strategy at each of its Q, rising, with global; empty if one was not trained."""
    settings = tables.settings
    reference = settings[settings["strategy"] == "global"]
    if not len(reference):
        return []
    comparisons = []
    strategy_settings = settings[settings["strategy"] == strategy].sort_values("exchange_fraction")
    reference_name = str(reference["setting"].iloc[0])
    for row in strategy_settings.to_dict("records"):
        fraction = float(row["exchange_fraction"])
        difference = accuracy_difference(tables, str(row["setting"]), reference_name)
        comparisons.append(FractionComparison(fraction, difference, judge_not_below(difference)))
    return comparisons


def judge_not_below(difference: Estimate) -> str:
    """Judge by its 95 % interval whether a difference is no less than -1 point."""
    if difference.low > -MARGIN:
        return EQUIVALENT
    return BELOW if difference.high < -MARGIN else UNDECIDED


def judge_equality(difference: Estimate) -> str:
    """Judge by its 95 % interval whether a difference is within 1 point.

    Returns:
        'the same', 'different' or 'undecided'.
    """
    if difference.low > -MARGIN and difference.high < MARGIN:
        return "the same"
    return "different" if difference.low > MARGIN or difference.high < -MARGIN else UNDECIDED


def accuracy_difference(tables: JoinTables, setting: str, reference: str) -> Estimate:
    """Estimate the final accuracy of ``setting`` less that of ``reference``, over common seeds."""
    return paired_difference(final_accuracy(tables, setting), final_accuracy(tables, reference))


def final_accuracy(tables: JoinTables, setting: str) -> dict[int, float]:
    """Return the accuracy after the last epoch, by seed."""
    epochs = int(tables.settings["epochs"].iloc[0])
    rows = tables.curves[(tables.curves["setting"] == setting) & (tables.curves["epoch"] == epochs)]
    return {int(row["seed"]): float(row["accuracy"]) for row in rows.to_dict("records")}


def needs_less_exchange(
    first_comparisons: Sequence[FractionComparison],
    second_comparisons: Sequence[FractionComparison],
) -> str:
    """Judge whether a strategy needs less exchange than another to be as good as global shuffle.

    Yes: the smallest Q at which the first is not below is smaller than every Q at which the
    second may be not below. No: the other way round, or both begin at the same Q for
    certain. Undecided: anything else, also where neither is not below at any Q.

    Returns:
        'yes', 'no' or 'undecided'.
    """
    possible_verdicts = {EQUIVALENT, UNDECIDED}
    first_sure = _smallest_fraction(first_comparisons, {EQUIVALENT})
    first_possible = _smallest_fraction(first_comparisons, possible_verdicts)
    second_sure = _smallest_fraction(second_comparisons, {EQUIVALENT})
    second_possible = _smallest_fraction(second_comparisons, possible_verdicts)
    if first_sure < second_possible:
        return "yes"
    return "no" if first_possible >= second_sure and not math.isinf(second_sure) else UNDECIDED


def _smallest_fraction(comparisons: Sequence[FractionComparison], verdicts: set[str]) -> float:
    """Return the smallest Q with one of the ``verdicts``; infinite if there is none."""
    return min(
        (comparison.fraction for comparison in comparisons if comparison.verdict in verdicts),
        default=math.inf,
    )


def state_claims(tables: JoinTables) -> list[str]:
    """Return the three claims, each with its finding or with the reason that there is none."""
    return [*_less_exchange(tables), *_less_communication(tables), *_no_inference(tables)]


def _less_exchange(tables: JoinTables) -> Iterator[str]:
    """Yield claim 1: the exchange fraction that each strategy needs."""
    yield (
        "1. To reach the same accuracy, IS needs a smaller exchange fraction than partial local"
        " shuffle, and IS-Pair a smaller one than IS: 10 % against 30 % and 70 %. Here the same"
        " accuracy means: not below global shuffle by more than 1 point, by the 95 % interval."
    )
    comparisons_by_strategy = {
        name: compare_with_global(tables, name) for name in ("partial", "IS", "IS-Pair")
    }
    yield from (
        _state_by_fraction(strategy, comparisons)
        for strategy, comparisons in comparisons_by_strategy.items()
        if comparisons
    )
    for strategy, reference in (("IS", "partial"), ("IS-Pair", "IS")):
        comparisons = comparisons_by_strategy[strategy]
        reference_comparisons = comparisons_by_strategy[reference]
        if comparisons and reference_comparisons:
            answer = needs_less_exchange(comparisons, reference_comparisons)
            yield f"{strategy} needs a smaller Q than {reference}: {answer}."
    untrained = [name for name, comparisons in comparisons_by_strategy.items() if not comparisons]
    if untrained:
        names = ", ".join(untrained)
        yield f"Not trained here, or without global shuffle to compare with: {names}."


def _state_by_fraction(strategy: str, comparisons: Sequence[FractionComparison]) -> str:
    """State the verdict on a strategy at each of its Q."""
    parts = [
        f"Q = {comparison.fraction:g} {comparison.verdict}"
        f" ({format_difference(comparison.difference)})"
        for comparison in comparisons
    ]
    smallest = _smallest_fraction(comparisons, {EQUIVALENT})
    conclusion = f"smallest Q that is not below: {smallest:g}"
    if math.isinf(smallest):
        conclusion = "surely not below at none of them"
    return f"{strategy}: {', '.join(parts)}; {conclusion}."


def format_difference(difference: Estimate) -> str:
    """Format a difference of accuracies in points, with half its interval."""
    return format_percent(difference.mean, difference.low, difference.high, "+")


def rows_at_equal_fraction(
    tables: JoinTables, strategy: str, reference: str
) -> list[tuple[float, pd.Series, pd.Series]]:
    """Return each Q at which both strategies were simulated, with their rows of settings.csv."""
    simulated_settings = tables.settings[tables.settings["message"] == ""]
    by_fraction = simulated_settings.set_index("exchange_fraction")
    strategy_rows = by_fraction[by_fraction["strategy"] == strategy]
    reference_rows = by_fraction[by_fraction["strategy"] == reference]
    return [
        (float(fraction), strategy_rows.loc[fraction], reference_rows.loc[fraction])
        for fraction in strategy_rows.index
        if fraction in reference_rows.index
    ]


def _less_communication(tables: JoinTables) -> Iterator[str]:
    """Yield claim 2: the communication time of IS-Pair against IS."""
    yield (
        "2. At the same exchange fraction, IS-Pair takes much less communication time (GE+WU and"
        " EXCHANGE) than IS."
    )
    compared_rows = rows_at_equal_fraction(tables, "IS-Pair", "IS")
    if not compared_rows:
        yield "IS-Pair and IS were not simulated at the same Q."
    for fraction, pair_row, reference_row in compared_rows:
        parts = [
            f"{label} {pair_row[column]:.3g} s against {reference_row[column]:.3g} s"
            for label, column in _COMMUNICATION.items()
        ]
        pair_seconds, reference_seconds = (
            sum(row[column] for column in _COMMUNICATION.values())
            for row in (pair_row, reference_row)
        )
        change = "no change"
        if reference_seconds:
            change = f"{100 * (pair_seconds / reference_seconds - 1):+.0f} %"
        verdict = "the same"
        if pair_seconds < reference_seconds:
            verdict = "less"
        elif pair_seconds > reference_seconds:
            verdict = "more"
        yield (
            f"Q = {fraction:g}: {', '.join(parts)}; together {pair_seconds:.3g} s against"
            f" {reference_seconds:.3g} s ({change}): {verdict}."
        )


_COMMUNICATION = {"EXCHANGE": "exchange_s", "GE+WU": "ge_wu_s"}


def _no_inference(tables: JoinTables) -> Iterator[str]:
    """Yield claim 3: the time and the accuracy of lagging losses."""
    yield (
        "3. Lagging losses (ILag-Pair) remove the computing of importance (IMPT) and keep the"
        " accuracy of IS-Pair."
    )
    is_compared = False
    for lagging, fresh in (("ILag-Pair", "IS-Pair"), ("ILag", "IS")):
        for fraction, lagging_row, fresh_row in rows_at_equal_fraction(tables, lagging, fresh):
            is_compared = True
            lagging_name = str(lagging_row["setting"])
            difference = accuracy_difference(tables, lagging_name, str(fresh_row["setting"]))
            verdict = judge_equality(difference).replace("the same", "the same within 1 point")
            yield (
                f"{lagging} {fraction:g}: IMPT {lagging_row['impt_s']:.3g} s against"
                f" {fresh_row['impt_s']:.3g} s; accuracy less that of {fresh}"
                f" {format_difference(difference)} points: {verdict}."
            )
    if not is_compared:
        yield "ILag-Pair and IS-Pair were not simulated at the same Q."
