"""Examine a training: hold its record, its diagnosis and the trials, and write them to
a folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.brief import brief_lines
from simshuffle.extensions.doctor.diagnosis import Diagnosis, diagnose
from simshuffle.extensions.doctor.gains import Gain
from simshuffle.extensions.doctor.records.reading import RECORD, read
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.extensions.doctor.shown import batch_table, doctor_chart, tries_parts
from simshuffle.extensions.doctor.trying import TrialOutcome
from simshuffle.report.folders import write_folder
from simshuffle.report.style import sign_figure
from simshuffle.study.study import versions

if TYPE_CHECKING:
    from rich.table import Table

    from simshuffle.extensions.doctor.predicting import Prediction

KIND = "doctor"
"""Kind of the result folder."""
FIGURE = "doctor"
"""Name of the figure in the folder."""
DIAGNOSIS = "diagnosis.json"
"""Name of the file of the diagnosis."""
TRIES = "tries.json"
"""Name of the file of the trials."""
SCENARIOS = "scenarios"
"""Name of the folder of predicted scenarios."""
FILES = (RECORD, DIAGNOSIS, TRIES, SCENARIOS)
"""Names that a result folder may have beside its figure and meta.json."""


@dataclass(frozen=True)
class Examination:
    """A record of a training, and what was concluded from it."""

    record: Record
    diagnosis: Diagnosis  # of the record
    tries: Sequence[TrialOutcome] = ()  # trials of remedies; () if none was tried
    prediction: Prediction | None = (
        None  # with other ranks, or on a machine; a folder has its scenarios
    )

    def parts(self) -> list[str | Table]:
        """Return what is exported: the texts and tables of the diagnosis, of where
        a batch's time goes, of the trials and of the prediction.
        """
        diagnosis = [*self.diagnosis.parts(), batch_table(self.diagnosis.loop)]
        return [*diagnosis, *self.trial_parts(), *self.prediction_parts()]

    def brief_parts(self) -> list[str | Table]:
        """Return what a terminal shows: the lines of the diagnosis, and the texts and
        tables of the trials and of the prediction.
        """
        lines: list[str | Table] = list(brief_lines(self.diagnosis))
        return [*lines, *self.trial_parts(), *self.prediction_parts()]

    def trial_parts(self) -> list[str | Table]:
        """Return the texts and tables of the trials; [] without trials."""
        return tries_parts(self.tries)

    def prediction_parts(self) -> list[str | Table]:
        """Return the texts and tables of the prediction; [] without one."""
        return [] if self.prediction is None else self.prediction.parts()

    def as_json(self) -> dict[str, Any]:
        """Return ``diagnosis``, ``tries`` and, if there is one, ``prediction`` as plain
        values, in s and shares; the record is left out.

        Each of the tries also has ``within``: whether its intervals overlap.
        """
        tries = [
            {**asdict(outcome), "within": outcome.within} for outcome in self.tries
        ]
        prediction = (
            {} if self.prediction is None else {"prediction": self.prediction.as_json()}
        )
        return {"diagnosis": self.diagnosis.as_json(), "tries": tries, **prediction}

    def save(self, folder: Path, *, force: bool) -> Path:
        """Write the result folder, completely or not at all, and return it.

        Args:
            folder: to be written; its parents are made.
            force: whether an existing result is replaced.

        Raises:
            InputError: the folder holds other files, or a result and no ``force``; or
                it cannot be written.
        """
        return write_folder(folder, self._fill, replace=force, known_names=FILES)

    def _fill(self, folder: Path) -> None:
        """Write all files of the result into an empty folder that exists: meta.json,
        record, diagnosis, figure, and trials and scenarios if there are any.
        """
        # matplotlib, where it is drawn
        from simshuffle.report import canvas, paper  # noqa: PLC0415

        self.record.write(folder / RECORD)
        fingerprint = hashlib.sha256((folder / RECORD).read_bytes()).hexdigest()[:12]
        meta = {
            "kind": KIND,
            "fingerprint": fingerprint,
            "versions": versions(("numpy", "pandas")),
        }
        contents: dict[str, Any] = {
            "meta.json": meta,
            DIAGNOSIS: self.diagnosis.as_json(),
        }
        if self.tries:
            contents[TRIES] = [asdict(outcome) for outcome in self.tries]
        for name, values in contents.items():
            text = json.dumps(values, indent=1, allow_nan=False)
            (folder / name).write_text(f"{text}\n", encoding="utf-8")
        if self.prediction is not None:
            (folder / SCENARIOS).mkdir()
            self.prediction.write(folder / SCENARIOS)
        chart = doctor_chart(self.diagnosis, self.tries)
        canvas.save(
            paper.draw(chart), folder / FIGURE, sign_figure(FIGURE, [fingerprint])
        )


def examine(path: Path) -> Examination:
    """Read a record and diagnose it anew; of a result folder take its trials, too, but
    no prediction.

    Args:
        path: a record, a trace, or a folder that `Examination.save` wrote.

    Raises:
        InputError: it is none of them, `diagnose` refuses its loop, or its trials
            cannot be read.
    """
    record = replace(read(path), source=str(path))
    return Examination(record, diagnose(record), _read_trials(path / TRIES))


def _read_trials(path: Path) -> list[TrialOutcome]:
    """Read the trials from their file; [] if there is none.

    Raises:
        InputError: the file is not one of trials.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return [
            TrialOutcome(
                name=str(fields["name"]),
                predicted=_read_gain(fields["predicted"]),
                measured=_read_gain(fields["measured"]),
                why=str(fields["why"]),
                conclusion=str(fields.get("conclusion", "")),
            )
            for fields in values
        ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        refuse(
            "",
            f"must be what was tried: {error}",
            "",
            "Remove the file, or run doctor --try again.",
            str(path),
        )


def _read_gain(values: Any) -> Gain | None:
    """Return the gain of three numbers; None of None."""
    return None if values is None else Gain(*map(float, values))
