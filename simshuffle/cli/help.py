"""Make functions verbs: their help with a group and examples, and the options -h, -q
and -v.
"""

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

from simshuffle.cli.common import check_format, say, say_detail, set_volume
from simshuffle.errors import InputError, refuse
from simshuffle.moved import OLD_OPTIONS, OLD_VERBS, REFUSED_VERBS, describe_new_name
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
from simshuffle.study.registry import PLUGIN_REMEDIES, REMOVED
from simshuffle.study.verb import Group
from simshuffle.version import __version__

EXAMPLES = "Examples:"
USAGE_ERROR: Any = typer.BadParameter.__base__
"""Error of words that a command does not take: of click, or of the click in typer."""
MEANT_VERBS = {
    **dict.fromkeys(("simulate", "sim", "predict"), "run"),
    **dict.fromkeys(("init", "create"), "new"),
    **dict.fromkeys(("profile", "diagnose", "record"), "doctor"),
    **dict.fromkeys(("scenarios", "ls", "search"), "list"),
    **dict.fromkeys(("optimize", "recommend"), "plan"),
    **dict.fromkeys(("diff", "comparison"), "compare"),
    "lint": "check",
}
"""Verb for words by which other programs call what it does."""
MANY_TIMES = "May be given several times."
BETWEEN_COMMAS = "Separate several values by commas, or repeat the option."
TYPER_TYPES = (int, float, bool, str, Path, tuple[str, str])
"""Types that typer reads by itself; of others it reads texts."""
HELP_OPTIONS = {"help_option_names": ["--help", "-h"]}

Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", help="Print errors and the result, and nothing else."
    ),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Say more: versions, folders and every cell."),
]


def keyword(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    """Return a parameter that typer makes an option or argument of, as ``annotation``
    (an `Annotated`) says; it is required without ``default``.
    """
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


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

    An `Option` of a parameter is made one of typer's, and -q and -v are added. The
    function is called with the values that the words of the options are read as. Words
    that cannot be read raise an InputError when the verb is called.

    Args:
        app: all verbs, or those of a group.
        group: heading under which the help lists the verb.
        examples: whole commands for the help.
        name: of the verb; by default the function's.
        text: of the help; by default the function's docstring.
        parameters: that options are made from; by default those of the function. They
            are read once, when the verb is called or its help is printed.
        record: a dataclass whose fields options are made from; the function takes one
            instance.
        runs: whether the verb runs another command: options that it does not know are
            words, and '--' stands before those of the command.
        hidden: whether the help of all verbs leaves this one out.

    Returns:
        A decorator that adds the function to ``app`` and returns it unchanged.
    """

    def register(verb: Callable[..., None]) -> Callable[..., None]:
        """Add the verb to the app, and return it unchanged."""
        # lines of the source are not those of a terminal
        paragraphs = (text or inspect.getdoc(verb) or "").split("\n\n")
        paragraphs = [" ".join(paragraph.split()) for paragraph in paragraphs]

        class OwnCommand(VerbCommand):
            """The command of this verb."""

            @staticmethod
            @functools.cache  # parameters can be read once
            def make_run() -> Callable[..., None]:
                if record is None:
                    return with_volume_options(verb, parameters)
                return with_record_options(verb, record)

        def stand_in() -> None:
            """Stand in for the verb until `VerbCommand` makes its options."""

        app.command(
            name or verb.__name__.replace("_", "-"),
            cls=OwnCommand,
            help="\n\n".join(paragraphs),
            short_help=paragraphs[0],
            epilog="\n".join([EXAMPLES, *examples]),
            rich_help_panel=group,
            hidden=hidden,
            context_settings={"ignore_unknown_options": runs},
        )(stand_in)
        return verb

    return register


def with_record_options(verb: Callable[..., None], record: Any) -> Callable[..., None]:
    """Return a verb with an option for each field of ``record``, and -q and -v.

    ``verb`` itself takes an instance of the record.
    """
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
        """Run the verb with a record of the values."""
        verb(record(**values))

    return with_volume_options(run, parameters)


def with_volume_options(
    verb: Callable[..., None], parameters: Iterable[Parameter]
) -> Callable[..., None]:
    """Return the verb with -q and -v, and with its `Option` parameters as typer's.

    Its attribute ``words`` has the `Words` that an option completes, by the name of the
    parameter.

    Args:
        verb: takes the values that the words of its options stand for.
        parameters: that options are made from, each with an `Annotated`; those of the
            verb if empty. One without an `Option` goes to typer as it is.
    """
    verb_parameters = [*parameters] or [
        *inspect.signature(verb, eval_str=True).parameters.values()
    ]
    fields = {
        parameter.name: Field(
            parameter.name, parameter.annotation.__origin__, option, parameter.default
        )
        for parameter in verb_parameters
        for option in parameter.annotation.__metadata__
        if isinstance(option, Option)
    }

    @functools.wraps(verb)
    def run(*, quiet: bool, verbose: bool, **values: Any) -> None:
        """Set the volume, read the words of the options, and run the verb.

        Raises:
            InputError: words cannot be read, or options exclude each other.
        """
        set_volume(quiet=quiet, verbose=verbose)
        say_detail(f"simshuffle {__version__}, Python {platform.python_version()}")
        check_format(values)
        read_values = {
            name: read_words(field, values[name]) for name, field in fields.items()
        }
        verb(**values | read_values)

    typer_parameters = [
        typer_parameter(fields[parameter.name])
        if parameter.name in fields
        else parameter
        for parameter in verb_parameters
    ]
    typer_parameters += [
        keyword("quiet", Quiet, False),
        keyword("verbose", Verbose, False),
    ]
    # typer reads the options from the signature
    run.__signature__ = inspect.Signature(typer_parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {
        parameter.name: parameter.annotation for parameter in typer_parameters
    }
    run.words = {  # type: ignore[attr-defined]
        typed.name: closed_words
        for typed in typer_parameters
        for info in typed.annotation.__metadata__
        # completed by a method of theirs
        if isinstance(
            closed_words := getattr(
                getattr(info, "autocompletion", None), "__self__", None
            ),
            Words,
        )
    }
    return run


def typer_parameter(field: Field) -> Parameter:
    """Return a field as a parameter that typer understands.

    What typer cannot read itself is a text, or a list of texts; what is not needed and
    has no plain default is None, as is any default of an option that may be given
    several times.
    """
    option = field.option
    is_argument = isinstance(option, Argument)
    value_type, _ = plain_type(field.type)
    value_type = (
        get_args(value_type)[0] if get_origin(value_type) is list else value_type
    )
    word_type: Any = (
        value_type
        if value_type in TYPER_TYPES and option.read is None and not field.is_list
        else str
    )
    is_required = field.needed or field.default is Parameter.empty
    default = field.default if value_type in TYPER_TYPES else None
    if option.read is not None and not isinstance(default, str):
        default = None
    settings: dict[str, Any] = {"metavar": option.metavar or None}
    repeat_note = BETWEEN_COMMAS if field.is_list else MANY_TIMES
    settings["help"] = (
        f"{option.text} {repeat_note}"
        if option.many and not is_argument
        else option.text
    )
    if word_type in (int, float):
        settings |= {"min": option.low, "max": option.high}
    if option.complete is not None:
        settings["autocompletion"] = option.complete
    elif option.choices:
        settings["autocompletion"] = words(*option.choices)
    word_type = list[word_type] if option.many else word_type
    if is_argument:
        info = typer.Argument(**settings)
    else:
        info = typer.Option(*(option.flag.split() or [field.flag]), **settings)
    if is_required:
        return keyword(field.name, Annotated[word_type, info])
    if default is None or option.many:
        return keyword(field.name, Annotated[word_type | None, info], None)
    return keyword(field.name, Annotated[word_type, info], default)


def read_words(field: Field, command_words: Any) -> Any:
    """Return the value that the words of an option stand for.

    None, for an option that is not given, is always allowed.

    Raises:
        InputError: the option takes no such words.
    """
    option = field.option
    if (
        option.choices
        and not option.many
        and command_words not in (None, *option.choices)
    ):
        raise InputError(refuse_value(field, "", command_words), COMMAND_LINE)
    return field.read(command_words)


def label_parameters(parameters: list[Any]) -> list[Any]:
    """Change how the help shows parameters, in place, and return them.

    The names of Python's types are removed, a flag has no value, and an argument is
    called by its name. Typer's --install-completion and --show-completion are hidden.
    The option --help calls `print_help`.
    """
    for parameter in parameters:
        if parameter.name in {"install_completion", "show_completion"}:
            parameter.hidden = True
        if parameter.name == "help":
            parameter.callback = print_help
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None
        elif parameter.is_flag:
            parameter.metavar = ""
    return parameters


def print_help(ctx: Any, _: Any, is_requested: bool) -> None:
    """Print the help and exit, if it is requested.

    The empty line that follows what rich has printed is left out.
    """
    if is_requested and not ctx.resilient_parsing:
        if text := ctx.get_help():
            typer.echo(text)
        ctx.exit()


class VerbCommand(TyperCommand):
    """The command of a verb, whose help lists the words that options take.

    Its options and its callback are made when one is first read: few verbs are called.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """Take the settings of typer, whose callback stands in for the verb."""
        super().__init__(*arguments, **settings)
        del self.params, self.callback

    @staticmethod
    def make_run() -> Callable[..., None]:
        """Return the verb with its options as typer's."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        """Make the options and the callback, and return the one of that name."""
        if name not in {"params", "callback"}:
            raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")
        app = typer.Typer(add_completion=False)
        app.command()(self.make_run())
        command: Any = typer.main.get_command(app)
        self.params = command.params
        self.callback = command.callback
        return getattr(self, name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command; ``args`` change.

        The first '--' stays among the words of a verb that runs another command. The
        old name of an option is replaced, and its new name is printed.
        """
        verb = ctx.command_path.partition(" ")[2]
        for index, word in enumerate(args):
            option, equals, value = word.partition("=")
            if new_name := OLD_OPTIONS.get(f"{verb} {option}"):
                args[index] = f"{new_name}{equals}{value}"
                if not (ctx.resilient_parsing or {"-q", "--quiet"} & {*args}):
                    say(describe_new_name(option, new_name))
        if ctx.ignore_unknown_options and "--" in args:
            args.insert(args.index("--"), "--")  # click takes one of them away
        try:
            return super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            text = str(getattr(error, "message", ""))
            takes_keys = any("--set" in parameter.opts for parameter in self.params)
            if takes_keys and text.startswith("No such option: "):
                key = text.partition(": ")[2].lstrip("-").replace("-", "_")
                error.message = (
                    f"{text}. Keys of a scenario are set so: --set {key}=VALUE"
                )
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments, with labels for people."""
        return label_parameters(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the words that options take."""
        self.list_words()
        super().format_help(ctx, formatter)

    def list_words(self) -> None:
        """Add all `Words` that an option takes to its help, unless that names each."""
        parameter: Any
        for parameter in self.params:
            closed_words = getattr(self.callback, "words", {}).get(parameter.name)
            known_words = closed_words.all() if closed_words else []
            text = parameter.help or ""
            if not all(
                re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)
                for word in known_words
            ):
                parameter.help = f"{text} Known: {', '.join(known_words)}."


FIRST_VERBS = (
    "new",
    "check",
    "run",
    "sweep",
    "congestion",
    "plan",
    "compare",
)
"""Verbs that stand first in their groups; the others follow by their names."""


class Verbs(TyperGroup):
    """The verbs of the command line or of a group, in the order of the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, with labels for people."""
        return label_parameters(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the verbs, in the order of the groups (of `Group`).

        In a group `FIRST_VERBS` come first, the others follow by name. Verbs of no
        group come last.
        """
        groups = [*get_args(Group), None]

        def position(name: str) -> tuple[int, int, str]:
            """Return the sort key of a verb: its group, its place in `FIRST_VERBS`, its
            name.
            """
            group = groups.index(getattr(self.commands[name], "rich_help_panel", None))
            place = FIRST_VERBS.index(name) if name in FIRST_VERBS else len(FIRST_VERBS)
            return group, place, name

        return sorted(super().list_commands(ctx), key=position)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and further words of the verb that the words name.

        An old name of version 0.2 is accepted; its new name is printed on standard
        error, but not with --quiet or while words are completed.

        Raises:
            InputError: the verb is of a plugin that is not installed, or was renamed or
                removed in an earlier version.
        """
        name = " ".join([*([ctx.info_name] if ctx.parent else []), args[0]])
        if new_name := OLD_VERBS.get(name):
            if not ctx.resilient_parsing:
                say(
                    describe_new_name(
                        f"'simshuffle {name}'", f"'simshuffle {new_name}'"
                    )
                )
            top = ctx.parent or ctx
            return top.command.resolve_command(top, [*new_name.split(), *args[1:]])
        if name in REFUSED_VERBS:
            remedy = f"Write 'simshuffle {REFUSED_VERBS[name]}'."
            refuse(name, "is no verb any more", "", remedy, COMMAND_LINE)
        if name in MEANT_VERBS:
            remedy = f"Write 'simshuffle {MEANT_VERBS[name]}'."
            refuse(name, "is no verb", "", remedy, COMMAND_LINE)
        if args[0] not in self.commands and args[0] in PLUGIN_REMEDIES | REMOVED:
            is_removed = args[0] in REMOVED
            rule = (
                "was removed" if is_removed else "is a plugin, which is not installed"
            )
            remedy = (PLUGIN_REMEDIES | REMOVED)[args[0]]
            refuse(args[0], rule, "", remedy, COMMAND_LINE)
        return super().resolve_command(ctx, args)
