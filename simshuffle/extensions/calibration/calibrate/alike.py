"""Which measurements of storage a law may take together, and which are left out by name.

A law of bandwidth needs transfers of one size, in one order, into files of one kind. Rows that do
not measure the servers, such as those of a page cache, are taken by no law.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from simshuffle.extensions.calibration.calibrate.findings import Findings, groups, sources
from simshuffle.extensions.calibration.calibrate.ior_run import READ_BACK, UNSYNCED

UNLIKE = 1.5
"""Factor by which files that measured the same may differ before it is said."""
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def choose_transfers(out: Findings, rows: pd.DataFrame, operation: str) -> pd.DataFrame:
    """Return the rows of IOR that measure the bandwidth of the servers: of sequential ones those
    with the largest transfers, of these those with a file for each task. What is left out is
    noted."""
    is_cached = rows["algorithm"].str.contains(READ_BACK)
    if is_cached.any():
        out.notes.append(
            f"{sources(rows[is_cached])}: {operation}s were left out. The same hosts had written"
            " the files, so the page cache of the hosts may have answered, and not the"
            " servers. Read on other hosts (-C on several nodes), in a run of its own (-r), or"
            " past the cache (--posix.odirect)."
        )
    by_use = list(groups(rows[~is_cached].fillna({"nbytes": -1.0}), "nbytes", "algorithm"))
    if not by_use:
        return rows[~is_cached]
    by_use.sort(key=lambda use: rank_of_transfers(*use[0]))
    taken = by_use[-1]
    for use in by_use[:-1]:
        out.notes.append(
            f"{sources(use[1])}: {operation}s of {describe_transfers(*use[0])} were left out, since"
            f" those of {describe_transfers(*taken[0])} ({names_of(taken[1])}) measure another"
            " bandwidth. Calibrate the file alone to see it."
        )
    return rows.loc[taken[1].index]


def rank_of_transfers(nbytes: float, pattern: str) -> tuple[bool, bool, float, bool, bool, str]:
    """A key by which the use of files comes last that shows best what servers can give."""
    return (
        not pattern.startswith("random"),
        UNSYNCED not in pattern,
        nbytes,
        "a file for each task" in pattern,
        "collective" not in pattern,
        pattern,
    )


def describe_transfers(nbytes: float, pattern: str) -> str:
    """Describe the use of files by transfers: '1 MiB, sequential, a file for each task'."""
    return f"{binary_size(nbytes)}, {pattern}" if pattern else binary_size(nbytes)


def binary_size(nbytes: float) -> str:
    """Write bytes in powers of 1024, where they are a whole multiple of one."""
    if not nbytes >= 0:
        return "unknown size"
    for unit, name in _UNITS:
        if nbytes and nbytes % unit == 0:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes:g} B"


def choose_hosts(out: Findings, rows: pd.DataFrame, operation: str) -> pd.DataFrame:
    """Return, for each number of clients, the rows of the number of hosts on which they were
    fastest: on fewer hosts, the adapters of the hosts bind and not the servers."""
    kept = []
    for (ranks,), same_clients in groups(rows, "ranks"):
        by_hosts = {hosts: part for (hosts,), part in groups(same_clients, "hosts")}
        if len(by_hosts) < 2 or same_clients["hosts"].isna().any():
            kept.append(same_clients)
            continue
        best = max(by_hosts, key=lambda hosts: float(np.log(by_hosts[hosts]["rate"]).mean()))
        kept.append(by_hosts[best])
        others = ", ".join(f"{hosts:g}" for hosts in by_hosts if hosts != best)
        out.notes.append(
            f"{operation}s by {ranks} clients: the fastest were on {best:g} hosts; those on"
            f" {others} count for the bandwidth of a host alone."
        )
    return rows.loc[pd.concat(kept).index] if kept else rows


def choose_files(out: Findings, rows: pd.DataFrame, operation: str) -> pd.DataFrame:
    """Return the rows of mdtest with the smallest files, and of these those with directories of
    tasks: there, servers of metadata bind and neither bandwidth nor locks."""
    by_use = list(groups(rows.fillna({"nbytes": math.inf}), "nbytes", "algorithm"))
    if len(by_use) < 2:
        return rows
    by_use.sort(key=lambda use: (use[0][0], "directories of tasks" not in use[0][1]))
    taken, others = by_use[0], by_use[1:]
    what = operation.replace("_", " ")
    for (nbytes, pattern), part in others:
        out.notes.append(
            f"{sources(part)}: {what} of files of {nbytes:g} B in {pattern} were left out, since"
            f" those of {taken[0][0]:g} B in {taken[0][1]} ({names_of(taken[1])}) measure another"
            " rate. Calibrate the file alone to see it."
        )
    return rows.loc[taken[1].index]


def names_of(rows: pd.DataFrame) -> str:
    """The names of the files of some rows."""
    return ", ".join(dict.fromkeys(rows["source"]))


def note_disagreement(out: Findings, table: pd.DataFrame) -> None:
    """Note where several files measured the same and differ by more than `UNLIKE`: they may be of
    different machines."""
    measured = table.assign(value=table["seconds"].fillna(table["rate"]))
    measured = measured[~measured["algorithm"].str.contains(READ_BACK)]
    measured = measured[measured["operation"] != "iteration"]
    same = ["operation", "ranks", "hosts", "nbytes", "algorithm"]
    by_file = measured.groupby([*same, "source"], dropna=False)["value"].median()
    spread = by_file.groupby(level=same, dropna=False).agg(["min", "max", "size"])
    spread = spread[spread["size"] > 1]
    for operation, factors in (spread["max"] / spread["min"]).groupby(level="operation"):
        factor = float(factors.median())
        if factor > UNLIKE:
            files = names_of(measured[measured["operation"] == operation])
            out.notes.append(
                f"{files}: the same {str(operation).replace('_', ' ')} differs by a factor of"
                f" {factor:.2g} between files, and their mean was taken. If they are of different"
                " machines, calibrate them one by one."
            )
