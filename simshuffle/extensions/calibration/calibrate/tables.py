"""The tables of a calibration: what was measured, what was fitted, and how far that is
off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import pandas as pd

from simshuffle.job.scenario.calibrated import QUANTITIES
from simshuffle.spec.units import Dimension
from simshuffle.study.schema import Schema, amount, count, flag, real, text

TOOLS = ("nccl-tests", "osu", "ior", "mdtest", "epochs", "pico", "crab")
MESSAGES = ("all_reduce", "all_to_all", "latency", "bandwidth")
OPERATIONS = (*MESSAGES, "read", "write", "file_read", "file_stat", "iteration")
DIMENSIONS = {dimension.unit: dimension for dimension in Dimension}
"""By the unit that a table names."""

MEASUREMENTS = Schema(
    {
        "source": text("name of the file, without its folder"),
        "line": count(
            "line of the file; in a JSON file the number of the result, from 1", 1
        ),
        "tool": text("benchmark that measured", *TOOLS),
        "operation": text("operation that was measured", *OPERATIONS),
        "ranks": count("processes or GPUs that took part; clients of a file system", 1),
        "hosts": count(
            "hosts that the ranks filled; empty if not known", 1, empty=True
        ),
        "nbytes": amount(
            "bytes of a message, file or transfer; empty if there is none", empty=True
        ),
        "seconds": amount(
            "time of one operation (s); empty if a rate was measured", empty=True
        ),
        "rate": amount(
            "bytes/s, or operations/s for files, of all ranks together; empty if a time was"
            " measured",
            empty=True,
        ),
        "count": count("repetitions; the row has their mean or median", 1),
        "spread": amount(
            "standard deviation over the repetitions, in the unit of the number; empty if not"
            " known",
            empty=True,
        ),
        "model": text("neural network; empty except for epochs"),
        "epoch": count("number of the epoch; 0 for other operations"),
        "batch": count("samples of a rank in an iteration; 0 except for epochs"),
        "algorithm": text(
            "algorithm of an all-to-all, as its tool calls it; for IOR and mdtest, how they used"
            " files; empty if not known"
        ),
    },
    absent={"algorithm": ""},
)
"""A row for each number that a tool printed."""
_MEASUREMENT_COLUMNS = MEASUREMENTS.columns
RESIDUALS = Schema(
    {
        "source": _MEASUREMENT_COLUMNS["source"],
        "line": count("line of the file; 0 for a value from several lines"),
        "tool": _MEASUREMENT_COLUMNS["tool"],
        "operation": _MEASUREMENT_COLUMNS["operation"],
        "law": text("law that was fitted"),
        "ranks": _MEASUREMENT_COLUMNS["ranks"],
        "hosts": count(
            "hosts as in the measurements, or as the law counts them", 1, empty=True
        ),
        "nbytes": amount(
            "bytes as in the measurements; for epochs, bytes of the gradients",
            empty=True,
        ),
        "model": _MEASUREMENT_COLUMNS["model"],
        "unit": text("unit of measured and fitted", *DIMENSIONS),
        "measured": amount("measured value"),
        "fitted": amount("value that the law gives"),
        "relative": real("fitted / measured - 1"),
        "used": flag(
            "whether the fit uses the row; other rows are predicted (--fit-up-to) or left out"
        ),
    }
)
"""A row for each measured value that a law gives."""
_SPAN_COLUMNS = {
    f"{name}_{end}": amount(
        f"{end}est {name.replace('_', ' ')}{f' ({dimension.unit})' if dimension else ''} of"
        " the measurements; empty if irrelevant",
        empty=True,
    )
    for name, dimension in QUANTITIES.items()
    for end in ("low", "high")
}
PARAMETERS = Schema(
    {
        "number": count(
            "number of the parameter, from 1; the points of a curve share it", 1
        ),
        "key": text(
            "dotted key of a scenario, or a name if no scenario has the parameter"
        ),
        "place": amount(
            "bytes of a message, or hosts, at a point of a curve; empty for a single value",
            empty=True,
        ),
        "value": amount("fitted value, in its unit"),
        "low": amount(
            "lower end of the 95 % interval of the value; empty if there are too few points",
            empty=True,
        ),
        "high": amount("upper end of the 95 % interval", empty=True),
        "unit": text(
            "unit of value, low and high; empty for a pure number", "", *DIMENSIONS
        ),
        **_SPAN_COLUMNS,
        "residual": amount("mean of |fitted / measured - 1| over the rows", empty=True),
        "rows": count("measurements that the value comes from"),
        "source": text("files and tool"),
        "note": text("what a reader must know about the value"),
        "model": text("the only model that the value holds for; empty for all models"),
        "in_scenario": flag("whether a scenario has the key"),
    }
)
"""A row for each parameter, or for each point of one that is a curve."""
STORED = {
    "parameters": PARAMETERS,
    "measurements": MEASUREMENTS,
    "residuals": RESIDUALS,
}


@dataclass(frozen=True)
class MeasuredNumber:
    """A number that a tool measured; its attributes are the columns of `MEASUREMENTS`.

    What is not known is nan. Either ``seconds`` or ``rate`` is set. The bytes of an
    all-to-all are those of a pair of ranks, of an all-reduce those of a rank's buffer.
    """

    source: str
    line: int
    tool: str
    operation: str
    ranks: int
    hosts: float = math.nan
    nbytes: float = math.nan
    seconds: float = math.nan
    rate: float = math.nan
    count: int = 1
    spread: float = math.nan
    model: str = ""
    epoch: int = 0
    batch: int = 0
    algorithm: str = ""


@dataclass(frozen=True)
class Note:
    """A sentence on what a reader left out or assumed."""

    source: str  # name of the file
    text: str

    def __str__(self) -> str:
        return f"{self.source}: {self.text}"


def measurements_table(rows: Iterable[MeasuredNumber]) -> pd.DataFrame:
    """Return measured numbers as a table with the columns of `MEASUREMENTS`."""
    return pd.DataFrame(
        [asdict(row) for row in rows], columns=list(MEASUREMENTS.columns)
    )
