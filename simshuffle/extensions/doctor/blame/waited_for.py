"""Who the ranks of a simulated epoch waited for, from its tables alone: a host or a rank that comes
last, a link that is slower or fuller than its peers, a server that all share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.report.slow_cables import FULL
from simshuffle.report.timeline import EXCLUSIVE
from simshuffle.report.waiting import Waits, waits
from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.late import special

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
"""Standard errors by which a host must be later than its peers in the mean, at the least."""
CHANCE = 0.05
"""Probability that any host of a run is called late by chance (chosen)."""
FEWEST = 3  # steps from which on that can be said
ALIKE = 1e-6  # ranks that differ by that share of the longest wait come together


@dataclass(frozen=True)
class WaitedForRow:
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


def late(
    phases: pd.DataFrame,
    epoch_s: float,
    hosts: Sequence[str],
    each: int,
    *,
    without: Sequence[str] = (),
) -> list[WaitedForRow]:
    """The hosts that come last more than their peers, and where it is one of its ranks, the rank;
    worst first. ``phases`` are those of all ranks of an epoch of ``epoch_s`` seconds, with a column
    ``weight`` where iterations stand for others; ranks fill ``hosts``, ``each`` on one. What they
    are late by in the labels ``without`` is not counted."""
    of = waits(phases, LABELS)
    of_rank = booked(of, of.weights(phases))
    explained = [list(LABELS).index(label) for label in without]
    of_rank[:, explained] = 0.0
    first = np.arange(0, len(of_rank), each)
    if len(first) == 1:  # the ranks of one host are compared with one another
        first, hosts, each = np.arange(len(of_rank)), [], 1
    of_host = np.add.reduceat(of_rank, first)
    if explained:
        work = np.maximum.reduceat(_own_work(phases, of, explained), first, axis=1)
        came = work - work.max(axis=1, keepdims=True)
    else:
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
        found.append(WaitedForRow(what, kind, cause, why, float(seconds), float(seconds / epoch_s)))
    return found


def _own_work(phases: pd.DataFrame, of: Waits, explained: Sequence[int]) -> Floats:
    """(steps, ranks) s that each rank works before the allreduce of a step, beside the labels of
    these numbers."""
    counts = ~of.idle & ~of.later & (of.label >= 0) & ~np.isin(of.label, explained)
    seconds = (phases["end_s"] - phases["start_s"]).to_numpy(float)
    work = np.zeros(of.waited.shape[:2])
    np.add.at(work, (of.step[counts], phases["rank"].to_numpy()[counts]), seconds[counts])
    return work[work.any(axis=1)]


def _always(came: Floats, number: int, others: Ints64) -> bool:
    """Whether a host comes later than its peers in more than by chance: in the mean, or as often as
    it comes last, each step weighed by the wait; ``came`` (steps, hosts) s, when each comes."""
    num_steps, num_hosts = came.shape
    later = came[:, number] - np.median(came[:, others], axis=1)
    if num_steps < FEWEST:
        return True
    # of few steps the mean is uncertain: Student's t, with the chance shared among the hosts
    quantile = max(SURE, float(special.stdtrit(num_steps - 1, 1.0 - CHANCE / num_hosts)))
    if later.mean() > quantile * float(later.std(ddof=1)) / np.sqrt(num_steps):
        return True
    longest, probability = -came.min(axis=1), 1.0 / num_hosts
    last = came[:, number] >= -ALIKE * longest
    # Bennett's inequality for S = sum_i w_i (B_i - p), B_i Bernoulli(p), w_i the longest wait:
    # P(S >= t) <= exp(-V/b^2 h(b t / V)), h(u) = (1 + u) ln(1 + u) - u, V = p (1 - p) sum w_i^2,
    # b = max w_i; a normal tail would be wrong where a host is last twice in five steps of 160
    variance = probability * (1.0 - probability) * float((longest**2).sum())
    excess = float((longest * (last - probability)).sum())
    if variance <= 0 or excess <= 0:
        return False
    most = float(longest.max())
    ratio = most * excess / variance
    exponent = variance / most**2 * ((1.0 + ratio) * np.log1p(ratio) - ratio)
    return bool(num_hosts * np.exp(-exponent) <= CHANCE)


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
) -> list[WaitedForRow]:
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
    served = served_seconds(bound, idle_seconds(links, epoch_s))
    if served and (shared & full).any():
        number = int(np.where(shared & full, used, -1.0).argmax())
        seconds = min(float(used[number]), sum(served.values()))
        why = f"in use {used[number] / epoch_s:.0%} of the epoch"
        cause = max(served, key=served.__getitem__)
        found.append(WaitedForRow(names[number], "server", cause, why, seconds, seconds / epoch_s))
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
                found.append(
                    WaitedForRow(names[number], "link", cause, why, seconds, seconds / epoch_s)
                )
    return sorted(found, key=lambda row: -row.seconds)


def ranked(
    late_ones: Sequence[WaitedForRow], bounds: Sequence[WaitedForRow], idle_s: float = np.inf
) -> list[WaitedForRow]:
    """Return all rows, worst first, without hosts that are late by what one of the links explains.

    No epoch becomes shorter than a shared server is in use: whatever else is mended saves at most
    the ``idle_s`` seconds in which the server is idle."""
    link = max((row.seconds for row in bounds if row.kind == "link"), default=0.0)
    own = [row for row in late_ones if row.cause in ALONE or 2 * link < row.seconds]
    bounded = [
        replace(row, seconds=idle_s, share=row.share * idle_s / row.seconds)
        if row.seconds > idle_s
        else row
        for row in own
    ]
    return sorted([*bounds, *bounded], key=lambda row: -row.seconds)


def late_by_itself(
    phases: pd.DataFrame,
    epoch_s: float,
    hosts: Sequence[str],
    each: int,
    bounds: Sequence[WaitedForRow],
    *,
    decodes_late: bool = False,
) -> list[WaitedForRow]:
    """Return the rows of `late` without what a shared server in ``bounds`` explains; with
    ``decodes_late`` the server explains waits for decoding, too (see `served_seconds`).

    A host that comes last in reading, where all wait longer for the server that they share, is the
    one that the server happened to serve last; what else it is late by is its own."""
    rows = late(phases, epoch_s, hosts, each)
    server = max((row.seconds for row in bounds if row.kind == "server"), default=0.0)
    served = [name for name in LABELS if name not in (*ALONE, *MESSAGES)]
    served += ["decode"] * decodes_late
    if not any(row.cause in served and row.seconds <= server for row in rows):
        return rows
    beyond = [row for row in rows if row.cause in served and row.seconds > server]
    own = late(phases, epoch_s, hosts, each, without=served)
    named = {row.what for row in beyond}
    return sorted(
        [*beyond, *(row for row in own if row.what not in named)], key=lambda row: -row.seconds
    )


def served_seconds(together: Mapping[str, float], idle_s: float) -> dict[str, float]:
    """Return the s of labels in ``together`` that a server idle for ``idle_s`` s explains.

    A batch that is read late is decoded late: with free decoding the epoch would still last as long
    as the server is in use, so no more than ``idle_s`` of the waits for decoding are its own."""
    served = {name: s for name, s in together.items() if name not in (*ALONE, *MESSAGES) and s > 0}
    if (read_late := together.get("decode", 0.0) - idle_s) > 0:
        served["io"] = served.get("io", 0.0) + read_late
    return served


def idle_seconds(links: pd.DataFrame, epoch_s: float) -> float:
    """Return how long the shared server that is in use longest is idle in an epoch, in s; inf
    where no server is ever full."""
    is_server = (links["link"].astype(str) == links["tier"].astype(str)).to_numpy()
    is_full = links["peak_utilisation"].to_numpy(float) >= FULL
    used = links["mean_utilisation"].to_numpy(float)[is_server & is_full]
    return max(float(epoch_s * (1.0 - used.max())), 0.0) if len(used) else np.inf
