"""The command line: all verbs together, and the exit status.

It is the one place that prints or exits; a verb imports what it needs when it is
called.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from simshuffle.cli import check, derived, new, result_folders, results, shipped, study
from simshuffle.cli.common import (
    LOADING_THRESHOLD,
    complain,
    print_warnings,
    reset_volume,
    set_volume,
)
from simshuffle.cli.help import HELP_OPTIONS, Quiet, Verbose, Verbs
from simshuffle.errors import InputError, SimshuffleError, Stopped
from simshuffle.study.registry import commands, verbs
from simshuffle.version import __version__

__all__ = ["app", "entry_point", "main"]

# what typer raises for a wrong command line, whichever package it has it from
_UsageError: Any = typer.BadParameter.__mro__[2]

INTERRUPTED_STATUS = 130
GROUPS = {
    "study": "Ask one question: oracle, loader, tta, hiding, blame, audit ...",
    "machine": "Measure this host, read a cluster: probe, calibrate, import ...",
    "results": "Show, draw, verify and export what is in a result folder.",
}
"""Groups of verbs that few need, and what their help says."""
MODULES_OF_GROUP = {
    "": (new, check, shipped, results),
    "study": (study,),
    "results": (result_folders,),
}
"""Modules of verbs that are no studies, by the group that the verbs are in; extensions
add theirs.
"""


def make_app(name: str, help_: str, epilog: str) -> typer.Typer:
    """Return an app for verbs; its help is ``help_``, and ends with ``epilog``."""
    return typer.Typer(
        name=name,
        cls=Verbs,
        help=help_,
        epilog=epilog,
        no_args_is_help=True,
        context_settings=HELP_OPTIONS,
        pretty_exceptions_enable=False,
    )


app = make_app(
    "simshuffle",
    "Simulate what shuffling the data costs. To begin: simshuffle run quickstart. What there is:"
    " simshuffle list.",
    "",
)


def add_verbs() -> None:
    """Add all verbs to the app, and the groups of verbs.

    They are verbs that are written by hand, those of extensions, and those of the
    studies. The words of a study's verb before the last one name its group.
    """
    apps = {"": app}
    for name, text in GROUPS.items():
        apps[name] = make_app(
            name, text, f"Every verb has examples: simshuffle {name} VERB --help."
        )
        apps[name].callback()(set_group_volume)
        app.add_typer(apps[name], rich_help_panel="Rarely")
    for group, modules in MODULES_OF_GROUP.items():
        for module in modules:
            apps[group].add_typer(module.app)
    for group, module in commands():
        apps[group].add_typer(module.app)
    for verb in verbs().values():
        derived.add_verb(apps[" ".join(verb.name.split()[:-1])], verb)


def set_group_volume(quiet: Quiet = False, verbose: Verbose = False) -> None:
    """Apply -q and -v where they stand behind the name of a group."""
    set_volume(quiet=quiet, verbose=verbose)


def print_version(is_requested: bool) -> None:
    """Print the version and exit, if --version is given; else do nothing."""
    if is_requested:
        typer.echo(f"simshuffle {__version__}")
        raise typer.Exit


add_verbs()


@app.callback()
def set_options(
    version: Annotated[
        bool,
        # hidden, as everybody tries it: the help of all verbs has to fit a screen
        typer.Option(
            "--version",
            callback=print_version,
            is_eager=True,
            help="Print the version.",
            hidden=True,
        ),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Apply the options that stand before a verb."""
    set_volume(quiet=quiet, verbose=verbose)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status.

    It is 0, 1 for a failure (an OSError, too), 2 for bad input and 130 where it was
    interrupted. Errors are printed to standard error; other exceptions pass. -q and -v
    of an earlier call are forgotten.

    Args:
        arguments: words of the command; those of the process if None.
    """
    reset_volume()
    try:
        command_words = None if arguments is None else list(arguments)
        with print_warnings():
            status = app(
                args=command_words, prog_name=app.info.name, standalone_mode=False
            )
    except InputError as error:
        complain(str(error))
        return 2
    except SimshuffleError as error:
        complain(str(error))
        return 1
    except Stopped as stop:
        complain(str(stop))
        return INTERRUPTED_STATUS
    except typer.Exit as stop:
        return int(stop.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED_STATUS
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        complain(
            f"{name}{error.strerror or error}. Nothing was written; free some space or choose"
            " another --out."
        )
        return 1
    except _UsageError as error:
        error.show()
        return int(error.exit_code)
    if status == INTERRUPTED_STATUS:
        complain("Interrupted; nothing was written.")
    return status if isinstance(status, int) else 0


def entry_point() -> None:
    """Run the ``simshuffle`` command, and exit with its status."""
    # Arrow's own allocator keeps 50 MB that writing the tables of 2048 ranks took
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    gc.set_threshold(LOADING_THRESHOLD)
    status = main()
    gc.freeze()  # else Python looks for garbage once more in all that was loaded
    sys.exit(status)
