"""All runs of all patterns on a bed of namespaces, one repetition after the other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simshuffle.errors import SimshuffleError
from simshuffle.studies.testbed import hosts, namespaces
from simshuffle.studies.testbed.bed import Bed
from simshuffle.studies.testbed.hosts import Crew, Measured
from simshuffle.studies.testbed.patterns import GLOO, PATTERNS, Pattern
from simshuffle.studies.testbed.predict import Overhead, makespan
from simshuffle.studies.testbed.settings import Settings

Progress = Callable[[str, float], None]
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
        """Whether a processor was missing for so long that this run may be wrong for it."""
        return held_up(self.measured)


def held_up(measured: Measured) -> bool:
    """Whether one hold-up was longer than a fiftieth of the run, or a twentieth of the processors'
    time was taken away."""
    return measured.late > LATE_SHARE * measured.makespan or measured.steal > STEAL_SHARE


def measure_all(bed: Bed, settings: Settings, progress: Progress | None) -> list[Run]:
    """Build the bed, measure, remove it; ``progress`` is told a name and the share that is done.

    A run that was held up is measured again, at most once for each repetition; it stays in the
    list.

    Raises:
        InputError: this machine cannot build a bed.
        SimshuffleError: a command or a host failed, or it took too long.
    """
    deadline = time.monotonic() + settings.limit
    made = {name: PATTERNS[name](bed, settings.nbytes, settings.seed) for name in settings.patterns}
    with ExitStack() as stack:
        stack.enter_context(namespaces.terminated_as_interrupted())
        namespaces.check_machine()
        run = stack.enter_context(namespaces.built(bed))
        crews = {"tcp": stack.enter_context(hosts.tcp_hosts(bed, run, settings.limit))}
        if any(name in GLOO for name in made):
            room = Path(
                stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="simshuffle-", ignore_cleanup_errors=True)
                )
            )
            crews["gloo"] = stack.enter_context(
                hosts.gloo_hosts(bed, run, settings.limit, room / "meeting")
            )
        runs: list[Run] = []
        for repetition in range(1, settings.repetitions + 1):
            for number, (name, pattern) in enumerate(made.items()):
                for _ in range(2):
                    measured = _measured(bed, settings, crews, name, pattern, deadline)
                    runs.append(Run(name, repetition, measured))
                    if not held_up(measured):
                        break
                if progress is not None:
                    progress(
                        "measure",
                        (repetition - 1 + (number + 1) / len(made)) / settings.repetitions,
                    )
        return runs


def _measured(
    bed: Bed,
    settings: Settings,
    crews: dict[str, Crew],
    name: str,
    pattern: Pattern,
    deadline: float,
) -> Measured:
    limit = min(10.0 + 5.0 * makespan(bed, pattern, Overhead()), deadline - time.monotonic())
    if limit <= 0:
        raise SimshuffleError(
            f"the testbed did not finish within --limit {settings.limit:g} s; give a longer one or"
            " fewer --repetitions"
        )
    if name not in GLOO:
        return hosts.measure(
            crews["tcp"], pattern, limit, lambda host: hosts.tcp_order(pattern, host)
        )
    plan = GLOO[name](bed, settings.seed)

    def order(host: int) -> dict[str, Any]:
        return hosts.gloo_order(pattern, plan, host)

    return hosts.measure(crews["gloo"], pattern, limit, order)
