"""A comparison on a terminal. Tables fit 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.results.console import new_table
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.policies.cases import Study
from simshuffle.studies.policies.sources import SOURCES

Row = Mapping[Any, Any]
SHORT = ("PFS", "own memory", "own SSD", "remote memory", "remote SSD")


def parts(study: Study, policies: pd.DataFrame) -> Iterator[str | Table]:
    """For each case a line and a table; then what the marks mean."""
    for name, case in study.cases.items():
        workers = case.on(study.system).workers
        size = readable(case.nbytes, Dimension.NBYTES)
        yield (
            f"{name}: {case.num_samples} samples, {size}, {workers} workers with"
            f" {readable(study.system.storage, Dimension.NBYTES)} of storage each, {case.epochs}"
            " epochs."
        )
        yield _table(policies[policies["case"] == name])
    if (policies["coverage"] < 1).any():
        yield "* Reads only that share of the data set, so that training learns from less."
    yield "Sources: share of the bytes of all epochs. First: with the staging before training."


def _table(policies: pd.DataFrame) -> Table:
    table = new_table()
    table.add_column("policy", no_wrap=True)
    for name in ("first s", "steady s", "all / perfect", "kept a worker"):
        table.add_column(name, justify="right")
    table.add_column("sources", max_width=30)
    for row in policies.to_dict("records"):
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> list[str]:
    name = row["policy"].replace("_", " ")
    if row["problem"]:
        return [name, "-", "-", "-", "-", f"cannot: {row['problem']}"]
    if row["coverage"] < 1:
        name = f"{name} *{100 * row['coverage']:.2g}%"
    times = [f"{row['first_s']:.4g}", f"{row['steady_s']:.4g}", f"{row['total_ratio']:.3f}"]
    return [
        name,
        *times,
        readable(row["memory_nbytes"] + row["ssd_nbytes"], Dimension.NBYTES, 3),
        _sources(row),
    ]


def _sources(row: Row) -> str:
    shares = {
        short: row[f"{source}_share"]
        for source, short in zip(SOURCES[: len(SHORT)], SHORT, strict=True)
    }
    return ", ".join(
        f"{short} {100 * share:.0f}%" for short, share in shares.items() if share >= 0.005
    )
