"""The help texts that matplotlib writes while it is imported: all properties of each of its classes,
which takes a quarter of the import."""

_WANTED = [True]


def leave_out() -> None:
    """Let `prepare` leave them out: for a process of its own that draws and ends, where nobody
    reads them."""
    _WANTED[0] = False


def prepare() -> None:
    """To be called before the classes of matplotlib are imported; does nothing unless `leave_out`
    was called."""
    if not _WANTED[0]:
        import matplotlib.artist  # noqa: PLC0415 - where it is drawn

        matplotlib.artist.kwdoc = lambda artist: ""  # type: ignore[assignment]
