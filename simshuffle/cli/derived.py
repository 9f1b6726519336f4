"""Verbs of the command line, made from the options of studies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.cli.common import (
    complain,
    detail,
    loaded,
    say,
    study_progress,
    warnings_said,
)
from simshuffle.cli.help import command
from simshuffle.cli.show import AsJson, To, check_format, show
from simshuffle.study.options import (
    COMMAND_LINE,
    Argument,
    Field,
    fields_of,
    filled,
    plain_type,
    words,
)
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.standing import Progress

BAD_INPUT = 2
SEVERAL = "May be given several times."
WRITTEN = (int, float, bool, str, Path)
"""Types that typer reads by itself; of others it reads texts."""


def add(app: typer.Typer, verb: Verb[Any]) -> None:
    """Add the verb of a study to those of ``app``, or of one of its groups."""
    command(app, verb.group, *verb.examples, name=verb.word)(_function(verb))


def _function(verb: Verb[Any]) -> Callable[..., None]:
    """What the verb does, with a signature from which typer makes its options."""
    fields = fields_of(verb.options)

    def perform(json: bool, to: str | None, **given: Any) -> None:
        check_format(json, to)
        values = {
            field.name: _value(field, given[field.name])
            for field in fields
            if given[field.name] not in (None, [])
        }
        carry_out(verb, values, json=json, to=to)

    parameters = [_parameter(field) for field in fields]
    for name, kind, default in (("json", AsJson, False), ("to", To, None)):
        parameters.append(_keyword(name, kind, default))
    # typer reads the options from the signature
    perform.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    perform.__annotations__ = {of.name: of.annotation for of in parameters}
    perform.__name__, perform.__doc__ = verb.word, inspect.getdoc(verb.options) or ""
    return perform


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _parameter(field: Field) -> inspect.Parameter:
    """A field as a parameter that typer understands."""
    option, alone = field.option, isinstance(field.option, Argument)
    plain, _ = plain_type(field.type)
    kind: Any = plain if plain in WRITTEN else str
    default = field.default if plain in WRITTEN else None
    if option.read is not None:
        kind = str
        default = field.default if isinstance(field.default, str) else None
    text = f"{option.text} {SEVERAL}" if option.many and not alone else option.text
    look: dict[str, Any] = {"metavar": option.metavar or None, "help": text}
    if kind in (int, float):
        look |= {"min": option.low, "max": option.high}
    if option.complete is not None:
        look["autocompletion"] = option.complete
    elif option.choices:
        look["autocompletion"] = words(*option.choices)
    kind = list[kind] if option.many else kind
    if alone:
        info = typer.Argument(**look)
    else:
        info = typer.Option(*(option.flag.split() or [field.flag]), **look)
    if field.needed:
        return _keyword(field.name, Annotated[kind, info], inspect.Parameter.empty)
    annotation = kind if default is not None and not option.many else kind | None
    return _keyword(field.name, Annotated[annotation, info], None if option.many else default)


def _value(field: Field, given: Any) -> Any:
    """What the words of an option say."""
    if field.option.read is None or given == field.default:
        return given
    return field.option.read(given)


def carry_out(verb: Verb[Any], values: dict[str, Any], *, json: bool, to: str | None) -> None:
    """Find the result of a verb or make it, and show it.

    Raises:
        SimshuffleError: what is asked is not valid, the folder cannot be used, or the study fails.
        Stopped: some of it is kept.
        Exit: some of its cells are lost, or the result is no answer.
    """
    from simshuffle.study.perform import Performance, Teller

    options = filled(verb.options, values, COMMAND_LINE)
    teller = Teller(say, detail, _progress)
    with warnings_said():
        result, folder = Performance(verb, options, teller).result()
    show(result, folder, json=json, to=to, width=verb.width)
    for line in [] if folder is None else verb.after(result, folder, options):
        if not json and not to:
            typer.echo(line)
    if lost := result.meta.get("lost"):
        complain(f"{len(lost)} {verb.noun}s were lost; the same command tries them again.")
        raise typer.Exit(1)
    if problem := verb.refused(result):
        complain(str(problem))
        raise typer.Exit(BAD_INPUT)


@contextmanager
def _progress(noun: str) -> Iterator[Progress | None]:
    """All that a command needs is loaded by now."""
    loaded()
    with study_progress(noun) as progress:
        yield progress
