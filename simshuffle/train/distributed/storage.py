"""Local storage of a rank: the samples that it holds, by number, in a folder or in memory; items
of a dataset as bytes. Nothing that is read back is executed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Ints64

_NAME = re.compile(r"\d{12}")
_PART = re.compile(r"\.\d{12}\.part")


class FolderStore:
    """One file for each sample in a ``folder`` of this rank alone, made if need be, named by its
    number in 12 digits; there whole or not at all, even if the process is killed. Raises InputError
    if there is something else, or it cannot be made."""

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
            rule = "must be a folder that can be written"
            refuse("storage", rule, str(error), remedy, "dataset")
        if others:
            rule = f"holds something else than samples: {others[0]}"
            refuse("storage", rule, str(folder), "Name a folder of its own for it.", "dataset")

    def put(self, sample: int, content: bytes) -> None:
        """Store a sample, whole or not at all: written beside, then renamed. Raises OSError."""
        part = self.folder / f".{sample:012d}.part"
        try:
            part.write_bytes(content)
            part.replace(self._path(sample))
        finally:
            part.unlink(missing_ok=True)

    def get(self, sample: int) -> bytes:
        """What was stored. Raises InputError if the sample is not here, OSError if it is not
        readable."""
        try:
            return self._path(sample).read_bytes()
        except FileNotFoundError:
            _refuse_absent(sample, str(self.folder))

    def remove(self, sample: int) -> None:
        """Remove a sample if it is here."""
        self._path(sample).unlink(missing_ok=True)

    def samples(self) -> Ints64:
        """The numbers of all samples that are here, rising."""
        names = (entry.name for entry in os.scandir(self.folder))
        return np.array(sorted(int(name) for name in names if _NAME.fullmatch(name)), np.int64)

    def clear(self) -> None:
        """Remove all samples; also what a killed process left half-written."""
        for entry in list(os.scandir(self.folder)):
            if _NAME.fullmatch(entry.name) or _PART.fullmatch(entry.name):
                Path(entry.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all samples, and the folder."""
        self.clear()
        self.folder.rmdir()

    def room(self) -> tuple[str, int]:
        """Name of the device that is written to, the same for all ranks that share it: host and
        number of the file system; and its free bytes."""
        state = os.statvfs(self.folder)
        return f"{os.uname().nodename}:{self.folder.stat().st_dev}", state.f_bavail * state.f_frsize

    def _path(self, sample: int) -> Path:
        return self.folder / f"{sample:012d}"


class MemoryStore:
    """Samples in this process's memory."""

    def __init__(self) -> None:
        self._held: dict[int, bytes] = {}

    def put(self, sample: int, content: bytes) -> None:
        """As `FolderStore.put`."""
        self._held[sample] = bytes(content)

    def get(self, sample: int) -> bytes:
        """As `FolderStore.get`."""
        try:
            return self._held[sample]
        except KeyError:
            _refuse_absent(sample, "the memory of this process")

    def remove(self, sample: int) -> None:
        """As `FolderStore.remove`."""
        self._held.pop(sample, None)

    def samples(self) -> Ints64:
        """As `FolderStore.samples`."""
        return np.array(sorted(self._held), np.int64)

    def clear(self) -> None:
        """As `FolderStore.clear`."""
        self._held.clear()

    def close(self) -> None:
        """As `FolderStore.close`."""
        self.clear()

    def room(self) -> None:
        """Nobody knows."""


Store = FolderStore | MemoryStore


def _refuse_absent(sample: int, where: str) -> NoReturn:
    remedy = (
        "Read the samples that the scheduler's sampler names, and draw by Scheduler(weights=), not"
        " by a sampler of your own; with storage in memory, do not use persistent_workers."
    )
    refuse(f"sample {sample}", "is not in this rank's local storage", where, remedy, "dataset")


# ----------------------------------------------------------------------------------- items as bytes


_HEAD = 8
"""Bytes at the beginning that say how long the description of the parts is."""


def encode(item: Any) -> bytes:
    """``item`` as bytes: bytes stay as they are, with one letter before them; of a tuple or list
    every part is encoded. Raises InputError if a part is of another type."""
    if isinstance(item, bytes | bytearray):
        return b"b" + bytes(item)
    parts = list(item) if isinstance(item, tuple | list) else [item]
    described, contents = zip(*(_part(part) for part in parts), strict=True) if parts else ((), ())
    about = json.dumps([isinstance(item, tuple | list), described], separators=(",", ":")).encode()
    return b"".join([b"i", len(about).to_bytes(_HEAD, "little"), about, *contents])


def decode(content: bytes) -> Any:
    """The item of which ``content`` was made; a list comes back as a tuple."""
    if content[:1] == b"b":
        return content[1:]
    size = int.from_bytes(content[1 : 1 + _HEAD], "little")
    begin = 1 + _HEAD + size
    several, described = json.loads(content[1 + _HEAD : begin])
    parts = []
    for part in described:
        nbytes = part[-1]
        parts.append(_whole(part, content[begin : begin + nbytes]))
        begin += nbytes
    return tuple(parts) if several else parts[0]


def _part(value: Any) -> tuple[list[Any], bytes]:
    """How a part is described, ending in its number of bytes, and these bytes."""
    if isinstance(value, torch.Tensor):
        array = value.detach().cpu().contiguous()
        raw = array.reshape(-1).view(torch.uint8).numpy().tobytes() if array.numel() else b""
        return ["tensor", str(value.dtype).removeprefix("torch."), list(value.shape), len(raw)], raw
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        raw = np.ascontiguousarray(value).tobytes()
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return [kind, value.dtype.str, list(value.shape), len(raw)], raw
    if isinstance(value, bytes | bytearray):
        return ["bytes", len(value)], bytes(value)
    if value is None or isinstance(value, bool | int | float | str):
        return ["plain", value, 0], b""
    rule = "must be bytes, or made of tensors, arrays, numbers, texts and bytes"
    remedy = (
        "Give the dataset a transform, such as ToTensor(), or pass encode= and decode=, for example"
        " pickle.dumps and pickle.loads."
    )
    refuse("items", rule, type(value).__name__, remedy, "dataset")


def _whole(part: list[Any], raw: bytes) -> Any:
    kind = part[0]
    if kind == "plain":
        return part[1]
    if kind == "bytes":
        return raw
    if kind == "tensor":
        dtype = getattr(torch, part[1])
        flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        return flat.reshape(part[2])
    array = np.frombuffer(raw, np.dtype(part[1])).reshape(part[2]).copy()
    return array if kind == "array" else array[()]
