"""The help that matplotlib writes while it is imported, for each of its classes: a text of all its
properties, and a signature. That takes a third of its import."""

from typing import Any

WANTED = True
"""Whether anybody may read it: not in a process of its own that draws and ends."""


def leave_out_unwanted() -> None:
    """Let the classes of matplotlib that are imported from now on go without it, unless it is
    wanted."""
    if not WANTED:
        import matplotlib.artist  # noqa: PLC0415 - where it is drawn

        module: Any = matplotlib.artist
        module.kwdoc = lambda artist: ""
        # a release of matplotlib that has no such method does not miss it
        module.Artist._update_set_signature_and_docstring = lambda: None
