"""Who the ranks of a simulated epoch waited for, from its tables alone: a host or a rank that comes
last, a link that is slower or fuller than its peers, a server that all share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.results.slow_cables import FULL
from simshuffle.results.timeline import EXCLUSIVE
from simshuffle.results.waiting import Waits, waits
from simshuffle.spec.arrays import Floats, Ints64

COMPUTING = "forward and backward"
COMPUTED = ("forward", "backward", "slowdown", "bubble", "wait_group", "group_communication")
LABELS: Mapping[str, tuple[str, ...]] = {
    COMPUTING: COMPUTED,
    **{
        name: tuple(of for of in (name, f"wait_{name}") if of in EXCLUSIVE)
        for name in EXCLUSIVE
        if name not in COMPUTED and not name.startswith("wait_")
    },
}
"""What a rank may be late by: every phase is a cause of its own, but those of the passes."""
ALONE = (COMPUTING, "importance", "update", "lost", "restart")
"""Causes that neither a link nor a server of files has a part in."""
MESSAGES = ("allreduce", "exchange", "decode")
"""Causes that a server of files has no part in, beside `ALONE`."""
MOSTLY = 0.75
"""Share of what a host is waited for from which on it is one rank's alone (chosen)."""
SURE = 4.0
"""Standard errors by which a host must be later than its peers, or last more often, over the steps:
by chance one of 30,000 is (normal tail)."""
FEWEST = 3  # steps from which on that can be said
ALIKE = 1e-6  # ranks that differ by that share of the longest wait come together


@dataclass(frozen=True)
class Row:
    """Somebody that others waited for."""

    what: str  # name of the host, link or server, or number of the rank
    kind: str  # rank, host, link or server
    cause: str  # the phase that it is waited for in
    why: str  # how it differs from its peers
    seconds: float  # s of the epoch that are waited for it, beyond what its peers are waited for
    share: float  # of the epoch


# ------------------------------------------------------------------------------- who comes last


def booked(of: Waits, weight: Floats) -> Floats:
    """(ranks, labels) s that an average rank waits for each rank, by what that one did longer than
    others: what all wait at a step is booked to the rank that waits least there, or in equal parts
    to those that come last together. ``weight`` (steps,) is how many times each step counts."""
    steps, ranks, labels = of.waited.shape
    exchange = list(LABELS).index("exchange")
    found = np.zeros((ranks, labels))
    for waited, later in ((of.waited, False), (of.after, True)):
        each = waited.sum(axis=2)
        if later:  # after an allreduce there is only the exchange to wait for
            causes = np.zeros((steps, labels))
            causes[:, exchange] = each.sum(axis=1)
        else:
            causes = np.einsum("sr,srl->sl", each, of.share)
        last = each <= each.min(axis=1, keepdims=True) + ALIKE * each.max(axis=1, keepdims=True)
        part = last / last.sum(axis=1, keepdims=True)
        found += np.einsum("sr,sl->rl", part, causes * weight[:, None] / ranks)
    return found


def late(phases: pd.DataFrame, epoch_s: float, hosts: Sequence[str], each: int) -> list[Row]:
    """The hosts that come last more than their peers, and where it is one of its ranks, the rank;
    worst first. ``phases`` are those of all ranks of an epoch of ``epoch_s`` seconds, with a column
    ``weight`` where iterations stand for others; ranks fill ``hosts``, ``each`` on one."""
    of = waits(phases, LABELS)
    of_rank = booked(of, of.weights(phases))
    first = np.arange(0, len(of_rank), each)
    if len(first) == 1:  # the ranks of one host are compared with one another
        first, hosts, each = np.arange(len(of_rank)), [], 1
    of_host = np.add.reduceat(of_rank, first)
    each_waits = (of.waited + of.after).sum(axis=2)
    each_waits = each_waits[each_waits.any(axis=1)]
    came = -np.minimum.reduceat(each_waits, first, axis=1)
    whole, found = of_host.sum(axis=1), []
    for number in np.argsort(-whole, kind="stable")[: len(whole) // 2 + 1].tolist():
        others = np.delete(np.arange(len(whole), dtype=np.int64), number)
        seconds = whole[number] - (np.median(whole[others]) if len(others) else np.inf)
        if seconds <= 0 or not _always(came, number, others):
            continue
        cause = list(LABELS)[int(of_host[number].argmax())]
        begin = first[number]
        mine = of_rank[begin : begin + each].sum(axis=1)
        rank = begin + int(mine.argmax())
        kind, what = ("host", hosts[number]) if hosts else ("rank", str(rank))
        if hosts and each > 1 and mine.max() >= MOSTLY * mine.sum():
            kind, what = "rank", f"{rank} on {hosts[number]}"
        why = "comes last"
        found.append(Row(what, kind, cause, why, float(seconds), float(seconds / epoch_s)))
    return found


def _always(came: Floats, number: int, others: Ints64) -> bool:
    """Whether a host comes later than its peers in more than by chance: in the mean, or as often as
    it comes last, each step weighed by the wait; ``came`` (steps, hosts) s, when each comes."""
    later = came[:, number] - np.median(came[:, others], axis=1)
    if len(later) < FEWEST:
        return True
    if later.mean() > SURE * float(later.std(ddof=1)) / np.sqrt(len(later)):
        return True
    longest, chance = -came.min(axis=1), 1.0 / came.shape[1]
    last = came[:, number] >= -ALIKE * longest
    error = np.sqrt(chance * (1.0 - chance) * (longest**2).sum())
    return bool((longest * (last - chance)).sum() > SURE * error)


# ------------------------------------------------------------------------- what bounds all of them


def as_they_were(
    links: pd.DataFrame, faults: Sequence[Mapping[str, Any]], begin: float, end: float
) -> pd.DataFrame:
    """The ``links`` of an epoch from ``begin`` to ``end`` (s) with the mean capacity that
    ``faults`` left them (rows as of ``faults`` in ``meta.json``), and the share of it that was
    used: at a rate r for the part p of an epoch in which a link carries evenly, it is in use
    (1 - p) + p / r times as long. What had failed carried nothing, and is as it was."""
    names, longer = links["link"].astype(str), np.ones(len(links))
    bare = names.str.partition("#")[0]
    ends = bare.str.split(">", n=1, expand=True).reindex(columns=[0, 1])
    for fault in faults:
        until = end if fault["until_s"] is None else min(end, fault["until_s"])
        part = max(until - max(begin, fault["at_s"]), 0.0) / (end - begin)
        if not (part and fault["rate"]):
            continue
        what = str(fault["what"])
        back = ">".join(what.partition("#")[0].split(">")[::-1])
        back += what[len(back) :]  # the number of parallel ones is that of both directions
        own = (
            names.isin([what, back])
            | bare.isin([what, back])
            | (ends[0] == what)
            | (ends[1] == what)
        )
        own |= names.str.startswith(f"{what}.")
        times = np.where(own, 1.0 - part + part / fault["rate"], 1.0)
        longer = np.maximum(longer, times)
    used = np.minimum(links["mean_utilisation"] * longer, 1.0)
    return links.assign(capacity=links["capacity"] / longer, mean_utilisation=used)


def bounding(
    links: pd.DataFrame, epoch_s: float, together: Mapping[str, float], hidden: float = 0.0
) -> list[Row]:
    """Links that are full at times and have less rate than their peers, or more to carry than any
    other link; and the server that all share which is in use longest; worst first. ``links`` has
    those of an epoch, ``together`` the mean s of a rank in each of `LABELS` or waiting for it,
    ``hidden`` the mean s in which what is in flight keeps no rank from computing. A link is waited
    for at most as long as it is in use beyond that, and as it is beyond the rate of its peers."""
    names, tiers = links["link"].to_numpy(str), links["tier"].to_numpy(str)
    used = links["mean_utilisation"].to_numpy(float) * epoch_s
    full = links["peak_utilisation"].to_numpy(float) >= FULL
    capacity = links["capacity"].to_numpy(float)
    shared = names == tiers
    found = []
    bound = {name: of for name, of in together.items() if name not in ALONE and of > 0}
    served = {name: of for name, of in bound.items() if name not in MESSAGES}
    if served and (shared & full).any():
        number = int(np.where(shared & full, used, -1.0).argmax())
        seconds = min(float(used[number]), sum(served.values()))
        why = f"in use {used[number] / epoch_s:.0%} of the epoch"
        cause = max(served, key=served.__getitem__)
        found.append(Row(names[number], "server", cause, why, seconds, seconds / epoch_s))
    if bound:
        cause, most = max(bound, key=bound.__getitem__), sum(bound.values())
        usual = pd.Series(capacity).groupby(tiers).transform("median").to_numpy()
        slow = capacity < usual * (1 - ALIKE)
        for number in np.flatnonzero(full & ~shared).tolist():
            if slow[number]:
                ratio = capacity[number] / usual[number]
                seconds, why = used[number] * (1 - ratio), f"{ratio:.3g} of its peers' rate"
            else:
                rest = np.delete(np.where(shared, 0.0, used), number)
                seconds = used[number] - rest.max(initial=0.0)
                why = "carries more than its peers"
            seconds = min(float(seconds), float(used[number]) - hidden, most)
            if seconds > 0:
                found.append(Row(names[number], "link", cause, why, seconds, seconds / epoch_s))
    return sorted(found, key=lambda row: -row.seconds)


def ranked(late_ones: Sequence[Row], bounds: Sequence[Row]) -> list[Row]:
    """All of them, worst first, without hosts that are late by what one of the links explains."""
    link = max((row.seconds for row in bounds if row.kind == "link"), default=0.0)
    own = [row for row in late_ones if row.cause in ALONE or 2 * link < row.seconds]
    return sorted([*bounds, *own], key=lambda row: -row.seconds)
