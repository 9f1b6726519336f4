"""The command line: verbs only. The one place that prints or exits; a verb imports what it needs
when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from simshuffle.cli import (
    calibrate,
    mechanisms,
    networks,
    new,
    policies,
    probe,
    runs,
    testbed,
    train,
    tta,
    validate,
)
from simshuffle.cli.common import say
from simshuffle.errors import InputError, SimshuffleError
from simshuffle.version import __version__

__all__ = ["app", "entry_point", "main"]

# what typer raises for a wrong command line, whichever package it has it from
_UsageError: Any = typer.BadParameter.__mro__[2]

INTERRUPTED = 130

app = typer.Typer(
    name="simshuffle",
    help="Simulate what shuffling the data costs in distributed deep learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _verbs in (
    new,
    runs,
    train,
    tta,
    networks,
    mechanisms,
    calibrate,
    probe,
    validate,
    policies,
    testbed,
):
    app.add_typer(_verbs.app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"simshuffle {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 a failure, 2 bad input, 130
    interrupted."""
    try:
        status = app(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except InputError as error:
        say(str(error))
        return 2
    except SimshuffleError as error:
        say(str(error))
        return 1
    except typer.Exit as stop:
        return int(stop.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        say(
            f"{name}{error.strerror or error}. Nothing was written; free some space or choose"
            " another --out."
        )
        return 1
    except _UsageError as error:
        error.show()
        return int(error.exit_code)
    if status == INTERRUPTED:
        say("Interrupted; nothing was written.")
    return status if isinstance(status, int) else 0


def entry_point() -> None:
    """The ``simshuffle`` command."""
    sys.exit(main())
