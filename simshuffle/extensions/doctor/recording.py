"""Record a loop over a loader of this process: what every batch took."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from torch.utils.data import DataLoader

import simshuffle.extensions.doctor.recorder
from simshuffle.errors import InputError, refuse
from simshuffle.extensions.doctor.recorder.rows import CODES
from simshuffle.extensions.doctor.records.collected import collect_record
from simshuffle.extensions.doctor.records.record import Record

PHASES = ("copy", "forward", "backward", "optimizer", "allreduce")
"""Operations of a batch that a loop can name itself."""


class Recording:
    """A recording, to be entered once.

    Entering begins to watch this process and its new subprocesses (by variables of the
    environment), or joins a recording that runs. Leaving ends what entering began.

    Attributes:
        record: of all processes that took part; set when the context is left, but not
            if the loop failed before its first batch.
    """

    record: Record

    def __init__(self, loader: DataLoader[Any] | None, folder: Path | None) -> None:
        self._loader = loader
        self._folder = folder
        self._environment: dict[str, str | None] = {}

    def __enter__(self) -> Recording:
        self._start_s = time.perf_counter()
        # a recording that `simshuffle doctor` began, or a loop around this one, goes on
        packages: list[Any] = [
            simshuffle.extensions.doctor.recorder,
            sys.modules.get("simshuffle_recorder"),
        ]
        watched = [getattr(package, "watched", None) for package in packages]
        running = [
            process for process in watched if process is not None and process.active
        ]
        self._owns_process = not running
        if running:
            self._process = running[0]
            return self
        self._temporary = TemporaryDirectory() if self._folder is None else None
        folder = Path(self._temporary.name if self._temporary else self._folder or "")
        folder.mkdir(parents=True, exist_ok=True)
        self._process = simshuffle.extensions.doctor.recorder.watch(
            str(folder), {}, None
        )
        self._process.only = self._loader
        # workers that are spawned begin for themselves
        variables = simshuffle.extensions.doctor.recorder.variables(str(folder))
        self._environment = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        folder = Path(self._process.journal.folder)
        if self._owns_process:
            self._process.end()
        else:
            self._process.save()
        for name, value in self._environment.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        about = {
            "command": list(sys.orig_argv),
            "seconds": time.perf_counter() - self._start_s,
        }
        try:
            # an error of the loop counts, and not that it took no batch
            with suppress(*[InputError] * (error is not None)):
                self.record = collect_record(folder, about)
        finally:
            if self._owns_process and self._temporary is not None:
                self._temporary.cleanup()

    @contextmanager
    def phase(self, operation: str) -> Iterator[None]:
        """Name an operation of a batch that the recorder cannot see, as a copy that is
        not torch's; the context is timed, and its bytes are not known.

        Operations inside it are not timed by themselves. Outside a step nothing is
        recorded. The recording must have been entered.

        Args:
            operation: one of `PHASES`.

        Raises:
            InputError: the operation is none of them.
        """
        if operation not in PHASES:
            rule = f"must be one of {', '.join(PHASES)}"
            remedy = "Name one of these."
            refuse("operation", rule, repr(operation), remedy, "phase")
        step = self._process.current_step
        self._process.current_step = None
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self._process.current_step = step
            if step is not None:
                step.add(CODES[operation], start, time.perf_counter_ns() - start, 0)

    def write(self, path: str | Path) -> None:
        """Write the record to a Parquet file, once the context is left."""
        self.record.write(Path(path))


def record(
    loader: DataLoader[Any] | None = None, folder: str | Path | None = None
) -> Recording:
    """Record the loops over a loader that run in the returned context.

        with simshuffle.train.record(loader) as recording:
            for batch in loader:
                ...
        recording.write("training.parquet")

    Where the training is recorded already, as by `simshuffle doctor`, that recording
    goes on, and the record has what was recorded so far. ``loader`` and ``folder`` have
    no effect then.

    Args:
        loader: of the loops; all loaders of the process if it is left out.
        folder: for the rows of the processes, which stay; made if it does not exist. A
            temporary one if it is left out.

    Raises:
        InputError: no batch was taken when the context is left without another error.
    """
    return Recording(loader, None if folder is None else Path(folder))
