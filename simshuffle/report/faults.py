"""Sentences on the faults of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simshuffle.spec.units import Dimension, readable

MAX_NAMED_FAULTS = 3
"""Faults that are told one by one, at most."""


def describe_faults(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on the faults of a run that was simulated.

    The first `MAX_NAMED_FAULTS` are described; of the others only the number is told.

    Args:
        rows: ``faults`` of ``meta.json``: for each fault that began the thing it struck
            (``what``), ``at_s``, ``until_s`` (None: to the end), the share of its
            ``rate`` that remained (0: it failed), how many ``links`` and ``gpus`` it
            hit, and how many transfers under way were ``rerouted``.
    """
    if not rows:
        return "Faults: none began before the end"
    sentences = [describe_fault(row) for row in rows[:MAX_NAMED_FAULTS]]
    remaining = (
        [f"and {len(rows) - MAX_NAMED_FAULTS:,} more"]
        if len(rows) > MAX_NAMED_FAULTS
        else []
    )
    return f"Faults: {len(rows):,}: {'; '.join([*sentences, *remaining])}"


def describe_fault(row: Mapping[str, Any]) -> str:
    """Return which thing a fault struck, its remaining rate, when, and how much it hit;
    ``row`` is as in `describe_faults`. A fault that hit no link and no GPU is
    'not in use'.
    """
    start = _seconds(row["at_s"])
    end = row["until_s"]
    span = f"from {start}" + ("" if end is None else f" to {_seconds(end)}")
    counts = {"link": row["links"], "GPU": row["gpus"]}
    struck = [
        f"{count:,} {noun}{'s' * (count > 1)}"
        for noun, count in counts.items()
        if count
    ]
    rerouted = f", {row['rerouted']:,} transfers rerouted" if row["rerouted"] else ""
    counted = f"{', '.join(struck) or 'not in use'}{rerouted}"
    return f"{row['what']} {describe_rate(row['rate'])} {span} ({counted})"


def describe_rate(rate: float) -> str:
    """Return the remaining rate of a faulty thing, a share of 1, in words.

    0 is 'failed'.
    """
    return f"at {100 * rate:.3g} % of its rate" if rate else "failed"


def _seconds(value: float) -> str:
    return readable(value, Dimension.SECONDS, 3)
