"""Writes what `simshuffle validate` says into docs/reference/validation.md, and draws
docs/figures/validation.png.

python benchmarks/validation_tables.py
"""

from __future__ import annotations

import re
from pathlib import Path

from simshuffle.results import style as plots
from simshuffle.studies.validation import text, validate
from simshuffle.studies.validation.figures import figure

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


def main() -> None:
    results = validate()
    page = ROOT / "docs" / "reference" / "validation.md"
    put(page, "validation summary", text.markdown_summary(results))
    put(page, "validation rows", text.markdown(results).replace("### ", "## "))
    plots.save(figure(results), ROOT / "docs" / "figures" / "validation")
    (ROOT / "docs" / "figures" / "validation.pdf").unlink()


if __name__ == "__main__":
    main()
