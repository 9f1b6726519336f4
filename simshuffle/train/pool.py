"""Independent jobs on all cores, each written whole when it has ended: what was stopped goes on
where it stood."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, Protocol

import torch

from simshuffle.errors import InputError, Problem, SimshuffleError, SimulationError
from simshuffle.results.folders import write_folder

MOMENT = 0.25
"""s between two reports of progress, at most that often from one job."""
GRACE = 5.0
"""s that a stopped process gets before it is killed."""

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""How the libraries that compute are told the number of their threads, before they are loaded."""

Tell = Callable[[float], None]
"""Called with the share of a job that is done, from 0 to 1."""


class Job(Protocol):
    """A piece of work that can be pickled, and that needs nothing of the others. A frozen dataclass
    does."""

    @property
    def cost(self) -> float:
        """Expected work, above 0, in any unit that all jobs share. Costly jobs start first; the
        estimate of the time left rests on it."""

    def run(self, folder: Path, tell: Tell) -> None:
        """Do the work, on one core, and write its result into ``folder``, which is empty and
        becomes the job's folder when this returns.

        What it raises is reported with the job's name; nothing is kept then.
        """

    def check(self, folder: Path) -> None:
        """See that ``folder``, which an earlier session wrote, can be read.

        Raises:
            InputError: it cannot.
        """


@dataclass(frozen=True)
class Standing:
    """How far jobs are.

    Attributes:
        done: jobs whose result is there, those of earlier sessions included.
        total: jobs.
        share: of the work of this session that is done, from 0 to 1, by `Job.cost`.
        left_s: s until all are done, estimated from the speed so far; None before the first job of
            this session has ended.
    """

    done: int
    total: int
    share: float
    left_s: float | None


Progress = Callable[[Standing], None]


@dataclass(frozen=True)
class Outcome:
    """How jobs ended.

    Attributes:
        made: names of jobs done in this session, in the order of the jobs.
        kept: names of jobs that an earlier session had done.
        lost: why a job has no result, by its name: it raised something, or its process died. The
            same call tries it again.
    """

    made: list[str]
    kept: list[str]
    lost: dict[str, str]


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(
    jobs: Mapping[str, Job],
    place: Path,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Do all jobs whose folder is not there yet, each in one of several processes, and each with
    one thread.

    A job's folder ``place / NAME`` is there whole or not at all, and is never written over. Ctrl-C
    and SIGTERM stop the processes at once and are raised as KeyboardInterrupt; finished jobs stay.
    Processes end with this one, however it ends.

    Args:
        jobs: by name, which must do as the name of a folder. Results must not depend on where and
            beside what a job runs.
        place: folder of the jobs' folders; made if need be.
        processes: at most that many; the default is `usable_cores`. Say 1 where jobs share a GPU.
        progress: told of the progress a few times a second, in this thread.

    Returns:
        How each job ended.

    Raises:
        InputError: stored results cannot be read (all are named, nothing is run), or another
            process works in ``place``.
        SimulationError: processes cannot be started.
        KeyboardInterrupt: stopped.
    """
    place.mkdir(parents=True, exist_ok=True)
    with _alone(place):
        kept = [name for name in jobs if (place / name).exists()]
        _check(jobs, kept, place)
        missing = sorted(
            (name for name in jobs if name not in set(kept)), key=lambda name: -jobs[name].cost
        )
        session = _Session(
            {name: jobs[name] for name in missing}, place, len(jobs), len(kept), progress
        )
        if missing:
            with _terminable():
                session.work(min(processes or usable_cores(), len(missing)))
    return Outcome([name for name in jobs if name in session.made], kept, session.lost)


def _check(jobs: Mapping[str, Job], kept: Sequence[str], place: Path) -> None:
    problems = []
    for name in kept:
        try:
            jobs[name].check(place / name)
        except InputError as error:
            remedy = f"Remove {place / name} to repeat that run; the others are kept."
            problems += [Problem(p.path or name, p.rule, p.value, remedy) for p in error.problems]
    if problems:
        raise InputError(problems, str(place))


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Hold ``place`` for this process alone, and remove what a killed one left half-written."""
    with (place / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            problem = Problem(
                "--out",
                "another process is at work in it",
                str(place),
                "Wait until it has ended, or stop it.",
            )
            raise InputError(problem, "result folder") from None
        _sweep(place)
        try:
            yield
        finally:
            _sweep(place)


def _sweep(place: Path) -> None:
    for draft in place.glob(".*.part-*"):
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does; only the main thread may ask for that."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ------------------------------------------------------------------------------------- this process


@dataclass
class _Worker:
    """One process and what it is at."""

    process: ForkServerProcess
    pipe: Connection
    ready: bool = False
    job: str | None = None
    share: float = 0.0


@dataclass
class _Session:
    """The jobs of one call of `run_jobs`, costliest first."""

    jobs: dict[str, Job]
    place: Path
    total: int
    kept: int
    progress: Progress | None
    made: set[str] = field(default_factory=set)
    lost: dict[str, str] = field(default_factory=dict)
    workers: list[_Worker] = field(default_factory=list)
    begun: float = field(default_factory=monotonic)

    def work(self, processes: int) -> None:
        """Do all jobs with that many processes; stop them whatever happens."""
        waiting = list(self.jobs)
        modules = [
            __name__,
            *sorted({type(job).__module__ for job in self.jobs.values()} - {"__main__"}),
        ]
        try:
            self._tell()
            while waiting or any(worker.job for worker in self.workers):
                while len(self.workers) < processes and len(self.workers) - self._busy() < len(
                    waiting
                ):
                    self.workers.append(_started(modules))
                for worker in self.workers:
                    if worker.ready and worker.job is None and waiting:
                        self._assign(worker, waiting.pop(0))
                for pipe in wait([worker.pipe for worker in self.workers], timeout=MOMENT):
                    self._hear(next(worker for worker in self.workers if worker.pipe is pipe))
                self._tell()
        finally:
            _stop(self.workers)

    def _busy(self) -> int:
        return sum(worker.job is not None for worker in self.workers)

    def _assign(self, worker: _Worker, name: str) -> None:
        worker.job, worker.share = name, 0.0
        with suppress(OSError):  # a process that died says so on its pipe
            worker.pipe.send((self.jobs[name], self.place / name))

    def _hear(self, worker: _Worker) -> None:
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker)
            return
        if kind == "share":
            worker.share = value
            return
        if kind == "ready":
            if not any(other.ready for other in self.workers):
                self.begun = monotonic()  # the start of the first process is no work
            worker.ready = True
            return
        name, worker.job, worker.share = worker.job or "", None, 0.0
        if value:
            self.lost[name] = value
        else:
            self.made.add(name)

    def _bury(self, worker: _Worker) -> None:
        """A process that ended by itself: its job is lost, the others go on."""
        worker.process.join()
        self.workers.remove(worker)
        status = worker.process.exitcode
        if not worker.ready:
            raise SimulationError(
                f"A process for the runs could not be started; it ended with status {status}."
            )
        if worker.job:
            killed = status is not None and status < 0
            why = (
                f"was killed by signal {-(status or 0)}"
                if killed
                else f"ended with status {status}"
            )
            hint = (
                "; the system does that when memory runs out: give fewer --processes"
                if status == -signal.SIGKILL
                else ""
            )
            self.lost[worker.job] = f"its process {why}{hint}"

    def _tell(self) -> None:
        if self.progress is None:
            return
        whole = sum(job.cost for job in self.jobs.values())
        ended = sum(self.jobs[name].cost for name in (*self.made, *self.lost))
        done = ended + sum(
            self.jobs[worker.job].cost * worker.share for worker in self.workers if worker.job
        )
        passed = monotonic() - self.begun
        left = passed * (whole - done) / done if ended > 0 else None
        self.progress(
            Standing(
                self.kept + len(self.made),
                self.total,
                min(done / whole, 1.0) if whole else 1.0,
                left,
            )
        )


def _started(modules: Sequence[str]) -> _Worker:
    """A process, forked from one that has imported ``modules`` and done nothing else, so that it is
    there at once and shares no threads."""
    context = get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    with _one_thread():
        process.start()
    theirs.close()
    return _Worker(process, ours)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes that are started meanwhile compute with one thread, whatever library does it."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _stop(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(GRACE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


# ------------------------------------------------------------------------------------ the processes


def _serve(pipe: Connection) -> None:
    """Do what comes through the pipe until it is closed."""
    # Ctrl-C reaches all processes; the first one stops the others
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    pipe.send(("ready", None))
    with suppress(EOFError, OSError):
        while True:
            job, folder = pipe.recv()
            pipe.send(("end", _done(job, folder, pipe)))


def _done(job: Job, folder: Path, pipe: Connection) -> str:
    """'' when the job's folder is there, else what went wrong."""
    try:
        write_folder(folder, lambda draft: job.run(draft, _teller(pipe)))
    except SimshuffleError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever a job raises, the others go on
        return f"{type(error).__name__}: {error}"
    return ""


def _teller(pipe: Connection) -> Tell:
    last = [0.0]

    def tell(share: float) -> None:
        now = monotonic()
        if now - last[0] >= MOMENT:
            last[0] = now
            pipe.send(("share", share))

    return tell


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: it may have been killed, and could not
    say so."""
    parent: Any = parent_process()
    wait([parent.sentinel])
    os._exit(1)
