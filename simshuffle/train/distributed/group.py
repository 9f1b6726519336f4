"""The process group: numbers and texts from all ranks, and errors that all ranks agree on."""

from __future__ import annotations

import os
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import distributed_c10d

from simshuffle import errors
from simshuffle.errors import InputError, Problem, SimshuffleError, refuse
from simshuffle.spec.arrays import Ints

SHOWN = 10
"""Samples that an error names; of more it gives the number."""

LINE = 160
"""Letters of an error that most likely follows from that of another rank."""


class ExchangeError(SimshuffleError, RuntimeError):
    """An exchange that could not be carried out, or shards that are not what they should be. No
    sample has been removed for it."""


@dataclass(frozen=True)
class RankGroup:
    """This process among all."""

    rank: int  # from 0
    world_size: int  # M
    backend: str  # 'gloo', 'mpi' or 'nccl'
    # that the backend sends from and receives on; what is sent is copied there first
    device: torch.device

    @classmethod
    def current(cls) -> RankGroup:
        """Of the default process group, or raise InputError where there is none."""
        if not (dist.is_available() and dist.is_initialized()):
            call = "torch.distributed.init_process_group('gloo')"
            remedy = f"Start the script with torchrun, and call {call} first."
            refuse("process group", "must be initialised", "", remedy, "torch.distributed")
        backend = dist.get_backend()
        device = torch.device("cpu")
        if backend == "nccl":
            device = torch.device("cuda", torch.cuda.current_device())
        before = sys.excepthook  # Python's, or that of torch, which names the rank
        if getattr(before, "__module__", "").partition(".")[0] in {"sys", "torch"}:
            sys.excepthook = partial(tell_once, before)
        return cls(dist.get_rank(), dist.get_world_size(), str(backend), device)

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        with self.communicating("a barrier"):
            dist.barrier()

    def gather(self, values: NDArray[np.generic]) -> list[NDArray[np.generic]]:
        """The ``values`` (n,) of every rank, by rank; n may differ, the type must not."""
        raw = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
        with self.communicating("gathering from all ranks"):
            sizes = [int(n) for n in self._all(torch.tensor([len(raw)]))]
            padded = np.zeros(max(*sizes, 1), np.uint8)
            padded[: len(raw)] = raw
            found = self._all(torch.from_numpy(padded))
        return [
            np.frombuffer(part.numpy()[:n].tobytes(), values.dtype)
            for part, n in zip(found, sizes, strict=True)
        ]

    def gather_texts(self, text: str) -> list[str]:
        """The ``text`` of every rank."""
        parts = self.gather(np.frombuffer(text.encode(), np.uint8))
        return [part.tobytes().decode() for part in parts]

    def agree(self, problem: str) -> None:
        """Raise ExchangeError on every rank with the problems of all, '' being none, if there is
        one."""
        found = [
            f"rank {rank}: {text}" for rank, text in enumerate(self.gather_texts(problem)) if text
        ]
        if found:
            raise ExchangeError("\n".join(found))

    @contextmanager
    def communicating(self, what: str) -> Iterator[None]:
        """Give a failure of the backend (a lost peer, a timeout) as an `ExchangeError`."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            if isinstance(error, SimshuffleError):
                raise
            self.lost(what, error)

    def lost(self, what: str, error: Exception) -> NoReturn:
        """Raise ExchangeError: the connection failed during ``what``."""
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExchangeError(
            f"rank {self.rank}: {what} failed ({self.backend}): {reason}. No sample was removed; a"
            " peer has probably ended or is too late."
        ) from error

    def _all(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        here = tensor.to(self.device)
        parts = [torch.empty_like(here) for _ in range(self.world_size)]
        dist.all_gather(parts, here)
        return [part.cpu() for part in parts]


def leave(code: int = 0) -> NoReturn:
    """End the process, after all ranks have come here if ``code`` is 0; closes the process group.

    Python is not taken apart for it. Threads of gloo that still hold tensors of
    DistributedDataParallel can abort a process while that is done ("terminate called without an
    active exception", torch 2.13), and torchrun then calls a training failed that has ended well.
    """
    if code == 0 and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def tell_once(
    before: Callable[[type[BaseException], BaseException, TracebackType | None], Any],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """What a rank does with an error that its script does not catch; ``before`` tells other errors.
    The first rank tells it, an error of ours without traceback, with the line of the script. Others
    say another one in a line; most follow from the first. An error of ours ends the process with
    the status of the command line."""
    ours, text = isinstance(error, SimshuffleError), str(error)
    rank = os.environ.get("RANK", "0")
    try:
        rank, store = str(dist.get_rank()), distributed_c10d._get_default_store()
        # of ranks with the same text one alone goes on to ask whether any was before it: asked the
        # other way round, a second one could come in between and tell it again
        alone = store.add(f"simshuffle {zlib.crc32(text.encode()):08x}", 1) == 1
        first = alone and store.add("simshuffle error", 1) == 1
    except (RuntimeError, ValueError):  # there is no group, or whoever kept the store is gone
        first = alone = True
    if first and ours:
        own = [str(Path(str(of.__file__)).parent) for of in (errors, torch)]
        frames = traceback.extract_tb(trace)
        lines = [of for of in frames if not of.filename.startswith((*own, "<"))]
        place = "".join(f", {of.filename}, line {of.lineno}" for of in lines[-1:])
        sys.stderr.write(f"{text}\n(rank {rank}{place})\n")
    elif first:
        before(kind, error, trace)
    elif alone:
        sys.stderr.write(f"rank {rank}: {kind.__name__}: {' '.join(text.split())[:LINE]}\n")
    if ours:
        leave(2 if isinstance(error, InputError) else 1)


def alike(ranks: RankGroup, values: dict[str, str], remedies: dict[str, str]) -> None:
    """See that every rank has the same ``values``, given as text by name, or raise InputError on
    every rank, naming what differs, with the remedy of that name."""
    problems = []
    for name, value in values.items():
        found = ranks.gather_texts(value)
        other = next((rank for rank, text in enumerate(found) if text != found[0]), None)
        if other is not None:
            shown = f"{found[0]} on rank 0, {found[other]} on rank {other}"
            remedy = remedies.get(name, "Give every rank the same.")
            problems.append(Problem(name, "must be the same on all ranks", shown, remedy))
    if problems:
        raise InputError(problems, "torch.distributed")


def collectively(ranks: RankGroup, action: Callable[[], None]) -> None:
    """Do ``action`` on this rank; afterwards all ranks raise ExchangeError if it failed on one."""
    problem = ""
    try:
        action()
    except (OSError, SimshuffleError, ValueError, TypeError) as error:
        problem = reason_of(error)
    ranks.agree(problem)


def reason_of(error: Exception) -> str:
    """What ``error`` says, with the kind of an error that is not our own."""
    return str(error) if isinstance(error, SimshuffleError) else f"{type(error).__name__}: {error}"


def named(samples: Sequence[int] | Ints, texts: Sequence[str] = ()) -> str:
    """Sample numbers, with ``texts`` in brackets, as text; of many only the first."""
    known = [f" ({text})" for text in texts] or [""] * SHOWN
    shown = ", ".join(f"{int(of)}{text}" for of, text in zip(samples, known, strict=False))
    return shown if len(samples) <= SHOWN else f"{shown} and {len(samples) - SHOWN} more"
