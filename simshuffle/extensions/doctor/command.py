"""The verb doctor: why a real training waits for its data, and what helps."""

from __future__ import annotations

import re
import shlex
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.cli.common import (
    AsJson,
    Set,
    To,
    check_format,
    complain,
    print_json,
    print_parts,
    say,
)
from simshuffle.cli.help import command
from simshuffle.errors import InputError, SimshuffleError, Stopped, refuse
from simshuffle.extensions.doctor.recorder.rows import SUFFIX
from simshuffle.job.scenario.options import counts_of, machine_names, result_folders
from simshuffle.study.options import COMMAND_LINE, Argument, Option

if TYPE_CHECKING:
    from simshuffle.extensions.doctor.examined import Examined
    from simshuffle.extensions.doctor.records.record import Record
    from simshuffle.extensions.doctor.running import Ended

app = typer.Typer()
INTERRUPTED = 128 + signal.SIGINT
ROWS = "rows"
"""Name of the folder that the recorder writes to."""
SCRIPTS = {".py", ".sh"}
"""What the names of scripts end with."""


Given = Annotated[
    list[str],
    Argument(
        "RECORD|-- COMMAND",
        "A record or a trace of a training: a result folder of doctor, a Parquet file, a trace of"
        " PyTorch's profiler; of several numbers of ranks, for --ranks. Or, behind --, the command"
        " that trains.",
        many=True,
        complete=result_folders,
    ),
]
Tries = Annotated[
    int,
    Option(
        "N",
        "Run the command again with each of the best N remedies, with batches that are played"
        " again, so that nothing waits, and as it is. It may overwrite what it wrote.",
        low=0,
    ),
]
On = Annotated[
    str | None,
    Option(
        "NAME",
        "Predict the same training on this machine, by its name or file. Default: its own host.",
        complete=machine_names,
    ),
]
Ranks = Annotated[
    list[int] | None,
    Option(
        "M,...",
        "Predict it with so many ranks. Default: as many as were recorded, with --on.",
        read=counts_of("--ranks", "64,512,2048"),
        many=True,
    ),
]
Include = Annotated[
    list[Path] | None,
    Option("FILE", "Of machine probe or calibrate: what the prediction takes in.", many=True),
]
Out = Annotated[
    Path | None,
    Option("FOLDER", "Result folder; the default is results/doctor-SCRIPT, and none for RECORD."),
]


@command(
    app,
    "Results",
    "simshuffle doctor -- python train.py --lr 0.1",
    "simshuffle doctor --seconds 120 --try 3 -- torchrun train.py",
    "simshuffle doctor results/doctor-train --json",
    "simshuffle doctor trace.json.gz --on abci --ranks 64,512,2048",
    "simshuffle doctor results/one results/two --ranks 4,8",
    runs=True,
)
def doctor(
    words: Given,
    out: Out = None,
    force: Annotated[bool, Option("", "Replace the result that is in the result folder.")] = False,
    seconds: Annotated[
        float | None,
        Option(
            "S", "End the command in order after S s of steps. Default: its own end.", low=0.001
        ),
    ] = None,
    try_: Tries = 0,
    try_seconds: Annotated[
        float, Option("S", "Seconds of steps of each of these runs.", low=0.001)
    ] = 60.0,
    on: On = None,
    ranks: Ranks = None,
    include: Include = None,
    set_: Set = None,
    json: AsJson = False,
    to: To = None,
) -> None:
    """Say why a training waits for its data, and what helps.

    Runs COMMAND as it is, and records it; or reads a record.
    Output, Ctrl-C and exit status are the command's own. With --json or --to what it prints goes to
    standard error."""
    check_format(json, to)
    end = words.index("--") if "--" in words else len(words)
    records, given = words[:end], words[end + 1 :]
    _check(records, given, {"--seconds": seconds, "--try": try_ or None})
    goal = _Goal(on, ranks, set_ or {}, include or [])
    goal.check(records)
    if not given:
        from simshuffle.extensions.doctor.examined import examined
        from simshuffle.extensions.doctor.records.reading import read

        others = [read(_place(record)) for record in records[1:]]
        found = goal.predicted(examined(_place(records[0])), others)
        _show(found, json, to)
        if out is not None:
            typer.echo(f"Tables: {found.save(out, force=force)}", err=json or to is not None)
        return
    wish = _Wish(given, out or _default(given), force, seconds, try_, try_seconds, goal, json, to)
    if status := wish.fulfil():
        raise typer.Exit(status)


def _check(records: Sequence[str], given: Sequence[str], of_commands: Mapping[str, Any]) -> None:
    """See that there is a record or a command, and nothing that needs the other."""
    if records and given:
        rule, remedy = "cannot stand before a command", "Leave one of them out."
        refuse("RECORD", rule, repr(records[0]), remedy, COMMAND_LINE)
    if records and records[0].startswith("-"):
        refuse(records[0], "is no option of doctor", "", "See simshuffle doctor -h.", COMMAND_LINE)
    if len(records) > 1 and not all(_place(record).exists() for record in records):
        remedy = f"Write simshuffle doctor [OPTIONS] -- {shlex.join(records)}"
        refuse("COMMAND", "must stand behind --", "", remedy, COMMAND_LINE)
    for flag, value in of_commands.items():
        if records and value is not None:
            rule, remedy = "is for a command, behind --", "Leave it out."
            refuse(flag, rule, str(value), remedy, COMMAND_LINE)


def _place(text: str) -> Path:
    """A record's path: as it is written, or below results/."""
    path = Path(text)
    return _RESULTS / path if not path.exists() and (_RESULTS / path).exists() else path


_RESULTS = Path("results")


def _default(given: Sequence[str]) -> Path:
    """The result folder of a command: named after its script, or else its program."""
    module = given[given.index("-m") + 1 :][:1] if "-m" in given else []
    scripts = [word for word in given if PurePath(word).suffix in SCRIPTS]
    stem = module[0].rpartition(".")[2] if module else PurePath([*scripts, given[0]][0]).stem
    return _RESULTS / f"doctor-{re.sub('[^A-Za-z0-9_.-]+', '-', stem)[:80]}"


@dataclass(frozen=True)
class _Goal:
    """What a training is predicted for."""

    machine: str | None
    ranks: Sequence[int] | None
    set: Mapping[str, Any]
    include: Sequence[Path]

    @property
    def wanted(self) -> bool:
        """Whether anything is to be predicted."""
        return self.machine is not None or bool(self.ranks)

    def check(self, records: Sequence[str]) -> None:
        """See that something is predicted where that is needed, and that there is a machine of that
        name."""
        if self.machine is not None:
            from simshuffle.job.scenario.scenario import machine_of

            machine_of(self.machine)
        others = ", ".join(records[1:])
        for name, value in (("--set", self.set), ("--include", self.include), ("RECORD", others)):
            if value and not self.wanted:
                rule, remedy = "is for a prediction", "Ask for one: --ranks 4,8, or --on MACHINE."
                shown = others if name == "RECORD" else ""
                refuse(name, rule, shown, remedy, COMMAND_LINE)

    def predicted(self, found: Examined, others: Sequence[Record] = ()) -> Examined:
        """The same with what is predicted, if anything is, from its record and ``others``."""
        if not self.wanted:
            return found
        from simshuffle.extensions.doctor.predicting import predict

        ranks = self.ranks or [found.diagnosis.loop.ranks]
        records = [found.record, *others]
        made = predict(records, self.machine, ranks, self.set, include=self.include)
        return replace(found, prediction=made)


@dataclass(frozen=True)
class _Wish:
    """A command that is to be recorded, and what then."""

    command: list[str]
    folder: Path  # of the result
    force: bool
    seconds: float | None
    tries: int
    try_seconds: float
    goal: _Goal
    json: bool
    to: str | None

    @property
    def apart(self) -> bool:
        """Whether standard output is for tables alone."""
        return self.json or self.to is not None

    def fulfil(self) -> int:
        """Record, diagnose, try, and write the result; returns the exit status: the script's."""
        from simshuffle.extensions.doctor.examined import FILES
        from simshuffle.extensions.doctor.running import check_command, run_recorded
        from simshuffle.report.folders import check_place

        check_command(self.command)
        check_place(self.folder, replace=self.force, known=FILES)
        if self.tries:
            say(
                f"With --try {self.tries} the script runs up to {self.tries + 2} times more, each"
                f" for {self.try_seconds:g} s of steps. It may overwrite what it wrote."
            )
        with _room_beside(self.folder) as room:
            rows = room / ROWS
            rows.mkdir()
            ended = run_recorded(
                self.command, rows, say, seconds=self.seconds, to_stderr=self.apart
            )
            if ended.status and not ended.asked:
                say(f"The script ended with status {ended.status}.")
            if ended.status and not _has_rows(rows):
                say("No batch was recorded before that.")
            else:
                self._examine_what_there_is(room, ended)
        if ended.asked == signal.SIGINT or ended.status == INTERRUPTED:
            raise Stopped("Interrupted; what was recorded until then counts.")
        return 128 + ended.asked if ended.asked else ended.status

    def _examine_what_there_is(self, room: Path, ended: Ended) -> None:
        """Examine it; of a script that failed that may be too little, which is only said."""
        try:
            self._examine(room, ended)
        except InputError as error:
            error = InputError(error.problems, shlex.join(self.command))
            if not ended.status:
                raise error from None
            complain(str(error))

    def _examine(self, room: Path, ended: Ended) -> None:
        from simshuffle.extensions.doctor.diagnosis import diagnose
        from simshuffle.extensions.doctor.examined import Examined
        from simshuffle.extensions.doctor.records.collected import collected

        known = {"command": self.command, "exit_status": ended.status, "seconds": ended.seconds}
        record = replace(collected(room / ROWS, known), source=str(self.folder))
        found = Examined(record, diagnose(record))
        if not self.apart:
            print_parts(found.parts())
        if self.tries and not ended.asked:
            found = self._with_tries(found, room, ended.seconds)
        try:
            found = self.goal.predicted(found)
        finally:
            found.save(self.folder, force=self.force)
            rmtree(room / ROWS)
        if self.apart:
            _show(found, self.json, self.to)
        else:
            print_parts([*found.tried(), *found.predicted()])
            stem = self.folder / "doctor"
            typer.echo(f"Tables: {self.folder}\nFigure: {stem}.png and {stem}.pdf")

    def _with_tries(self, found: Examined, room: Path, took: float) -> Examined:
        from simshuffle.extensions.doctor.trying import ScriptRuns, trials_of, try_all

        trials = trials_of(found.diagnosis, self.tries)
        start = max(0.0, took - found.diagnosis.loop.seconds)
        minutes = (len(trials) + 1) * (start + self.try_seconds) / 60
        say(f"The script runs {len(trials) + 1} times more, some {minutes:.2g} min in all.")
        runs = ScriptRuns(self.command, room, say, self.try_seconds, self.apart)
        try:
            return replace(found, tries=try_all(runs, trials))
        except SimshuffleError as error:
            say(f"Nothing is tried: {error}.")
            return found


def _show(found: Examined, json: bool, to: str | None) -> None:
    """Print all that is found."""
    if json:
        print_json(found.as_json())
    else:
        print_parts([*found.parts(), *found.tried(), *found.predicted()], to)


@contextmanager
def _room_beside(folder: Path) -> Iterator[Path]:
    """A folder beside a result folder. It stays where it has rows in the end, which is said."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    room = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name[:40]}.part-"))
    try:
        yield room
    except KeyboardInterrupt:
        raise Stopped("Interrupted; no result was written.") from None
    finally:
        if _has_rows(room / ROWS):
            say(f"What was recorded is kept: simshuffle doctor {room / ROWS} reads it.")
        else:
            rmtree(room, ignore_errors=True)


def _has_rows(folder: Path) -> bool:
    return any(path.stat().st_size for path in folder.glob(f"*{SUFFIX}"))
