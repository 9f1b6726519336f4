"""Standing: how far a study is and how long it will still take, as bars on a terminal or in a
notebook, elsewhere as a line now and then. How much longer than by their costs cells took is in a
file in the user's cache folder; one that cannot be read or written is none."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from simshuffle.version import __version__

if TYPE_CHECKING:
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


TRUST = 1.0  # s of measured work that count as much as the cells' costs by estimate
LEAST_COST = 0.2  # s of a cell, whatever it computes: a process begins, and a file is written
UNTOLD = 0.9  # share that a cell is taken to have done, at most, before it tells any

Progress = Callable[[Standing], None]
Shown = Callable[[str], AbstractContextManager[Progress | None]]
"""Shows how far the cells are, which are called by the noun that it is given."""


@contextmanager
def share_shown(noun: str, shown: Shown) -> Iterator[Callable[[float], None] | None]:
    """Tells the share done of something that is no cell, called ``noun``; None if nobody looks."""
    with shown(noun) as progress:
        yield None if progress is None else _share_teller(noun, progress)


def _share_teller(noun: str, progress: Progress) -> Callable[[float], None]:
    begun = monotonic()

    def tell(share: float) -> None:
        progress(Standing(0, 1, share, left(share, monotonic() - begun), {noun: share}))

    return tell


def left(share: float, passed: float) -> float | None:
    """s until all is done of which a share was done in ``passed`` s; None while that is a guess."""
    return passed * (1 - share) / share if share > 0.005 and passed > 1.0 else None


_listener: ContextVar[Progress | None] = ContextVar("who is told how far a study is", default=None)


@contextmanager
def listening(progress: Progress | None) -> Iterator[None]:
    """Have `share_teller` tell ``progress`` in this context."""
    before = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(before)


def share_teller(noun: str) -> Callable[[float], None]:
    """Return a function that tells whoever listens to the study which share of ``noun`` is done:
    something that is no cell, and begins now."""
    progress = _listener.get()
    return (lambda share: None) if progress is None else _share_teller(noun, progress)


@dataclass
class WorkDone:
    """What cells took beside what they were estimated to cost, in the stages that are over."""

    cost: float = 0.0  # s of one core by estimate, of the work that is done
    busy: float = 0.0  # s that processes took for it


@dataclass
class StageWatch:
    """Follows the cells of a stage and tells how far they are and how long they still take.

    Cells of a kind (`Cell.timed_as`) that were slower than their estimates say how slow the others
    of that kind will be, and less so the cells of other kinds.
    """

    cells: Mapping[str, Cell]  # by their digests
    kept: int  # how many were there before
    progress: Progress | None  # who is told; nobody if None
    # share done of each cell that is being done, by digest
    shares: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)  # those that are done or lost
    at_once: int = 1  # how many are done at once, at most
    # s that cells took which are done or lost, where it is known when they began
    took: dict[str, float] = field(default_factory=dict)
    past: WorkDone = field(default_factory=WorkDone)  # of the stages before; this stage adds to it
    later_cost: float = 0.0  # s of one core that the stages after this one take, by estimate

    def __post_init__(self) -> None:
        self._last = self._advanced = monotonic()
        known, self._begun = calibrations(), dict[str, float]()
        costs = {
            digest: cell.cost * known.get(cell.timed_as, CellTimes()).factor
            for digest, cell in self.cells.items()
        }
        self._costs = {digest: max(cost, LEAST_COST) for digest, cost in costs.items()}
        # the stages after this one are about as slow on this machine
        if (estimated := sum(cell.cost for cell in self.cells.values())) > 0.0:
            self.later_cost *= sum(costs.values()) / estimated
        self._kinds = {digest: cell.timed_as for digest, cell in self.cells.items()}
        self._busy = dict.fromkeys(self._kinds.values(), 0.0)
        self._before = WorkDone(self.past.cost, self.past.busy)

    def at(self, digest: str, share: float) -> None:
        """Note that a cell is being done, and which share of it is done."""
        self._count()
        self._begun.setdefault(digest, self._last)
        if self.shares.get(digest) != share:
            self._advanced = self._last
        self.shares[digest] = share
        self.tell()

    def end(self, digest: str) -> None:
        """Note that a cell is done, or lost."""
        self._count()
        self._advanced = self._last
        if digest not in self.ended:
            self.ended.add(digest)
            if digest in self._begun:
                self.took[digest] = self._last - self._begun[digest]
        self.shares.pop(digest, None)
        self.tell()

    def drop(self, digest: str) -> None:
        """Note that a cell is to be done again."""
        self._count()
        self.shares.pop(digest, None)
        self._begun.pop(digest, None)

    def _count(self) -> None:
        now = monotonic()
        for digest in self.shares:
            self._busy[self._kinds[digest]] += now - self._last
        self._last = now

    def tell(self) -> None:
        """Tell how far the cells are."""
        if self.progress is None:
            return
        self._count()
        left = self._left_costs()
        done_cost = self._before.cost + sum(self._costs.values()) - sum(left.values())
        self.past.cost, self.past.busy = done_cost, self._before.busy + sum(self._busy.values())
        rest = sum(left.values()) + self.later_cost
        running = {self.cells[digest].label: part for digest, part in self.shares.items()}
        done, total = self.kept + len(self.ended), self.kept + len(self.cells)
        share = done_cost / (done_cost + rest) if done_cost + rest else 1.0
        self.progress(Standing(done, total, share, self._left_seconds(left), running))

    def _left_costs(self) -> dict[str, float]:
        """Return s of one core by estimate that each cell still takes, by digest."""
        return {
            digest: 0.0 if digest in self.ended else cost * (1.0 - self._share_done(digest))
            for digest, cost in self._costs.items()
        }

    def _share_done(self, digest: str) -> float:
        """Return the share of a cell that is done; by its cost where it is being done and has not
        told any. A cell that never tells one says nothing of how slow the others are."""
        share = self.shares.get(digest)
        if share == 0.0:
            share = min((self._last - self._begun[digest]) / self._costs[digest], UNTOLD)
        return share or 0.0

    def _left_seconds(self, left: Mapping[str, float]) -> float:
        """Return s until all is done: what is left by estimate, times how much slower than their
        estimates the cells were. A cell that says nothing for a while takes as long again."""
        kinds = dict.fromkeys(self._busy, 0.0)
        done = dict.fromkeys(self._busy, 0.0)
        for digest, kind in self._kinds.items():
            kinds[kind] += left[digest]
            done[kind] += self._costs[digest] - left[digest]
        slowness_of = {}
        for kind, busy in self._busy.items():
            others = _slowness(1.0, self.past.cost - done[kind], self.past.busy - busy)
            slowness_of[kind] = _slowness(others, done[kind], busy)
        slowness = _slowness(1.0, self.past.cost, self.past.busy)
        rest = sum(slowness_of[kind] * cost for kind, cost in kinds.items())
        # a cell that began late, or is large, outlasts the others
        longest = max(
            (slowness_of[self._kinds[digest]] * left[digest] for digest in self.shares), default=0.0
        )
        seconds = max(rest / self.at_once, longest) + slowness * self.later_cost / self.at_once
        return max(seconds, self._last - self._advanced) if self.shares else seconds


def _slowness(prior: float, cost: float, busy: float) -> float:
    """Return how many times as long as by estimate cells take: ``busy`` s measured over ``cost`` s
    by estimate, beside which ``prior`` counts as much as `TRUST` s."""
    return (TRUST * prior + busy) / (TRUST + cost)


FACTOR = 3.0
"""Factor of which 9 of 10 costs are right on a machine like the one on which they were fitted
(docs/data/effort.csv)."""
SURE = 0.9  # share of the cells for which a factor is claimed
KEPT = 20  # cells of a kind that are remembered
FEWEST = 3  # cells of a kind from which on they count
WORTH = 0.3
"""s that a cell must cost or take at least: less is mostly the clock's, and the system's."""


@dataclass(frozen=True)
class CellTimes:
    """What cells of a kind take."""

    factor: float = 1.0  # the median of what they took, over their costs
    within: float = FACTOR  # 9 of 10 take as long by that factor, or less than it off
    count: int = 0  # cells that this rests on; 0 if none of that kind are known

    @classmethod
    def of(cls, ratios: list[float]) -> CellTimes:
        """From what cells took over their costs."""
        if len(ratios) < FEWEST:
            return cls()
        factor = statistics.median(ratios)
        off = sorted(max(ratio / factor, factor / ratio) for ratio in ratios)
        within = off[math.ceil(SURE * len(off)) - 1]
        # a few say little of how much the next one may be off
        share = len(off) / KEPT
        return cls(factor, max(within, FACTOR ** (1.0 - share), 1.5), len(ratios))


def file() -> Path:
    """Where they are kept."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "simshuffle" / "calibration.json"


def calibrations() -> Mapping[str, CellTimes]:
    """What is known of cells on this machine, by their kind."""
    return {kind: CellTimes.of(ratios) for kind, ratios in _read().items()}


def note(found: Iterable[tuple[str, float, float]]) -> None:
    """Remember cells: kind, cost and what it took (s)."""
    known = _read()
    news = [
        (kind, took / cost)
        for kind, cost, took in found
        if min(cost, took) > 0 and max(cost, took) >= WORTH
    ]
    if not news:
        return
    for kind, ratio in news:
        known[kind] = [*known.get(kind, []), ratio][-KEPT:]
    with suppress(OSError, RuntimeError):
        path = file()
        path.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(number, "w", encoding="utf-8") as text:
            json.dump({"version": __version__, "ratios": known}, text)
        Path(name).replace(path)


def _read() -> dict[str, list[float]]:
    """What cells took over their costs, by their kind; nothing where the file is not there, or not
    such a file, or of another version, whose costs may be others."""
    with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError):
        content = json.loads(file().read_text(encoding="utf-8"))
        if content["version"] == __version__:
            return {
                str(kind): [float(ratio) for ratio in ratios if 0 < float(ratio) < math.inf][-KEPT:]
                for kind, ratios in content["ratios"].items()
            }
    return {}


FIRST_LINE = 5.0
"""s until the first line where there is no terminal: what is done by then needs none."""
A_LINE_EVERY = 30.0
"""s between two lines where there is no terminal, such as in the log of a batch job."""
MOST_BARS = 16  # cells that have a bar of their own, on a machine of many cores


@contextmanager
def study_progress(noun: str) -> Iterator[Progress]:
    """Tells how far the cells of a study are, which are called ``noun``, such as 'run'."""
    if sys.stderr.isatty() or _in_notebook():
        with _bars(noun) as bars:
            yield bars
    else:
        yield _lines(noun)


def _in_notebook() -> bool:
    """Whether Python runs in a notebook, whose standard error is no terminal and shows bars."""
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console  # noqa: PLC0415 - where something is shown

    return Console().is_jupyter


def duration(seconds: float) -> str:
    """A duration in words: '40 s', '12 min', '3.4 h'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plural(noun: str) -> str:
    """Return the plural of a noun that a verb calls its cells by: 'runs', 'searches'."""
    return f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"


def _overall(noun: str, standing: Standing) -> str:
    # below 1 s nothing is promised: what is found is still to be written
    left_s = standing.left_s or 0.0
    rest = f", about {duration(left_s)} left" if left_s >= 1.0 else ""
    several = f"{standing.done} of {standing.total} {plural(noun)} done"
    return f"{several if standing.total > 1 else noun}{rest}"


def _lines(noun: str) -> Progress:
    following = [monotonic() + FIRST_LINE]

    def tell(standing: Standing) -> None:
        if monotonic() >= following[0]:
            following[0] = monotonic() + A_LINE_EVERY
            running = ", ".join(f"{name} {share:.0%}" for name, share in standing.running.items())
            text = f"{standing.share:.0%}: {_overall(noun, standing)}"
            sys.stderr.write(f"{text} ({running})\n" if running else f"{text}\n")

    return tell


@contextmanager
def _bars(noun: str) -> Iterator[Progress]:
    from rich import progress as rich  # noqa: PLC0415 - where something is shown
    from rich.console import Console  # noqa: PLC0415

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.TextColumn("{task.percentage:>3.0f} %"),
        rich.TimeElapsedColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, rich.TaskID] = {}

        def tell(standing: Standing) -> None:
            if standing.total > 1:
                if "" not in tasks:
                    tasks[""] = bars.add_task(noun, total=1.0)
                text = _overall(noun, standing)
                bars.update(tasks[""], completed=standing.share, description=text)
            shown = dict(list(standing.running.items())[:MOST_BARS])
            for label in [label for label in tasks if label and label not in shown]:
                bars.remove_task(tasks.pop(label))
            for label, share in shown.items():
                if label not in tasks:
                    tasks[label] = bars.add_task(label, total=1.0)
                text = label if standing.total > 1 else _overall(label, standing)
                bars.update(tasks[label], completed=share, description=text)

        yield tell
