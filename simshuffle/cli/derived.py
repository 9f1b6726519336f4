"""Verbs of the command line, made from the options of studies."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter
from typing import TYPE_CHECKING, Any

import typer

from simshuffle.cli.common import (
    AsJson,
    To,
    complain,
    say,
    say_detail,
    show,
    split_formats,
    study_progress,
    tune_process,
)
from simshuffle.cli.help import command, keyword, typer_parameter
from simshuffle.study.options import COMMAND_LINE, fields_of, fill_options
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.standing import Progress

BAD_INPUT_STATUS = 2


def add_verb(app: typer.Typer, verb: Verb[Any]) -> None:
    """Add the verb of a study to ``app``, with --json and --to beside its own options.

    ``app`` holds all verbs, or the verbs of a group.
    """

    def perform(*, json: bool, **words_of_option: Any) -> None:
        """Run the verb with the values of its options; None and [] are not given."""
        fields = fields_of(verb.options)
        table_format = words_of_option.pop("to")
        # words of the verb's own option stand beside those of the format
        if any(field.name == "to" for field in fields):
            words_of_option["to"], table_format = split_formats(table_format or ())
        values = {}
        for field in fields:
            if (value := words_of_option[field.name]) not in (None, []):
                values[field.name] = (
                    value if value == field.default else field.read(value)
                )
        run_verb(verb, values, json=json, table_format=table_format)

    text = inspect.getdoc(verb.options) or ""
    command(
        app,
        verb.group,
        *verb.examples,
        name=verb.word,
        text=text,
        parameters=_parameters_of(verb),
    )(perform)


def _parameters_of(verb: Verb[Any]) -> Iterator[Parameter]:
    """Yield the options of a verb as typer understands them, then --json and --to.

    All that is wrong with the options of a study is said together, by `fill_options`.
    """
    fields = fields_of(verb.options)
    yield from map(typer_parameter, fields)
    yield keyword("json", AsJson, False)
    if all(field.name != "to" for field in fields):
        yield keyword("to", To, None)


def run_verb(
    verb: Verb[Any], values: dict[str, Any], *, json: bool, table_format: str | None
) -> None:
    """Find or compute the result of a verb, and print it.

    The result is printed before an Exit is raised, and the reason on standard error.

    Args:
        verb: that was called.
        values: of its options that are given, by field.
        json, table_format: as of `show`.

    Raises:
        InputError: the options are not valid.
        SimshuffleError, Stopped: as of `Performance.result`.
        Exit: with status 1 if cells are lost or what was asked about is wrong, with 2
            if the result is no answer.
    """
    from simshuffle.study.perform import Performance, Teller
    from simshuffle.study.standing import plural

    options = fill_options(verb.options, values, COMMAND_LINE)
    result, folder = Performance(
        verb, options, Teller(say, say_detail, show_progress)
    ).result()
    extra_lines = [] if folder is None else list(verb.after(result, folder, options))
    show(
        result,
        folder,
        json=json,
        table_format=table_format,
        width=verb.width,
        extra_lines=extra_lines,
    )
    if lost := result.meta.get("lost"):
        complain(
            f"{len(lost)} {plural(verb.noun)} were lost; the same command tries them again."
        )
        raise typer.Exit(1)
    if problem := verb.refused(result):
        complain(str(problem))
        raise typer.Exit(BAD_INPUT_STATUS)
    if failure := verb.failed(result, options):
        complain(failure)
        raise typer.Exit(1)


@contextmanager
def show_progress(noun: str) -> Iterator[Progress | None]:
    """Show the progress of cells, and end the loading of modules.

    Yields as `study_progress`: None with --quiet. All that a command needs is loaded by
    now; `tune_process` leaves it out of garbage collection.
    """
    tune_process()
    with study_progress(noun) as progress:
        yield progress
