"""Executor that runs cells on the workers of a running Dask scheduler (extra
``cluster``).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from distributed import Client, as_completed
from distributed.scheduler import KilledWorker

from simshuffle.errors import refuse
from simshuffle.study.cell import Cell
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.size import Resources
from simshuffle.study.standing import StageWatch
from simshuffle.study.store import Disk, Lost, Store, run_and_store

PATIENCE = "10 s"  # how long a scheduler has to answer
_ONE_CELL_AT_A_TIME = threading.Lock()
"""A worker of several threads does one cell at a time, for a cell's memory is that of a
process.
"""


@dataclass
class DaskCluster:
    """Runs cells on the workers of a Dask cluster.

    Workers write outcomes into the store themselves, on a file system that all workers
    share. A cell whose worker dies is run again by another worker, as often as the
    scheduler allows (``distributed.scheduler.allowed-failures``), and then lost.
    """

    address: str  # of the scheduler, such as 'tcp://10.0.0.1:8786'
    # why cells have no outcome, by digest; it grows over all calls of `do`
    lost: dict[str, Lost] = field(default_factory=dict)

    def resources(self) -> Resources:
        """Return the number of workers, at least 1; their memory is not known, and
        counts as infinite.

        Raises:
            InputError: no scheduler answers.
        """
        with self._client() as client:
            return Resources(math.inf, max(len(client.scheduler_info()["workers"]), 1))

    def do(
        self, cells: Mapping[str, Cell], store: Store, watch: StageWatch
    ) -> Iterator[str]:
        """Run the cells on the workers, and yield each digest when its cell is done or
        lost.

        Costly cells begin first. Shares of running cells are not told to ``watch``.

        Raises:
            InputError: no scheduler answers, or a worker's outcome is not in the store,
                which is on disk.
            Exception: what a worker raised beside errors of the cell, such as an
                OSError where it cannot write.
        """
        with self._client() as client:
            ordered = sorted(cells, key=lambda digest: -cells[digest].cost)
            futures = [
                client.submit(
                    _attempt,
                    cells[digest],
                    digest,
                    store,
                    key=f"simshuffle-{digest}",
                    pure=False,
                )
                for digest in ordered
            ]
            futures_as_they_end = as_completed(
                futures, loop=client.loop, raise_errors=False
            )
            watch.tell()
            for future in futures_as_they_end:
                digest = future.key.removeprefix("simshuffle-")
                self._note(digest, cells[digest], future, store)
                watch.end(digest)
                yield digest

    def _client(self) -> Client:
        """Connect to the scheduler within `PATIENCE`; an InputError if none answers."""
        try:
            return Client(self.address, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError):
            rule = "must be the address of a Dask scheduler that answers"
            remedy = "Start one with 'dask scheduler', and workers with 'dask worker'."
            refuse("--scheduler", rule, self.address, remedy, COMMAND_LINE)

    def _note(self, digest: str, cell: Cell, future: object, store: Store) -> None:
        """Note why a cell is lost, if it is.

        Raises:
            InputError: the outcome is not in the store, so the file system is not
                shared.
            Exception: whatever else the worker raised.
        """
        error = future.exception()  # type: ignore[attr-defined]
        if isinstance(error, KilledWorker):
            self.lost[digest] = Lost("its worker was killed, again and again")
        elif error is not None:
            raise error
        elif failure := future.result():  # type: ignore[attr-defined]
            self.lost[digest] = failure
        elif not store.has(digest, cell.parts):
            root = str(store.root) if isinstance(store, Disk) else ""
            rule = "must lie on a file system that the workers share"
            refuse("--out", rule, root, "Name a folder on it.", COMMAND_LINE)


def _attempt(cell: Cell, digest: str, store: Disk) -> Lost | None:
    """Run a cell on a worker and store its outcome; return why it is lost, or None.

    Raises:
        OSError: the outcome cannot be written.
    """
    with _ONE_CELL_AT_A_TIME:
        return run_and_store(cell, digest, store, lambda share: None)
