"""Write the exchange of a whole run, to the last sample, to a small file, and read it
for a replay.
"""

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

PART_NAMES = ("owner", "sample", "target", "iteration", "message")
"""The arrays of a file: the owners, and the arrays of the plans of all epochs one after
the other.
"""
FORMAT = 1
"""The number of the file's layout; `read_plans` refuses any other."""
MAX_NUMBERS = 100_000_000
"""The most numbers of an array; ninety epochs of ImageNet-1K at Q = 0.3 have 35
million. A packed file may be a thousandth of what it unpacks to.
"""
MAX_EPOCHS = 100_000
"""The most epochs of a file that is read."""


@dataclass(frozen=True)
class RecordedPlans:
    """The exchange of a whole run: the first owners, and the plan of every epoch."""

    owner: Ints  # (N,) the rank of each sample before the first epoch
    plans: list[ExchangePlan]  # one for every epoch

    @property
    def world_size(self) -> int:
        """M; without plans, as many ranks as ``owner`` needs."""
        if self.plans:
            return self.plans[0].world_size
        return int(self.owner.max(initial=0)) + 1


def write_plans(path: Path | IO[bytes], recorded: RecordedPlans) -> None:
    """Write ``recorded`` as a compressed .npz file.

    It holds each array as planes of bytes (lowest first, as many as the largest number
    needs), which zlib packs better than whole numbers; the steps of each epoch; the
    number of ranks; and the types of the arrays. ``draws`` of the plans is left out.

    Args:
        path: of the file, which is replaced if it exists; numpy appends '.npz' to a
            name without it.
        recorded: first owners and plans, of equally many ranks. Nothing is checked.
    """
    plans = recorded.plans
    arrays = {"owner": recorded.owner}
    for name in PART_NAMES[1:]:
        parts = [getattr(plan, name).ravel() for plan in plans]
        arrays[name] = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    planes: dict[str, Any] = {
        name: _byte_planes(array) for name, array in arrays.items()
    }
    np.savez_compressed(
        path,
        format=np.array([FORMAT]),
        ranks=np.array([recorded.world_size]),
        steps=np.array([len(plan.iteration) for plan in plans], np.int64),
        types=np.array([arrays[name].dtype.str for name in PART_NAMES]),
        **planes,
    )


def read_plans(path: Path) -> RecordedPlans:
    """Read the plans that `write_plans` wrote: equal arrays, of equal types.

    In every step each rank sends a sample of its own, and receives one (perhaps its
    own), no sample twice in an epoch; so shards keep their sizes. ``draws`` is not
    recorded: it is None in all plans.

    Raises:
        InputError: if the file is missing, damaged, has an array of more than
            `MAX_NUMBERS` numbers or more than `MAX_EPOCHS` epochs, or holds no such
            plans.
    """
    try:
        if not path.is_file():
            raise ValueError("it is not a file")
        with zipfile.ZipFile(path) as file:
            head = {
                name: _read_array(file, name)
                for name in ("format", "ranks", "steps", "types")
            }
            if head["format"].tolist() != [FORMAT]:
                raise ValueError(f"format {head['format'].tolist()}, not [{FORMAT}]")
            types = dict(zip(PART_NAMES, head["types"].tolist(), strict=True))
            arrays = {
                name: _decode_planes(_read_array(file, name), name, types[name])
                for name in PART_NAMES
            }
        (world_size,) = head["ranks"].tolist()
        steps = _check_numbers(head["steps"].astype(np.int64), "steps")
        return _split_epochs(arrays, steps, world_size)
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


def _read_array(file: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """Read the array ``name`` of the archive.

    Memory is taken only once its head is known to promise no more than `MAX_NUMBERS`.

    Raises:
        ValueError: if it is packed or typed otherwise than by `write_plans`, too long,
            or cut off.
    """
    member = file.getinfo(f"{name}.npy")
    if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ValueError(f"{name} is packed in another way than write_plans does")
    with file.open(member) as opened:
        if np.lib.format.read_magic(opened) != (1, 0):
            raise ValueError(f"{name} is of another version of .npy")
        shape, columns_first, dtype = np.lib.format.read_array_header_1_0(opened)
        if dtype.kind not in "iuU":
            raise ValueError(f"{name} holds {dtype}")
        size = math.prod(shape)
        if not 0 <= size * dtype.itemsize <= 8 * MAX_NUMBERS:
            raise ValueError(f"{name} holds {size} numbers, more than {MAX_NUMBERS}")
        content = opened.read(size * dtype.itemsize)
    array = np.frombuffer(content, dtype)
    if array.size != size:
        raise ValueError(f"{name} ends after {array.size} of {size} numbers")
    return array.reshape(shape, order="F" if columns_first else "C")


def _byte_planes(numbers: Ints) -> NDArray[np.uint8]:
    """Return the bytes of ``numbers`` (n,), from 0 to 2^63 - 1, as planes: (bytes, n)."""
    num_bytes = max(1, -(-int(numbers.max(initial=0)).bit_length() // 8))
    # (n, 8) the bytes of each number, lowest first
    all_bytes = numbers.astype("<i8").view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(all_bytes[:, :num_bytes].T)


def _decode_planes(planes: NDArray[Any], name: str, type_name: str) -> Ints:
    """Return the numbers (n,) of the planes (bytes, n), as type ``type_name``.

    Raises:
        ValueError: if they are no such planes, or a number is negative or does not fit
            the type.
    """
    dtype = np.dtype(type_name)
    if planes.dtype != np.uint8 or planes.ndim != 2 or not len(planes) <= 8:
        raise ValueError(f"{name} has the shape {planes.shape} of {planes.dtype}")
    if dtype.kind not in "iu":
        raise ValueError(f"{name} is of type {dtype}")
    if planes.shape[1] > MAX_NUMBERS:
        raise ValueError(f"{name} holds more than {MAX_NUMBERS} numbers")
    # (n, 8) the bytes of each number, lowest first
    all_bytes = np.zeros((planes.shape[1], 8), np.uint8)
    all_bytes[:, : len(planes)] = planes.T
    numbers = _check_numbers(all_bytes.view("<i8").ravel(), name)
    if numbers.max(initial=0) > np.iinfo(dtype).max:
        raise ValueError(f"{name} does not fit its type {dtype}")
    return numbers.astype(dtype)


def _check_numbers(numbers: Ints64, name: str) -> Ints64:
    """Return ``numbers`` (n,), named ``name`` in the text of the error.

    Raises:
        ValueError: if a number is negative, or the shape is another.
    """
    if numbers.ndim != 1 or numbers.min(initial=0) < 0:
        raise ValueError(f"{name} has negative numbers, or another shape than (n,)")
    return numbers


def _split_epochs(
    arrays: dict[str, Ints], steps: Ints64, world_size: int
) -> RecordedPlans:
    """Split the arrays of all epochs into the plan of each epoch.

    Args:
        arrays: by the names `PART_NAMES`; owners (N,), the others of all epochs one
            after the other.
        steps: (epochs,) steps of each epoch.
        world_size: M, from 1 to the number of samples.

    Raises:
        ValueError: if they do not fit together, are too many, or break a rule of
            `ExchangePlan`.
    """
    owner = arrays["owner"]
    if not 1 <= world_size <= max(len(owner), 1):
        raise ValueError(f"{world_size} ranks of {len(owner)} samples")
    if len(steps) > MAX_EPOCHS or steps.max(initial=0) > MAX_NUMBERS:
        raise ValueError(
            f"more than {MAX_EPOCHS} epochs, or {MAX_NUMBERS} steps in one"
        )
    if owner.max(initial=0) >= world_size:
        raise ValueError(f"owner: a rank of {int(owner.max())} among {world_size}")

    total_steps = int(steps.sum())
    shapes = {
        "sample": (total_steps, world_size),
        "target": (total_steps, world_size),
        "iteration": (total_steps,),
        "message": (total_steps,),
    }
    ends = np.cumsum(steps)[:-1]
    by_name = [
        np.split(arrays[name].reshape(shape), ends) for name, shape in shapes.items()
    ]
    by_epoch = zip(*by_name, strict=True) if len(steps) else ()
    plans = [ExchangePlan(*plan_arrays) for plan_arrays in by_epoch]

    current_owner = owner.copy()
    for epoch, plan in enumerate(plans, 1):
        if len(plan.iteration) and (rule := _find_broken_rule(plan, current_owner)):
            raise ValueError(f"epoch {epoch}: {rule}")
        current_owner[plan.sample] = plan.target
    return RecordedPlans(owner, plans)


def _find_broken_rule(plan: ExchangePlan, owner: Ints) -> str:
    """Name the first rule of `ExchangePlan` that a plan of an epoch breaks; '' if none.

    The time is in proportion to the plan, not to ``owner``.

    Args:
        plan: of at least one step.
        owner: (N,) the rank of each sample as the epoch begins.
    """
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
