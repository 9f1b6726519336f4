"""The text of a fragment that a scenario includes: what was measured or read, by dotted key, and
what is known of it. `simshuffle.job.scenario.calibrated` reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml


@dataclass(frozen=True)
class Entry:
    """A value of a scenario."""

    key: str  # dotted
    value: Any  # as a scenario has it: a number, a text with its unit, or the points of a curve
    note: str  # how it came about
    # 'low' and 'high' as ``value``, 'confidence', and 'over' (`simshuffle.job.scenario.calibrated`)
    known: Mapping[str, Any] = field(default_factory=dict)
    recorded: bool = True  # whether the scenario keeps where it is from


def fragment_text(source: str, entries: Sequence[Entry], comments: Iterable[str] = ()) -> str:
    """The fragment; ``source`` is what was measured or read, and ``comments`` are lines for people
    below the values."""
    lines = [
        f"# {source}.",
        "# A scenario takes this in by 'include: FILE' (docs/calibrate.md).",
        "values:" if entries else "values: {}",
        *(f"  {entry.key}: {_flow(entry.value)}  # {entry.note}" for entry in entries),
        *(f"  # {line}" for line in comments),
    ]
    records = [
        {"key": entry.key, "value": entry.value, **entry.known, "source": source}
        | {"note": entry.note}
        for entry in entries
        if entry.recorded
    ]
    known = yaml.safe_dump({"calibrated": records}, sort_keys=False, width=130)
    return "\n".join(lines) + "\n" + known


def _flow(value: Any) -> str:
    """A value on one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")
