"""Times that cells took on this machine, as factors of their costs, which later
estimates use.

A file in the user's cache folder keeps them; a file that cannot be read or written
counts as missing.
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
"""Factor of which 9 of 10 costs are right on a machine like the one on which they were
fitted (docs/data/effort.csv).
"""
COVERED_SHARE = 0.9  # share of the cells for which a factor is claimed
MAX_REMEMBERED = 20  # cells of a kind that are remembered
MIN_CELLS = 3  # cells of a kind from which on they count
LEAST_SECONDS = 0.3
"""s that a cell must cost or take at least: less is mostly the clock's, and the
system's.
"""


@dataclass(frozen=True)
class CellTimes:
    """Times that cells of a kind take, as factors of their costs."""

    # the median of what they took, over their costs; above 1 is slower
    factor: float = 1.0
    # 9 of 10 take ``factor`` times their costs, up to this factor off either way; at least 1.5, and
    # more where few cells are known
    within: float = FACTOR
    count: int = 0  # cells that this rests on; 0 if none of that kind are known

    @classmethod
    def from_ratios(cls, ratios: list[float]) -> CellTimes:
        """Return the times of a kind of cells from the ratios of times to costs.

        Below `MIN_CELLS` ratios they are the defaults: no correction.
        """
        if len(ratios) < MIN_CELLS:
            return cls()
        factor = statistics.median(ratios)
        # factors that times are off the median, either way
        deviations = sorted(max(ratio / factor, factor / ratio) for ratio in ratios)
        within = deviations[math.ceil(COVERED_SHARE * len(deviations)) - 1]
        # a few say little of how much the next one may be off
        share = len(deviations) / MAX_REMEMBERED
        return cls(factor, max(within, FACTOR ** (1.0 - share), 1.5), len(ratios))


def calibration_file() -> Path:
    """Return the path of the file that keeps calibrations, which may not exist yet.

    It is below XDG_CACHE_HOME, or ~/.cache where that is not set.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "simshuffle" / "calibration.json"


def calibrations() -> Mapping[str, CellTimes]:
    """Read the times of cells on this machine, by their kind (`Cell.timed_as`).

    {} if none are known. A kind with fewer than `MIN_CELLS` cells has the defaults.
    """
    return {
        kind: CellTimes.from_ratios(ratios)
        for kind, ratios in _read_calibrations().items()
    }


def note_cell_times(cell_times: Iterable[tuple[str, float, float]]) -> None:
    """Remember the times of cells in `calibration_file`, for later estimates.

    Of each kind the last `MAX_REMEMBERED` are kept. Cells of which both cost and time
    are below `LEAST_SECONDS`, or one is 0, are left out. A file of another version is
    replaced. Where the file cannot be written, nothing is remembered, without a word.

    Args:
        cell_times: (kind, cost in s, seconds taken) of each cell.
    """
    ratios_of_kind = _read_calibrations()
    new_ratios = [
        (kind, took / cost)
        for kind, cost, took in cell_times
        if min(cost, took) > 0 and max(cost, took) >= LEAST_SECONDS
    ]
    if not new_ratios:
        return
    for kind, ratio in new_ratios:
        ratios_of_kind[kind] = [*ratios_of_kind.get(kind, []), ratio][-MAX_REMEMBERED:]
    with suppress(OSError, RuntimeError):
        path = calibration_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as text:
            json.dump({"version": __version__, "ratios": ratios_of_kind}, text)
        Path(name).replace(path)


def _read_calibrations() -> dict[str, list[float]]:
    """Return the ratios of times to costs of remembered cells, by their kind.

    {} where the file is missing, damaged, or of another version, whose costs may
    differ. Ratios that are not positive and finite are left out; the latest come last.
    """
    with suppress(
        OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError
    ):
        content = json.loads(calibration_file().read_text(encoding="utf-8"))
        if content["version"] == __version__:
            return {
                str(kind): [
                    float(ratio) for ratio in ratios if 0 < float(ratio) < math.inf
                ][-MAX_REMEMBERED:]
                for kind, ratios in content["ratios"].items()
            }
    return {}
