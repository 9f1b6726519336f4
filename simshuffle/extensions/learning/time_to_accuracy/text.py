"""Write the report from tables alone: the fastest settings, the front, and three
claims.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.extensions.learning.time_to_accuracy.claims import state_claims
from simshuffle.extensions.learning.time_to_accuracy.comparison import (
    CRITERIA,
    USER_TARGET,
    DominatedSetting,
    accuracy_difference,
    find_dominated_settings,
    first_rows_at_target,
    format_difference,
)
from simshuffle.extensions.learning.time_to_accuracy.tables import (
    NOT_SCALED,
    JoinTables,
)
from simshuffle.report import intervals
from simshuffle.report.console import new_table
from simshuffle.spec.units import Dimension, readable, readable_count
from simshuffle.studies.training.summary import estimate
from simshuffle.studies.training.tables import NORMS
from simshuffle.studies.training.wording import (
    Row,
    format_accuracy,
    paragraph,
    wrap_paragraph,
)
from simshuffle.study.verdict import Verdict

TIMES = (
    "storage/host",
    "staging",
    "epoch 1",
    "epoch",
    "all",
    "IMPT",
    "EXCHANGE",
    "requests",
)
MIXING = (
    "In a warm epoch: bytes that all ranks get from peers; s of exchange, total and exposed; the"
    " busiest cable. After the last epoch: label divergence (how far a shard's labels are from"
    " those of the"
    " set, 0 to 1), and the share of the losses' variance that is between ranks."
)


def parts(tables: JoinTables, meta: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield the answer to the question, in order; ``meta`` is of `JoinFacts`.

    They are what is missing ('' if nothing), the table of settings, a text for each
    target, and a table of all targets where any was reached.
    """
    yield section("What is missing", list(_list_gaps(tables, meta)))
    title = "Settings: simulated times in s; accuracy in %, with its 95 % interval; * on the front"
    settings = tables.settings.to_dict("records")
    yield new_table(
        title, ["setting"], [*TIMES, "accuracy"], map(_setting_row, settings)
    )
    by_target = list(tables.targets.groupby("target", sort=False))
    yield from (_state_target(tables, target_rows) for _, target_rows in by_target)
    if rows := [
        _target_row(row)
        for _, target_rows in by_target
        for row in _sort_reaching_rows(target_rows)
    ]:
        names = [
            "target (%)",
            "reached",
            "probability, 95 %",
            "time (s), 95 %",
            "epochs",
        ]
        yield new_table("What reached which accuracy when", ["setting"], names, rows)


def details(tables: JoinTables, meta: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield the details of the report: provenance, mixing, the Pareto front, claims,
    and method.
    """
    yield _study_head(tables, meta)
    settings = tables.settings.to_dict("records")
    if rows := [
        _mixing_row(row)
        for row in settings
        if not row["message"] and row["peer_nbytes"] > 0
    ]:
        names = [
            "from peers",
            "exchange",
            "exposed",
            "busiest cable",
            "labels",
            "between",
        ]
        yield new_table(
            "Mixing and congestion", ["setting"], [*names, "accuracy"], rows
        )
        yield wrap_paragraph(MIXING)
    yield from _state_front(tables)
    yield section("Claims about importance exchange", state_claims(tables))
    yield _explain_method(tables, meta)


def section(title: str, lines: Sequence[str]) -> str:
    """Return a title and indented paragraphs below it; '' where there are none.

    Numbers are kept on one line with the % behind them.
    """
    return paragraph(title, [line.replace(" %", "\u00a0%") for line in lines])


def format_seconds(value: float) -> str:
    """Format seconds: three digits, two below 0.1 s, whole ones from 100 s on; '' for
    NaN.
    """
    if math.isnan(value):
        return ""
    return (
        f"{value:,.0f}"
        if value >= 100
        else f"{value:.2g}"
        if value < 0.1
        else f"{value:.3g}"
    )


def _study_head(tables: JoinTables, meta: Mapping[str, Any]) -> str:
    """Return the title, scale and training of the join."""
    condition_facts = meta["condition"]
    condition_words = ", ".join(
        filter(None, (NORMS[condition_facts["batch_norm"]], condition_facts["variant"]))
    )
    seeds = sorted(set(tables.settings["seeds"]))
    model = f"{meta['model']}, " if "model" in meta else ""
    schedules = ""
    if meta.get("schedules"):
        schedules = f" Schedule of the exchange: {' and '.join(meta['schedules'])}."
    if condition_words:
        condition_words += ", "
    training_sentence = (
        f"Trained: {model}M = {condition_facts['world_size']}, {condition_words}"
        f"{meta['epochs']} epochs, {_count_seeds(seeds)} a setting.{schedules}"
    )
    return section(
        f"Time to accuracy: study {meta['study']}, scenario {meta['scenario']}",
        [f"Scale: {meta['rule']}.", NOT_SCALED, training_sentence],
    )


def _count_seeds(seeds: Sequence[int]) -> str:
    """Word the numbers of seeds of the settings, least to most."""
    if len(seeds) > 1:
        return f"{seeds[0]} to {seeds[-1]} seeds"
    return f"{seeds[0]} seed{'s' if seeds[0] != 1 else ''}"


def _list_gaps(tables: JoinTables, meta: Mapping[str, Any]) -> Iterator[str]:
    """Yield the runs and settings that the numbers leave out, and the reason."""
    if meta["missing_runs"]:
        yield (
            f"UNFINISHED: {meta['missing_runs']} of the {meta['all_runs']} runs of this condition"
            " are missing or lost."
        )
    rows = tables.settings.to_dict("records")
    yield from (
        f"{row['setting']}: {row['failed_seeds']} trainings failed."
        for row in rows
        if row["failed_seeds"]
    )
    yield from (
        f"{row['setting']} cannot be simulated: {row['message']}."
        for row in rows
        if row["message"]
    )
    if not (tables.settings["strategy"] == "global").any():
        yield (
            "The study has no global shuffle in this condition: there are no default"
            " targets, and nothing to compare with."
        )


def _setting_row(row: Row) -> list[str]:
    """Return a setting's cells of table ``Settings``: name, `TIMES`, and accuracy.

    The name ends in ' *' on the front. A setting that was not simulated has
    'not simulated' in place of its storage, and '' for the other `TIMES`.
    """
    name = f"{row['setting']}{' *' if row['on_front'] else ''}"
    if row["message"]:
        return [name, "not simulated", *[""] * (len(TIMES) - 1), format_accuracy(row)]
    names = ("staging_s", "cold_epoch_s", "epoch_s", "total_s", "impt_s", "exchange_s")
    storage = readable(row["storage_nbytes"], Dimension.NBYTES, 3)
    requests = readable_count(row["total_requests"])
    return [
        name,
        storage,
        *(format_seconds(row[column]) for column in names),
        requests,
        format_accuracy(row),
    ]


def _mixing_row(row: Row) -> list[str]:
    """Return the cells of a setting in table ``Mixing and congestion``.

    They are its name, bytes from peers, exchange, exposed, busiest cable, label
    divergence, between ranks; and accuracy. What is not known is ''.
    """
    return [
        row["setting"],
        readable(row["peer_nbytes"], Dimension.NBYTES, 3),
        *(
            format_seconds(row[name])
            for name in ("exchange_total_s", "exchange_exposed_s")
        ),
        f"{row['cable_tier']} {row['cable_utilisation']:.1%}"
        if row["cable_tier"]
        else "",
        *(
            "" if math.isnan(row[name]) else f"{row[name]:.3f}"
            for name in ("label_divergence", "between_ranks")
        ),
        format_accuracy(row),
    ]


# ------------------------------------------------------------------------------------------ targets


def verdict(tables: JoinTables) -> Verdict:
    """Return the fastest settings to the highest target; an empty verdict without
    targets.
    """
    if tables.targets.empty:
        return Verdict()
    target = tables.targets["target"].max()
    rows = tables.targets[tables.targets["target"] == target]
    first, *other_lines = _state_fastest(tables, rows)
    return Verdict(
        [f"To {100 * target:.1f} % accuracy: {first}", *other_lines],
        rests_on=f"trainings of {rows['n'].max()} seeds, and simulated times.",
        measure_next=f"{intervals.ERRORS_LEFT_OUT}.",
    )


def _state_target(tables: JoinTables, rows: pd.DataFrame) -> str:
    """State the fastest settings to a target, and those that never reached it."""
    name = rows["name"].iloc[0]
    failing_settings = rows.loc[rows["reached"] == 0, "setting"]
    lines = _state_fastest(tables, rows)
    if len(failing_settings):
        lines.append(f"Not reached by any seed: {', '.join(failing_settings)}.")
    origin = f" ({name})" if name != USER_TARGET else ""
    return section(f"Target {100 * rows['target'].iloc[0]:.1f} %{origin}", lines)


def _sort_reaching_rows(rows: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the rows of settings that reached a target.

    First stand settings of which every seed did; within both groups they stand by time.
    Settings that were not simulated have NaN as time, and stand last in their group.
    """
    reaching_rows = rows[rows["reached"] > 0].sort_values("time_s", kind="stable")
    return sorted(
        reaching_rows.to_dict("records"), key=lambda row: row["reached"] < row["n"]
    )


def _target_row(row: Row) -> list[str]:
    """Return the cells of a setting and a target.

    They are setting, target (%), seeds that reached it, the interval of the probability
    (%), mean time (s) with its interval if there is one, and mean epochs. The interval
    of the time is cut off at 0.
    """
    target = f"{100 * row['target']:.1f}"
    reached = f"{row['reached']} of {row['n']}"
    interval = (
        f"{100 * row['probability_low']:.0f} to {100 * row['probability_high']:.0f} %"
    )
    time = format_seconds(row["time_s"])
    if not math.isnan(row["time_low_s"]):
        low = format_seconds(max(row["time_low_s"], 0.0))
        time += f" ({low} to {format_seconds(row['time_high_s'])})"
    return [row["setting"], target, reached, interval, time, f"{row['epochs']:.1f}"]


def _state_fastest(tables: JoinTables, rows: pd.DataFrame) -> list[str]:
    """State the fastest setting to a target in sentences.

    It has the smallest mean time of those that every seed reached it with. Settings
    that were not simulated do not count. If there is none, one sentence says so.
    Further sentences name the ones not told apart from it, faster ones that not every
    seed reached it with, and global shuffle. ``rows`` are of one target.
    """
    timed_rows = rows[(rows["reached"] > 0) & rows["time_s"].notna()]
    certain_rows = timed_rows[timed_rows["reached"] == timed_rows["n"]]
    certain_records = certain_rows.sort_values("time_s", kind="stable").to_dict(
        "records"
    )
    if not certain_records:
        seeds_clause = " with every seed" if len(timed_rows) else ""
        return [f"No simulated setting reached the target{seeds_clause}."]
    best = certain_records[0]
    lines = [
        f"{best['setting']} takes {format_seconds(best['time_s'])} s, the shortest time of the"
        " settings that reached the target with every seed."
    ]
    tied_settings = [
        str(row["setting"])
        for row in certain_records[1:]
        if not is_surely_slower(
            tables, str(row["setting"]), str(best["setting"]), float(best["target"])
        )
    ]
    if tied_settings:
        lines.append(
            f"Not surely slower by the seeds (95 %, paired): {', '.join(tied_settings)}."
        )
    uncertain_rows = timed_rows[
        (timed_rows["reached"] < timed_rows["n"])
        & (timed_rows["time_s"] < best["time_s"])
    ]
    uncertain_settings = [
        f"{row['setting']} ({format_seconds(row['time_s'])} s, {row['reached']} of {row['n']})"
        for row in uncertain_rows.sort_values("time_s").to_dict("records")
    ]
    if uncertain_settings:
        names = ", ".join(uncertain_settings)
        lines.append(
            f"Faster where they reached the target, but not with every seed: {names}."
        )
    reference = next(
        (row for row in certain_records if row["setting"].startswith("global")), None
    )
    if reference is not None and reference is not best:
        name = str(reference["setting"])
        time_ratio = reference["time_s"] / best["time_s"]
        lines.append(
            f"{name[0].upper()}{name[1:]} takes {format_seconds(reference['time_s'])} s,"
            f" {time_ratio:.2f} times as long."
        )
    return lines


def is_surely_slower(
    tables: JoinTables, setting: str, best: str, target: float
) -> bool:
    """Return whether a setting reaches ``target`` later than ``best`` for certain.

    It does where the paired 95 % interval of the differences of times, over the seeds
    that reached it with both, is above 0; False with fewer than two such seeds.
    """
    curves = tables.curves
    times = first_rows_at_target(curves[curves["setting"] == setting], target)["time_s"]
    best_times = first_rows_at_target(curves[curves["setting"] == best], target)[
        "time_s"
    ]
    common_seeds = times.index.intersection(best_times.index)
    differences = times[common_seeds] - best_times[common_seeds]
    return estimate(differences.tolist()).low > 0


def _state_front(tables: JoinTables) -> Iterator[str]:
    """Yield the settings that no other one beats, and the setting that beats each of
    the others.

    Without a setting on the front nothing is yielded; without beaten ones, no second
    section.
    """
    settings = tables.settings
    front = settings[settings["on_front"]].sort_values("total_s").to_dict("records")
    if not front:
        return
    lines = [
        "For each of these settings, no other setting is at least as good in storage per host, time"
        " of all epochs, requests to the file system and mean final accuracy, and better in one of"
        " them. Means alone decide; neighbours whose intervals overlap may change places with other"
        " seeds."
    ]
    for row in front:
        storage = readable(row["storage_nbytes"], Dimension.NBYTES, 3)
        lines.append(
            f"{row['setting']}: {storage} a host, {format_seconds(row['total_s'])} s,"
            f" {readable_count(row['total_requests'])} requests, {format_accuracy(row)} %."
        )
    yield section("Pareto front", lines)
    dominated_settings = find_dominated_settings(settings)
    if beaten_lines := [
        _state_beaten(tables, dominated) for dominated in dominated_settings
    ]:
        heading = "In brackets: accuracy of the winner minus that of the beaten setting, paired."
        yield section("Beaten", [heading, *beaten_lines])


def _state_beaten(tables: JoinTables, dominated: DominatedSetting) -> str:
    """State which setting beats another, and in which criteria."""
    if len(dominated.better_criteria) == len(CRITERIA):
        criteria_clause = "in all four"
    else:
        equal_criteria = [
            name for name in CRITERIA if name not in dominated.better_criteria
        ]
        criteria_clause = (
            f"in {_join_words(dominated.better_criteria)}; alike in"
            f" {_join_words(equal_criteria)}"
        )
    difference = format_difference(
        accuracy_difference(tables, dominated.winner, dominated.setting)
    )
    return (
        f"{dominated.setting}: beaten by {dominated.winner} {criteria_clause} ({difference}"
        " points)."
    )


def _join_words(words: Sequence[str]) -> str:
    """Join one or more words to a list such as 'storage, time and accuracy'."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _explain_method(tables: JoinTables, meta: Mapping[str, Any]) -> str:
    """Explain how time, accuracy and intervals come about; always a section."""
    replays = sorted({int(count) for count in tables.settings["replays"] if count})
    seeds_clause = "one seed"
    if replays not in ([], [1]):
        seeds_clause = f"up to {replays[-1]} seeds, and times are their means"
    exchange = (
        f"the simulation replays the exchange that was recorded for {seeds_clause}"
    )
    if meta.get("drawn"):
        exchange = "the trained strategies draw their exchanges anew"
    evaluated = sorted(set(tables.curves["epoch"]))
    evaluation_interval = max((b - a for a, b in pairwise(evaluated)), default=1)
    interval_sentence = ""
    if evaluation_interval > 1:
        interval_sentence = (
            f" Evaluations are up to {evaluation_interval} epochs apart, so a setting may have"
            f" reached the target up to {evaluation_interval - 1} epochs earlier."
        )
    lines = [
        (
            f"Time is simulated: {exchange}; global"
            " and local shuffle are those of the scenario. Time counts the staging, the cold first"
            " epoch, and for every other epoch the mean of warm epochs; evaluation takes no time."
            " Seeds differ in accuracy, not in time per epoch."
        ),
        "Accuracy is the share of test samples classified rightly, with the batch-norm statistics"
        f" '{meta['statistics']}'. A target counts as reached at the first evaluation at or above"
        f" the target, even if accuracy falls again.{interval_sentence}",
        (
            "Intervals are 95 % intervals: for means by Student's t over seeds, for probabilities"
            " by"
            " Clopper and Pearson. Each interval holds for its number alone; nothing corrects for"
            " many numbers. A time is the mean over the seeds that reached the target: read it"
            " with their number. Its interval has no width where all these seeds reached the"
            " target at the same evaluation."
        ),
    ]
    return section("How to read this", lines)
