"""The verdict on runs, from their tables: who ties and who loses at every scale, why, what that
rests on, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from simshuffle.report import intervals
from simshuffle.studies.simulation import contest, mishaps
from simshuffle.studies.simulation.causes import Causes, causes_of_run
from simshuffle.studies.simulation.contest import Scale, scales_of, warm_epochs
from simshuffle.studies.simulation.ranking import answers, join
from simshuffle.studies.simulation.tables import means
from simshuffle.study.study import Result

NEXT = {
    "--seeds 3": "chance",
    "--interval": "errors of inputs and laws",
    "simshuffle accuracy": "accuracy",
}
"""What tells what a verdict leaves out."""


def verdict(result: Result) -> list[str]:
    """Return the verdict on a result of ``run``: a line for each scale; what still changes; why;
    what to measure or ask next; what it rests on."""
    shown = means(result.tables["epochs"], result.tables["breakdown"])
    rows = warm_epochs(shown.epochs, shown.epoch_half)
    if rows.empty:
        return []
    scales = scales_of(rows, contest.inputs_of_run(result))
    causes = causes_of_run(result, rows, shown.breakdown)
    found = result.meta.get("intervals")
    return [
        *answers(scales, causes, found),
        *filter(None, [result.meta.get("not_steady")]),
        *mishaps.sentences(result),
        *hidden_fraction(result.meta.get("hidden", {})),
        *causes.why(scales),
        *next_steps(rows, shown.seeds, found),
        rests_on(rows, shown.seeds),
    ]


def verdict_of_sweep(
    scales: Sequence[Scale], causes: Causes, seeds: int, found: Mapping[str, Any] | None
) -> list[str]:
    """Return the verdict on a result of ``sweep``, as `verdict`.

    Args:
        scales: what is compared.
        causes: of the time of each run.
        seeds: that each run has.
        found: its intervals, if it has any.
    """
    rows = pd.concat([scale.rows for scale in scales])
    return [
        *answers(scales, causes, found),
        *causes.why(scales),
        *next_steps(rows, seeds, found),
        rests_on(rows, seeds),
    ]


def hidden_fraction(hidden: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line on the largest exchanged fraction that stays hidden, by closed forms.

    Args:
        hidden: ``fraction`` and ``schedule`` by number of ranks, as ``meta.json`` has them.
    """
    ranks = sorted(hidden, key=int)
    if not any(hidden[each]["fraction"] for each in ranks):
        return
    fractions = [f"{hidden[each]['fraction']:.2g}" for each in ranks]
    if len(set(fractions)) == 1:
        ends = dict.fromkeys((ranks[0], ranks[-1]))
        where = f"{fractions[0]} on {' to '.join(f'{int(each):,}' for each in ends)}"
    else:
        each_of = zip(fractions, ranks, strict=True)
        where = join([f"{fraction} on {int(each):,}" for fraction, each in each_of])
    schedule = hidden[ranks[-1]]["schedule"]
    yield (
        f"Q up to {where} ranks stays hidden (at most 1 % longer, {schedule}), by closed forms;"
        " simshuffle study hiding simulates it."
    )


def rests_on(rows: pd.DataFrame, seeds: int) -> str:
    """What the numbers rest on, in one line.

    Args:
        rows: of `simshuffle.studies.simulation.contest.warm_epochs`.
        seeds: of each run.
    """
    last = int(rows["epoch"].max())
    parts = [f"epoch {last} of {last}" if last > 1 else "one epoch"]
    parts.append("one seed" if seeds == 1 else f"{seeds} seeds")
    if (rows["iterations_simulated"] < rows["iterations"]).any():
        parts.append("a part of the iterations")
    return f"Rests on {join(parts)}."


def next_steps(rows: pd.DataFrame, seeds: int, found: Mapping[str, Any] | None) -> Iterator[str]:
    """What to measure, or to ask, next: a line."""
    if found is not None:
        yield from intervals.measure_next(found)
        return
    left_out = {
        "--seeds 3": seeds == 1,
        "--interval": True,
        "simshuffle accuracy": bool((rows["exchange_fraction"] < 1).any()),
    }
    parts = [f"{NEXT[name]} ({name})" for name, is_left_out in left_out.items() if is_left_out]
    yield f"Not in it: {join(parts)}."
