"""What is asked for on the command line, and its limits."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import nearest
from simshuffle.spec.units import Dimension, UnitError, parse_quantity
from simshuffle.studies.testbed.bed import Bed, Shape, checked, require
from simshuffle.studies.testbed.patterns import FIT, GLOO, PATTERNS, QUICK, Pattern
from simshuffle.studies.testbed.predict import Overhead, makespan

NO_TORCH = "not measured: torch is missing"
SIZES = (100_000, 100_000_000)
REPETITIONS = 50
LONGEST = 3600.0
TRAFFIC = 50e9


@dataclass(frozen=True)
class Settings:
    """A measurement.

    Attributes:
        shape: of the bed.
        nbytes: bytes that a host sends in a pattern.
        repetitions: runs of each pattern.
        seed: of the random pairs and permutations.
        patterns: names, those of the fit among them.
        left_out: patterns that are asked for and not measured, and why.
        limit: s after which everything stops.
    """

    shape: Shape = field(default_factory=Shape)
    nbytes: int = 6_000_000
    repetitions: int = 5
    seed: int = 1
    patterns: tuple[str, ...] = tuple(PATTERNS)
    left_out: dict[str, str] = field(default_factory=dict)
    limit: float = 900.0

    @cached_property
    def bed(self) -> Bed:
        """The bed of that shape."""
        return Bed(self.shape)

    def pattern(self, name: str) -> Pattern:
        """The flows of a pattern on it."""
        return PATTERNS[name](self.bed, self.nbytes, self.seed)


def quantity(option: str, text: str, dimension: Dimension) -> float:
    """The SI value of an option.

    Raises:
        InputError: it is no such quantity.
    """
    try:
        return parse_quantity(text, dimension)
    except UnitError as error:
        raise InputError(Problem(option, str(error), repr(text), ""), "command line") from None


def chosen(names: Sequence[str], *, quick: bool) -> tuple[tuple[str, ...], dict[str, str]]:
    """The patterns to measure, those of the fit first, and those that cannot be, with the reason.

    Raises:
        InputError: a name is not known.
    """
    unknown = [
        Problem("--pattern", "no such pattern", repr(name), nearest(name, list(PATTERNS)))
        for name in names
        if name not in PATTERNS
    ]
    if unknown:
        raise InputError(unknown, "command line")
    wanted = set(names or (QUICK if quick else PATTERNS)) | set(FIT)
    missing = {name: NO_TORCH for name in GLOO if name in wanted and not has_torch()}
    return tuple(name for name in PATTERNS if name in wanted and name not in missing), missing


def has_torch() -> bool:
    """Whether torch can be imported."""
    return importlib.util.find_spec("torch") is not None


def check(settings: Settings) -> None:
    """See that ``settings`` keep the limits of shape, time and traffic.

    Raises:
        InputError: they do not; every problem is named.
    """
    checked(settings.shape)
    nbytes, repetitions, limit = settings.nbytes, settings.repetitions, settings.limit
    most = f"must be from 1 to {REPETITIONS}"
    require(
        (
            SIZES[0] <= nbytes <= SIZES[1],
            "--nbytes",
            "must be from 100 kB to 100 MB",
            f"{nbytes} B",
        ),
        (1 <= repetitions <= REPETITIONS, "--repetitions", most, repetitions),
        (1.0 <= limit <= LONGEST, "--limit", "must be from 1 s to 1 h", f"{limit:g} s"),
        (settings.seed >= 0, "--seed", "must not be negative", settings.seed),
    )
    made = [settings.pattern(name) for name in settings.patterns]
    seconds = repetitions * sum(makespan(settings.bed, pattern, Overhead()) for pattern in made)
    traffic = repetitions * sum(sum(pattern.nbytes) for pattern in made)
    given = f"{limit:g} s for {seconds:.0f} s"
    require(
        (seconds <= limit, "--limit", "must be longer than the transfers", given),
        (traffic <= TRAFFIC, "--nbytes", "at most 50 GB in all", f"{traffic / 1e9:.1f} GB"),
        remedy="Fewer --nbytes, --repetitions or --pattern, a higher --rate, or a longer --limit.",
    )
