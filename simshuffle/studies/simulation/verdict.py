"""The verdict on runs, from their tables: which tie and lose at every scale, why, what
the verdict rests on, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from simshuffle.report import intervals
from simshuffle.studies.simulation import contest, mishaps
from simshuffle.studies.simulation.causes import Causes, causes_of_run
from simshuffle.studies.simulation.contest import Scale, scales_of, warm_epochs
from simshuffle.studies.simulation.ranking import join_words, rank_runs
from simshuffle.studies.simulation.tables import means_over_seeds
from simshuffle.study.study import Result

UNANSWERED = {
    "--seeds 3": "chance",
    "--interval": "errors of inputs and laws",
    "simshuffle accuracy": "accuracy",
}
"""Question that a verdict leaves out, by the option or verb that answers it."""


def verdict(result: Result) -> list[str]:
    """Return the sentences of the verdict on a result of ``run``; [] without epochs.

    They are a sentence for each scale, what still changes, mishaps, what stays hidden,
    why, what to measure or ask next, and what the verdict rests on.
    """
    run_means = means_over_seeds(result.tables["epochs"], result.tables["breakdown"])
    rows = warm_epochs(run_means.epochs, run_means.epoch_half)
    if rows.empty:
        return []
    scales = scales_of(rows, contest.inputs_of_run(result))
    causes = causes_of_run(result, rows, run_means.breakdown)
    interval_meta = result.meta.get("intervals")
    return [
        *rank_runs(scales, causes, interval_meta),
        *filter(None, [result.meta.get("not_steady")]),
        *mishaps.list_sentences(result),
        *describe_hidden_fraction(result.meta.get("hidden", {})),
        *causes.explain_time(scales),
        *suggest_next_steps(rows, run_means.seeds, interval_meta),
        describe_basis(rows, run_means.seeds),
    ]


def verdict_of_sweep(
    scales: Sequence[Scale],
    causes: Causes,
    seeds: int,
    interval_meta: Mapping[str, Any] | None,
) -> list[str]:
    """Return the sentences of the verdict on a result of ``sweep``.

    Args:
        scales: the runs that are compared, by scale.
        causes: the causes of the time of each run.
        seeds: seeds of each run.
        interval_meta: intervals of the result, if it has any.
    """
    rows = pd.concat([scale.rows for scale in scales])
    return [
        *rank_runs(scales, causes, interval_meta),
        *causes.explain_time(scales),
        *suggest_next_steps(rows, seeds, interval_meta),
        describe_basis(rows, seeds),
    ]


def describe_hidden_fraction(hidden: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line on the largest exchanged fraction that stays hidden, by closed
    forms.

    There is none where the fractions are 0, or where ``hidden`` is empty. The schedule
    of the largest number of ranks stands for all.

    Args:
        hidden: ``fraction`` and ``schedule`` by number of ranks, as ``meta.json`` has
            them.
    """
    world_sizes = sorted(hidden, key=int)
    if not any(hidden[world_size]["fraction"] for world_size in world_sizes):
        return
    fractions = [f"{hidden[world_size]['fraction']:.2g}" for world_size in world_sizes]
    if len(set(fractions)) == 1:
        end_sizes = dict.fromkeys((world_sizes[0], world_sizes[-1]))
        size_range = " to ".join(f"{int(world_size):,}" for world_size in end_sizes)
        fraction_text = f"{fractions[0]} on {size_range}"
    else:
        pairs = zip(fractions, world_sizes, strict=True)
        fraction_text = join_words(
            [f"{fraction} on {int(world_size):,}" for fraction, world_size in pairs]
        )
    schedule = hidden[world_sizes[-1]]["schedule"]
    yield (
        f"Q up to {fraction_text} ranks stays hidden (at most 1 % longer, {schedule}), by closed"
        " forms; simshuffle study hiding simulates it."
    )


def describe_basis(rows: pd.DataFrame, seeds: int) -> str:
    """Return the sentence on what the numbers rest on: epoch, seeds, and whether a part
    of the iterations was simulated.

    Args:
        rows: of `simshuffle.studies.simulation.contest.warm_epochs`.
        seeds: seeds of each run.
    """
    last_epoch = int(rows["epoch"].max())
    parts = [f"epoch {last_epoch} of {last_epoch}" if last_epoch > 1 else "one epoch"]
    parts.append("one seed" if seeds == 1 else f"{seeds} seeds")
    if (rows["iterations_simulated"] < rows["iterations"]).any():
        parts.append("a part of the iterations")
    return f"Rests on {join_words(parts)}."


def suggest_next_steps(
    rows: pd.DataFrame, seeds: int, interval_meta: Mapping[str, Any] | None
) -> Iterator[str]:
    """Yield a line on what to measure next, or on the questions that are left out.

    With intervals it is what to measure; else seeds, intervals and accuracy, as far as
    they are open: seeds with one seed, accuracy if a run exchanges a fraction below 1.
    """
    if interval_meta is not None:
        yield from intervals.describe_measured(interval_meta)
        yield from intervals.measure_next(interval_meta)
        return
    is_unanswered = {
        "--seeds 3": seeds == 1,
        "--interval": True,
        "simshuffle accuracy": bool((rows["exchange_fraction"] < 1).any()),
    }
    parts = [
        f"{UNANSWERED[name]} ({name})"
        for name, is_open in is_unanswered.items()
        if is_open
    ]
    yield f"Left out: {join_words(parts)}."
