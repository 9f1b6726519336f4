"""Which of two ways is faster, by how much, and how far that can be trusted; and what decides:
barriers, messages or partners, each switched alone at equal bytes. From the table of times."""

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
"""What distinguishes the pairing from the permutations, each a switch."""
STATES = tuple(product((False, True), repeat=len(SWITCHES)))


def _corner(state: tuple[bool, ...]) -> Variant:
    free, together, fixed = state
    batching: Batching = "iteration" if together else "sample"
    return Variant("pairing_random" if fixed else "random_permutations", batching, barrier=not free)


CORNERS = tuple(_corner(state) for state in STATES)
"""All states of the switches, from none to all."""
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
    (Variant("random_permutations", "iteration"), Variant("pairing_random", "iteration")),
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
"""What is counted, and the column of ``times`` that has it."""
_PAIR = {
    "world_size": WORLD_SIZE,
    "routing": ROUTING,
    "a": text("variant"),
    "b": text("variant"),
    "counted": text(
        "'messages': with what messages cost; 'wire': on the wire alone, where they cost nothing",
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
        "winner": text("of the median ratio: 'a', 'b', or 'equal' within 1 %", *_WINNERS),
        "ratio_median": amount("time of a / time of b on the same bytes: above 1, b is faster"),
        "ratio_min": amount("lowest ratio of the seeds"),
        "ratio_max": amount("highest ratio of the seeds"),
        "share": share("share of the seeds with this winner"),
        "shared": text(
            "winner over those seeds alone that every model of this set has run", *_WINNERS
        ),
        "links": amount(
            "bound_s of a / bound_s of b: what the busiest link takes; geometric mean over seeds,"
            " as in the next two, which multiply with it to that of the ratio"
        ),
        "steps": amount("slowdown of a / slowdown of b: what order, collisions and barriers do"),
        "messages": amount("what messages cost: of time_s / wire_s that of a / that of b"),
    }
)
VERDICTS = Schema(
    {
        **_PAIR,
        "winner": text(
            "'a', 'b' or 'equal': by the fluid model on all bytes, or by what there is", *_WINNERS
        ),
        "verdict": text(
            "'stable', 'unstable', or 'unchecked' where only one model was run, or one seed"
        ),
        "reason": text("what speaks against it"),
    }
)
ROUTINGS = Schema(
    {
        **{name: column for name, column in _PAIR.items() if name != "routing"},
        "routings": count("routings that were asked", 1),
        "winner": text(
            "'a', 'b' or 'equal' if it is that under every routing, else 'differs'",
            *_WINNERS,
            "differs",
        ),
        "unstable": count("of them those whose verdict is 'unstable'"),
        "holds": flag("whether the winner is one, and no verdict unstable"),
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
            "time after / time before, switched first and alone: median over seeds", look=".2f"
        ),
        "alone_min": amount("lowest of the seeds"),
        "alone_max": amount("highest of the seeds"),
        "last": amount(
            "the same, switched when the others are on already; empty for other partners",
            empty=True,
            look=".2f",
        ),
        "mean": amount(
            "geometric mean over seeds and over all orders of switching; the three multiply to that"
            " of 'all three'",
            empty=True,
            head="any order",
            look=".2f",
        ),
        "wire": amount(
            "mean, or alone of other partners, on the wire, where messages cost nothing",
            head="on the wire",
            look=".2f",
        ),
    }
)


def compared(variants: Iterable[Variant]) -> set[Variant]:
    """Those of ``variants`` that a question or the ablation needs, if all it needs is there."""
    there = set(variants)
    groups = [*QUESTIONS, CORNERS, *((CORNERS[0], other) for other in PARTNERS_ALONE)]
    return {variant for group in groups if there.issuperset(group) for variant in group}


def rows_of_variant(rows: pd.DataFrame, variant: Variant) -> pd.DataFrame:
    """Return the rows of a variant, one for each seed."""
    return rows[np.logical_and.reduce([rows[name] == getattr(variant, name) for name in VARIANT])]


def of_variant(times: pd.DataFrame, variant: Variant) -> pd.DataFrame:
    """Numbers of a variant by seed."""
    return rows_of_variant(times, variant).set_index("seed")[[*COUNTED.values(), "bound_s"]]


def comparisons(times: pd.DataFrame) -> pd.DataFrame:
    """Every question in every case, by every model, with what messages cost if they cost anything,
    and on the wire: columns `COMPARISONS`."""
    rows = []
    judged = times[times["model"].isin(JUDGES)]
    ways = [*COUNTED] if messages_cost(times) else ["wire"]
    for (world_size, routing, bytes_set), case in groups(judged, *SIZE):
        of_model = {model: rows for (model,), rows in groups(case, "model")}
        for (a, b), counted in product(QUESTIONS, ways):
            ratios = {
                model: (of_variant(rows, a) / of_variant(rows, b)).dropna()
                for model, rows in of_model.items()
            }
            ratios = {model: ratio for model, ratio in ratios.items() if len(ratio)}
            common = set.intersection(*(set(of.index) for of in ratios.values())) if ratios else ()
            pair = (world_size, routing, str(a), str(b), counted)
            for model, ratio in ratios.items():
                found = _compared(ratio, counted, sorted(common))
                key = dict(zip(_PAIR, pair, strict=True))
                rows.append({**key, "bytes_set": bytes_set, "model": model, **found})
    return COMPARISONS.framed(rows)


def _compared(ratios: pd.DataFrame, counted: str, common: list[int]) -> dict[str, object]:
    """What is said of the ratios by seed; ``common`` are the seeds of every model."""
    ratio = ratios[COUNTED[counted]]
    median = float(ratio.median())
    winner = _winner(median)
    factors = (ratios["bound_s"], ratios["wire_s"] / ratios["bound_s"], ratio / ratios["wire_s"])
    means = (float(np.exp(np.log(of).mean())) for of in factors)
    return {
        "seeds": len(ratio),
        "winner": winner,
        "ratio_median": median,
        "ratio_min": float(ratio.min()),
        "ratio_max": float(ratio.max()),
        "share": float(np.mean([_winner(value) == winner for value in ratio])),
        "shared": _winner(float(ratio[common].median())),
        **dict(zip(FACTORS, means, strict=True)),
    }


def _winner(ratio: float) -> str:
    return "equal" if abs(ratio - 1.0) < EQUAL else "b" if ratio > 1 else "a"


def verdicts(table: pd.DataFrame) -> pd.DataFrame:
    """A judgement of each question in each case of `comparisons`: columns `VERDICTS`."""
    rows = []
    for pair, case in groups(table, *_PAIR):
        verdict, reasons = _judge(case)
        # 'full' before 'short', 'fluid' before 'packet'
        first = case.sort_values(["bytes_set", "model"], kind="stable").iloc[0]
        rows.append((*pair, first["winner"], verdict, "; ".join(reasons)))
    return VERDICTS.framed(rows)


def _judge(case: pd.DataFrame) -> tuple[str, list[str]]:
    """The verdict on the comparisons of one pair, and what speaks against it."""
    rows = case.to_dict("records")
    reasons = []
    if any(
        len({row["shared"] for row in rows if row["bytes_set"] == bytes_set}) > 1
        for bytes_set in ("full", "short")
    ):
        reasons.append("fluid and packet disagree")
    if len({row["winner"] for row in rows if row["model"] == "fluid"}) > 1:
        reasons.append("the shortened bytes give another winner")
    for row in rows:
        if row["share"] < SURE:
            reasons.append(
                f"holds in {100 * row['share']:.0f} % of the seeds"
                f" ({row['model']}{', short' * (row['bytes_set'] == 'short')})"
            )
    if reasons:
        return "unstable", reasons
    missing = [model for model in JUDGES if model not in {row["model"] for row in rows}]
    lone = [row["model"] for row in rows if row["seeds"] < LEAST_SEEDS]
    reasons = [f"not compared by the {model} model" for model in missing[:1]]
    reasons += [f"{model}: one seed, which says nothing of chance" for model in lone[:1]]
    return ("unchecked", reasons) if reasons else ("stable", [])


def over_routings(judged: pd.DataFrame) -> pd.DataFrame:
    """Of the table of `verdicts`, what holds whatever the routing: columns `ROUTINGS`."""
    rows = []
    for pair, case in groups(judged, "world_size", "a", "b", "counted"):
        winners, unstable = set(case["winner"]), int((case["verdict"] == "unstable").sum())
        winner = winners.pop() if len(winners) == 1 else "differs"
        said = "; ".join(
            f"{row['routing']}: {row['winner']}, {row['verdict']}"
            for row in case.to_dict("records")
        )
        holds = winner != "differs" and not unstable
        rows.append((*pair, len(case), winner, unstable, holds, said))
    return ROUTINGS.framed(rows)


def ablation(times: pd.DataFrame) -> pd.DataFrame:
    """Factors on the time, in every case that has all of `CORNERS`: columns `ABLATION`."""
    rows: list[dict[str, object]] = []
    for values, case in groups(times, *SIZE, "model"):
        logs, wire = (_logs(case, column) for column in COUNTED.values())
        if all(corner in logs for corner in CORNERS):
            key = dict(zip((*SIZE, "model"), values, strict=True))
            for row, bare in zip(_factors(logs), _factors(wire), strict=True):
                own = bare["alone"] if np.isnan(bare["mean"]) else bare["mean"]
                rows.append({**key, **row, "wire": own})
    return ABLATION.framed(rows)


def _logs(case: pd.DataFrame, column: str) -> dict[Variant, Floats]:
    """Logarithms of a column (seeds,) by variant."""
    wide = case.pivot(index="seed", columns=VARIANT, values=column)
    return {
        Variant(*of): np.log(seconds)
        for of, seconds in zip(wide.columns, wide.to_numpy().T, strict=True)
    }


def _factors(logs: dict[Variant, Floats]) -> list[dict[str, Any]]:
    """Rows of one case; ``logs`` are the logarithms of the times (seeds,) of each variant."""
    at = {state: logs[corner] for state, corner in zip(STATES, CORNERS, strict=True)}
    rows = []
    for number, switch in enumerate(SWITCHES):
        changes = {
            state: at[*state[:number], True, *state[number + 1 :]] - at[state]
            for state in STATES
            if not state[number]
        }
        mean = np.sum([_weight(sum(state)) * change for state, change in changes.items()], axis=0)
        rows.append(_row(switch, changes[STATES[0]], changes[max(changes, key=sum)], mean))
    whole = at[STATES[-1]] - at[STATES[0]]
    rows.append(_row("all three", whole, whole, whole))
    rows += [
        _row(f"{other.pattern} alone", logs[other] - at[STATES[0]])
        for other in PARTNERS_ALONE
        if other in logs
    ]
    return rows


def _weight(others: int) -> float:
    """Share of the orders of switching in which ``others`` others come before a switch."""
    count = len(SWITCHES)
    return factorial(others) * factorial(count - 1 - others) / factorial(count)


def _row(
    switch: str, alone: Floats, last: Floats | None = None, mean: Floats | None = None
) -> dict[str, Any]:
    factors = np.exp(alone)
    return {
        "switch": switch,
        "alone": float(np.median(factors)),
        "alone_min": float(factors.min()),
        "alone_max": float(factors.max()),
        "last": np.nan if last is None else float(np.median(np.exp(last))),
        "mean": np.nan if mean is None else float(np.exp(mean.mean())),
    }
