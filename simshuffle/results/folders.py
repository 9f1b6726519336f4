"""Result folders: where one may be written, and how it is written whole or not at all."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError, Problem


def check_place(folder: Path, *, replace: bool) -> None:
    """See that a result may be written to ``folder``: a new or empty one, or with ``replace`` one
    that holds a result.

    Raises:
        InputError: it may not.
    """
    rule = ""
    if folder.exists() and not folder.is_dir():
        rule, remedy = "is not a folder", "Name a folder."
    elif Path.cwd().is_relative_to(folder.resolve()):
        rule, remedy = "must not be the working directory or one around it", "Name a folder in it."
    elif folder.exists() and any(folder.iterdir()):
        if not (folder / "meta.json").is_file():
            rule, remedy = "holds something else than a result", "Name a new folder."
        elif not replace:
            rule, remedy = (
                "holds another result",
                "Name another folder, or use --force to replace it.",
            )
    if rule:
        raise InputError(Problem("--out", rule, str(folder), remedy), "result folder")


def write_folder(folder: Path, fill: Callable[[Path], object], *, replace: bool = False) -> Path:
    """Let ``fill`` write into a temporary folder beside ``folder``, then rename it; returns
    ``folder``.

    What was in ``folder`` stays until the new one is complete, and comes back if the renaming
    fails.

    Raises:
        InputError: as `check_place`.
    """
    check_place(folder, replace=replace)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=f".{folder.name}.part-", ignore_cleanup_errors=True
    ) as room:
        draft, old = Path(room) / "new", Path(room) / "old"
        draft.mkdir()
        fill(draft)
        if folder.exists():
            folder.rename(old)
        try:
            draft.rename(folder)
        except BaseException:
            if old.exists():
                old.rename(folder)
            raise
    return folder


def meta_of(folder: Path) -> dict[str, Any]:
    """What ``meta.json`` in ``folder`` says; nothing if it cannot be read."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}
