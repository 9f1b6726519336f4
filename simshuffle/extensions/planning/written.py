"""The unit in which a user wrote a value, so that he reads thresholds of that value in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.library import find_file, read_yaml
from simshuffle.spec.units import Dimension, UnitError, parse_quantity, readable, written_unit

FEWEST, MOST = 1e-3, 1e5
"""Numbers between which a value is easily read; beyond, it is shown with another prefix."""


def written_units(
    given: Scenario | str | Path, settings: Mapping[str, Any], keys: Iterable[str]
) -> dict[str, str]:
    """Return the units, such as 'Gbit/s', that dotted keys have in a scenario file, in the cluster
    file that it names, or in ``settings`` (``--set``), which count first. A key whose text cannot
    be located there, as where a catalog has it, is left out."""
    texts = {key: _text(settings, key) for key in keys}
    if not isinstance(given, Scenario):
        document = _document(given)
        texts = {key: text or _text(document, key) for key, text in texts.items()}
    units = {key: written_unit(text) for key, text in texts.items() if text}
    return {key: unit for key, unit in units.items() if unit}


def in_unit(value: float, unit: str, dimension: Dimension, digits: int) -> str:
    """Return ``value`` (SI) in a unit that a user wrote, rounded to ``digits`` digits; with a
    prefix of its own where there is no unit, or the number would have many digits."""
    try:
        number = value / parse_quantity(f"1 {unit}", dimension)
    except UnitError:
        return readable(value, dimension, digits)
    if not FEWEST <= number < MOST:
        return readable(value, dimension, digits)
    return f"{float(f'{number:.{digits}g}'):.10g} {unit}"


def _document(given: str | Path) -> Mapping[str, Any]:
    """The mapping of a scenario file, with the mapping of the cluster file that it names."""
    try:
        path = find_file(str(given), "scenarios")
        document = dict(read_yaml(path)[0])
        cluster = document.get("cluster")
        if isinstance(cluster, str):
            document["cluster"] = read_yaml(find_file(cluster, "topologies", path.parent))[0]
    except (InputError, IndexError, TypeError, ValueError):
        return {}
    return document


def _text(document: Mapping[str, Any], key: str) -> str:
    """The text of a dotted key, whether it is written dotted or nested; '' where there is none."""
    if isinstance(text := document.get(key), str):
        return text
    for name, inner in document.items():
        if isinstance(inner, Mapping) and key.startswith(f"{name}."):
            return _text(inner, key.removeprefix(f"{name}."))
    return ""
