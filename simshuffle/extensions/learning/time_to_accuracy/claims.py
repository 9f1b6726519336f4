"""State three claims about importance exchange, each with its finding in a study.

Source: Nguyen and Tanimura, 'Efficient Sample Exchanging for Large-Scale Training
Distributed Deep Learning with Local Sampling', poster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from simshuffle.extensions.learning.time_to_accuracy.comparison import (
    accuracy_difference,
    format_difference,
)
from simshuffle.extensions.learning.time_to_accuracy.tables import JoinTables
from simshuffle.studies.training.summary import Estimate

MARGIN = 0.01
"""Accuracies that differ by no more are called the same: a point."""
EQUIVALENT, BELOW, UNDECIDED = "not below", "below", "undecided"


@dataclass(frozen=True)
class FractionComparison:
    """A strategy at one Q against global shuffle."""

    fraction: float  # Q
    difference: (
        Estimate  # accuracy less that of global shuffle, over the seeds that both have
    )
    # `EQUIVALENT` if the interval is above -1 point, `BELOW` if it is below, else
    # `UNDECIDED`; always `UNDECIDED` with fewer than two common seeds
    verdict: str


def compare_with_global(tables: JoinTables, strategy: str) -> list[FractionComparison]:
    """Compare the strategy at each of its Q, rising, with global shuffle.

    [] if one of both was not trained. Global shuffle is the first of its settings.
    Settings that were trained but not simulated are compared as well.
    """
    settings = tables.settings
    reference = settings[settings["strategy"] == "global"]
    if not len(reference):
        return []
    comparisons = []
    strategy_settings = settings[settings["strategy"] == strategy].sort_values(
        "exchange_fraction"
    )
    reference_name = str(reference["setting"].iloc[0])
    for row in strategy_settings.to_dict("records"):
        fraction = float(row["exchange_fraction"])
        difference = accuracy_difference(tables, str(row["setting"]), reference_name)
        comparisons.append(
            FractionComparison(fraction, difference, judge_not_below(difference))
        )
    return comparisons


def judge_not_below(difference: Estimate) -> str:
    """Judge by its 95 % interval whether a difference (share) is above -1 point.

    Returns:
        `EQUIVALENT`, `BELOW` or `UNDECIDED`; the last without an interval (NaN).
    """
    if difference.low > -MARGIN:
        return EQUIVALENT
    return BELOW if difference.high < -MARGIN else UNDECIDED


def judge_equality(difference: Estimate) -> str:
    """Judge by its 95 % interval whether a difference (share) is within 1 point.

    Returns:
        'the same', 'different' or 'undecided'; the last without an interval (NaN).
    """
    if difference.low > -MARGIN and difference.high < MARGIN:
        return "the same"
    return (
        "different"
        if difference.low > MARGIN or difference.high < -MARGIN
        else UNDECIDED
    )


def needs_less_exchange(
    first_comparisons: Sequence[FractionComparison],
    second_comparisons: Sequence[FractionComparison],
) -> str:
    """Judge whether a strategy needs less exchange than another to be as good as global
    shuffle.

    Yes: the smallest Q at which the first is not below is smaller than every Q at which
    the second may be not below. No: the smallest Q at which the second is not below is
    at most every Q at which the first may be not below. Undecided: anything else, also
    where neither is not below at any Q. May be not below is any verdict but `BELOW`.

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
    return (
        "no"
        if first_possible >= second_sure and not math.isinf(second_sure)
        else UNDECIDED
    )


def _smallest_fraction(
    comparisons: Sequence[FractionComparison], verdicts: set[str]
) -> float:
    """Return the smallest Q with one of the ``verdicts``; infinite if there is none."""
    return min(
        (
            comparison.fraction
            for comparison in comparisons
            if comparison.verdict in verdicts
        ),
        default=math.inf,
    )


def state_claims(tables: JoinTables) -> list[str]:
    """Return the three claims, each followed by its findings or by the reason that
    there are none, as one flat list of sentences.
    """
    return [
        *_less_exchange(tables),
        *_less_communication(tables),
        *_no_inference(tables),
    ]


def _less_exchange(tables: JoinTables) -> Iterator[str]:
    """Yield claim 1 and findings: the exchange fraction that each strategy needs.

    The last sentence names the strategies that cannot be compared, if there are any.
    """
    yield (
        "1. To reach the same accuracy, IS-Pair needs a smaller exchange fraction (10 %) than IS"
        " (30 %), and IS a smaller one than partial local shuffle (70 %). Here the same accuracy"
        " means: not below global shuffle by more than 1 point, by the 95 % interval."
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
    untrained = [
        name for name, comparisons in comparisons_by_strategy.items() if not comparisons
    ]
    if untrained:
        names = ", ".join(untrained)
        yield f"Not trained here, or without global shuffle to compare with: {names}."


def _state_by_fraction(strategy: str, comparisons: Sequence[FractionComparison]) -> str:
    """State the verdict on a strategy at each Q, and the smallest that is not below."""
    parts = [
        f"Q = {comparison.fraction:g} {comparison.verdict}"
        f" ({format_difference(comparison.difference)})"
        for comparison in comparisons
    ]
    smallest = _smallest_fraction(comparisons, {EQUIVALENT})
    conclusion = f"the smallest Q that is not below global shuffle is {smallest:g}"
    if math.isinf(smallest):
        conclusion = "no Q is surely not below global shuffle"
    return f"{strategy}: {', '.join(parts)}; {conclusion}."


def rows_at_equal_fraction(
    tables: JoinTables, strategy: str, reference: str
) -> list[tuple[float, pd.Series, pd.Series]]:
    """Return each Q at which both strategies were simulated, and their rows.

    They are (Q, row of ``strategy``, row of ``reference``), the rows of settings.csv,
    by the order of ``strategy`` in it; [] if there is no common Q. Each strategy must
    have one simulated setting at a Q.
    """
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
    """Yield claim 2 and its findings: communication times of IS-Pair against IS.

    They are of a warm epoch, at each Q at which both were simulated; less and more are
    by the times alone, without an interval.
    """
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
    """Yield claim 3 and its findings on lagging losses: the seconds of computing
    importance (IMPT), and the accuracy, against fresh losses at equal Q.

    Equal accuracy is by `judge_equality`.
    """
    yield (
        "3. Lagging losses (ILag-Pair) remove the computing of importance (IMPT) and keep the"
        " accuracy of IS-Pair."
    )
    is_compared = False
    for lagging, fresh in (("ILag-Pair", "IS-Pair"), ("ILag", "IS")):
        for fraction, lagging_row, fresh_row in rows_at_equal_fraction(
            tables, lagging, fresh
        ):
            is_compared = True
            lagging_name = str(lagging_row["setting"])
            difference = accuracy_difference(
                tables, lagging_name, str(fresh_row["setting"])
            )
            verdict = judge_equality(difference).replace(
                "the same", "the same within 1 point"
            )
            yield (
                f"{lagging} {fraction:g}: IMPT {lagging_row['impt_s']:.3g} s against"
                f" {fresh_row['impt_s']:.3g} s; accuracy minus that of {fresh}"
                f" {format_difference(difference)} points: {verdict}."
            )
    if not is_compared:
        yield "ILag-Pair and IS-Pair were not simulated at the same Q."
