"""Writes what `simshuffle study validate` says into docs/reference/validation.md, and draws
docs/figures/validation.png.

python benchmarks/validation_tables.py
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from simshuffle import validate
from simshuffle.results import canvas, paper
from simshuffle.studies.validation.figures import ratios_chart
from simshuffle.studies.validation.text import (
    CELLS,
    HEADINGS,
    SUMMARY,
    cells,
    coverage_text,
    reasons,
    summary_cells,
)

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
        raise SystemExit(f"{page}: needs one <!-- {name} --> and an <!-- end --> behind it")
    page.write_text(after, encoding="utf-8")


def markdown_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]
) -> str:
    """A Markdown table; columns ``numbers`` are aligned to the right."""
    rule = ["---:" if number in numbers else "---" for number in range(len(headings))]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in [list(headings), rule, *escaped])


def markdown_summary(results: pd.DataFrame) -> str:
    """The summaries as Markdown tables, predicted rows, then fitted ones, and the coverage."""
    shown = [(HEADINGS[use], summary_cells(results, use)) for use in ("predict", "fit")]
    tables = [
        f"{heading}:\n\n{markdown_table(SUMMARY, rows, range(1, 6))}"
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
            rows = [cells(row) for row in part[part["use"] == use].to_dict("records")]
            if rows:
                out.append(
                    ("Fitted:" if use == "fit" else "Predicted:")
                    + "\n\n"
                    + markdown_table(CELLS, rows, range(2, 7))
                )
    unknown = reasons(results)
    if unknown:
        out.append(
            f"### {HEADINGS['none']}\n\n{markdown_table(['set', 'case', 'why'], unknown, ())}"
        )
    return "\n\n".join(out)


def main() -> None:
    results = validate().tables["validation"]
    page = ROOT / "docs" / "reference" / "validation.md"
    put(page, "validation summary", markdown_summary(results))
    put(page, "validation rows", markdown(results).replace("### ", "## "))
    canvas.save(paper.draw(ratios_chart(results)), ROOT / "docs" / "figures" / "validation")
    (ROOT / "docs" / "figures" / "validation.pdf").unlink()


if __name__ == "__main__":
    main()
