"""Standing: how far a study is, and how long it will still take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from simshuffle.study.cell import Cell


@dataclass(frozen=True)
class Standing:
    """How far the cells of a stage are.

    Attributes:
        done: cells whose outcome is there, those that were kept from before included.
        total: cells.
        share: of the work of this session that is done, from 0 to 1, by the cells' costs.
        left_s: s until all are done, from the speed so far; None while nothing is known of it.
        running: share done of each cell that is being done, by its label.
    """

    done: int
    total: int
    share: float
    left_s: float | None
    running: Mapping[str, float]


Progress = Callable[[Standing], None]


def left(share: float, passed: float) -> float | None:
    """s until all is done of which a share was done in ``passed`` s; None while that is a guess."""
    return passed * (1 - share) / share if share > 0.005 and passed > 1.0 else None


@dataclass
class Watch:
    """Follows the cells of a stage and tells of them."""

    cells: Mapping[str, Cell]
    kept: int
    progress: Progress | None
    shares: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    begun: float = 0.0

    def __post_init__(self) -> None:
        self.begun = monotonic()

    def at(self, digest: str, share: float) -> None:
        """A cell is being done, and that share of it is there."""
        if digest in self.cells and digest not in self.ended:
            self.shares[digest] = share
            self.tell()

    def end(self, digest: str) -> None:
        """A cell is done, or lost."""
        self.ended.add(digest)
        self.shares.pop(digest, None)
        self.tell()

    def drop(self, digest: str) -> None:
        """A cell is to be done again."""
        self.shares.pop(digest, None)

    def tell(self) -> None:
        """Tell how far the cells are."""
        if self.progress is None:
            return
        whole = sum(cell.cost for cell in self.cells.values())
        # reports come from another thread, and may come late
        shares = {d: share for d, share in dict(self.shares).items() if d not in self.ended}
        done = sum(self.cells[digest].cost for digest in self.ended)
        done += sum(self.cells[digest].cost * share for digest, share in shares.items())
        share = min(done / whole, 1.0) if whole else 1.0
        passed = monotonic() - self.begun
        running = {self.cells[digest].label: share for digest, share in shares.items()}
        total = self.kept + len(self.cells)
        self.progress(
            Standing(self.kept + len(self.ended), total, share, left(share, passed), running)
        )
