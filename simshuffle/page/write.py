"""Writing the report page: whole or not at all, and over nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from html import unescape
from pathlib import Path

from simshuffle.errors import InputError, Problem
from simshuffle.page.document import GENERATOR, RESULTS, Named, document, identity
from simshuffle.results.folders import room_for, take_place
from simshuffle.study.registry import read_folder

LONGEST_NAME = 100
_HEAD_BYTES = 8192
_IDENTITY = re.compile(f'<meta name="{RESULTS}" content="([^"]*)">')


def write_page(folders: Sequence[Path], out: Path | None = None, force: bool = False) -> Path:
    """Write the page of the results in ``folders``; returns its path.

    Args:
        folders: result folders, one or more.
        out: the page; None for NAME-report.html in the working directory, after the folders.
        force: replace a file that is no page of the same results.

    Raises:
        InputError: a folder holds no result or a damaged one, or ``out`` is in the way.
    """
    path = Path(default_name(folders)) if out is None else out
    _check_place(path, folders)
    results = [Named(_name(folder), folder, read_folder(folder)) for folder in folders]
    _check_file(path, results, force)
    text = document(results)
    _check_file(path, results, force)  # it took a while
    with room_for(path, path.parent) as room:
        draft = Path(room) / "page.html"
        draft.write_text(text, encoding="utf-8")
        take_place(draft, path)
    return path


def _name(folder: Path) -> str:
    return folder.resolve().name or "result"


def default_name(folders: Sequence[Path]) -> str:
    """Of the page of these results."""
    return f"{'-'.join(map(_name, folders))[:LONGEST_NAME]}-report.html"


def _check_place(path: Path, folders: Sequence[Path]) -> None:
    """See that there may be a page, before anything is read."""
    rule = remedy = ""
    if path.is_dir():
        rule, remedy = "is a folder", "Name a file, such as report.html."
    elif not path.parent.is_dir():
        rule, remedy = "is in a folder that is not there", "Make the folder, or name another."
    elif any(path.resolve().is_relative_to(folder.resolve()) for folder in folders):
        rule, remedy = (
            "is in a result folder, which holds the result alone",
            "Name a place beside it.",
        )
    if rule:
        raise InputError(Problem("--out", rule, str(path), remedy), "report page")


def _check_file(path: Path, results: Sequence[Named], force: bool) -> None:
    """See that what is there may be replaced: a page of the same results, or anything if that is
    asked for."""
    if force or not os.path.lexists(path):
        return
    head = ""
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(_HEAD_BYTES)
    found = _IDENTITY.search(head)
    if f'content="{GENERATOR} ' not in head or found is None:
        rule = "is there, and is no report page"
    elif unescape(found[1]) != identity(results):
        rule = "is there, and is the page of other results"
    else:
        return
    remedy = "Name another file, or use --force to replace it."
    raise InputError(Problem("--out", rule, str(path), remedy), "report page")
