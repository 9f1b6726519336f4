"""Read the predictions that docs/reference/validation.md shows, and keep its lines, where
`benchmarks/validation_tables.py --only` predicts some sets anew."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from pathlib import Path

from simshuffle.extensions.calibration.validation.predict import traffic_share
from simshuffle.extensions.calibration.validation.table import ValidationRow
from simshuffle.extensions.calibration.validation.text import (
    DIMENSION_OF_UNIT,
    TITLE_OF_USE,
)
from simshuffle.spec.units import parse_quantity

Prediction = tuple[float, float, float, float]
"""Value, low and high in the unit of the row, and the share of the traffic of others."""


def predictions_on_page(
    page: Path, rows: Sequence[ValidationRow]
) -> list[Prediction | None]:
    """Return the prediction of each of ``rows`` as ``page`` shows it; None for rows of use none.

    The page has three digits, and the error to 0.1 % of the measured value.

    Raises:
        SystemExit: the page does not show a row.
    """
    cells_of_table = read_tables(page)
    return [
        read_prediction(row, cells_of_table[row.set, row.use])
        if row.use != "none"
        else None
        for row in rows
    ]


def read_tables(page: Path) -> dict[tuple[str, str], deque[list[str]]]:
    """Return the cells of each row of ``page`` by set and use (fit, predict), in its order."""
    tables: dict[tuple[str, str], deque[list[str]]] = defaultdict(deque)
    text = page.read_text(encoding="utf-8").partition("<!-- validation rows -->")[2]
    set_name = use = ""
    for line in text.splitlines():
        if line.startswith("## "):
            set_name = line[3:]
            use = "none" if set_name == TITLE_OF_USE["none"] else ""
        elif line in ("Fitted:", "Predicted:"):
            use = "fit" if line == "Fitted:" else "predict"
        elif line.startswith("| ") and not line.startswith(("| case ", "| --- ")):
            cells = re.split(r"(?<!\\) \| ", line.removeprefix("| ").removesuffix(" |"))
            tables[set_name, use].append(
                [cell.strip().replace("\\|", "|") for cell in cells]
            )
    return tables


def read_prediction(row: ValidationRow, table: deque[list[str]]) -> Prediction:
    """Return the prediction of ``row`` from the first row left of its table, and remove that.

    Raises:
        SystemExit: that is another row, or none is left.
    """
    if not table or table[0][:2] != [row.case, row.quantity]:
        raise SystemExit(
            f"{row.set}: {row.case} is not on the page; add --only {row.set}"
        )
    _, _, _, _, predicted, predicted_range, error = table.popleft()
    value = read_number(predicted, row.unit)
    if error and row.measured is not None:
        value = row.measured * (1 + float(error.removesuffix(" %")) / 100)
    low, high = value, value
    if predicted_range:
        low_text, _, high_text = predicted_range.partition("–")
        unit = high_text.partition(" ")[2]
        low_text = low_text if " " in low_text else f"{low_text} {unit}".strip()
        low, high = read_number(low_text, row.unit), read_number(high_text, row.unit)
    return value, min(low, value), max(high, value), traffic_share(row)


def read_number(text: str, unit: str) -> float:
    """Return a number that `format_value` wrote, in ``unit``."""
    return (
        parse_quantity(text, DIMENSION_OF_UNIT[unit])
        if unit in DIMENSION_OF_UNIT
        else float(text)
    )


RANGES = r"\d+ have an interval rather than one number; \d+ of these"
Block = tuple[Path, str]
"""A page, and the name of a part of it that is written by a program."""


def read_block(block: Block) -> str:
    """Return what stands between ``<!-- name -->`` and ``<!-- end -->`` of a page."""
    page, name = block
    pattern = rf"<!-- {name} -->\n(.*?)<!-- end -->"
    found = re.search(pattern, page.read_text(encoding="utf-8"), re.DOTALL)
    if found is None:
        raise SystemExit(
            f"{page}: needs one <!-- {name} --> and an <!-- end --> behind it"
        )
    return found[1].strip("\n")


def keep_other_lines(
    blocks: dict[Block, str], block: Block, sets: Collection[str]
) -> None:
    """Put into a block the lines of its tables that the page has, but for those of ``sets``.

    The first cell of a line is its set; tables of a block are told apart by their order. The
    number of rows that lie within their range is then the sum of the lines, and the number of those
    with a range is that of the page, whose three digits do not show every range.
    """
    before = read_block(block)
    shown = dict(number_lines(before))
    lines = [
        text if key is None or key[1] in sets else shown.get(key, text)
        for key, text in number_lines(blocks[block])
    ]
    predicted = [line.split(" | ") for line in lines if line.startswith("| ")]
    within = sum(
        int(cells[2]) for cells in first_table(predicted) if cells[2].isdigit()
    )
    text = re.sub(r"(predicted rows )\d+( lie)", rf"\g<1>{within}\2", "\n".join(lines))
    if ranges := re.search(RANGES, before):
        text = re.sub(RANGES, ranges[0], text)
    blocks[block] = text


def first_table(rows: Sequence[list[str]]) -> Sequence[list[str]]:
    """Return the rows up to the next heading."""
    heads = [index for index, cells in enumerate(rows) if cells[0] == "| set"]
    return rows[: heads[1]] if len(heads) > 1 else rows


def number_lines(text: str) -> list[tuple[tuple[int, str] | None, str]]:
    """Return each line with the number of its table and its set; None for other lines."""
    table = 0
    numbered: list[tuple[tuple[int, str] | None, str]] = []
    for line in text.splitlines():
        name = line.removeprefix("| ").partition(" | ")[0]
        table += name == "set"
        is_row = line.startswith("| ") and name not in ("set", "---")
        numbered.append(((table, name) if is_row else None, line))
    return numbered


def keep_other_sections(
    blocks: dict[Block, str], block: Block, sets: Collection[str]
) -> None:
    """Put into a block the sections that the page has, but for those of ``sets``, and for the last
    one, which says what is not validated."""
    shown = {
        part.partition("\n")[0]: part for part in split_sections(read_block(block))
    }
    sections = [
        part
        if (name := part.partition("\n")[0]) in {*sets, TITLE_OF_USE["none"]}
        else shown.get(name, part)
        for part in split_sections(blocks[block])
    ]
    blocks[block] = "\n\n".join(f"## {part}" for part in sections)


def split_sections(text: str) -> list[str]:
    """Return the sections of a text, each without its '## '."""
    return [
        part.strip("\n")
        for part in re.split(r"^## ", text, flags=re.MULTILINE)
        if part.strip()
    ]
