"""What is asked of a figure, and how it is met: results are read, drawn in a style and written in
one of four formats, or shown as a table."""

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
from simshuffle.report.style import SIGNED, STYLE, STYLES, in_style, metadata, sign_figure
from simshuffle.report.table_io import plain_rows
from simshuffle.studies.presentation import KINDS
from simshuffle.studies.presentation.catalogue import check_results, kind_named, table_of
from simshuffle.studies.presentation.of_runs import Given
from simshuffle.study.registry import read_folder


@dataclass(frozen=True)
class Wish:
    """What is asked. Raises an InputError if there is no such kind."""

    kind: str  # a name of `KINDS`
    folders: Sequence[Path] = ()  # of the results
    style: str = "ieee"  # a name of `STYLES`
    columns: int = 1  # or 2
    format: str | None = None  # 'pdf', 'svg', 'png' or 'pgf'; None for that of ``out``
    out: Path | None = None  # the file; None for one that is called after the kind
    force: bool = False  # replace whatever is there

    def __post_init__(self) -> None:
        kind_named(self.kind)

    def read(self) -> list[Given]:
        """The results, by names that tell their folders apart.

        Raises:
            InputError: one cannot be read, is given twice, or is none that the figure takes.
        """
        whole = [folder.resolve() for folder in self.folders]
        if twice := [folder for folder in whole if whole.count(folder) > 1]:
            raise InputError(Problem("RESULT", "is given twice", str(twice[0])), "command line")
        names = _names(whole)
        given = [Given(n, read_folder(f)) for n, f in zip(names, self.folders, strict=True)]
        check_results(self.kind, given)
        return given


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
    path = wish.out or Path(f"{wish.kind}.{wish.format or 'pdf'}")
    if wish.format and path.suffix != f".{wish.format}":
        rule, remedy = f"must end in .{wish.format}", "Leave --format or --out out."
        raise InputError(Problem("--out", rule, str(path), remedy), "command line")
    check_file(path, force=wish.force)
    return path


def drawn(wish: Wish, given: Sequence[Given], path: Path) -> str:
    """Draw the figure, write it to ``path``, from `target`, and return its caption: a sentence on
    what is drawn.

    Raises:
        InputError: the results have nothing for it.
    """
    style = STYLES[wish.style]
    about = sign_figure(wish.kind, [of.result.meta["fingerprint"] for of in given])
    with in_style(style, wish.columns):
        chart = kind_named(wish.kind).chart(given)
        write(paper.draw(chart), path, about, style.enlarged)
    return chart.caption.partition(". ")[0].rstrip(".") + "."


def parts_of(wish: Wish, given: Sequence[Given]) -> list[str | Table]:
    """The table under the figure, and what has to be said beside it."""
    kind = kind_named(wish.kind)
    title = KINDS[wish.kind].partition(";")[0].rstrip(".")
    return [table_of(title, kind.table(given)), *kind.notes(given)]


def rows_of(wish: Wish, given: Sequence[Given]) -> list[dict[Any, Any]]:
    """The same as plain values, a row each; what is empty is None."""
    return plain_rows(kind_named(wish.kind).table(given))


DPI = 300
HEADS = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml", ".pgf": f"% {SIGNED} ".encode()}
"""How a file of each format begins."""
_SIGNATURE = re.compile(rf"{SIGNED} \S+, figure [a-z]".encode())
_PDF: Any = backend_pdf
_PGF: Any = backend_pgf.RendererPgf
_MIXED: Any = backend_mixed.MixedModeRenderer
TEX = ("xelatex", "lualatex", "pdflatex")
"""Programs that measure the texts of a .pgf, those first that know most letters."""


def check_file(path: Path, *, force: bool) -> None:
    """See that a figure can be written to ``path``.

    Raises:
        InputError: it ends in no format, its folder is not there, something else than a figure of
            simshuffle is there and ``force`` is False, or a .pgf is wanted where there is no TeX.
    """
    remedy = ""
    if path.suffix not in HEADS:
        rule, remedy = f"must end in {', '.join(HEADS)}", "Say figure.pdf."
    elif not path.parent.is_dir():
        rule, remedy = "needs a folder that is there", f"Make {path.parent}."
    elif path.is_dir() or path.is_symlink():
        rule, remedy = "is a folder or a link", "Name a file."
    elif path.exists() and not force and not is_ours(path):
        rule = "is there, and no figure of simshuffle"
        remedy = "Name another file, or use --force to replace it."
    elif path.suffix == ".pgf" and _tex() is None:
        rule = f"needs {', '.join(TEX[:-1])} or {TEX[-1]} to measure its texts"
        remedy = "Install TeX, or say --format pdf."
    else:
        return
    raise InputError(Problem("--out", rule, str(path)[:100], remedy), "command line")


def is_ours(path: Path) -> bool:
    """Whether a file is a figure in the format of its suffix that says that simshuffle drew it."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return content.startswith(HEADS[path.suffix]) and _SIGNATURE.search(content) is not None


def _tex() -> str | None:
    return next(filter(shutil.which, TEX), None)


def write(figure: Figure, path: Path, about: str, enlarged: float = 1.0) -> None:
    """Write a figure, whole or not at all, ``enlarged`` so many times over what was drawn, letters
    and lines with it; the file says ``about`` of itself. The same bytes for the same figure.

    A .pgf with pictures in it has them as files beside it, as matplotlib writes them.
    """
    style = {**STYLE, **NO_LAYOUT}
    with room_for(path, path.parent) as folder, matplotlib.rc_context(style):
        draft = Path(folder, path.name)
        _WRITERS[path.suffix](figure, draft, about, enlarged)
        for part in sorted(Path(folder).iterdir(), key=lambda part: part == draft):
            part.replace(path.parent / part.name)


def _png(figure: Figure, path: Path, about: str, enlarged: float) -> None:
    pil = {"dpi": (DPI, DPI)}
    figure.savefig(path, dpi=DPI * enlarged, metadata=metadata(".png", about), pil_kwargs=pil)


def _svg(figure: Figure, path: Path, about: str, enlarged: float) -> None:
    figure.savefig(path, dpi=DPI * enlarged, metadata=metadata(".svg", about))

    def larger(size: re.Match[str]) -> str:
        return f'{size[1]}="{float(size[2]) * enlarged:.6g}pt"'

    head, tag, rest = path.read_text(encoding="utf-8").partition("<svg ")
    opening, end, body = rest.partition(">")
    opening = re.sub(r'(width|height)="([\d.]+)pt"', larger, opening)
    path.write_text(f"{head}{tag}{opening}{end}{body}", encoding="utf-8")


def _pdf(figure: Figure, path: Path, about: str, enlarged: float) -> None:
    """As matplotlib's own, on a page that is larger."""
    _laid_out(figure)
    dpi, figure.dpi = figure.dpi, 72
    try:
        width, height = figure.get_size_inches()
        file = _PDF.PdfFile(path, metadata=metadata(".pdf", about))
        try:
            file.newPage(width * enlarged, height * enlarged)
            if enlarged != 1.0:
                file.output(enlarged, 0, 0, enlarged, 0, 0, _PDF.Op.concat_matrix)
            vectors = _PDF.RendererPdf(file, DPI * enlarged, height, width)
            renderer = _MIXED(figure, width, height, DPI * enlarged, vectors)
            figure.draw(renderer)
            renderer.finalize()
            file.finalize()
        finally:
            file.close()
    finally:
        figure.dpi = dpi


class _Escaped(_PGF):  # type: ignore[misc]
    """Writes what a text says; matplotlib's own takes it for LaTeX."""

    def draw_text(
        self, gc: Any, x: float, y: float, s: str, *rest: Any, ismath: Any = False, **more: Any
    ) -> None:
        text = s if ismath else latex(s)
        super().draw_text(gc, x, y, text, *rest, ismath=ismath, **more)

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> Any:
        return super().get_text_width_height_descent(s if ismath else latex(s), prop, ismath)


def _pgf(figure: Figure, path: Path, about: str, enlarged: float) -> None:
    """With the letters of the text that includes it, at the sizes of the style."""
    _laid_out(figure)
    width, height = figure.get_size_inches()
    tex: Any = {"pgf.texsystem": _tex(), "pgf.rcfonts": False}
    with matplotlib.rc_context(tex), path.open("w", encoding="utf-8") as file:
        file.write(f"% {about}\n% needs \\usepackage{{pgf}}\n\\begingroup\\makeatletter%\n")
        file.write(f"\\scalebox{{{enlarged:.6f}}}{{%\n" if enlarged != 1.0 else "")
        file.write("\\begin{pgfpicture}%\n\\pgfpathrectangle{\\pgfpointorigin}")
        file.write(f"{{\\pgfqpoint{{{width:.6f}in}}{{{height:.6f}in}}}}%\n")
        file.write("\\pgfusepath{use as bounding box, clip}%\n")
        dpi = DPI * enlarged
        renderer = _MIXED(figure, width, height, dpi, _Escaped(figure, file))
        try:
            figure.draw(renderer)
        except (backend_pgf.LatexError, RuntimeError) as error:
            rule = f"needs texts that {_tex()} can measure: {str(error).splitlines()[0]}"
            remedy = "Mend the installation of TeX, or say --format pdf."
            problem = Problem("--format", rule, "pgf", remedy)
            raise InputError(problem, "command line") from None
        file.write("\\end{pgfpicture}%\n" + ("}%\n" if enlarged != 1.0 else ""))
        file.write("\\makeatother\\endgroup%\n")


def _laid_out(figure: Figure) -> None:
    """All stands where it is to stand; nothing is moved where it is measured otherwise."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


_WRITERS = {".png": _png, ".svg": _svg, ".pdf": _pdf, ".pgf": _pgf}
