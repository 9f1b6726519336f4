"""Standing: how far a study is, and how long it will still take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from time import monotonic

from simshuffle.study.calibration import Calibration, calibrations
from simshuffle.study.cell import Cell


@dataclass(frozen=True)
class Standing:
    """How far the cells of a stage are."""

    done: int  # cells whose outcome is there, those that were kept from before included
    total: int  # cells
    share: float  # of the work of this session that is done, from 0 to 1, by the cells' costs
    # s until all are done, by the cells' costs, calibrated, and what they took so far; None while
    # nothing is known of it
    left_s: float | None
    running: Mapping[str, float]  # share done of each cell that is being done, by its label


TRUST = 1.0
"""s of measured work that count as much as the cells' costs by estimate."""

Progress = Callable[[Standing], None]


Shown = Callable[[str], AbstractContextManager[Progress | None]]
"""Shows how far the cells are, which are called by the noun that it is given."""


@contextmanager
def share_shown(noun: str, shown: Shown) -> Iterator[Callable[[float], None] | None]:
    """Tells the share done of a single thing that is no cell, called ``noun``; None if nothing is
    shown."""
    begun = monotonic()
    with shown(noun) as tell:

        def report(share: float) -> None:
            if tell is not None:
                tell(Standing(0, 1, share, left(share, monotonic() - begun), {noun: share}))

        yield None if tell is None else report


def left(share: float, passed: float) -> float | None:
    """s until all is done of which a share was done in ``passed`` s; None while that is a guess."""
    return passed * (1 - share) / share if share > 0.005 and passed > 1.0 else None


@dataclass
class Watch:
    """Follows the cells of a stage and tells of them."""

    cells: Mapping[str, Cell]  # by their digests
    kept: int  # how many were there before
    progress: Progress | None  # who is told; nobody if None
    # that are done, of the cells that are being done
    shares: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)  # those that are done or lost
    at_once: int = 1  # how many are done at once, at most
    # s that cells took which are done or lost, where it is known when they began
    took: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._last, self._busy = monotonic(), 0.0
        known, self._begun = calibrations(), dict[str, float]()
        self._costs = {
            digest: cell.cost * known.get(cell.timed_as, Calibration()).factor
            for digest, cell in self.cells.items()
        }
        self._whole = self._waiting = sum(self._costs.values())

    def at(self, digest: str, share: float) -> None:
        """A cell is being done, and that share of it is there."""
        self._count()
        self._begun.setdefault(digest, self._last)
        self.shares[digest] = share
        self.tell()

    def end(self, digest: str) -> None:
        """A cell is done, or lost."""
        self._count()
        if digest not in self.ended:
            self.ended.add(digest)
            if digest in self._begun:
                self.took[digest] = self._last - self._begun[digest]
            self._waiting -= self._costs[digest]
        self.shares.pop(digest, None)
        self.tell()

    def drop(self, digest: str) -> None:
        """A cell is to be done again."""
        self._count()
        self.shares.pop(digest, None)
        self._begun.pop(digest, None)

    def _count(self) -> None:
        """Count the time that processes were busy since the last time."""
        now = monotonic()
        self._busy += (now - self._last) * len(self.shares)
        self._last = now

    def tell(self) -> None:
        """Tell how far the cells are."""
        if self.progress is None:
            return
        self._count()
        left = {digest: self._costs[digest] * (1.0 - part) for digest, part in self.shares.items()}
        waiting = self._waiting - sum(self._costs[digest] for digest in self.shares)
        rest = max(waiting + sum(left.values()), 0.0)
        running = {self.cells[digest].label: part for digest, part in self.shares.items()}
        done, total = self.kept + len(self.ended), self.kept + len(self.cells)
        share = 1.0 - rest / self._whole if self._whole else 1.0
        self.progress(Standing(done, total, share, self._seconds(rest, left), running))

    def _seconds(self, rest: float, left: Mapping[str, float]) -> float:
        """s until all is done, of which the costs ``rest`` remain, ``left`` of each cell that is
        being done. Beside what was measured stands that a cell takes what it costs."""
        slowness = (TRUST + self._busy) / (TRUST + self._whole - rest)
        # one that began late, or is large, outlasts the others
        return slowness * max(rest / self.at_once, max(left.values(), default=0.0))
