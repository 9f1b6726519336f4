"""The report: what is fastest to which accuracy, what no other setting beats, and three claims
looked at. From tables alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.spec.units import Dimension, readable, readable_count
from simshuffle.studies.time_to_accuracy.comparison import (
    CRITERIA,
    Beaten,
    beaten,
    first_reached,
    paired,
    points,
    sentences,
)
from simshuffle.studies.time_to_accuracy.tables import NOT_SCALED, Tables
from simshuffle.studies.training.intervals import estimate
from simshuffle.studies.training.tables import NORMS
from simshuffle.studies.training.wording import Row, aligned, as_lines, as_table, mean, wrapped

TIMES = ["storage/host", "staging", "epoch 1", "epoch", "all", "IMPT", "EXCHANGE", "requests"]
TIME_WIDTHS = (13, 9, 9, 9, 10, 8, 10, 10)


def report(tables: Tables, meta: Mapping[str, Any]) -> str:
    """The whole report.

    Args:
        tables: what was found.
        meta: study, scenario, rule, model, schedules, condition, statistics, epochs, missing_runs,
            all_runs, targets.
    """
    sections = [
        _head(tables, meta),
        _troubles(tables, meta),
        _table(tables),
        _mixing(tables),
        *_by_target(tables, meta),
        front_section(tables),
        section("Claims about importance exchange", sentences(tables)),
        _method(tables, meta),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def parts(tables: Tables, meta: Mapping[str, Any]) -> Iterator[str | Table]:
    """The tables of the report as such, and the texts without which they cannot be read; arguments
    as of `report`."""
    yield from (_head(tables, meta), _troubles(tables, meta))
    title = "Settings: simulated times in s; accuracy in %, with its 95 % interval; * on the front"
    rows = []
    for row in tables.settings.to_dict("records"):
        cells = ["not simulated", *[""] * 7] if row["message"] else _times(row)
        rows.append([f"{row['setting']}{_star(row)}", *cells, mean(row)])
    yield as_table(title, ["setting"], [*TIMES, "accuracy"], rows)
    names = ["from peers", "exchange (s)", "exposed (s)", "busiest cable", "labels", "between"]
    if rows := [[row["setting"], *_mixed(row), mean(row)] for row in _exchanging(tables)]:
        title = "Mixing and congestion, of a warm epoch"
        yield as_table(title, ["setting"], [*names, "accuracy"], rows)
    names = ["target (%)", "reached", "probability, 95 %", "time (s), 95 %", "epochs"]
    rows = [
        [row["setting"], f"{100 * float(str(target)):.1f}", *_target_cells(row)]
        for target, of in tables.targets.groupby("target", sort=False)
        for row in _reaching(of)
    ]
    if rows:
        yield as_table("What reached which accuracy when", ["setting"], names, rows)


def section(title: str, lines: Sequence[str]) -> str:
    """A title and indented paragraphs below it; nothing where there are none."""
    return "\n".join([title, *(folded(line) for line in lines)]) if lines else ""


def folded(line: str) -> str:
    """An indented paragraph; percent signs stay with their numbers."""
    return wrapped(line.replace(" %", "\u00a0%"))


def seconds(value: float) -> str:
    """Three digits, two below 0.1 s, whole seconds from 100 s on."""
    if math.isnan(value):
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 0.1 else f"{value:.3g}"


def _head(tables: Tables, meta: Mapping[str, Any]) -> str:
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


def _troubles(tables: Tables, meta: Mapping[str, Any]) -> str:
    """What is not in the numbers, and why."""
    lines = []
    if meta["missing_runs"]:
        lines.append(
            f"UNFINISHED: {meta['missing_runs']} of the {meta['all_runs']} runs of this condition"
            " are missing or lost."
        )
    settings = tables.settings
    failed = settings[settings["failed_seeds"] > 0]
    lines += [
        f"{row['setting']}: {row['failed_seeds']} trainings failed."
        for row in failed.to_dict("records")
    ]
    lines += [
        f"{row['setting']} cannot be simulated: {row['message']}."
        for row in settings[settings["message"] != ""].to_dict("records")
    ]
    if not (settings["strategy"] == "global").any():
        lines.append(
            "The study has no global shuffle in this condition: there is nothing to take default"
            " targets from, or to compare with."
        )
    return section("What is missing", lines)


def _table(tables: Tables) -> str:
    """One line for each setting."""
    widths = (-_width(tables), *TIME_WIDTHS)
    title = (
        "Settings. Times in s, of the simulation; requests to the file system, of staging and"
        " all epochs; accuracy in %, with its 95 % interval; * on the front"
    )
    lines = [title, aligned(["", *TIMES, "accuracy"], *widths, 14)]
    for row in tables.settings.to_dict("records"):
        # what was not simulated takes the width of all times
        cells, of = (["not simulated"], (78,)) if row["message"] else (_times(row), TIME_WIDTHS)
        cells = [row["setting"], *cells, mean(row)]
        lines.append(aligned(cells, widths[0], *of, 14) + _star(row))
    return "\n".join(lines)


def _star(row: Row) -> str:
    return " *" if row["on_front"] else ""


def _times(row: Row) -> list[str]:
    """Storage of a host, staging, first epoch, other epochs, all, IMPT, EXCHANGE, requests."""
    names = ("staging_s", "cold_epoch_s", "epoch_s", "total_s", "impt_s", "exchange_s")
    storage = readable(row["storage_nbytes"], Dimension.NBYTES, 3)
    requests = readable_count(row["total_requests"])
    return [storage, *(seconds(row[name]) for name in names), requests]


def _width(tables: Tables) -> int:
    """Of the column of settings."""
    return max(19, *(len(name) for name in tables.settings["setting"])) + 1


def _mixing(tables: Tables) -> str:
    """What the exchange costs the network and what it mixes, side by side; nothing where no setting
    exchanges."""
    rows = [[row["setting"], *_mixed(row), mean(row)] for row in _exchanging(tables)]
    if not rows:
        return ""
    title = (
        "Mixing and congestion. Of a warm epoch: bytes from peers, all ranks; s of exchange,"
        " and of it exposed; the busiest cable.\n"
        "  After the last epoch: label divergence (how far a shard's labels are from those of"
        " the set, 0 to 1), and the share of the\n"
        "  losses' variance that is between ranks."
    )
    names = ["", "from peers", "exchange", "exposed", "  busiest cable", "labels", "between"]
    for row in rows:
        row[4] = f"  {row[4]}"
    widths = (-_width(tables), 11, 10, 9, -24, 8, 9, 14)
    return as_lines(title, [*names, "accuracy"], rows, *widths)


def _exchanging(tables: Tables) -> list[dict[Any, Any]]:
    """The settings that were simulated and exchange samples."""
    rows = tables.settings.to_dict("records")
    return [row for row in rows if not row["message"] and row["peer_nbytes"] > 0]


def _mixed(row: Row) -> list[str]:
    """Bytes from peers, exchange, exposed, busiest cable, label divergence, between ranks."""
    cable = f"{row['cable_tier']} {row['cable_utilisation']:.1%}" if row["cable_tier"] else ""
    shares = (row["label_divergence"], row["between_ranks"])
    return [
        readable(row["peer_nbytes"], Dimension.NBYTES, 3),
        seconds(row["exchange_total_s"]),
        seconds(row["exchange_exposed_s"]),
        cable,
        *("" if math.isnan(value) else f"{value:.3f}" for value in shares),
    ]


# ------------------------------------------------------------------------------------------ targets


def verdict(tables: Tables) -> Iterator[str]:
    """What is fastest to the highest accuracy that was asked for, and what that rests on."""
    if tables.targets.empty:
        return
    target = tables.targets["target"].max()
    rows = tables.targets[tables.targets["target"] == target]
    yield f"To {100 * target:.1f} % accuracy:"
    yield from _fastest(tables, rows)
    yield f"Rests on trainings of {rows['n'].max()} seeds and on times that were simulated."


def _by_target(tables: Tables, meta: Mapping[str, Any]) -> Iterator[str]:
    """What is fastest to each target, and a table of all settings that reached it."""
    for target, rows in tables.targets.groupby("target", sort=False):
        name = rows["name"].iloc[0]
        title = f"Target {100 * float(str(target)):.1f} %" + (
            f" ({name})" if name != "as given" else ""
        )
        widths = (-_width(tables) - 2, 9, 20, 30, 8)
        names = ["", "reached", "probability, 95 %", "time (s), 95 %", "epochs"]
        cells = [[f"  {row['setting']}", *_target_cells(row)] for row in _reaching(rows)]
        lines = [aligned(each, *widths) for each in (names, *cells)]
        none = [str(row["setting"]) for row in rows.to_dict("records") if not row["reached"]]
        rest = [folded(f"Not reached by any seed: {', '.join(none)}.")] if none else []
        said = section(title, _fastest(tables, rows))
        yield "\n".join([said, *(lines if len(none) < len(rows) else []), *rest])


def _reaching(rows: pd.DataFrame) -> list[dict[Any, Any]]:
    """The rows of settings that reached a target: those of which every seed did, then by time."""
    reached = rows[rows["reached"] > 0].to_dict("records")
    return sorted(reached, key=lambda row: (row["reached"] < row["n"], float(row["time_s"])))


def _target_cells(row: Row) -> list[str]:
    """Seeds that reached it, their share, the time and the epochs."""
    sure = f"{100 * row['probability_low']:.0f} to {100 * row['probability_high']:.0f} %"
    spread = (
        ""
        if math.isnan(row["time_low_s"])
        else f" ({seconds(max(row['time_low_s'], 0.0))} to {seconds(row['time_high_s'])})"
    )
    reached = f"{row['reached']} of {row['n']}"
    time = seconds(row["time_s"]) + spread
    return [reached, sure, time, f"{row['epochs']:.1f}"]


def _fastest(tables: Tables, rows: pd.DataFrame) -> list[str]:
    """The setting with the smallest mean time among those that every seed reached the target with;
    and whether the next is told apart."""
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


def slower(tables: Tables, setting: str, best: str, target: float) -> bool:
    """Whether the paired 95 % interval of the times to ``target``, over the seeds that reached it
    with both, lies above 0."""
    times = [
        first_reached(tables.curves[tables.curves["setting"] == name], target)["time_s"]
        for name in (setting, best)
    ]
    both = times[0].index.intersection(times[1].index)
    return estimate((times[0][both] - times[1][both]).tolist()).low > 0


def front_section(tables: Tables) -> str:
    """Which settings no other one beats, and what beats each of the others."""
    settings = tables.settings
    front = settings[settings["on_front"]].sort_values("total_s").to_dict("records")
    if not front:
        return ""
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
    others = [_beaten(tables, each) for each in beaten(settings)]
    if others:
        others.insert(0, "In brackets: accuracy of the one that beats it less its own, paired.")
    sections = [section("Pareto front", lines), section("Beaten", others)]
    return "\n\n".join(section for section in sections if section)


def _beaten(tables: Tables, found: Beaten) -> str:
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


def _method(tables: Tables, meta: Mapping[str, Any]) -> str:
    replays = sorted({int(count) for count in tables.settings["replays"] if count})
    several = (
        "one seed"
        if replays in ([], [1])
        else f"up to {replays[-1]} seeds, and times are their means"
    )
    evaluated = sorted(set(tables.curves["epoch"]))
    rare = max((b - a for a, b in pairwise(evaluated)), default=1)
    lines = [
        (
            f"Time is simulated: replayed is the exchange that was recorded for {several}; global"
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
