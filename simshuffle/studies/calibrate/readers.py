"""Which reader takes which file: recognised by what the file holds, or named by the caller."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from simshuffle.errors import InputError, Problem
from simshuffle.studies.calibrate import epochs, ior, mdtest, nccl, osu
from simshuffle.studies.calibrate.files import Source, read_text
from simshuffle.studies.calibrate.rows import Row

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


def sources(
    paths: Sequence[str | Path], ranks: int | None = None, hosts: int | None = None
) -> list[Source]:
    """The texts of all files.

    Args:
        paths: the files.
        ranks, hosts: for files that do not say it; None if not known.

    Raises:
        InputError: a file cannot be read, there is none, or two have the same name.
    """
    names = [Path(path).name for path in paths]
    twice = sorted({name for name in names if names.count(name) > 1})
    rule, value, remedy = "needs at least one measurement file", "none", "Name one."
    if twice:
        rule, value = "files must have different names", ", ".join(twice)
        remedy = "Rename one of them."
    if twice or not names:
        raise InputError(Problem("", rule, value, remedy), "calibrate")
    told = (ranks or 0, math.nan if hosts is None else float(hosts))
    return [Source(Path(path), read_text(Path(path)), *told) for path in paths]


def rows_of(source: Source, kind: str | None = None) -> list[Row]:
    """What a file holds; of that ``kind``, a key of `READERS`, or of the one that is recognised.

    Raises:
        InputError: with path and line.
    """
    found = kind or recognise(source.text)
    if found is None:
        first = next((line for _, line in source.lines() if line.strip()), "")
        rule = f"must be output of {', '.join(READERS)}"
        remedy = "Name its kind with --as KIND, or leave the file out."
        raise source.bad(1, rule, first or "nothing", remedy)
    return READERS[found](source)
