"""An accuracy on a terminal: what is lost, what is quickest against it, and what that rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.extensions.learning.accuracy.tables import SETTINGS, SHOWN, TIMED, figure, points
from simshuffle.study.schema import Schema
from simshuffle.study.study import Result

LISTED = Schema(SHOWN)


def verdict(result: Result) -> Iterator[str]:
    """What each run loses and what to do, runs of which nothing has to be done together; then what
    the answer rests on."""
    settings, remedies, meta = result.tables["settings"], result.tables["remedies"], result.meta
    if meta["sensitivity"]["norm"] != "batch":
        yield _without_statistics(settings, meta)
    else:
        if not meta["accuracy"].get("norm_is_known", True):
            yield _assumed(meta)
        for _, rows in settings.groupby("world_size", sort=True):
            yield from _of_size(rows, remedies, meta)
    yield _rests(settings, meta)


def _without_statistics(settings: pd.DataFrame, meta: Mapping[str, Any]) -> str:
    """What is known of a network without running statistics."""
    of, row = meta["sensitivity"], settings.to_dict("records")[0]
    names = ", ".join(dict.fromkeys(settings["strategy"]))
    sizes = ", ".join(f"{size:,}" for size in dict.fromkeys(settings["world_size"]))
    return (
        f"{of['model']} has no batch norm: there are no running statistics, n is not defined, and"
        f" the law does not apply. By this mechanism {names} on {sizes} ranks lose 0 points."
        f" What was trained without batch norm came within {points(row['high_points'])} points of"
        " global shuffle on random shards (90 %). Nothing is known of other mechanisms."
    )


def _assumed(meta: Mapping[str, Any]) -> str:
    model = meta["sensitivity"]["model"]
    return (
        f"What {model} normalises by is not known: batch norm is assumed. With layer or group norm"
        " (a transformer, such as a ViT) nothing is lost by this mechanism: add --norm layer."
    )


def _of_size(
    settings: pd.DataFrame, remedies: pd.DataFrame, meta: Mapping[str, Any]
) -> Iterator[str]:
    """The runs on one number of ranks."""
    is_reference = settings["low_points"] == settings["high_points"]
    losing, reference = settings[~is_reference], settings[is_reference]
    fine, others = losing[losing["enough"]], losing[~losing["enough"]]
    for row in others.to_dict("records"):
        yield _said(row, remedies_of(row, remedies), meta)
    if len(fine):
        yield _fine(fine, meta["asked"]["tolerance"])
    elif not len(others):
        names = ", ".join(reference["strategy"])
        (ranks,) = set(reference["world_size"])
        yield f"On {ranks:,} ranks {names} loses nothing: it is what others are compared with."


def _fine(rows: pd.DataFrame, tolerance: float) -> str:
    """What is said of runs on one number of ranks that lose no more than may be lost."""
    worst = rows.sort_values("high_points").to_dict("records")[-1]
    n = f"n is {figure(rows['n'].min())} or more" if len(rows) > 1 else f"n is {figure(worst['n'])}"
    lose = "are each" if len(rows) > 1 else "is"
    return (
        f"On {worst['world_size']:,} ranks with {worst['samples']:,} samples each"
        f" {', '.join(rows['strategy'])} {lose} expected to lose"
        f" {points(worst['loss_points'])} points{' at most' * (len(rows) > 1)}"
        f" ({points(worst['low_points'])} to {points(worst['high_points'])}); {n}, and"
        f" {figure(worst['n_global'])} under global shuffle. That is within {tolerance:g} points:"
        " nothing has to be done."
    )


def remedies_of(row: Mapping[Any, Any], remedies: pd.DataFrame) -> pd.DataFrame:
    """The remedies of a run; results of earlier versions have one run on a number of ranks."""
    on_size = remedies[remedies["world_size"] == row["world_size"]]
    found: pd.DataFrame = on_size[on_size["strategy"].isin(["", row["strategy"]])]
    return found


def _said(row: Mapping[Any, Any], remedies: pd.DataFrame, meta: Mapping[str, Any]) -> str:
    tolerance = meta["asked"]["tolerance"]
    lost = (
        f"On {row['world_size']:,} ranks with {row['samples']:,} samples each {row['strategy']} is"
        f" expected to lose {points(row['loss_points'])} points"
        f" ({points(row['low_points'])} to {points(row['high_points'])})"
    )
    of_n = f"n is {figure(row['n'])}, and {figure(row['n_global'])} under global shuffle"
    chosen = remedies[remedies["chosen"]]
    if not len(chosen):
        return f"{lost}; {of_n}. No remedy is sure to stay within {tolerance:g} points."
    best = chosen.to_dict("records")[0]
    return (
        f"{lost}; {of_n}. Quickest within {tolerance:g} points is {best['remedy']}:"
        f" {points(best['loss_points'])} ({points(best['low_points'])} to"
        f" {points(best['high_points'])}), {best['added_s']:+.3g} s an epoch."
    )


def _rests(settings: pd.DataFrame, meta: Mapping[str, Any]) -> str:
    """What the answer rests on, and what it crosses."""
    of, asked = meta["sensitivity"], meta["asked"]
    rest = f"Rests on {of['basis']}"
    if of["norm"] == "batch":
        rest += (
            f": c = {of['c']:.3g} points ({of['low']:.3g} to {of['high']:.3g}, 90 %) times 1/n -"
            f" 1/n of global shuffle, settings {of['rms']:.2g} points beside it; momentum"
            f" {asked['momentum']:g}"
        )
    rest += (
        ". Shards must be random: of shards sorted by class it says nothing. One seed of the"
        " simulation."
    )
    crossed = _crossed(settings["outside"])
    return rest + (f" Never tried: {'; '.join(crossed)}." if crossed else "")


def _crossed(outside: pd.Series[str]) -> list[str]:
    """What was never tried at any number of ranks, each bound once."""
    found: dict[tuple[str, str], list[str]] = {}
    for part in (part for row in outside for part in row.split("; ") if part):
        said, _, tried = part.partition(" (")
        name, _, value = said.rpartition(" ")
        values = found.setdefault((name, tried), [])
        if value not in values:
            values.append(value)
    return [
        f"{name} {', '.join(values)}" + f" ({tried}" * bool(tried)
        for (name, tried), values in found.items()
    ]


def parts(result: Result) -> Iterator[str | Table]:
    """Yield what is lost, and the remedies worth a look: the quickest, the front, and none."""
    yield _lost(result)
    yield from _remedies(result, whole=False)
    yield from _cautions(result)


def details(result: Result) -> Iterator[str | Table]:
    """Yield all remedies, and what the law leaves out."""
    yield from _remedies(result, whole=True)
    yield from _notes(result.tables["remedies"], result.meta)


def exported(result: Result) -> list[str | Table]:
    """Return what documents show: ``parts`` with all remedies instead of a few, and the notes."""
    return [_lost(result), *details(result), *_cautions(result)]


def _lost(result: Result) -> Table:
    """Return the table of what each run loses."""
    settings, meta = result.tables["settings"], result.meta
    title = f"What {meta['accuracy']['scenario']} loses, network {meta['sensitivity']['model']}"
    shown = ["world_size", "strategy", "samples", "iterations", "n", "n_global", "loss_points"]
    known = [name for name in shown if settings[name].notna().any()]
    listed = settings.assign(interval=[*map(_interval, settings.to_dict("records"))])
    columns = {**SETTINGS.columns, "interval": SHOWN["interval"]}
    return Schema(columns).listing(listed, title, [*known, "interval", "epoch_s"], names=2)


def _cautions(result: Result) -> Iterator[str]:
    """Yield sentences on how epochs were timed and importances drawn."""
    settings, meta = result.tables["settings"], result.meta
    if (settings["timed"] != TIMED[0]).any():
        yield (
            "Epochs that would take long to simulate are timed by closed forms, column timed of"
            " settings.csv; --exact simulates all."
        )
    if meta["accuracy"]["importance"]:
        yield (
            "Importances are drawn anew for every epoch. Those of real losses last, so that the"
            " same samples stay: n is less than this, and more is lost."
        )
    timed, model = meta["accuracy"]["timed"], meta["sensitivity"]["model"]
    if timed != model:
        yield f"Times are those of {timed}, which the scenario trains (workload.model)."


def _remedies(result: Result, *, whole: bool) -> Iterator[Table]:
    """Yield the remedies of each run that has any; those worth a look alone unless ``whole``."""
    remedies = result.tables["remedies"]
    worth = remedies["chosen"] | remedies["front"] | (remedies["remedy"] == "as it is")
    for row in result.tables["settings"].to_dict("records"):
        rows = remedies_of(row, remedies)
        if len(rows) > 1:
            yield _listing(row, rows if whole else rows[worth[rows.index]])


def _listing(setting: Mapping[Any, Any], rows: pd.DataFrame) -> Table:
    """Remedies by what they add, those that cannot be had last."""
    rows = rows.sort_values("added_s", kind="stable", na_position="last")
    marks = [
        "*" if c else "+" if f else "" for c, f in zip(rows["chosen"], rows["front"], strict=True)
    ]
    listed = rows.assign(interval=[*map(_interval, rows.to_dict("records"))], mark=marks)
    run = f"{setting['strategy']} on {setting['world_size']:,} ranks"
    title = f"Remedies for {run} (* quickest that is enough, + on the front)"
    columns = ("mark", "remedy", "n", "loss_points", "interval", "epoch_s", "added_s")
    return LISTED.listing(listed, title, columns, names=2)


def _interval(row: Mapping[Any, Any]) -> str:
    if pd.isna(row["low_points"]):
        return ""
    return f"{points(row['low_points'])} to {points(row['high_points'])}"


def _notes(remedies: pd.DataFrame, meta: Mapping[str, Any]) -> Iterator[str]:
    """What the law leaves out, by remedy."""
    if len(remedies) > 1 and meta["sensitivity"]["norm"] == "batch":
        yield (
            "Lost against global shuffle of the scenario as it is. A larger batch or a slower"
            " momentum lets that rest on more, too: own_points in remedies.csv."
        )
    noted = remedies[remedies["note"] != ""]
    for (remedy, note), rows in noted.groupby(["remedy", "note"], sort=False):
        sizes = ", ".join(f"{size:,}" for size in rows["world_size"])
        where = f" (@{sizes})" if remedies["world_size"].nunique() > len(rows) else ""
        yield f"{remedy}{where}: {note}."
