"""Text files that are written as a whole or not at all, compressed if their name ends
in .gz.
"""

from __future__ import annotations

import gzip
import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from simshuffle.errors import InputError, Problem


def check_target(path: Path, source: Path | None = None, option: str = "--out") -> None:
    """Check that ``path``, which ``option`` names, may be written: a new file, or an
    ordinary one that is not ``source`` and is then replaced.

    Nothing is written. Permissions are not checked, nor folders that do not exist.

    Raises:
        InputError: it is a folder, no ordinary file, the file ``source``, or no path.
    """
    rule = remedy = ""
    try:
        if path.is_dir():
            rule = "is a folder"
            remedy = "Name a file in it."
        elif path.exists() and not path.is_file():
            rule = "is not an ordinary file"
            remedy = f"Name another, or leave {option} away."
        elif source is not None and path.exists() and path.samefile(source):
            rule = "is the case itself"
            remedy = "Name another file."
    except (OSError, ValueError) as error:
        rule = f"cannot be a path: {error}"
        remedy = "Name another file."
    if rule:
        raise InputError(Problem(option, rule, repr(str(path)), remedy), "command line")


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """Open a text file to write to, which takes the place of ``path`` when the whole
    text has been written without an error.

    After an error ``path`` is as it was. Folders above it are made. A link to a file
    stays, and what it leads to is replaced: the name of that file says whether it is
    compressed. The new file has the permissions of new files, not those of the old one.
    The text is UTF-8 with line ends as written. Equal texts give equal bytes,
    compressed or not.
    """
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    # a folder, so that the file in it gets the permissions that the user has chosen for new files
    folder = Path(
        tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name[:200]}.part-")
    )
    try:
        draft = folder / "draft"
        with draft.open("wb") as raw:
            if target.suffix == ".gz":
                with (
                    gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
                    io.TextIOWrapper(packed, "utf-8", newline="\n") as text,
                ):
                    yield text
            else:
                with io.TextIOWrapper(raw, "utf-8", newline="\n") as text:
                    yield text
        draft.replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
