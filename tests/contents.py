"""What result folders hold."""

import json
from pathlib import Path

from simshuffle.report.folders import meta_of
from simshuffle.study.origin import MADE


def contents(folder: str | Path) -> dict[str, bytes]:
    """All files of a result folder by their names in it, without what says how it was made: two
    results are the same if these are."""
    folder = Path(folder)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): content(path) for path in paths}


def content(path: Path) -> bytes:
    """What a file of a result folder holds; of ``meta.json`` without how it was made."""
    if path.name != "meta.json" or not (meta := meta_of(path.parent)):
        return path.read_bytes()
    told = {key: value for key, value in meta.items() if key != MADE}
    return json.dumps(told, indent=1, sort_keys=True).encode()
