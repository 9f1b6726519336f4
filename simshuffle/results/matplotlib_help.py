"""The help texts that matplotlib writes while it is imported, all properties of each of its
classes, which take a fifth of its import."""

WANTED = True
"""Whether anybody may read them: not in a process of its own that draws and ends."""


def leave_out_unwanted() -> None:
    """Let the classes of matplotlib that are imported from now on go without them, unless they are
    wanted."""
    if not WANTED:
        import matplotlib.artist  # noqa: PLC0415 - where it is drawn

        matplotlib.artist.kwdoc = lambda artist: ""
