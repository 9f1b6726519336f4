"""What is asked of a figure, and how it is met: results are read, drawn in a style and written, or
shown as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from simshuffle.errors import InputError, Problem
from simshuffle.figures import KINDS
from simshuffle.figures.catalogue import check_results, kind_named
from simshuffle.figures.kinds import Given
from simshuffle.figures.table import table_of
from simshuffle.results.console import captioned
from simshuffle.results.style import STYLES, in_style, signed
from simshuffle.results.table_io import rows
from simshuffle.study.registry import read_folder


@dataclass(frozen=True)
class Wish:
    """What is asked.

    Attributes:
        kind: a name of `KINDS`.
        folders: of the results.
        style: a name of `simshuffle.results.style.STYLES`.
        columns: 1 or 2.
        format: 'pdf', 'svg', 'png' or 'pgf'; None for that of ``out``.
        out: the file; None for one that is called after the kind.
        force: replace whatever is there.

    Raises:
        InputError: there is no such kind.
    """

    kind: str
    folders: Sequence[Path] = ()
    style: str = "ieee"
    columns: int = 1
    format: str | None = None
    out: Path | None = None
    force: bool = False

    def __post_init__(self) -> None:
        kind_named(self.kind)

    def read(self) -> list[Given]:
        """The results, by names that tell their folders apart.

        Raises:
            InputError: one cannot be read, is given twice, or is none that the figure takes.
        """
        whole = [folder.resolve() for folder in self.folders]
        if len(set(whole)) < len(whole):
            raise InputError(
                Problem("RESULT", "is given twice", str(_twice(whole))), "command line"
            )
        names = _names(whole)
        given = [Given(n, read_folder(f)) for n, f in zip(names, self.folders, strict=True)]
        check_results(self.kind, given)
        return given


def _twice(folders: Sequence[Path]) -> Path:
    return next(folder for folder in folders if list(folders).count(folder) > 1)


def _names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as tell them apart."""
    deepest = max((len(folder.parts) for folder in folders), default=1)
    for count in range(1, deepest + 1):
        names = ["/".join(folder.parts[-count:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def target(wish: Wish) -> Path:
    """The file of the figure, which can be written.

    Raises:
        InputError: it cannot, or its suffix is not that of the format.
    """
    from simshuffle.figures.files import check_file  # noqa: PLC0415 - matplotlib

    path = wish.out or Path(f"{wish.kind}.{wish.format or 'pdf'}")
    if wish.format and path.suffix != f".{wish.format}":
        rule, remedy = f"must end in .{wish.format}", "Leave --format or --out out."
        raise InputError(Problem("--out", rule, str(path), remedy), "command line")
    check_file(path, force=wish.force)
    return path


def drawn(wish: Wish, given: Sequence[Given], path: Path) -> None:
    """Draw the figure and write it to ``path``, from `target`.

    Raises:
        InputError: the results have nothing for it.
    """
    from simshuffle.figures.files import write  # noqa: PLC0415 - matplotlib
    from simshuffle.results import paper  # noqa: PLC0415 - matplotlib

    style = STYLES[wish.style]
    about = signed(wish.kind, [of.result.meta["fingerprint"] for of in given])
    with in_style(style, wish.columns):
        write(paper.draw(kind_named(wish.kind).chart(given)), path, about, style.enlarged)


def parts_of(wish: Wish, given: Sequence[Given]) -> list[str | Table]:
    """The table under the figure, and what has to be said beside it."""
    kind = kind_named(wish.kind)
    title = KINDS[wish.kind].partition(";")[0].rstrip(".")
    return captioned([table_of(title, kind.table(given)), *kind.notes(given)], verdict(given))


def verdict(given: Sequence[Given]) -> list[str]:
    """That of the result; of several there is none."""
    return given[0].result.verdict() if len(given) == 1 else []


def rows_of(wish: Wish, given: Sequence[Given]) -> list[dict[Any, Any]]:
    """The same as plain values, a row each; what is empty is None."""
    return rows(kind_named(wish.kind).table(given))
