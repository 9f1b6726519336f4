"""Claims on what was measured stand in one place, and agree with the measured rows."""

import re
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NEVER_MEASURED = re.compile(
    r"(never|nobody|has ever)( has| have| was| were)?( been| ever)*"
    r" (measured|timed|validated)",
    re.IGNORECASE,
)
OWNERS = {"trust.md", "validation-machines.md"}
"""The pages that say what was never measured: of the product, and of the rows found."""


def paragraphs(page: Path) -> list[str]:
    """The paragraphs, list items and rows of a page, each in one line."""
    parts = re.split(r"\n\n|\n(?=[-#|])", page.read_text(encoding="utf-8"))
    return [" ".join(part.split()) for part in parts]


def test_what_was_never_measured_is_said_on_the_pages_that_own_it():
    claims = {
        page.name: [text for text in paragraphs(page) if NEVER_MEASURED.search(text)]
        for page in PAGES
        if page.name not in OWNERS
    }
    exchange = "no exchange of samples has ever been timed"
    # the one claim that users should meet early stands on other pages, too, in these words
    others = {
        name: [text for text in texts if exchange not in text.lower()]
        for name, texts in claims.items()
    }
    assert {name: texts for name, texts in others.items() if texts} == {}


def test_trust_names_the_largest_all_to_all_that_was_measured():
    """A row of more ranks, once measured, changes the page."""
    files = [ROOT / "validation" / "alltoall.csv", *ROOT.glob("validation/sealed/*/rows.csv")]
    rows = pd.concat([pd.read_csv(file) for file in files])
    measured = rows[(rows["kind"] == "alltoall") & rows["measured"].notna()]
    ranks = measured["case"].str.extract(r", ([\d,]+) ranks")[0].str.replace(",", "").astype(int)
    (claim,) = [
        text
        for text in paragraphs(ROOT / "docs" / "trust.md")
        if text.startswith("- **All-to-all against pairs")
    ]
    assert f"were measured on up to {ranks.max():,} ranks of" in claim


def test_trust_names_every_set_beside_its_mean_error():
    """The table of trust.md against the predicted sets of the summary that `make validation`
    writes."""
    summary = (ROOT / "docs" / "reference" / "validation.md").read_text().split("\nFitted:")[0]
    errors = dict(re.findall(r"^\| (\w+) \| \d+ \| \d+ \| ([\d.]+) % \|", summary, re.MULTILINE))
    page = (ROOT / "docs" / "trust.md").read_text()
    rows = re.findall(r"^\| (\d+) to (\d+) % \|(.*)$", page, re.MULTILINE)
    ranges = {
        name: (int(low), int(high))
        for low, high, cells in rows
        for name in re.findall(r"`(\w+)`", cells)
    }
    assert len(errors) > 15
    assert set(ranges) == set(errors)
    for name, (low, high) in ranges.items():
        assert low <= float(errors[name]) <= high, name
