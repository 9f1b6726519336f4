"""The verb doctor: why a real training waits for its data, and what helps."""

from __future__ import annotations

import re
import shlex
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from shutil import rmtree
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import (
    AsJson,
    Set,
    To,
    complain,
    print_answer,
    print_parts,
    say,
    split_command,
)
from simshuffle.cli.help import command
from simshuffle.errors import InputError, SimshuffleError, Stopped, refuse
from simshuffle.extensions.doctor.recorder.rows import SUFFIX
from simshuffle.job.scenario.options import counts_of, machine_names, result_folders
from simshuffle.study.options import COMMAND_LINE, Argument, Option

if TYPE_CHECKING:
    from simshuffle.extensions.doctor.examined import Examination
    from simshuffle.extensions.doctor.records.record import Record
    from simshuffle.extensions.doctor.running import ScriptEnd

app = typer.Typer()
INTERRUPTED = 128 + signal.SIGINT
ROWS = "rows"
"""Name of the folder that the recorder writes to."""
SCRIPTS = {".py", ".sh"}
"""What the names of scripts end with."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The words and options of the verb doctor."""

    words: Annotated[
        list[str],
        Argument(
            "RECORD|-- COMMAND",
            "A record or a trace of a training: a result folder of doctor, a Parquet file, a trace"
            " of PyTorch's profiler. For --ranks, also several, with different numbers of ranks."
            " Or, behind --, the command that trains.",
            many=True,
            complete=result_folders,
        ),
    ]
    out: Annotated[
        Path | None,
        Option(
            "FOLDER",
            "Result folder; the default is results/doctor-SCRIPT, and none for RECORD.",
        ),
    ] = None
    force: Annotated[
        bool, Option("", "Replace the result that is in the result folder.")
    ] = False
    seconds: Annotated[
        float | None,
        Option(
            "S",
            "Stop the command in order after S s of steps. Default: when it ends by itself.",
            low=0.001,
        ),
    ] = None
    try_: Annotated[
        int,
        Option(
            "N",
            "Run the command again: as it is, with each of the best N remedies, and with replayed"
            " batches, so that nothing waits. It may overwrite what it wrote.",
            low=0,
        ),
    ] = 0
    try_seconds: Annotated[
        float, Option("S", "Seconds of steps of each run of --try.", low=0.001)
    ] = 60.0
    on: Annotated[
        str | None,
        Option(
            "NAME",
            "Predict the same training on this machine, by its name or file. Default: the host of"
            " the record.",
            complete=machine_names,
        ),
    ] = None
    ranks: Annotated[
        list[int] | None,
        Option(
            "M,...",
            "Predict the training with M ranks. Default, with --on: as many as were recorded.",
            read=counts_of("--ranks", "64,512,2048"),
            many=True,
        ),
    ] = None
    include: Annotated[
        list[Path] | None,
        Option(
            "FILE",
            "Measured values for the prediction, from machine probe or calibrate.",
            many=True,
        ),
    ] = None
    set: Set = None
    json: AsJson = False
    to: To = None

    @property
    def predicts(self) -> bool:
        """True if a prediction is asked for, with other numbers of ranks or on a
        machine.
        """
        return self.on is not None or bool(self.ranks)

    @property
    def keeps_stdout(self) -> bool:
        """True if standard output is for tables alone."""
        return self.json or self.to is not None

    def print(self, examination: Examination) -> None:
        """Print an examination in the requested format."""
        parts = examination.brief_parts if self.to is None else examination.parts
        print_answer(examination.as_json, parts, json=self.json, table_format=self.to)


@command(
    app,
    "Results",
    "simshuffle doctor -- python train.py --lr 0.1",
    "simshuffle doctor --seconds 120 --try 3 -- torchrun train.py",
    "simshuffle doctor results/doctor-train --json",
    "simshuffle doctor trace.json.gz --on abci --ranks 64,512,2048",
    "simshuffle doctor results/one results/two --ranks 4,8",
    record=DoctorOptions,
    runs=True,
)
def doctor(options: DoctorOptions) -> None:
    """Say why a training waits for its data, and what helps.

    Runs COMMAND as it is, and records it; or reads a record. Output, Ctrl-C and exit
    status are the command's own. With --json or --to what it prints goes to standard
    error.
    """
    records, words = split_command(options.words)
    _check_words(records, words, options)
    _check_prediction(records, options)
    if words:
        folder = options.out or _default(words)
        if status := _RecordedCommand(words, folder, options).run():
            raise typer.Exit(status)
        return
    from simshuffle.extensions.doctor.examined import examine
    from simshuffle.extensions.doctor.records.reading import read

    further_records = [read(_locate(record)) for record in records[1:]]
    examination = _add_prediction(
        examine(_locate(records[0])), options, further_records
    )
    options.print(examination)
    if options.out is not None:
        place = examination.save(options.out, force=options.force)
        typer.echo(f"Tables: {place}", err=options.keeps_stdout)


def _check_words(
    records: Sequence[str], words: Sequence[str], options: DoctorOptions
) -> None:
    """Check that there are not both a record and a command, that several records exist,
    and that no option is for a command where there is a record.

    Raises:
        InputError: one of these is not so.
    """
    if records and words:
        rule = "cannot stand before a command"
        remedy = "Leave one of them out."
        refuse("RECORD", rule, repr(records[0]), remedy, COMMAND_LINE)
    if records and records[0].startswith("-"):
        refuse(
            records[0],
            "is no option of doctor",
            "",
            "See simshuffle doctor -h.",
            COMMAND_LINE,
        )
    if len(records) > 1 and not all(_locate(record).exists() for record in records):
        remedy = f"Write simshuffle doctor [OPTIONS] -- {shlex.join(records)}"
        refuse("COMMAND", "must stand behind --", "", remedy, COMMAND_LINE)
    for flag, value in (
        ("--seconds", options.seconds),
        ("--try", options.try_ or None),
    ):
        if records and value is not None:
            rule = "is for a command, behind --"
            remedy = "Leave it out."
            refuse(flag, rule, str(value), remedy, COMMAND_LINE)


def _check_prediction(records: Sequence[str], options: DoctorOptions) -> None:
    """Check that the machine exists, and that --set, --include and further records
    stand beside --on or --ranks.

    Raises:
        InputError: one of these is not so.
    """
    if options.on is not None:
        from simshuffle.job.scenario.scenario import machine_of

        machine_of(options.on)
    further_records = ", ".join(records[1:])
    for name, value, text in (
        ("--set", options.set, ""),
        ("--include", options.include, ""),
        ("RECORD", further_records, further_records),
    ):
        if value and not options.predicts:
            rule = "is for a prediction"
            remedy = "Ask for one: --ranks 4,8, or --on MACHINE."
            refuse(name, rule, text, remedy, COMMAND_LINE)


def _add_prediction(
    examination: Examination,
    options: DoctorOptions,
    further_records: Sequence[Record] = (),
) -> Examination:
    """Return an examination with its prediction from all the records; as it is, if none
    is asked for.

    Without --ranks it is for as many ranks as the first record has.
    """
    if not options.predicts:
        return examination
    from simshuffle.extensions.doctor.predicting import predict

    ranks = options.ranks or [examination.diagnosis.loop.ranks]
    records = [examination.record, *further_records]
    include = options.include or []
    prediction = predict(records, options.on, ranks, options.set or {}, include=include)
    return replace(examination, prediction=prediction)


def _locate(text: str) -> Path:
    """Return the path of a record: below results/ if it exists only there, else as it
    is written.
    """
    path = Path(text)
    return _RESULTS / path if not path.exists() and (_RESULTS / path).exists() else path


_RESULTS = Path("results")


def _default(words: Sequence[str]) -> Path:
    """Return the result folder of a command, results/doctor-NAME.

    NAME is the last part of the module behind -m, else the stem of the first word that
    is a script, else of the program; at most 80 letters, others than A-Z, a-z, 0-9,
    '_', '.' and '-' as '-'.
    """
    module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
    scripts = [word for word in words if PurePath(word).suffix in SCRIPTS]
    stem = (
        module[0].rpartition(".")[2]
        if module
        else PurePath([*scripts, words[0]][0]).stem
    )
    return _RESULTS / f"doctor-{re.sub('[^A-Za-z0-9_.-]+', '-', stem)[:80]}"


@dataclass(frozen=True)
class _RecordedCommand:
    """A command that is run, recorded and examined."""

    words: list[str]  # of the command
    folder: Path  # of the result
    options: DoctorOptions

    def run(self) -> int:
        """Record, diagnose, try, and write the result; return the exit status of the
        command, 128 + n after signal n.

        A command that failed before its first batch leaves no result, which is said.

        Raises:
            Stopped: the command was interrupted.
            InputError: there is no such program, no result can be written to the
                folder, or the record of a command with status 0 cannot be diagnosed.
        """
        from simshuffle.extensions.doctor.examined import FILES
        from simshuffle.extensions.doctor.running import check_command, run_recorded
        from simshuffle.report.folders import check_place

        options = self.options
        check_command(self.words)
        check_place(self.folder, replace=options.force, known_names=FILES)
        if options.try_:
            say(
                f"With --try {options.try_} the script runs up to {options.try_ + 2} times more,"
                f" each for {options.try_seconds:g} s of steps. It may overwrite what it wrote."
            )
        with _room_beside(self.folder) as room:
            rows = room / ROWS
            rows.mkdir()
            ended = run_recorded(
                self.words,
                rows,
                say,
                seconds=options.seconds,
                to_stderr=options.keeps_stdout,
            )
            if ended.status and not ended.signal_number:
                say(f"The script ended with status {ended.status}.")
            if ended.status and not _has_rows(rows):
                say("No batch was recorded before that.")
            else:
                self._examine_if_enough(room, ended)
        if ended.signal_number == signal.SIGINT or ended.status == INTERRUPTED:
            raise Stopped("Interrupted; the result is of what was recorded until then.")
        return 128 + ended.signal_number if ended.signal_number else ended.status

    def _examine_if_enough(self, room: Path, ended: ScriptEnd) -> None:
        """Examine the record. A script that failed may have recorded too little, which
        is said; of one that did not fail it raises an InputError.
        """
        try:
            self._examine(room, ended)
        except InputError as error:
            error = InputError(error.problems, shlex.join(self.words))
            if not ended.status:
                raise error from None
            complain(str(error))

    def _examine(self, room: Path, ended: ScriptEnd) -> None:
        """Examine the recorded rows, try remedies, and write and print the result; the
        rows are removed.

        Nothing is tried after a signal. If the prediction fails, the result without it
        is written before its error is raised.
        """
        from simshuffle.extensions.doctor.diagnosis import diagnose
        from simshuffle.extensions.doctor.examined import Examination
        from simshuffle.extensions.doctor.records.collected import collect_record

        options = self.options
        facts = {
            "command": self.words,
            "exit_status": ended.status,
            "seconds": ended.seconds,
        }
        record = replace(collect_record(room / ROWS, facts), source=str(self.folder))
        examination = Examination(record, diagnose(record))
        if not options.keeps_stdout:
            print_parts(examination.brief_parts())
        if options.try_ and not ended.signal_number:
            examination = self._add_tries(examination, room, ended.seconds)
        try:
            examination = _add_prediction(examination, options)
        finally:
            examination.save(self.folder, force=options.force)
            rmtree(room / ROWS)
        if options.keeps_stdout:
            options.print(examination)
        else:
            print_parts([*examination.trial_parts(), *examination.prediction_parts()])
            stem = self.folder / "doctor"
            typer.echo(f"Tables: {self.folder}\nFigure: {stem}.png and {stem}.pdf")

    def _add_tries(
        self, examination: Examination, room: Path, seconds: float
    ) -> Examination:
        """Return an examination with the remedies tried, or as it is, said so, if the
        script cannot be measured; the command took ``seconds`` in all.

        The script runs again, once for each trial and once as it is.
        """
        from simshuffle.extensions.doctor.trying import (
            WARM,
            ScriptRuns,
            choose_trials,
            try_all,
        )

        options = self.options
        trials = choose_trials(examination.diagnosis, options.try_)
        start = max(0.0, seconds - examination.diagnosis.loop.seconds)
        num_runs = 1 + sum(trial.name != WARM for trial in trials)
        minutes = num_runs * (start + options.try_seconds) / 60
        say(f"The script runs {num_runs} times more, about {minutes:.2g} min in all.")
        runs = ScriptRuns(
            self.words, room, say, options.try_seconds, options.keeps_stdout
        )
        try:
            outcomes = try_all(runs, trials, examination.record)
            return replace(examination, tries=outcomes)
        except SimshuffleError as error:
            say(f"Nothing is tried: {error}.")
            return examination


@contextmanager
def _room_beside(folder: Path) -> Iterator[Path]:
    """Make a temporary folder beside a result folder, and remove it in the end.

    It stays where it still has rows then, and that is said. The parents of ``folder``
    are made. Raises Stopped if this process is interrupted (KeyboardInterrupt).
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    room = Path(
        tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name[:40]}.part-")
    )
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
    """Return whether a file of rows in the folder is not empty."""
    return any(path.stat().st_size for path in folder.glob(f"*{SUFFIX}"))
