"""Which reader takes which file: recognised by what the file holds, or named by the caller."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import nearest
from simshuffle.studies.calibrate import epochs, ior, mdtest, nccl, osu
from simshuffle.studies.calibrate.files import Source, read_text
from simshuffle.studies.calibrate.table import Row, as_table

READERS: dict[str, Callable[[Source], list[Row]]] = {
    "nccl-tests": nccl.read,
    "nccl-json": nccl.read_json,
    "osu": osu.read,
    "ior": ior.read,
    "mdtest": mdtest.read,
    "epochs": epochs.read,
}
"""Readers by kind of file."""
_SIGNS = {
    "osu": re.compile(r"^\s*#\s*OSU MPI", re.MULTILINE),
    "mdtest": re.compile(r"^\s*(?:SUMMARY rate|mdtest-\d)", re.MULTILINE),
    "ior": re.compile(r"^\s*(?:IOR-\d|access\s+bw\(MiB/s\))", re.MULTILINE),
    "nccl-tests": re.compile(r"#.*\b(?:algbw|nThread|Collective test starting)\b"),
    "nccl-json": re.compile(r'\A\s*\{(?s:.*)"results"'),
}


def recognise(text: str) -> str | None:
    """The kind of a file by what it holds; None if it is of none."""
    first = text.lstrip("\n").partition("\n")[0]
    if {"gpus", "epoch_s"} <= {name.strip().strip('"') for name in first.split(",")}:
        return "epochs"
    return next((kind for kind, sign in _SIGNS.items() if sign.search(text)), None)


def read_files(
    paths: Sequence[str | Path], kind: str | None, ranks: int | None, hosts: int | None
) -> pd.DataFrame:
    """The measurements of all files, as a table with the columns
    `simshuffle.studies.calibrate.table.COLUMNS`.

    Args:
        paths: the files.
        kind: their kind, a key of `READERS`; None to recognise each.
        ranks, hosts: for files that do not say it; None if not known.

    Raises:
        InputError: with path and line.
    """
    if kind is not None and kind not in READERS:
        raise InputError(
            Problem("--as", "must be a kind of file", repr(kind), nearest(kind, list(READERS))),
            "command line",
        )
    if not paths:
        raise InputError(
            Problem("", "needs at least one measurement file", "none", "Name one."), "calibrate"
        )
    names = [Path(path).name for path in paths]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            Problem("", "files must have different names", ", ".join(twice), "Rename one of them."),
            "calibrate",
        )
    return as_table(row for path in paths for row in _read(Path(path), kind, ranks, hosts))


def _read(path: Path, kind: str | None, ranks: int | None, hosts: int | None) -> list[Row]:
    source = Source(path, read_text(path), ranks, hosts)
    found = kind or recognise(source.text)
    if found is None:
        first = next((line for _, line in source.lines() if line.strip()), "")
        rule = f"must be output of {', '.join(READERS)}"
        raise source.bad(
            1, rule, first or "nothing", "Name its kind with --as KIND, or leave the file out."
        )
    return READERS[found](source)
