"""The exceptions of simshuffle. Every text names a path, the rule, the value that was given and a
remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an input."""

    path: str  # where, as a dotted key of the file ('' for the file itself)
    rule: str  # what must hold
    value: str = ""  # what was given, as text
    remedy: str = ""  # what to do about it

    def below(self, path: str) -> Problem:
        """The problem of the same thing where it is part of what stands at ``path``."""
        return replace(self, path=".".join(filter(None, (path, self.path))))

    def __str__(self) -> str:
        got = f"; got {self.value}" if self.value else ""
        fix = f". {self.remedy}" if self.remedy else ""
        return f"{self.path or '(file)'}: {self.rule}{got}{fix}"


def first_of(names: Sequence[str]) -> str:
    """The first three names, and how many more there are, as the value of a problem."""
    more = f" and {len(names) - 3} more" * (len(names) > 3)
    return ", ".join(map(repr, names[:3])) + more


class SimshuffleError(Exception):
    """Whatever simshuffle refuses, with a text for the user."""


class Stopped(Exception):
    """Ctrl-C, after which something is kept; its text says what."""


class SimshuffleWarning(UserWarning):
    """What can be done as asked, but is seldom meant."""


class InputError(SimshuffleError, ValueError):
    """An input that breaks one rule or more.

    Attributes:
        problems: all of them.
        source: the file or object they are in.
    """

    noun = "input"

    def __init__(self, problems: Sequence[Problem] | Problem | str, source: str = "") -> None:
        if isinstance(problems, str):
            problems = [Problem("", problems)]
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        self.source = source
        super().__init__(self._text())

    def __reduce__(self) -> tuple[type[InputError], tuple[list[Problem], str]]:
        """The same error in another process: pickled from what it was made of, not from its
        text."""
        return type(self), (self.problems, self.source)

    def _text(self) -> str:
        count = len(self.problems)
        head = f"{self.source or self.noun}: {count} problem{'s' if count != 1 else ''}"
        return "\n".join([head, *(f"  - {problem}" for problem in self.problems)])


def refuse(path: str, rule: str, value: str, remedy: str, source: str) -> NoReturn:
    """Refuse an input for one problem: arguments as of `Problem`, and where it is. Raises an
    InputError."""
    raise InputError(Problem(path, rule, value, remedy), source)


class ScenarioError(InputError):
    """A scenario that cannot be simulated as written."""

    noun = "scenario"


class TopologyError(InputError):
    """A topology that is not a usable network."""

    noun = "topology"


class SimulationError(SimshuffleError, RuntimeError):
    """A simulation that could not go on."""
