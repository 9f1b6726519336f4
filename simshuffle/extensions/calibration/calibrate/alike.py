"""Choose the measurements of storage that a law may fit together, and note those left
out.

A law of bandwidth needs transfers of one size, in one order, into files of one kind.
Rows that do not measure the servers, such as those of a page cache, are taken by no
law.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from simshuffle.extensions.calibration.calibrate.findings import (
    Findings,
    describe_sources,
    group_rows,
)
from simshuffle.extensions.calibration.calibrate.ior_run import READ_BACK, UNSYNCED

MAX_FACTOR_BETWEEN_FILES = 1.5
"""Factor by which files that measured one case may differ before a note says it."""
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def choose_transfers(
    findings: Findings, rows: pd.DataFrame, operation: str
) -> pd.DataFrame:
    """Return the rows of IOR that measure the bandwidth of the servers.

    They are of one size and one use: sequential before random, synchronised before not,
    then the largest (an unknown size is the smallest), then a file for each task, then
    not collective. Reads that a cache may have answered are left out before; no row
    stays if all are such reads. What is left out is noted in ``findings``.

    Args:
        findings: gets a note for every group of rows that is left out.
        rows: measurements of IOR, one row for each rate, with a unique index.
        operation: 'read' or 'write', for the notes.
    """
    is_cached = rows["algorithm"].str.contains(READ_BACK)
    if is_cached.any():
        findings.notes.append(
            f"{describe_sources(rows[is_cached])}: {operation}s were left out. The same hosts had"
            " written the files, so the page cache of the hosts may have answered, and not the"
            " servers. Read on other hosts (-C on several nodes), in a run of its own (-r), or"
            " past the cache (--posix.odirect)."
        )
    uses = list(
        group_rows(rows[~is_cached].fillna({"nbytes": -1.0}), "nbytes", "algorithm")
    )
    if not uses:
        return rows[~is_cached]
    uses.sort(key=lambda use: sort_key_of_transfers(*use[0]))
    best_key, best_rows = uses[-1]
    for use_key, use_rows in uses[:-1]:
        findings.notes.append(
            f"{describe_sources(use_rows)}: {operation}s of {describe_transfers(*use_key)} were"
            f" left out, since {operation}s of {describe_transfers(*best_key)}"
            f" ({list_files(best_rows)}) measure another bandwidth. To fit the {operation}s that"
            " were left out, calibrate their file alone."
        )
    return rows.loc[best_rows.index]


def sort_key_of_transfers(
    nbytes: float, pattern: str
) -> tuple[bool, bool, float, bool, bool, str]:
    """Return a sort key of a use of files: the last one shows best what servers can
    give.

    Args:
        nbytes: bytes of a transfer; below 0 if unknown.
        pattern: how files were used, as `IorRun.describe_pattern` writes it.
    """
    return (
        not pattern.startswith("random"),
        UNSYNCED not in pattern,
        nbytes,
        "a file for each task" in pattern,
        "collective" not in pattern,
        pattern,
    )


def describe_transfers(nbytes: float, pattern: str) -> str:
    """Describe the use of files by transfers: '1 MiB, sequential, a file for each
    task'; the size alone without a pattern.
    """
    return f"{binary_size(nbytes)}, {pattern}" if pattern else binary_size(nbytes)


def binary_size(nbytes: float) -> str:
    """Write bytes in the largest of GiB, MiB and KiB that divides them, else in B.

    'unknown size' for nan and numbers below 0.
    """
    if not nbytes >= 0:
        return "unknown size"
    for unit, name in _UNITS:
        if nbytes and nbytes % unit == 0:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes:g} B"


def choose_hosts(
    findings: Findings, rows: pd.DataFrame, operation: str
) -> pd.DataFrame:
    """Return, for each number of clients, the rows of the number of hosts that was
    fastest (geometric mean of the rates).

    On fewer hosts, the adapters of the hosts bind and not the servers. If a row does
    not know its hosts, all rows with its number of clients stay. Slower hosts are noted
    in ``findings``. Rows come by number of clients, ascending.
    """
    chosen_rows = []
    for (ranks,), client_rows in group_rows(rows, "ranks"):
        rows_by_hosts = {
            hosts: host_rows for (hosts,), host_rows in group_rows(client_rows, "hosts")
        }
        if len(rows_by_hosts) < 2 or client_rows["hosts"].isna().any():
            chosen_rows.append(client_rows)
            continue
        fastest_hosts = max(
            rows_by_hosts,
            key=lambda hosts: float(np.log(rows_by_hosts[hosts]["rate"]).mean()),
        )
        chosen_rows.append(rows_by_hosts[fastest_hosts])
        slower_hosts = ", ".join(
            f"{hosts:g}" for hosts in rows_by_hosts if hosts != fastest_hosts
        )
        findings.notes.append(
            f"{operation}s by {ranks} clients: the fastest runs used {fastest_hosts:g} hosts; runs"
            f" on {slower_hosts} hosts count only for the bandwidth of a single host."
        )
    return rows.loc[pd.concat(chosen_rows).index] if chosen_rows else rows


def choose_files(
    findings: Findings, rows: pd.DataFrame, operation: str
) -> pd.DataFrame:
    """Return the rows of mdtest with the smallest files, best in directories of tasks.

    They are of one size and one pattern of use, even if no row is in directories of
    tasks. There, servers of metadata bind, and neither bandwidth nor locks. An unknown
    size counts as the largest. What is left out is noted in ``findings``.
    """
    uses = list(group_rows(rows.fillna({"nbytes": math.inf}), "nbytes", "algorithm"))
    if len(uses) < 2:
        return rows
    uses.sort(key=lambda use: (use[0][0], "directories of tasks" not in use[0][1]))
    (chosen_nbytes, chosen_pattern), chosen_rows = uses[0]
    operation_name = operation.replace("_", " ")
    for (nbytes, pattern), use_rows in uses[1:]:
        findings.notes.append(
            f"{describe_sources(use_rows)}: {operation_name} of files of {nbytes:g} B in {pattern}"
            f" was left out, since files of {chosen_nbytes:g} B in {chosen_pattern}"
            f" ({list_files(chosen_rows)}) measure another rate. To fit what was left out,"
            " calibrate its file alone."
        )
    return rows.loc[chosen_rows.index]


def list_files(rows: pd.DataFrame) -> str:
    """Return the names of the files that the rows come from, each once, separated by
    commas.
    """
    return ", ".join(dict.fromkeys(rows["source"]))


def note_disagreement(findings: Findings, table: pd.DataFrame) -> None:
    """Note where files that measured one case differ by more than
    `MAX_FACTOR_BETWEEN_FILES`, in the median over an operation's cases.

    Such files may be of different machines. A file counts by the median of its rows of
    a case. Epochs, and reads that a cache may have answered, are left out.
    """
    measured = table.assign(value=table["seconds"].fillna(table["rate"]))
    measured = measured[~measured["algorithm"].str.contains(READ_BACK)]
    measured = measured[measured["operation"] != "iteration"]
    case_columns = ["operation", "ranks", "hosts", "nbytes", "algorithm"]
    median_by_file = measured.groupby([*case_columns, "source"], dropna=False)[
        "value"
    ].median()
    spread = median_by_file.groupby(level=case_columns, dropna=False).agg(
        ["min", "max", "size"]
    )
    spread = spread[spread["size"] > 1]
    for operation, factors in (spread["max"] / spread["min"]).groupby(
        level="operation"
    ):
        factor = float(factors.median())
        if factor > MAX_FACTOR_BETWEEN_FILES:
            files = list_files(measured[measured["operation"] == operation])
            findings.notes.append(
                f"{files}: the same {str(operation).replace('_', ' ')} differs by a factor of"
                f" {factor:.2g} between these files, and the fit takes their mean. If the files"
                " come from different machines, calibrate each file on its own."
            )
