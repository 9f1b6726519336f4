"""Write an accuracy to a terminal: the loss, the quickest remedy, and the basis of
both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.extensions.learning.accuracy.tables import (
    PRINTED_REMEDIES,
    SETTINGS,
    TIMED,
    format_points,
)
from simshuffle.study.schema import Schema
from simshuffle.study.study import Result
from simshuffle.study.verdict import Verdict, join_sentences

REMEDY_LISTING = Schema(PRINTED_REMEDIES)


def verdict(result: Result) -> Verdict:
    """Return the verdict: the loss of each run and its remedy, and the law behind both.

    Runs on one number of ranks of which nothing has to be done stand together. A
    network without batch norm has one sentence for all runs.
    """
    settings = result.tables["settings"]
    remedies = result.tables["remedies"]
    meta = result.meta
    sensitivity = meta["sensitivity"]
    basis = [f"{sensitivity['basis']}, random shards, and one seed of the simulation"]
    untried = ", ".join(_untried_inputs(settings["outside"]))
    next_steps = [f"what was not tried: {untried}"] if untried else []
    if sensitivity["norm"] != "batch":
        answer = [_norm_free_verdict(settings, meta)]
        why = (
            f"{sensitivity['model']} has no batch norm: there are no running statistics, n is not"
            " defined, and the law does not apply."
        )
    else:
        answer = [
            line
            for _, rows in settings.groupby("world_size", sort=True)
            for line in _verdict_on_ranks(rows, remedies, meta)
        ]
        why = (
            f"the loss is c (1/n - 1/n of global shuffle), with c = {sensitivity['c']:.3g} points"
            f" and momentum {meta['asked']['momentum']:g}."
        )
        if not meta["accuracy"].get("norm_is_known", True):
            basis.append(
                f"the norm of {sensitivity['model']} is not known: batch norm is assumed"
            )
            next_steps.append(
                "the norm: layer or group norm loses nothing (--norm layer)"
            )
    return Verdict(
        answer,
        why=why,
        rests_on=join_sentences(basis),
        measure_next=join_sentences(next_steps),
    )


def _norm_free_verdict(settings: pd.DataFrame, meta: Mapping[str, Any]) -> str:
    """State that a network without running statistics loses nothing by them.

    The scatter that is stated is of the first run.
    """
    scatter = format_points(settings.to_dict("records")[0]["high_points"])
    names = ", ".join(dict.fromkeys(settings["strategy"]))
    sizes = ", ".join(f"{size:,}" for size in dict.fromkeys(settings["world_size"]))
    return (
        f"{names} on {sizes} ranks lose 0 points by running statistics; trainings without batch"
        f" norm came within {scatter} points of global shuffle."
    )


def _verdict_on_ranks(
    settings: pd.DataFrame, remedies: pd.DataFrame, meta: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the verdicts on the runs on one number of ranks.

    A run whose interval has no width is global shuffle, with which others are compared;
    a sentence states it only where there are no other runs.
    """
    is_reference = settings["low_points"] == settings["high_points"]
    losing = settings[~is_reference]
    reference = settings[is_reference]
    acceptable = losing[losing["enough"]]
    unacceptable = losing[~losing["enough"]]
    for row in unacceptable.to_dict("records"):
        yield _losing_run(row, remedies_of(row, remedies), meta)
    if len(acceptable):
        yield _acceptable_runs(acceptable, meta["asked"]["tolerance"])
    elif not len(unacceptable):
        names = ", ".join(reference["strategy"])
        (ranks,) = set(reference["world_size"])
        yield f"On {ranks:,} ranks {names} loses nothing: other strategies are compared with it."


def _acceptable_runs(rows: pd.DataFrame, tolerance: float) -> str:
    """State the loss of runs on one number of ranks that lose no more than may be lost.

    Of several runs the loss is of the run whose interval has the highest upper end.
    """
    worst = rows.sort_values("high_points").to_dict("records")[-1]
    verb = "are each" if len(rows) > 1 else "is"
    at_most = "at most " if len(rows) > 1 else ""
    return (
        f"On {worst['world_size']:,} ranks with {worst['samples']:,} samples each,"
        f" {', '.join(rows['strategy'])} {verb} expected to lose {at_most}"
        f"{format_points(worst['loss_points'])} points, surely within {tolerance:g}: nothing has to"
        " be done."
    )


def remedies_of(row: Mapping[Any, Any], remedies: pd.DataFrame) -> pd.DataFrame:
    """Return the remedies of a run, ``row`` of table ``settings``; 'as it is' is one.

    Results of earlier versions have one run on a number of ranks, and strategy '':
    these remedies count for every run on as many ranks.
    """
    on_size = remedies[remedies["world_size"] == row["world_size"]]
    remedy_rows: pd.DataFrame = on_size[on_size["strategy"].isin(["", row["strategy"]])]
    return remedy_rows


def _losing_run(
    row: Mapping[Any, Any], remedies: pd.DataFrame, meta: Mapping[str, Any]
) -> str:
    """State the loss of a run that loses more than may be lost, and its quickest
    remedy, or that none is sure to be enough.

    ``remedies`` are those of this run alone.
    """
    tolerance = meta["asked"]["tolerance"]
    loss_clause = (
        f"On {row['world_size']:,} ranks with {row['samples']:,} samples each, {row['strategy']} is"
        f" expected to lose {format_points(row['loss_points'])} points, not surely within"
        f" {tolerance:g}."
    )
    chosen = remedies[remedies["chosen"]]
    if not len(chosen):
        return f"{loss_clause} No remedy is sure to stay within them."
    best = chosen.to_dict("records")[0]
    return (
        f"{loss_clause} The quickest sure remedy is {best['remedy']}:"
        f" {format_points(best['loss_points'])} points, {best['added_s']:+.3g} s an epoch."
    )


def _untried_inputs(outside: pd.Series[str]) -> list[str]:
    """Return the inputs of all runs that lie outside of what was tried, each once.

    Values of one input and range are joined: 'ranks 64, 128 (tried: 2 to 16)'.
    ``outside`` is the column of that name, a row for each run: inputs divided by '; ',
    or '' where all were tried.
    """
    values_by_input: dict[tuple[str, str], list[str]] = {}
    for part in (part for row in outside for part in row.split("; ") if part):
        subject, _, tried_range = part.partition(" (")
        name, _, value = subject.rpartition(" ")
        values = values_by_input.setdefault((name, tried_range), [])
        if value not in values:
            values.append(value)
    return [
        f"{name} {', '.join(values)}" + f" ({tried_range}" * bool(tried_range)
        for (name, tried_range), values in values_by_input.items()
    ]


def parts(result: Result) -> Iterator[str | Table]:
    """Yield the losses, and of each run the remedies worth a look.

    These are the chosen one, those on the front, and 'as it is'. Runs that have no
    remedy but 'as it is' have no table. Cautions stand last.
    """
    yield _loss_table(result)
    yield from _remedies(result, all_remedies=False)
    yield from _cautions(result)


def details(result: Result) -> Iterator[str | Table]:
    """Yield all remedies of each run, how well the law is known, and the effects that it
    leaves out.
    """
    yield from _remedies(result, all_remedies=True)
    sensitivity = result.meta["sensitivity"]
    if sensitivity["norm"] == "batch":
        yield (
            f"c of the law is {sensitivity['c']:.3g} points ({sensitivity['low']:.3g} to"
            f" {sensitivity['high']:.3g}, 90 %); settings lie {sensitivity['rms']:.2g} points off"
            " the law. The law says nothing of shards sorted by class."
        )
    yield from _notes(result.tables["remedies"], result.meta)


def document_parts(result: Result) -> list[str | Table]:
    """Return the parts of documents: the table of losses, tables of all remedies, the
    notes, and last the cautions.
    """
    return [_loss_table(result), *details(result), *_cautions(result)]


def _loss_table(result: Result) -> Table:
    """Return the table of the loss of each run, beside ranks, samples, n and epoch.

    Column 'interval' is the 90 % interval of the loss. It shows some columns of
    ``settings``; those that are empty are left out.
    """
    settings = result.tables["settings"]
    meta = result.meta
    title = (
        f"Accuracy that {meta['accuracy']['scenario']} loses, network"
        f" {meta['sensitivity']['model']}"
    )
    columns_shown = [
        "world_size",
        "strategy",
        "samples",
        "iterations",
        "n",
        "n_global",
        "loss_points",
    ]
    filled_columns = [name for name in columns_shown if settings[name].notna().any()]
    rows_shown = settings.assign(
        interval=[*map(_format_interval, settings.to_dict("records"))]
    )
    columns = {**SETTINGS.columns, "interval": PRINTED_REMEDIES["interval"]}
    return Schema(columns).listing(
        rows_shown, title, [*filled_columns, "interval", "epoch_s"], names=2
    )


def _cautions(result: Result) -> Iterator[str]:
    """Yield sentences on epochs by closed forms, on importances, and on the network.

    A sentence stands only where it applies: epochs not simulated, samples chosen by
    importance, or a network other than the scenario's.
    """
    settings = result.tables["settings"]
    meta = result.meta
    if (settings["timed"] != TIMED[0]).any():
        yield (
            "Closed forms time the epochs that would take long to simulate (column timed of"
            " settings.csv); --exact simulates all epochs."
        )
    if meta["accuracy"]["importance"]:
        yield (
            "The simulation draws importances anew for every epoch. Importances of real losses"
            " last, so the same samples stay: the real n is smaller, and the loss is larger."
        )
    timed = meta["accuracy"]["timed"]
    model = meta["sensitivity"]["model"]
    if timed != model:
        yield f"Times are those of {timed}, which the scenario trains (workload.model)."


def _remedies(result: Result, *, all_remedies: bool) -> Iterator[Table]:
    """Yield a table of the remedies of each run that has any beside 'as it is'.

    Unless ``all_remedies``, a table has only the chosen one, those on the front, and
    'as it is'.
    """
    remedies = result.tables["remedies"]
    is_notable = (
        remedies["chosen"] | remedies["front"] | (remedies["remedy"] == "as it is")
    )
    for row in result.tables["settings"].to_dict("records"):
        rows = remedies_of(row, remedies)
        if len(rows) > 1:
            yield _remedy_table(
                row, rows if all_remedies else rows[is_notable[rows.index]]
            )


def _remedy_table(setting: Mapping[Any, Any], rows: pd.DataFrame) -> Table:
    """Return the table of remedies by the seconds that they add, those that cannot be
    had last.
    """
    rows = rows.sort_values("added_s", kind="stable", na_position="last")
    marks = [
        "*" if is_chosen else "+" if is_on_front else ""
        for is_chosen, is_on_front in zip(rows["chosen"], rows["front"], strict=True)
    ]
    intervals = [*map(_format_interval, rows.to_dict("records"))]
    rows_shown = rows.assign(interval=intervals, mark=marks)
    run = f"{setting['strategy']} on {setting['world_size']:,} ranks"
    title = f"Remedies for {run} (* quickest that is enough, + on the front)"
    columns = ("mark", "remedy", "n", "loss_points", "interval", "epoch_s", "added_s")
    return REMEDY_LISTING.listing(rows_shown, title, columns, names=2)


def _format_interval(row: Mapping[Any, Any]) -> str:
    """Format the 90 % interval of a loss in points; '' where the loss is not known."""
    if pd.isna(row["low_points"]):
        return ""
    return f"{format_points(row['low_points'])} to {format_points(row['high_points'])}"


def _notes(remedies: pd.DataFrame, meta: Mapping[str, Any]) -> Iterator[str]:
    """Yield the notes on remedies: effects that the law leaves out, or why one cannot
    be had.

    Remedies without a note are left out. The numbers of ranks are named where not all
    have the note. With batch norm and more than one row of ``remedies``, the first note
    says what loss is counted against.
    """
    if len(remedies) > 1 and meta["sensitivity"]["norm"] == "batch":
        yield (
            "The loss is against global shuffle of the scenario as it is. With a larger batch or a"
            " slower momentum, the statistics of global shuffle rest on more samples, too: see"
            " own_points in remedies.csv."
        )
    noted = remedies[remedies["note"] != ""]
    for (remedy, note), rows in noted.groupby(["remedy", "note"], sort=False):
        sizes = ", ".join(f"{size:,}" for size in rows["world_size"])
        at_ranks = (
            f" (@{sizes})" if remedies["world_size"].nunique() > len(rows) else ""
        )
        yield f"{remedy}{at_ranks}: {note}."
