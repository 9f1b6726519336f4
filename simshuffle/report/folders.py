"""Result folders: where one may be written, and how it is written completely or not at
all.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError, Problem

INPUTS = "inputs"
"""The folder in a result folder with the files that its documents name."""

# files that any result may have beside tables and figures
_DOCUMENTS = {
    *("meta.json", "columns.json", "scenario.yaml", "study.yaml", "calibration.yaml"),
    *("report.txt", "sealed.json", ".lock"),
}
_TABLES = {
    *(
        "timeline.parquet",
        "links.parquet",
        "sources.csv",
        "epochs.csv",
        "breakdown.csv",
    ),
    "summary.csv",
}
"""Of results whose columns.json does not name them."""
_PART_FOLDERS = {"runs", "plans", "timelines", "extractions", "models"}
"""Folders in a result, of files with the suffixes `_PART_SUFFIXES`."""
_PART_SUFFIXES = {".json", ".parquet", ".npz", ".yaml"}
_INPUT = re.compile(r"[0-9a-f]{16}(\.[^.]*)?")  # names of the files in `INPUTS`


def check_place(
    folder: Path, *, replace: bool, known_names: Collection[str] = ()
) -> None:
    """Check that a result can be written to ``folder``: a new or empty folder, or with
    ``replace`` one that holds a result and nothing else.

    A folder is made next to ``folder``, or in its nearest parent that exists, and
    removed.

    Args:
        known_names: files and folders in it beside those that every result may have.

    Raises:
        InputError: no result can be written there; the error names ``--out``.
    """
    try:
        rule, remedy = (
            _find_obstacle(folder, replace, known_names)
            or _find_unwritable(folder)
            or ("", "")
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        rule = f"cannot be written: {reason}"
        remedy = "Name a folder that can be written."
    if rule:
        raise InputError(
            Problem("--out", rule, shorten_text(str(folder)), remedy), "result folder"
        )


def _find_obstacle(
    folder: Path, replace: bool, known_names: Collection[str]
) -> tuple[str, str] | None:
    """Return rule and remedy if something is in the way at ``folder``; None if nothing
    is.

    In the way are files, the working directory and folders around it, mounts, folders
    without ``meta.json`` of a result, foreign files, and without ``replace`` a result.
    """
    is_folder = folder.is_dir()
    if not is_folder and os.path.lexists(folder):
        return "is not a folder", "Name a folder."
    if Path.cwd().is_relative_to(os.path.realpath(folder)):
        return (
            "must not be the working directory or a folder around it",
            "Name a folder in it.",
        )
    if is_folder and folder.is_mount():
        return "must not be where a file system begins", "Name a folder in it."
    if not is_folder or not any(folder.iterdir()):
        return None
    # the ``meta.json`` of a result has its kind, or a fingerprint
    kind, fingerprint = (
        meta_of(folder).get(name, "") for name in ("kind", "fingerprint")
    )
    if not isinstance(kind, str) or not (
        kind or re.fullmatch("[0-9a-f]{12}", str(fingerprint))
    ):
        return "holds something else than a result", "Name a new folder."
    if foreign := _foreign_files(folder, known_names):
        first_names = ", ".join(foreign[:3])
        return (
            f"holds something else than a result: {shorten_text(first_names)}",
            "Move these files, or name another folder.",
        )
    if not replace:
        return (
            "holds another result",
            "Name another folder, or use --force to replace it.",
        )
    return None


def _foreign_files(folder: Path, known_names: Collection[str]) -> list[str]:
    """Return the names in ``folder`` that no result has, in order.

    They are files that neither ``columns.json`` nor this module names, figures without
    their twin (each has a .png and a .pdf), links, and folders with other files than a
    result's. ``known_names``, and drafts of a process that was killed, are left out.
    """
    try:
        columns = json.loads((folder / "columns.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        columns = {}
    possible_names = (
        _DOCUMENTS | _TABLES | set(columns if isinstance(columns, dict) else ())
    )
    names = {path.name for path in folder.iterdir()}

    def is_ours(path: Path) -> bool:
        """Return whether a result may have the file or folder."""
        twin = {".png": ".pdf", ".pdf": ".png"}.get(path.suffix)
        if path.is_symlink():
            return False
        if (
            path.name.startswith(".") and ".part-" in path.name
        ):  # of a process that was killed
            return True
        if not path.is_dir():
            drawn = twin is not None and path.with_suffix(twin).name in names
            return drawn or path.name in possible_names or path.name in known_names
        if path.name == INPUTS:
            return all(_INPUT.fullmatch(part.name) for part in path.iterdir())
        parts = list(path.rglob("*"))
        if any(part.is_symlink() for part in parts):
            return False
        kinds = {
            part.suffix for part in parts if not part.is_dir() and part.name != ".lock"
        }
        return path.name in known_names or (
            path.name in _PART_FOLDERS and kinds <= _PART_SUFFIXES
        )

    return sorted(path.name for path in folder.iterdir() if not is_ours(path))


def _find_unwritable(folder: Path) -> tuple[str, str] | None:
    """Return rule and remedy if `write_folder` could not make ``folder``; None if it
    could.

    A folder is made beside it and removed, because permissions alone do not tell: of
    root, of other file systems, of long names.

    Raises:
        OSError: the folder beside it cannot be made.
    """
    parent = folder.parent
    while not parent.exists():
        if os.path.lexists(parent):
            return (
                f"is below {shorten_text(str(parent))}, a link to nothing",
                "Name another folder.",
            )
        parent = parent.parent
    if not parent.is_dir():
        return (
            f"is below {shorten_text(str(parent))}, which is a file",
            "Name another folder.",
        )
    longest = os.pathconf(parent, "PC_NAME_MAX")
    if any(len(os.fsencode(part)) > longest for part in folder.parts):
        return f"has a name of more than {longest} bytes", "Name a shorter one."
    with room_for(folder, parent):
        return None


def room_for(path: Path, parent: Path) -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder in ``parent`` for a draft of the file or folder ``path``.

    The folder is removed with all that is in it when its context ends; errors of the
    removal are ignored.
    """
    # the first characters only: the whole name may be as long as names can be
    return tempfile.TemporaryDirectory(
        dir=parent, prefix=f".{path.name[:40]}.part-", ignore_cleanup_errors=True
    )


def take_place(draft: Path, path: Path) -> None:
    """Rename ``draft``, a file or folder in a folder of `room_for`, to ``path``. A file
    or folder at ``path`` stays until then, and comes back if the renaming fails.

    An older folder is moved beside ``draft``, and removed with the folder of
    `room_for`.
    """
    if not path.is_dir():
        draft.replace(path)
        return
    # a folder cannot be renamed onto one that is not empty
    old = Path(tempfile.mkdtemp(dir=draft.parent)) / "old"
    path.rename(old)
    try:
        draft.rename(path)
    except BaseException:
        old.rename(path)
        raise


def shorten_text(text: str) -> str:
    """Return a text with at most 100 letters; dots stand for the others."""
    return text if len(text) <= 100 else f"{text[:97]}..."


def write_folder(
    folder: Path,
    fill: Callable[[Path], object],
    *,
    replace: bool = False,
    known_names: Collection[str] = (),
) -> Path:
    """Write a folder completely or not at all, and return it.

    ``fill`` writes into a temporary folder beside it, which is then renamed. An older
    folder stays until the new one is complete, and comes back if the renaming fails.
    Parents of ``folder`` that do not exist are made. Without ``replace``, a folder with
    a result is refused; ``known_names`` are as in `check_place`.

    Raises:
        InputError: no result can be written there, as `check_place` finds before
            ``fill`` is called. Errors of ``fill`` pass through.
    """
    check_place(folder, replace=replace, known_names=known_names)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with room_for(folder, folder.parent) as temporary:
        draft = Path(temporary) / "new"
        draft.mkdir()
        fill(draft)
        take_place(draft, folder)
    return folder


def meta_of(folder: Path) -> dict[str, Any]:
    """Return the values in ``meta.json`` of ``folder``.

    {} if the file is missing, cannot be read or is no mapping.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return meta if isinstance(meta, dict) else {}
