"""The exceptions of simshuffle. Every text names a path, the rule, the value that was
given and a remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn


@dataclass(frozen=True)
class Problem:
    """A problem of an input: where it is, the rule that is broken, and a remedy."""

    path: str  # where, as a dotted key of the file ('' for the file itself)
    rule: str  # what must hold
    value: str = ""  # what was given, as text
    remedy: str = ""  # what to do about it

    def below(self, path: str) -> Problem:
        """Return this problem as one of a larger input, in which its object stands at
        ``path``.
        """
        return replace(self, path=".".join(filter(None, (path, self.path))))

    def __str__(self) -> str:
        """Return 'path: rule; got value. remedy', without the parts that are empty."""
        got = f"; got {self.value}" if self.value else ""
        fix = f". {self.remedy}" if self.remedy else ""
        return f"{self.path or '(file)'}: {self.rule}{got}{fix}"


def list_first(names: Sequence[str]) -> str:
    """List the first three names in quotes, and say how many more there are, if any."""
    ending = f" and {len(names) - 3} more" * (len(names) > 3)
    return ", ".join(map(repr, names[:3])) + ending


class SimshuffleError(Exception):
    """Base of all errors with a text for the user."""


class Stopped(Exception):
    """Raised on Ctrl-C after which partial results are kept; its text says which.

    It is no SimshuffleError.
    """


class SimshuffleWarning(UserWarning):
    """Warning about an input that is valid but seldom intended."""


class InputError(SimshuffleError, ValueError):
    """An input that breaks one rule or more.

    Attributes:
        problems: all of them.
        source: the file or object they are in; '' if unknown, and the text then begins
            with ``noun``.
    """

    noun = "input"

    def __init__(
        self, problems: Sequence[Problem] | Problem | str, source: str = ""
    ) -> None:
        """Make the error of several problems, or of one; a text is one of the whole
        input.
        """
        if isinstance(problems, str):
            problems = [Problem("", problems)]
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        self.source = source
        super().__init__(self._text())

    def __reduce__(self) -> tuple[type[InputError], tuple[list[Problem], str]]:
        """Pickle the error by its problems and source, not by its text."""
        return type(self), (self.problems, self.source)

    def _text(self) -> str:
        """Return the text: the source, the number of problems, and a line for each."""
        count = len(self.problems)
        head = f"{self.source or self.noun}: {count} problem{'s' if count != 1 else ''}"
        return "\n".join([head, *(f"  - {problem}" for problem in self.problems)])


def refuse(path: str, rule: str, value: str, remedy: str, source: str) -> NoReturn:
    """Refuse an input for one problem: arguments as of `Problem`, and the ``source``,
    the file or object that the input is in.

    Raises:
        InputError: always, whatever error it is raised for.
    """
    raise InputError(Problem(path, rule, value, remedy), source) from None


class ScenarioError(InputError):
    """A scenario that cannot be simulated as written."""

    noun = "scenario"


class TopologyError(InputError):
    """A topology that is not a usable network."""

    noun = "topology"


class SimulationError(SimshuffleError, RuntimeError):
    """A simulation that could not go on."""
