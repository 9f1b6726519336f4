"""Items of a dataset as bytes: pairs of tensors, arrays, numbers, texts and bytes. Nothing that is
read back is executed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from simshuffle.errors import InputError, Problem

_HEAD = 8
"""Bytes at the beginning that say how long the description of the parts is."""


def encode(item: Any) -> bytes:
    """``item`` as bytes: bytes stay as they are, with one letter before them; of a tuple or list
    every part is encoded.

    Raises:
        InputError: a part is of another type.
    """
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
        return [
            "array" if isinstance(value, np.ndarray) else "scalar",
            value.dtype.str,
            list(value.shape),
            len(raw),
        ], raw
    if isinstance(value, bytes | bytearray):
        return ["bytes", len(value)], bytes(value)
    if value is None or isinstance(value, bool | int | float | str):
        return ["plain", value, 0], b""
    rule = "must be bytes, or made of tensors, arrays, numbers, texts and bytes"
    remedy = (
        "Give the dataset a transform, such as ToTensor(), or pass encode= and decode=, for example"
        " pickle.dumps and pickle.loads."
    )
    raise InputError(Problem("items", rule, type(value).__name__, remedy), "dataset")


def _whole(part: list[Any], raw: bytes) -> Any:
    kind = part[0]
    if kind == "plain":
        return part[1]
    if kind == "bytes":
        return raw
    if kind == "tensor":
        flat = (
            torch.frombuffer(bytearray(raw), dtype=getattr(torch, part[1]))
            if raw
            else torch.empty(0, dtype=getattr(torch, part[1]))
        )
        return flat.reshape(part[2])
    array = np.frombuffer(raw, np.dtype(part[1])).reshape(part[2]).copy()
    return array if kind == "array" else array[()]
