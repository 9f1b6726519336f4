"""The tables of a simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from typing_extensions import TypedDict

from simshuffle.results.ranks import ITERATION_COLUMNS
from simshuffle.results.report import EPOCH_COLUMNS, LABELS
from simshuffle.results.timeline import LINK_COLUMNS, PHASE_COLUMNS, PHASES, SOURCE_COLUMNS
from simshuffle.study.schema import Column, Schema, amount, count, real, share, text

_KINDS: dict[str, Callable[[str], Column]] = {
    "phase": lambda meaning: text(meaning, *PHASES),
    "label": lambda meaning: text(meaning, *LABELS),
    "cause": lambda meaning: text(meaning, "", *LABELS),
    "exchange_fraction": lambda meaning: share(meaning, empty=True),
    "run": text,
    "strategy": text,
    "link": text,
    "tier": text,
    "unit": text,
    "epoch": count,
    "seed": count,
    "iteration": count,
    "iterations": count,
    "iterations_simulated": count,
    "steady_first": count,
    "steady_last": count,
    "whole_because": text,
    "rank": count,
    "world_size": count,
    "samples": count,
    "samples_moved": count,
    "read_requests": count,
    "read_requests_ssd": count,
    "read_requests_object_store": count,
    "read_requests_staged": count,
    "accelerator_utilisation": share,
}


def _column(name: str, meaning: str) -> Column:
    return _KINDS.get(name, amount)(meaning)


def _schema(columns: dict[str, str], suffix: str = ".csv", key: tuple[str, ...] = ()) -> Schema:
    return Schema({name: _column(name, meaning) for name, meaning in columns.items()}, suffix, key)


BREAKDOWN_COLUMNS = {
    "run": "name of the run",
    "epoch": "from 1; the first is cold",
    "label": f"one of {', '.join(LABELS)}",
    "cause": "empty for a rank's own work; of waiting for other ranks, the label of what they did",
    "seconds": "s of the epoch, mean over ranks; the rows of an epoch add up to it",
}
STORED = {
    "timeline": _schema(PHASE_COLUMNS, ".parquet"),
    "iterations": _schema(ITERATION_COLUMNS, ".parquet"),
    "links": _schema(LINK_COLUMNS, ".parquet"),
    "sources": _schema(SOURCE_COLUMNS, key=("run", "epoch")),
    "epochs": _schema(EPOCH_COLUMNS, key=("run", "epoch")),
    "breakdown": _schema(BREAKDOWN_COLUMNS, key=("run", "epoch", "label", "cause")),
}


# ------------------------------------------------------------------------------- seeds and sweeps

_SEED = "of all that is drawn"


def _seeded(schema: Schema) -> Schema:
    """A table of several seeds: the seed follows the run."""
    (run, of_run), *others = schema.columns.items()
    key = (run, "seed", *schema.key[1:]) if schema.key else ()
    return replace(schema, columns={run: of_run, "seed": count(_SEED), **dict(others)}, key=key)


STORED_OVER_SEEDS = {name: _seeded(schema) for name, schema in STORED.items()}


def label_column(label: str, waiting: bool = False) -> str:
    """The column of a label of the breakdown: 'GE+WU' becomes 'ge_wu_s', and waiting for it
    'wait_ge_wu_s'."""
    plain = f"{label.lower().replace('/', '').replace('+', '_')}_s"
    return f"wait_{plain}" if waiting else plain


class Axis(TypedDict):
    """An axis of a sweep: its column, its dotted key, and whether its values are numbers."""

    name: str
    key: str
    numbers: bool


def axis_columns(axes: Sequence[Axis]) -> dict[str, Column]:
    """The columns that stand first in the tables of a sweep: label and axes."""
    about = {
        axis["name"]: (real if axis["numbers"] else text)(f"value of {axis['key']}")
        for axis in axes
    }
    return {"label": text("name of the run, the same for all seeds"), **about}


_MEASURES = {
    **{name: meaning for name, meaning in EPOCH_COLUMNS.items() if name != "run"},
    **{
        label_column(label): f"s of a rank's own {label}, mean over ranks; 0 where it has none"
        for label in LABELS
    },
    **{
        label_column(label, waiting=True): f"s of waiting for ranks in {label}, mean over ranks"
        for label in LABELS
    },
}
SWEEP = _schema({"seed": _SEED, **_MEASURES}, ".parquet")
AS_PLANNED = ("world_size", "exchange_fraction", "epoch", "iterations", "iterations_simulated")
NOT_MEASURED = ("seed", "strategy", *AS_PLANNED)
SUMMARY = Schema(
    {
        "epoch": count("from 1; the first is cold", low=1),
        "measure": text("a column of sweep.parquet"),
        "seeds": count("how many there are", low=1),
        "mean": real("over the seeds, in the unit of the measure"),
        "low": real("lower end of the 95 % interval by Student's t; empty of one", empty=True),
        "high": real("upper end of it; empty of one", empty=True),
    }
)
SUMMARY_OVER_SEEDS = Schema(
    {
        "run": text("name of the run"),
        **SUMMARY.columns,
        "measure": text("a column of epochs.csv, or a label of the breakdown: wait_ for waiting"),
    }
)
