"""Make the functions of Python from the verbs of studies: they take the options of the
verb and return its result.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from textwrap import wrap
from typing import Any

from simshuffle.errors import InputError
from simshuffle.study.options import (
    Argument,
    Field,
    fields_of,
    fill_options,
    plain_type,
    rephrase_error,
)
from simshuffle.study.perform import Performance, Teller
from simshuffle.study.standing import study_progress
from simshuffle.study.study import Result
from simshuffle.study.verb import Verb

WIDTH = 92  # columns of a docstring
PROGRESS = (
    "progress"  # the argument that no option has: whether bars show how far it is
)


def function_of(verb: Verb[Any]) -> Callable[..., Result]:
    """Return the function of a verb, which takes its options and returns the result.

    It writes a result folder only to ``out``. Errors name its arguments in place of
    options. Its argument ``progress`` (True by default) has bars shown. Its signature,
    name and docstring are those of the verb's options.
    """
    source = f"simshuffle.{verb.function}"

    def function(*positional: Any, **keywords: Any) -> Result:
        values = dict(signature.bind(*positional, **keywords).arguments)
        shows_progress = values.pop(PROGRESS, True)
        teller = Teller(progress=study_progress) if shows_progress else Teller()
        try:
            options = fill_options(verb.options, values, source)
            return Performance(verb, options, teller, writes_folder=False).result()[0]
        except InputError as error:
            raise rephrase_error(error, source) from error

    signature = inspect.Signature(
        [*map(_parameter, fields_of(verb.options)), _PROGRESS_PARAMETER]
    )
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__name__ = function.__qualname__ = verb.function
    function.__doc__ = docstring_of(verb)
    return function


_PROGRESS_PARAMETER = inspect.Parameter(
    PROGRESS, inspect.Parameter.KEYWORD_ONLY, default=True, annotation=bool
)


def _parameter(field: Field) -> inspect.Parameter:
    """Return the parameter of a verb's function that stands for an option.

    Arguments may stand by position; options are given by name.
    """
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    if not isinstance(field.option, Argument):
        kind = inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if field.needed else field.default
    return inspect.Parameter(
        field.name, kind, default=default, annotation=type_of(field)
    )


def type_of(field: Field) -> str:
    """Return the type of a field as a stub writes it, or as its option says.

    A path may be a text, and a tuple of any length is a Sequence. Names have no module.
    """
    if field.option.python:
        return field.option.python
    kind = field.type
    if plain_type(kind)[0] is Path:
        return f"str | {'Path | None' if plain_type(kind)[1] else 'Path'}"
    name = (
        kind.__name__
        if isinstance(kind, type) and not hasattr(kind, "__args__")
        else str(kind)
    )
    name = re.sub(r"\b(?:collections\.abc|typing|pathlib)\.", "", name)
    return re.sub(r"\btuple\[(.+?), \.\.\.\]", r"Sequence[\1]", name)


def docstring_of(verb: Verb[Any]) -> str:
    """Return the docstring of a verb's function: the help, and a sentence on each
    argument.
    """
    lines = [inspect.getdoc(verb.options) or "", "", "Args:"]
    for field in fields_of(verb.options):
        replacement = (
            "Result folder; nothing is written without it."
            if field.name == "out"
            else ""
        )
        text = f"{field.name}: {replacement or field.option.text}"
        lines += wrap(text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)
    lines += [
        f"    {PROGRESS}: Whether bars show the progress of the study.",
        "",
        "Raises:",
    ]
    lines.append("    SimshuffleError: The request is not valid, or the study fails.")
    return "\n".join(lines)
