"""The tables of a simulation."""

from __future__ import annotations

from collections.abc import Callable

from simshuffle.results.report import EPOCH_COLUMNS, LABELS
from simshuffle.results.timeline import LINK_COLUMNS, PHASE_COLUMNS, PHASES, SOURCE_COLUMNS
from simshuffle.study.schema import Column, Schema, amount, count, share, text

_KINDS: dict[str, Callable[[str], Column]] = {
    "phase": lambda meaning: text(meaning, *PHASES),
    "label": lambda meaning: text(meaning, *LABELS),
    "exchange_fraction": lambda meaning: share(meaning, empty=True),
    "run": text,
    "strategy": text,
    "link": text,
    "tier": text,
    "unit": text,
    "epoch": count,
    "iteration": count,
    "iterations": count,
    "rank": count,
    "world_size": count,
    "samples": count,
    "samples_moved": count,
    "accelerator_utilisation": share,
}


def _column(name: str, meaning: str) -> Column:
    return _KINDS.get(name, amount)(meaning)


def _schema(columns: dict[str, str], suffix: str = ".csv") -> Schema:
    return Schema({name: _column(name, meaning) for name, meaning in columns.items()}, suffix)


BREAKDOWN_COLUMNS = {
    "run": "name of the run",
    "epoch": "from 1; the first is cold",
    "label": f"one of {', '.join(LABELS)}",
    "seconds": "s of the epoch under the label, mean over ranks; all labels add up to the epoch",
}
STORED = {
    "timeline": _schema(PHASE_COLUMNS, ".parquet"),
    "links": _schema(LINK_COLUMNS, ".parquet"),
    "sources": _schema(SOURCE_COLUMNS),
    "epochs": _schema(EPOCH_COLUMNS),
    "breakdown": _schema(BREAKDOWN_COLUMNS),
}
