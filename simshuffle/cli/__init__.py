"""The command line: verbs only. The one place that prints or exits; a verb imports what it needs
when it is called."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from simshuffle.cli import (
    calibrate,
    collective,
    export,
    figure,
    loader,
    mechanisms,
    networks,
    new,
    oracle,
    page,
    policies,
    probe,
    runs,
    schema,
    testbed,
    topology,
    train,
    tta,
    validate,
)
from simshuffle.cli.common import LOADING, Stopped, complain, reset_volume, set_volume
from simshuffle.cli.help import HELP_OPTIONS, Quiet, Verbose, Verbs
from simshuffle.errors import InputError, SimshuffleError
from simshuffle.version import __version__

__all__ = ["app", "entry_point", "main"]

# what typer raises for a wrong command line, whichever package it has it from
_UsageError: Any = typer.BadParameter.__mro__[2]

INTERRUPTED = 130

app = typer.Typer(
    name="simshuffle",
    cls=Verbs,
    help="Simulate what shuffling the data costs in distributed deep learning.",
    epilog="Every verb has examples: simshuffle run --help. To begin: simshuffle run quickstart.",
    no_args_is_help=True,
    context_settings=HELP_OPTIONS,
    pretty_exceptions_enable=False,
)
# in a group of the help they stand in this order
for _verbs in (
    new,
    runs,
    mechanisms,
    networks,
    collective,
    policies,
    loader,
    oracle,
    train,
    tta,
    probe,
    topology,
    calibrate,
    validate,
    testbed,
    page,
    figure,
    export,
    schema,
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
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    set_volume(quiet=quiet, verbose=verbose)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 a failure, 2 bad input, 130
    interrupted."""
    reset_volume()
    try:
        words = None if arguments is None else list(arguments)
        status = app(args=words, prog_name=app.info.name, standalone_mode=False)
    except InputError as error:
        complain(str(error))
        return 2
    except SimshuffleError as error:
        complain(str(error))
        return 1
    except Stopped as stop:
        complain(str(stop))
        return INTERRUPTED
    except typer.Exit as stop:
        return int(stop.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED
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
    if status == INTERRUPTED:
        complain("Interrupted; nothing was written.")
    return status if isinstance(status, int) else 0


def entry_point() -> None:
    """The ``simshuffle`` command."""
    # Arrow's own allocator keeps 50 MB that writing the tables of 2048 ranks took
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    gc.set_threshold(LOADING)
    sys.exit(main())
