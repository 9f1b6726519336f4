"""Standing: how far a study is and how long it will still take.

It is shown as bars on a terminal or in a notebook, elsewhere as a line now and then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from simshuffle.study.cell_times import CellTimes, calibrations

if TYPE_CHECKING:
    from simshuffle.study.cell import Cell


@dataclass(frozen=True)
class Standing:
    """Progress of the cells of a stage."""

    done: int  # cells whose outcome is there, those that were kept from before included
    total: int  # cells of the stage
    # of the work of this session that is done, from 0 to 1, by the cells' costs; stages before and
    # after count too
    share: float
    # s until all are done, by the cells' costs, calibrated, and what they took so far; None while
    # nothing is known of it
    left_s: float | None
    # share done of each cell that is being done, by its label; cells of an equal label are one
    running: Mapping[str, float]


PRIOR_SECONDS = (
    1.0  # s of measured work that count as much as the cells' costs by estimate
)
LEAST_COST = (
    0.2  # s of a cell, whatever it computes: a process begins, and a file is written
)
MAX_ASSUMED_SHARE = (
    0.9  # share that a cell is taken to have done, at most, before it tells any
)

Progress = Callable[[Standing], None]
ProgressDisplay = Callable[[str], AbstractContextManager[Progress | None]]
"""Shows how far the cells are, which are called by the noun that it is given."""


@contextmanager
def show_share(
    noun: str, display: ProgressDisplay
) -> Iterator[Callable[[float], None] | None]:
    """Show the share done of something that is no cell, called ``noun``.

    Yields the function to call with that share, or None if nobody looks.
    """
    with display(noun) as progress:
        yield None if progress is None else _share_teller(noun, progress)


def _share_teller(noun: str, progress: Progress) -> Callable[[float], None]:
    """Return the function that tells ``progress`` the share done of ``noun``.

    Time counts from now on.
    """
    start = monotonic()

    def tell(share: float) -> None:
        """Tell ``progress`` the share that is done, from 0 to 1."""
        progress(
            Standing(
                0,
                1,
                share,
                estimate_seconds_left(share, monotonic() - start),
                {noun: share},
            )
        )

    return tell


def estimate_seconds_left(share: float, seconds_passed: float) -> float | None:
    """Return the seconds until all is done, from the share done in ``seconds_passed``.

    Returns None while 0.5 % or less is done, and in the first second.
    """
    return (
        seconds_passed * (1 - share) / share
        if share > 0.005 and seconds_passed > 1.0
        else None
    )


_listener: ContextVar[Progress | None] = ContextVar(
    "who is told how far a study is", default=None
)


@contextmanager
def listen_to_progress(progress: Progress | None) -> Iterator[None]:
    """Pass the shares of `share_teller` to ``progress`` within this context."""
    token = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(token)


def share_teller(noun: str) -> Callable[[float], None]:
    """Return a function that tells the listener which share of ``noun`` is done.

    ``noun`` is something that is no cell, and begins now. The share is from 0 to 1.
    Without a listener now (`listen_to_progress`) the function does nothing, even if one
    comes later.
    """
    progress = _listener.get()
    return (lambda share: None) if progress is None else _share_teller(noun, progress)


@dataclass
class WorkDone:
    """Time that the cells of finished stages took, beside their estimated costs."""

    cost: float = 0.0  # s of one core by estimate, of the work that is done
    busy: float = 0.0  # s that processes took for it


@dataclass
class StageWatch:
    """Follows the cells of a stage and tells how far they are and how long they still
    take.

    Cells of a kind (`Cell.timed_as`) that were slower than their estimates say how slow
    the others of that kind will be, and less so the cells of other kinds.
    """

    cells: Mapping[str, Cell]  # by their digests
    num_stored: int  # how many were there before
    progress: Progress | None  # who is told; nobody if None
    # share done of each cell that is being done, by digest
    shares: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)  # those that are done or lost
    at_once: int = 1  # how many are done at once, at most
    # s that cells took which are done or lost, where it is known when they began
    took: dict[str, float] = field(default_factory=dict)
    # of the stages before; this stage adds to it
    past: WorkDone = field(default_factory=WorkDone)
    later_cost: float = (
        0.0  # s of one core that the stages after this one take, by estimate
    )

    def __post_init__(self) -> None:
        """Take the costs of the cells, corrected by the times that are known of their
        kinds (`calibrations`), and correct ``later_cost`` alike.

        The time of the stage begins.
        """
        self._counted_until = self._last_advance = monotonic()
        times_of_kind = calibrations()
        self._start_of_cell = dict[str, float]()
        costs = {
            digest: cell.cost * times_of_kind.get(cell.timed_as, CellTimes()).factor
            for digest, cell in self.cells.items()
        }
        self._costs = {digest: max(cost, LEAST_COST) for digest, cost in costs.items()}
        # the stages after this one are about as slow on this machine
        if (estimated := sum(cell.cost for cell in self.cells.values())) > 0.0:
            self.later_cost *= sum(costs.values()) / estimated
        self._kinds = {digest: cell.timed_as for digest, cell in self.cells.items()}
        self._busy = dict.fromkeys(self._kinds.values(), 0.0)
        self._work_before = WorkDone(self.past.cost, self.past.busy)

    def advance(self, digest: str, share: float) -> None:
        """Note that a cell is running, and its share that is done; tell progress.

        The first call for a cell is taken as its begin.
        """
        self._count_busy()
        self._start_of_cell.setdefault(digest, self._counted_until)
        if self.shares.get(digest) != share:
            self._last_advance = self._counted_until
        self.shares[digest] = share
        self.tell()

    def end(self, digest: str) -> None:
        """Note that a cell is done, or lost, and the s that it took; tell progress.

        A second call for a cell changes nothing. ``took`` has no cell of which
        `advance` was never called.
        """
        self._count_busy()
        self._last_advance = self._counted_until
        if digest not in self.ended:
            self.ended.add(digest)
            if digest in self._start_of_cell:
                self.took[digest] = self._counted_until - self._start_of_cell[digest]
        self.shares.pop(digest, None)
        self.tell()

    def drop(self, digest: str) -> None:
        """Note that a cell has stopped and is to be run again, from its beginning."""
        self._count_busy()
        self.shares.pop(digest, None)
        self._start_of_cell.pop(digest, None)

    def _count_busy(self) -> None:
        """Add the time since the last call to the busy time of the running cells'
        kinds.
        """
        now = monotonic()
        for digest in self.shares:
            self._busy[self._kinds[digest]] += now - self._counted_until
        self._counted_until = now

    def tell(self) -> None:
        """Tell progress how far the cells are, and add this stage to ``past``.

        Nothing is done where nobody listens: ``past`` stays as it was, too.
        """
        if self.progress is None:
            return
        self._count_busy()
        remaining_costs = self._remaining_costs()
        done_cost = (
            self._work_before.cost
            + sum(self._costs.values())
            - sum(remaining_costs.values())
        )
        self.past.cost, self.past.busy = (
            done_cost,
            self._work_before.busy + sum(self._busy.values()),
        )
        remaining_cost = sum(remaining_costs.values()) + self.later_cost
        running = {
            self.cells[digest].label: cell_share
            for digest, cell_share in self.shares.items()
        }
        num_done = self.num_stored + len(self.ended)
        total = self.num_stored + len(self.cells)
        share = (
            done_cost / (done_cost + remaining_cost)
            if done_cost + remaining_cost
            else 1.0
        )
        self.progress(
            Standing(
                num_done,
                total,
                share,
                self._remaining_seconds(remaining_costs),
                running,
            )
        )

    def _remaining_costs(self) -> dict[str, float]:
        """Return seconds of one core by estimate that each cell still takes, by digest."""
        return {
            digest: 0.0
            if digest in self.ended
            else cost * (1.0 - self._share_done(digest))
            for digest, cost in self._costs.items()
        }

    def _share_done(self, digest: str) -> float:
        """Return the share of a cell that is done; 0 if it is not running.

        A running cell that has not told any share is judged by its cost, up to
        `MAX_ASSUMED_SHARE`; a cell that never tells one says nothing of how slow the
        others are.
        """
        share = self.shares.get(digest)
        if share == 0.0:
            share = min(
                (self._counted_until - self._start_of_cell[digest])
                / self._costs[digest],
                MAX_ASSUMED_SHARE,
            )
        return share or 0.0

    def _remaining_seconds(self, remaining_costs: Mapping[str, float]) -> float:
        """Return seconds until all is done: the remaining costs by estimate, times how
        much slower than their estimates the cells were. A cell that tells nothing for a
        while takes as long again.
        """
        remaining_cost = dict.fromkeys(self._busy, 0.0)
        done_cost = dict.fromkeys(self._busy, 0.0)
        for digest, kind in self._kinds.items():
            remaining_cost[kind] += remaining_costs[digest]
            done_cost[kind] += self._costs[digest] - remaining_costs[digest]
        slowness_of = {}
        for kind, busy in self._busy.items():
            # of all other kinds, from the stages before too; what this kind itself took counts more
            slowness_of_others = _slowness(
                1.0, self.past.cost - done_cost[kind], self.past.busy - busy
            )
            slowness_of[kind] = _slowness(slowness_of_others, done_cost[kind], busy)
        slowness = _slowness(1.0, self.past.cost, self.past.busy)
        remaining_seconds = sum(
            slowness_of[kind] * cost for kind, cost in remaining_cost.items()
        )
        # a cell that began late, or is large, outlasts the others
        longest = max(
            (
                slowness_of[self._kinds[digest]] * remaining_costs[digest]
                for digest in self.shares
            ),
            default=0.0,
        )
        seconds = (
            max(remaining_seconds / self.at_once, longest)
            + slowness * self.later_cost / self.at_once
        )
        return (
            max(seconds, self._counted_until - self._last_advance)
            if self.shares
            else seconds
        )


def _slowness(prior: float, cost: float, busy: float) -> float:
    """Return how many times as long as estimated cells take: ``busy`` s measured over
    ``cost`` s by estimate, beside which ``prior`` counts as much as `PRIOR_SECONDS` s.
    """
    return (PRIOR_SECONDS * prior + busy) / (PRIOR_SECONDS + cost)


FIRST_LINE = 5.0
"""s until the first line where there is no terminal: what is done by then needs none."""
SECONDS_BETWEEN_LINES = 30.0
"""s between two lines where there is no terminal, such as in the log of a batch job."""
MAX_BARS = 16  # cells that have a bar of their own, on a machine of many cores


@contextmanager
def study_progress(noun: str) -> Iterator[Progress]:
    """Show how far the cells of a study are, which are called ``noun``, such as 'run'.

    On a terminal and in a notebook these are bars, elsewhere lines on standard error.
    """
    if sys.stderr.isatty() or _in_notebook():
        with _show_bars(noun) as bars:
            yield bars
    else:
        yield _write_lines(noun)


def _in_notebook() -> bool:
    """Return whether Python runs in a notebook, whose standard error is no terminal and
    shows bars.
    """
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console  # noqa: PLC0415 - where something is shown

    return Console().is_jupyter


def duration(seconds: float) -> str:
    """Return a duration in words: '40 s' below 90 s, '12 min' below 90 min, else hours
    with a decimal: '3.4 h'.
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plural(noun: str) -> str:
    """Return the plural of a noun that a verb calls its cells by: 'runs', 'searches'."""
    return f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"


def _describe_progress(noun: str, standing: Standing) -> str:
    """Return how many cells are done, and the remaining time, in words.

    A single cell is called ``noun`` alone. Less than 1 s is not told.
    """
    # below 1 s nothing is promised: what is found is still to be written
    left_s = standing.left_s or 0.0
    remaining = f", about {duration(left_s)} left" if left_s >= 1.0 else ""
    count = f"{standing.done} of {standing.total} {plural(noun)} done"
    return f"{count if standing.total > 1 else noun}{remaining}"


def _write_lines(noun: str) -> Progress:
    """Return a function that writes the progress to standard error now and then.

    The first line comes after `FIRST_LINE` s, others `SECONDS_BETWEEN_LINES` s apart.
    """
    next_line = [monotonic() + FIRST_LINE]

    def tell(standing: Standing) -> None:
        """Write a line if it is time for one."""
        if monotonic() >= next_line[0]:
            next_line[0] = monotonic() + SECONDS_BETWEEN_LINES
            running = ", ".join(
                f"{name} {share:.0%}" for name, share in standing.running.items()
            )
            text = f"{standing.share:.0%}: {_describe_progress(noun, standing)}"
            sys.stderr.write(f"{text} ({running})\n" if running else f"{text}\n")

    return tell


@contextmanager
def _show_bars(noun: str) -> Iterator[Progress]:
    """Show bars: one for the study, and one for each of `MAX_BARS` running cells.

    A study of a single cell has the bar of the cell alone. Further cells are not shown.
    Bars are on standard error, and vanish at the end.
    """
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
            """Update the bars; add and remove bars of cells."""
            if standing.total > 1:
                if "" not in tasks:
                    tasks[""] = bars.add_task(noun, total=1.0)
                text = _describe_progress(noun, standing)
                bars.update(tasks[""], completed=standing.share, description=text)
            displayed = dict(list(standing.running.items())[:MAX_BARS])
            for label in [label for label in tasks if label and label not in displayed]:
                bars.remove_task(tasks.pop(label))
            for label, share in displayed.items():
                if label not in tasks:
                    tasks[label] = bars.add_task(label, total=1.0)
                text = (
                    label if standing.total > 1 else _describe_progress(label, standing)
                )
                bars.update(tasks[label], completed=share, description=text)

        yield tell
