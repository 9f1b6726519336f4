"""Run a script under the recorder: start it as it is, watch it, and end all of its
processes.
"""

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
"""Seconds between asking a process to end and asking it harder (chosen; `docker stop`
has 10).
"""
POLL_S = 0.25
"""Seconds between looks at the script (chosen: 4 wake-ups a second take nothing from a
core).
"""
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask this program to end, and are the script's business while it runs."""


@dataclass(frozen=True)
class ScriptEnd:
    """The end of a script that was run."""

    # as a shell has it: 128 + n if signal n killed it; 0 if it is overdue
    status: int
    seconds: float  # that it took
    signal_number: int = (
        0  # of the first signal that asked this program to end; 0 for none
    )
    overdue: bool = False  # whether it went on after its seconds, and had to be ended


def check_command(command: Sequence[str]) -> None:
    """Check that a command's first word is a program.

    Args:
        command: its words, one or more.

    Raises:
        InputError: it is no program that can be found, or no executable file.
    """
    program = command[0]
    if shutil.which(program) is not None:
        return
    if not Path(program).is_file():
        rule = "must be a program that is there"
        remedy = "See what `command -v` says of it."
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
) -> ScriptEnd:
    """Run a command, and wait until it and its recorded processes have ended.

    The command has the terminal, the working directory and the environment of this
    process, and the variables of the recorder. It handles the first Ctrl-C itself; the
    second one ends it. A first SIGTERM or SIGHUP is passed on. Must be called in the
    main thread. Descendants are found in /proc.

    Args:
        command: its words, as of `check_command`.
        rows: a folder for the recorded rows.
        say: gets a sentence on each thing that is done to the script.
        seconds: of steps, after which the recorder ends it in order; None for its own
            end. A command that goes on `GRACE` longer is ended by signals.
        changes: what the recorder changes of its loaders.
        to_stderr: whether what the command prints goes to the standard error of this
            process.

    Raises:
        InputError: it could not be started.
    """
    environment = {**os.environ, **variables(str(rows.absolute()), changes, seconds)}
    begin = monotonic()
    with _catch_end_signals() as received:
        try:
            script = subprocess.Popen(  # noqa: S603 - as asked
                command, env=environment, stdout=2 if to_stderr else None
            )
        except OSError as error:
            rule = f"must be a program: {error.strerror}"
            remedy = "Write what a shell would run."
            refuse("COMMAND", rule, repr(command[0]), remedy, COMMAND_LINE)
        watch = _ScriptWatch(script, rows, say)
        watch.wait_for_end(received, seconds)
        watch.end_descendants(received)
    status = script.returncode
    status = 0 if watch.overdue else 128 - status if status < 0 else status
    return ScriptEnd(
        status, monotonic() - begin, received[0] if received else 0, watch.overdue
    )


@contextmanager
def _catch_end_signals() -> Iterator[list[int]]:
    """Collect the numbers of the signals that ask this program to end, which do nothing
    else meanwhile; ignored ones stay ignored. The old handlers come back at the end.
    """
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in END_SIGNALS}
    for number, handler in handlers.items():
        if (
            handler is not signal.SIG_IGN
        ):  # as of nohup: the script is to ignore it, too
            signal.signal(number, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _ScriptWatch:
    """A script that runs, and the signals that are to be sent to it.

    Attributes:
        overdue: whether it went on after its seconds, and was sent signals to end.
    """

    def __init__(
        self, script: subprocess.Popen[bytes], rows: Path, say: Callable[[str], None]
    ) -> None:
        self.overdue = False
        self._script = script
        self._rows = rows
        self._say = say
        self._forced = False  # whether the script was signalled to end more than once
        self._planned_signals: list[
            tuple[float, int]
        ] = []  # (moment, signal), the next one first

    def wait_for_end(self, received: Sequence[int], seconds: float | None) -> None:
        """Wait until the script has ended, and send it what it is to get meanwhile.

        A script that goes on `GRACE` after its time gets SIGINT, SIGTERM and SIGKILL,
        one each `GRACE`, unless a signal was received.

        Args:
            received: signals that asked this program to end; grows meanwhile.
            seconds: of steps (from the first recorded row on), after which the script
                is overdue; None for no limit.
        """
        num_handled = 0
        begun = None
        while not self._has_ended():
            now = monotonic()
            for number in received[num_handled:]:
                num_handled += 1
                self._pass_on(number, is_first=num_handled == 1, now=now)
            # an empty file is of a loop that waits for its first batch: workers may load torch
            row_files = self._rows.glob(f"*{SUFFIX}")
            if begun is None and any(path.stat().st_size for path in row_files):
                begun = now
            is_late = (
                seconds is not None
                and begun is not None
                and now > begun + seconds + GRACE
            )
            if is_late and not self.overdue and not num_handled:
                self.overdue = True
                self._say(
                    f"The script goes on after {seconds:g} s of steps: it is interrupted."
                )
                self._forced = True
                kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
                self._planned_signals = [
                    (now + GRACE * index, kind) for index, kind in enumerate(kinds)
                ]
            while self._planned_signals and self._planned_signals[0][0] <= now:
                self._send(self._planned_signals.pop(0)[1])

    def _has_ended(self) -> bool:
        """Wait `POLL_S` at most, and return whether the script has ended."""
        try:
            self._script.wait(POLL_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _pass_on(self, number: int, *, is_first: bool, now: float) -> None:
        """Pass on a signal that asked this program to end; any after the first ends the
        script, by SIGTERM now and SIGKILL after `GRACE`.

        A SIGINT that a terminal has sent to the script, too, is not sent again.

        Args:
            number: of the signal.
            is_first: whether no other came before.
            now: s of the monotonic clock.
        """
        if not is_first:
            if not self._forced:
                self._say("The script is ended. What was recorded is kept.")
            self._forced = True
            self._planned_signals = [
                (now, signal.SIGTERM),
                (now + GRACE, signal.SIGKILL),
            ]
        elif number == signal.SIGINT:
            # a terminal sends it to all processes of its group, so the script has it
            if not _has_terminal():
                self._send(number)
            self._say(
                "Interrupted: waiting for the script. Press Ctrl-C once more to end it."
            )
        else:
            self._send(number)

    def _send(self, number: int) -> None:
        """Send a signal to the script; SIGINT also to its processes in the process
        group of this program, SIGKILL to all of its processes.
        """
        if number == signal.SIGINT:  # to those that a terminal would send it to
            group = os.getpgrp()
            _send_signal(
                number, [pid for pid in self._descendants() if _group(pid) == group]
            )
        elif number == signal.SIGKILL:
            _send_signal(number, self._descendants())
        self._script.send_signal(number)  # not twice to one that has gone

    def _descendants(self) -> list[int]:
        """Return the pids of the other processes that the script started, however it
        did that, if they have its environment and may be looked at.
        """
        # found by their environment, which forks and sessions of their own keep
        mark = f"{FOLDER}={self._rows.absolute()}\0".encode()
        pids = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # of somebody else, or gone
                if mark in path.read_bytes():
                    pids.append(int(path.parent.name))
        return [pid for pid in pids if pid != self._script.pid]

    def _processes_to_end(self) -> list[int]:
        """Return the pids of the processes that have to end with the script.

        They are all of its processes if it was ended. Otherwise they are those that
        were recorded, as others may be meant to stay.
        """
        recorded = {
            path.stem.partition("-")[0] for path in self._rows.glob(f"*{SUFFIX}")
        }
        return [
            pid for pid in self._descendants() if self._forced or str(pid) in recorded
        ]

    def end_descendants(self, received: Sequence[int]) -> None:
        """Wait for the script's processes, and end those that go on; sooner at another
        signal.

        They have `GRACE`, unless the script was ended, then SIGTERM and after another
        `GRACE` SIGKILL. After a last `GRACE`, those that remain are left alone.

        Args:
            received: signals that asked this program to end; grows meanwhile.
        """
        for number in (None, signal.SIGTERM, signal.SIGKILL)[self._forced :]:
            remaining = self._processes_to_end()
            num_received = len(received)
            if not remaining:
                return
            if number is not None:
                self._say(f"Ended with the script: {len(remaining)} of its processes.")
                _send_signal(number, remaining)
            deadline = monotonic() + GRACE
            while (
                self._processes_to_end()
                and monotonic() < deadline
                and len(received) == num_received
            ):
                sleep(POLL_S)


def _send_signal(number: int, pids: Iterable[int]) -> None:
    """Send a signal to processes; one that has gone is left out."""
    for pid in pids:
        with suppress(OSError):  # it has gone
            os.kill(pid, number)


def _group(pid: int) -> int:
    """Return the process group of a process; -1 if it has gone."""
    try:
        return os.getpgid(pid)
    except OSError:
        return -1


def _has_terminal() -> bool:
    """Return whether a terminal sends its Ctrl-C to this process's group."""
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
