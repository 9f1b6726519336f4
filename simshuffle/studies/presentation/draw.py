"""A request for a figure, and how it is met: read the results, draw them in a style and
write them in one of four formats, or show them as a table.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends import backend_mixed, backend_pdf, backend_pgf
from matplotlib.figure import Figure
from rich.table import Table

from simshuffle.errors import InputError, Problem
from simshuffle.report import paper
from simshuffle.report.canvas import NO_LAYOUT
from simshuffle.report.console import latex
from simshuffle.report.folders import room_for
from simshuffle.report.style import (
    SIGNATURE_START,
    STYLE,
    STYLES,
    in_style,
    metadata,
    sign_figure,
)
from simshuffle.report.table_io import plain_rows
from simshuffle.studies.presentation import KINDS
from simshuffle.studies.presentation.catalogue import (
    check_results,
    find_kind,
    format_table,
)
from simshuffle.studies.presentation.named_results import NamedResult
from simshuffle.study.registry import read_folder


@dataclass(frozen=True)
class FigureRequest:
    """A figure that a user asks for.

    Raises:
        InputError: there is no such kind of figure.
    """

    kind: str  # a name of `KINDS`
    folders: Sequence[Path] = ()  # of the results
    style: str = "ieee"  # a name of `STYLES`
    columns: int = 1  # or 2
    format: str | None = None  # 'pdf', 'svg', 'png' or 'pgf'; None for that of ``out``
    out: Path | None = None  # the file; None for one that is called after the kind
    force: bool = False  # replace whatever is there

    def __post_init__(self) -> None:
        """Refuse a kind of figure that there is not."""
        find_kind(self.kind)

    def read(self) -> list[NamedResult]:
        """Return the results, in order, with names that tell their folders apart.

        Their ``folder`` is not set.

        Raises:
            InputError: one cannot be read, is given twice, or is none that the figure
                takes; or there are none, or too many.
        """
        resolved_folders = [folder.resolve() for folder in self.folders]
        if repeated := [
            folder for folder in resolved_folders if resolved_folders.count(folder) > 1
        ]:
            raise InputError(
                Problem("RESULT", "is given twice", str(repeated[0])), "command line"
            )
        names = _shortest_distinct_names(resolved_folders)
        results = [
            NamedResult(name, read_folder(folder))
            for name, folder in zip(names, self.folders, strict=True)
        ]
        check_results(self.kind, results)
        return results


def _shortest_distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return the ends of the paths, with as few parts as make all ends distinct.

    If no ends are, whole paths.
    """
    deepest = max((len(folder.parts) for folder in folders), default=1)
    for count in range(1, deepest + 1):
        names = ["/".join(folder.parts[-count:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def find_target(request: FigureRequest) -> Path:
    """Return the path of the figure's file, and check that it can be written.

    It is ``out``, else KIND.FORMAT in the working directory, as .pdf by default.

    Raises:
        InputError: its suffix is not that of the format, or `check_file` refuses it.
    """
    path = request.out or Path(f"{request.kind}.{request.format or 'pdf'}")
    if request.format and path.suffix != f".{request.format}":
        rule = f"must end in .{request.format}"
        remedy = "Leave out --format or --out."
        raise InputError(Problem("--out", rule, str(path), remedy), "command line")
    check_file(path, force=request.force)
    return path


def draw_figure(
    request: FigureRequest, results: Sequence[NamedResult], path: Path
) -> str:
    """Draw the figure, write it to ``path``, and return its caption's first sentence,
    with the answer of the verdict if the figure is one that the result itself has.

    What is at ``path`` is replaced, without the check of `find_target`.

    Raises:
        InputError: the results have nothing for it, or TeX cannot measure its texts.
    """
    style = STYLES[request.style]
    signature = sign_figure(
        request.kind,
        [named_result.result.meta["fingerprint"] for named_result in results],
    )
    with in_style(style, request.columns):
        chart = find_kind(request.kind).chart(results)
        write(paper.draw(chart), path, signature, style.enlarged)
    caption = chart.caption.partition(". ")[0].rstrip(".") + "."
    answers = [
        line
        for named_result in results
        if request.kind in named_result.result.study.figures(named_result.result)
        for line in named_result.result.structured_verdict().answer
    ]
    return " ".join([caption, *answers]) if len(results) == 1 else caption


def describe_figure(
    request: FigureRequest, results: Sequence[NamedResult]
) -> list[str | Table]:
    """Return the table under the figure, then the sentences beside it.

    Raises:
        InputError: the results have nothing for it.
    """
    kind = find_kind(request.kind)
    title = KINDS[request.kind].partition(";")[0].rstrip(".")
    return [format_table(title, kind.table(results)), *kind.notes(results)]


def plain_rows_of_figure(
    request: FigureRequest, results: Sequence[NamedResult]
) -> list[dict[Any, Any]]:
    """Return rows of the table under the figure, as values by column; None if empty.

    Raises:
        InputError: the results have nothing for it.
    """
    return plain_rows(find_kind(request.kind).table(results))


DPI = 300
"""Pixels an inch of a .png, and of pictures inside other formats, as drawn."""
HEADS = {
    ".png": b"\x89PNG",
    ".pdf": b"%PDF",
    ".svg": b"<?xml",
    ".pgf": f"% {SIGNATURE_START} ".encode(),
}
"""First bytes of a file, by format."""
_SIGNATURE = re.compile(rf"{SIGNATURE_START} \S+, figure [a-z]".encode())
_PDF: Any = backend_pdf
_PGF: Any = backend_pgf.RendererPgf
_MIXED: Any = backend_mixed.MixedModeRenderer
TEX = ("xelatex", "lualatex", "pdflatex")
"""Programs that measure the texts of a .pgf, those first that know most letters."""


def check_file(path: Path, *, force: bool) -> None:
    """Check that a figure can be written to ``path``; ours may be replaced.

    Raises:
        InputError: it ends in no format, its folder is not there, a folder or a link is
            there, something else than a figure of simshuffle is there and ``force`` is
            False, or a .pgf is wanted where there is no TeX.
    """
    remedy = ""
    if path.suffix not in HEADS:
        rule = f"must end in {', '.join(HEADS)}"
        remedy = "Name a file such as figure.pdf."
    elif not path.parent.is_dir():
        rule = "must be in a folder that exists"
        remedy = f"Make {path.parent}."
    elif path.is_dir() or path.is_symlink():
        rule = "is a folder or a link"
        remedy = "Name a file."
    elif path.exists() and not force and not is_drawn_here(path):
        rule = "exists, and is not a figure of simshuffle"
        remedy = "Name another file, or use --force to replace it."
    elif path.suffix == ".pgf" and _find_tex() is None:
        rule = f"needs {', '.join(TEX[:-1])} or {TEX[-1]} to measure its texts"
        remedy = "Install TeX, or use --format pdf."
    else:
        return
    raise InputError(Problem("--out", rule, str(path)[:100], remedy), "command line")


def is_drawn_here(path: Path) -> bool:
    """Return whether a file is a figure that says that simshuffle drew it.

    False also if it cannot be read, or is of another format than its suffix, one of
    `HEADS`.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return (
        content.startswith(HEADS[path.suffix])
        and _SIGNATURE.search(content) is not None
    )


def _find_tex() -> str | None:
    """Return the first program of `TEX` that is installed; None if none is."""
    return next(filter(shutil.which, TEX), None)


def write(figure: Figure, path: Path, signature: str, enlargement: float = 1.0) -> None:
    """Write a figure, whole or not at all, ``enlargement`` times as large as drawn.

    Letters and lines are enlarged, too. The file holds ``signature``, and replaces the
    one at ``path``. The same figure gives the same bytes. A .pgf with pictures in it
    has them as files beside it, as matplotlib writes them. For .pdf and .pgf the layout
    of ``figure`` is frozen in place.

    Raises:
        InputError: TeX cannot measure the texts of a .pgf.
    """
    style = {**STYLE, **NO_LAYOUT}
    with room_for(path, path.parent) as folder, matplotlib.rc_context(style):
        draft = Path(folder, path.name)
        _WRITERS[path.suffix](figure, draft, signature, enlargement)
        for file in sorted(Path(folder).iterdir(), key=lambda file: file == draft):
            file.replace(path.parent / file.name)


def _write_png(figure: Figure, path: Path, signature: str, enlargement: float) -> None:
    """Write a .png of `DPI`, ``enlargement`` times as large as drawn."""
    pil = {"dpi": (DPI, DPI)}
    figure.savefig(
        path,
        dpi=DPI * enlargement,
        metadata=metadata(".png", signature),
        pil_kwargs=pil,
    )


def _write_svg(figure: Figure, path: Path, signature: str, enlargement: float) -> None:
    """Write a .svg as matplotlib does; ``enlargement`` multiplies width and height.

    What is drawn in it keeps its coordinates, and scales along.
    """
    figure.savefig(path, dpi=DPI * enlargement, metadata=metadata(".svg", signature))

    def enlarge(size: re.Match[str]) -> str:
        """Return width or height, in pt, enlarged."""
        return f'{size[1]}="{float(size[2]) * enlargement:.6g}pt"'

    head, tag, after_tag = path.read_text(encoding="utf-8").partition("<svg ")
    opening, bracket, body = after_tag.partition(">")
    opening = re.sub(r'(width|height)="([\d.]+)pt"', enlarge, opening)
    path.write_text(f"{head}{tag}{opening}{bracket}{body}", encoding="utf-8")


def _write_pdf(figure: Figure, path: Path, signature: str, enlargement: float) -> None:
    """Write a .pdf as matplotlib does, on a page ``enlargement`` times as large.

    The layout of ``figure`` is frozen in place.
    """
    _freeze_layout(figure)
    dpi = figure.dpi
    figure.dpi = 72
    try:
        width, height = figure.get_size_inches()
        file = _PDF.PdfFile(path, metadata=metadata(".pdf", signature))
        try:
            file.newPage(width * enlargement, height * enlargement)
            if enlargement != 1.0:
                file.output(enlargement, 0, 0, enlargement, 0, 0, _PDF.Op.concat_matrix)
            vectors = _PDF.RendererPdf(file, DPI * enlargement, height, width)
            renderer = _MIXED(figure, width, height, DPI * enlargement, vectors)
            figure.draw(renderer)
            renderer.finalize()
            file.finalize()
        finally:
            file.close()
    finally:
        figure.dpi = dpi


class _EscapingRenderer(_PGF):  # type: ignore[misc]
    """A renderer that writes texts as they are; matplotlib's takes them for LaTeX."""

    def draw_text(
        self,
        gc: Any,
        x: float,
        y: float,
        s: str,
        *arguments: Any,
        ismath: Any = False,
        **options: Any,
    ) -> None:
        """Draw a text whose special letters are escaped, unless it is mathematics."""
        text = s if ismath else latex(s)
        super().draw_text(gc, x, y, text, *arguments, ismath=ismath, **options)

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> Any:
        """Measure the text as `draw_text` writes it, in pixels."""
        return super().get_text_width_height_descent(
            s if ismath else latex(s), prop, ismath
        )


def _write_pgf(figure: Figure, path: Path, signature: str, enlargement: float) -> None:
    """Write a .pgf with the letters of the text around it, at the style's sizes.

    The layout of ``figure`` is frozen in place.

    Raises:
        InputError: TeX cannot measure the texts.
    """
    _freeze_layout(figure)
    width, height = figure.get_size_inches()
    tex: Any = {"pgf.texsystem": _find_tex(), "pgf.rcfonts": False}
    with matplotlib.rc_context(tex), path.open("w", encoding="utf-8") as file:
        file.write(
            f"% {signature}\n% needs \\usepackage{{pgf}}\n\\begingroup\\makeatletter%\n"
        )
        file.write(
            f"\\scalebox{{{enlargement:.6f}}}{{%\n" if enlargement != 1.0 else ""
        )
        file.write("\\begin{pgfpicture}%\n\\pgfpathrectangle{\\pgfpointorigin}")
        file.write(f"{{\\pgfqpoint{{{width:.6f}in}}{{{height:.6f}in}}}}%\n")
        file.write("\\pgfusepath{use as bounding box, clip}%\n")
        dpi = DPI * enlargement
        renderer = _MIXED(figure, width, height, dpi, _EscapingRenderer(figure, file))
        try:
            figure.draw(renderer)
        except (backend_pgf.LatexError, RuntimeError) as error:
            rule = f"needs texts that {_find_tex()} can measure: {str(error).splitlines()[0]}"
            remedy = "Repair the installation of TeX, or use --format pdf."
            problem = Problem("--format", rule, "pgf", remedy)
            raise InputError(problem, "command line") from None
        file.write("\\end{pgfpicture}%\n" + ("}%\n" if enlargement != 1.0 else ""))
        file.write("\\makeatother\\endgroup%\n")


def _freeze_layout(figure: Figure) -> None:
    """Lay the figure out once and keep that layout, in place.

    Another renderer then moves nothing.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


_WRITERS = {
    ".png": _write_png,
    ".svg": _write_svg,
    ".pdf": _write_pdf,
    ".pgf": _write_pgf,
}
