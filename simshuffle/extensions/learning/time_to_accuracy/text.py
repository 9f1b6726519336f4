"""The report, from tables alone: what is fastest, what no other beats, and three claims."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.extensions.learning.time_to_accuracy.comparison import (
    CRITERIA,
    GIVEN,
    Beaten,
    beaten,
    first_reached,
    paired,
    points,
    sentences,
)
from simshuffle.extensions.learning.time_to_accuracy.tables import NOT_SCALED, JoinTables
from simshuffle.report import intervals
from simshuffle.report.console import new_table
from simshuffle.spec.units import Dimension, readable, readable_count
from simshuffle.studies.training.summary import estimate
from simshuffle.studies.training.tables import NORMS
from simshuffle.studies.training.wording import Row, mean, paragraph, wrapped

TIMES = ("storage/host", "staging", "epoch 1", "epoch", "all", "IMPT", "EXCHANGE", "requests")
MIXING = (
    "Of a warm epoch: bytes from peers, all ranks; s of exchange, and of it exposed; the busiest"
    " cable. After the last epoch: label divergence (how far a shard's labels are from those of the"
    " set, 0 to 1), and the share of the losses' variance that is between ranks."
)


def parts(tables: JoinTables, meta: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield what answers the question, in order; ``meta`` as of `JoinFacts`."""
    yield section("What is missing", list(_troubles(tables, meta)))
    title = "Settings: simulated times in s; accuracy in %, with its 95 % interval; * on the front"
    settings = tables.settings.to_dict("records")
    yield new_table(title, ["setting"], [*TIMES, "accuracy"], map(_timed, settings))
    by_target = list(tables.targets.groupby("target", sort=False))
    yield from (_of_target(tables, of) for _, of in by_target)
    if rows := [_reached(row) for _, of in by_target for row in _reaching(of)]:
        names = ["target (%)", "reached", "probability, 95 %", "time (s), 95 %", "epochs"]
        yield new_table("What reached which accuracy when", ["setting"], names, rows)


def details(tables: JoinTables, meta: Mapping[str, Any]) -> Iterator[str | Table]:
    """Yield the rest of the report: provenance, mixing, the Pareto front, claims, and method."""
    yield _head(tables, meta)
    settings = tables.settings.to_dict("records")
    if rows := [_mixed(row) for row in settings if not row["message"] and row["peer_nbytes"] > 0]:
        names = ["from peers", "exchange", "exposed", "busiest cable", "labels", "between"]
        yield new_table("Mixing and congestion", ["setting"], [*names, "accuracy"], rows)
        yield wrapped(MIXING)
    yield from _front(tables)
    yield section("Claims about importance exchange", sentences(tables))
    yield _method(tables, meta)


def section(title: str, lines: Sequence[str]) -> str:
    """A title and indented paragraphs below it; nothing where there are none."""
    return paragraph(title, [line.replace(" %", "\u00a0%") for line in lines])


def seconds(value: float) -> str:
    """Three digits, two below 0.1 s, whole seconds from 100 s on."""
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 0.1 else f"{value:.3g}"


def _head(tables: JoinTables, meta: Mapping[str, Any]) -> str:
    of = meta["condition"]
    condition = ", ".join(filter(None, (NORMS[of["batch_norm"]], of["variant"])))
    seeds = sorted(set(tables.settings["seeds"]))
    model = f"{meta['model']}, " if "model" in meta else ""
    schedules = (
        f" Schedule of the exchange: {' and '.join(meta['schedules'])}."
        if meta.get("schedules")
        else ""
    )
    trained = (
        f"Trained: {model}M = {of['world_size']}, {condition}{', ' if condition else ''}"
        f"{meta['epochs']} epochs, {_counted(seeds)} a setting.{schedules}"
    )
    return section(
        f"Time to accuracy: study {meta['study']}, scenario {meta['scenario']}",
        [f"Scale: {meta['rule']}.", NOT_SCALED, trained],
    )


def _counted(seeds: Sequence[int]) -> str:
    if len(seeds) > 1:
        return f"{seeds[0]} to {seeds[-1]} seeds"
    return f"{seeds[0]} seed{'s' if seeds[0] != 1 else ''}"


def _troubles(tables: JoinTables, meta: Mapping[str, Any]) -> Iterator[str]:
    """What is not in the numbers, and why."""
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
        f"{row['setting']} cannot be simulated: {row['message']}." for row in rows if row["message"]
    )
    if not (tables.settings["strategy"] == "global").any():
        yield (
            "The study has no global shuffle in this condition: there is nothing to take default"
            " targets from, or to compare with."
        )


def _timed(row: Row) -> list[str]:
    """A setting: `TIMES`, and accuracy."""
    name = f"{row['setting']}{' *' if row['on_front'] else ''}"
    if row["message"]:
        return [name, "not simulated", *[""] * (len(TIMES) - 1), mean(row)]
    names = ("staging_s", "cold_epoch_s", "epoch_s", "total_s", "impt_s", "exchange_s")
    storage = readable(row["storage_nbytes"], Dimension.NBYTES, 3)
    requests = readable_count(row["total_requests"])
    return [name, storage, *(seconds(row[of]) for of in names), requests, mean(row)]


def _mixed(row: Row) -> list[str]:
    """What the exchange of a setting costs the network and what it mixes: bytes from peers,
    exchange, exposed, busiest cable, label divergence, between ranks; and accuracy."""
    return [
        row["setting"],
        readable(row["peer_nbytes"], Dimension.NBYTES, 3),
        *(seconds(row[name]) for name in ("exchange_total_s", "exchange_exposed_s")),
        f"{row['cable_tier']} {row['cable_utilisation']:.1%}" if row["cable_tier"] else "",
        *(
            "" if math.isnan(row[name]) else f"{row[name]:.3f}"
            for name in ("label_divergence", "between_ranks")
        ),
        mean(row),
    ]


# ------------------------------------------------------------------------------------------ targets


def verdict(tables: JoinTables) -> Iterator[str]:
    """What is fastest to the highest accuracy that was asked for, and what that rests on."""
    if tables.targets.empty:
        return
    target = tables.targets["target"].max()
    rows = tables.targets[tables.targets["target"] == target]
    yield f"To {100 * target:.1f} % accuracy:"
    yield from _fastest(tables, rows)
    yield (
        f"Rests on trainings of {rows['n'].max()} seeds and on times that were simulated."
        f" {intervals.NO_INTERVALS_OF_TIMES}"
    )


def _of_target(tables: JoinTables, rows: pd.DataFrame) -> str:
    """What is fastest to a target, and what never reached it."""
    name, none = rows["name"].iloc[0], rows.loc[rows["reached"] == 0, "setting"]
    lines = _fastest(tables, rows)
    if len(none):
        lines.append(f"Not reached by any seed: {', '.join(none)}.")
    named = f" ({name})" if name != GIVEN else ""
    return section(f"Target {100 * rows['target'].iloc[0]:.1f} %{named}", lines)


def _reaching(rows: pd.DataFrame) -> list[dict[Any, Any]]:
    """The rows of settings that reached a target: those of which every seed did, then by time."""
    reached = rows[rows["reached"] > 0].to_dict("records")
    return sorted(reached, key=lambda row: (row["reached"] < row["n"], float(row["time_s"])))


def _reached(row: Row) -> list[str]:
    """A setting and a target: seeds that reached it, their share, the time and the epochs."""
    sure = f"{100 * row['probability_low']:.0f} to {100 * row['probability_high']:.0f} %"
    spread = (
        ""
        if math.isnan(row["time_low_s"])
        else f" ({seconds(max(row['time_low_s'], 0.0))} to {seconds(row['time_high_s'])})"
    )
    target, reached = f"{100 * row['target']:.1f}", f"{row['reached']} of {row['n']}"
    time = seconds(row["time_s"]) + spread
    return [row["setting"], target, reached, sure, time, f"{row['epochs']:.1f}"]


def _fastest(tables: JoinTables, rows: pd.DataFrame) -> list[str]:
    """The certain setting with the smallest mean time; and whether the next is told apart."""
    timed = rows[(rows["reached"] > 0) & rows["time_s"].notna()]
    certain = timed[timed["reached"] == timed["n"]].sort_values("time_s", kind="stable")
    sure = certain.to_dict("records")
    if not sure:
        with_every = " with every seed" if len(timed) else ""
        return [f"No setting that was simulated reached it{with_every}."]
    best = sure[0]
    lines = [
        f"Fastest of the settings that reached it with every seed: {best['setting']},"
        f" {seconds(best['time_s'])} s."
    ]
    tied = [
        str(row["setting"])
        for row in sure[1:]
        if not slower(tables, str(row["setting"]), str(best["setting"]), float(best["target"]))
    ]
    if tied:
        lines.append(f"Not told apart from it by the seeds (95 %, paired): {', '.join(tied)}.")
    chancy = timed[(timed["reached"] < timed["n"]) & (timed["time_s"] < best["time_s"])]
    each = [
        f"{row['setting']} ({seconds(row['time_s'])} s, {row['reached']} of {row['n']})"
        for row in chancy.sort_values("time_s").to_dict("records")
    ]
    if each:
        lines.append(f"Faster where they reached it, but not with every seed: {', '.join(each)}.")
    reference = next((row for row in sure if row["setting"].startswith("global")), None)
    if reference is not None and reference is not best:
        name, times = str(reference["setting"]), reference["time_s"] / best["time_s"]
        lines.append(
            f"{name[0].upper()}{name[1:]} takes {seconds(reference['time_s'])} s, {times:.2f}"
            " times as long."
        )
    return lines


def slower(tables: JoinTables, setting: str, best: str, target: float) -> bool:
    """Whether the paired 95 % interval of the times to ``target``, of common seeds, is above 0."""
    times = [
        first_reached(tables.curves[tables.curves["setting"] == name], target)["time_s"]
        for name in (setting, best)
    ]
    both = times[0].index.intersection(times[1].index)
    return estimate((times[0][both] - times[1][both]).tolist()).low > 0


def _front(tables: JoinTables) -> Iterator[str]:
    """Which settings no other one beats, and what beats each of the others."""
    settings = tables.settings
    front = settings[settings["on_front"]].sort_values("total_s").to_dict("records")
    if not front:
        return
    lines = [
        "No other setting is at least as good in storage per host, time of all epochs, requests to"
        " the file system and mean final accuracy, and better in one of them. Means alone decide;"
        " neighbours whose intervals overlap may change places with other seeds."
    ]
    for row in front:
        storage = readable(row["storage_nbytes"], Dimension.NBYTES, 3)
        lines.append(
            f"{row['setting']}: {storage} a host, {seconds(row['total_s'])} s,"
            f" {readable_count(row['total_requests'])} requests, {mean(row)} %."
        )
    yield section("Pareto front", lines)
    if others := [_beaten(tables, each) for each in beaten(settings)]:
        head = "In brackets: accuracy of the one that beats it less its own, paired."
        yield section("Beaten", [head, *others])


def _beaten(tables: JoinTables, found: Beaten) -> str:
    """What beats a setting, and in what."""
    if len(found.better) == len(CRITERIA):
        in_what = "in all four"
    else:
        alike = [name for name in CRITERIA if name not in found.better]
        in_what = f"in {_and(found.better)}; alike in {_and(alike)}"
    difference = points(paired(tables, found.by, found.setting))
    return f"{found.setting}: beaten by {found.by} {in_what} ({difference} points)."


def _and(words: Sequence[str]) -> str:
    """Such as 'storage, time and accuracy'."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _method(tables: JoinTables, meta: Mapping[str, Any]) -> str:
    replays = sorted({int(count) for count in tables.settings["replays"] if count})
    several = (
        "one seed"
        if replays in ([], [1])
        else f"up to {replays[-1]} seeds, and times are their means"
    )
    exchange = f"replayed is the exchange that was recorded for {several}"
    if meta.get("drawn"):
        exchange = "exchanges are drawn anew by the strategies that were trained"
    evaluated = sorted(set(tables.curves["epoch"]))
    rare = max((b - a for a, b in pairwise(evaluated)), default=1)
    lines = [
        (
            f"Time is simulated: {exchange}; global"
            " and local shuffle are those of the scenario. Time counts the staging, the cold first"
            " epoch, and for every other epoch the mean of the warm ones; evaluation takes none."
            " Seeds differ in accuracy, not in time per epoch."
        ),
        "Accuracy is the share of test samples classified rightly, with the batch-norm statistics"
        f" '{meta['statistics']}'. A target counts as reached at the first evaluation at or above"
        " it, even if accuracy falls again."
        + (
            f" Evaluations are up to {rare} epochs apart, so it may have been reached up to"
            f" {rare - 1} epochs earlier."
            if rare > 1
            else ""
        ),
        (
            "Intervals are of 95 %: of means by Student's t over seeds, of probabilities by Clopper"
            " and Pearson. They hold for each number alone and are not corrected for there being"
            " many. A time is the mean over the seeds that reached the target: read it with how"
            " many did. Its interval has no width where all of them reached it at the same"
            " evaluation."
        ),
    ]
    return section("How to read this", lines)
