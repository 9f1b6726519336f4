"""Laws of storage, from IOR and mdtest.

IOR: c clients get min(c b, B), B of all servers together. mdtest: the rate of opens at
the number of clients where it is highest. Each law takes measurements of one way to use
files alone: `alike`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from simshuffle.extensions.calibration.calibrate import alike
from simshuffle.extensions.calibration.calibrate.findings import (
    Findings,
    FitBasis,
    describe_sources,
    group_rows,
    join_notes,
    log_curve,
    mean_error,
    span,
)
from simshuffle.extensions.calibration.calibrate.fit import (
    Saturation,
    mean_interval,
    saturation,
)
from simshuffle.extensions.calibration.calibrate.ior_run import UNSYNCED
from simshuffle.extensions.calibration.calibrate.laws import COMPARISON_NOTE
from simshuffle.extensions.calibration.calibrate.mdtest import OWN_HOST
from simshuffle.spec.units import Dimension

KEY_OF_STORAGE = {"pfs": "cluster.parallel_file_system", "ssd": "cluster.ssd"}
"""The storages that can be measured, and the key of each in a scenario."""
MIN_RISE = 1.1
"""A rate that is higher by this factor at the most clients than at fewer ones is still
rising.
"""
STILL_RISES = "a lower bound: the rate still rises at the largest number of clients"
NO_INTERVAL = (math.nan, math.nan)
_UNSYNCED_NOTE = (
    "IOR wrote without -e (fsync): bytes that hosts still held in memory count as"
    " written"
)
_OWN_HOST_NOTE = (
    "the hosts that created the files also opened them (mdtest without"
    " -N): their caches may have answered"
)


def fit_transfers(rows: pd.DataFrame, used: pd.Series, storage: str) -> Findings:
    """Fit the read and write bandwidths of a file system or of SSDs to measurements of
    IOR.

    One use of files is fitted, as `alike.choose_transfers` chooses; a note tells what
    is left out. For 'pfs', each number of clients counts on its fastest hosts only.

    Args:
        rows: measurements of IOR, a row for each rate of all clients together.
        used: (rows,) which of them to fit; the others are predicted.
        storage: 'pfs' for the parallel file system, or 'ssd' for the SSDs of the hosts;
            each host then has its share of clients and rate. Unknown hosts count as 1.

    Returns:
        The bandwidths (bytes/s), residuals and notes. For 'pfs' also the bandwidth of a
        single client, for people, and for reads the bandwidth of a host over the number
        of hosts. An operation without rows to fit adds notes at most.
    """
    findings = Findings()
    for operation in ("read", "write"):
        chosen = alike.choose_transfers(
            findings, rows[rows["operation"] == operation], operation
        )
        measured = (
            chosen
            if storage == "ssd"
            else alike.choose_hosts(findings, chosen, operation)
        )
        is_used = used[measured.index].to_numpy(bool)
        if not is_used.any():
            continue
        is_shared = storage == "pfs"
        num_storages = 1.0 if is_shared else measured["hosts"].fillna(1.0)
        scaled_rows = measured.assign(
            ranks=measured["ranks"] / num_storages, rate=measured["rate"] / num_storages
        )
        clients, rate = scaled_rows[["ranks", "rate"]].to_numpy(float).T

        law = saturation(clients[is_used], rate[is_used])
        fitted = np.fmin(law.slope * clients, law.ceiling)
        law_name = f"{operation} ({storage})"
        findings.add_residuals(measured, law_name, "B/s", rate, fitted, used=is_used)

        key = f"{KEY_OF_STORAGE[storage]}.{operation}_bandwidth"
        # scenarios only read from the parallel file system
        name = "write bandwidth of the parallel file system" * (
            is_shared and operation == "write"
        )
        is_unsynced = scaled_rows["algorithm"].str.contains(UNSYNCED).any()
        add_bandwidth(
            findings,
            scaled_rows[is_used],
            law,
            key=key,
            name=name,
            note=_UNSYNCED_NOTE if is_unsynced else "",
        )
        if is_shared and operation == "read":
            add_client_bandwidth(findings, chosen[used[chosen.index]])
        if is_shared and math.isfinite(law.slope):
            error = mean_error(rate[is_used], fitted[is_used])
            findings.add_parameter(
                FitBasis(scaled_rows[is_used], error, ["clients"]),
                "",
                (law.slope, *NO_INTERVAL),
                Dimension.BANDWIDTH,
                f"{COMPARISON_NOTE}what one client reads or writes alone",
                name=f"{operation} bandwidth of a client",
            )
    return findings


def add_bandwidth(
    findings: Findings,
    rows: pd.DataFrame,
    law: Saturation,
    *,
    key: str,
    name: str,
    note: str,
) -> None:
    """Add the bandwidth (bytes/s) of all clients together: the ceiling of the law.

    Without a ceiling, the parameter is the geometric mean at the most clients, and its
    note says that the rate still rises. The note also says if only one number of
    clients was measured.

    Args:
        findings: gets the parameter.
        rows: measurements that are fitted, with ``rate`` and ``ranks`` of one storage.
        law: the fit to them.
        key: dotted key of a scenario.
        name: name for people, if a scenario has no such key; '' if it has.
        note: what a reader must know.
    """
    ceiling = law.ceiling
    on_ceiling = law.on_ceiling
    rate = rows["rate"].to_numpy(float)
    if not math.isfinite(law.slope):
        single_count_note = (
            "measured with one number of clients only; more clients may reach more"
        )
        note = join_notes(note, single_count_note)
    if not on_ceiling.any():
        on_ceiling = (rows["ranks"] == rows["ranks"].max()).to_numpy(bool)
        ceiling = float(np.exp(np.log(rate[on_ceiling]).mean()))
        note = join_notes(note, STILL_RISES)

    log_rates = np.log(rate[on_ceiling])
    deviation = float(np.std(log_rates, ddof=1)) if len(log_rates) > 1 else math.nan
    low, high = np.exp(
        mean_interval(float(log_rates.mean()), deviation, len(log_rates))
    ).tolist()
    findings.add_parameter(
        FitBasis(rows, mean_error(rate[on_ceiling], ceiling), ["clients"]),
        key,
        (ceiling, low, high),
        Dimension.BANDWIDTH,
        note,
        name=name,
        count=int(on_ceiling.sum()),
    )


def add_client_bandwidth(findings: Findings, rows: pd.DataFrame) -> None:
    """Add the largest bandwidth of one host (bytes/s) of the parallel file system, as a
    curve over the number of hosts.

    At each number of hosts, the number of tasks with the highest mean rate counts. Rows
    without hosts are left out; without rows nothing is added.
    """
    fastest_by_hosts = [
        max(
            (task_rows for _, task_rows in group_rows(host_rows, "ranks")),
            key=lambda task_rows: float(task_rows["rate"].mean()),
        )
        for _, host_rows in group_rows(rows[rows["hosts"].notna()], "hosts")
    ]
    if not fastest_by_hosts:
        return
    fastest_rows = pd.concat(fastest_by_hosts)
    hosts, rate = fastest_rows[["hosts", "rate"]].to_numpy(float).T
    curve = log_curve(hosts, rate / hosts)
    key = f"{KEY_OF_STORAGE['pfs']}.client_bandwidth"
    basis = FitBasis(fastest_rows, curve.error, ["hosts"])
    findings.add_parameter(basis, key, curve.estimate, Dimension.BANDWIDTH)


def fit_opens(rows: pd.DataFrame, used: pd.Series, storage: str) -> Findings:
    """Fit the rate of opens, and the latency of an open of a single client, to mdtest.

    'File read' (open, read, close) is fitted, or 'File stat' where no row is 'File
    read'. Next to 'File read', each rate of 'File stat' is added for people. Files of
    one size and use are fitted, as `alike.choose_files` chooses.

    The rate (1/s) is the mean at the number of clients where it is highest; it is added
    for 'pfs' only. The latency (s) comes from runs with one task; without such runs
    there is a note instead.

    Args:
        rows: measurements of mdtest.
        used: (rows,) which of them to fit; the others are left out.
        storage: 'pfs' or 'ssd', a key of `KEY_OF_STORAGE`.
    """
    findings = Findings()
    rows = rows[used]
    if rows.empty:
        return findings
    operation = "file_read" if (rows["operation"] == "file_read").any() else "file_stat"
    other_rows = rows[rows["operation"] != operation]
    rows = alike.choose_files(findings, rows[rows["operation"] == operation], operation)
    for (ranks,), rank_rows in group_rows(other_rows, "ranks"):
        add_open_rate(
            findings,
            rank_rows,
            "",
            f"{ranks} clients; for comparison only",
            name="rate of File stat",
        )
    note = ""
    if operation == "file_stat":
        note = "from 'File stat', which does not open the file; run mdtest with -E for 'File read'"
    if rows["algorithm"].str.contains(OWN_HOST).any():
        note = join_notes(note, _OWN_HOST_NOTE)
    mean_rates = {
        int(ranks): pool_repetitions(rank_rows).mean
        for (ranks,), rank_rows in group_rows(rows, "ranks")
    }
    best_ranks = max(mean_rates, key=lambda ranks: mean_rates[ranks])
    rates_below = [
        value for ranks, value in mean_rates.items() if ranks < max(mean_rates)
    ]
    if rates_below and mean_rates[max(mean_rates)] > MIN_RISE * max(rates_below):
        note = join_notes(note, STILL_RISES)
    if storage == "pfs":
        add_open_rate(
            findings,
            rows[rows["ranks"] == best_ranks],
            f"{KEY_OF_STORAGE[storage]}.open_rate",
            note,
        )
        findings.parameters[-1].over["clients"] = span(rows["ranks"])
    if (single_client_rows := rows[rows["ranks"] == 1]).empty:
        findings.notes.append(
            f"{describe_sources(rows)}: no run with a single task, so the latency of an open was"
            " not fitted."
        )
    else:
        add_open_rate(
            findings, single_client_rows, f"{KEY_OF_STORAGE[storage]}.latency"
        )
    measured = rows["rate"].to_numpy(float)
    fitted = np.array([mean_rates[int(ranks)] for ranks in rows["ranks"]])
    law = f"{operation.replace('_', ' ')} ({storage})"
    findings.add_residuals(rows, law, "1/s", measured, fitted)
    return findings


class PooledRate(NamedTuple):
    """The rates of many repetitions, pooled."""

    mean: float  # operations/s
    spread: float  # their standard deviation; nan of a single repetition
    num_repetitions: int


def pool_repetitions(rows: pd.DataFrame) -> PooledRate:
    """Pool the repetitions of some rows, each a mean of ``count`` with its ``spread``.

    A spread of nan counts as 0.
    """
    counts, means, spreads = rows[["count", "rate", "spread"]].to_numpy(float).T
    total = counts.sum()
    mean = float(counts @ means / total)
    squares_within = np.where(
        counts > 1, (counts - 1) * np.nan_to_num(spreads) ** 2, 0.0
    )
    total_squares = squares_within.sum() + counts @ (means - mean) ** 2
    spread = float(np.sqrt(total_squares / (total - 1))) if total > 1 else math.nan
    return PooledRate(mean, spread, int(total))


def add_open_rate(
    findings: Findings, rows: pd.DataFrame, key: str, note: str = "", *, name: str = ""
) -> None:
    """Add the mean rate of opens (1/s) over all repetitions in ``rows``, or its
    inverse, the latency of an open (s), if ``key`` ends in latency.

    Args:
        findings: gets the parameter.
        rows: measurements of mdtest; those of different numbers of clients are pooled.
        key: dotted key of a scenario; '' where a scenario has none.
        note: what a reader must know.
        name: name for people, if a scenario has no such key; '' if it has.
    """
    pooled = pool_repetitions(rows)
    low, high = mean_interval(pooled.mean, pooled.spread, pooled.num_repetitions)
    if key.endswith("latency"):
        dimension = Dimension.SECONDS
        estimate = (1 / pooled.mean, *((1 / high, 1 / low) if low > 0 else NO_INTERVAL))
    else:
        dimension = Dimension.FREQUENCY
        estimate = (pooled.mean, max(low, 0.0), high)

    error = mean_error(rows["rate"].to_numpy(float), pooled.mean)
    quantities = ["clients"] + ["file_size"] * bool(rows["nbytes"].notna().all())
    findings.add_parameter(
        FitBasis(rows, error, quantities),
        key,
        estimate,
        dimension,
        note,
        name=name,
        count=pooled.num_repetitions,
    )
