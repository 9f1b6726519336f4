"""Find what the ranks of a simulated epoch waited for, from its tables alone: a host or
a rank that comes last, a link that is slower or fuller than its peers, a server that
all share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.report.slow_cables import MIN_FULL_SHARE
from simshuffle.report.timeline import EXCLUSIVE
from simshuffle.report.waiting import Waits, waits
from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.late import special

COMPUTING = "forward and backward"
COMPUTING_PHASES = (
    "forward",
    "backward",
    "slowdown",
    "bubble",
    "wait_group",
    "group_communication",
)
LABELS: Mapping[str, tuple[str, ...]] = {
    COMPUTING: COMPUTING_PHASES,
    **{
        name: tuple(phase for phase in (name, f"wait_{name}") if phase in EXCLUSIVE)
        for name in EXCLUSIVE
        if name not in COMPUTING_PHASES and not name.startswith("wait_")
    },
}
"""Phases of each cause of lateness: each phase but those of the passes is a cause."""
OWN_CAUSES = (COMPUTING, "importance", "update", "lost", "restart")
"""Causes that neither a link nor a server of files has a part in."""
MESSAGES = ("allreduce", "exchange", "decode")
"""Causes that a server of files has no part in, beside `OWN_CAUSES`."""
MOSTLY = 0.75
"""Share of the waits for a host from which on these are one rank's (chosen)."""
SURE = 4.0
"""Standard errors by which a host must at least be later than its peers in the mean."""
CHANCE = 0.05
"""Probability that any host of a run is called late by chance (chosen)."""
MIN_STEPS = 3
"""Steps from which on lateness is told from chance."""
ALIKE = 1e-6
"""Share of the longest wait below which ranks that differ come together."""


@dataclass(frozen=True)
class WaitedForRow:
    """A rank, host, link or server that ranks waited for."""

    what: str  # name of the host, link or server; of a rank "3", or "3 on HOST"
    kind: str  # rank, host, link or server
    cause: str  # key of `LABELS`: the phase that it is waited for most in
    why: str  # how it differs from its peers
    seconds: float  # s waited for it in the epoch, beyond its peers; of a server, all
    share: float  # of the epoch that are ``seconds``


# ------------------------------------------------------------------------------- who comes last


def book_waits(waits: Waits, weight: Floats) -> Floats:
    """Book what an average rank waits to the ranks that it waits for, (ranks, labels)
    s.

    What all wait at a step is booked to the rank that waits least there, or in equal
    parts to those that come last together, by what these did longer than others; waits
    that this does not explain are dropped. After the allreduce all are of 'exchange'.

    Args:
        waits: the waits of an epoch.
        weight: (steps,) times that each step counts.
    """
    steps, ranks, labels = waits.before_allreduce.shape
    exchange = list(LABELS).index("exchange")
    booked_s = np.zeros((ranks, labels))
    for waited, is_after_allreduce in (
        (waits.before_allreduce, False),
        (waits.after_allreduce, True),
    ):
        rank_waits = waited.sum(axis=2)  # (steps, ranks) s
        if is_after_allreduce:  # there is only the exchange to wait for
            causes = np.zeros((steps, labels))
            causes[:, exchange] = rank_waits.sum(axis=1)
        else:
            causes = np.einsum("sr,srl->sl", rank_waits, waits.share)
        min_wait = rank_waits.min(axis=1, keepdims=True)
        tolerance = ALIKE * rank_waits.max(axis=1, keepdims=True)
        comes_last = rank_waits <= min_wait + tolerance
        part = comes_last / comes_last.sum(axis=1, keepdims=True)
        booked_s += np.einsum("sr,sl->rl", part, causes * weight[:, None] / ranks)
    return booked_s


def find_late_hosts(
    phases: pd.DataFrame,
    epoch_s: float,
    hosts: Sequence[str],
    ranks_of_host: int,
    *,
    without: Sequence[str] = (),
) -> list[WaitedForRow]:
    """Find the hosts that come last more than their peers, worst first.

    Only the half of the hosts that is waited for longest is examined. A host is named
    if it is waited for longer than the median of its peers, by more than chance. Where
    `MOSTLY` one rank of a host is late, the row names the rank, but has the host's
    seconds. On a single host its ranks are compared; one rank has no row.

    Args:
        phases: timeline of all ranks of an epoch, with a column ``weight`` where
            iterations stand for others.
        epoch_s: s of the epoch.
        hosts: names of the hosts, which ranks fill in order.
        ranks_of_host: ranks on each host.
        without: labels in which lateness is not counted.

    Returns:
        Rows whose seconds are those beyond the median of the peers; the cause is the
        label that is waited for longest.
    """
    epoch_waits = waits(phases, LABELS)
    booked_s = book_waits(epoch_waits, epoch_waits.weights(phases))
    ignored = [list(LABELS).index(label) for label in without]
    booked_s[:, ignored] = 0.0
    first_ranks = np.arange(0, len(booked_s), ranks_of_host)
    if len(first_ranks) == 1:  # the ranks of one host are compared with one another
        first_ranks = np.arange(len(booked_s))
        hosts = []
        ranks_of_host = 1
    seconds_of_host = np.add.reduceat(booked_s, first_ranks)  # (hosts, labels)
    arrival_s = _arrivals(phases, epoch_waits, ignored, first_ranks)
    totals = seconds_of_host.sum(axis=1)
    rows = []
    worst_half = np.argsort(-totals, kind="stable")[: len(totals) // 2 + 1].tolist()
    for host in worst_half:
        peers = np.delete(np.arange(len(totals), dtype=np.int64), host)
        seconds = totals[host] - (np.median(totals[peers]) if len(peers) else np.inf)
        if seconds <= 0 or not _is_late_beyond_chance(arrival_s, host, peers):
            continue
        first_rank = first_ranks[host]
        rank_s = booked_s[first_rank : first_rank + ranks_of_host].sum(axis=1)
        rank = first_rank + int(rank_s.argmax())
        kind, name = ("host", hosts[host]) if hosts else ("rank", str(rank))
        if hosts and ranks_of_host > 1 and rank_s.max() >= MOSTLY * rank_s.sum():
            kind = "rank"
            name = f"{rank} on {hosts[host]}"
        row = WaitedForRow(
            what=name,
            kind=kind,
            cause=list(LABELS)[int(seconds_of_host[host].argmax())],
            why="comes last",
            seconds=float(seconds),
            share=float(seconds / epoch_s),
        )
        rows.append(row)
    return rows


def _arrivals(
    phases: pd.DataFrame,
    epoch_waits: Waits,
    ignored: Sequence[int],
    first_ranks: Ints64,
) -> Floats:
    """Return by how much each host comes earlier than the last at each step: s, 0 for
    the last and negative for earlier hosts.

    Args:
        phases: timeline of all ranks of an epoch.
        epoch_waits: the waits of the phases.
        ignored: indices of labels whose work does not count; if there are any, the work
            of the ranks is compared, or else their waits.
        first_ranks: (hosts,) first rank of each host.

    Returns:
        (steps, hosts): a host's work minus that of the host that works longest, or
        minus the shortest wait of its ranks. Steps in which none works, or none waits,
        are left out.
    """
    if ignored:
        work = np.maximum.reduceat(
            _rank_work(phases, epoch_waits, ignored), first_ranks, axis=1
        )
        return np.asarray(work - work.max(axis=1, keepdims=True))
    rank_waits = (epoch_waits.before_allreduce + epoch_waits.after_allreduce).sum(
        axis=2
    )
    rank_waits = rank_waits[rank_waits.any(axis=1)]
    return np.asarray(-np.minimum.reduceat(rank_waits, first_ranks, axis=1))


def _rank_work(
    phases: pd.DataFrame, epoch_waits: Waits, ignored: Sequence[int]
) -> Floats:
    """Return the s that each rank works before the allreduce of a step, (steps, ranks).

    Steps in which no rank does work that counts are left out.

    Args:
        phases: timeline of all ranks of an epoch.
        epoch_waits: the waits of the phases.
        ignored: indices of labels whose work does not count.
    """
    counts = ~epoch_waits.idle & ~epoch_waits.later & (epoch_waits.label >= 0)
    counts &= ~np.isin(epoch_waits.label, ignored)
    seconds = (phases["end_s"] - phases["start_s"]).to_numpy(float)
    work = np.zeros(epoch_waits.before_allreduce.shape[:2])
    step_and_rank = (epoch_waits.step[counts], phases["rank"].to_numpy()[counts])
    np.add.at(work, step_and_rank, seconds[counts])
    return work[work.any(axis=1)]


def _is_late_beyond_chance(arrival_s: Floats, host: int, peers: Ints64) -> bool:
    """Return whether a host comes later than its peers by more than chance: in the
    mean, or by how often it comes last, each step weighed by its longest wait.

    True also for fewer than `MIN_STEPS` steps, in which chance cannot be told.

    Args:
        arrival_s: (steps, hosts) s, 0 for the last and negative for earlier hosts.
        host: index of the host.
        peers: indices of the other hosts.
    """
    num_steps, num_hosts = arrival_s.shape
    delay_s = arrival_s[:, host] - np.median(arrival_s[:, peers], axis=1)
    if num_steps < MIN_STEPS:
        return True
    # of few steps the mean is uncertain: Student's t, with the chance shared among the hosts
    quantile = max(
        SURE, float(special.stdtrit(num_steps - 1, 1.0 - CHANCE / num_hosts))
    )
    if delay_s.mean() > quantile * float(delay_s.std(ddof=1)) / np.sqrt(num_steps):
        return True
    longest = -arrival_s.min(axis=1)
    probability = 1.0 / num_hosts
    is_last = arrival_s[:, host] >= -ALIKE * longest
    # Bennett's inequality for S = sum_i w_i (B_i - p), B_i Bernoulli(p), w_i the longest wait:
    # P(S >= t) <= exp(-V/b^2 h(b t / V)), h(u) = (1 + u) ln(1 + u) - u, V = p (1 - p) sum w_i^2,
    # b = max w_i; a normal tail would be wrong where a host is last twice in five steps of 160
    variance = probability * (1.0 - probability) * float((longest**2).sum())
    excess = float((longest * (is_last - probability)).sum())
    if variance <= 0 or excess <= 0:
        return False
    max_weight = float(longest.max())
    ratio = max_weight * excess / variance
    exponent = variance / max_weight**2 * ((1.0 + ratio) * np.log1p(ratio) - ratio)
    return bool(num_hosts * np.exp(-exponent) <= CHANCE)


# ------------------------------------------------------------------------- what bounds all of them


def apply_faults(
    links: pd.DataFrame, faults: Sequence[Mapping[str, Any]], begin: float, end: float
) -> pd.DataFrame:
    """Return a copy of the links of an epoch, with the ``capacity`` that faults left
    them and the used share of this capacity, ``mean_utilisation``, at most 1.

    A link at a rate r for the part p of an epoch, in which it carries evenly, is in use
    f = (1 - p) + p / r times as long, and its capacity is divided by f. Of several
    faults on a link the largest f counts. One of rate 0 counts as f = 1.

    Args:
        links: rows of an epoch in the table ``links``.
        faults: ``what``, ``at_s``, ``until_s`` (None: to the end), ``rate`` (share of
            the capacity left). A fault is on a cable in both directions, on all
            parallel ones unless numbered, or on all links of a switch or host.
        begin: s at which the epoch begins.
        end: s at which it ends.
    """
    names = links["link"].astype(str)
    factor = np.ones(len(links))
    cable_names = names.str.partition("#")[0]
    cable_ends = cable_names.str.split(">", n=1, expand=True).reindex(columns=[0, 1])
    for fault in faults:
        fault_end = end if fault["until_s"] is None else min(end, fault["until_s"])
        part = max(fault_end - max(begin, fault["at_s"]), 0.0) / (end - begin)
        if not (part and fault["rate"]):
            continue
        name = str(fault["what"])
        reverse = ">".join(name.partition("#")[0].split(">")[::-1])
        # the number of parallel ones is that of both directions
        reverse += name[len(reverse) :]
        is_affected = (
            names.isin([name, reverse])
            | cable_names.isin([name, reverse])
            | (cable_ends[0] == name)
            | (cable_ends[1] == name)
        )
        is_affected |= names.str.startswith(f"{name}.")
        factor = np.maximum(
            factor, np.where(is_affected, 1.0 - part + part / fault["rate"], 1.0)
        )
    used = np.minimum(links["mean_utilisation"] * factor, 1.0)
    return links.assign(capacity=links["capacity"] / factor, mean_utilisation=used)


def find_bounds(
    links: pd.DataFrame,
    epoch_s: float,
    seconds_of_label: Mapping[str, float],
    hidden_s: float = 0.0,
) -> list[WaitedForRow]:
    """Find the links and the server that bound an epoch, worst first.

    They are links that are full at times and have less rate than the median of their
    tier, or are in use longer than any other link; and of the servers full at times the
    one in use longest. Ranks wait for a link at most as long as it is in use beyond
    ``hidden_s``, and as it is beyond the rate of its peers; and never longer than they
    are in labels that links and servers have a part in (all but `OWN_CAUSES`), or
    for the server in those of `served_seconds`.

    Args:
        links: rows of an epoch in the table ``links``.
        epoch_s: s of the epoch.
        seconds_of_label: mean s of a rank in each of `LABELS`, or waiting for others
            there.
        hidden_s: mean s in which what is in flight keeps no rank from computing.

    Returns:
        At most one row of a server, and one of each such link; [] if no label counts.
    """
    names = links["link"].to_numpy(str)
    tiers = links["tier"].to_numpy(str)
    used_s = links["mean_utilisation"].to_numpy(float) * epoch_s
    is_full = links["peak_utilisation"].to_numpy(float) >= MIN_FULL_SHARE
    capacity = links["capacity"].to_numpy(float)
    is_server = names == tiers
    rows = []
    bound = {
        label: seconds
        for label, seconds in seconds_of_label.items()
        if label not in OWN_CAUSES and seconds > 0
    }
    served = served_seconds(bound, idle_seconds(links, epoch_s))
    if served and (is_server & is_full).any():
        index = int(np.where(is_server & is_full, used_s, -1.0).argmax())
        seconds = min(float(used_s[index]), sum(served.values()))
        why = f"in use {used_s[index] / epoch_s:.0%} of the epoch"
        cause = max(served, key=served.__getitem__)
        rows.append(
            WaitedForRow(names[index], "server", cause, why, seconds, seconds / epoch_s)
        )
    if bound:
        cause = max(bound, key=bound.__getitem__)
        max_seconds = sum(bound.values())
        peer_capacity = (
            pd.Series(capacity).groupby(tiers).transform("median").to_numpy()
        )
        is_slow = capacity < peer_capacity * (1 - ALIKE)
        for index in np.flatnonzero(is_full & ~is_server).tolist():
            if is_slow[index]:
                ratio = capacity[index] / peer_capacity[index]
                seconds = used_s[index] * (1 - ratio)
                why = f"{ratio:.3g} of its peers' rate"
            else:
                peers_used_s = np.delete(np.where(is_server, 0.0, used_s), index)
                seconds = used_s[index] - peers_used_s.max(initial=0.0)
                why = "carries more than its peers"
            seconds = min(float(seconds), float(used_s[index]) - hidden_s, max_seconds)
            if seconds > 0:
                share = seconds / epoch_s
                rows.append(
                    WaitedForRow(names[index], "link", cause, why, seconds, share)
                )
    return sorted(rows, key=lambda row: -row.seconds)


def rank_rows(
    late_rows: Sequence[WaitedForRow],
    bounds: Sequence[WaitedForRow],
    idle_s: float = np.inf,
) -> list[WaitedForRow]:
    """Return all rows, worst first, without hosts that are late by what one of the
    links explains.

    A link explains a late host whose cause is none of `OWN_CAUSES`, and which is waited
    for at most twice as long as for the link. No epoch becomes shorter than a shared
    server is in use, so late rows are capped at ``idle_s``. Rows of ``bounds`` stay as
    they are, those of links too.

    Args:
        late_rows: late hosts and ranks, from `find_own_lateness`.
        bounds: links and server, from `find_bounds`.
        idle_s: s in which the shared server is idle.
    """
    link = max((row.seconds for row in bounds if row.kind == "link"), default=0.0)
    unexplained = [
        row for row in late_rows if row.cause in OWN_CAUSES or 2 * link < row.seconds
    ]
    bounded = [
        replace(row, seconds=idle_s, share=row.share * idle_s / row.seconds)
        if row.seconds > idle_s
        else row
        for row in unexplained
    ]
    return sorted([*bounds, *bounded], key=lambda row: -row.seconds)


def find_own_lateness(
    phases: pd.DataFrame,
    epoch_s: float,
    hosts: Sequence[str],
    ranks_of_host: int,
    bounds: Sequence[WaitedForRow],
    *,
    decodes_late: bool = False,
) -> list[WaitedForRow]:
    """Return the rows of `find_late_hosts` without what a shared server in ``bounds``
    explains, worst first.

    A host that comes last in reading, where all wait longer for the server that they
    share, is the one that the server happened to serve last; its lateness in other
    phases is its own. Lateness in reading that exceeds the seconds of the server stays.

    Args:
        phases, epoch_s, hosts, ranks_of_host: arguments of `find_late_hosts`.
        bounds: links and server, from `find_bounds`.
        decodes_late: whether the server explains waits for decoding, too (see
            `served_seconds`).
    """
    rows = find_late_hosts(phases, epoch_s, hosts, ranks_of_host)
    server = max((row.seconds for row in bounds if row.kind == "server"), default=0.0)
    served = [name for name in LABELS if name not in (*OWN_CAUSES, *MESSAGES)]
    served += ["decode"] * decodes_late
    if not any(row.cause in served and row.seconds <= server for row in rows):
        return rows
    beyond = [row for row in rows if row.cause in served and row.seconds > server]
    own_rows = find_late_hosts(phases, epoch_s, hosts, ranks_of_host, without=served)
    names_beyond = {row.what for row in beyond}
    return sorted(
        [*beyond, *(row for row in own_rows if row.what not in names_beyond)],
        key=lambda row: -row.seconds,
    )


def served_seconds(
    seconds_of_label: Mapping[str, float], idle_s: float
) -> dict[str, float]:
    """Return the s that a server of files explains, by label: the s of reading, and in
    'io' also the waits for decoding beyond ``idle_s``.

    A batch that is read late is decoded late: with free decoding the epoch would still
    last as long as the server is in use, so no more than ``idle_s`` of the waits for
    decoding are due to decoding.

    Args:
        seconds_of_label: mean s of a rank in each of `LABELS`, with waiting there.
        idle_s: s of the epoch in which the server is idle.
    """
    served = {
        name: s
        for name, s in seconds_of_label.items()
        if name not in (*OWN_CAUSES, *MESSAGES) and s > 0
    }
    if (read_late := seconds_of_label.get("decode", 0.0) - idle_s) > 0:
        served["io"] = served.get("io", 0.0) + read_late
    return served


def idle_seconds(links: pd.DataFrame, epoch_s: float) -> float:
    """Return the s of an epoch in which the busiest shared server is idle; inf where no
    server is ever full.

    The busiest is the one in use longest of those that are full at times.
    """
    is_server = (links["link"].astype(str) == links["tier"].astype(str)).to_numpy()
    is_full = links["peak_utilisation"].to_numpy(float) >= MIN_FULL_SHARE
    used = links["mean_utilisation"].to_numpy(float)[is_server & is_full]
    return max(float(epoch_s * (1.0 - used.max())), 0.0) if len(used) else np.inf
