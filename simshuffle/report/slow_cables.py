"""Sentences on slow cables, and on those that a run uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MIN_FULL_SHARE = 0.999  # share of a cable from which it is full


MENDED_IS_EQUAL = (
    "if mended, the result would be the same"  # why --mended changes nothing
)


def describe_slow_cables_on_routes(facts: Mapping[str, Any]) -> str:
    """Return a sentence on the slow cables on the routes of a run, before it is
    simulated.

    ``facts`` is 'slow_cables' of `simshuffle.job.plan.findings.slow_cable_facts`:
    numbers of all ``cables``, of ``slow`` ones and of slow ones ``used``, and the
    ``names`` of the first of these.
    """
    if facts["used"]:
        used = name_used_cables(facts)
        return f"{_count_slow(facts)}, {used} on the routes between ranks and to their files"
    return (
        f"{_count_slow(facts)}, none on a route between ranks or to their files:"
        f" {MENDED_IS_EQUAL}"
    )


def describe_slow_cables_in_use(facts: Mapping[str, Any]) -> str:
    """Return a sentence on the slow cables that a simulated run used, and how full.

    ``facts`` is 'slow_cables' of `simshuffle.job.plan.findings.SlowCables.facts`: as in
    `describe_slow_cables_on_routes`, with the largest utilisation (share of 1) of a
    slow cable at a moment (``peak``) and as mean over an epoch (``mean``). A ``peak``
    from `MIN_FULL_SHARE` on is full.
    """
    if not facts["used"]:
        return f"{_count_slow(facts)}, none in use: {MENDED_IS_EQUAL}"
    if facts["peak"] < MIN_FULL_SHARE:
        return (
            f"{_count_slow(facts)}, {name_used_cables(facts)} in use,"
            f" at most {100 * facts['peak']:.2g} % full: if mended, hardly anything would change"
        )
    share = f"{100 * facts['mean']:.2g} %"
    used = name_used_cables(facts)
    return (
        f"{_count_slow(facts)}, {used} in use, full at times, {share} full on average"
    )


def _count_slow(facts: Mapping[str, Any]) -> str:
    """Return how many cables are slow, of how many: the beginning of a sentence."""
    return f"Slow cables: {facts['slow']:,} of {facts['cables']:,}"


def name_used_cables(facts: Mapping[str, Any]) -> str:
    """Return the number of slow cables in use, and the names of the first in brackets.

    Dots follow if there are more than ``facts`` names.
    """
    names = ", ".join(facts["names"])
    ellipsis = ", ..." if facts["used"] > len(facts["names"]) else ""
    return f"{facts['used']:,} ({names}{ellipsis})"
