"""What every verb has beside its own options: a group and examples in the help, -h, -q and -v."""

from __future__ import annotations

import functools
import inspect
import platform
import re
from collections.abc import Callable, Iterable
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from simshuffle.cli.common import check_format, detail, say, set_volume
from simshuffle.errors import InputError, Problem
from simshuffle.study.options import (
    COMMAND_LINE,
    Argument,
    Field,
    Option,
    Words,
    fields_of,
    plain_type,
    refuse_value,
    words,
)
from simshuffle.study.registry import PLUGIN_REMEDIES
from simshuffle.study.verb import Group
from simshuffle.version import __version__

EXAMPLES = "Examples:"
SEVERAL = "May be given several times."
BETWEEN_COMMAS = "Several stand between commas, or each with the option."
WRITTEN = (int, float, bool, str, Path, tuple[str, str])
"""Types that typer reads by itself; of others it reads texts."""
HELP_OPTIONS = {"help_option_names": ["--help", "-h"]}

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print errors and the result, and nothing else.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say more: versions, folders and every cell.")
]


def keyword(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    """A parameter from which an option is made, or an argument, as ``annotation`` says."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def command(
    app: typer.Typer,
    group: Group,
    *examples: str,
    name: str | None = None,
    text: str = "",
    parameters: Iterable[Parameter] = (),
    record: type | None = None,
    runs: bool = False,
    hidden: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a verb of ``app``.

    An `Option` of a parameter is made one of typer's. The function is called with the values that
    the words of the options are read as; words that cannot be read are refused.

    Args:
        app: all verbs, or those of a group.
        group: heading under which the help lists the verb.
        examples: whole commands for the help.
        name: of the verb; by default the function's.
        text: of the help; by default the function's docstring.
        parameters: that options are made from; by default those of the function.
        record: a dataclass whose fields options are made from; the function takes one instance.
        runs: whether the verb runs another command: options that it does not know are words, and
            '--' stands before those of the command.
        hidden: whether the help of all verbs leaves this one out.
    """

    def register(verb: Callable[..., None]) -> Callable[..., None]:
        help_ = text or inspect.getdoc(verb) or ""
        app.command(
            name,
            cls=_Verb,
            help=help_,
            short_help=help_.partition("\n")[0],
            epilog="\n".join([EXAMPLES, *examples]),
            rich_help_panel=group,
            hidden=hidden,
            context_settings={"ignore_unknown_options": runs},
        )(_with_volume(verb, parameters) if record is None else _fill_record(verb, record))
        return verb

    return register


def _fill_record(verb: Callable[..., None], record: Any) -> Callable[..., None]:
    """Return a verb with an option for each field of a record, which is given the record."""
    parameters = [
        keyword(
            field.name,
            Annotated[field.type, field.option],
            Parameter.empty if field.needed else field.default,
        )
        for field in fields_of(record)
    ]

    @functools.wraps(verb)
    def run(**values: Any) -> None:
        verb(record(**values))

    return _with_volume(run, parameters)


def _with_volume(verb: Callable[..., None], parameters: Iterable[Parameter]) -> Callable[..., None]:
    """The verb with the options -q and -v."""
    given = [*parameters] or [*inspect.signature(verb, eval_str=True).parameters.values()]
    fields = {
        of.name: Field(of.name, of.annotation.__origin__, option, of.default)
        for of in given
        for option in of.annotation.__metadata__
        if isinstance(option, Option)
    }

    @functools.wraps(verb)
    def run(*, quiet: bool, verbose: bool, **values: Any) -> None:
        set_volume(quiet=quiet, verbose=verbose)
        detail(f"simshuffle {__version__}, Python {platform.python_version()}")
        check_format(values)
        read = {name: _read(field, values[name]) for name, field in fields.items()}
        verb(**values | read)

    own = [option_of(fields[of.name]) if of.name in fields else of for of in given]
    own += [keyword("quiet", Quiet, False), keyword("verbose", Verbose, False)]
    # typer reads the options from the signature
    run.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in own}
    run.words = {  # type: ignore[attr-defined]
        of.name: found
        for of in own
        for info in of.annotation.__metadata__
        # completed by a method of theirs
        if isinstance(
            found := getattr(getattr(info, "autocompletion", None), "__self__", None), Words
        )
    }
    return run


def option_of(field: Field) -> Parameter:
    """A field as a parameter that typer understands."""
    option, alone = field.option, isinstance(field.option, Argument)
    plain, _ = plain_type(field.type)
    plain = get_args(plain)[0] if get_origin(plain) is list else plain
    kind: Any = plain if plain in WRITTEN and option.read is None and not field.is_list else str
    missing = field.needed or field.default is Parameter.empty
    default = field.default if plain in WRITTEN else None
    if option.read is not None and not isinstance(default, str):
        default = None
    look: dict[str, Any] = {"metavar": option.metavar or None}
    several = BETWEEN_COMMAS if field.is_list else SEVERAL
    look["help"] = f"{option.text} {several}" if option.many and not alone else option.text
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
    if missing:
        return keyword(field.name, Annotated[kind, info])
    if default is None or option.many:
        return keyword(field.name, Annotated[kind | None, info], None)
    return keyword(field.name, Annotated[kind, info], default)


def _read(field: Field, given: Any) -> Any:
    """What the words of an option say. Raises an InputError if they are none that it takes."""
    option = field.option
    if option.choices and not option.many and given not in (None, *option.choices):
        raise InputError(refuse_value(field, "", given), COMMAND_LINE)
    return field.read(given)


def _labelled(parameters: list[Any]) -> list[Any]:
    """The same, without the names of Python's types in the help: a flag has no value, and an
    argument is called what it is; and without what few ever need."""
    for parameter in parameters:
        if parameter.name in {"install_completion", "show_completion"}:
            parameter.hidden = True
        if parameter.name == "help":
            parameter.callback = _show_help
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None
        elif parameter.is_flag:
            parameter.metavar = ""
    return parameters


def _show_help(ctx: Any, _: Any, wanted: bool) -> None:
    """Print the help, without the empty line that follows what rich has printed."""
    if wanted and not ctx.resilient_parsing:
        if text := ctx.get_help():
            typer.echo(text)
        ctx.exit()


class _Verb(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.ignore_unknown_options and "--" in args:
            args.insert(args.index("--"), "--")  # click takes one of them away
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return _labelled(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.list_words()
        super().format_help(ctx, formatter)

    def list_words(self) -> None:
        """Add to the help of every option the `Words` that it does not name."""
        parameter: Any
        for parameter in self.params:
            words = getattr(self.callback, "words", {}).get(parameter.name)
            known, text = words.all() if words else [], parameter.help or ""
            if not all(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) for word in known):
                parameter.help = f"{text} Known: {', '.join(known)}."


FIRST = (
    "new",
    "check",
    "run",
    "sweep",
    "congestion",
    "plan",
    "compare",
)
"""Verbs that stand first in their groups; the others follow by their names."""
MOVED = {
    **{name: f"study {name}" for name in ("ablate", "hiding")},
    **{name: f"study {name}" for name in ("collective", "replay", "schema", "validate")},
    **{name: f"results {name}" for name in ("plot", "show", "verify")},
    **{name: f"machine {name}" for name in ("probe", "calibrate", "testbed")},
    "topology": "machine",
}
"""Verbs of version 0.1 that have another name now."""
LOWERED = {
    **{name: f"study {name}" for name in ("audit", "blame", "loader", "oracle", "tta")},
    "export": "results export",
}
"""Verbs of version 0.2 that are one level down now."""
RAISED = {"study congestion": "congestion"}
"""Verbs of a group that are verbs of the first level now."""


class Verbs(TyperGroup):
    """All verbs, by their groups."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Options, with labels for people."""
        return _labelled(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the verbs, in the order of the groups."""
        groups = [*get_args(Group), None]

        def place(name: str) -> tuple[int, int, str]:
            group = groups.index(getattr(self.commands[name], "rich_help_panel", None))
            return group, FIRST.index(name) if name in FIRST else len(FIRST), name

        return sorted(super().list_commands(ctx), key=place)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that is named, by its old name too."""
        for names, version in ((MOVED, "0.3"), (LOWERED, "0.4")):
            if ctx.parent is None and args[0] in names:
                now = names[args[0]]
                if not ctx.resilient_parsing:
                    old = f"the old name goes in {version}"
                    say(f"'simshuffle {args[0]}' is 'simshuffle {now}' now; {old}.")
                args = [*now.split(), *args[1:]]
        old_name = f"{ctx.info_name} {args[0]}"
        if ctx.parent is not None and old_name in RAISED:
            now = RAISED[old_name]
            if not ctx.resilient_parsing:
                say(f"'simshuffle {old_name}' is 'simshuffle {now}' now; the old name goes in 0.4.")
            return ctx.parent.command.resolve_command(ctx.parent, [now, *args[1:]])
        if args[0] in PLUGIN_REMEDIES and args[0] not in self.commands:
            problem = Problem(
                args[0], "is a plugin, which is not installed", "", PLUGIN_REMEDIES[args[0]]
            )
            raise InputError(problem, "command line")
        return super().resolve_command(ctx, args)
