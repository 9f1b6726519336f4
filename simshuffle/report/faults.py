"""What is said of the faults of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simshuffle.spec.units import Dimension, readable

NAMED = 3
"""Faults that are told one by one, at most."""


def faults_told(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of a run that was simulated; ``rows`` as of ``faults`` in ``meta.json``: of each fault that
    began ``what`` it was at, ``at_s``, ``until_s`` (None: to the end), the share of its ``rate``
    that was left, how many ``links`` and ``gpus`` it hit, and how many transfers under way were
    ``rerouted``."""
    if not rows:
        return "Faults: none began before the end"
    told = [describe_fault(row) for row in rows[:NAMED]]
    more = [f"and {len(rows) - NAMED:,} more"] if len(rows) > NAMED else []
    return f"Faults: {len(rows):,}: {'; '.join([*told, *more])}"


def describe_fault(row: Mapping[str, Any]) -> str:
    """Return what a fault was at, what it left, when, and what it hit; ``row`` as of
    `faults_told`."""
    begin, end = _seconds(row["at_s"]), row["until_s"]
    span = f"from {begin}" + ("" if end is None else f" to {_seconds(end)}")
    counts = {"link": row["links"], "GPU": row["gpus"]}
    hit = [f"{count:,} {noun}{'s' * (count > 1)}" for noun, count in counts.items() if count]
    moved = f", {row['rerouted']:,} transfers rerouted" if row["rerouted"] else ""
    return f"{row['what']} {left(row['rate'])} {span} ({', '.join(hit) or 'not in use'}{moved})"


def left(rate: float) -> str:
    """What is left of something."""
    return f"at {100 * rate:.3g} % of its rate" if rate else "failed"


def _seconds(value: float) -> str:
    return readable(value, Dimension.SECONDS, 3)
