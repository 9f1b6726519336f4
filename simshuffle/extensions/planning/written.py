"""The units in which a user wrote values, so that thresholds of a value are given in
its unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.library import find_file, read_yaml
from simshuffle.spec.units import (
    Dimension,
    UnitError,
    parse_quantity,
    readable,
    written_unit,
)

MIN_READABLE, MAX_READABLE = 1e-3, 1e5
"""Numbers between which a value is easily read; beyond, it is shown with another
prefix.
"""


def written_units(
    scenario: Scenario | str | Path, settings: Mapping[str, Any], keys: Iterable[str]
) -> dict[str, str]:
    """Return the unit, such as 'Gbit/s', in which each dotted key is written.

    The settings count first, then the scenario file and the cluster file that it names.
    A key without text there, as where a catalog has it, or whose text has no unit is
    left out. A file that cannot be read counts as empty.

    Args:
        scenario: the name or path of a scenario file; of a `Scenario` no text is known,
            and settings alone count.
        settings: the values of ``--set``, by key.
        keys: the dotted keys.
    """
    texts = {key: _text_at_key(settings, key) for key in keys}
    if not isinstance(scenario, Scenario):
        document = _read_document(scenario)
        texts = {
            key: text or _text_at_key(document, key) for key, text in texts.items()
        }
    units = {key: written_unit(text) for key, text in texts.items() if text}
    return {key: unit for key, unit in units.items() if unit}


def format_in_unit(value: float, unit: str, dimension: Dimension, digits: int) -> str:
    """Format ``value`` (SI) in a unit that a user wrote, rounded to ``digits`` digits.

    Without a unit, with one of another dimension, or where the number would be below
    `MIN_READABLE` or not below `MAX_READABLE`, the value has a prefix of its own
    (`readable`).
    """
    try:
        number = value / parse_quantity(f"1 {unit}", dimension)
    except UnitError:
        return readable(value, dimension, digits)
    if not MIN_READABLE <= number < MAX_READABLE:
        return readable(value, dimension, digits)
    return f"{float(f'{number:.{digits}g}'):.10g} {unit}"


def _read_document(scenario: str | Path) -> Mapping[str, Any]:
    """Return the mapping of a scenario file, with that of the cluster file that it
    names; {} if either cannot be read.
    """
    try:
        path = find_file(str(scenario), "scenarios")
        document = dict(read_yaml(path)[0])
        cluster = document.get("cluster")
        if isinstance(cluster, str):
            document["cluster"] = read_yaml(
                find_file(cluster, "topologies", path.parent)
            )[0]
    except (InputError, IndexError, TypeError, ValueError):
        return {}
    return document


def _text_at_key(document: Mapping[str, Any], key: str) -> str:
    """Return the text of a dotted key, written dotted or nested.

    It is '' where there is none, or no text.
    """
    if isinstance(text := document.get(key), str):
        return text
    for name, inner in document.items():
        if isinstance(inner, Mapping) and key.startswith(f"{name}."):
            return _text_at_key(inner, key.removeprefix(f"{name}."))
    return ""
