"""The command line: the one place that prints or exits.

`command_line` puts all verbs together, those of extensions too, and is imported when `main` is
asked for: extensions use the helpers of this room (`common`, `help`) and must not meet themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simshuffle.cli.command_line import app, entry_point, main

__all__ = ["app", "entry_point", "main"]


def __getattr__(name: str) -> Any:
    """Import the command line when a name of it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'simshuffle.cli' has no attribute '{name}'")
    from simshuffle.cli import command_line

    return getattr(command_line, name)
