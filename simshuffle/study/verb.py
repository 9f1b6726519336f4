"""Verb: how a study is asked for, from the command line and from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from simshuffle.study.options import Options

if TYPE_CHECKING:
    from simshuffle.errors import Problem
    from simshuffle.study.study import Request, Result, Study

OptionsT = TypeVar("OptionsT", bound=Options)
Group = Literal["Describe", "Simulate", "Results", "Rarely"]
"""Headings of the help, in the order in which a newcomer meets them."""


@dataclass(frozen=True)
class Verb(Generic[OptionsT]):
    """A verb of the command line, and the study that answers it."""

    name: str  # on the command line, such as 'sweep', or 'study hiding' one level down
    options: type[OptionsT]  # the record of what is asked; its docstring is the help
    # the study, and what is asked of it. A function imports what it needs when it is called; a
    # place, as 'module:function', makes both, or the request of the one study in ``kinds``.
    request: Callable[[OptionsT], tuple[Study[Any], Request[Any]]] | str
    examples: tuple[str, ...]  # whole commands, shown below the help
    group: Group = "Simulate"  # the heading under which the help lists it
    # the study that writes a kind of result folder, by that kind: its module, whose ``STUDY``
    # it is, or 'module:NAME'
    kinds: Mapping[str, str] = field(default_factory=dict)
    function: str = ""  # its name in Python; '' for none
    noun: str = "run"  # what a cell is called in the progress
    done: str = "simulated"  # what was done with it
    width: int = 100  # columns of what is printed where there is no terminal
    kept: bool = True  # whether there is a result folder if none is named
    # whether its request takes long, as a measurement does: the folder is held meanwhile
    measures: bool = False
    # what is written beside a result, wherever it is asked for from; the lines that are said then
    also: Callable[[Result, OptionsT], Iterable[str]] = lambda result, options: ()
    # what is done with a result, its folder and the options at last; the lines that are printed
    # then
    after: Callable[[Result, Path, OptionsT], Iterable[str]] = (
        lambda result, folder, options: ()
    )
    # the answer from closed forms, in lines that are said within ten seconds, before the first cell
    # is simulated; a place is given the values of the request. No line where the verb has no such
    # answer, or the result is already there
    first_answer: Callable[[OptionsT, Request[Any]], Iterable[str]] | str = (
        lambda options, request: ()
    )
    # what makes a result no answer: it is printed, and the exit status is 2
    refused: Callable[[Result], Problem | None] = lambda result: None
    # what is wrong with what was asked about, '' if nothing is: it is printed, and the exit status
    # is 1, for scripts
    failed: Callable[[Result, OptionsT], str] = lambda result, options: ""

    def make_request(self, options: OptionsT) -> tuple[Study[Any], Request[Any]]:
        """Return the study, and the request that follows from the options.

        A `request` that returns no pair makes the request of the one study in `kinds`.

        Raises:
            InputError: the options do not make a request.
        """
        if callable(self.request):
            return self.request(options)
        answer: Any = resolve_name(self.request)(options)
        if isinstance(answer, tuple):
            study, request = answer
            return study, request
        (place,) = self.kinds.values()
        return import_study(place), answer

    def answer_first(self, options: OptionsT, request: Request[Any]) -> Iterable[str]:
        """Return the lines of the answer from closed forms; none where the verb has no
        such answer, or the result is there already.
        """
        if callable(self.first_answer):
            return self.first_answer(options, request)
        lines: Iterable[str] = resolve_name(self.first_answer)(request.values)
        return lines

    @property
    def word(self) -> str:
        """The last word of its name, with which its folders begin."""
        return self.name.split()[-1]


def import_study(place: str) -> Study[Any]:
    """Import the study at ``place``: 'module:NAME', or a module whose ``STUDY`` it is."""
    study: Study[Any] = resolve_name(place if ":" in place else f"{place}:STUDY")
    return study
