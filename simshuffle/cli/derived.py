"""Verbs of the command line, made from the options of studies."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from simshuffle.cli.common import (
    AsJson,
    To,
    complain,
    detail,
    loaded,
    say,
    show,
    split_formats,
    study_progress,
)
from simshuffle.cli.help import command, keyword, option_of
from simshuffle.study.options import COMMAND_LINE, fields_of, fill_options
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.standing import Progress

BAD_INPUT = 2


def add(app: typer.Typer, verb: Verb[Any]) -> None:
    """Add the verb of a study to those of ``app``, or of one of its groups."""
    fields = fields_of(verb.options)
    own = {field.name for field in fields}

    def perform(json: bool, to: Any, **given: Any) -> None:
        if "to" in own:  # words of its own beside those of the format
            given["to"], to = split_formats(to or ())
        values = {}
        for field in fields:
            if (value := given[field.name]) not in (None, []):
                values[field.name] = value if value == field.default else field.read(value)
        _carry_out(verb, values, json=json, to=to)

    # all that is wrong with the options of a study is said together, by `fill_options`
    options = [*map(option_of, fields), keyword("json", AsJson, False)]
    options += [] if "to" in own else [keyword("to", To, None)]
    text = inspect.getdoc(verb.options) or ""
    command(app, verb.group, *verb.examples, name=verb.word, text=text, parameters=options)(perform)


def _carry_out(verb: Verb[Any], values: dict[str, Any], *, json: bool, to: str | None) -> None:
    """Find the result of a verb or make it, and show it. Raises Exit if some of its cells are lost,
    or the result is no answer."""
    from simshuffle.study.perform import Performance, Teller
    from simshuffle.study.standing import plural

    options = fill_options(verb.options, values, COMMAND_LINE)
    result, folder = Performance(verb, options, Teller(say, detail, _progress)).result()
    after = [] if folder is None else list(verb.after(result, folder, options))
    show(result, folder, json=json, to=to, width=verb.width, after=after)
    if lost := result.meta.get("lost"):
        complain(f"{len(lost)} {plural(verb.noun)} were lost; the same command tries them again.")
        raise typer.Exit(1)
    if problem := verb.refused(result):
        complain(str(problem))
        raise typer.Exit(BAD_INPUT)
    if wrong := verb.failed(result, options):
        complain(wrong)
        raise typer.Exit(1)


@contextmanager
def _progress(noun: str) -> Iterator[Progress | None]:
    """All that a command needs is loaded by now."""
    loaded()
    with study_progress(noun) as progress:
        yield progress
