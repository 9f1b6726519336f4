"""export(source, format): a file or folder for another tool, written whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from simshuffle.errors import InputError, Problem
from simshuffle.exports.formats import Asked, Tell, format_of
from simshuffle.exports.source import Source
from simshuffle.results.folders import room_for, take_place
from simshuffle.version import __version__

MARK = "simshuffle-export.json"
"""A file in each folder that was exported: it says so, and that --force may replace it."""


def default_out(source: Source, to: str) -> Path:
    """Where an export goes if nobody says so: in the working directory, after the run."""
    suffix = format_of(to).suffix
    name = source.run if suffix == f".{to}" else f"{source.run}-{to}"
    return Path(re.sub(r"[^A-Za-z0-9._@=-]+", "-", name).strip("-.")[:100] + suffix)


def export(
    source: Source,
    to: str,
    out: Path,
    asked: Asked | None = None,
    tell: Tell | None = None,
    *,
    replace: bool = False,
) -> Sequence[str]:
    """Write a run in the format ``to``.

    Args:
        source: the run.
        to: the name of a format.
        out: the file, or the folder where the format is several files.
        asked: options that the format takes.
        tell: told of the share that is done.
        replace: what is at ``out``, if it is a file, or a folder that was exported.

    Returns:
        What is to be said of it, a line each.

    Raises:
        InputError: there is no such format, ``out`` cannot be written, or the format cannot be made
            of the source.
    """
    kind = format_of(to)
    if kind.takes != "both" and (kind.takes == "result") != (source.result is not None):
        wanted = {"result": "a result folder of 'simshuffle run'", "scenario": "a scenario"}
        rule = f"--to {to} takes {wanted[kind.takes]}"
        raise InputError(Problem("SOURCE", rule, source.reference, "Name one."), "command line")
    folder = not kind.suffix
    check_out(out, folder=folder, replace=replace)
    writer = kind.writer()

    def fill(path: Path) -> Sequence[str]:
        said = writer.write(source, path, asked or Asked(), tell or _nobody)
        if folder:
            about = {"format": to, "source": source.reference, "run": source.run}
            mark = json.dumps({**about, "simshuffle": __version__}, indent=1)
            (path / MARK).write_text(f"{mark}\n", encoding="utf-8")
        return said

    return _written(out, fill)


def _nobody(_: float) -> None:
    pass


def check_out(out: Path, *, folder: bool, replace: bool) -> None:
    """See that an export can be written to ``out``.

    Raises:
        InputError: it cannot.
    """
    try:
        rule, remedy = _in_the_way(out, folder, replace)
    except (OSError, ValueError) as error:  # a name that is too long, or has a zero byte
        why = getattr(error, "strerror", None) or str(error)
        rule, remedy = f"cannot be written: {why}", "Choose another name."
    if rule:
        shown = str(out) if len(str(out)) <= 100 else f"{str(out)[:97]}..."
        raise InputError(Problem("--out", rule, repr(shown), remedy), "command line")


def _in_the_way(out: Path, folder: bool, replace: bool) -> tuple[str, str]:
    """Rule and remedy of what is in the way; '' if nothing is."""
    if not out.name or not out.parent.is_dir():
        return "must be in a folder that is there", "Make the folder."
    if not os.access(out.parent, os.W_OK):
        return "must be in a folder that can be written to", "Choose another one."
    if not os.path.lexists(out):
        return "", ""
    if out.is_dir() != folder or out.is_symlink():
        kinds = ("must not be that of a folder or a link", "must not be that of a file or a link")
        return kinds[folder], "Choose another name."
    if not replace:
        return "must not be there already", "Choose another name, or use --force to replace it."
    if folder and any(out.iterdir()) and not (out / MARK).is_file():
        return "holds something else than an export", "Choose another name."
    return "", ""


def _written(out: Path, fill: Callable[[Path], Sequence[str]]) -> Sequence[str]:
    """Let ``fill`` write beside ``out``, then rename it; what was there stays until then."""
    with room_for(out, out.parent) as room:
        draft = Path(room) / out.name
        said = fill(draft)
        take_place(draft, out)
    return said
