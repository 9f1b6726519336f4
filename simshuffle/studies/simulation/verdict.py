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
from simshuffle.study.verdict import Verdict, join_sentences, separate_remedy

UNANSWERED = {
    "--seeds 3": "chance",
    "--interval": "errors of inputs and laws",
    "simshuffle accuracy": "accuracy",
}
"""Question that a verdict leaves out, by the option or verb that answers it."""


def verdict(result: Result) -> Verdict:
    """Return the verdict on a result of ``run``; without sentences if it has no epochs.

    The answer is a sentence for each scale, one for each mishap, and one on what stays
    hidden.
    """
    run_means = means_over_seeds(result.tables["epochs"], result.tables["breakdown"])
    rows = warm_epochs(run_means.epochs, run_means.epoch_half)
    if rows.empty:
        return Verdict()
    scales = scales_of(rows, contest.inputs_of_run(result))
    further_answers = [
        *mishaps.list_sentences(result),
        *describe_hidden_fraction(result.meta.get("hidden", {})),
    ]
    return judge_scales(
        scales,
        causes_of_run(result, rows, run_means.breakdown),
        run_means.seeds,
        result.meta.get("intervals"),
        further_answers=further_answers,
        warming=result.meta.get("not_steady", ""),
    )


def judge_scales(
    scales: Sequence[Scale],
    causes: Causes,
    seeds: int,
    interval_meta: Mapping[str, Any] | None,
    *,
    further_answers: Sequence[str] = (),
    warming: str = "",
) -> Verdict:
    """Return the verdict on runs: which tie and which lose at each scale, and why.

    Args:
        scales: the runs that are compared, by scale.
        causes: the causes of the time of each run.
        seeds: seeds of each run.
        interval_meta: intervals of the result, if it has any.
        further_answers: sentences behind those on the scales.
        warming: the sentence on caches that still fill, '' if none do.
    """
    rows = pd.concat([scale.rows for scale in scales])
    finding, steps = separate_remedy(warming)
    steps += suggest_next_steps(rows, seeds, interval_meta)
    measured = (
        [] if interval_meta is None else intervals.describe_measured(interval_meta)
    )
    basis = [describe_basis(rows, seeds), finding[:1].lower() + finding[1:], *measured]
    return Verdict(
        [*rank_runs(scales, causes, interval_meta), *further_answers],
        why=causes.explain_time(scales),
        rests_on=join_sentences(basis),
        measure_next=join_sentences(steps) or f"{intervals.NOTHING_NARROWS}.",
    )


def describe_hidden_fraction(hidden: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line on the largest exchanged fraction that stays hidden, by closed
    forms.

    There is none where the fractions are 0, or where ``hidden`` is empty.

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
    yield (
        f"An exchange of up to Q = {fraction_text} ranks stays hidden (an epoch at most 1 %"
        " longer), by closed forms."
    )


def describe_basis(rows: pd.DataFrame, seeds: int) -> str:
    """Return what the numbers rest on: epoch, seeds, and whether a part of the
    iterations was simulated.

    Args:
        rows: of `simshuffle.studies.simulation.contest.warm_epochs`.
        seeds: seeds of each run.
    """
    last_epoch = int(rows["epoch"].max())
    parts = [f"epoch {last_epoch} of {last_epoch}" if last_epoch > 1 else "one epoch"]
    parts.append("one seed" if seeds == 1 else f"{seeds} seeds")
    if (rows["iterations_simulated"] < rows["iterations"]).any():
        parts.append("a part of the iterations")
    return join_words(parts)


def suggest_next_steps(
    rows: pd.DataFrame, seeds: int, interval_meta: Mapping[str, Any] | None
) -> list[str]:
    """Return phrases on what to measure next, or on the questions that are left out.

    With intervals they are what to measure; else seeds, intervals and accuracy, as far
    as they are open: seeds with one seed, accuracy if a run exchanges a fraction below 1.
    """
    if interval_meta is not None:
        misfits = intervals.describe_misfits(interval_meta)
        return [*misfits, intervals.measure_next(interval_meta)]
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
    return [join_words(parts)]
