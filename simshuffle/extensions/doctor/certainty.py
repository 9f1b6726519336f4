"""Say how often a diagnosis with such evidence was right: counts of generated trainings."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

TABLE = "calibration.csv"
"""File of the counts, beside this one: kind of cause, evidence, right, cases. It is
written by benchmarks/doctor_calibration.py.
"""
HEALTHY = "healthy"
"""Kind of a diagnosis without a cause."""
BINS = (0.0, 0.5, 0.8, 0.95)
"""Low ends of the bins of evidence (chosen)."""
MIN_CASES = 20
"""Cases of a kind below which those of all kinds count (chosen)."""
SURE, LIKELY, PERHAPS = 0.9, 0.7, 0.5
"""Shares of right cases from which a diagnosis is called so."""


@dataclass(frozen=True)
class Certainty:
    """Count of cases with some evidence, and of the right ones among them."""

    right: int
    cases: int

    @property
    def share(self) -> float:
        """Share of right cases, by Laplace's rule of succession: 0.5 without cases."""
        return (self.right + 1) / (self.cases + 2)

    def words(self) -> str:
        """Return the certainty in words, with its cases."""
        if not self.cases:
            return "not known how sure"
        word = "unsure"
        for limit, name in ((SURE, "sure"), (LIKELY, "likely"), (PERHAPS, "perhaps")):
            if self.right >= limit * self.cases:
                word = name
                break
        return f"{word} ({self.right} of {self.cases} such cases)"


def bin_of(evidence: float) -> float:
    """Return the low end of the bin that an evidence from 0 to 1 is in."""
    return max(low for low in BINS if low <= max(evidence, 0.0))


@cache
def _counts() -> dict[tuple[str, float], Certainty]:
    """Read the counts: by kind of cause and bin."""
    text = (files(__package__) / TABLE).read_text(encoding="utf-8")
    return {
        (row["kind"], float(row["evidence"])): Certainty(
            int(row["right"]), int(row["cases"])
        )
        for row in csv.DictReader(text.splitlines())
    }


def certainty_of(kind: str, evidence: float) -> Certainty:
    """Return how often a first cause of this kind, with such evidence, was right; of all
    kinds with a cause together where the kind has fewer than `MIN_CASES`.

    Args:
        kind: name of the cause.
        evidence: from 0 to 1.
    """
    low = bin_of(evidence)
    counts = _counts()
    kind_count = counts.get((kind, low), Certainty(0, 0))
    if kind_count.cases >= MIN_CASES or kind == HEALTHY:
        return kind_count
    same_bin = [
        count
        for (name, bin_low), count in counts.items()
        if bin_low == low and name != HEALTHY
    ]
    return Certainty(
        sum(count.right for count in same_bin), sum(count.cases for count in same_bin)
    )
