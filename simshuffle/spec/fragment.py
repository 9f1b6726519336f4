"""The text of a fragment that a scenario includes: values that were measured or read,
by dotted key, and their uncertainty. `simshuffle.job.scenario.calibrated` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml


@dataclass(frozen=True)
class FragmentEntry:
    """A value that a fragment sets in a scenario."""

    key: str  # dotted
    value: Any  # as a scenario has it: a number, a text with its unit, or the points of a curve
    note: str  # how it came about
    # 'low' and 'high' as ``value``, 'confidence', and 'over' (`simshuffle.job.scenario.calibrated`)
    uncertainty: Mapping[str, Any] = field(default_factory=dict)
    recorded: bool = True  # whether the scenario keeps where it is from


def fragment_text(
    source: str, entries: Sequence[FragmentEntry], comments: Iterable[str] = ()
) -> str:
    """Return the text of a fragment: YAML with the keys ``values`` and ``calibrated``.

    ``calibrated`` lists key, value, uncertainty, source and note of each entry that is
    ``recorded``.

    Args:
        source: what was measured or read, in one line.
        entries: the values; their notes, in one line, stand behind them as comments.
        comments: lines for people below the values, without '#'.
    """
    lines = [
        f"# {source}.",
        "# A scenario takes this in by 'include: FILE' (docs/calibrate.md).",
        "values:" if entries else "values: {}",
        *(
            f"  {entry.key}: {_one_line_yaml(entry.value)}  # {entry.note}"
            for entry in entries
        ),
        *(f"  # {line}" for line in comments),
    ]
    records = [
        {"key": entry.key, "value": entry.value, **entry.uncertainty, "source": source}
        | {"note": entry.note}
        for entry in entries
        if entry.recorded
    ]
    calibrated = yaml.safe_dump({"calibrated": records}, sort_keys=False, width=130)
    return "\n".join(lines) + "\n" + calibrated


def _one_line_yaml(value: Any) -> str:
    """Write a value on one line of YAML."""
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, width=float("inf")
    )
    return text.removesuffix("\n").removesuffix("\n...")
