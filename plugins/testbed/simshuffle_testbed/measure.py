"""What is measured, within which limits; and all runs of all patterns on a testbed of
namespaces, one repetition after the other.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path

from simshuffle.errors import InputError, Problem, SimshuffleError
from simshuffle.extensions.calibration.validation.testbed import (
    TcpOverhead,
    check_shape,
    makespan,
    require,
)
from simshuffle.extensions.calibration.validation.testbed_patterns import (
    PATTERNS,
    NamespacePattern,
    NamespaceShape,
    plan_partial_shuffle,
    plan_with_one_partner,
)
from simshuffle.spec.library import suggest_nearest
from simshuffle.spec.units import Dimension, UnitError, parse_quantity
from simshuffle_testbed import hosts, namespaces
from simshuffle_testbed.commands import NamespaceNetwork
from simshuffle_testbed.hosts import Crew, Measured

Progress = Callable[[float], None]
FIT = ("single_short", "single")
"""The patterns that the protocol's overhead is fitted on; all others are predicted."""
GLOO = {"gloo_partial": plan_partial_shuffle, "gloo_pairs": plan_with_one_partner}
"""Patterns that torch.distributed carries out, with the plan that they follow: (shape,
seed) -> plan.
"""
QUICK = (*FIT, "opposite", "incast", "pairs_inside", "pairs_across", "all_to_all")
"""The patterns of a quick run."""
LATE_SHARE = 0.02
STEAL_SHARE = 0.05
NO_TORCH = "not measured: torch is missing"
SIZES = (100_000, 100_000_000)
REPETITIONS = 50
LONGEST = 3600.0
TRAFFIC = 50e9


@dataclass(frozen=True)
class Settings:
    """A measurement."""

    shape: NamespaceShape = field(default_factory=NamespaceShape)  # of the testbed
    nbytes: int = 6_000_000  # bytes that a host sends in a pattern
    repetitions: int = 5  # runs of each pattern
    seed: int = 1  # of the random pairs and permutations
    patterns: tuple[str, ...] = tuple(PATTERNS)  # names, those of the fit among them
    # patterns that are asked for and not measured, and why
    left_out: dict[str, str] = field(default_factory=dict)
    limit: float = 900.0  # s after which everything stops

    @cached_property
    def testbed(self) -> NamespaceNetwork:
        """The testbed of that shape."""
        return NamespaceNetwork(self.shape)

    def pattern(self, name: str) -> NamespacePattern:
        """The flows of a pattern on it."""
        return PATTERNS[name](self.shape, self.nbytes, self.seed)


def quantity(option: str, text: str, dimension: Dimension) -> float:
    """The SI value of an option; an InputError if it is no such quantity."""
    try:
        return parse_quantity(text, dimension)
    except UnitError as error:
        raise InputError(
            Problem(option, str(error), repr(text), ""), "command line"
        ) from None


def chosen(
    names: Sequence[str], *, quick: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The patterns to measure, those of the fit first, and those that cannot be, with
    the reason.

    Raises:
        InputError: a name is not known.
    """
    unknown = [
        Problem(
            "--pattern",
            "no such pattern",
            repr(name),
            suggest_nearest(name, list(PATTERNS)),
        )
        for name in names
        if name not in PATTERNS
    ]
    if unknown:
        raise InputError(unknown, "command line")
    wanted = set(names or (QUICK if quick else PATTERNS)) | set(FIT)
    missing = {name: NO_TORCH for name in GLOO if name in wanted and not has_torch()}
    return tuple(
        name for name in PATTERNS if name in wanted and name not in missing
    ), missing


def has_torch() -> bool:
    """Whether torch can be imported."""
    return importlib.util.find_spec("torch") is not None


def check(settings: Settings) -> None:
    """See that ``settings`` keep the limits of shape, time and traffic.

    Raises:
        InputError: they do not; every problem is named.
    """
    check_shape(settings.shape)
    nbytes = settings.nbytes
    repetitions = settings.repetitions
    limit = settings.limit
    sizes = "must be from 100 kB to 100 MB"
    times = "must be from 1 s to 1 h"
    counts = f"must be from 1 to {REPETITIONS}"
    require(
        (SIZES[0] <= nbytes <= SIZES[1], "--nbytes", sizes, f"{nbytes} B"),
        (1 <= repetitions <= REPETITIONS, "--repetitions", counts, repetitions),
        (1.0 <= limit <= LONGEST, "--limit", times, f"{limit:g} s"),
        (settings.seed >= 0, "--seed", "must not be negative", settings.seed),
    )
    made = [settings.pattern(name) for name in settings.patterns]
    seconds = repetitions * sum(
        makespan(settings.testbed, pattern, TcpOverhead()) for pattern in made
    )
    traffic = repetitions * sum(sum(pattern.nbytes) for pattern in made)
    given = f"{limit:g} s for {seconds:.0f} s"
    require(
        (seconds <= limit, "--limit", "must be longer than the transfers", given),
        (
            traffic <= TRAFFIC,
            "--nbytes",
            "at most 50 GB in all",
            f"{traffic / 1e9:.1f} GB",
        ),
        remedy="Fewer --nbytes, --repetitions or --pattern, a higher --rate, or a longer --limit.",
    )


@dataclass(frozen=True)
class Run:
    """A measured run of a pattern."""

    pattern: str  # its name
    repetition: int  # from 1 on
    measured: Measured  # what was measured

    @property
    def held_up(self) -> bool:
        """Whether a processor was missing for so long that this run may be wrong for
        it: one hold-up was longer than a fiftieth of the run, or a twentieth of the
        processors' time was taken away.
        """
        late = self.measured.late > LATE_SHARE * self.measured.makespan
        return late or self.measured.steal > STEAL_SHARE


@dataclass(frozen=True)
class Measurement:
    """What was measured."""

    settings: Settings  # what was asked for
    runs: Sequence[Run]  # in their order; those that were held up too
    date: datetime  # when it began

    def counted(self, pattern: str) -> list[Run]:
        """The runs of a pattern that count: those that were not held up; all of them
        where none is left.
        """
        runs = [run for run in self.runs if run.pattern == pattern]
        return [run for run in runs if not run.held_up] or runs


def measure_all(settings: Settings, progress: Progress | None) -> Measurement:
    """Build the testbed, measure, remove it; ``progress`` is told the share that is
    done.

    A run that was held up is measured again, at most once for each repetition; it stays
    in the list.

    Raises:
        InputError: this machine cannot build a testbed.
        SimshuffleError: a command or a host failed, or it took too long.
    """
    date = datetime.now(UTC)
    deadline = time.monotonic() + settings.limit
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
    """The testbed with its hosts by what they speak; ``stack`` ends them and removes
    it.
    """
    run = stack.enter_context(namespaces.built(settings.testbed))
    crews = {
        "tcp": stack.enter_context(
            hosts.tcp_hosts(settings.testbed, run, settings.limit)
        )
    }
    if any(name in GLOO for name in settings.patterns):
        room = tempfile.TemporaryDirectory(
            prefix="simshuffle-", ignore_cleanup_errors=True
        )
        meeting = Path(stack.enter_context(room)) / "meeting"
        gloo = hosts.gloo_hosts(settings.testbed, run, settings.limit, meeting)
        crews["gloo"] = stack.enter_context(gloo)
    return crews


def _measured(
    settings: Settings,
    crews: Mapping[str, Crew],
    name: str,
    pattern: NamespacePattern,
    deadline: float,
) -> Measured:
    expected = makespan(settings.testbed, pattern, TcpOverhead())
    limit = min(10.0 + 5.0 * expected, deadline - time.monotonic())
    if limit <= 0:
        raise SimshuffleError(
            f"the testbed did not finish within --limit {settings.limit:g} s; give a longer one or"
            " fewer --repetitions"
        )
    if name not in GLOO:
        return hosts.measure(
            crews["tcp"], pattern, limit, partial(hosts.tcp_order, pattern)
        )
    order = partial(
        hosts.gloo_order, pattern, GLOO[name](settings.shape, settings.seed)
    )
    return hosts.measure(crews["gloo"], pattern, limit, order)
