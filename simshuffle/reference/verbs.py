"""The page of the verbs and their options, from the command line itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simshuffle.reference.markdown import RENEWED, code, plain, table
from simshuffle.studies import own_verbs, verbs

HEAD = ("option", "value", "default", "meaning")
ABOUT = """\
Every verb with its arguments and options, as `simshuffle VERB --help` shows them. [The command
line](../commands.md) says what they have in common."""
EXAMPLES = "Examples:"


def page(command: Any) -> str:
    """The page.

    Args:
        command: the command line, as typer makes it of an app.
    """
    of_plugins = verbs().keys() - own_verbs().keys()
    sections = "".join(
        _verb(f"{command.name} {name}", name, verb)
        for name, verb in _verbs(command)
        if name not in of_plugins
    )
    known = [each for each in command.params if not each.name.endswith("completion")]
    every = f"\n## For every verb\n\n{table(HEAD, map(_row, known))}"
    return f"# Verbs\n\n{ABOUT}\n\n{RENEWED}\n{every}{sections}"


def _verbs(command: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """All verbs in the order of the help, those of groups with the name of the group."""
    for name in command.list_commands(None):
        verb = command.commands[name]
        if hasattr(verb, "commands"):
            yield from _verbs(verb, f"{above}{name} ")
        else:
            yield f"{above}{name}", verb


def _verb(line: str, name: str, verb: Any) -> str:
    """The section of a verb."""
    getattr(verb, "list_words", lambda: None)()  # one that typer alone made has none
    texts = "\n\n".join(map(plain, (verb.help or "").split("\n\n")))
    arguments = "".join(f" {_argument(each)}" for each in _shown(verb) if _named(each))
    head, _, examples = (verb.epilog or "").partition(f"{EXAMPLES}\n")
    shown = f"\n```text\n{examples.strip()}\n```\n" if examples else head
    return (
        f"\n## {name}\n\n{texts}\n\n```text\n{line}{arguments} [OPTIONS]\n```\n\n"
        f"{table(HEAD, map(_row, _shown(verb)))}{shown}"
    )


def _shown(verb: Any) -> list[Any]:
    """Its own arguments and options."""
    known = [each for each in verb.params if not getattr(each, "hidden", False)]
    return [each for each in known if each.name not in {"quiet", "verbose"}]


def _named(parameter: Any) -> bool:
    """Whether it is an argument, which stands without the name of an option."""
    return bool(parameter.param_type_name == "argument")


def _argument(parameter: Any) -> str:
    """An argument as a line of usage has it: in brackets where it may be left out."""
    name = (parameter.metavar or parameter.name).strip("[]")
    name += "..." * (parameter.nargs == -1)
    return name if parameter.required else f"[{name}]"


def _row(parameter: Any) -> list[str]:
    default = parameter.default
    told = default is not None and default is not False and not callable(default)
    if _named(parameter):
        names, value = code(_argument(parameter)), ""
    else:
        names = ", ".join(map(code, [*parameter.opts, *parameter.secondary_opts]))
        value = "" if parameter.is_flag else code(parameter.metavar or "TEXT")
    given = code(str(default)) if told and default != [] else ""
    needed = "required" if parameter.required else given
    return [names, value, needed, plain(parameter.help or "")]
