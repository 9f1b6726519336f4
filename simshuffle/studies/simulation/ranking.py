"""Who ties and who loses: a sentence for each scale of a comparison."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.simulation.causes import Causes
from simshuffle.studies.simulation.contest import (
    CLOSE,
    Row,
    Scale,
    is_close,
    is_undecided,
    ties,
)

MOST_SCALES = 8
"""Scales with a line of their own; of more, those that lie evenly."""
MOST_NAMED = 5
"""Runs that are named together; of more, the first and the last."""
TIMES = 1.5
"""From here on a run takes so many times as long; below, so many percent longer."""
SHOWN = 0.0005
"""Share of an epoch from which on it is said how far runs without intervals that tie are apart."""
UNSURE = 0.95
"""Share of the draws below which an order is said to be unsure."""
Odds = Mapping[tuple[str, str], float]
"""Share of the draws in which the first run is faster than the second, by their names."""


def answers(
    scales: Sequence[Scale], causes: Causes, found: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the answer of a comparison: a sentence for each scale.

    Args:
        scales: smallest first.
        causes: of the time of each run.
        found: the intervals of a result, if it has any.
    """
    names = {name for scale in scales for name in scale.names}
    if len(scales) > 1 and len(names) == 1 and not any(scale.across for scale in scales):
        return [_scaling(scales)]
    odds = {
        (each["first"], each["second"]): each["share"] for each in (found or {}).get("odds", ())
    }
    shown = scales
    if len(scales) > MOST_SCALES:
        places = [round(n * (len(scales) - 1) / (MOST_SCALES - 1)) for n in range(MOST_SCALES)]
        shown = [scales[place] for place in places]
    lines = [_answer(scale, causes, odds) for scale in shown]
    more = len(scales) - len(shown)
    return lines + ([f"{more} more scales lie between; the table has them."] if more else [])


def _answer(scale: Scale, causes: Causes, odds: Odds) -> str:
    rows = scale.rows.to_dict("records")
    if scale.across:
        line = _threshold(scale) if len(scale.names) > 1 else _saturation(scale)
    elif len(rows) == 1:
        line = f"{rows[0]['name']} takes {seconds_with_half(rows[0])} an epoch"
        line += f", {rows[0]['samples_per_s']:,.0f} samples/s."
    else:
        line = _order(rows, causes, odds)
    more = "" if scale.same_samples else " (Of as many samples as the longest epoch has.)"
    return f"{scale.title}: {line}{more}"


# ------------------------------------------------------------------------- one condition, many runs


def _order(rows: Sequence[Row], causes: Causes, odds: Odds) -> str:
    """Who ties with the fastest, who is not told apart from it, and who takes how much longer."""
    by_time = sorted(rows, key=lambda row: row["epoch_s"])
    first = by_time[0]
    tied_rows = [row for row in rows if ties(row, first)]
    tied = [row["name"] for row in tied_rows]
    if len(tied) == 1:
        parts = [f"{first['name']} is fastest, {seconds_with_half(first)} an epoch"]
    else:
        everybody = f"all {len(tied)}, " if len(tied) == len(rows) > MOST_NAMED else ""
        parts = [f"{everybody}{listed(tied)} tie at {seconds_with_half(first)} an epoch"]
        apart = max(row["epoch_s"] / first["epoch_s"] for row in tied_rows) - 1
        if apart >= SHOWN and not any(row["half"] for row in tied_rows):
            parts[0] += f", within {_two_digits(100 * apart)} %"
    undecided = [row for row in by_time if is_undecided(row, first) and row is not first]
    if undecided:
        widest = max(row["half"] + first["half"] for row in undecided) / first["epoch_s"]
        names = listed([row["name"] for row in undecided])
        parts.append(f"{names} cannot be told apart from it (intervals of ±{percent(widest)})")
    losers = [row for row in by_time if not ties(row, first) and not is_undecided(row, first)]

    def kind(row: Row) -> tuple[str, bool]:
        return causes.reason(row["run"], first["run"]), row["epoch_s"] >= TIMES * first["epoch_s"]

    for (reason, _), group in groupby(losers, kind):
        parts.append(_losers(list(group), first, reason, odds))
    return f"{'; '.join(parts)}."


def _losers(losers: Sequence[Row], first: Row, reason: str, odds: Odds) -> str:
    """Runs that take longer for one reason, fastest first."""
    ratios = [row["epoch_s"] / first["epoch_s"] for row in losers]
    names = [row["name"] for row in losers]
    ends = "s" if len(losers) == 1 else ""
    if len(losers) > MOST_NAMED:
        names = [f"{names[0]} to {names[-1]} ({len(names)} runs)"]
        how = f"{longer(ratios[0])} to {longer(ratios[-1])}"
    elif ratios[0] >= TIMES:
        how = f"{join([longer(ratio).split()[0] for ratio in ratios])} times as long"
    else:
        how = f"{join([longer(ratio).split()[0] for ratio in ratios])} % longer"
    said = [reason] if reason else []
    share = min((odds.get((first["run"], row["run"]), 1.0) for row in losers), default=1.0)
    said += [f"in {percent(share)} of the draws"] if share < UNSURE else []
    why = f" ({', '.join(said)})" if said else ""
    return f"{listed(names)} take{ends} {how}{why}"


def _scaling(scales: Sequence[Scale]) -> str:
    """What more ranks give to runs of one name."""
    rows = [scale.rows.iloc[0].to_dict() for scale in scales]
    shown = rows if len(rows) <= MOST_NAMED else [rows[0], *rows[1 - MOST_NAMED :]]
    each = [
        f"{seconds_with_half(row)}{' an epoch' if place == 0 else ''} on {scale_title}"
        for place, row in enumerate(shown)
        for scale_title in [next(s.title for s in scales if s.rows.iloc[0]["run"] == row["run"])]
    ]
    low, high = rows[0], rows[-1]
    line = f"{low['name']} takes {join(each)}"
    if high["world_size"] > low["world_size"]:
        gain = high["samples_per_s"] / low["samples_per_s"]
        times = high["world_size"] / low["world_size"]
        line += f": {times:.3g} times the ranks train {gain:.3g} times as fast"
    return f"{line}."


# ------------------------------------------------------------------------- a number that is swept


def _threshold(scale: Scale) -> str:
    """From, or up to, which value of the swept number each run is close to the fastest."""
    rows = scale.rows
    by_time = rows.sort_values("epoch_s", kind="stable").drop_duplicates("x").to_dict("records")
    fastest: dict[float, Row] = {row["x"]: row for row in by_time}
    own_rows = {name: rows[rows["name"] == name].to_dict("records") for name in scale.names}
    ratios = {
        name: [row["epoch_s"] / fastest[row["x"]]["epoch_s"] for row in own]
        for name, own in own_rows.items()
    }
    close = {
        name: [is_close(row, fastest[row["x"]]) for row in own] for name, own in own_rows.items()
    }
    always = [name for name in scale.names if all(close[name])]
    best = min(always, key=lambda name: max(ratios[name]), default="the fastest")
    never = [
        f"{name} takes {_ends(ratios[name], [row['x_text'] for row in own_rows[name]])}"
        for name in scale.names
        if not any(close[name])
    ]
    parts = [
        _from_where(name, own_rows[name], close[name], fastest, best, scale.across)
        for name in scale.names
        if any(close[name]) and not all(close[name])
    ]
    first, last = rows["x_text"].iloc[0], rows["x_text"].iloc[-1]
    throughout = f"throughout ({scale.across} {first} to {last})"
    if len(always) > 1:
        parts.append(f"{listed(always)} are within {percent(CLOSE)} of each other {throughout}")
    elif always and not parts:
        parts.append(f"{best} is fastest {throughout}")
    return f"{'; '.join([*parts, *never])}."


def _from_where(
    name: str,
    own: Sequence[Row],
    close: Sequence[bool],
    fastest: Mapping[float, Row],
    best: str,
    across: str,
) -> str:
    """Where a run is close to the fastest, and how much longer it takes elsewhere."""
    far = [row for row, is_near in zip(own, close, strict=True) if not is_near]
    near = [row for row, is_near in zip(own, close, strict=True) if is_near]
    is_fastest = all(row["run"] == fastest[row["x"]]["run"] for row in near)
    is_within = all(row["epoch_s"] <= (1 + CLOSE) * fastest[row["x"]]["epoch_s"] for row in near)
    how = f"is within {percent(CLOSE)} of {best}" if is_within else f"ties with {best}"
    how = "is fastest" if is_fastest else how
    most = max(far, key=lambda row: row["epoch_s"] / fastest[row["x"]]["epoch_s"])
    other = longer(most["epoch_s"] / fastest[most["x"]]["epoch_s"])
    return f"{where(own, close, across)} {name} {how}; at {most['x_text']} it takes {other}"


def where(own: Sequence[Row], holds: Sequence[bool], across: str) -> str:
    """The values of a swept number at which something holds: 'from open_rate 50k/s on'."""
    texts = [row["x_text"] for row, is_true in zip(own, holds, strict=True) if is_true]
    first, last = holds.index(True), len(holds) - 1 - list(holds)[::-1].index(True)
    if all(holds[first:]):
        return f"from {across} {texts[0]} on"
    if all(holds[: last + 1]):
        return f"up to {across} {texts[-1]}"
    return f"at {across} {join(texts)}"


def _saturation(scale: Scale) -> str:
    """What one run gains from a swept number, and from where on it gains nothing."""
    own = scale.rows.to_dict("records")
    name, across = own[0]["name"], scale.across
    best = min(own, key=lambda row: row["epoch_s"])
    close = [is_close(row, best) for row in own]
    ends = f"{seconds_with_half(own[0])} at {across} {own[0]['x_text']}"
    ends += f" and {seconds_with_half(own[-1])} at {own[-1]['x_text']}"
    if all(close):
        return (
            f"{across} changes little: {name} takes {ends} an epoch, all within {percent(CLOSE)}."
        )
    if sum(close) == 1:
        return (
            f"{name} takes {ends} an epoch; no other value is within {percent(CLOSE)} of the best."
        )
    place = where(own, close, across).replace(f"{across} ", "")
    return (
        f"{name} takes {ends} an epoch; {place} it is within {percent(CLOSE)} of the shortest,"
        f" {seconds_with_half(best)}."
    )


# ----------------------------------------------------------------------------------------- words


def longer(ratio: float) -> str:
    """A ratio of 1 or more in words: '2.3 % longer', '4.4 times as long'."""
    if ratio >= TIMES:
        return f"{ratio:.2g} times as long" if ratio < 100 else f"{ratio:,.0f} times as long"
    return f"{_two_digits(100 * (ratio - 1))} % longer"


def _two_digits(value: float) -> str:
    """Two digits, and none beyond hundredths: a difference below rounding is 0."""
    text = f"{round(value, 2):.2g}"
    return "0" if float(text) == 0 else text


def _ends(ratios: Sequence[float], texts: Sequence[str]) -> str:
    """How much longer a run takes at the first and at the last value of a swept number."""
    first, last = longer(ratios[0]), longer(ratios[-1])
    return first if first == last else f"{first} at {texts[0]} and {last} at {texts[-1]}"


def percent(share: float) -> str:
    """A share in whole percent."""
    return f"{100 * share:.0f} %"


def seconds_with_half(row: Row) -> str:
    """Seconds of an epoch, with half its interval if it has one."""
    if not row["half"]:
        return readable(row["epoch_s"], Dimension.SECONDS, 4)
    digits = max(0, 1 - math.floor(math.log10(row["half"])))  # two of the half
    return f"{row['epoch_s']:,.{digits}f} ± {row['half']:,.{digits}f} s"


def listed(names: Sequence[str]) -> str:
    """Names in words; those that end in a number of one stem are drawn together, and of more than
    `MOST_NAMED` the first ones are named."""
    parts: list[str] = []
    stem = ""
    for name in names:
        match = re.fullmatch(r"(.*\D)-([\d.]+)", name)
        if match and match[1] == stem:
            parts[-1] += f"/{match[2]}"
        else:
            parts.append(name)
        stem = match[1] if match else ""
    if len(parts) > MOST_NAMED:
        return join([*parts[: MOST_NAMED - 1], f"{len(parts) - MOST_NAMED + 1} more"])
    return join(parts)


def join(words: Sequence[str]) -> str:
    """Join words with commas and a last 'and'."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
