"""Tables as LaTeX and Markdown: every cell is there, nothing in it is read as markup, and numbers
stand at the right."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import get_args

import matplotlib as mpl
import pytest
from matplotlib.ft2font import FT2Font
from rich.table import Table

from simshuffle.api import run
from simshuffle.cli import main
from simshuffle.cli.common import To
from simshuffle.cli.result_folders import LabelsOption
from simshuffle.report.console import FORMATS, export_parts, new_table
from simshuffle.report.report import Booking
from simshuffle.study.study import Result
from tests.small import small

NASTY = r"a_b & 50% of #1 {x} $y$ ^2 ~z \cmd <t> |v| [k] *s* `c`"


def table(*rows: tuple[str, str], title: str | None = "Title") -> Table:
    made = new_table(title, ["name"], ["number"])
    for row in rows:
        made.add_row(*row)
    return made


def test_a_table_is_a_booktabs_tabular_with_its_caption_and_numbers_at_the_right():
    assert export_parts([table(("a", "1.5"), ("b", "20"))], "latex") == (
        "% needs \\usepackage{booktabs}\n\n"
        "\\begin{table}\n  \\centering\n  \\caption{Title}\n  \\begin{tabular}{lr}\n"
        "    \\toprule\n    name & number \\\\\n    \\midrule\n"
        "    a & 1.5 \\\\\n    b & 20 \\\\\n    \\bottomrule\n"
        "  \\end{tabular}\n\\end{table}\n"
    )


def test_a_table_is_a_markdown_table_below_its_title():
    assert export_parts([table(("a", "1.5"), ("b", "20"))], "markdown") == (
        "**Title**\n\n| name | number |\n| --- | ---: |\n| a | 1.5 |\n| b | 20 |\n"
    )


def test_latex_prints_special_characters_and_obeys_none():
    text = export_parts([table((NASTY, "1"), title=NASTY)], "latex")
    cell = (
        r"a\_b \& 50\% of \#1 \{x\} \$y\$ \textasciicircum{}2 \textasciitilde{}z"
        r" \textbackslash{}cmd \textless{}t\textgreater{} \textbar{}v\textbar{} {[}k] *s* `c`"
    )
    assert text.count(cell) == 2  # caption and cell
    assert f"    {cell} & 1 \\\\\n" in text


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("-1.5", "$-$1.5"),
        ("+0.1 to -0.2", "+0.1 to $-$0.2"),
        ("1.2 ± 0.3", r"1.2 $\pm$ 0.3"),
        ("0.5-0.7", "0.5-0.7"),
        ("2020-11-22", "2020-11-22"),
        ("-", "-"),
        ("1e-5", "1e-5"),
        ("--seeds", "-{}-seeds"),
        ("---", "-{}-{}-"),
        ("* best", "{*} best"),  # \\* is another command
    ],
)
def test_signs_in_columns_of_numbers(given, written):
    assert f"    a & {written} \\\\\n" in export_parts([table(("a", given), ("b", "1"))], "latex")


@pytest.mark.parametrize("name", ["[2mm] of", "* a"])
def test_the_first_cell_of_a_row_is_no_argument_of_the_row_before(name):
    text = export_parts([table(("a", "1"), (name, "2"))], "latex")
    assert re.search(r"\\\\\n\s*(\[|\*)", text) is None


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_latex_takes_it(tmp_path):
    rows = [(NASTY, "-1.5 ± 0.2"), ("[2mm] of", "--seeds"), ("* a → b ≤ c … – — µ × 1", "-")]
    tables = export_parts(["100 % \\bad{", table(*rows, title=NASTY)], "latex")
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    (tmp_path / "t.tex").write_text(f"{head}{tables}\\end{{document}}\n")
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]


def test_markdown_prints_special_characters_and_obeys_none():
    text = export_parts([table((NASTY, "1"), title=None)], "markdown")
    (_, _, line) = text.splitlines()
    assert len(re.findall(r"(?<!\\)\|", line)) == 3
    plain = re.sub(r"\\(.)", r"\1", line)
    assert plain == f"| {NASTY} | 1 |"
    assert re.search(r"(?<!\\)[*_`<\[]", line) is None


@pytest.mark.parametrize("to", FORMATS)
def test_a_cell_stays_on_its_line(to):
    broken = "two\nlines\r\x0b\x85\u2028here\x1b[0m\x00"
    text = export_parts([table((broken, "1"))], to)
    assert text.count("\n") == export_parts([table(("a", "1"))], to).count("\n")
    assert "two lines here" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


def test_a_row_with_fewer_cells_is_filled_up():
    short = new_table(None, ["a"], ["b", "c"])
    short.add_row("x")
    short.add_row("x", "1", "2")
    assert "    x &  &  \\\\\n" in export_parts([short], "latex")
    assert "| x |  |  |\n" in export_parts([short], "markdown")


# ---------------------------------------------------------------------------------- tables of runs


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """Runs with and without an exchange, with waiting, and with gradients that slow the backward
    pass; and their folder."""
    base = small(
        workload__jitter={"compute": 0.1, "read": 0.0},
        workload__allreduce__overlap={"kind": "ddp"},
        workload__allreduce__inter_host_bus_bandwidth="1 GB/s",
        epochs=2,
    )
    ways = ["local_shuffle", "importance_pair:exchange_fraction=0.3,schedule=authors"]
    result = run(base.model_copy(update={"sweep": {"workload.exchange": ways}}))
    return result, result.save(tmp_path_factory.mktemp("runs") / "ran", draw=False)


def cells(latex: str) -> list[list[str]]:
    """The rows of the first table, its headings first."""
    body = latex.partition("\\begin{tabular}")[2].partition("\\end{tabular}")[0]
    return [
        line.strip().removesuffix(" \\\\").split(" & ")
        for line in body.splitlines()
        if line.endswith("\\\\")
    ]


def test_a_table_of_runs_for_a_paper_has_sums_that_add_up(ran):
    """The warm epoch of each run, to three significant digits: what is rounded is at most 0.5 %."""
    heads, *rows = cells(export_parts(ran[0].exported(), "latex"))
    assert (heads[:2], heads[-1]) == (["run", "epoch"], "waiting")
    assert len(heads) == 8  # what came first is left out
    assert len(rows) == 2
    for row in rows:
        total, *parts = (0.0 if cell == "-" else float(cell) for cell in row[1:])
        assert total == pytest.approx(sum(parts), rel=0.01)
    waiting = ran[0].tables["breakdown"]
    waiting = waiting[(waiting["cause"] != "") & (waiting["cause"] != "GE+WU")]
    waiting = waiting[waiting["epoch"] == 2]
    known = waiting.groupby("run", observed=True, sort=False)["seconds"].sum()
    assert [float(row[-1]) for row in rows] == pytest.approx(known.to_list(), rel=0.01, abs=1e-3)


def test_a_table_of_runs_fits_a_page(ran):
    """6.5 inches, in the letters of LaTeX at 10 points, with its 6 points on both sides of a
    cell."""
    letters = FT2Font(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / "cmr10.ttf"))
    letters.set_size(10, 72)

    def width(text: str) -> float:
        letters.set_text(text.replace("\\", ""))
        return float(letters.get_width_height()[0]) / 64

    def whole(latex: str) -> float:
        columns = zip(*cells(latex), strict=True)
        return sum(12 + max(map(width, column)) for column in columns)

    result = ran[0]
    by_cause = replace(result, meta={**result.meta, "labels": "cause"})
    assert whole(export_parts(result.exported(), "latex")) < 6.5 * 72
    assert len(cells(export_parts(by_cause.exported(), "latex"))[0]) == 8


def test_a_column_without_anything_is_left_out():
    """Nothing is exchanged, waited for or read from a file system, and there are no peers."""
    result = run(small(world_size=1))
    first, second = (part for part in result.exported() if isinstance(part, Table))
    heads = [[str(column.header) for column in of.columns] for of in (first, second)]
    assert heads == [
        ["run", "epoch", "I/O", "FW+BW", "GE+WU"],
        ["run", "epoch", "samples/s", "AU", "SSD"],
    ]


def test_labels_and_causes_are_shown_on_request_and_on_a_terminal(ran, capsys):
    def printed(*words: str) -> str:
        assert main(["results", "show", str(ran[1]), *words]) == 0
        return capsys.readouterr().out

    assert "wait for FW+BW" not in printed("--to", "latex")
    assert "wait for FW+BW" in printed("--to", "latex", "--labels", "cause")
    assert "as in the authors' timers" in printed("--to", "markdown", "--labels", "paper")
    assert "waiting" in printed() and "wait for" in printed("-v")
    assert "wait for" not in printed("-v", "--labels", "paper")
    assert "FW+BW" in ran[0]._repr_html_()


# ------------------------------------------------------------------------------------------- texts


def test_texts_are_comments_in_latex_whatever_they_hold():
    text = export_parts(["100 % sure\n\\input{x}", "second", table(("a", "1"))], "latex")
    assert "% 100 % sure\n% \\input{x}\n% second\n\n\\begin{table}" in text


def test_texts_are_paragraphs_in_markdown_and_keep_their_lines():
    text = export_parts(["  one_two", "- three", "# four", "5. five", "a\n```\n  b"], "markdown")
    assert text == (
        "one\\_two\n\n\\- three\n\n\\# four\n\n5\\. five\n\n````text\na\n```\n  b\n````\n"
    )


def test_an_empty_text_leaves_no_trace():
    assert export_parts(["", table(("a", "1")), ""], "markdown").startswith("**Title**")


def test_list_prints_a_table(capsys):
    assert main(["list", "--to", "markdown"]) == 0
    assert "| scenario | quickstart | ResNet-50" in capsys.readouterr().out


def test_the_command_line_takes_every_format_and_every_booking():
    """The words stand there again, so that help and completion load neither."""
    for option, known in ((To, FORMATS), (LabelsOption, get_args(Booking))):
        assert get_args(option)[1].choices == tuple(known)
