"""Write the report of a training study: findings in sentences, and the limits of the
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.report.console import new_table
from simshuffle.studies.training.summary import (
    fit_loss_curve,
    losses_against_global,
    summary,
)
from simshuffle.studies.training.tables import (
    ABSENT,
    CONDITION,
    TrainingTables,
    describe_networks,
    evaluated_statistics,
)
from simshuffle.studies.training.wording import (
    RISK,
    Row,
    condition_label,
    count_runs,
    format_accuracy,
    format_difference,
    format_effective_samples,
    is_significant,
    norm_label,
    paragraph,
    rows_by_condition,
    setting_label,
    star_difference,
    wrap_paragraph,
)

KEYS = ["condition", "strategy"]
STATISTICS_EXPLAINED = {
    "own": (
        "own: every rank evaluates with its own running statistics, and the mean over ranks is"
        " taken"
    ),
    "rank0": (
        "rank0: statistics of rank 0, as in a checkpoint of DistributedDataParallel"
    ),
    "pooled": (
        "pooled: mean over ranks, and variance within ranks plus variance between ranks"
    ),
    "recalibrated": (
        "recalibrated: statistics of the whole training set, with the final weights"
    ),
}


def parts(tables: TrainingTables, meta: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield the findings, in order; ``meta`` has 'study' and 'description' of the
    study.

    Findings are with the first kind of statistics that was evaluated, 'own' if it was.
    Without a finished run there are the title and the unusable runs alone. Texts of
    which there is nothing to say are ''.
    """
    yield _study_head(tables, meta)
    yield from _list_unusable_runs(tables)
    settings = summary(tables.runs)
    if len(settings):
        names = evaluated_statistics(tables.finished_runs())
        main = settings[settings["statistics"] == names[0]]
        yield _state_findings(main)
        yield new_table(
            "Accuracy in %, differences in points after the last epoch; * a difference is found",
            KEYS,
            ["last epoch", "best", "- global", "- local", "n", "seeds"],
            [_accuracy_row(row) for row in main.to_dict("records")],
        )
        yield from _compare_at_equal_fraction(main)
        yield _state_loss_curve(main)


def details(tables: TrainingTables, meta: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield the details of the report: accuracy by statistics, method, and time.

    Without a finished run there is the time alone. Texts may be ''. ``meta`` may have
    'runs', the facts of each run.
    """
    settings = summary(tables.runs)
    if len(settings):
        names = evaluated_statistics(tables.finished_runs())
        yield _state_gap_by_statistics(settings, names)
        yield _explain_method(names, tables, meta)
    yield _state_times(tables)


def _accuracy_row(row: Row) -> list[str]:
    """Return the cells of a setting: condition, strategy, last epoch, best, gaps to
    global and local, samples, seeds.
    """
    gaps = (star_difference(row, against) for against in ("global", "local"))
    means = (format_accuracy(row), format_accuracy(row, "best_"))
    return [
        condition_label(row),
        setting_label(row),
        *means,
        *gaps,
        format_effective_samples(row),
        str(row["seeds"]),
    ]


def _study_head(tables: TrainingTables, meta: Mapping[str, Any]) -> str:
    """Return the title, description, runs, networks and partitions of the study."""
    partitions = ", ".join(sorted(set(tables.runs["partition"])))
    lines = [
        str(meta.get("description", "")).strip(),
        count_runs(tables.runs),
        f"Trained: {describe_networks(tables.runs)}. Partition: {partitions}.",
    ]
    return paragraph(
        f"Study {meta.get('study', '')}",
        [" ".join(line.split()) for line in lines if line],
    )


def _list_unusable_runs(tables: TrainingTables) -> Iterator[str]:
    """Yield the runs that the numbers leave out, and the reason.

    The texts on failed and on lost runs are '' where there are none. Missing runs are
    counted, not named.
    """
    for status, title in (
        (
            "failed",
            "Runs that failed; they are left out of every mean and comparison below",
        ),
        ("lost", "Runs that were lost; the same command tries them again"),
    ):
        rows = tables.runs[tables.runs["status"] == status].to_dict("records")
        yield paragraph(
            f"{title}:", [f"{row['run']}: {row['message']}" for row in rows]
        )
    missing = int((tables.runs["status"] == "missing").sum())
    if missing:
        yield (
            f"UNFINISHED: {missing} of {len(tables.runs)} runs are missing. The same command goes"
            " on with them."
        )


def _explain_method(
    names: Sequence[str], tables: TrainingTables, meta: Mapping[str, Any]
) -> str:
    """Explain how accuracies, intervals and p-values come about.

    ``names`` are the kinds of statistics that were evaluated, the default one first. At
    least one run is done.
    """
    seeds = (
        tables.finished_runs()
        .groupby([*CONDITION, "strategy", "exchange_fraction"], dropna=False)["seed"]
        .nunique()
    )
    fewest = int(seeds.min())
    statistics_clause = ""
    if _has_batch_norm(tables.runs):
        statistics_clause = (
            f", with the statistics '{names[0]}' unless another is named"
        )
    lines = [
        (
            "Accuracy is the share of test samples classified correctly after the last"
            f" epoch{statistics_clause}. Differences are in points (hundredths of accuracy),"
            " between runs of the same seed, which begin with the same weights. ± is half the 95"
            " % interval by Student's t. The interval of an accuracy, also in the figures,"
            " includes the differences between seeds; the interval of a difference does not."
        ),
        (
            "The best epoch is the evaluated epoch with the highest accuracy. The test samples"
            " themselves choose it, so it flatters every strategy; no comparison uses it."
        ),
        (
            "p-values are those of the paired t-test, two-sided, after Holm's correction over all"
            " comparisons of the study with the same reference. A difference counts as found if"
            f" its p-value is below {RISK:g}. A difference that is not found may still exist: its"
            " interval says how large it could be."
        ),
        *_state_momentum(meta.get("runs", {}).values()),
    ]
    if _has_batch_norm(tables.runs) and (tables.runs["batch_norm"] == ABSENT).any():
        lines.append(
            "A network without batch norm has no running statistics: there is no n, and accuracy"
            " does not depend on which rank evaluates."
        )
    if fewest < 5:
        lines.append(
            f"Some settings have only {fewest} seed{'s' if fewest != 1 else ''}; t-intervals of"
            " so few seeds are wide and assume normal errors."
        )
    return paragraph("How to read this", lines)


def _state_momentum(runs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the momentum of running statistics, and the mode of the importance pass.

    Results of earlier versions may lack one or both. Without a momentum nothing is
    yielded. ``runs`` are values under 'runs' of ``meta.json``, and no iterator: they
    are walked twice.
    """
    momenta = sorted(
        {run["statistics_momentum"] for run in runs if run.get("statistics_momentum")}
    )
    if momenta:
        yield (
            "Running statistics of batch norm move towards those of each batch with momentum"
            f" {' or '.join(f'{momentum:g}' for momentum in momenta)}."
        )
    passes = sorted(
        {run["importance_pass"] for run in runs if run.get("importance_pass")}
    )
    effect = {
        "eval": "leaves these statistics as they are",
        "train": "refreshes these statistics from the old shard",
    }
    if momenta and passes:
        effects = "; ".join(f"in {name} mode it {effect[name]}" for name in passes)
        yield f"The pass that measures importance runs before an epoch: {effects}."


def _state_findings(main: pd.DataFrame) -> str:
    """State local against global shuffle by M, and what exchange makes of the gap.

    '' where neither can be stated.
    """
    lines: list[str] = []
    for _, rows in main.groupby(["variant", "batch_norm"], sort=False):
        lines += _state_local_gap(rows.to_dict("records"))
    for condition_rows in rows_by_condition(main):
        lines += _state_gap_by_fraction(condition_rows)
    return paragraph("What was found", lines)


def _state_local_gap(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence that lists each M at which local shuffle is below global shuffle,
    is above it, or is not found to differ.

    ``rows`` are of one variant and batch norm. Nothing is yielded where no row has a
    p-value after Holm's correction (two seeds in common, at least); rows without one
    are left out.
    """
    local = [row for row in rows if row["strategy"] == "local"]
    compared = [row for row in local if not math.isnan(row["global_p_holm"])]
    if not compared:
        return
    significant = [row for row in compared if is_significant(row, "global")]
    rows_by_phrase = {
        "local shuffle is below global shuffle at": [
            row for row in significant if row["global_difference"] < 0
        ],
        "local shuffle is above global shuffle at": [
            row for row in significant if row["global_difference"] > 0
        ],
        "no difference between the two is found at": [
            row for row in compared if not is_significant(row, "global")
        ],
    }
    parts = []
    for phrase, phrase_rows in rows_by_phrase.items():
        if phrase_rows:
            sizes = (
                f"M = {row['world_size']} ({format_difference(row, 'global')})"
                for row in phrase_rows
            )
            parts.append(f"{phrase} {', '.join(sizes)}")
    sentence = "; ".join(parts)
    label = norm_label(rows[0])
    yield f"{label}: {sentence}." if label else f"{sentence[0].upper()}{sentence[1:]}."


def _state_gap_by_fraction(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence on the gap of local to global shuffle, and of partial at each Q.

    ``rows`` are of one condition, by rising Q. Nothing is yielded unless local and
    partial local shuffle have seeds in common with global shuffle. The Q from which on
    no difference is found is named only if all larger ones agree.
    """
    gap = next(
        (row for row in rows if row["strategy"] == "local" and row["global_pairs"]),
        None,
    )
    partial = [
        row for row in rows if row["strategy"] == "partial" and row["global_pairs"]
    ]
    if gap is None or not partial:
        return
    gaps = ", ".join(
        f"{format_difference(row, 'global')} at Q = {row['exchange_fraction']:g}"
        for row in partial
    )
    closed_rows = [
        row
        for row in partial
        if not math.isnan(row["global_p_holm"]) and not is_significant(row, "global")
    ]
    # the gap stays closed from one Q on
    is_monotone = closed_rows == partial[len(partial) - len(closed_rows) :]
    closing_sentence = ""
    if closed_rows and is_monotone:
        fraction = closed_rows[0]["exchange_fraction"]
        closing_sentence = (
            f" From Q = {fraction:g} on no difference to global shuffle is found."
        )
    yield (
        f"{condition_label(rows[0])}: partial local shuffle changes local shuffle's gap from"
        f" {format_difference(gap, 'global')} to {gaps}.{closing_sentence}"
    )


def _compare_at_equal_fraction(main: pd.DataFrame) -> Iterator[str | Table]:
    """Yield a table of strategies against partial local shuffle at equal Q, and a
    verdict over all.

    Nothing is yielded where none have a seed in common with it.
    """
    compared = [row for row in main.to_dict("records") if row["partial_pairs"]]
    if not compared:
        return
    yield new_table(
        "At equal Q: points above partial local shuffle",
        KEYS,
        ["difference", "p", "p (Holm)"],
        [
            [
                condition_label(row),
                setting_label(row),
                format_difference(row, "partial"),
                *map(_format_p, (row["partial_p"], row["partial_p_holm"])),
            ]
            for row in compared
        ],
    )
    yield _state_equal_fraction_verdict(compared)


def _format_p(value: float) -> str:
    """Format a p-value with three decimals; '< 0.001' below, '' for NaN."""
    return "" if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _state_equal_fraction_verdict(compared: Sequence[Row]) -> str:
    """State how many settings differ from partial local shuffle at equal Q.

    Settings without a p-value do not count; '' where none has one.
    """
    tested = [row for row in compared if not math.isnan(row["partial_p_holm"])]
    if not tested:
        return ""
    significant = [row for row in tested if is_significant(row, "partial")]
    half_widths = [50 * (row["partial_high"] - row["partial_low"]) for row in tested]
    has_variants = len({row["variant"] for row in tested}) > 1
    names_by_verdict = {
        name: [
            f"{setting_label(row)} at {row['variant'] + ', ' if has_variants else ''}"
            f"M = {row['world_size']}"
            for row in significant
            if sign * row["partial_difference"] > 0
        ]
        for name, sign in (("better", 1), ("worse", -1))
    }
    listed = "; ".join(
        f"{name}: {', '.join(names)}"
        for name, names in names_by_verdict.items()
        if names
    )
    return wrap_paragraph(
        f"Of these {len(tested)} comparisons {len(significant)} differ from partial local shuffle"
        f" after Holm's correction{f' ({listed})' if listed else ''}. The others may differ"
        f" within their intervals, whose half widths are {min(half_widths):.1f} to"
        f" {max(half_widths):.1f} points."
    )


def _state_loss_curve(main: pd.DataFrame) -> str:
    """State how well the loss against global shuffle follows from n, the samples of
    statistics.

    A curve is fitted for each variant and batch norm; '' where there is none, such as
    where ``main`` is not with the statistics 'own'.
    """
    lines = []
    for _, rows in losses_against_global(main).groupby(
        ["variant", "batch_norm"], sort=False
    ):
        if loss_curve := fit_loss_curve(rows):
            worst = loss_curve.worst_row
            lines.append(
                f"{norm_label(worst)}: c = {100 * loss_curve.slope:.0f} points, which leaves"
                f" {100 * loss_curve.residual:.1f} of the {100 * loss_curve.spread:.1f} points"
                f" that {loss_curve.settings} settings lose (root mean square);"
                f" {setting_label(worst)} at M = {worst['world_size']} loses"
                f" {abs(100 * loss_curve.worst_excess):.1f} points"
                f" {'more' if loss_curve.worst_excess > 0 else 'less'} than this c explains."
            )
    law = (
        "n is the effective number of samples on which the running statistics of a rank rest"
        " after the last epoch, mean over ranks. A sample counts by how much the statistics still"
        " remember of the epochs in which the rank had the sample. If n alone decided, a setting"
        " would lose c (1/n - 1/n of global shuffle). By least squares:"
    )
    return paragraph(
        "On how many samples a rank's statistics rest", [law, *lines] if lines else []
    )


def _state_gap_by_statistics(settings: pd.DataFrame, names: Sequence[str]) -> str:
    """State the gap of local to global shuffle under each kind of evaluation
    statistics.

    Only settings with batch norm per rank are named. '' with one kind, or without batch
    norm.
    """
    if len(names) < 2 or not _has_batch_norm(settings):
        return ""
    gaps = settings[
        (settings["strategy"] == "local")
        & (settings["global_pairs"] > 0)
        & (settings["batch_norm"] == "per_rank")
    ]
    lines = []
    for rows in rows_by_condition(gaps):
        parts = ", ".join(
            f"{row['statistics']} {format_difference(row, 'global')}" for row in rows
        )
        lines.append(f"{condition_label(rows[0])}: local - global {parts}.")
    explanations = [f"{STATISTICS_EXPLAINED[name]}." for name in names]
    return paragraph(
        "Where evaluation gets the batch-norm statistics from", explanations + lines
    )


def _has_batch_norm(rows: pd.DataFrame) -> bool:
    """Return whether any row is of a network that can have batch norm.

    A row with batch norm 'none' counts, too; only 'absent' does not.
    """
    return bool((rows["batch_norm"] != ABSENT).any())


def _state_times(tables: TrainingTables) -> str:
    """State the seconds of all runs, the seconds of inference for importance, and
    samples a second; '' where no run was timed.

    Seconds are a sum over runs that are done or failed, evaluation included.
    """
    runs = tables.runs[tables.runs["seconds"].notna()]
    if not len(runs):
        return ""
    total = float(runs["seconds"].sum())
    samples = float(runs["samples"].sum())
    importance = float(tables.epochs["importance_s"].sum())
    speed = f"{samples / total:,.0f} samples/s, evaluation included"
    return paragraph(
        "Time",
        [
            f"{total:,.0f} s in all runs, each with one thread, {speed}; inference for importance"
            f" takes {importance:,.0f} s of them."
        ],
    )
