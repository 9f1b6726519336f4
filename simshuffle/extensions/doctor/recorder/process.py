"""Hold the facts of the process that is watched, and the batch that it is working on."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from struct import Struct
from typing import Any

from . import gil
from .cores import Use, read_use
from .files import Files
from .journal import Journal
from .known_calls import CallLog
from .meter import Budget, Meter, RunningMedian, Task, clock, forget_thread
from .patching import Patches
from .places import LONG_STEP, PlaceCounts
from .rows import CODES, OPERATIONS, ROW

_RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")
_BATCHES_TO_STOP = 3
"""Batches from when one rank's time is over to when all stop: more than ranks that wait
for one another can be apart.
"""
_LONGEST_PHASE_NS = 60 * 10**9
"""Time for which stacks are looked at between two epochs, at most."""
_GIL = CODES["gil"]
_NAMES = list(OPERATIONS)
# a row is packed in two parts: rank, loader, epoch, batch and worker; and the remaining fields
_TASK = Struct(ROW.format[:6])
_VALUES = Struct("<" + ROW.format[6:])


class Process:
    """The state of the recorder in this process.

    From the start on, it registers itself for forks, and writes its facts at exit.

    Attributes:
        journal: files of the rows and facts.
        patches: attributes of other modules that are replaced.
        changes: that are made, see `simshuffle.extensions.doctor.recorder.changes`.
        limit: ns from the first batch on, after which the training ends; None: never.
        files: sizes of the files that were opened, and the folders of ``paths``.
        active: whether the process is watched still; False after `end`.
        call_log: known calls of the fetches.
        only: the loader that is watched; None for all.
        rank: of this process in the training; -1 if that is not known yet.
        loaders: facts of each loader that a loop went through, as in `Record.about`.
        epochs: how often a loop went through each loader.
        task: loader, epoch, batch and worker of the fetch; None where nothing is
            fetched.
        fetching: the thread that fetches, and the meter of its parts if they are timed;
            None where nothing is fetched.
        places: where fetches and steps were seen.
        current_step: the step of the batch that the loop has (`loops.LoopStep`); None
            while there is none, or a part of it is timed already.
        loop: the last pass through a loader that took a batch; None before any.
        typical_step: ns of a step.
        loop_thread: identifier of the thread that took the last batch; 0 before any.
        starting_loop: the loop whose iterator is made or begun anew.
        fetched_samples: of all fetches.
        order_ns: ns of the sampler that no row has yet.
        pass_ends: by loader, the clock at the end of the last pass through it.
        loop_phase: thread, name (``order`` or ``between``) and clock of what the loop
            does beside waits and steps; None while it does neither.
        cached_batches: by loader, the batches that are played again.
        known_loaders: data set and facts of each loader, which tell whether two are the
            same.
        caches: by the id of a data set, its samples by index; None without the change
            ``cache``.
    """

    def __init__(
        self, folder: str, changes: dict[str, Any], seconds: float | None
    ) -> None:
        self.journal = Journal(folder)
        self.patches = Patches()
        self.changes = changes
        self.limit = None if seconds is None else round(seconds * 1e9)
        self.files = Files(changes.get("paths", {}))
        self.call_log = CallLog()
        self.only: Any = None
        self.active = True
        self.begin()
        os.register_at_fork(before=gil.pause, after_in_child=self._begin_fork)
        atexit.register(self.save)

    def begin(self) -> None:
        """Reset all attributes from `rank` on, but not the journal, patches, changes
        and files: at the start, and where a process was forked.
        """
        self.rank = _read_variable(_RANK_VARIABLES)
        self.loaders: list[dict[str, Any]] = []
        self.epochs: list[int] = []
        self.cached_batches: dict[int, list[Any]] = {}
        self.task: Task | None = None
        self.fetching: tuple[int, Meter | None] | None = None
        self.places = PlaceCounts()
        self.call_log.lines.clear()
        self.current_step: Any = None
        self.starting_loop: Any = None
        self.first_batch_ns = 0  # clock when the first batch was there
        self.first_use: Use = (
            0,
            -1,
            0,
        )  # of cores until then; (0, -1, 0) without batches
        self.loop: Any = None
        self.typical_step = RunningMedian()
        self.loop_thread = 0
        self.batches = 0  # that the loops took
        self.last_batch = (
            sys.maxsize
        )  # number of the batch after which the training is ended
        self.samples = 0  # rows of samples that were written
        self.fetched_samples = 0
        self.order_ns = 0  # of the sampler, since the last row of it
        # by loader, when the last pass through it ended, and the loops that went on then
        self.pass_ends: dict[int, int] = {}
        self.loop_phase: tuple[int, str, int] | None = None
        self.budget = Budget()
        self.saved_at = clock()
        self.save_interval = 10**9  # ns
        self.known_loaders: list[tuple[Any, dict[str, Any]]] = []
        self.caches: dict[int, dict[Any, Any]] | None = (
            {} if self.changes.get("cache") else None
        )

    def _begin_fork(self) -> None:
        """Begin anew, with files of its own, in a process that was forked; nothing
        after `end`.
        """
        if self.active:
            forget_thread()
            self.journal.begin()
            self.begin()

    def end(self) -> None:
        """Write the facts, stop watching, and put back everything that was replaced."""
        self.save()
        atexit.unregister(self.save)
        self.active = False
        self.patches.remove()
        gil.pause()

    def pack_row(self, task: Task, *values: int) -> bytes:
        """Return a packed row of a task, with the rank that is known now.

        Args:
            task: loader, epoch, batch and worker.
            values: the fields of the row from the operation on, see `FIELDS`.
        """
        return _TASK.pack(self.rank, *task) + _VALUES.pack(*values)

    def pack_rows(self, task: Task, rows: list[tuple[int, ...]]) -> list[bytes]:
        """Return several packed rows of a task; each of ``rows`` has the values of
        `pack_row`: the fields from the operation on.
        """
        head = _TASK.pack(self.rank, *task)
        return [head + _VALUES.pack(*values) for values in rows]

    def say(self, fact: str, sentence: str) -> None:
        """Add a sentence to the list of a fact, unless the list has it; nothing is
        written yet.
        """
        sentences = self.journal.facts.setdefault(fact, [])
        if sentence not in sentences:
            sentences.append(sentence)

    def save(self) -> None:
        """Write the facts of the process, if it is watched and has loaded torch.

        Loaders, threads and ranks are facts of processes with a loader alone.
        """
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
        for failure in self.patches.failures:
            self.say("notes", failure)
        if self.loaders:
            facts["loaders"] = self.loaders
            facts["threads"] = torch.get_num_threads()
            self._find_ranks()
        facts["places"] = self.places.most_frequent()
        if self.call_log.lines:
            facts["calls"] = self.call_log.longest()
        facts["use"] = [self.first_use, read_use()]
        self.journal.save()
        self.saved_at = clock()

    def save_now_and_then(self) -> None:
        """Write the facts if it is time: ever more seldom, more than 1 s, 2 s, 4 s and
        so on after they were last written.
        """
        if clock() - self.saved_at > self.save_interval:
            self.save_interval *= 2
            self.save()

    def _find_ranks(self) -> None:
        """Find the rank of this process and the number of ranks, and keep them as
        facts: of torch.distributed, else of the environment.

        What is not known is no fact.
        """
        facts = self.journal.facts
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            self.rank = dist.get_rank()
            facts["ranks"] = dist.get_world_size()
        elif (ranks := _read_variable(_WORLD_SIZE_VARIABLES)) > 0:
            facts["ranks"] = ranks
        if self.rank >= 0:
            facts["rank"] = self.rank

    def write_interpreter_wait(
        self, start: int, waited: int, queued: int, count: int
    ) -> None:
        """Write a row on the waits of the thread that asks for the interpreter, see
        `gil`; nothing after `end`. The row is of no loader, batch or worker (-1).

        Args:
            start: ns of the clock.
            waited: ns that it waited for the interpreter.
            queued: ns that it had no core.
            count: times that it asked.
        """
        if self.active:
            task = (-1, 0, -1, -1)
            row = self.pack_row(task, _GIL, start, waited, -1, queued, count, 0, -1, -1)
            self.journal.write([row])

    def look(self, sees_fetches: bool, sees_others: bool) -> bool:
        """Note where the thread is that fetches, or, while none fetches, the one that
        loops, and, in a process that loops, where others compute. Return whether
        something goes on that may last: a fetch, the sampler, or what comes between
        epochs.

        A fetch whose parts are not timed counts as ``fetch``.

        Args:
            sees_fetches: whether fetches count: else they would be seen mostly in calls
                that give the interpreter away.
            sees_others: whether threads count that neither fetch nor loop.
        """
        # other threads change all of them meanwhile
        fetching = self.fetching
        phase = self.loop_phase
        step = self.current_step
        if fetching is not None:
            thread, meter = fetching
            operation = "fetch" if meter is None else _NAMES[meter.current_operation]
            if sees_fetches:
                self.places.look(thread, operation)
        elif phase is not None:
            self.places.look(phase[0], phase[1])
        elif step is not None:
            self.places.look(step.thread, "step")
        long_step = self.loop and self.loop.step
        if long_step and self.typical_step.takes_long(clock() - long_step.start[0]):
            self.places.look(long_step.thread, LONG_STEP)
        if sees_others and self.loop_thread:
            known_threads = {self.loop_thread, threading.get_ident()}
            self.places.look_at_others(known_threads)
        is_between = phase is not None and clock() - phase[2] < _LONGEST_PHASE_NS
        return fetching is not None or is_between

    def stop_if_over(self) -> None:
        """End the training in order when its time is over, as the script itself would
        end.

        Nothing is done without a limit, and before the first batch. Ranks agree by a
        file beside the rows on the last batch of all: they go on for some batches after
        the time of the first is over. Before the end the fact ``stopped`` is set, and
        the facts are written.

        Raises:
            SystemExit: the training is over; its status is 0.
        """
        if self.limit is None or not self.batches:
            return
        agreement = f"{self.journal.folder}/stop"
        is_over = clock() - self.first_batch_ns > self.limit
        if self.journal.facts.get("ranks", 1) == 1:
            # alone, a rank needs no agreement: any number of batches is above -1
            self.last_batch = -1 if is_over else sys.maxsize
        elif self.last_batch == sys.maxsize:
            if is_over:
                _write_once(agreement, self.batches + _BATCHES_TO_STOP)
            if is_over or self.batches % 2 == 0:
                self.last_batch = _read_number(agreement)
        if self.batches > self.last_batch:
            self.journal.facts["stopped"] = True
            self.save()
            raise SystemExit(0)


def _write_once(path: str, number: int) -> None:
    """Write a number to a file at once, unless the file exists: then it stays."""
    # a link appears with all its bytes, and fails where another rank was first
    draft = f"{path}.{os.getpid()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, b"%d" % number)
    os.close(descriptor)
    with suppress(FileExistsError):
        os.link(draft, path)
    os.unlink(draft)  # noqa: PTH108 - pathlib takes long to import


def _read_number(path: str) -> int:
    """Return the number in a file; `sys.maxsize` if there is no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return sys.maxsize
    try:
        return int(os.read(descriptor, 64))
    finally:
        os.close(descriptor)


def _read_variable(names: tuple[str, ...]) -> int:
    """Return the first of some variables of the environment that is a number of digits
    alone; -1 if none is.
    """
    for name in names:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return -1


def _host() -> dict[str, Any]:
    """Return ``name``, ``cores`` and ``memory_nbytes`` of the host that this process
    may use, and ``all_cores``, which the host has.

    Cores are those of the affinity (1 where the system has none), limited by the quota
    of the control group (cgroups(7), version 2), of which they may be a fraction.
    """
    cores: float = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    )
    all_cores = os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    quota, period = [*_read_words("/sys/fs/cgroup/cpu.max"), "max", "max"][:2]
    if quota.isdigit() and period.isdigit():
        cores = min(cores, int(quota) / int(period))
    for word in _read_words("/sys/fs/cgroup/memory.max"):
        memory = min(memory, int(word)) if word.isdigit() else memory
    name = os.uname().nodename
    return {
        "name": name,
        "cores": cores,
        "all_cores": all_cores,
        "memory_nbytes": memory,
    }


def _read_words(path: str) -> list[str]:
    """Return the words of a file's first 256 bytes; [] if it cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return []
    try:
        return os.read(descriptor, 256).decode().split()
    finally:
        os.close(descriptor)
