"""Three claims about importance exchange, looked at with what a study and its simulation say. From
tables alone.

Source of the claims: Nguyen and Tanimura, 'Efficient Sample Exchanging for Large-Scale Training
Distributed Deep Learning with Local Sampling', poster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from simshuffle.studies.time_to_accuracy.tables import Tables
from simshuffle.studies.training.intervals import Estimate, estimate

MARGIN = 0.01
"""Accuracies that differ by no more are called the same: a point."""
EQUIVALENT, BELOW, UNDECIDED = "not below", "below", "undecided"


@dataclass(frozen=True)
class AtFraction:
    """A strategy at one Q against global shuffle.

    Attributes:
        fraction: Q.
        difference: accuracy less that of global shuffle, over the seeds that both have.
        verdict: `EQUIVALENT` if the interval is above -1 point, `BELOW` if it is below, else
            `UNDECIDED`.
    """

    fraction: float
    difference: Estimate
    verdict: str


def against_global(tables: Tables, strategy: str) -> list[AtFraction]:
    """The strategy at each of its Q, in rising order, against global shuffle; empty if one of them
    was not trained."""
    settings = tables.settings
    reference = settings[settings["strategy"] == "global"]
    if not len(reference):
        return []
    out = []
    for row in (
        settings[settings["strategy"] == strategy]
        .sort_values("exchange_fraction")
        .to_dict("records")
    ):
        found = paired(tables, str(row["setting"]), str(reference["setting"].iloc[0]))
        out.append(AtFraction(float(row["exchange_fraction"]), found, not_below(found)))
    return out


def not_below(difference: Estimate) -> str:
    """Whether a difference is no less than -1 point, by its 95 % interval."""
    if difference.low > -MARGIN:
        return EQUIVALENT
    return BELOW if difference.high < -MARGIN else UNDECIDED


def same(difference: Estimate) -> str:
    """Whether accuracies differ by at most 1 point either way, by the interval: 'the same',
    'different' or 'undecided'."""
    if difference.low > -MARGIN and difference.high < MARGIN:
        return "the same"
    return "different" if difference.low > MARGIN or difference.high < -MARGIN else UNDECIDED


def paired(tables: Tables, setting: str, other: str) -> Estimate:
    """Final accuracy of ``setting`` less that of ``other``, over the seeds that finished both."""
    first, second = final_accuracy(tables, setting), final_accuracy(tables, other)
    return estimate([first[seed] - second[seed] for seed in first if seed in second])


def final_accuracy(tables: Tables, setting: str) -> dict[int, float]:
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
    sure, possible = _smallest(found, {EQUIVALENT}), _smallest(found, {EQUIVALENT, UNDECIDED})
    other_sure, other_possible = (
        _smallest(other, {EQUIVALENT}),
        _smallest(other, {EQUIVALENT, UNDECIDED}),
    )
    if sure < other_possible:
        return "yes"
    return "no" if possible >= other_sure and not math.isinf(other_sure) else UNDECIDED


def _smallest(found: Sequence[AtFraction], verdicts: set[str]) -> float:
    return min((at.fraction for at in found if at.verdict in verdicts), default=math.inf)


# ---------------------------------------------------------------------------------------- sentences


def sentences(tables: Tables) -> list[str]:
    """The three claims, one after the other, with what was found or what is missing."""
    return [*_less_exchange(tables), *_less_communication(tables), *_no_inference(tables)]


def _less_exchange(tables: Tables) -> Iterator[str]:
    yield (
        "1. To reach the same accuracy, IS needs a smaller exchange fraction than partial local"
        " shuffle, and IS-Pair a smaller one than IS: 10 % against 30 % and 70 %. Here the same"
        " accuracy means: not below global shuffle by more than 1 point, by the 95 % interval."
    )
    found = {
        strategy: against_global(tables, strategy) for strategy in ("partial", "IS", "IS-Pair")
    }
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
    reached = (
        f"smallest Q that is not below: {smallest:g}"
        if not math.isinf(smallest)
        else "surely not below at none of them"
    )
    return f"{strategy}: {', '.join(parts)}; {reached}."


def points(found: Estimate) -> str:
    """A difference of accuracies in points, with half its interval."""
    half = "" if math.isnan(found.low) else f" ± {100 * found.half:.1f}"
    return f"{100 * found.mean:+.1f}{half}"


def pairs(tables: Tables, strategy: str, other: str) -> list[tuple[float, pd.Series, pd.Series]]:
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


def _less_communication(tables: Tables) -> Iterator[str]:
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


def _no_inference(tables: Tables) -> Iterator[str]:
    yield (
        "3. Lagging losses (ILag-Pair) remove the computing of importance (IMPT) and keep the"
        " accuracy of IS-Pair."
    )
    some = False
    for lagging, fresh in (("ILag-Pair", "IS-Pair"), ("ILag", "IS")):
        for fraction, late, own in pairs(tables, lagging, fresh):
            some = True
            found = paired(tables, str(late["setting"]), str(own["setting"]))
            yield (
                f"{lagging} {fraction:g}: IMPT {late['impt_s']:.3g} s against {own['impt_s']:.3g}"
                f" s; accuracy less that of {fresh} {points(found)} points:"
                f" {same(found)}{' within 1 point' if same(found) == 'the same' else ''}."
            )
    if not some:
        yield "ILag-Pair and IS-Pair were not simulated at the same Q."
