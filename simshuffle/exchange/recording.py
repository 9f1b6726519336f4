"""The exchange of a whole run in a small file, to the last sample: written, and read back to be
replayed."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem
from simshuffle.exchange.plan import ExchangePlan

PARTS = ("owner", "sample", "target", "iteration", "message")
"""What is stored: the owners, and the arrays of the plans of all epochs, one after the other."""
FORMAT = 1


@dataclass(frozen=True)
class RecordedPlans:
    """The exchange of a whole run.

    Attributes:
        owner: (N,) the rank of each sample before the first epoch.
        plans: one for every epoch.
    """

    owner: NDArray[np.integer]
    plans: list[ExchangePlan]


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
    """What `write_plans` wrote to ``path``: equal arrays, of equal types.

    Raises:
        InputError: the file is missing or damaged.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            if int(file["format"][0]) != FORMAT:
                raise ValueError(f"format {int(file['format'][0])}, not {FORMAT}")
            types = dict(zip(PARTS, file["types"], strict=True))
            whole = {name: _numbers(file[name], str(types[name])) for name in PARTS}
            return _recorded(whole, file["steps"], int(file["ranks"][0]))
    except (
        OSError,
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        problem = Problem(
            "",
            "cannot be read as recorded plans",
            str(error) or type(error).__name__,
            "Train that run again.",
        )
        raise InputError(problem, str(path)) from None


def _joined(arrays: list[NDArray[np.integer]]) -> NDArray[np.integer]:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


def _planes(numbers: NDArray[np.integer]) -> NDArray[np.uint8]:
    """(bytes, n): the bytes of ``numbers`` (n,), which are not negative, below 2^63."""
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 8))
    return np.ascontiguousarray(numbers.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].T)


def _numbers(planes: NDArray[np.uint8], kind: str) -> NDArray[np.integer]:
    whole = np.zeros((planes.shape[1], 8), np.uint8)
    whole[:, : len(planes)] = planes.T
    return np.asarray(whole.view("<i8").ravel().astype(np.dtype(kind)))


def _recorded(
    whole: dict[str, NDArray[np.integer]], steps: NDArray[np.int64], ranks: int
) -> RecordedPlans:
    cut = np.cumsum(steps)[:-1]
    square = {
        name: np.split(whole[name].reshape(int(steps.sum()), ranks), cut)
        for name in ("sample", "target")
    }
    flat = {
        name: np.split(whole[name].reshape(int(steps.sum())), cut)
        for name in ("iteration", "message")
    }
    for owners, name in ((whole["owner"], "owner"), (whole["target"], "target")):
        if owners.max(initial=0) >= ranks:
            raise ValueError(f"{name}: a rank of {int(owners.max())} among {ranks}")
    if whole["sample"].max(initial=0) >= max(len(whole["owner"]), 1):
        raise ValueError(f"a sample of {int(whole['sample'].max())} among {len(whole['owner'])}")
    parts = zip(square["sample"], square["target"], flat["iteration"], flat["message"], strict=True)
    return RecordedPlans(
        whole["owner"], [ExchangePlan(*part) for part in parts] if len(steps) else []
    )
