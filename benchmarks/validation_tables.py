"""Writes what `simshuffle study validate` says into docs/reference/validation.md and
docs/reference/scoreboard.md, and draws docs/figures/validation.png.

python benchmarks/validation_tables.py [--only SET ...] [RESULT]

RESULT: what `--json` printed of all sets, or the folder of `--out`; computed if it is not given.
--only: sets that are predicted anew; all others stay as the pages show them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from validation_page import keep_other_lines, keep_other_sections, predictions_on_page

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
from simshuffle.extensions.calibration.validation.kinship import (
    median_half_width,
    narrow_larger_runs,
    summarize_narrowing,
)
from simshuffle.extensions.calibration.validation.scores import (
    is_in_interval,
    score_intervals,
)
from simshuffle.extensions.calibration.validation.table import (
    NUMBERS,
    PREDICTED,
    SCHEMA,
    read_rows,
    validation_table,
)
from simshuffle.extensions.calibration.validation.text import (
    ENTRY_HEADINGS,
    ROW_HEADINGS,
    SCORE_HEADINGS,
    SUMMARY_HEADINGS,
    TITLE_OF_USE,
    coverage_text,
    entry_cells,
    format_interval,
    format_percent,
    format_value,
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
PAGE = ROOT / "docs" / "reference" / "validation.md"
QUANTITIES = {
    "time": "time of an {kind}",
    "bus bandwidth": "bus bandwidth of an {kind}",
    "makespan": "makespan on the testbed",
    "throughput": "samples/s",
    "first epoch": "time of a first epoch",
    "staging": "time of staging",
    "utilisation": "utilisation of accelerators",
    "largest count": "accelerators that storage feeds",
    "read bandwidth": "bytes/s or files/s of storage",
    "file rate": "bytes/s or files/s of storage",
}
"""Kind of quantity by the quantity of a row, in words; `name_quantity` has the others."""


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


def results_with(sets: Sequence[str]) -> pd.DataFrame:
    """The table of all rows: ``sets`` predicted anew, the others as the page shows them."""
    rows = read_rows(shipped_folder("validation"))
    others = [row for row in rows if row.set not in sets]
    shown = validation_table(others, predictions_on_page(PAGE, others))
    results = pd.concat([shown, validate(only=sets).tables["validation"]])
    results.index = pd.Index(
        sorted(range(len(rows)), key=lambda index: rows[index].set in sets)
    )
    return results.sort_index()


def open_seal(path: Path) -> tuple[pd.DataFrame, str]:
    """The sealed predictions of a file beside what was measured since, and the day of the seal.

    A file YYYY-MM-DD....json has its rows in the folder YYYY-MM-DD beside it, if there is one;
    else what comes with simshuffle has them.
    """
    folder = path.parent / path.stem[:10]
    result = validate(
        open=path, folder=folder if folder.is_dir() else None, progress=False
    )
    return result.tables["validation"], result.meta["sealed"]["date"][:10]


def with_sealed(
    results: pd.DataFrame, files: Sequence[Path]
) -> tuple[pd.DataFrame, pd.Series]:
    """The table with what was sealed in ``files`` in place of what is predicted today, and for each
    row on which day that was; '' where it was not."""
    out = results.assign(day="").reset_index(drop=True)
    for path in files:
        part, day = open_seal(path)
        part = part.assign(day=day)
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


def opened_seals(files: Sequence[Path]) -> str:
    """What sealed predictions came to, as a Markdown table, a sentence, and each miss."""
    lines = []
    opened = []
    for path in files:
        sealed, _ = open_seal(path)
        for (set_name, quantity), rows in sealed.groupby(
            ["set", "quantity"], sort=False
        ):
            measured = rows[rows["measured"].notna()]
            opened.append(measured)
            counts = f"{len(measured)} of {len(rows)}"
            error = format_error_median(measured)
            covered = (
                f"{is_in_interval(measured).sum()} of {len(measured)}"
                if len(measured)
                else "–"
            )
            lines.append([path.stem, set_name, quantity, counts, error, covered])
    headings = [
        "sealed",
        "set",
        "quantity",
        "measured",
        "median error",
        "in 90 % interval",
    ]
    measured = pd.concat(opened)
    covered = is_in_interval(measured)
    text = (
        f"{covered.sum()} of {len(measured)} values that were measured after the seal lie in the"
        " sealed 90 % interval."
    )
    misses = [
        f"- {row['case']}: sealed {format_value(row['predicted'], row['unit'])}"
        f" ({format_interval(row)}), measured {format_value(row['measured'], row['unit'])}."
        for row in measured[~covered].to_dict("records")
    ]
    return "\n\n".join(
        [
            markdown_table(headings, lines, range(3, 6)),
            f"{text} The others:" if misses else text,
            *filter(None, ["\n".join(misses)]),
        ]
    )


def format_error_median(rows: pd.DataFrame) -> str:
    """The median absolute error in percent; a dash without rows."""
    return f"{100 * rows['error'].abs().median():.1f} %" if len(rows) else "–"


def name_quantity(kind: str, quantity: str) -> str:
    """The kind of quantity that a row of the validation has, in words."""
    if kind == "ratio":
        return "ratio of two runs"
    if quantity in QUANTITIES:
        return QUANTITIES[quantity].format(
            kind={"alltoall": "all-to-all"}.get(kind, kind)
        )
    return (
        "time of an epoch"
        if "epoch" in quantity
        else "time of an iteration, or of its parts"
    )


def coverage_by_quantity(results: pd.DataFrame) -> str:
    """How far predictions of each kind of quantity were off, and how wide their 90 % intervals are,
    as a Markdown table, most rows first.

    The half-width is half of the interval over the prediction.
    """
    rows = results[(results["use"] == "predict") & results["error"].notna()]
    labels = [
        name_quantity(*pair)
        for pair in zip(rows["kind"], rows["quantity"], strict=True)
    ]
    half_width = (rows["interval_high"] - rows["interval_low"]) / 2 / rows["predicted"]
    rows = rows.assign(
        label=labels, half_width=half_width, covered=is_in_interval(rows)
    )
    groups = sorted(rows.groupby("label"), key=lambda group: -len(group[1]))
    lines = [
        [
            label,
            str(len(part)),
            format_percent(part["covered"].mean()),
            format_error_median(part),
            f"±{format_percent(float(np.median(part['half_width'])))}",
        ]
        for label, part in groups
    ]
    headings = [
        "quantity",
        "measured",
        "in 90 % interval",
        "median error",
        "median half-width",
    ]
    return markdown_table(headings, lines, range(1, 5))


def narrowing_table(results: pd.DataFrame) -> str:
    """How good intervals are without and with the smaller runs of a machine, a line a set, as a
    Markdown table, and what all come to."""
    before, narrowed = narrow_larger_runs(results)
    rows = summarize_narrowing(before, narrowed)
    cells = [
        [
            row["set"],
            str(row["rows"]),
            *(
                f"{row['without'][k]:{form}} → {row['with'][k]:{form}}"
                for k, form in enumerate((".0%", ".0%", ".2f"))
            ),
            f"{row['naive_score']:.2f}",
        ]
        for row in rows
    ]
    headings = ["set", "rows", "in 90 % interval", "half width", "score", "naive score"]
    scores = [score_intervals(table) for table in (before, narrowed)]
    halves = [median_half_width(table) for table in (before, narrowed)]
    better = [
        sum(row[when][2] < row["naive_score"] for row in rows)
        for when in ("without", "with")
    ]
    text = (
        f"Of {len(narrowed)} rows {scores[0].coverage:.0%} lie in their interval without the"
        f" smaller runs, {scores[1].coverage:.0%} with them; half the interval is ±{halves[0]:.0%}"
        f" and ±{halves[1]:.0%} in the median. The score is better than the naive one in"
        f" {better[0]} and in {better[1]} of {len(rows)} sets."
    )
    return f"{markdown_table(headings, cells, range(1, 6))}\n\n{text}"


def entries_table(results: pd.DataFrame, files: Sequence[Path]) -> str:
    """What others predict beside simshuffle, as a Markdown table."""
    entries = read_entries(files, read_rows(shipped_folder("validation")))
    rows = entry_cells(compare_entries(results, entries))
    return markdown_table(ENTRY_HEADINGS, rows, range(2, 9)) if rows else "None yet."


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("result", nargs="?", type=Path)
    parser.add_argument("--only", action="append", metavar="SET")
    arguments = parser.parse_args()
    sets = arguments.only
    results = results_with(sets) if sets else results_of(arguments.result)
    place = ROOT / "validation"
    board = ROOT / "docs" / "reference" / "scoreboard.md"
    seals = sorted(place.glob("sealed/*.json"))
    judged, days = with_sealed(results, seals)
    blocks = {
        (board, "opened seals"): opened_seals(seals),
        (board, "scoreboard"): scoreboard(judged, days),
        (board, "quantities"): coverage_by_quantity(judged),
        (board, "entries"): entries_table(judged, sorted(place.glob("entries/*.csv"))),
        (PAGE, "validation summary"): markdown_summary(results),
        (PAGE, "validation rows"): markdown(results).replace("### ", "## "),
    }
    if sets:
        renewed = {*sets, *judged.loc[days != "", "set"]}
        keep_other_lines(blocks, (board, "scoreboard"), renewed)
        keep_other_lines(blocks, (PAGE, "validation summary"), set(sets))
        keep_other_sections(blocks, (PAGE, "validation rows"), set(sets))
    else:  # it needs the fitted rows of all sets as they are predicted today
        blocks[board, "measured"] = narrowing_table(results)
    for (page, name), text in blocks.items():
        put(page, name, text)
    canvas.save(
        paper.draw(ratios_chart(results)), ROOT / "docs" / "figures" / "validation"
    )
    (ROOT / "docs" / "figures" / "validation.pdf").unlink()


if __name__ == "__main__":
    main()
