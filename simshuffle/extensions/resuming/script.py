"""A loader's script in the interpreter that it needs, which is asked job by job."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any, Self

from simshuffle.errors import refuse
from simshuffle.extensions.resuming import ranks
from simshuffle.study.options import COMMAND_LINE

EXAMPLE = "Write simshuffle study audit [OPTIONS] -- python my_loader.py"
GRACE = 30.0
"""Seconds that an answer may be late (chosen: a busy machine forks and kills in less);
later than that the script counts as ended.
"""
LOAD = 300.0
"""Seconds in which a script must be loaded (chosen: torch from a cold network disk
takes one).
"""


@dataclass(frozen=True)
class Command:
    """The command that is written behind ``--``."""

    python: tuple[str, ...]  # the interpreter, and its options
    script: str
    arguments: tuple[str, ...] = ()

    @classmethod
    def parse(cls, words: Sequence[str]) -> Command:
        """Parse words such as 'python -X dev my_loader.py --fast'.

        The first word that ends in .py is the script.

        Raises:
            InputError: the words are not written so, or name what does not exist.
        """
        if not words:
            refuse("COMMAND", "must stand behind --", "", EXAMPLE, COMMAND_LINE)
        script_index = next(
            (k for k, word in enumerate(words) if PurePath(word).suffix == ".py"), None
        )
        shown_words = " ".join(words)[:100]
        if script_index == 0:
            remedy = f"Write `python {words[0]}`, with the Python of the loader's environment."
            refuse(
                "COMMAND",
                "must begin with an interpreter",
                shown_words,
                remedy,
                COMMAND_LINE,
            )
        if shutil.which(words[0]) is None:
            rule = "must begin with a program that is there"
            remedy = "See what `command -v` says."
            refuse("COMMAND", rule, repr(words[0]), remedy, COMMAND_LINE)
        if script_index is None:
            rule = "must be python [OPTIONS] SCRIPT.py [ARGUMENTS]"
            remedy = f"{EXAMPLE}."
            refuse("COMMAND", rule, shown_words, remedy, COMMAND_LINE)
        if not Path(words[script_index]).is_file():
            rule = "must be a file that is there"
            remedy = "Write the path of the script."
            refuse("COMMAND", rule, repr(words[script_index]), remedy, COMMAND_LINE)
        return cls(
            tuple(words[:script_index]),
            words[script_index],
            tuple(words[script_index + 1 :]),
        )

    @property
    def words(self) -> list[str]:
        """The words of the command, as they were written."""
        return [*self.python, self.script, *self.arguments]

    @property
    def name(self) -> str:
        """The script's stem and its arguments, cut to 40 letters."""
        return " ".join([PurePath(self.script).stem, *self.arguments])[:40]


class Script:
    """A script that is loaded in its interpreter; ``with`` ends it, and all that it
    started.
    """

    def __init__(self, command: Command, folder: Path, load: float = LOAD) -> None:
        """Start the interpreter, and load the script within ``load`` s.

        ``folder``, which is there, gets what its ranks write, a file ``log``, and a new
        folder ``of_loader`` for the loader. ``versions`` has the versions of the
        script's libraries.

        Raises:
            InputError: the interpreter does not start, the script cannot be loaded in
                time, or it lacks a function.
        """
        self.command = command
        self._folder = folder
        self._num_jobs = 0
        (folder / "of_loader").mkdir()
        self._log = folder / "log"
        words = [*command.python, ranks.__file__, command.script, *command.arguments]
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(  # noqa: S603 - as asked
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    # out of reach of a terminal's Ctrl-C, so that it can end its ranks
                    start_new_session=True,
                )
        except OSError as error:
            rule = f"must be a program: {error.strerror}"
            remedy = EXAMPLE
            refuse("COMMAND", rule, repr(command.python[0]), remedy, COMMAND_LINE)
        try:
            self.versions = self._await_versions(load)
        except BaseException:
            self.close(0.0)
            raise

    def _await_versions(self, load: float) -> dict[str, str]:
        """Wait until the script is loaded; return the versions of its libraries.

        Raises:
            InputError: it is not loaded within ``load`` s, lacks a function, or raises
                an error; or the interpreter runs no Python.
        """
        answer = self._answer(load)
        script = self.command.script
        if answer is None:
            rule = f"must be loaded within {load:g} s"
            remedy = "Move what takes long into make()."
            refuse(script, rule, "", remedy, COMMAND_LINE)
        if not answer:
            remedy = "Begin with a Python of version 3.8 or newer."
            rule = "must be an interpreter that runs Python"
            python = self.command.python
            refuse(
                "COMMAND",
                rule,
                f"{' '.join(python)}{self._last_words()}",
                remedy,
                COMMAND_LINE,
            )
        if answer["missing"]:
            rule = "must have functions make(run), state(loader), resume(run, states)"
            remedy = f"Define {', '.join(answer['missing'])}."
            refuse(
                script,
                rule,
                f"without {', '.join(answer['missing'])}",
                remedy,
                COMMAND_LINE,
            )
        if not answer["ready"]:
            remedy = f"Check that `{' '.join(self.command.words)}` runs."
            refuse(
                script,
                "must load without an error",
                answer["error"],
                remedy,
                COMMAND_LINE,
            )
        versions: dict[str, str] = answer["versions"]
        return versions

    def log(self) -> str:
        """Return what the script wrote, errors of its ranks included."""
        return self._log.read_text(encoding="utf-8", errors="replace").strip()

    def _last_words(self) -> str:
        """Return ', which says' and the last line of the log, cut to 200 characters; ''
        if the log is empty.
        """
        lines = self.log().splitlines()
        return f", which says {lines[-1][:200]!r}" if lines else ""

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        """Return the script's next line, parsed; None where none comes in so many
        seconds; {} if it has ended, or the line is no JSON.
        """
        stream = self._process.stdout
        if stream is None or not select.select([stream], [], [], seconds)[0]:
            return None
        try:
            answer: dict[str, Any] = json.loads(stream.readline())
        except ValueError:
            return {}
        return answer

    def job(
        self, run: Mapping[str, Any], seconds: float, **job_options: Any
    ) -> tuple[Path, list[str]]:
        """Run a job as `simshuffle.extensions.resuming.ranks` has it, within
        ``seconds``.

        Args:
            run: attributes of the argument that `make` and `resume` get, but its
                folder.
            seconds: after which ranks are killed.
            job_options: further keys of the job. Without them ranks begin anew, end
                well, and save no states.

        Returns:
            The folder of what the ranks wrote, a new one, and how each rank ended:
                'ended', 'killed', 'hangs', or its error.

        Raises:
            InputError: the script itself ends, or does not answer within `GRACE` s
                after ``seconds``.
        """
        self._num_jobs += 1
        out = self._folder / str(self._num_jobs)
        out.mkdir()
        run_values = {**run, "folder": str(self._folder / "of_loader")}
        job = {
            "states": "",
            "saved": 0,
            "further": 0,
            "kill_at": -1,
            "save_at": [],
            **job_options,
        }
        job["run"] = run_values
        line = json.dumps({**job, "out": str(out), "seconds": seconds})
        stream = self._process.stdin
        answer = None
        with suppress(BrokenPipeError):
            if stream is not None:
                stream.write(f"{line}\n".encode())
                stream.flush()
                answer = self._answer(seconds + GRACE)
        if not answer:
            rule = "the script ended while its ranks ran"
            remedy = "Check that nothing kills its process."
            refuse(self.command.script, rule, self._last_words(), remedy, COMMAND_LINE)
        ends: list[str] = answer["ranks"]
        return out, ends

    def close(self, grace: float = 5.0) -> None:
        """End the script: it kills its ranks when its input ends; after ``grace`` s it
        is killed itself.
        """
        process = self._process
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def rows_of(out: Path, count: int, epoch: int) -> list[list[list[int]]]:
    """Read the batches of an epoch that each rank of a job wrote to ``out``.

    Returns:
        The sample numbers of each batch, by rank (``count``) and batch, in the order of
            steps; no batches of a rank that wrote none.
    """
    batches_of_rank = []
    for rank in range(count):
        path = out / f"{rank}.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        batches_of_rank.append(
            [line[2] for line in map(json.loads, lines) if line[0] == epoch]
        )
    return batches_of_rank
