"""Write the rows and facts of a process to files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from .rows import SUFFIX


class Journal:
    """The two files of a process in a folder: its rows, and its ``facts`` as JSON.

    Rows are appended by one write for each call, so that a process that is killed loses
    none. The file of facts is replaced at once.

    Attributes:
        folder: of the files, which is there.
        facts: pid and parent; of a rank also what
            `simshuffle.extensions.doctor.records.record.Record.about` holds, `rank`,
            and `workers`: by the pid of each, its loader and first epoch.
        descriptor: of the file of rows; -1 as long as it has none.
        pid: of the process whose files these are.
        name: path of the files without what it ends with.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.descriptor = -1
        self.begin()

    def begin(self) -> None:
        """Begin the files of this process: at its start, and where it has been forked.

        Makes `PID.json`, or `PID-N.json` if that exists; no rows yet. Forgets all other
        facts. A folder that is gone is passed over: then nothing is recorded. On a full
        disk the file may be empty.
        """
        self.pid = pid = os.getpid()
        parent = os.getppid()
        self.facts: dict[str, Any] = {"pid": pid, "parent": parent}
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1
        for suffix in range(1000):
            self.name = f"{self.folder}/{pid}" + f"-{suffix}" * (suffix > 0)
            try:
                descriptor = os.open(
                    f"{self.name}.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL
                )
            except FileExistsError:  # of an older process, or one in another container
                continue
            except OSError:  # the folder is gone: there is nothing to record any more
                break
            # without the json module: most processes never have more to say
            with suppress(OSError):  # a full disk ends the record, not the training
                os.write(descriptor, b'{"pid": %d, "parent": %d}' % (pid, parent))
            os.close(descriptor)
            break

    def write(self, rows: Iterable[bytes]) -> None:
        """Append rows, packed as `ROW` says; on a full disk they are lost, without an
        error.

        Without a row there is no file: the time of a training begins with its first
        row, of a batch for which workers may have loaded torch.
        """
        packed = b"".join(rows)
        if not packed:
            return
        with suppress(OSError):  # a full disk ends the record, not the training
            if self.descriptor < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self.descriptor = os.open(self.name + SUFFIX, flags, 0o644)
            os.write(self.descriptor, packed)

    def save(self) -> None:
        """Write the facts, with ``clock``: ns to add to the clock of the rows for the
        time since 1970; a full disk is passed over.
        """
        import json  # noqa: PLC0415 - only where there is something to say

        # ns from this clock to the clock of the wall: it puts the rows of two hosts in order
        self.facts["clock"] = time.time_ns() - time.perf_counter_ns()
        draft = f"{self.name}.part"
        with suppress(OSError):
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.write(descriptor, json.dumps(self.facts).encode())
            os.close(descriptor)
            os.replace(draft, f"{self.name}.json")  # noqa: PTH105 - pathlib takes long to import
