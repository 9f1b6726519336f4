"""All runs of all patterns on a bed of namespaces, one repetition after the other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from simshuffle.errors import SimshuffleError
from simshuffle.studies.testbed import hosts, namespaces
from simshuffle.studies.testbed.hosts import Crew, Measured
from simshuffle.studies.testbed.patterns import GLOO, Pattern
from simshuffle.studies.testbed.predict import Overhead, makespan
from simshuffle.studies.testbed.settings import Settings

Progress = Callable[[float], None]
LATE_SHARE = 0.02
STEAL_SHARE = 0.05


@dataclass(frozen=True)
class Run:
    """A measured run of a pattern.

    Attributes:
        pattern: its name.
        repetition: from 1 on.
        measured: what was measured.
    """

    pattern: str
    repetition: int
    measured: Measured

    @property
    def held_up(self) -> bool:
        """Whether a processor was missing for so long that this run may be wrong for it: one
        hold-up was longer than a fiftieth of the run, or a twentieth of the processors' time was
        taken away."""
        late = self.measured.late > LATE_SHARE * self.measured.makespan
        return late or self.measured.steal > STEAL_SHARE


@dataclass(frozen=True)
class Measurement:
    """What was measured.

    Attributes:
        settings: what was asked for.
        runs: in their order; those that were held up too.
        date: when it began.
    """

    settings: Settings
    runs: Sequence[Run]
    date: datetime

    def counted(self, pattern: str) -> list[Run]:
        """The runs of a pattern that count: those that were not held up; all of them where none is
        left."""
        runs = [run for run in self.runs if run.pattern == pattern]
        return [run for run in runs if not run.held_up] or runs


def measure_all(settings: Settings, progress: Progress | None) -> Measurement:
    """Build the bed, measure, remove it; ``progress`` is told the share that is done.

    A run that was held up is measured again, at most once for each repetition; it stays in the
    list.

    Raises:
        InputError: this machine cannot build a bed.
        SimshuffleError: a command or a host failed, or it took too long.
    """
    date, deadline = datetime.now(UTC), time.monotonic() + settings.limit
    made = {name: settings.pattern(name) for name in settings.patterns}
    total = settings.repetitions * len(made)
    runs: list[Run] = []
    with ExitStack() as stack:
        stack.enter_context(namespaces.terminated_as_interrupted())
        namespaces.check_machine()
        crews = _crews(settings, stack)
        for number in range(total):
            name = settings.patterns[number % len(made)]
            for _ in range(2):
                measured = _measured(settings, crews, name, made[name], deadline)
                runs.append(Run(name, number // len(made) + 1, measured))
                if not runs[-1].held_up:
                    break
            if progress is not None:
                progress((number + 1) / total)
    return Measurement(settings, runs, date)


def _crews(settings: Settings, stack: ExitStack) -> dict[str, Crew]:
    """The bed with its hosts by what they speak; ``stack`` ends them and removes it."""
    run = stack.enter_context(namespaces.built(settings.bed))
    crews = {"tcp": stack.enter_context(hosts.tcp_hosts(settings.bed, run, settings.limit))}
    if any(name in GLOO for name in settings.patterns):
        room = tempfile.TemporaryDirectory(prefix="simshuffle-", ignore_cleanup_errors=True)
        meeting = Path(stack.enter_context(room)) / "meeting"
        gloo = hosts.gloo_hosts(settings.bed, run, settings.limit, meeting)
        crews["gloo"] = stack.enter_context(gloo)
    return crews


def _measured(
    settings: Settings, crews: Mapping[str, Crew], name: str, pattern: Pattern, deadline: float
) -> Measured:
    expected = makespan(settings.bed, pattern, Overhead())
    limit = min(10.0 + 5.0 * expected, deadline - time.monotonic())
    if limit <= 0:
        raise SimshuffleError(
            f"the testbed did not finish within --limit {settings.limit:g} s; give a longer one or"
            " fewer --repetitions"
        )
    if name not in GLOO:
        return hosts.measure(crews["tcp"], pattern, limit, partial(hosts.tcp_order, pattern))
    order = partial(hosts.gloo_order, pattern, GLOO[name](settings.bed, settings.seed))
    return hosts.measure(crews["gloo"], pattern, limit, order)
