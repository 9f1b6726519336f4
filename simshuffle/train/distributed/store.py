"""Local storage of a rank: the samples that it holds, by number, in a folder or in memory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem

_NAME = re.compile(r"\d{12}")
_PART = re.compile(r"\.\d{12}\.part")


class Store(Protocol):
    """Samples by number, each a string of bytes."""

    def put(self, sample: int, content: bytes) -> None:
        """Store a sample, whole or not at all.

        Raises:
            OSError: it cannot be stored.
        """

    def get(self, sample: int) -> bytes:
        """What was stored.

        Raises:
            InputError: the sample is not here.
            OSError: it cannot be read.
        """

    def remove(self, sample: int) -> None:
        """Remove a sample if it is here."""

    def samples(self) -> NDArray[np.int64]:
        """The numbers of all samples that are here, rising."""

    def clear(self) -> None:
        """Remove all samples."""

    def close(self) -> None:
        """Remove all samples, and the place that was made for them."""

    def room(self) -> tuple[str, int] | None:
        """Name of the device that is written to, the same for all ranks that share it, and its free
        bytes; None if nobody knows."""


class FolderStore:
    """One file for each sample, named by its number in 12 digits. A file is there whole or not at
    all, even if the process is killed.

    Args:
        folder: of this rank alone; made if need be.

    Raises:
        InputError: it holds something else than samples, or cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            others = [
                entry.name
                for entry in os.scandir(folder)
                if not (_NAME.fullmatch(entry.name) or _PART.fullmatch(entry.name))
            ]
        except OSError as error:
            remedy = "Name a folder on the local storage."
            raise InputError(
                Problem("storage", "must be a folder that can be written", str(error), remedy),
                "dataset",
            ) from None
        if others:
            rule = f"holds something else than samples: {others[0]}"
            raise InputError(
                Problem("storage", rule, str(folder), "Name a folder of its own for it."), "dataset"
            )

    def put(self, sample: int, content: bytes) -> None:
        """As `Store.put`: written beside, then renamed."""
        part = self.folder / f".{sample:012d}.part"
        try:
            part.write_bytes(content)
            part.replace(self._path(sample))
        finally:
            part.unlink(missing_ok=True)

    def get(self, sample: int) -> bytes:
        """As `Store.get`."""
        try:
            return self._path(sample).read_bytes()
        except FileNotFoundError:
            raise _absent(sample, str(self.folder)) from None

    def remove(self, sample: int) -> None:
        """As `Store.remove`."""
        self._path(sample).unlink(missing_ok=True)

    def samples(self) -> NDArray[np.int64]:
        """As `Store.samples`."""
        return np.array(
            sorted(
                int(entry.name) for entry in os.scandir(self.folder) if _NAME.fullmatch(entry.name)
            ),
            np.int64,
        )

    def clear(self) -> None:
        """As `Store.clear`; also what a killed process left half-written."""
        for entry in list(os.scandir(self.folder)):
            if _NAME.fullmatch(entry.name) or _PART.fullmatch(entry.name):
                Path(entry.path).unlink(missing_ok=True)

    def close(self) -> None:
        """As `Store.close`."""
        self.clear()
        self.folder.rmdir()

    def room(self) -> tuple[str, int] | None:
        """As `Store.room`: host and device number of the file system."""
        state = os.statvfs(self.folder)
        return f"{os.uname().nodename}:{self.folder.stat().st_dev}", state.f_bavail * state.f_frsize

    def _path(self, sample: int) -> Path:
        return self.folder / f"{sample:012d}"


class MemoryStore:
    """Samples in this process's memory."""

    def __init__(self) -> None:
        self._held: dict[int, bytes] = {}

    def put(self, sample: int, content: bytes) -> None:
        """As `Store.put`."""
        self._held[sample] = bytes(content)

    def get(self, sample: int) -> bytes:
        """As `Store.get`."""
        try:
            return self._held[sample]
        except KeyError:
            raise _absent(sample, "the memory of this process") from None

    def remove(self, sample: int) -> None:
        """As `Store.remove`."""
        self._held.pop(sample, None)

    def samples(self) -> NDArray[np.int64]:
        """As `Store.samples`."""
        return np.array(sorted(self._held), np.int64)

    def clear(self) -> None:
        """As `Store.clear`."""
        self._held.clear()

    def close(self) -> None:
        """As `Store.close`."""
        self.clear()

    def room(self) -> tuple[str, int] | None:
        """None."""
        return None


def _absent(sample: int, where: str) -> InputError:
    remedy = (
        "Read the samples that the scheduler's sampler names; with storage in memory, do not use"
        " persistent_workers."
    )
    return InputError(
        Problem(f"sample {sample}", "is not in this rank's local storage", where, remedy), "dataset"
    )
