"""The tables of predicted against measured in docs/reference/validation.md and scoreboard.md are
those that `simshuffle study validate` prints."""

import json
import re
import sys
from pathlib import Path

import pytest

from simshuffle import validate
from simshuffle.extensions.calibration.validation.sealed import seal_predictions
from simshuffle.extensions.calibration.validation.table import read_rows, summarize_sets
from simshuffle.extensions.calibration.validation.text import reasons, row_cells
from simshuffle.spec.library import shipped_folder

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "benchmarks"))

from validation_tables import (  # noqa: E402
    entries_table,
    markdown_summary,
    results_of,
    scoreboard,
    with_sealed,
)

BOARD = ROOT / "docs" / "reference" / "scoreboard.md"
PAGE = ROOT / "docs" / "reference" / "validation.md"
# a few seconds together; the others are simulated by `make validation`
CHEAP = ["testbed", "storage", "collectives"]


def block(name: str, page: Path = PAGE) -> str:
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", page.read_text(), re.DOTALL)
    assert found is not None, f"{page} has no {name}"
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
        assert "| " + " | ".join(row_cells(row)).replace("  ", " ") + " |" in shown.replace(
            "  ", " "
        )
    for cell in reasons(computed):
        assert "| " + " | ".join(cell) + " |" in shown


def test_every_row_and_set_of_the_files_is_shown():
    rows = read_rows(shipped_folder("validation"))
    shown = block("validation rows")
    summary = block("validation summary")
    for row in rows:
        assert f"{row.case}" in shown
        assert row.use == "none" or f"| {row.set} |" in summary


# ------------------------------------------------------------------------------------- scoreboard


def lines_of(board):
    """The cells of each line of the scoreboard, by set."""
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", board, re.MULTILINE)
    return {name: others.split(" | ") for name, others in rows if name != "set"}


def test_the_scoreboard_has_a_line_for_every_set(computed):
    board = block("scoreboard", BOARD)
    lines = lines_of(board)
    rows = [row.set for row in read_rows(shipped_folder("validation")) if row.use == "predict"]
    assert {name: int(of[1]) for name, of in lines.items()} == {of: rows.count(of) for of in rows}
    found = summarize_sets(computed[computed["use"] == "predict"]).set_index("set")
    for name in CHEAP:
        assert lines[name][2] == f"{100 * found.loc[name, 'median_error']:.1f} %"
    better, sets = re.search(r"in (\d+) of (\d+) sets", board).groups()
    assert int(sets) == len(lines)
    assert int(better) == sum(float(of[4]) < float(of[5]) for of in lines.values())
    covered, measured = re.search(r"(\d+) of (\d+) measured values", board).groups()
    assert int(measured) == len(rows)
    parts = [float(of[3].removesuffix(" %")) * int(of[1]) / 100 for of in lines.values()]
    assert int(covered) == pytest.approx(sum(parts), abs=0.005 * len(rows))


def test_the_scoreboard_says_whose_files_there_are():
    there = sorted((ROOT / "validation" / "entries").glob("*.csv"))
    assert ("None yet." in block("entries", BOARD)) == (not there)
    sealed = sorted((ROOT / "validation" / "sealed").glob("*.json"))
    assert any(of[0] != "no" for of in lines_of(block("scoreboard", BOARD)).values()) == bool(
        sealed
    )


def test_what_was_sealed_counts_and_not_what_is_predicted_today(computed, tmp_path):
    before = computed[computed["set"] == "storage"].assign(predicted=1.92e12)
    seal_predictions(tmp_path / "storage.json", before, "", replace=False)
    judged, days = with_sealed(computed, sorted(tmp_path.glob("*.json")))
    assert len(judged) == len(computed)
    assert set(judged.loc[days != "", "set"]) == {"storage"}
    assert judged["set"].drop_duplicates().tolist() == computed["set"].drop_duplicates().tolist()
    lines, today = (
        lines_of(scoreboard(of, day)) for of, day in ((judged, days), with_sealed(computed, []))
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", lines["storage"][0])
    assert lines["storage"][2] != today["storage"][2]
    assert lines["testbed"] == today["testbed"]
    assert today["storage"][0] == lines["testbed"][0] == "no"


def test_the_tables_are_made_of_a_result_too(tmp_path):
    result = validate(only=["testbed", "storage"], processes=1, progress=False)
    (tmp_path / "all.json").write_text(
        json.dumps(result.as_json(), default=lambda value: value.item()), encoding="utf-8"
    )
    result.save(tmp_path / "out", draw=False)
    boards = [
        scoreboard(*with_sealed(of, []))
        for of in (
            result.tables["validation"],
            results_of(tmp_path / "all.json"),
            results_of(tmp_path / "out"),
        )
    ]
    assert boards[0] == boards[1] == boards[2]
    assert "| storage | no | 2 | 50.0 % |" in boards[0]


def test_entries_stand_beside_simshuffle(computed):
    example = ROOT / "tests" / "data" / "entries" / "spreadsheet.csv"
    table = entries_table(computed, [example])
    # 7867 over 1920 GB/s and 37.2 over 15.35 M/s are 310 and 142 % off; ours 30 and 70 %
    assert "| spreadsheet: hosts times one host, ±10 % | storage | 2 | 225.9 % | 0 % |" in table
    assert "| 50.0 % |" in table
    assert entries_table(computed, []) == "None yet."
