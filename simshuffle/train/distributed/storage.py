"""Local storage of a rank: its samples by number, in a folder or in memory; and items
of a dataset as bytes. Nothing that is read back is executed.
"""

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
    """Stores each sample as a file of its ``folder``, which is this rank's alone and is
    made if need be.

    A file is named by the sample's number in 12 digits. It is there whole or not at
    all, even if the process is killed.

    Raises:
        InputError: the folder holds something else, or cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            other_names = [
                entry.name
                for entry in os.scandir(folder)
                if not (_NAME.fullmatch(entry.name) or _PART.fullmatch(entry.name))
            ]
        except OSError as error:
            remedy = "Name a folder on the local storage."
            rule = "must be a folder that can be written"
            refuse("storage", rule, str(error), remedy, "dataset")
        if other_names:
            rule = f"holds something else than samples: {other_names[0]}"
            refuse(
                "storage",
                rule,
                str(folder),
                "Name a folder for samples only.",
                "dataset",
            )

    def write(self, sample: int, content: bytes) -> None:
        """Store a sample, whole or not at all: written beside, then renamed. Raises
        OSError if that fails.
        """
        # renaming is atomic: a reader finds the whole file or none
        part = self.folder / f".{sample:012d}.part"
        try:
            part.write_bytes(content)
            part.replace(self._path(sample))
        finally:
            part.unlink(missing_ok=True)

    def get(self, sample: int) -> bytes:
        """Return the content that was stored.

        Raises:
            InputError: the sample is not stored here.
            OSError: it is not readable.
        """
        try:
            return self._path(sample).read_bytes()
        except FileNotFoundError:
            _refuse_absent(sample, str(self.folder))

    def remove(self, sample: int) -> None:
        """Remove a sample if it is stored here."""
        self._path(sample).unlink(missing_ok=True)

    def samples(self) -> Ints64:
        """Return the numbers of all samples that are stored here, rising."""
        names = (entry.name for entry in os.scandir(self.folder))
        return np.array(
            sorted(int(name) for name in names if _NAME.fullmatch(name)), np.int64
        )

    def clear(self) -> None:
        """Remove all samples, and files that a killed process left half-written."""
        for entry in list(os.scandir(self.folder)):
            if _NAME.fullmatch(entry.name) or _PART.fullmatch(entry.name):
                Path(entry.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all samples, and the folder; raise OSError if it holds more."""
        self.clear()
        self.folder.rmdir()

    def free_space(self) -> tuple[str, int]:
        """Return the name of the device that is written to, and its free bytes.

        The name, host and number of the file system, is equal for all ranks that share
        the device.
        """
        state = os.statvfs(self.folder)
        return (
            f"{os.uname().nodename}:{self.folder.stat().st_dev}",
            state.f_bavail * state.f_frsize,
        )

    def _path(self, sample: int) -> Path:
        """Return the path of the file of a sample."""
        return self.folder / f"{sample:012d}"


class MemoryStore:
    """Stores samples in this process's memory; methods as of `FolderStore`."""

    def __init__(self) -> None:
        self._contents: dict[int, bytes] = {}

    def write(self, sample: int, content: bytes) -> None:
        """Store a sample."""
        self._contents[sample] = bytes(content)

    def get(self, sample: int) -> bytes:
        """Return the content that was stored, or raise InputError if there is none."""
        try:
            return self._contents[sample]
        except KeyError:
            _refuse_absent(sample, "the memory of this process")

    def remove(self, sample: int) -> None:
        """Remove a sample if it is stored here."""
        self._contents.pop(sample, None)

    def samples(self) -> Ints64:
        """Return the numbers of all samples that are stored here, rising."""
        return np.array(sorted(self._contents), np.int64)

    def clear(self) -> None:
        """Remove all samples."""
        self._contents.clear()

    def close(self) -> None:
        """Remove all samples."""
        self.clear()

    def free_space(self) -> None:
        """Return None: the free memory is not known."""


Store = FolderStore | MemoryStore


def _refuse_absent(sample: int, place: str) -> NoReturn:
    """Raise InputError: the sample is not in ``place``, the local storage."""
    remedy = (
        "Read only samples that the scheduler's sampler names: draw with Scheduler(weights=), not"
        " with your own sampler. With storage in memory, do not use persistent_workers."
    )
    refuse(
        f"sample {sample}",
        "is not in this rank's local storage",
        place,
        remedy,
        "dataset",
    )


# ----------------------------------------------------------------------------------- items as bytes


_HEAD = 8
"""Bytes at the beginning that hold the length of the parts' description."""


def encode(item: Any) -> bytes:
    """Return ``item`` as bytes.

    Bytes or a bytearray become b"b" and themselves. Another item becomes b"i", the
    length of a description in 8 bytes, the description as JSON, [whether it is a tuple
    or list, how `_encode_part` describes each part], and the parts' contents.

    Raises:
        InputError: a part is of another type than tensors, arrays of numbers or
            booleans, numbers, texts, bytes and None; tuples in tuples are refused.
    """
    if isinstance(item, bytes | bytearray):
        return b"b" + bytes(item)
    is_sequence = isinstance(item, tuple | list)
    parts = [_encode_part(value) for value in (item if is_sequence else [item])]
    described = [description for description, _ in parts]
    head = json.dumps([is_sequence, described], separators=(",", ":")).encode()
    contents = [content for _, content in parts]
    return b"".join([b"i", len(head).to_bytes(_HEAD, "little"), head, *contents])


def decode(content: bytes) -> Any:
    """Return the item that `encode` made ``content`` of.

    A list comes back as a tuple, a bytearray as bytes, a tensor on the CPU and without
    gradient.
    """
    if content[:1] == b"b":
        return content[1:]
    # b"i", length of the description, description, contents of the parts
    size = int.from_bytes(content[1 : 1 + _HEAD], "little")
    begin = 1 + _HEAD + size
    is_sequence, described = json.loads(content[1 + _HEAD : begin])
    parts = []
    for description in described:
        nbytes = description[-1]
        parts.append(_decode_part(description, content[begin : begin + nbytes]))
        begin += nbytes
    return tuple(parts) if is_sequence else parts[0]


def _encode_part(value: Any) -> tuple[list[Any], bytes]:
    """Return the description of a part, [kind, ..., number of bytes], and these bytes;
    raise InputError for a type that cannot be stored.
    """
    if isinstance(value, torch.Tensor):
        # as bytes, since numpy lacks some of torch's types
        array = value.detach().cpu().contiguous()
        raw = (
            array.reshape(-1).view(torch.uint8).numpy().tobytes()
            if array.numel()
            else b""
        )
        return [
            "tensor",
            str(value.dtype).removeprefix("torch."),
            list(value.shape),
            len(raw),
        ], raw
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


def _decode_part(description: list[Any], raw: bytes) -> Any:
    """Return the part that `_encode_part` gave the description and the bytes ``raw``
    of.
    """
    kind = description[0]
    if kind == "plain":
        return description[1]
    if kind == "bytes":
        return raw
    _, type_name, shape, _ = description
    if kind == "tensor":
        dtype = getattr(torch, type_name)
        flat = (
            torch.frombuffer(bytearray(raw), dtype=dtype)
            if raw
            else torch.empty(0, dtype=dtype)
        )
        return flat.reshape(shape)
    array = np.frombuffer(raw, np.dtype(type_name)).reshape(shape).copy()
    return array if kind == "array" else array[()]
