"""The command line: the one place that prints or exits.

`command_line` puts all verbs together, those of extensions too. It is imported when
`main` is first used: extensions import helpers of this package (`common`, `help`),
which would otherwise import the extensions again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simshuffle.cli.command_line import app, entry_point, main

__all__ = ["app", "entry_point", "main"]


def __getattr__(name: str) -> Any:
    """Return `app`, `entry_point` or `main`, and import the command line for it."""
    if name not in __all__:
        raise AttributeError(f"module 'simshuffle.cli' has no attribute '{name}'")
    from simshuffle.cli import command_line

    return getattr(command_line, name)
