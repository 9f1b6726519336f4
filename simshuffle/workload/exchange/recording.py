"""The exchange of a whole run in a small file, to the last sample: written, and read back to be
replayed."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem
from simshuffle.spec.arrays import Ints, Ints64
from simshuffle.workload.exchange.plan import ExchangePlan

PARTS = ("owner", "sample", "target", "iteration", "message")
"""What is stored: the owners, and the arrays of the plans of all epochs, one after the other."""
FORMAT = 1
MAX_NUMBERS = 100_000_000
"""Most numbers of a part; ninety epochs of ImageNet-1K at Q = 0.3 have 35 million. A packed file
may be a thousandth of what it unpacks to."""
MAX_EPOCHS = 100_000


@dataclass(frozen=True)
class RecordedPlans:
    """The exchange of a whole run."""

    owner: Ints  # (N,) the rank of each sample before the first epoch
    plans: list[ExchangePlan]  # one for every epoch


def write_plans(path: Path | IO[bytes], recorded: RecordedPlans) -> None:
    """Write a compressed .npz file: each part as planes of bytes (lowest first, as many as its
    largest number needs), which zlib packs better than whole numbers; ``steps`` of each epoch; the
    ranks; and the types of the arrays."""
    plans = recorded.plans
    world_size = plans[0].world_size if plans else int(recorded.owner.max(initial=0)) + 1
    whole = {
        "owner": recorded.owner,
        **{part: _joined([getattr(plan, part).ravel() for plan in plans]) for part in PARTS[1:]},
    }
    arrays: dict[str, Any] = {name: _planes(array) for name, array in whole.items()}
    np.savez_compressed(
        path,
        format=np.array([FORMAT]),
        ranks=np.array([world_size]),
        steps=np.array([len(plan.iteration) for plan in plans], np.int64),
        types=np.array([whole[name].dtype.str for name in PARTS]),
        **arrays,
    )


def read_plans(path: Path) -> RecordedPlans:
    """What `write_plans` wrote to ``path``: equal arrays, of equal types. In every step each rank
    sends a sample of its own to another rank each, no sample twice in an epoch; so shards keep
    their sizes. Raises an InputError if the file is missing, damaged, larger than `MAX_NUMBERS`, or
    holds no such plans."""
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        with zipfile.ZipFile(path) as file:
            found = {name: _array(file, name) for name in ("format", "ranks", "steps", "types")}
            if found["format"].tolist() != [FORMAT]:
                raise ValueError(f"format {found['format'].tolist()}, not [{FORMAT}]")
            types = dict(zip(PARTS, found["types"].tolist(), strict=True))
            whole = {name: _numbers(_array(file, name), name, types[name]) for name in PARTS}
        (ranks,) = found["ranks"].tolist()
        return _recorded(whole, _checked(found["steps"].astype(np.int64), "steps"), ranks)
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        EOFError,
        RuntimeError,  # NotImplementedError among them: encrypted, or packed in another way
        OverflowError,
        MemoryError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        rule = "cannot be read as recorded plans"
        remedy = "Train that run again."
        problem = Problem("", rule, str(error) or type(error).__name__, remedy)
        raise InputError(problem, str(path)) from None


def _array(file: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """The array of that name. What its head promises is there before memory is taken for it."""
    member = file.getinfo(f"{name}.npy")
    if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ValueError(f"{name} is packed in another way than write_plans does")
    with file.open(member) as opened:
        if np.lib.format.read_magic(opened) != (1, 0):
            raise ValueError(f"{name} is of another version of .npy")
        shape, columns_first, kind = np.lib.format.read_array_header_1_0(opened)
        if kind.hasobject or kind.kind not in "iuU":
            raise ValueError(f"{name} holds {kind}")
        count = math.prod(shape)
        if not 0 <= count * kind.itemsize <= 8 * MAX_NUMBERS:
            raise ValueError(f"{name} holds {count} numbers, more than {MAX_NUMBERS}")
        content = opened.read(count * kind.itemsize)
    array = np.frombuffer(content, kind)
    if array.size != count:
        raise ValueError(f"{name} ends after {array.size} of {count} numbers")
    return array.reshape(shape, order="F" if columns_first else "C")


def _joined(arrays: list[Ints]) -> Ints:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


def _planes(numbers: Ints) -> NDArray[np.uint8]:
    """(bytes, n): the bytes of ``numbers`` (n,), which are not negative, below 2^63."""
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 8))
    return np.ascontiguousarray(numbers.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].T)


def _numbers(planes: NDArray[Any], name: str, kind: str) -> Ints:
    """(n,): the numbers of the planes, which are not negative and fit the type ``kind``."""
    wanted = np.dtype(kind)
    if planes.dtype != np.uint8 or planes.ndim != 2 or not len(planes) <= 8:
        raise ValueError(f"{name} has the shape {planes.shape} of {planes.dtype}")
    if wanted.kind not in "iu":
        raise ValueError(f"{name} is of type {wanted}")
    if planes.shape[1] > MAX_NUMBERS:
        raise ValueError(f"{name} holds more than {MAX_NUMBERS} numbers")
    whole = np.zeros((planes.shape[1], 8), np.uint8)
    whole[:, : len(planes)] = planes.T
    numbers = _checked(whole.view("<i8").ravel(), name)
    if numbers.max(initial=0) > np.iinfo(wanted).max:
        raise ValueError(f"{name} does not fit its type {wanted}")
    return numbers.astype(wanted)


def _checked(numbers: Ints64, name: str) -> Ints64:
    if numbers.ndim != 1 or numbers.min(initial=0) < 0:
        raise ValueError(f"{name} has negative numbers, or another shape than (n,)")
    return numbers


def _recorded(whole: dict[str, Ints], steps: Ints64, ranks: int) -> RecordedPlans:
    owner, cut = whole["owner"], np.cumsum(steps)[:-1]
    if not 1 <= ranks <= max(len(owner), 1):
        raise ValueError(f"{ranks} ranks of {len(owner)} samples")
    if len(steps) > MAX_EPOCHS or steps.max(initial=0) > MAX_NUMBERS:
        raise ValueError(f"more than {MAX_EPOCHS} epochs, or {MAX_NUMBERS} steps in one")
    if owner.max(initial=0) >= ranks:
        raise ValueError(f"owner: a rank of {int(owner.max())} among {ranks}")
    shape = (int(steps.sum()), ranks)
    parts = [
        np.split(whole["sample"].reshape(shape), cut),
        np.split(whole["target"].reshape(shape), cut),
        np.split(whole["iteration"].reshape(shape[0]), cut),
        np.split(whole["message"].reshape(shape[0]), cut),
    ]
    plans = [ExchangePlan(*arrays) for arrays in zip(*parts, strict=True)] if len(steps) else []
    now = owner.copy()
    for epoch, plan in enumerate(plans, 1):
        if len(plan.iteration) and (rule := _broken(plan, now)):
            raise ValueError(f"epoch {epoch}: {rule}")
        now[plan.sample] = plan.target
    return RecordedPlans(owner, plans)


def _broken(plan: ExchangePlan, owner: Ints) -> str:
    """What of `ExchangePlan` does not hold for the plan of an epoch that begins with ``owner``; ''
    if all does. It takes the time of the plan, not of ``owner``."""
    ranks = np.arange(plan.world_size)
    if plan.sample.max() >= len(owner):
        return f"a sample of {int(plan.sample.max())} among {len(owner)}"
    if (owner[plan.sample] != ranks).any():
        return "a rank sends a sample that it does not have"
    if len(np.unique(plan.sample)) < plan.sample.size:
        return "a sample is sent twice"
    if (np.sort(plan.target, axis=1) != ranks).any():
        return "the targets of a step are no permutation of the ranks"
    if (np.diff(plan.iteration) < 0).any() or (np.diff(plan.message) < 0).any():
        return "iterations or messages go back"
    return ""
