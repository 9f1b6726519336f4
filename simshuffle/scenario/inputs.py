"""Files that a scenario names, as a result folder holds them: beside the scenario, and named after
their contents, so that nothing depends on where they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simshuffle.spec.library import INPUTS


def by_content(value: Any) -> Any:
    """Plain values with the place in a result folder for the path of every file whose SHA-256
    stands beside it; two scenarios with files of the same contents become the same."""
    if isinstance(value, dict):
        named = {key: by_content(inner) for key, inner in value.items()}
        return named | {"path": _place(value)} if _names_a_file(value) else named
    if isinstance(value, list):
        return [by_content(inner) for inner in value]
    return value


def files(value: Any) -> dict[str, Path]:
    """The files that plain values name, by their names in the folder `INPUTS`."""
    found = {}
    if isinstance(value, dict):
        if _names_a_file(value):
            found[Path(_place(value)).name] = Path(value["path"])
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        found |= files(inner)
    return found


def _names_a_file(record: dict[Any, Any]) -> bool:
    return isinstance(record.get("path"), str) and isinstance(record.get("sha256"), str)


def _place(record: dict[str, Any]) -> str:
    return f"{INPUTS}/{record['sha256'][:16]}{Path(record['path']).suffix}"
