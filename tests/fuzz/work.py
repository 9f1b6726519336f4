"""What a process of `python -m tests.fuzz` does: another process cannot import its main module."""

import faulthandler
import os
import resource
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.readers import READERS
from tests.fuzz.trial import tried

MEMORY = 16 << 30
"""Bytes of address space of a process."""


def work(job: Any, pipe: Any) -> None:
    """Try the inputs of a job, and say through the pipe what became of them."""
    name, numbers, seed = job
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory(prefix="simshuffle-fuzz-") as place:
        os.chdir(place)
        READERS[name].prepare(Path(place))
        pipe.send(tried(name, READERS[name], numbers, Path(place), seed, pipe.send))
