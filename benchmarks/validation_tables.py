"""Writes what `simshuffle study validate` says into docs/reference/validation.md and
docs/reference/scoreboard.md, and draws docs/figures/validation.png.

python benchmarks/validation_tables.py [RESULT]

RESULT: what `--json` printed of all sets, or the folder of `--out`; computed if it is not given.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from simshuffle import validate
from simshuffle.extensions.calibration.validation.entries import (
    ROW_KEY,
    compare_entries,
    read_entries,
)
from simshuffle.extensions.calibration.validation.figures import ratios_chart
from simshuffle.extensions.calibration.validation.intervals import (
    COLUMNS,
    prediction_intervals,
)
from simshuffle.extensions.calibration.validation.table import (
    NUMBERS,
    PREDICTED,
    SCHEMA,
    read_rows,
)
from simshuffle.extensions.calibration.validation.text import (
    ENTRY_HEADINGS,
    ROW_HEADINGS,
    SCORE_HEADINGS,
    SUMMARY_HEADINGS,
    TITLE_OF_USE,
    coverage_text,
    entry_cells,
    reasons,
    row_cells,
    score_cells,
    score_text,
    summary_cells,
)
from simshuffle.report import canvas, paper
from simshuffle.spec.library import shipped_folder
from simshuffle.study.registry import read_folder

ROOT = Path(__file__).parent.parent


def put(page: Path, name: str, table: str) -> None:
    """Replace what stands between ``<!-- name -->`` and ``<!-- end -->``."""
    before = page.read_text(encoding="utf-8")
    after, count = re.subn(
        rf"(<!-- {name} -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}\n{table}\n\n{found[2]}",
        before,
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(
            f"{page}: needs one <!-- {name} --> and an <!-- end --> behind it"
        )
    page.write_text(after, encoding="utf-8")


def markdown_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]
) -> str:
    """A Markdown table; columns ``numbers`` are aligned to the right."""
    rule = ["---:" if number in numbers else "---" for number in range(len(headings))]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(
        "| " + " | ".join(line) + " |" for line in [list(headings), rule, *escaped]
    )


def markdown_summary(results: pd.DataFrame) -> str:
    """The summaries as Markdown tables, predicted rows, then fitted ones, and the coverage."""
    shown = [
        (TITLE_OF_USE[use], summary_cells(results, use)) for use in ("predict", "fit")
    ]
    tables = [
        f"{heading}:\n\n{markdown_table(SUMMARY_HEADINGS, rows, range(1, 6))}"
        for heading, rows in shown
        if rows
    ]
    return "\n\n".join(filter(None, [*tables, coverage_text(results)]))


def markdown(results: pd.DataFrame) -> str:
    """Every row as Markdown, set by set, fitted and predicted rows apart, then what could not be
    validated."""
    out = []
    for name, part in results[results["use"] != "none"].groupby("set", sort=False):
        out.append(f"### {name}")
        for use in ("fit", "predict"):
            rows = [
                row_cells(row) for row in part[part["use"] == use].to_dict("records")
            ]
            if rows:
                out.append(
                    ("Fitted:" if use == "fit" else "Predicted:")
                    + "\n\n"
                    + markdown_table(ROW_HEADINGS, rows, range(2, 7))
                )
    unknown = reasons(results)
    if unknown:
        out.append(
            f"### {TITLE_OF_USE['none']}\n\n{markdown_table(['set', 'case', 'why'], unknown, ())}"
        )
    return "\n\n".join(out)


def results_of(place: Path | None) -> pd.DataFrame:
    """The table of all predictions, computed or from a result; its intervals are made anew."""
    if place is None:
        return validate().tables["validation"]
    if place.is_dir():
        out = read_folder(place).tables["validation"]
    else:
        out = pd.DataFrame(json.loads(place.read_text(encoding="utf-8"))["rows"])
        out = out.reindex(columns=list(SCHEMA.columns))
        out = out.astype(
            dict.fromkeys([*NUMBERS, *PREDICTED, "error", *COLUMNS], float)
        )
    out[list(COLUMNS)] = prediction_intervals(out)
    return out


def with_sealed(
    results: pd.DataFrame, files: Sequence[Path], folder: Path | None = None
) -> tuple[pd.DataFrame, pd.Series]:
    """The table with what was sealed in ``files`` in place of what is predicted today, and for each
    row on which day that was; '' where it was not. ``folder``: of CSV files with what was measured
    since; what comes with simshuffle if it is None."""
    out = results.assign(day="").reset_index(drop=True)
    for path in files:
        result = validate(open=path, folder=folder, progress=False)
        part = result.tables["validation"].assign(
            day=result.meta["sealed"]["date"][:10]
        )
        keys = pd.MultiIndex.from_frame(part[[*ROW_KEY]])
        old = out[pd.MultiIndex.from_frame(out[[*ROW_KEY]]).isin(keys)]
        if len(old):  # a set stays where it was
            first = old.index[0]
            out = pd.concat(
                [out.loc[: first - 1], part, out.loc[first:].drop(old.index)]
            )
        else:
            out = pd.concat([out, part])
        out = out.reset_index(drop=True)
    return out.drop(columns="day"), out["day"]


def scoreboard(results: pd.DataFrame, days: pd.Series) -> str:
    """A line for each set as a Markdown table, and what all come to."""
    rows = []
    for name, *others in score_cells(results):
        own = days[(results["set"] == name) & (results["use"] == "predict")]
        sealed = own[own != ""]
        part = "" if len(sealed) == len(own) else f", {len(sealed)} of {len(own)}"
        rows.append([name, f"{max(sealed)}{part}" if len(sealed) else "no", *others])
    headings = [SCORE_HEADINGS[0], "sealed", *SCORE_HEADINGS[1:]]
    return f"{markdown_table(headings, rows, range(2, 7))}\n\n{score_text(results)}"


def entries_table(results: pd.DataFrame, files: Sequence[Path]) -> str:
    """What others predict beside simshuffle, as a Markdown table."""
    entries = read_entries(files, read_rows(shipped_folder("validation")))
    rows = entry_cells(compare_entries(results, entries))
    return markdown_table(ENTRY_HEADINGS, rows, range(2, 9)) if rows else "None yet."


def main() -> None:
    results = results_of(Path(sys.argv[1]) if sys.argv[1:] else None)
    place = ROOT / "validation"
    reference = ROOT / "docs" / "reference"
    board = reference / "scoreboard.md"
    judged, days = with_sealed(results, sorted(place.glob("sealed/*.json")))
    put(board, "scoreboard", scoreboard(judged, days))
    put(board, "entries", entries_table(judged, sorted(place.glob("entries/*.csv"))))
    page = reference / "validation.md"
    put(page, "validation summary", markdown_summary(results))
    put(page, "validation rows", markdown(results).replace("### ", "## "))
    canvas.save(
        paper.draw(ratios_chart(results)), ROOT / "docs" / "figures" / "validation"
    )
    (ROOT / "docs" / "figures" / "validation.pdf").unlink()


if __name__ == "__main__":
    main()
