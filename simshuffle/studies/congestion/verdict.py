"""Judge which of two variants is faster, by how much, and how far that can be trusted;
and divide the difference among barriers, messages and partners, each switched alone at
equal bytes. From the table of times.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from math import factorial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.studies.congestion.patterns import Batching, Variant
from simshuffle.studies.congestion.tables import (
    BYTES_SET,
    MODEL,
    ROUTING,
    SIZE,
    VARIANT,
    WORLD_SIZE,
    groups,
    messages_cost,
)
from simshuffle.study.schema import Schema, amount, count, flag, share, text

Floats = NDArray[np.float64]

SWITCHES = ("no barriers", "one message an iteration", "one partner an epoch")
"""Switches, each a difference between the pairing and the permutations."""
STATES = tuple(product((False, True), repeat=len(SWITCHES)))


def _variant_of_state(state: tuple[bool, ...]) -> Variant:
    """Return the variant of a state of the `SWITCHES`, on or off each."""
    without_barriers, per_iteration, keeps_partner = state
    batching: Batching = "iteration" if per_iteration else "sample"
    return Variant(
        "pairing_random" if keeps_partner else "random_permutations",
        batching,
        barrier=not without_barriers,
    )


CORNERS = tuple(_variant_of_state(state) for state in STATES)
"""Every state of the switches, from no switch on to all on."""
PRACTICE = CORNERS[0]
"""A permutation and a barrier for every sample."""
PARTNERS_ALONE = tuple(
    Variant(pattern, "sample", barrier=True)
    for pattern in ("linear_shift", "xor", "pairing_topology", "pairing_importance")
)
"""Other partners in place of the permutations, and nothing else."""

QUESTIONS: tuple[tuple[Variant, Variant], ...] = (
    (Variant("all_to_all"), Variant("pairing_random")),
    (Variant("all_to_all"), Variant("pairing_random", "iteration")),
    (Variant("all_to_all"), Variant("pairing_random", "iteration", barrier=True)),
    (Variant("all_to_all"), PRACTICE),
    (PRACTICE, Variant("linear_shift", "sample", barrier=True)),
    (PRACTICE, Variant("pairing_random", "iteration", barrier=True)),
    (PRACTICE, Variant("pairing_random", "iteration")),
    (
        Variant("random_permutations", "iteration"),
        Variant("pairing_random", "iteration"),
    ),
    (
        Variant("pairing_random", "iteration", barrier=True),
        Variant("pairing_topology", "iteration", barrier=True),
    ),
    (
        Variant("pairing_random", "iteration", barrier=True),
        Variant("pairing_importance", "iteration", barrier=True),
    ),
)
"""Pairs of variants, each a way of exchange and what may replace it."""
EQUAL = 0.01
"""Times that differ by less than this share are equal."""
LEAST_SEEDS = 2
"""Seeds from which on a verdict can be stable."""
SURE = 0.9
"""A winner must win in this share of the seeds."""
JUDGES = ("fluid", "packet")
"""Models whose times count; the analytic one knows no contention."""

_WINNERS = ("a", "b", "equal")
COUNTED = {"messages": "time_s", "wire": "wire_s"}
"""Measures of the verdict, with their columns of ``times``."""
_PAIR = {
    "world_size": WORLD_SIZE,
    "routing": ROUTING,
    "a": text("variant"),
    "b": text("variant"),
    "counted": text(
        "'messages': times include the cost of messages; 'wire': times on the wire alone",
        *COUNTED,
    ),
}
FACTORS = ("links", "steps", "messages")
"""Columns of `COMPARISONS` into which a ratio is divided."""
COMPARISONS = Schema(
    {
        **_PAIR,
        "bytes_set": BYTES_SET,
        "model": MODEL,
        "seeds": count("seeds"),
        "winner": text(
            "winner by the median ratio: 'a', 'b', or 'equal' within 1 %", *_WINNERS
        ),
        "ratio_median": amount(
            "time of a / time of b on the same bytes: above 1, b is faster"
        ),
        "ratio_min": amount("lowest ratio over the seeds"),
        "ratio_max": amount("highest ratio over the seeds"),
        "share": share("share of the seeds with this winner"),
        "shared": text(
            "winner over the seeds that every model of this set ran", *_WINNERS
        ),
        "links": amount(
            "bound_s of a / bound_s of b, the effect of the busiest link. The geometric means over"
            " seeds of links, steps and messages multiply to that of the ratio"
        ),
        "steps": amount(
            "slowdown of a / slowdown of b, the effect of order, collisions and barriers"
        ),
        "messages": amount(
            "time_s / wire_s of a, divided by that of b, the effect of the cost of messages"
        ),
    }
)
VERDICTS = Schema(
    {
        **_PAIR,
        "winner": text(
            "'a', 'b' or 'equal': by the fluid model on all bytes, or by the first model that ran",
            *_WINNERS,
        ),
        "verdict": text(
            "'stable', 'unstable', or 'unchecked' where only one model was run, or one seed"
        ),
        "reason": text("what speaks against the verdict"),
    }
)
ROUTINGS = Schema(
    {
        **{name: column for name, column in _PAIR.items() if name != "routing"},
        "routings": count("number of compared routings", 1),
        "winner": text(
            "'a', 'b' or 'equal' if every routing has this winner, else 'differs'",
            *_WINNERS,
            "differs",
        ),
        "unstable": count("number of routings whose verdict is 'unstable'"),
        "holds": flag("whether there is one winner, and no verdict is 'unstable'"),
        "winners": text("winner and verdict by routing"),
    }
)
ABLATION = Schema(
    {
        "world_size": WORLD_SIZE,
        "routing": ROUTING,
        "bytes_set": BYTES_SET,
        "model": MODEL,
        "switch": text("what is changed", head="switched"),
        "alone": amount(
            "time after / time before, switched first and alone: median over seeds",
            look=".2f",
        ),
        "alone_min": amount("lowest value over the seeds"),
        "alone_max": amount("highest value over the seeds"),
        "last": amount(
            "time after / time before, if the other switches are on already: median over seeds;"
            " empty for switches of partners alone",
            empty=True,
            look=".2f",
        ),
        "mean": amount(
            "time after / time before, geometric mean over seeds and all orders of switching; the"
            " means of the three switches multiply to that of 'all three'",
            empty=True,
            head="any order",
            look=".2f",
        ),
        "wire": amount(
            "mean of times on the wire, where messages cost nothing; alone where mean is empty",
            head="on the wire",
            look=".2f",
        ),
    }
)


def judged_variants(variants: Iterable[Variant]) -> set[Variant]:
    """Return the ``variants`` that a question, the ablation, or a partner alone needs;
    one that lacks any of its variants needs none.
    """
    available = set(variants)
    variant_groups = [
        *QUESTIONS,
        CORNERS,
        *((CORNERS[0], partners) for partners in PARTNERS_ALONE),
    ]
    return {
        variant
        for variant_group in variant_groups
        if available.issuperset(variant_group)
        for variant in variant_group
    }


def rows_of_variant(rows: pd.DataFrame, variant: Variant) -> pd.DataFrame:
    """Return the rows of a variant: one for each seed if ``rows`` are of one model and
    set of bytes; none if it was not run.
    """
    return rows[
        np.logical_and.reduce(
            [rows[name] == getattr(variant, name) for name in VARIANT]
        )
    ]


def times_by_seed(times: pd.DataFrame, variant: Variant) -> pd.DataFrame:
    """Return the times of a variant by seed: columns time_s, wire_s, bound_s."""
    return rows_of_variant(times, variant).set_index("seed")[
        [*COUNTED.values(), "bound_s"]
    ]


def comparisons(times: pd.DataFrame) -> pd.DataFrame:
    """Compare the two variants of every question in every case: columns `COMPARISONS`.

    There is a row for each judge and measure: with what messages cost, if they cost
    anything, and on the wire. The analytic model is left out, and seeds that only one
    variant has. A question without a common seed has no row.
    """
    rows = []
    judged = times[times["model"].isin(JUDGES)]
    counted_kinds = [*COUNTED] if messages_cost(times) else ["wire"]
    for (world_size, routing, bytes_set), case in groups(judged, *SIZE):
        rows_of_model = {model: rows for (model,), rows in groups(case, "model")}
        for (a, b), counted in product(QUESTIONS, counted_kinds):
            ratios = {
                model: (times_by_seed(rows, a) / times_by_seed(rows, b)).dropna()
                for model, rows in rows_of_model.items()
            }
            ratios = {model: ratio for model, ratio in ratios.items() if len(ratio)}
            common_seeds = (
                set.intersection(
                    *(set(ratios_by_seed.index) for ratios_by_seed in ratios.values())
                )
                if ratios
                else ()
            )
            pair = (world_size, routing, str(a), str(b), counted)
            for model, ratio in ratios.items():
                summary = _summarise_ratios(ratio, counted, sorted(common_seeds))
                key = dict(zip(_PAIR, pair, strict=True))
                rows.append({**key, "bytes_set": bytes_set, "model": model, **summary})
    return COMPARISONS.framed(rows)


def _summarise_ratios(
    ratios: pd.DataFrame, counted: str, common_seeds: list[int]
) -> dict[str, object]:
    """Return the columns of `COMPARISONS` behind the key.

    Medians and extremes are over the seeds of one model, and the factors are geometric
    means; ``shared`` is the winner over the seeds that all models have.

    Args:
        ratios: a's times over b's, by seed; columns time_s, wire_s, bound_s.
        counted: the measure, a key of `COUNTED`.
        common_seeds: the seeds that every model has, at least one.
    """
    ratio = ratios[COUNTED[counted]]
    median = float(ratio.median())
    winner = _winner(median)
    factors = (
        ratios["bound_s"],
        ratios["wire_s"] / ratios["bound_s"],
        ratio / ratios["wire_s"],
    )
    means = (float(np.exp(np.log(factor).mean())) for factor in factors)
    return {
        "seeds": len(ratio),
        "winner": winner,
        "ratio_median": median,
        "ratio_min": float(ratio.min()),
        "ratio_max": float(ratio.max()),
        "share": float(np.mean([_winner(value) == winner for value in ratio])),
        "shared": _winner(float(ratio[common_seeds].median())),
        **dict(zip(FACTORS, means, strict=True)),
    }


def _winner(ratio: float) -> str:
    """Return the faster variant by the ratio of a's time to b's: 'a', 'b' or 'equal'.

    They are equal if the ratio differs from 1 by less than `EQUAL`.
    """
    return "equal" if abs(ratio - 1.0) < EQUAL else "b" if ratio > 1 else "a"


def verdicts(table: pd.DataFrame) -> pd.DataFrame:
    """Judge each question in each case of `comparisons`: columns `VERDICTS`.

    The winner is that of all bytes by the fluid model, or the first that there is.
    """
    rows = []
    for pair, case in groups(table, *_PAIR):
        verdict, reasons = _judge(case)
        # 'full' before 'short', 'fluid' before 'packet'
        first = case.sort_values(["bytes_set", "model"], kind="stable").iloc[0]
        rows.append((*pair, first["winner"], verdict, "; ".join(reasons)))
    return VERDICTS.framed(rows)


def _judge(case: pd.DataFrame) -> tuple[str, list[str]]:
    """Return the verdict on the comparisons of one pair, and the reasons against it.

    It is 'unstable' if models or sets of bytes disagree or a winner wins in less than
    `SURE` of the seeds; else 'unchecked' if a judge is missing or has one seed; else
    'stable'.
    """
    rows = case.to_dict("records")
    reasons = []
    if any(
        len({row["shared"] for row in rows if row["bytes_set"] == bytes_set}) > 1
        for bytes_set in ("full", "short")
    ):
        reasons.append("fluid and packet disagree")
    if len({row["winner"] for row in rows if row["model"] == "fluid"}) > 1:
        reasons.append("the first samples alone give another winner")
    for row in rows:
        if row["share"] < SURE:
            reasons.append(
                f"holds in only {100 * row['share']:.0f} % of the seeds"
                f" ({row['model']}{', short' * (row['bytes_set'] == 'short')})"
            )
    if reasons:
        return "unstable", reasons
    missing = [model for model in JUDGES if model not in {row["model"] for row in rows}]
    lone = [row["model"] for row in rows if row["seeds"] < LEAST_SEEDS]
    reasons = [f"not compared by the {model} model" for model in missing[:1]]
    reasons += [f"{model}: one seed, which does not show chance" for model in lone[:1]]
    return ("unchecked", reasons) if reasons else ("stable", [])


def verdicts_over_routings(judged: pd.DataFrame) -> pd.DataFrame:
    """Return which verdicts of `verdicts` hold under every routing: columns `ROUTINGS`."""
    rows = []
    for pair, case in groups(judged, "world_size", "a", "b", "counted"):
        winners = set(case["winner"])
        unstable = int((case["verdict"] == "unstable").sum())
        winner = winners.pop() if len(winners) == 1 else "differs"
        winners_text = "; ".join(
            f"{row['routing']}: {row['winner']}, {row['verdict']}"
            for row in case.to_dict("records")
        )
        holds = winner != "differs" and not unstable
        rows.append((*pair, len(case), winner, unstable, holds, winners_text))
    return ROUTINGS.framed(rows)


def ablation(times: pd.DataFrame) -> pd.DataFrame:
    """Return the factors of the switches on the time, in every case that has all of
    `CORNERS`: columns `ABLATION`.

    A case is of one model, also of the analytic one. Other cases have no rows.
    """
    rows: list[dict[str, object]] = []
    for values, case in groups(times, *SIZE, "model"):
        logs, wire_logs = (_log_seconds(case, column) for column in COUNTED.values())
        if all(corner in logs for corner in CORNERS):
            key = dict(zip((*SIZE, "model"), values, strict=True))
            for row, wire_row in zip(
                _factor_rows(logs), _factor_rows(wire_logs), strict=True
            ):
                wire_factor = (
                    wire_row["alone"]
                    if np.isnan(wire_row["mean"])
                    else wire_row["mean"]
                )
                rows.append({**key, **row, "wire": wire_factor})
    return ABLATION.framed(rows)


def _log_seconds(case: pd.DataFrame, column: str) -> dict[Variant, Floats]:
    """Return the natural logarithms of a column (seeds,) by variant; NaN in seeds that
    a variant lacks.
    """
    seconds_by_variant = case.pivot(index="seed", columns=VARIANT, values=column)
    return {
        Variant(*variant_values): np.log(seconds)
        for variant_values, seconds in zip(
            seconds_by_variant.columns, seconds_by_variant.to_numpy().T, strict=True
        )
    }


def _factor_rows(logs: dict[Variant, Floats]) -> list[dict[str, Any]]:
    """Return the rows of one case: each switch, all three, and partners alone.

    Rows have the columns of `_ablation_row`. Partners that were not run have no row.

    Args:
        logs: logarithms of the times (seeds,) by variant; it has all `CORNERS`.
    """
    logs_of_state = {
        state: logs[corner] for state, corner in zip(STATES, CORNERS, strict=True)
    }
    rows = []
    for switch_index, switch in enumerate(SWITCHES):
        changes = {
            state: logs_of_state[
                *state[:switch_index], True, *state[switch_index + 1 :]
            ]
            - logs_of_state[state]
            for state in STATES
            if not state[switch_index]
        }
        mean = np.sum(
            [_weight(sum(state)) * change for state, change in changes.items()], axis=0
        )
        rows.append(
            _ablation_row(
                switch, changes[STATES[0]], changes[max(changes, key=sum)], mean
            )
        )
    total_change = logs_of_state[STATES[-1]] - logs_of_state[STATES[0]]
    rows.append(_ablation_row("all three", total_change, total_change, total_change))
    rows += [
        _ablation_row(
            f"{variant.pattern} alone", logs[variant] - logs_of_state[STATES[0]]
        )
        for variant in PARTNERS_ALONE
        if variant in logs
    ]
    return rows


def _weight(earlier: int) -> float:
    """Return the share of the orders of switching in which ``earlier`` switches come
    before a given one.
    """
    num_switches = len(SWITCHES)
    return (
        factorial(earlier)
        * factorial(num_switches - 1 - earlier)
        / factorial(num_switches)
    )


def _ablation_row(
    switch: str, alone: Floats, last: Floats | None = None, mean: Floats | None = None
) -> dict[str, Any]:
    """Return the columns of `ABLATION` of a switch, but its case and ``wire``, from
    logarithms of factors (seeds,).

    Args:
        switch: name of the switch.
        alone: change where it is switched first.
        last: change where it is switched last; None gives NaN.
        mean: mean change over orders; None gives NaN.
    """
    factors = np.exp(alone)
    return {
        "switch": switch,
        "alone": float(np.median(factors)),
        "alone_min": float(factors.min()),
        "alone_max": float(factors.max()),
        "last": np.nan if last is None else float(np.median(np.exp(last))),
        "mean": np.nan if mean is None else float(np.exp(mean.mean())),
    }
