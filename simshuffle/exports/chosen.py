"""The ranks that an export shows, by number or by what they are like."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.results.report import sample, seconds_by_rank
from simshuffle.results.timeline import EXCLUSIVE, PHASES
from simshuffle.spec.library import nearest

ALL_UP_TO = 16
"""Ranks of a run that are all shown if nobody says which."""
WORDS = ("slowest", "fastest", "sample", "all")


@dataclass(frozen=True)
class Chosen:
    """Ranks."""

    # in their order, the slowest and the fastest first if they were asked for
    ranks: tuple[int, ...]
    # slowest, fastest: those that spend most and least time not waiting for others
    slowest: int
    fastest: int

    def about(self, rank: int) -> str:
        """What is special about a rank, in brackets; '' if nothing is."""
        if self.slowest == self.fastest:
            return ""
        return {self.slowest: " (slowest)", self.fastest: " (fastest)"}.get(rank, "")


def check_ranks(text: str | None, world_size: int) -> list[str]:
    """The parts of what was asked for, before anything is simulated.

    Raises:
        InputError: one of them names no rank.
    """
    if text is None:
        return ["all"] if world_size <= ALL_UP_TO else ["slowest", "fastest", "sample"]
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if part in WORDS:
            continue
        if not re.fullmatch(r"[0-9]{1,9}(-[0-9]{1,9})?", part):
            remedy = nearest(part, [*WORDS, "0", "4-7"])
            problem = Problem("--ranks", "must be ranks, or words for them", repr(part), remedy)
            raise InputError(problem, "command line")
        low, high = _bounds(part)
        if not low <= high < world_size:
            rule = f"must be ranks from 0 to {world_size - 1}"
            raise InputError(Problem("--ranks", rule, part, "Name one of them."), "command line")
    return parts


def _bounds(part: str) -> tuple[int, int]:
    first, _, last = part.partition("-")
    return int(first), int(last or first)


def chosen(parts: Sequence[str], tables: Sequence[pd.DataFrame]) -> Chosen:
    """The ranks that were asked for.

    Args:
        parts: from `check_ranks`.
        tables: the phases of every epoch, perhaps of some ranks only.

    Raises:
        InputError: a rank is not in the tables.
    """
    seconds = sum(seconds_by_rank(table).sum(axis=0) for table in tables)
    there = np.unique(tables[0]["rank"].to_numpy())
    own = [name in EXCLUSIVE and not name.startswith("wait_") for name in PHASES]
    busy = np.asarray(seconds)[:, own].sum(axis=1)[there]
    slowest, fastest = int(there[busy.argmax()]), int(there[busy.argmin()])
    ranks: dict[int, None] = {}
    more: Iterable[int]
    for part in parts:
        if part == "slowest":
            more = [slowest]
        elif part == "fastest":
            more = [fastest]
        elif part == "sample":
            more = sample(seconds_by_rank(tables[0])) if len(there) == there[-1] + 1 else there
        elif part == "all":
            more = there
        else:
            low, high = _bounds(part)
            more = range(low, high + 1)
        ranks |= dict.fromkeys(map(int, more))
    known = set(there.tolist())
    if missing := [str(rank) for rank in ranks if rank not in known]:
        rule = f"must be ranks of which the result has the timeline: {_listed(there.tolist())}"
        problem = Problem("--ranks", rule, ", ".join(missing[:3]), "Leave --messages none out.")
        raise InputError(problem, "command line")
    first = [rank for rank in (slowest, fastest) if rank in ranks and len(ranks) > ALL_UP_TO // 4]
    return Chosen(tuple(dict.fromkeys([*first, *sorted(ranks)])), slowest, fastest)


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:20])) + f" and {len(ranks) - 20} more" * (len(ranks) > 20)
