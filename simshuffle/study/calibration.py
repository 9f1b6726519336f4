"""How much longer than by their costs cells took on this machine, by their kind: a small file in
the user's cache folder, on which estimates rest.

Nothing rests on it but what is said of times to come. So a file that cannot be read or written is
none, and of two processes that write at once one is forgotten.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from simshuffle.version import __version__

FACTOR = 3.0
"""Factor of which 9 of 10 costs are right on a machine like the one on which they were fitted
(docs/data/effort.csv)."""
SURE = 0.9
"""Share of the cells for which a factor is claimed."""
KEPT = 20
"""Cells of a kind that are remembered."""
FEWEST = 3
"""Cells of a kind from which on they count."""
WORTH = 0.3
"""s that a cell must cost or take at least: less is mostly the clock's, and the system's."""


@dataclass(frozen=True)
class Calibration:
    """What cells of a kind take."""

    factor: float = 1.0  # the median of what they took, over their costs
    within: float = FACTOR  # 9 of 10 take as long by that factor, or less than it off
    count: int = 0  # cells that this rests on; 0 if none of that kind are known

    @classmethod
    def of(cls, ratios: list[float]) -> Calibration:
        """From what cells took over their costs."""
        if len(ratios) < FEWEST:
            return cls()
        factor = statistics.median(ratios)
        off = sorted(max(ratio / factor, factor / ratio) for ratio in ratios)
        within = off[math.ceil(SURE * len(off)) - 1]
        # a few say little of how much the next one may be off
        share = len(off) / KEPT
        return cls(factor, max(within, FACTOR ** (1.0 - share), 1.5), len(ratios))


def file() -> Path:
    """Where they are kept."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "simshuffle" / "calibration.json"


def calibrations() -> Mapping[str, Calibration]:
    """What is known of cells on this machine, by their kind."""
    return {kind: Calibration.of(ratios) for kind, ratios in _read().items()}


def note(found: Iterable[tuple[str, float, float]]) -> None:
    """Remember cells: kind, cost and what it took (s)."""
    known = _read()
    news = [
        (kind, took / cost)
        for kind, cost, took in found
        if min(cost, took) > 0 and max(cost, took) >= WORTH
    ]
    if not news:
        return
    for kind, ratio in news:
        known[kind] = [*known.get(kind, []), ratio][-KEPT:]
    with suppress(OSError, RuntimeError):
        path = file()
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(number, "w", encoding="utf-8") as text:
            json.dump({"version": __version__, "ratios": known}, text)
        Path(name).replace(path)


def _read() -> dict[str, list[float]]:
    """What cells took over their costs, by their kind; nothing where the file is not there, or not
    such a file, or of another version, whose costs may be others."""
    with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError):
        content = json.loads(file().read_text(encoding="utf-8"))
        if content["version"] == __version__:
            return {
                str(kind): [float(ratio) for ratio in ratios if 0 < float(ratio) < math.inf][-KEPT:]
                for kind, ratios in content["ratios"].items()
            }
    return {}
