"""What is known of the process that is watched, and what it has in hand."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from struct import Struct
from typing import Any

from . import gil
from .cores import Use, use
from .files import Files
from .journal import Journal
from .meter import Budget, Meter, Task, clock, forget_thread
from .patching import Patches
from .places import PlaceCounts
from .rows import CODES, OPERATIONS, ROW

_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_RANKS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
_UNTIL_ALL_STOP = 3
"""Batches from when one rank's time is over to when all stop: more than ranks that wait for one
another can be apart."""
_GIL, _NAMES = CODES["gil"], list(OPERATIONS)
_TASK, _VALUES = Struct(ROW.format[:6]), Struct("<" + ROW.format[6:])


class Process:
    """This process, and how it is watched.

    Attributes:
        changes: that are made, see `simshuffle.extensions.doctor.recorder.changes`.
        only: the loader that is watched; None for all.
        rank: of it in the training; -1 if that is not known yet.
        loaders: facts of each that was gone through, as in `Record.about`, and ``epochs``: how
            often it was.
        task: loader, epoch, batch and worker of what is fetched; None where nothing is.
        fetching: the thread that fetches, and the meter of its parts if they are timed; None where
            nothing is fetched.
        places: where fetches and steps were seen.
        taking: the step that is in hand (`loops.Step`); None while none is, or something of it is
            timed already.
        beginning: the loop whose iterator is made or begun anew.
        kept: by loader, the batches that are played again.
    """

    def __init__(self, folder: str, changes: dict[str, Any], seconds: float | None) -> None:
        self.journal = Journal(folder)
        self.patches = Patches()
        self.changes = changes
        self.limit = None if seconds is None else round(seconds * 1e9)
        self.files = Files(changes.get("paths", {}))
        self.only: Any = None
        self.active = True
        self.begin()
        os.register_at_fork(before=gil.pause, after_in_child=self._forked)
        atexit.register(self.save)

    def begin(self) -> None:
        """Know nothing yet: at the start, and where a process was forked."""
        self.rank = _number(_RANK)
        self.loaders: list[dict[str, Any]] = []
        self.epochs: list[int] = []
        self.kept: dict[int, list[Any]] = {}
        self.task: Task | None = None
        self.fetching: tuple[int, Meter | None] | None = None
        self.places = PlaceCounts()
        self.taking: Any = None
        self.beginning: Any = None
        self.first = 0  # when the first batch was there
        self.used: Use = (0, -1, 0)  # of cores, until then; of a process without batches nothing
        self.batches = 0
        self.last_batch = sys.maxsize
        self.samples = 0
        self.budget = Budget()
        self.saved, self.pause = clock(), 10**9
        self.known: list[tuple[int, dict[str, Any]]] = []
        self.caches: dict[int, dict[Any, Any]] | None = {} if self.changes.get("cache") else None

    def _forked(self) -> None:
        if self.active:
            forget_thread()
            self.journal.begin()
            self.begin()

    def end(self) -> None:
        """Watch no more; everything is as it was."""
        self.save()
        atexit.unregister(self.save)
        self.active = False
        self.patches.remove()
        gil.pause()

    def row(self, task: Task, *values: int) -> bytes:
        """A row of a task; ``values`` are those of `FIELDS` from the operation on."""
        return _TASK.pack(self.rank, *task) + _VALUES.pack(*values)

    def rows(self, task: Task, rows: list[tuple[int, ...]]) -> list[bytes]:
        """Several of the same."""
        head = _TASK.pack(self.rank, *task)
        return [head + _VALUES.pack(*values) for values in rows]

    def say(self, fact: str, sentence: str) -> None:
        """Add to a list of sentences, each once."""
        said = self.journal.facts.setdefault(fact, [])
        if sentence not in said:
            said.append(sentence)

    def save(self) -> None:
        """Write what is known."""
        torch = sys.modules.get("torch")
        if not self.active or torch is None or not hasattr(torch, "__version__"):
            return
        facts = self.journal.facts
        facts["torch"] = str(torch.__version__)
        facts["host"] = _host()
        if self.files.sizes:
            facts["files"] = {"bound": self.files.bound, "sizes": self.files.sizes}
        if self.files.moved:
            self.say("changed", "paths: files are opened in the other folder")
        if self.files.missing:
            self.say("unchanged", "paths: some files are not in the other folder")
        for failed in self.patches.failed:
            self.say("notes", failed)
        if self.loaders:
            facts["loaders"] = self.loaders
            facts["threads"] = torch.get_num_threads()
            self._know_ranks()
        facts["places"] = self.places.listed()
        facts["use"] = [self.used, use()]
        self.journal.save()
        self.saved = clock()

    def save_now_and_then(self) -> None:
        """Write what is known, ever more seldom: after 1 s, 2 s, 4 s and so on."""
        if clock() - self.saved > self.pause:
            self.pause *= 2
            self.save()

    def _know_ranks(self) -> None:
        facts = self.journal.facts
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            self.rank, facts["ranks"] = dist.get_rank(), dist.get_world_size()
        elif (ranks := _number(_RANKS)) > 0:
            facts["ranks"] = ranks
        if self.rank >= 0:
            facts["rank"] = self.rank

    def waited_for_the_interpreter(self, start: int, late: int, queued: int, times: int) -> None:
        """A thread that asks for it has something to say, see `gil`."""
        if self.active:
            task = (-1, 0, -1, -1)
            self.journal.write([self.row(task, _GIL, start, late, -1, queued, times, 0, -1, -1)])

    def look(self) -> bool:
        """See where the thread is that fetches or steps; returns whether one fetches."""
        fetching, step = self.fetching, self.taking
        if fetching is not None and fetching[1] is not None:
            self.places.look(fetching[0], _NAMES[fetching[1].now])
        elif fetching is None and step is not None:
            self.places.look(step.thread, "step")
        return fetching is not None

    def stop_if_over(self) -> None:
        """End the training in order when its time is over, as the script itself would end. Ranks
        agree by a file beside the rows on the batch that is the last of all.

        Raises:
            SystemExit: it is over.
        """
        if self.limit is None or not self.batches:
            return
        agreed = f"{self.journal.folder}/stop"
        over = clock() - self.first > self.limit
        if self.journal.facts.get("ranks", 1) == 1:
            self.last_batch = -1 if over else sys.maxsize
        elif self.last_batch == sys.maxsize:
            if over:
                _write_once(agreed, self.batches + _UNTIL_ALL_STOP)
            if over or self.batches % 2 == 0:
                self.last_batch = _read_number(agreed)
        if self.batches > self.last_batch:
            self.journal.facts["stopped"] = True
            self.save()
            raise SystemExit(0)


def _write_once(path: str, number: int) -> None:
    draft = f"{path}.{os.getpid()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, b"%d" % number)
    os.close(descriptor)
    with suppress(FileExistsError):
        os.link(draft, path)
    os.unlink(draft)  # noqa: PTH108 - pathlib takes long to import


def _read_number(path: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return sys.maxsize
    try:
        return int(os.read(descriptor, 64))
    finally:
        os.close(descriptor)


def _number(names: tuple[str, ...]) -> int:
    """The first of some variables of the environment that is a number; -1 if none is."""
    for name in names:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return -1


def _host() -> dict[str, Any]:
    """Name, cores and memory that this process may use: of the machine, or of its control group
    (cgroups(7))."""
    cores: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    every = os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    quota, period = [*_words("/sys/fs/cgroup/cpu.max"), "max", "max"][:2]
    if quota.isdigit() and period.isdigit():
        cores = min(cores, int(quota) / int(period))
    for word in _words("/sys/fs/cgroup/memory.max"):
        memory = min(memory, int(word)) if word.isdigit() else memory
    name = os.uname().nodename
    return {"name": name, "cores": cores, "all_cores": every, "memory_nbytes": memory}


def _words(path: str) -> list[str]:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return []
    try:
        return os.read(descriptor, 256).decode().split()
    finally:
        os.close(descriptor)
