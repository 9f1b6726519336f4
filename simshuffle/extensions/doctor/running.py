"""Running a script under the recorder: started as it is, watched, ended; nothing of it stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.recorder import FOLDER, variables
from simshuffle.extensions.doctor.recorder.rows import SUFFIX
from simshuffle.study.options import COMMAND_LINE

GRACE = 10.0
"""Seconds between asking a process to end and asking it harder (chosen; `docker stop` has 10)."""
LOOK = 0.25
"""Seconds between looks at what goes on (chosen: 4 wake-ups a second take nothing from a core)."""
ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask this program to end, and are the script's business while it runs."""


@dataclass(frozen=True)
class Ended:
    """How a script ended."""

    # as a shell has it: 128 + n if signal n killed it; 0 if it is overdue
    status: int
    seconds: float  # that it took
    asked: int = 0  # the first signal that asked this program to end meanwhile; 0 for none
    overdue: bool = False  # whether it went on after its seconds, and had to be ended


def check_command(command: Sequence[str]) -> None:
    """See that a command can be run. Raises an InputError if it cannot."""
    program = command[0]
    if shutil.which(program) is not None:
        return
    if not Path(program).is_file():
        rule, remedy = "must be a program that is there", "See what `command -v` says of it."
    else:
        rule = "must be a program, or stand behind one"
        remedy = f"Write `python {program}`, or make it executable."
    refuse("COMMAND", rule, repr(program), remedy, COMMAND_LINE)


def run_recorded(
    command: Sequence[str],
    rows: Path,
    say: Callable[[str], None],
    *,
    seconds: float | None = None,
    changes: Mapping[str, Any] | None = None,
    to_stderr: bool = False,
) -> Ended:
    """Run a command, and wait until it has ended, with those processes of its that were recorded.

    It has the terminal, the working directory and the environment of this process, beside what the
    recorder is told. Of the first Ctrl-C it makes what it likes. At the second it is ended.

    Args:
        command: its words, as of `check_command`.
        rows: a folder, for what is recorded.
        say: is told what is done to the script.
        seconds: of steps, after which the recorder ends it in order; None for its own end.
        changes: what the recorder changes of its loaders.
        to_stderr: whether what it prints goes to the standard error of this process.

    Raises:
        InputError: it could not be started.
    """
    environment = {**os.environ, **variables(str(rows.absolute()), changes, seconds)}
    begin = monotonic()
    with _asked() as asked:
        try:
            script = subprocess.Popen(command, env=environment, stdout=2 if to_stderr else None)  # noqa: S603 - as asked
        except OSError as error:
            rule, remedy = f"must be a program: {error.strerror}", "Write what a shell would run."
            refuse("COMMAND", rule, repr(command[0]), remedy, COMMAND_LINE)
        watch = _Watch(script, rows, say)
        watch.until_it_ends(asked, seconds)
        watch.end_what_is_left(asked)
    status = script.returncode
    status = 0 if watch.overdue else 128 - status if status < 0 else status
    return Ended(status, monotonic() - begin, asked[0] if asked else 0, watch.overdue)


@contextmanager
def _asked() -> Iterator[list[int]]:
    """The signals that asked this program to end, as they come. They do nothing else."""
    asked: list[int] = []
    old = {number: signal.getsignal(number) for number in ASKED}
    for number, handler in old.items():
        if handler is not signal.SIG_IGN:  # as of nohup: the script is to ignore it, too
            signal.signal(number, lambda number, _: asked.append(number))
    try:
        yield asked
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class _Watch:
    """A script that runs, and what is to be sent to it."""

    def __init__(
        self, script: subprocess.Popen[bytes], rows: Path, say: Callable[[str], None]
    ) -> None:
        self.overdue = False
        self._script, self._rows, self._say = script, rows, say
        self._forced = False  # whether it was told to end more than once
        self._plan: list[tuple[float, int]] = []  # when to send which signal, the next one first

    def until_it_ends(self, asked: Sequence[int], seconds: float | None) -> None:
        heard, begun = 0, None
        while not self._has_ended():
            now = monotonic()
            for number in asked[heard:]:
                heard += 1
                self._pass_on(number, first=heard == 1, now=now)
            # an empty file is of a loop that waits for its first batch: workers may load torch
            if begun is None and any(of.stat().st_size for of in self._rows.glob(f"*{SUFFIX}")):
                begun = now
            late = seconds is not None and begun is not None and now > begun + seconds + GRACE
            if late and not self.overdue and not heard:
                self.overdue = True
                self._say(f"The script goes on after {seconds:g} s of steps: it is interrupted.")
                self._forced = True
                kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
                self._plan = [(now + GRACE * place, kind) for place, kind in enumerate(kinds)]
            while self._plan and self._plan[0][0] <= now:
                self._send(self._plan.pop(0)[1])

    def _has_ended(self) -> bool:
        try:
            self._script.wait(LOOK)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _pass_on(self, number: int, *, first: bool, now: float) -> None:
        """A signal that asked this program to end."""
        if not first:
            if not self._forced:
                self._say("The script is ended. What was recorded is kept.")
            self._forced = True
            self._plan = [(now, signal.SIGTERM), (now + GRACE, signal.SIGKILL)]
        elif number == signal.SIGINT:
            # a terminal sends it to all processes of its group, so the script has it
            if not _has_terminal():
                self._send(number)
            self._say("Interrupted: waiting for the script. Once more ends it.")
        else:
            self._send(number)

    def _send(self, number: int) -> None:
        if number == signal.SIGINT:  # to those that a terminal would send it to
            _signal(number, [of for of in self._marked() if _group(of) == os.getpgrp()])
        elif number == signal.SIGKILL:
            _signal(number, self._marked())
        self._script.send_signal(number)  # not twice to one that has gone

    def _marked(self) -> list[int]:
        """The other processes that the script started, however they were."""
        # of their environment, which forks and sessions of their own keep
        mark = f"{FOLDER}={self._rows.absolute()}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # of somebody else, or gone
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
        return [of for of in found if of != self._script.pid]

    def _left(self) -> list[int]:
        """Those that have to end with the script: all of one that was ended, else those that were
        recorded, as others may be meant to stay."""
        recorded = {path.stem.partition("-")[0] for path in self._rows.glob(f"*{SUFFIX}")}
        return [of for of in self._marked() if self._forced or str(of) in recorded]

    def end_what_is_left(self, asked: Sequence[int]) -> None:
        """Let them end, and end them; sooner if this program is asked to end."""
        for number in (None, signal.SIGTERM, signal.SIGKILL)[self._forced :]:
            left, heard = self._left(), len(asked)
            if not left:
                return
            if number is not None:
                self._say(f"Ended with the script: {len(left)} of its processes.")
                _signal(number, left)
            until = monotonic() + GRACE
            while self._left() and monotonic() < until and len(asked) == heard:
                sleep(LOOK)


def _signal(number: int, processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(OSError):  # it has gone
            os.kill(process, number)


def _group(process: int) -> int:
    """Of processes; -1 if that one has gone."""
    try:
        return os.getpgid(process)
    except OSError:
        return -1


def _has_terminal() -> bool:
    """Whether this process is one of those that a terminal sends its Ctrl-C to."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
