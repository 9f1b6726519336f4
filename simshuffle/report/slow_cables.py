"""What is said of slow cables, and of those that a run uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FULL = 0.999  # share of a cable from which it is full


SAME = "mended, the result is the same"  # why a run with --mended is as this one


def slow_cables_on_the_ways(about: Mapping[str, Any]) -> str:
    """Of the ways of a run that is not simulated yet."""
    if about["used"]:
        return f"{_counted(about)}, {_used(about)} on the ways between ranks and to their files"
    return f"{_counted(about)}, none on a way between ranks or to their files: {SAME}"


def slow_cables_in_use(about: Mapping[str, Any]) -> str:
    """Of a run that was simulated."""
    if not about["used"]:
        return f"{_counted(about)}, none in use: {SAME}"
    if about["peak"] < FULL:
        return (
            f"{_counted(about)}, {_used(about)} in use, at most {100 * about['peak']:.2g} % full:"
            " mended, hardly anything changes"
        )
    share = f"{100 * about['mean']:.2g} %"
    return f"{_counted(about)}, {_used(about)} in use, full at times, {share} full in the mean"


def _counted(about: Mapping[str, Any]) -> str:
    return f"Slow cables: {about['slow']:,} of {about['cables']:,}"


def _used(about: Mapping[str, Any]) -> str:
    names = ", ".join(about["names"])
    more = ", ..." if about["used"] > len(about["names"]) else ""
    return f"{about['used']:,} ({names}{more})"
