"""Files that are written whole or not at all, and where they may be."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from simshuffle.errors import InputError, Problem

NAME_RULE = "must be letters, digits, '.', '_' and '-'"


def is_name(text: str) -> bool:
    """Whether something may be called so."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", text) is not None


def check_place(
    stem: Path, *, replace: bool, option: str = "--out", ends: Iterable[str] = ("",)
) -> None:
    """See that the files ``stem`` with each of ``ends`` can be written; ``option`` says the name.
    Raises an InputError if they cannot."""
    problems = []
    if not is_name(stem.name):
        problems = [Problem(option, NAME_RULE, repr(stem.name), "For example mycluster.")]
    elif not stem.parent.is_dir():
        rule = "must be in a folder that is there"
        problems = [Problem(option, rule, str(stem), "Make the folder.")]
    else:
        for path in (stem.parent / f"{stem.name}{end}" for end in ends):
            if path.is_dir():
                rule = "must not be that of a folder"
                problems.append(Problem(option, rule, str(path), "Choose another name."))
            elif os.path.lexists(path) and not replace:
                remedy = "Choose another name, or use --force to replace it."
                problems.append(Problem(option, "must not be there already", str(path), remedy))
    if problems:
        raise InputError(problems, "new files")


def write_together(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write files of a folder, by their names, all whole or none, and return their paths; what is
    there is replaced."""
    import tempfile

    written: list[Path] = []
    with tempfile.TemporaryDirectory(
        dir=folder, prefix=f".{next(iter(texts))[:40]}.part-", ignore_cleanup_errors=True
    ) as room:
        for name, text in texts.items():
            Path(room, name).write_text(text, encoding="utf-8")
        try:
            for name in texts:
                place = folder / name
                if os.path.lexists(place):
                    place.rename(Path(room, f"old-{name}"))
                written.append(place)
                Path(room, name).rename(place)
        except BaseException:
            for place in written:
                place.unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    Path(room, f"old-{place.name}").rename(place)
            raise
    return written
