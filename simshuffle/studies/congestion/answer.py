"""State the answer of a comparison, a line for each number of ranks: how long an
all-to-all takes, and how long pairwise exchanges of equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor, log, log10

import pandas as pd

from simshuffle.studies.congestion.patterns import PATTERNS, Variant
from simshuffle.studies.congestion.tables import VARIANT, groups, routings
from simshuffle.studies.congestion.verdict import (
    EQUAL,
    FACTORS,
    JUDGES,
    rows_of_variant,
)
from simshuffle.study.study import Tables
from simshuffle.study.verdict import Verdict, join_sentences

ALL_TO_ALL = Variant("all_to_all")
RIVALS = (
    "pairing_random",
    "random_permutations",
    "linear_shift",
    "xor",
    "pairing_importance",
)
"""Patterns that the all-to-all is held against: the first of them that was run."""
ON_ONE_LEAF = Variant("pairing_topology", "iteration")
CAUSES = {
    "links": "the bytes of the busiest link",
    "steps": "order, collisions and barriers",
    "messages": "the cost of messages",
}
"""Words for `FACTORS`."""


@dataclass(frozen=True)
class Duration:
    """The time (s) that a variant takes: its median, and its range."""

    median: float  # over seeds
    # the lowest and the highest of the seeds, and of the intervals of what was not simulated
    low: float
    high: float


def verdict(tables: Tables) -> Verdict:
    """Return the verdict: a sentence for each number of ranks, and what decides on the
    most ranks.
    """
    times = tables["times"]
    names = routings(tables)
    num_seeds = times["seed"].nunique()
    missing_models = [name for name in JUDGES if name not in set(times["model"])]
    next_steps = [f"the {name} model (--network {name})" for name in missing_models]
    next_steps += ["chance (--seeds 5)"] * (num_seeds == 1)
    return Verdict(
        [answer(rows, names) for _, rows in groups(times, "world_size")],
        why=_explain_ratio(tables),
        rests_on=(
            f"{num_seeds} seed{'s' * (num_seeds > 1)}, the routing{'s' * (len(names) > 1)}"
            f" {', '.join(names)}, and one message a pair and iteration."
        ),
        measure_next=join_sentences(next_steps),
    )


def _explain_ratio(tables: Tables) -> str:
    """Return the sentence on the factor that most of the rival's ratio to the base is,
    on the most ranks; '' where they were not compared or no factor matters.

    It is of the first model, set of bytes, measure and routing that was compared.
    """
    times = tables["times"]
    largest = times[times["world_size"] == times["world_size"].max()]
    base, rival, _ = contenders(largest)
    comparisons = tables["comparisons"]
    rows = comparisons[
        (comparisons["world_size"] == largest["world_size"].iloc[0])
        & (comparisons["a"] == str(base))
        & (comparisons["b"] == str(rival))
    ].to_dict("records")
    if rival is None or not rows:
        return ""
    factors = {name: 1 / rows[0][name] for name in FACTORS}
    name = max(factors, key=lambda factor: abs(log(factors[factor])))
    if _sign(factors[name]) == 0:
        return ""
    return (
        f"on {rows[0]['world_size']:,} ranks, {CAUSES[name]} alone would make"
        f" {short_label(rival)} {describe_ratio(factors[name])}."
    )


def answer(times: pd.DataFrame, names: list[str]) -> str:
    """Return the sentence for one number of ranks: durations under one routing, or
    ratios of the rival's time to the base's (see `contenders`) under several.

    Under several routings, and without a rival, it says that only the base was run.

    Args:
        times: rows of one number of ranks in the table ``times``.
        names: names of the routings that were compared.
    """
    ranks = f"{times['world_size'].iloc[0]:,} ranks"
    if len(names) == 1:
        return f"{ranks}: {'; '.join(_duration_phrases(times))}."
    base, rival, _ = contenders(times)
    if rival is None:
        return (
            f"{ranks}: only {short_label(base)} was run, under {len(names)} routings."
        )
    ratio_by_routing = {
        routing: describe_ratio(Contest.read(rows, base, rival).ratio)
        for (routing,), rows in groups(times, "routing")
    }
    return (
        f"{ranks}: {short_label(rival)} compared with {short_label(base)}: "
        + "; ".join(
            f"{ratio} ({routing})" for routing, ratio in ratio_by_routing.items()
        )
        + "."
    )


def _duration_phrases(times: pd.DataFrame) -> Iterator[str]:
    """Yield how long each of the `contenders` takes under one routing, a phrase each,
    all in the unit of the longest.

    The rival's phrase also has `Contest.text`: its ratio to the base, and by which
    seeds and models. Times of the analytic model are lower bounds ('at least') and are
    not compared.
    """
    base, rival, leaf = contenders(times)
    rows, model = shown_rows(times)
    qualifier = "at least " if model == "analytic" else ""
    chosen = [variant for variant in (base, rival, leaf) if variant is not None]
    durations = {variant: duration(rows, variant) for variant in chosen}
    unit, name = time_unit(
        max(variant_duration.median for variant_duration in durations.values())
    )
    for variant, variant_duration in durations.items():
        contest = Contest.read(times, base, variant) if variant == rival else None
        seconds = digits_of(variant_duration.median / unit)
        phrase = f"{short_label(variant)} {qualifier}{seconds} {name}"
        yield f"{phrase}, {contest.text}" if contest and model in JUDGES else phrase


def contenders(times: pd.DataFrame) -> tuple[Variant, Variant | None, Variant | None]:
    """Return the base (the all-to-all), its rival, and pairs on one leaf, of those that
    were run.

    The base is the first that was run of the all-to-all, `RIVALS` and pairs on one
    leaf, and the rival is the next of them; None if there is none. Pairs on one leaf
    are None in third place where they are base or rival, or were not run. Of each pair
    pattern the variant with a message an iteration and no barrier counts.
    """
    variants_run = {
        Variant(*row)
        for row in times[VARIANT].drop_duplicates().itertuples(index=False, name=None)
    }
    variants = [
        ALL_TO_ALL,
        *(Variant(pattern, "iteration") for pattern in RIVALS),
        ON_ONE_LEAF,
    ]
    contending = [variant for variant in variants if variant in variants_run]
    base = contending[0]
    challengers = contending[1:]
    rival = challengers[0] if challengers else None
    leaf = ON_ONE_LEAF if ON_ONE_LEAF in challengers[1:] else None
    return base, rival, leaf


def shown_rows(times: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the rows of one model and one set of bytes that answers and tables show,
    and the name of the model.

    The model is the first of fluid, packet and analytic that was run; the set of bytes
    ('full' or 'short') is that of its first row. All other rows are left out.
    """
    model = next(name for name in (*JUDGES, "analytic") if name in set(times["model"]))
    rows = times[times["model"] == model]
    return rows[rows["bytes_set"] == rows["bytes_set"].iloc[0]], model


def duration(rows: pd.DataFrame, variant: Variant) -> Duration:
    """Return how long a variant takes in ``rows``: the median over their seeds, and the
    range of all their intervals (s). NaN if ``rows`` have none of it.
    """
    variant_rows = rows_of_variant(rows, variant)
    return Duration(
        median=float(variant_rows["time_s"].median()),
        low=float(variant_rows["low_s"].min()),
        high=float(variant_rows["high_s"].max()),
    )


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit in which a time is printed, s, ms or us, the largest that is not
    above the time: its seconds, and its name. Times below 1 us are in us.
    """
    return next(
        (unit, name)
        for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
        if seconds >= unit or name == "us"
    )


def digits_of(value: float, digits: int = 3) -> str:
    """Return a number with ``digits`` significant digits, without an exponent; '0' for
    numbers that are not positive.
    """
    rounded = float(f"{value:.{digits}g}")
    return (
        f"{rounded:.{max(0, digits - 1 - floor(log10(rounded)))}f}"
        if rounded > 0
        else "0"
    )


def short_label(variant: Variant) -> str:
    """Return the label of a variant's pattern, without its batching."""
    return PATTERNS[variant.pattern].label


@dataclass(frozen=True)
class Contest:
    """The comparison of two variants under one routing, by every model and in every
    seed.
    """

    ratio: float  # time of the rival over that of the base, median over seeds
    seeds: int  # number of seeds in which both were run
    # seeds in which both ends of the ratio's interval have the winner of the median, or
    # are equal within `EQUAL` if the median is
    agreeing: int
    # network models with this winner, first the one that `shown_rows` chooses; with
    # ', first bytes' on shortened bytes where that same model has them, too
    models: tuple[str, ...]
    opposed: tuple[str, ...]  # network models with another winner, named alike

    @classmethod
    def read(cls, times: pd.DataFrame, base: Variant, rival: Variant) -> Contest:
        """Compare two variants in the rows of ``times`` of one number of ranks and one
        routing. Models other than `JUDGES` have no say, except the one that is shown.
        """
        displayed_rows, displayed_model = shown_rows(times)
        ratios = _ratios(displayed_rows, base, rival)
        ratio = float(ratios["time_s"].median())
        winner = _sign(ratio)
        # in a seed, a winner has to win by either end of its interval
        wins_surely = (ratios["low_s"].map(_sign) == winner) & (
            ratios["high_s"].map(_sign) == winner
        )
        agreeing = [displayed_model]
        opposed = list[str]()
        for (bytes_set, model), rows in groups(times, "bytes_set", "model"):
            model_ratios = _ratios(rows, base, rival)
            if (
                model not in JUDGES
                or model_ratios.empty
                or (bytes_set, model) == _bytes_set_and_model(displayed_rows)
            ):
                continue
            name = (
                str(model)
                if bytes_set == "full" or model != displayed_model
                else f"{model}, first bytes"
            )
            agrees = _sign(float(model_ratios["time_s"].median())) == winner
            (agreeing if agrees else opposed).append(name)
        return cls(
            ratio, len(ratios), int(wins_surely.sum()), tuple(agreeing), tuple(opposed)
        )

    @property
    def text(self) -> str:
        """The ratio, in how many seeds it holds, and by which network models, in
        words.
        """
        seeds = f"in {self.agreeing} of {self.seeds} seeds"
        if self.seeds == 1:
            seeds = (
                "in one seed only"
                if self.agreeing
                else "uncertain (a part was not simulated)"
            )
        elif self.agreeing == self.seeds:
            seeds = "in all seeds"
        if self.opposed:
            show = "do not show" if len(self.opposed) > 1 else "does not show"
            models = f"but the {' and the '.join(map(_model_phrase, self.opposed))} {show} it"
        elif set(JUDGES) <= set(self.models):
            models = "by both network models"
        else:
            models = f"by the {self.models[0]} model alone"
        return f"{describe_ratio(self.ratio)}, {seeds}, {models}"


def describe_ratio(ratio: float) -> str:
    """Return the ratio of a rival's time to the base's in words: '1.5 times as long',
    '1.5 times as fast', or 'equally long (within 1 %)'.
    """
    side = _sign(ratio)
    if side == 0:
        return "equally long (within 1 %)"
    factor = ratio if side > 0 else 1 / ratio
    return f"{factor:.2g} times as {'long' if side > 0 else 'fast'}"


def _model_phrase(name: str) -> str:
    """Return a name of `Contest.opposed` in words."""
    model, _, short = name.partition(",")
    return f"{model} model" + " of the first samples alone" * bool(short)


def _ratios(rows: pd.DataFrame, base: Variant, rival: Variant) -> pd.DataFrame:
    """Return the ratio of the rival's time to the base's time for each seed in which
    both were run.

    Columns: time_s, and in low_s and high_s the lowest and highest ratio that their
    intervals allow. All are ratios, without a unit.
    """
    base_times, rival_times = (
        rows_of_variant(rows, variant).set_index("seed")[["time_s", "low_s", "high_s"]]
        for variant in (base, rival)
    )
    base_bounds_swapped = base_times.rename(
        columns={"low_s": "high_s", "high_s": "low_s"}
    )
    return (rival_times / base_bounds_swapped).dropna()


def _sign(ratio: float) -> int:
    """Return 1 if a ratio is above 1 (the rival is slower), -1 if it is below, 0 if it
    differs from 1 by less than `EQUAL`.
    """
    return 0 if abs(ratio - 1.0) < EQUAL else 1 if ratio > 1.0 else -1


def _bytes_set_and_model(rows: pd.DataFrame) -> tuple[str, str]:
    """Return the set of bytes and the network model of the first row."""
    return str(rows["bytes_set"].iloc[0]), str(rows["model"].iloc[0])
