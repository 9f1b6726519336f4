"""The tables of predicted against measured in docs/reference/validation.md are those that
`simshuffle study validate` prints."""

import re
import sys
from pathlib import Path

import pytest

from simshuffle import validate
from simshuffle.spec.library import shipped
from simshuffle.studies.validation.table import read_rows
from simshuffle.studies.validation.text import cells, reasons

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "benchmarks"))

from validation_tables import markdown_summary  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "validation.md"
# a few seconds together; the others are simulated by `make validation`
CHEAP = ["testbed", "storage", "collectives", "nopfs"]


def block(name: str) -> str:
    found = re.search(
        rf"<!-- {name} -->\n(.*?)<!-- end -->", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None, f"{PAGE} has no {name}"
    return found[1]


@pytest.fixture(scope="module")
def computed():
    return validate(only=CHEAP, processes=1, progress=False).tables["validation"]


def test_the_summary_is_what_comes_out(computed):
    lines = [
        line
        for line in markdown_summary(computed).splitlines()
        if any(line.startswith(f"| {name} |") for name in CHEAP)
    ]
    assert len(lines) >= len(CHEAP)
    shown = block("validation summary").splitlines()
    for line in lines:
        assert line in shown


def test_every_row_is_what_comes_out(computed):
    shown = block("validation rows")
    for row in computed[computed["use"] != "none"].to_dict("records"):
        assert "| " + " | ".join(cells(row)).replace("  ", " ") + " |" in shown.replace("  ", " ")
    for cell in reasons(computed):
        assert "| " + " | ".join(cell) + " |" in shown


def test_every_row_and_set_of_the_files_is_shown():
    rows = read_rows(shipped("validation"))
    shown = block("validation rows")
    summary = block("validation summary")
    for row in rows:
        assert f"{row.case}" in shown
        assert row.use == "none" or f"| {row.set} |" in summary
