"""The process group: numbers and texts gathered from all ranks, and errors that all
ranks raise together.
"""

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
    """An exchange that could not be carried out, or shards that are not what they
    should be. No sample has been removed for it.
    """


@dataclass(frozen=True)
class RankGroup:
    """A rank of the process group: that of this process, with collectives of numbers
    and texts.
    """

    rank: int  # from 0
    world_size: int  # M
    backend: str  # 'gloo', 'mpi' or 'nccl'
    # that the backend sends from and receives on; what is sent is copied there first
    device: torch.device

    @classmethod
    def current(cls) -> RankGroup:
        """Return this process of the default process group, or raise InputError if
        there is none.

        From then on this process reports errors that its script does not catch as
        `report_once` does.
        """
        if not (dist.is_available() and dist.is_initialized()):
            call = "torch.distributed.init_process_group('gloo')"
            remedy = f"Start the script with torchrun, and call {call} first."
            refuse(
                "process group", "must be initialised", "", remedy, "torch.distributed"
            )
        backend = dist.get_backend()
        device = torch.device("cpu")
        if backend == "nccl":
            device = torch.device("cuda", torch.cuda.current_device())
        hook = sys.excepthook  # Python's, or that of torch, which names the rank
        if getattr(hook, "__module__", "").partition(".")[0] in {"sys", "torch"}:
            sys.excepthook = partial(report_once, hook)
        return cls(dist.get_rank(), dist.get_world_size(), str(backend), device)

    def barrier(self) -> None:
        """Wait until all ranks are here; raise ExchangeError if the backend fails."""
        with self.report_failures("a barrier"):
            dist.barrier()

    def gather(self, values: NDArray[np.generic]) -> list[NDArray[np.generic]]:
        """Return the ``values`` (n,) of every rank, by rank. Collective.

        n may differ among ranks, the type must not. The arrays cannot be written to.

        Raises:
            ExchangeError: the backend failed, as where a peer is gone.
        """
        raw = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
        with self.report_failures("gathering from all ranks"):
            # torch gathers equal shapes only: sizes first, then padded bytes
            sizes = [int(size) for size in self._all_gather(torch.tensor([len(raw)]))]
            padded = np.zeros(max(*sizes, 1), np.uint8)
            padded[: len(raw)] = raw
            parts = self._all_gather(torch.from_numpy(padded))
        return [
            np.frombuffer(part.numpy()[:size].tobytes(), values.dtype)
            for part, size in zip(parts, sizes, strict=True)
        ]

    def gather_texts(self, text: str) -> list[str]:
        """Return the ``text`` of every rank, by rank. Collective."""
        parts = self.gather(np.frombuffer(text.encode(), np.uint8))
        return [part.tobytes().decode() for part in parts]

    def agree(self, problem: str) -> None:
        """Raise ExchangeError on every rank if one has a ``problem``, '' being none,
        with the problems of all. Collective.
        """
        problems = [
            f"rank {rank}: {text}"
            for rank, text in enumerate(self.gather_texts(problem))
            if text
        ]
        if problems:
            raise ExchangeError("\n".join(problems))

    @contextmanager
    def report_failures(self, action: str) -> Iterator[None]:
        """Raise a RuntimeError or ValueError in the block, failures of the backend (a
        lost peer, a timeout), as ExchangeError during ``action``.

        Errors of this package pass.
        """
        try:
            yield
        except (RuntimeError, ValueError) as error:
            if isinstance(error, SimshuffleError):
                raise
            self.fail(action, error)

    def fail(self, action: str, error: Exception) -> NoReturn:
        """Raise ExchangeError: the connection failed during ``action``."""
        reason = (
            str(error).strip().splitlines()[0]
            if str(error).strip()
            else type(error).__name__
        )
        raise ExchangeError(
            f"rank {self.rank}: {action} failed ({self.backend}): {reason}. No sample was removed."
            " A peer has probably ended, or is too late."
        ) from error

    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the ``tensor`` of every rank, on the CPU; all have one shape."""
        on_device = tensor.to(self.device)
        parts = [torch.empty_like(on_device) for _ in range(self.world_size)]
        dist.all_gather(parts, on_device)
        return [part.cpu() for part in parts]


def leave(code: int = 0) -> NoReturn:
    """End the process with the exit status ``code``; if it is 0, wait for all ranks
    first.

    The process group, if there is one, is closed after the wait. With another status
    the process ends at once, and the group stays open.

    Python's own shutdown is skipped. Threads of gloo that still hold tensors of
    DistributedDataParallel can abort a process during it ("terminate called without an
    active exception", torch 2.13), and torchrun then reports a training as failed that
    has ended well.
    """
    if code == 0 and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def report_once(
    default_hook: Callable[
        [type[BaseException], BaseException, TracebackType | None], Any
    ],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Report an error that this rank's script does not catch; for ``sys.excepthook``.

    The rank that fails first, whichever it is, reports in full: an error of this
    package without traceback, with the line of the script, others by the
    ``default_hook``. Other ranks write a line, as most of their errors follow from the
    first, or nothing if a rank has reported the same text. An error of this package
    ends the process with the status of the command line.
    """
    is_ours = isinstance(error, SimshuffleError)
    text = str(error)
    rank = os.environ.get("RANK", "0")
    try:
        rank = str(dist.get_rank())
        store = distributed_c10d._get_default_store()
        # of ranks with the same text one alone goes on to ask whether any was before it: asked the
        # other way round, a second one could come in between and report it again
        has_new_text = store.add(f"simshuffle {zlib.crc32(text.encode()):08x}", 1) == 1
        is_first = has_new_text and store.add("simshuffle error", 1) == 1
    except (
        RuntimeError,
        ValueError,
    ):  # there is no group, or whoever kept the store is gone
        is_first = has_new_text = True
    if is_first and is_ours:
        library_folders = [
            str(Path(str(module.__file__)).parent) for module in (errors, torch)
        ]
        frames = traceback.extract_tb(trace)
        in_script = [
            frame
            for frame in frames
            if not frame.filename.startswith((*library_folders, "<"))
        ]
        place = "".join(
            f", {frame.filename}, line {frame.lineno}" for frame in in_script[-1:]
        )
        sys.stderr.write(f"{text}\n(rank {rank}{place})\n")
    elif is_first:
        default_hook(kind, error, trace)
    elif has_new_text:
        sys.stderr.write(
            f"rank {rank}: {kind.__name__}: {' '.join(text.split())[:LINE]}\n"
        )
    if is_ours:
        leave(2 if isinstance(error, InputError) else 1)


def check_equal(
    ranks: RankGroup, values: dict[str, str], remedies: dict[str, str]
) -> None:
    """Raise InputError on every rank if ``values`` differ among ranks, naming them.
    Collective.

    Args:
        ranks: the process group.
        values: as text by name.
        remedies: by name of the value, for errors.
    """
    problems = []
    for name, value in values.items():
        texts = ranks.gather_texts(value)
        differing = next(
            (rank for rank, text in enumerate(texts) if text != texts[0]), None
        )
        if differing is not None:
            difference = f"{texts[0]} on rank 0, {texts[differing]} on rank {differing}"
            remedy = remedies.get(name, f"Give every rank the same {name}.")
            problems.append(
                Problem(name, "must be the same on all ranks", difference, remedy)
            )
    if problems:
        raise InputError(problems, "torch.distributed")


def run_collectively(ranks: RankGroup, action: Callable[[], None]) -> None:
    """Run ``action`` on this rank; all ranks then raise ExchangeError if it failed on
    one. Collective.

    Failures are OSError, ValueError, TypeError and errors of this package, InputError
    too; any other is raised here at once.
    """
    problem = ""
    try:
        action()
    except (OSError, SimshuffleError, ValueError, TypeError) as error:
        problem = reason_of(error)
    ranks.agree(problem)


def reason_of(error: Exception) -> str:
    """Return the text of ``error``, with the class of an error that is not of this
    package.
    """
    return (
        str(error)
        if isinstance(error, SimshuffleError)
        else f"{type(error).__name__}: {error}"
    )


def list_samples(samples: Sequence[int] | Ints, texts: Sequence[str] = ()) -> str:
    """Return the first `SHOWN` sample numbers as text, and how many more there are.

    Each has the text at its place in ``texts``, if any are given, in brackets.
    """
    brackets = [f" ({text})" for text in texts] or [""] * SHOWN
    listed = ", ".join(
        f"{int(sample)}{bracket}"
        for sample, bracket in zip(samples[:SHOWN], brackets, strict=False)
    )
    return (
        listed if len(samples) <= SHOWN else f"{listed} and {len(samples) - SHOWN} more"
    )
