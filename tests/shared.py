"""What is made once for a whole run of the tests, in a folder that all its processes share."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import simshuffle

needs_peers = pytest.mark.skipif(
    "SIMSHUFFLE_PEERS" not in os.environ,
    reason="asks a program for its recorded answers again: make peers",
)

HAS_EXTENSIONS = (Path(simshuffle.__file__).parent / "extensions").is_dir()
needs_extensions = pytest.mark.skipif(
    not HAS_EXTENSIONS, reason="asks verbs of extensions, which `make core` leaves out"
)


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """The folder of this run: with pytest-xdist that of every worker is in it."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def once(place: Path, make: Callable[[Path], object]) -> Path:
    """``place``, which ``make`` fills; the first process that wants it does, the others wait."""
    whole = place.with_name(f"{place.name}.whole")
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            place.mkdir(parents=True)
            make(place)
            whole.touch()
    return place
