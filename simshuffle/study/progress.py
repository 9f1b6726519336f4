"""How far a study is, on standard error: bars on a terminal or in a notebook, and elsewhere a line
now and then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from simshuffle.study.standing import Progress, Standing

FIRST_LINE = 5.0
"""s until the first line where there is no terminal: what is done by then needs none."""
A_LINE_EVERY = 30.0
"""s between two lines where there is no terminal, such as in the log of a batch job."""
MOST_BARS = 16
"""Cells that have a bar of their own, on a machine of many cores."""


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


def _overall(noun: str, standing: Standing) -> str:
    if standing.total == 1:
        return f"{noun}{_left(standing)}"
    return f"{standing.done} of {standing.total} {noun}s done{_left(standing)}"


def _left(standing: Standing) -> str:
    # at the end what is found is still to be written
    return f", about {duration(standing.left_s)} left" if standing.left_s else ""


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
                text = label if standing.total > 1 else f"{label}{_left(standing)}"
                bars.update(tasks[label], completed=share, description=text)

        yield tell
