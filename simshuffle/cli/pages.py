"""Writes the pages of the reference and the stub of the package: ``python -m simshuffle.cli.pages
FOLDER``, or ``make reference``."""

from __future__ import annotations

import sys
from pathlib import Path

from typer.main import get_command

from simshuffle.cli import app
from simshuffle.reference import stub
from simshuffle.reference.pages import pages

STUB = Path(__file__).parent.parent / "__init__.pyi"


def main(folder: Path) -> None:
    """Write the pages into the folder, and the stub of the package."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(get_command(app)).items():
        (folder / name).write_text(text, encoding="utf-8")
    STUB.write_text(stub.text(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference"))
