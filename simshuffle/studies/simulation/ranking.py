"""Sentences that rank runs, one for each scale of a comparison: which tie, and which
lose.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.simulation.causes import Causes
from simshuffle.studies.simulation.contest import (
    CLOSE_SHARE,
    Row,
    Scale,
    is_close,
    overlaps_widely,
    ties,
)

MAX_SCALES = 8
"""Largest number of scales with a sentence; of more, evenly chosen ones have it."""
MAX_NAMES = 5
"""Largest number of runs that are named together; of more, the first and the last are
named.
"""
MIN_RATIO_AS_TIMES = 1.5
"""Smallest ratio of epochs that is given as times as long; a smaller one is given in
percent.
"""
NOTABLE_SPREAD = 0.0005
"""Share of an epoch from which on the spread of tied runs without intervals is
reported.
"""
SURE_SHARE = 0.95
"""Share of the draws from which on an order counts as sure; below, the share is
reported.
"""
Odds = Mapping[tuple[str, str], float]
"""Share of the draws in which the first run is faster than the second, by their names."""


def rank_runs(
    scales: Sequence[Scale], causes: Causes, intervals: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the answer of a comparison: a sentence for each scale.

    Runs of one name have a single sentence on their speed-up, if no number is swept
    within a scale. Of more than `MAX_SCALES` scales, evenly chosen ones have a sentence,
    and a last sentence says how many do not.

    Args:
        scales: smallest first.
        causes: the causes of the time of each run.
        intervals: the intervals of a result, for how sure an order is; None for none.
    """
    names = {name for scale in scales for name in scale.names}
    if (
        len(scales) > 1
        and len(names) == 1
        and not any(scale.across for scale in scales)
    ):
        return [_describe_speedup(scales)]
    odds = {
        (odds_row["first"], odds_row["second"]): odds_row["share"]
        for odds_row in (intervals or {}).get("odds", ())
    }
    displayed_scales = scales
    if len(scales) > MAX_SCALES:
        indices = [
            round(position * (len(scales) - 1) / (MAX_SCALES - 1))
            for position in range(MAX_SCALES)
        ]
        displayed_scales = [scales[index] for index in indices]
    sentences = [_rank_scale(scale, causes, odds) for scale in displayed_scales]
    num_hidden = len(scales) - len(displayed_scales)
    return sentences + (
        [f"{num_hidden} more scales lie between; the table has them."]
        if num_hidden
        else []
    )


def _rank_scale(scale: Scale, causes: Causes, odds: Odds) -> str:
    """Return the sentence on one scale: a ranking, a threshold, a saturation or a
    single run.

    It begins with the title of the scale, and says if epochs were lengthened to as many
    samples.
    """
    rows = scale.rows.to_dict("records")
    if scale.across:
        sentence = (
            _describe_threshold(scale)
            if len(scale.names) > 1
            else _describe_saturation(scale)
        )
    elif len(rows) == 1:
        sentence = f"{rows[0]['name']} takes {format_seconds(rows[0])} an epoch"
        sentence += f", {rows[0]['samples_per_s']:,.0f} samples/s."
    else:
        sentence = _describe_order(rows, causes, odds)
    length_note = (
        ""
        if scale.same_samples
        else " (All times are scaled to as many samples as the longest epoch has.)"
    )
    return f"{scale.title}: {sentence}{length_note}"


# ------------------------------------------------------------------------- one condition, many runs


def _describe_order(rows: Sequence[Row], causes: Causes, odds: Odds) -> str:
    """Return the sentence that ranks runs at one scale.

    It names the runs that tie with the fastest, those that cannot be told apart from
    it, and how much longer the others take.
    """
    by_time = sorted(rows, key=lambda row: row["epoch_s"])
    fastest = by_time[0]
    tied_rows = [row for row in rows if ties(row, fastest)]
    tied_names = [row["name"] for row in tied_rows]
    if len(tied_names) == 1:
        parts = [f"{fastest['name']} is fastest, {format_seconds(fastest)} an epoch"]
    else:
        count_text = (
            f"all {len(tied_names)}, "
            if len(tied_names) == len(rows) > MAX_NAMES
            else ""
        )
        parts = [
            f"{count_text}{list_names(tied_names)} tie at {format_seconds(fastest)} an epoch"
        ]
        spread = max(row["epoch_s"] / fastest["epoch_s"] for row in tied_rows) - 1
        if spread >= NOTABLE_SPREAD and not any(row["half"] for row in tied_rows):
            parts[0] += f", within {_format_two_digits(100 * spread)} %"
    undecided = [
        row for row in by_time if overlaps_widely(row, fastest) and row is not fastest
    ]
    if undecided:
        names = list_names([row["name"] for row in undecided])
        parts.append(f"{names} cannot be told apart from it")
    losers = [
        row
        for row in by_time
        if not ties(row, fastest) and not overlaps_widely(row, fastest)
    ]

    def kind(row: Row) -> tuple[str, bool]:
        is_many_times = row["epoch_s"] >= MIN_RATIO_AS_TIMES * fastest["epoch_s"]
        return causes.name_reason(row["run"], fastest["run"]), is_many_times

    for (reason, _), group in groupby(losers, kind):
        parts.append(_describe_losers(list(group), fastest, reason, odds))
    return f"{'; '.join(parts)}."


def _describe_losers(
    losers: Sequence[Row], fastest: Row, reason: str, odds: Odds
) -> str:
    """Return the phrase on runs that take longer for one reason, fastest first.

    ``reason`` '' is left out. The phrase has the least share of the draws in which the
    fastest run is faster, where that is below `SURE_SHARE`; pairs without odds count as
    sure. Of more than `MAX_NAMES` runs only the first and the last are named.
    """
    ratios = [row["epoch_s"] / fastest["epoch_s"] for row in losers]
    names = [row["name"] for row in losers]
    verb_ending = "s" if len(losers) == 1 else ""
    if len(losers) > MAX_NAMES:
        names = [f"{names[0]} to {names[-1]} ({len(names)} runs)"]
        first_number = describe_ratio(ratios[0]).split()[0]
        ratio_text = f"{first_number} to {describe_ratio(ratios[-1])}"
    else:
        numbers = join_words([describe_ratio(ratio).split()[0] for ratio in ratios])
        are_times = ratios[0] >= MIN_RATIO_AS_TIMES
        ratio_text = f"{numbers} {'times as long' if are_times else '% longer'}"
    remarks = [reason] if reason else []
    share = min(
        (odds.get((fastest["run"], row["run"]), 1.0) for row in losers), default=1.0
    )
    remarks += [f"{format_percent(share)} sure"] if share < SURE_SHARE else []
    remark_text = f" ({', '.join(remarks)})" if remarks else ""
    return f"{list_names(names)} take{verb_ending} {ratio_text}{remark_text}"


def _describe_speedup(scales: Sequence[Scale]) -> str:
    """Return the sentence on what more ranks give to the runs of one name.

    It has the epochs of the smallest and of the largest scales, `MAX_NAMES` at most, and
    the gain in samples/s from the smallest to the largest. Only the first run of a scale
    counts.
    """
    rows = [scale.rows.iloc[0].to_dict() for scale in scales]
    displayed_rows = (
        rows if len(rows) <= MAX_NAMES else [rows[0], *rows[1 - MAX_NAMES :]]
    )
    title_of_run = {
        scale.rows.iloc[0]["run"]: scale.title for scale in reversed(scales)
    }
    phrases = [
        f"{format_seconds(row)}{' an epoch' if index == 0 else ''} on {title_of_run[row['run']]}"
        for index, row in enumerate(displayed_rows)
    ]
    smallest = rows[0]
    largest = rows[-1]
    sentence = f"{smallest['name']} takes {join_words(phrases)}"
    if largest["world_size"] > smallest["world_size"]:
        gain = largest["samples_per_s"] / smallest["samples_per_s"]
        rank_ratio = largest["world_size"] / smallest["world_size"]
        sentence += f": {rank_ratio:.3g} times the ranks train {gain:.3g} times as fast"
    return f"{sentence}."


# ------------------------------------------------------------------------- a number that is swept


def _describe_threshold(scale: Scale) -> str:
    """Return the sentence on the values of the swept number at which each run is close
    to the fastest (`is_close`), and on runs that never are.
    """
    rows = scale.rows
    by_time = (
        rows.sort_values("epoch_s", kind="stable")
        .drop_duplicates("x")
        .to_dict("records")
    )
    fastest: dict[float, Row] = {row["x"]: row for row in by_time}
    rows_by_name = {
        name: rows[rows["name"] == name].to_dict("records") for name in scale.names
    }
    ratios = {
        name: [row["epoch_s"] / fastest[row["x"]]["epoch_s"] for row in rows_of_run]
        for name, rows_of_run in rows_by_name.items()
    }
    is_close_by_name = {
        name: [is_close(row, fastest[row["x"]]) for row in rows_of_run]
        for name, rows_of_run in rows_by_name.items()
    }
    always_close = [name for name in scale.names if all(is_close_by_name[name])]
    best = min(always_close, key=lambda name: max(ratios[name]), default="the fastest")
    texts = {
        name: [row["x_text"] for row in rows_by_name[name]] for name in scale.names
    }
    never_close = [
        f"{name} takes {_describe_end_ratios(ratios[name], texts[name])}"
        for name in scale.names
        if not any(is_close_by_name[name])
    ]
    parts = [
        _describe_close_range(
            name,
            rows_by_name[name],
            is_close_by_name[name],
            fastest=fastest,
            best=best,
            across=scale.across,
        )
        for name in scale.names
        if any(is_close_by_name[name]) and not all(is_close_by_name[name])
    ]
    first = rows["x_text"].iloc[0]
    last = rows["x_text"].iloc[-1]
    throughout = f"throughout ({scale.across} {first} to {last})"
    if len(always_close) > 1:
        names = list_names(always_close)
        distance = format_percent(CLOSE_SHARE)
        parts.append(f"{names} are within {distance} of each other {throughout}")
    elif always_close and not parts:
        parts.append(f"{best} is fastest {throughout}")
    return f"{'; '.join([*parts, *never_close])}."


def _describe_close_range(
    name: str,
    rows: Sequence[Row],
    is_close_row: Sequence[bool],
    *,
    fastest: Mapping[float, Row],
    best: str,
    across: str,
) -> str:
    """Return the phrase on the values at which a run is close to the fastest, and how
    much longer it takes elsewhere.

    Args:
        name: the run.
        rows: its rows, ascending by the swept number.
        is_close_row: true for each of ``rows`` in which the run is close to the
            fastest; at least one is true, and one false.
        fastest: the row of the fastest run, by the swept number.
        best: the name of the run to compare with, or 'the fastest'.
        across: the name of the swept number.
    """
    far_rows = [
        row for row, is_near in zip(rows, is_close_row, strict=True) if not is_near
    ]
    close_rows = [
        row for row, is_near in zip(rows, is_close_row, strict=True) if is_near
    ]
    is_fastest = all(row["run"] == fastest[row["x"]]["run"] for row in close_rows)
    is_within = all(
        row["epoch_s"] <= (1 + CLOSE_SHARE) * fastest[row["x"]]["epoch_s"]
        for row in close_rows
    )
    closeness = (
        f"is within {format_percent(CLOSE_SHARE)} of {best}"
        if is_within
        else f"ties with {best}"
    )
    closeness = "is fastest" if is_fastest else closeness
    worst_row = max(
        far_rows, key=lambda row: row["epoch_s"] / fastest[row["x"]]["epoch_s"]
    )
    worst_ratio = describe_ratio(
        worst_row["epoch_s"] / fastest[worst_row["x"]]["epoch_s"]
    )
    close_range = describe_range(rows, is_close_row, across)
    return (
        f"{close_range}, {name} {closeness}; at {worst_row['x_text']} it takes"
        f" {worst_ratio}"
    )


def describe_range(rows: Sequence[Row], holds: Sequence[bool], across: str) -> str:
    """Return the values of a swept number at which something holds.

    They are 'from open_rate 50k/s on', 'up to ...' or a list 'at ...'; 'from' if it
    holds at all. It must hold at one of them at least. ``rows`` ascend by the swept
    number, whose text is their ``x_text``.
    """
    texts = [row["x_text"] for row, is_true in zip(rows, holds, strict=True) if is_true]
    first = holds.index(True)
    last = len(holds) - 1 - list(holds)[::-1].index(True)
    if all(holds[first:]):
        return f"from {across} {texts[0]} on"
    if all(holds[: last + 1]):
        return f"up to {across} {texts[-1]}"
    return f"at {across} {join_words(texts)}"


def _describe_saturation(scale: Scale) -> str:
    """Return the sentence on what one run gains from a swept number, and at which
    values it is close to its shortest epoch.

    It has the epochs at the least and at the largest number.
    """
    rows = scale.rows.to_dict("records")
    name = rows[0]["name"]
    across = scale.across
    best = min(rows, key=lambda row: row["epoch_s"])
    is_close_row = [is_close(row, best) for row in rows]
    end_text = f"{format_seconds(rows[0])} at {across} {rows[0]['x_text']}"
    end_text += f" and {format_seconds(rows[-1])} at {rows[-1]['x_text']}"
    distance = format_percent(CLOSE_SHARE)
    if all(is_close_row):
        return f"{across} changes little: {name} takes {end_text} an epoch, all within {distance}."
    if sum(is_close_row) == 1:
        return f"{name} takes {end_text} an epoch; no other value is within {distance} of the best."
    range_text = describe_range(rows, is_close_row, across).replace(f"{across} ", "")
    return (
        f"{name} takes {end_text} an epoch; {range_text}, it is within {distance} of the"
        f" shortest, {format_seconds(best)}."
    )


# ----------------------------------------------------------------------------------------- words


def describe_ratio(ratio: float) -> str:
    """Describe a ratio of 1 or more, such as '2.3 % longer' or '4.4 times as long'.

    It is times from `MIN_RATIO_AS_TIMES` on.
    """
    if ratio >= MIN_RATIO_AS_TIMES:
        return (
            f"{ratio:.2g} times as long"
            if ratio < 100
            else f"{ratio:,.0f} times as long"
        )
    return f"{_format_two_digits(100 * (ratio - 1))} % longer"


def _format_two_digits(value: float) -> str:
    """Format a number below 100 with two digits and no more than two decimals: '0' for
    one that rounds to 0.
    """
    text = f"{round(value, 2):.2g}"
    return "0" if float(text) == 0 else text


def _describe_end_ratios(ratios: Sequence[float], texts: Sequence[str]) -> str:
    """Describe how much longer a run takes at the first and at the last value of a
    swept number; without the values if both descriptions are equal.
    """
    first_text = describe_ratio(ratios[0])
    last_text = describe_ratio(ratios[-1])
    if first_text == last_text:
        return first_text
    return f"{first_text} at {texts[0]} and {last_text} at {texts[-1]}"


def format_percent(share: float) -> str:
    """Format a share in whole percent."""
    return f"{100 * share:.0f} %"


def format_seconds(row: Row) -> str:
    """Format the seconds of an epoch with four digits and the unit that suits it."""
    return readable(row["epoch_s"], Dimension.SECONDS, 4)


def list_names(names: Sequence[str]) -> str:
    """List names in a sentence.

    Neighbours that differ only in the number at their end are joined: 'partial-0.1/0.3'.
    Of more than `MAX_NAMES` names the first ones are listed, and how many more there are.
    """
    parts: list[str] = []
    stem = ""
    for name in names:
        match = re.fullmatch(r"(.*\D)-([\d.]+)", name)
        if match and match[1] == stem:
            parts[-1] += f"/{match[2]}"
        else:
            parts.append(name)
        stem = match[1] if match else ""
    if len(parts) > MAX_NAMES:
        return join_words(
            [*parts[: MAX_NAMES - 1], f"{len(parts) - MAX_NAMES + 1} more"]
        )
    return join_words(parts)


def join_words(words: Sequence[str]) -> str:
    """Join words with commas and a last 'and'; '' for none."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
