"""The report of a study: what was found, in sentences, with what the numbers cannot tell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.report.console import new_table
from simshuffle.studies.training.summary import curve, losses, summary
from simshuffle.studies.training.tables import (
    ABSENT,
    CONDITION,
    TrainingTables,
    statistics_of,
    trained,
)
from simshuffle.studies.training.wording import (
    RISK,
    Row,
    condition,
    difference,
    found,
    groups,
    mean,
    paragraph,
    rests_on,
    run_counts,
    setting,
    starred,
    where,
    wrapped,
)

KEYS = ["condition", "strategy"]
EXPLAINED = {
    "own": (
        "own: every rank evaluates with its own running statistics, and the mean over ranks is"
        " taken"
    ),
    "rank0": "rank0: those of rank 0, as a checkpoint of DistributedDataParallel has them",
    "pooled": "pooled: mean over ranks, and variance within ranks plus variance between them",
    "recalibrated": "recalibrated: of the whole training set, with the final weights",
}


def parts(tables: TrainingTables, meta: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield what was found, in order; ``meta`` has 'study' and 'description' of the study."""
    yield _head(tables, meta)
    yield from _troubles(tables)
    settings = summary(tables.runs)
    if len(settings):
        names = statistics_of(tables.finished())
        main = settings[settings["statistics"] == names[0]]
        yield _findings(main)
        yield new_table(
            "Accuracy in %, differences in points after the last epoch; * a difference is found",
            KEYS,
            ["last epoch", "best", "- global", "- local", "n", "seeds"],
            [_accuracy(row) for row in main.to_dict("records")],
        )
        yield from _equal_fraction(main)
        yield _resting(main)


def details(tables: TrainingTables, meta: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield the rest of the report: accuracy by statistics, method, and the time that it took."""
    settings = summary(tables.runs)
    if len(settings):
        names = statistics_of(tables.finished())
        yield _by_statistics(settings, names)
        yield _method(names, tables, meta)
    yield _times(tables)


def _accuracy(row: Row) -> list[str]:
    """A setting: last epoch, best one, differences to global and to local, samples, and seeds."""
    gaps = (starred(row, against) for against in ("global", "local"))
    means = (mean(row), mean(row, "best_"))
    return [condition(row), setting(row), *means, *gaps, rests_on(row), str(row["seeds"])]


def _head(tables: TrainingTables, meta: Mapping[str, Any]) -> str:
    partitions = ", ".join(sorted(set(tables.runs["partition"])))
    lines = [
        str(meta.get("description", "")).strip(),
        run_counts(tables.runs),
        f"Trained: {trained(tables.runs)}. Partition: {partitions}.",
    ]
    return paragraph(
        f"Study {meta.get('study', '')}", [" ".join(line.split()) for line in lines if line]
    )


def _troubles(tables: TrainingTables) -> Iterator[str]:
    """What is not in the numbers, and why."""
    for status, title in (
        ("failed", "Runs that failed; they are left out of every mean and comparison below"),
        ("lost", "Runs that were lost; the same command tries them again"),
    ):
        rows = tables.runs[tables.runs["status"] == status].to_dict("records")
        yield paragraph(f"{title}:", [f"{row['run']}: {row['message']}" for row in rows])
    missing = int((tables.runs["status"] == "missing").sum())
    if missing:
        yield (
            f"UNFINISHED: {missing} of {len(tables.runs)} runs are missing. The same command goes"
            " on with them."
        )


def _method(names: Sequence[str], tables: TrainingTables, meta: Mapping[str, Any]) -> str:
    seeds = (
        tables.finished()
        .groupby([*CONDITION, "strategy", "exchange_fraction"], dropna=False)["seed"]
        .nunique()
    )
    fewest = int(seeds.min())
    how = f", with the statistics '{names[0]}' unless another is named"
    lines = [
        (
            "Accuracy is the share of test samples classified rightly after the last epoch"
            f"{how if _has_batch_norm(tables.runs) else ''}. Differences are in points"
            " (hundredths of accuracy), between runs of the same seed, which begin with the same"
            " weights. ± is half the 95 % interval by Student's t; that of an accuracy, which the"
            " figures show too, contains what seeds differ by, that of a difference does not."
        ),
        (
            "The best epoch is that of the highest accuracy among those that were evaluated. It is"
            " chosen by the test samples themselves, so it flatters every strategy; nothing is"
            " compared by it."
        ),
        (
            "p-values are those of the paired t-test, two-sided, after Holm's correction over all"
            " comparisons of the study with the same reference. A difference is said to be found"
            f" where that is below {RISK:g}. What is not found may still be there: the interval"
            " says how large it could be."
        ),
        *_how_statistics_move(meta.get("runs", {}).values()),
    ]
    if _has_batch_norm(tables.runs) and (tables.runs["batch_norm"] == ABSENT).any():
        lines.append(
            "A network without batch norm has no running statistics: there is no n, and accuracy"
            " does not depend on which rank evaluates."
        )
    if fewest < 5:
        lines.append(
            f"Some settings have only {fewest} seed{'s' if fewest != 1 else ''}; t-intervals of so"
            " few are wide and rest on normal errors."
        )
    return paragraph("How to read this", lines)


def _how_statistics_move(runs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Momentum of running statistics, and the mode of the pass for importance, if runs say them."""
    momenta = sorted({run["statistics_momentum"] for run in runs if run.get("statistics_momentum")})
    if momenta:
        yield (
            "Running statistics of batch norm move towards those of each batch with momentum"
            f" {' or '.join(f'{each:g}' for each in momenta)}."
        )
    passes = sorted({run["importance_pass"] for run in runs if run.get("importance_pass")})
    effect = {"eval": "leaves them as they are", "train": "refreshes them from the old shard"}
    if momenta and passes:
        told = "; ".join(f"in {name} mode it {effect[name]}" for name in passes)
        yield f"The pass that measures importance runs before an epoch: {told}."


def _findings(main: pd.DataFrame) -> str:
    """In words: local against global by M, what exchange closes of the gap, equal Q."""
    lines: list[str] = []
    for _, rows in main.groupby(["variant", "batch_norm"], sort=False):
        lines += _local_gap(rows.to_dict("records"))
    for condition_rows in groups(main):
        lines += _closing(condition_rows)
    return paragraph("What was found", lines)


def _local_gap(rows: Sequence[Row]) -> Iterator[str]:
    local = [row for row in rows if row["strategy"] == "local"]
    compared = [row for row in local if not math.isnan(row["global_p_holm"])]
    if not compared:
        return
    sure = [row for row in compared if found(row, "global")]
    by_words = {
        "local shuffle is below global shuffle at": [r for r in sure if r["global_difference"] < 0],
        "local shuffle is above global shuffle at": [r for r in sure if r["global_difference"] > 0],
        "no difference between the two is found at": [
            r for r in compared if not found(r, "global")
        ],
    }
    parts = []
    for words, those in by_words.items():
        if those:
            each = (f"M = {row['world_size']} ({difference(row, 'global')})" for row in those)
            parts.append(f"{words} {', '.join(each)}")
    said, at = "; ".join(parts), where(rows[0])
    yield f"{at}: {said}." if at else f"{said[0].upper()}{said[1:]}."


def _closing(rows: Sequence[Row]) -> Iterator[str]:
    """How the gap to global shuffle shrinks with Q under partial local shuffle."""
    gap = next((row for row in rows if row["strategy"] == "local" and row["global_pairs"]), None)
    partial = [row for row in rows if row["strategy"] == "partial" and row["global_pairs"]]
    if gap is None or not partial:
        return
    steps = ", ".join(
        f"{difference(row, 'global')} at Q = {row['exchange_fraction']:g}" for row in partial
    )
    closed = [
        row for row in partial if not math.isnan(row["global_p_holm"]) and not found(row, "global")
    ]
    smallest = (
        f" From Q = {closed[0]['exchange_fraction']:g} on no difference to global shuffle is found."
        if closed
        else ""
    )
    monotone = closed == partial[len(partial) - len(closed) :]
    yield (
        f"{condition(rows[0])}: partial local shuffle changes local shuffle's gap of"
        f" {difference(gap, 'global')} to {steps}." + (smallest if monotone else "")
    )


def _equal_fraction(main: pd.DataFrame) -> Iterator[str | Table]:
    """Strategies against partial local shuffle at the same Q, and a verdict over all of them."""
    compared = [row for row in main.to_dict("records") if row["partial_pairs"]]
    if not compared:
        return
    yield new_table(
        "At equal Q: points above partial local shuffle",
        KEYS,
        ["difference", "p", "p (Holm)"],
        [
            [
                condition(row),
                setting(row),
                difference(row, "partial"),
                *map(_p, (row["partial_p"], row["partial_p_holm"])),
            ]
            for row in compared
        ],
    )
    yield _verdict(compared)


def _p(value: float) -> str:
    return "" if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _verdict(compared: Sequence[Row]) -> str:
    tested = [row for row in compared if not math.isnan(row["partial_p_holm"])]
    if not tested:
        return ""
    differ = [row for row in tested if found(row, "partial")]
    half = [50 * (row["partial_high"] - row["partial_low"]) for row in tested]
    several = len({row["variant"] for row in tested}) > 1
    named = {
        name: [
            f"{setting(row)} at {row['variant'] + ', ' if several else ''}M = {row['world_size']}"
            for row in differ
            if sign * row["partial_difference"] > 0
        ]
        for name, sign in (("better", 1), ("worse", -1))
    }
    listed = "; ".join(f"{name}: {', '.join(those)}" for name, those in named.items() if those)
    return wrapped(
        f"Of these {len(tested)} comparisons {len(differ)} differ from partial local shuffle after"
        f" Holm's correction{f' ({listed})' if listed else ''}. What the others may differ by is"
        f" what their intervals leave open: half widths are {min(half):.1f} to {max(half):.1f}"
        " points."
    )


def _resting(main: pd.DataFrame) -> str:
    """How well the loss against global shuffle follows from what a rank's statistics rest on."""
    lines = []
    for _, rows in losses(main).groupby(["variant", "batch_norm"], sort=False):
        if fitted := curve(rows):
            worst = fitted.worst
            lines.append(
                f"{where(worst)}: c = {100 * fitted.slope:.0f} points, which leaves"
                f" {100 * fitted.residual:.1f} of the {100 * fitted.spread:.1f} points that"
                f" {fitted.settings} settings lose (root mean square); {setting(worst)} at M ="
                f" {worst['world_size']} loses {abs(100 * fitted.miss):.1f} points"
                f" {'more' if fitted.miss > 0 else 'less'} than that."
            )
    law = (
        "n is the effective number of samples that the running statistics of a rank rest on after"
        " the last epoch, mean over ranks: each counts as much as they still remember of the epochs"
        " in which the rank had it. If it alone decided, c (1/n - 1/n of global shuffle) would be"
        " lost; by least squares:"
    )
    return paragraph("On how many samples a rank's statistics rest", [law, *lines] if lines else [])


def _by_statistics(settings: pd.DataFrame, names: Sequence[str]) -> str:
    """How much of local shuffle's gap each kind of evaluation sees."""
    if len(names) < 2 or not _has_batch_norm(settings):
        return ""
    gaps = settings[
        (settings["strategy"] == "local")
        & (settings["global_pairs"] > 0)
        & (settings["batch_norm"] == "per_rank")
    ]
    lines = []
    for rows in groups(gaps):
        parts = ", ".join(f"{row['statistics']} {difference(row, 'global')}" for row in rows)
        lines.append(f"{condition(rows[0])}: local - global {parts}.")
    explained = [f"{EXPLAINED[name]}." for name in names]
    return paragraph("Where evaluation gets the batch-norm statistics from", explained + lines)


def _has_batch_norm(rows: pd.DataFrame) -> bool:
    return bool((rows["batch_norm"] != ABSENT).any())


def _times(tables: TrainingTables) -> str:
    runs = tables.runs[tables.runs["seconds"].notna()]
    if not len(runs):
        return ""
    total, samples = float(runs["seconds"].sum()), float(runs["samples"].sum())
    importance = float(tables.epochs["importance_s"].sum())
    speed = f"{samples / total:,.0f} samples/s, evaluation included"
    return paragraph(
        "Time",
        [
            f"{total:,.0f} s in all runs, each with one thread, {speed}; of it inference for"
            f" importance {importance:,.0f} s."
        ],
    )
